"""The layout of samples on the wire: a shard's part of a remote-write request, as columns in one frame.

The coordinator parses and checks the request and writes the frame (`coordinator.series.division`), so that a worker
reads the columns without parsing anything.

A frame (`shared.run_frames`) begins with mark, series n, samples m, label bytes b. Behind the values come the label
bytes of all series, padded with zeros to a whole word.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.run_frames import Runs, joined_runs, read_runs, read_words
from shared.wire import Frame

TIME_MS_MIN = -62_135_596_800_000
"""0001-01-01T00:00:00Z, the earliest time a sample may have; sums and differences of such times cannot overflow."""
TIME_MS_MAX = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the latest."""

MARK = int.from_bytes(b"arrival1", "little")
HEADER_WORDS = 4


def frame_words(series: int, samples: int, label_bytes: int) -> int:
    """The number of words of a frame with this many series, samples and bytes of labels."""
    return HEADER_WORDS + 3 * series + 1 + 2 * samples + (label_bytes + 7) // 8


class SampleColumns(Runs):
    """Runs of samples."""

    __slots__ = ()


def parse(frame: Frame) -> SampleColumns:
    """Parse a frame that was written for one shard. Raises Internal for anything else."""
    words, (series, samples, label_bytes) = read_words(frame, MARK, HEADER_WORDS, frame_words, __name__)
    labels = slice(frame_words(series, samples, 0), None)
    return SampleColumns(*read_runs(words, HEADER_WORDS, series, samples, labels, label_bytes, __name__))


def joined(parts: Sequence[SampleColumns]) -> SampleColumns:
    """The runs of all parts, one part after another."""
    return parts[0] if len(parts) == 1 else SampleColumns(*joined_runs(parts))
