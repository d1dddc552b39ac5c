"""What frames of samples and frames of exemplars have in common: a shard's part of a remote-write request, as runs of
entries of one series each.

A frame consists of words of 64 bits: a mark, numbers that tell its size, and then n hashes; n + 1 offsets of the
series' label bytes; n counts of entries; m times; m values; and what else its kind has.
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
    `times_ms` int64[m] and `values` float64[m] have the entries of all runs, one run after another."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def samples(self) -> int:
        """How many entries all runs have together."""
        return len(self.times_ms)

    def __post_init__(self) -> None:
        assert len(self.starts) == len(self.ends) == len(self.hashes) == len(self.counts)
        assert len(self.times_ms) == len(self.values)


def mark_of(frame: Frame) -> int | None:
    """The mark that a frame begins with; None if it has no word."""
    try:
        mark: int = _WORD.unpack_from(frame)[0]
    except struct.error:
        return None
    return mark


def has_mark(frame: Frame, mark: int) -> bool:
    """Whether a frame begins with this mark."""
    return mark_of(frame) == mark


def aligned_words(frame: Frame) -> Words | None:
    """The words of a frame, which are those of the message if they lie at the address of a word; None if it is not made
    of words."""
    size = memoryview(frame).nbytes
    if size == 0 or size % 8:
        return None
    words = np.frombuffer(frame, dtype=np.int64)
    return words if words.flags.carray else words.copy()


def read_words(
    frame: Frame, mark: int, header_words: int, frame_words: Callable[..., int], form: str
) -> tuple[Words, list[int]]:
    """(a copy of the words of a frame, the numbers of its header behind the mark, from which `frame_words` tells its
    size). Raises Internal, which names the `form`, for anything else."""
    size = memoryview(frame).nbytes
    if size % 8 == 0 and size >= 8 * header_words:
        # A copy, because received frames may lie at any address, and views would keep the whole message in memory.
        words = np.frombuffer(frame, dtype=np.int64).copy()
        own_mark, *numbers = words[:header_words].tolist()
        if own_mark == mark and min(numbers) >= 0 and len(words) == frame_words(*numbers):
            return words, numbers
    raise Internal(f"a frame of {size} bytes for series.write is not in the form of {form}")


def read_runs(
    words: Words, begin: int, series: int, entries: int, label_words: slice, label_bytes: int, form: str
) -> RunArrays:
    """The runs in the words from `begin` on; the label bytes of their series are in `label_words`. Raises Internal,
    which names the `form`, if the offsets are not those of so many label bytes, or the counts not those of so many
    entries."""
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
    """Whether these numbers, at least one, are where pieces begin that are `size` long together, and the last ends."""
    return bool(offsets[0] == 0 and offsets[-1] == size and (offsets[1:] >= offsets[:-1]).all())


def _are_counts(counts: Words, entries: int) -> bool:
    """Whether the runs with these counts have so many entries together."""
    is_each = counts.min(initial=0) >= 0 and counts.max(initial=0) <= entries  # so that their sum does not overflow
    return bool(is_each and counts.sum() == entries)
