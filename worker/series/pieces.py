"""Merges samples of series from several places, the blocks and the layers in memory, into one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import types
from numpy.typing import NDArray

from shared.kernels import kernel
from shared.promql.model import Samples

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_FLOATS = types.Array(types.float64, 1, "C")
_FLOATS_IN = types.Array(types.float64, 1, "C", readonly=True)
_FLAGS = types.Array(types.boolean, 1, "C")


@kernel(types.int64(_INTS_IN, types.int64, types.int64, types.int64))
def _first_at_least(times: np.ndarray, low: int, high: int, time: int) -> int:
    """The first index low ≤ i < high with times[i] ≥ time, or `high`; times[low:high] ascends."""
    while low < high:
        middle = (low + high) >> 1
        if times[middle] < time:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(types.void(_INTS_IN, _INTS, _INTS, types.int64, types.int64))
def _clip(times: np.ndarray, starts: np.ndarray, ends: np.ndarray, start_ms: int, end_ms: int) -> None:
    """Narrow each run times[starts[i]:ends[i]], ascending, to start_ms ≤ t ≤ end_ms."""
    for i in range(len(starts)):
        low, high = starts[i], ends[i]
        if low < high and times[low] < start_ms:
            low = _first_at_least(times, low, high, start_ms)
        if low < high and times[high - 1] > end_ms:
            high = _first_at_least(times, low, high, end_ms + 1)
        starts[i], ends[i] = low, max(low, high)


@kernel(types.void(_INTS_IN, _FLOATS_IN, _INTS_IN, _INTS_IN, _INTS_IN, _INTS, _INTS, _INTS, _FLOATS, _FLAGS))
def _place(
    times: np.ndarray,
    values: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    firsts: np.ndarray,
    cursors: np.ndarray,
    out_times: np.ndarray,
    out_values: np.ndarray,
    late: np.ndarray,
) -> None:
    """Copy each run after the samples that its row already has, from firsts[row] to cursors[row], and advance the
    cursor. Mark a row as `late` if its times no longer ascend."""
    for i in range(len(rows)):
        row, start, end = rows[i], starts[i], ends[i]
        if start >= end:
            continue
        at = cursors[row]
        if at > firsts[row] and out_times[at - 1] >= times[start]:
            late[row] = True
        for j in range(end - start):
            out_times[at + j] = times[start + j]
            out_values[at + j] = values[start + j]
        cursors[row] = at + end - start


@dataclass(slots=True)
class Piece:
    """Runs of samples in shared arrays: row rows[i] of the answer has times_ms[starts[i]:ends[i]], strictly ascending.

    `rows`, `starts`, `ends`: int64[runs]; a row may have several runs, ascending. The arrays of samples are shared and
    never written to.
    """

    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, samples: Samples) -> Piece:
        """All samples of `samples`; its series i is row i."""
        rows = np.arange(len(samples.offsets) - 1)
        return cls(samples.timestamps_ms, samples.values, rows, samples.offsets[:-1], samples.offsets[1:])

    def clipped(self, start_ms: int, end_ms: int) -> Piece:
        """The samples with start ≤ t ≤ end."""
        starts, ends = self.starts.copy(), self.ends.copy()
        _clip(self.times_ms, starts, ends, start_ms, end_ms)
        return Piece(self.times_ms, self.values, self.rows, starts, ends)

    def without(self, is_deleted: NDArray[np.bool_], start_ms: int, end_ms: int) -> Piece:
        """All samples except those with start ≤ t ≤ end in the rows where `is_deleted` (bool[rows of the answer])."""
        is_affected = is_deleted[self.rows]
        if not is_affected.any():
            return self
        affected = Piece(
            self.times_ms, self.values, self.rows[is_affected], self.starts[is_affected], self.ends[is_affected]
        )
        before, after = affected.clipped(_TIME_MIN, start_ms - 1), affected.clipped(end_ms + 1, _TIME_MAX)
        is_unaffected = ~is_affected
        return Piece(
            self.times_ms,
            self.values,
            np.concatenate((self.rows[is_unaffected], before.rows, after.rows)),
            np.concatenate((self.starts[is_unaffected], before.starts, after.starts)),
            np.concatenate((self.ends[is_unaffected], before.ends, after.ends)),
        )


_TIME_MIN, _TIME_MAX = np.iinfo(np.int64).min + 1, np.iinfo(np.int64).max - 1
"""Below and above every accepted time; subtracting or adding 1 does not overflow."""


def join(pieces: Sequence[Piece], rows: int) -> Samples:
    """The samples of all pieces by row, ascending in time. Among equal times, the sample of the last piece counts."""
    counts = np.zeros(rows, dtype=np.int64)
    for piece in pieces:
        counts += np.bincount(piece.rows, weights=piece.ends - piece.starts, minlength=rows).astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    samples = Samples(offsets, np.empty(offsets[-1], dtype=np.int64), np.empty(offsets[-1], dtype=np.float64))
    cursors, late = offsets[:-1].copy(), np.zeros(rows, dtype=np.bool_)
    for p in pieces:
        starts, ends = np.ascontiguousarray(p.starts), np.ascontiguousarray(p.ends)
        _place(
            p.times_ms,
            p.values,
            p.rows,
            starts,
            ends,
            offsets,
            cursors,
            samples.timestamps_ms,
            samples.values,
            late,
        )
    return in_order(samples, late) if late.any() else samples


def in_order(samples: Samples, late: NDArray[np.bool_]) -> Samples:
    """Sort the series that are `late` (bool[n]) by time. Among equal times, only the sample that was written last
    remains. Changes `samples` in place and returns it, or returns a copy without the repeated times."""
    lengths = np.diff(samples.offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    late_samples = np.flatnonzero(late[rows])
    rows = rows[late_samples]
    order = np.lexsort((samples.timestamps_ms[late_samples], rows))  # stable: arrival order among equal times
    samples.timestamps_ms[late_samples] = samples.timestamps_ms[late_samples[order]]
    samples.values[late_samples] = samples.values[late_samples[order]]
    times = samples.timestamps_ms[late_samples]
    repeated = (times[1:] == times[:-1]) & (rows[1:] == rows[:-1])
    if not repeated.any():
        return samples
    is_last = np.ones(len(samples.timestamps_ms), dtype=np.bool_)
    is_last[late_samples[:-1][repeated]] = False
    lengths = lengths - np.bincount(rows[:-1][repeated], minlength=len(lengths))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return Samples(offsets, samples.timestamps_ms[is_last], samples.values[is_last])
