"""The layout of samples on the wire: a shard's part of a remote-write request, as columns in one frame.

The coordinator parses and checks the request and writes the frame (`coordinator.series.division`), so that a worker
reads the columns without parsing anything.

A frame consists of words of 64 bits: mark, series n, samples m, label bytes b; n hashes; n + 1 offsets of the label
bytes; n sample counts; m times; m values; the label bytes of all series, padded with zeros to a whole word.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.wire import Frame

TIME_MS_MIN = -62_135_596_800_000
"""0001-01-01T00:00:00Z, the earliest time a sample may have; sums and differences of such times cannot overflow."""
TIME_MS_MAX = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the latest."""

MARK = int.from_bytes(b"arrival1", "little")
HEADER_WORDS = 4
_HEADER = struct.Struct(f"={HEADER_WORDS}q")


def frame_words(series: int, samples: int, label_bytes: int) -> int:
    """The number of words of a frame with this many series, samples and bytes of labels."""
    return HEADER_WORDS + 3 * series + 1 + 2 * samples + (label_bytes + 7) // 8


@dataclass(frozen=True, slots=True)
class SampleColumns:
    """Run i is counts[i] samples of the series with canonical label bytes data[starts[i]:ends[i]] and xxh64 hashes[i].
    `times_ms` int64[samples] and `values` float64[samples] have the samples of all runs, one run after another."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        assert len(self.starts) == len(self.ends) == len(self.hashes) == len(self.counts)
        assert len(self.times_ms) == len(self.values)


def parse(frame: Frame) -> SampleColumns:
    """Parse a frame that was written for one shard. Raises Internal for anything else."""
    size = memoryview(frame).nbytes
    if size % 8 == 0 and size >= 8 * HEADER_WORDS:
        # A copy, because received frames may lie at any address, and views would keep the whole message in memory.
        words = np.frombuffer(frame, dtype=np.int64).copy()
        mark, series, samples, label_bytes = _HEADER.unpack_from(frame)
        if mark == MARK and len(words) == frame_words(series, samples, label_bytes):
            offsets = HEADER_WORDS + series
            counts = offsets + series + 1
            times = counts + series
            values = times + samples
            labels = values + samples
            if words[offsets] == 0 and words[counts - 1] == label_bytes:
                return SampleColumns(
                    words[labels:].view(np.uint8),
                    words[offsets : counts - 1],
                    words[offsets + 1 : counts],
                    words[HEADER_WORDS:offsets].view(np.uint64),
                    words[counts:times],
                    words[times:values],
                    words[values:labels].view(np.float64),
                )
    raise Internal(f"a frame of {size} bytes for series.write is not in the form of {__name__}")


def joined(parts: Sequence[SampleColumns]) -> SampleColumns:
    """The runs of all parts, one part after another."""
    shifts = np.cumsum([0, *(len(part.data) for part in parts)]).tolist()
    return SampleColumns(
        np.concatenate([part.data for part in parts]),
        np.concatenate([part.starts + shift for part, shift in zip(parts, shifts, strict=False)]),
        np.concatenate([part.ends + shift for part, shift in zip(parts, shifts, strict=False)]),
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.times_ms for part in parts]),
        np.concatenate([part.values for part in parts]),
    )
