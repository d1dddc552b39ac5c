"""The layout of samples on the wire: a shard's part of a remote-write request, as columns in one frame.

The coordinator parses and checks the request and writes the frame (`coordinator.series.division`), so that a worker
reads the columns without parsing anything.

A frame (`shared.frames.runs`) begins with mark, series n, samples m, label bytes b. After the values come the label
bytes of all series, padded with zeros to a whole word.

A frame whose samples have start timestamps or are histograms has another mark and additional words: m start timestamps
or none; the histograms to which the values refer (`shared.histograms.frames`); and two words with the number of start
timestamps and the size of the histograms in bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.frames.runs import RunArrays, Runs, has_mark, read_runs, read_words
from shared.frames.start_timestamps import StartTimestamps
from shared.histograms import frames, references
from shared.histograms.batch import HistogramBatch
from shared.histograms.packed import PackedHistograms
from shared.wire import Frame

TIME_MS_MIN = -62_135_596_800_000
"""0001-01-01T00:00:00Z, the earliest time a sample may have; sums and differences of such times cannot overflow."""
TIME_MS_MAX = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the latest."""

MARK, EXTENDED_MARK = (int.from_bytes(text, "little") for text in (b"arrival1", b"arrival2"))
HEADER_WORDS = 4
_TAIL = struct.Struct("=qq")
"""The end of an extended frame: the number of start timestamps, and the size of the histograms in bytes."""
TAIL_WORDS = _TAIL.size // 8


def frame_words(series: int, samples: int, label_bytes: int) -> int:
    """The number of words of a frame with this many series, samples and bytes of labels."""
    return HEADER_WORDS + 3 * series + 1 + 2 * samples + (label_bytes + 7) // 8


@dataclass(frozen=True, slots=True)
class SampleColumns(Runs):
    """Runs of samples. A value may refer to a row of `histograms` (`shared.histograms.references`).
    `start_timestamps_ms` int64[m], 0: unknown."""

    start_timestamps_ms: StartTimestamps = None
    histograms: PackedHistograms | None = None


def extended(frame: Frame, starts: NDArray[np.int64] | None, histograms: HistogramBatch | None) -> Frame:
    """Append start timestamps and histograms to a frame with EXTENDED_MARK."""
    start_bytes = b"" if starts is None else starts.tobytes()
    histogram_bytes = b"" if histograms is None else frames.encode(histograms)
    tail = _TAIL.pack(len(start_bytes) // 8, len(histogram_bytes))
    return b"".join((frame, start_bytes, histogram_bytes, tail))


def parse(frame: Frame) -> SampleColumns:
    """Parse a frame that was written for one shard. Raises Internal for anything else."""
    return _parse_extended(frame) if has_mark(frame, EXTENDED_MARK) else SampleColumns(*_parse(frame, MARK))


def _parse(frame: Frame, mark: int) -> RunArrays:
    words, (series, samples, label_bytes) = read_words(frame, mark, HEADER_WORDS, frame_words, __name__)
    labels = slice(frame_words(series, samples, 0), None)
    return read_runs(words, HEADER_WORDS, series, samples, labels, label_bytes, __name__)


def _parse_extended(frame: Frame) -> SampleColumns:
    octets = memoryview(frame).cast("B")
    tail_at = octets.nbytes - _TAIL.size
    if tail_at < 0:
        raise Internal(f"a frame of {octets.nbytes} bytes for series.write is not in the form of {__name__}")
    start_count, histogram_bytes = _TAIL.unpack_from(octets, tail_at)
    histograms_at = tail_at - histogram_bytes
    starts_at = histograms_at - 8 * start_count
    if min(start_count, histogram_bytes, starts_at) < 0 or histogram_bytes % 8:
        raise Internal(f"a frame of {octets.nbytes} bytes has no {start_count} starts, {histogram_bytes} of histograms")
    runs = *_, values = _parse(octets[:starts_at], EXTENDED_MARK)
    words = np.frombuffer(octets[starts_at:tail_at], np.int64).copy()  # a copy, as of the words before
    starts = words[:start_count] if start_count else None
    try:
        histograms = PackedHistograms.of_words(words[start_count:]) if histogram_bytes else None
    except ValueError as error:
        raise Internal(f"a frame of {octets.nbytes} bytes for series.write: {error}") from error
    samples = len(values)
    rows = 0 if histograms is None else len(histograms)
    if start_count not in (0, samples) or not references.refer_into(values, rows):
        raise Internal(
            f"{samples} samples have {start_count} start timestamps, or refer to histograms that are not there"
        )
    return SampleColumns(*runs, starts, histograms)
