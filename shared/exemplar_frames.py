"""The layout of exemplars on the wire: a shard's part of a remote-write request, as columns in one frame.

The coordinator checks the exemplars and writes the frame (`coordinator.series.exemplars`). A worker tells it from a
frame of samples (`shared.sample_frames`) by its mark.

A frame consists of words of 64 bits: mark, series n, exemplars m, label bytes of series b, label bytes of exemplars c;
n hashes; n + 1 offsets of the series' label bytes; n exemplar counts; m times; m values; m + 1 offsets of the
exemplars' label bytes; the label bytes of the series, and then those of the exemplars, each padded with zeros to a
whole word.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.wire import Frame

MARK = int.from_bytes(b"exempla1", "little")
_WORD = struct.Struct("=q")
HEADER_WORDS = 5
_HEADER = struct.Struct(f"={HEADER_WORDS}q")

LABEL_CHARACTERS_MAX = 128
"""Characters of the names and values of an exemplar's labels together, as OpenMetrics has it."""


def frame_words(series: int, exemplars: int, series_bytes: int, label_bytes: int) -> int:
    """The number of words of a frame with this many series, exemplars and bytes of labels."""
    columns = 3 * series + 1 + 3 * exemplars + 1
    return HEADER_WORDS + columns + (series_bytes + 7) // 8 + (label_bytes + 7) // 8


@dataclass(frozen=True, slots=True)
class ExemplarColumns:
    """Run i is counts[i] exemplars of the series with canonical label bytes data[starts[i]:ends[i]] and xxh64
    hashes[i]. `times_ms` int64[n] and `values` float64[n] have the exemplars of all runs, one run after another; the
    labels of exemplar i are labels[label_offsets[i]:label_offsets[i + 1]], canonical as well."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    label_offsets: NDArray[np.int64]
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.times_ms)


def is_exemplars(frame: Frame) -> bool:
    """Whether a frame of a write has exemplars, and not samples."""
    try:
        return _WORD.unpack_from(frame)[0] == MARK
    except struct.error:  # it has no word
        return False


def parse(frame: Frame) -> ExemplarColumns:
    """Parse a frame that was written for one shard. Raises Internal for anything else."""
    size = memoryview(frame).nbytes
    if size % 8 == 0 and size >= 8 * HEADER_WORDS:
        # A copy, because received frames may lie at any address, and views would keep the whole message in memory.
        words = np.frombuffer(frame, dtype=np.int64).copy()
        mark, *counts_and_bytes = _HEADER.unpack_from(frame)
        if mark == MARK and min(counts_and_bytes) >= 0 and len(words) == frame_words(*counts_and_bytes):
            series, exemplars, series_bytes, label_bytes = counts_and_bytes
            starts = HEADER_WORDS + series
            counts = starts + series + 1
            times = counts + series
            values = times + exemplars
            offsets = values + exemplars
            octets = offsets + exemplars + 1
            labels = octets + (series_bytes + 7) // 8
            if words[counts - 1] == series_bytes and words[octets - 1] == label_bytes:
                return ExemplarColumns(
                    words[octets:labels].view(np.uint8),
                    words[starts : counts - 1],
                    words[starts + 1 : counts],
                    words[HEADER_WORDS:starts].view(np.uint64),
                    words[counts:times],
                    words[times:values],
                    words[values:offsets].view(np.float64),
                    words[offsets:octets],
                    words[labels:].view(np.uint8)[:label_bytes],
                )
    raise Internal(f"a frame of {size} bytes for series.write is not in the form of {__name__}")


def joined(parts: Sequence[ExemplarColumns]) -> ExemplarColumns:
    """The runs of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    shifts = np.cumsum([0, *(len(part.data) for part in parts)]).tolist()
    label_shifts = np.cumsum([0, *(len(part.labels) for part in parts)]).tolist()
    offsets = [part.label_offsets[:-1] + shift for part, shift in zip(parts, label_shifts, strict=False)]
    return ExemplarColumns(
        np.concatenate([part.data for part in parts]),
        np.concatenate([part.starts + shift for part, shift in zip(parts, shifts, strict=False)]),
        np.concatenate([part.ends + shift for part, shift in zip(parts, shifts, strict=False)]),
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.times_ms for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate([*offsets, np.array(label_shifts[-1:], dtype=np.int64)]),
        np.concatenate([part.labels for part in parts]),
    )
