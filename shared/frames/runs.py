"""The common part of frames of samples and frames of exemplars: a shard's part of a remote-write request, as runs of
entries, each of one series.

A frame consists of 64-bit words: a mark; numbers that determine its size; n hashes; n + 1 offsets of the series' label
bytes; n counts of entries; m times; m values; and data specific to its kind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.wire import Frame

_WORD = struct.Struct("=q")
Words = NDArray[np.int64]
RunArrays = tuple[NDArray[np.uint8], Words, Words, NDArray[np.uint64], Words, Words, NDArray[np.float64]]
"""The fields of `Runs`."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Run i is counts[i] entries of the series with canonical label bytes data[starts[i]:ends[i]] and xxh64 hashes[i].
    `times_ms` int64[m] and `values` float64[m] are the entries of all runs, concatenated."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def samples(self) -> int:
        """The number of entries in all runs."""
        return len(self.times_ms)

    def __post_init__(self) -> None:
        assert len(self.starts) == len(self.ends) == len(self.hashes) == len(self.counts)
        assert len(self.times_ms) == len(self.values)


def mark_of(frame: Frame) -> int | None:
    """The mark at the beginning of a frame; None if the frame is shorter than a word."""
    try:
        mark: int = _WORD.unpack_from(frame)[0]
    except struct.error:
        return None
    return mark


def has_mark(frame: Frame, mark: int) -> bool:
    """Whether a frame begins with this mark."""
    return mark_of(frame) == mark


def aligned_words(frame: Frame) -> Words | None:
    """The words of a frame: a view if the frame is aligned to words, otherwise a copy. None if the frame is empty or
    not made of whole words."""
    size = memoryview(frame).nbytes
    if size == 0 or size % 8:
        return None
    words = np.frombuffer(frame, dtype=np.int64)
    return words if words.flags.carray else words.copy()


def read_words(
    frame: Frame, mark: int, header_words: int, frame_words: Callable[..., int], form: str
) -> tuple[Words, list[int]]:
    """(a copy of a frame's words, the header's numbers after the mark). `frame_words` computes the expected size from
    these numbers. Raises Internal, which names the `form`, if the frame is not valid."""
    size = memoryview(frame).nbytes
    if size % 8 == 0 and size >= 8 * header_words:
        # A copy, because received frames may be unaligned, and views would keep the whole message in memory.
        words = np.frombuffer(frame, dtype=np.int64).copy()
        actual_mark, *numbers = words[:header_words].tolist()
        if actual_mark == mark and min(numbers) >= 0 and len(words) == frame_words(*numbers):
            return words, numbers
    raise Internal(f"a frame of {size} bytes for series.write is not in the form of {form}")


def read_runs(
    words: Words, begin: int, series: int, entries: int, label_words: slice, label_bytes: int, form: str
) -> RunArrays:
    """The runs whose words begin at `begin`; the label bytes of their series are in `label_words`. Raises Internal,
    which names the `form`, if the offsets do not match the number of label bytes or the counts that of the entries."""
    offsets = begin + series
    counts = offsets + series + 1
    times = counts + series
    values = times + entries
    if not are_offsets(words[offsets:counts], label_bytes) or not _are_counts(words[counts:times], entries):
        raise Internal(f"a frame of {words.nbytes} bytes for series.write is not in the form of {form}")
    return (
        words[label_words].view(np.uint8),
        words[offsets : counts - 1],
        words[offsets + 1 : counts],
        words[begin:offsets].view(np.uint64),
        words[counts:times],
        words[times:values],
        words[values : values + entries].view(np.float64),
    )


def are_offsets(offsets: Words, size: int) -> bool:
    """Whether these numbers, at least one, are ascending offsets from 0 to `size`."""
    return bool(offsets[0] == 0 and offsets[-1] == size and (offsets[1:] >= offsets[:-1]).all())


def _are_counts(counts: Words, entries: int) -> bool:
    """Whether these counts are valid and add up to `entries`."""
    # Checked first so that the sum does not overflow.
    are_in_range = counts.min(initial=0) >= 0 and counts.max(initial=0) <= entries
    return bool(are_in_range and counts.sum() == entries)
