"""The layout of samples of known series on the wire: a shard's part of a remote-write request, with a number for each
series instead of its labels.

The worker gave the numbers, in its answer to the first request with these series. They are valid as long as it has the
shard open: each opening has another random `epoch`, and a frame with the epoch of an earlier one is not stored but sent
back, for the coordinator to send the labels.

A frame consists of words of 64 bits: mark, epoch, series n, samples m, start timestamps s, which are m or none; then n
words with the number of a series in the lower half and its count of samples in the upper one; m times; m values; and s
start timestamps. No value refers to a histogram.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.run_frames import has_mark, read_words
from shared.start_timestamps import StartTimestamps
from shared.wire import Frame

MARK = int.from_bytes(b"arrival3", "little")
HEADER_WORDS = 5
COUNT_SHIFT = 32
_NUMBER = np.int64((1 << COUNT_SHIFT) - 1)


def new_epoch() -> int:
    """A number that no other opening of a shard has, nor the first epoch of a coordinator, 0."""
    return int.from_bytes(os.urandom(8), "little") >> 2 | 1


def frame_words(series: int, samples: int, starts: int) -> int:
    """The number of words of a frame with this many series, samples and start timestamps."""
    return HEADER_WORDS + series + 2 * samples + starts


@dataclass(frozen=True, slots=True)
class ReferenceColumns:
    """Runs of samples: run i is counts[i] samples of the series with the number series[i]. `series` and `counts`
    int64[n], `times_ms` int64[m], `values` float64[m], `start_timestamps_ms` int64[m]."""

    epoch: int
    series: NDArray[np.int64]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    start_timestamps_ms: StartTimestamps


def is_references(frame: Frame) -> bool:
    """Whether a frame of a write has numbers of series, and not their labels."""
    return has_mark(frame, MARK)


def parse(frame: Frame) -> ReferenceColumns:
    """Parse a frame that was written for one shard. Raises Internal for anything else."""
    words, (epoch, series, samples, starts) = read_words(
        frame, MARK, HEADER_WORDS, lambda _, *numbers: frame_words(*numbers), __name__
    )
    times = HEADER_WORDS + series
    values = times + samples
    runs = words[HEADER_WORDS:times]
    counts = runs >> COUNT_SHIFT
    if starts not in (0, samples) or counts.min(initial=1) < 1 or counts.sum() != samples:
        raise Internal(f"a frame of {words.nbytes} bytes for series.write is not in the form of {__name__}")
    return ReferenceColumns(
        epoch,
        runs & _NUMBER,
        counts,
        words[times:values],
        words[values : values + samples].view(np.float64),
        words[values + samples :] if starts else None,
    )
