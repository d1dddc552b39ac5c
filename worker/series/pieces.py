"""Merges samples of series from several places, the blocks and the layers in memory, into one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import types
from numpy.typing import NDArray

from shared.histograms.batch import HistogramBatch
from shared.histograms.references import refers, used_of
from shared.kernels import kernel
from shared.promql.model import Samples

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
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


@kernel(types.void(_INTS_IN, _INTS_IN, types.int64, _INTS_IN, _INTS_IN, _INTS_IN, _INTS, _INTS, _INTS, _INTS, _FLAGS))
def _place(
    times: np.ndarray,
    values: np.ndarray,
    moved_by: int,
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
    cursor. Mark a row as `late` if its times no longer ascend. `values` and `out_values` are the bits of float64;
    references to histograms are moved `moved_by` rows further."""
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
        if moved_by:
            for j in range(at, at + end - start):
                if refers(out_values[j]):
                    out_values[j] += moved_by
        cursors[row] = at + end - start


@kernel(types.void(_INTS_IN, _INTS_IN, _INTS_IN, _INTS_IN, _INTS, _INTS))
def _place_start_times(
    start_times: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    cursors: np.ndarray,
    out: np.ndarray,
) -> None:
    """Copy the start times of each run to where `_place` puts its samples. The cursors are those before it."""
    at = cursors.copy()
    for i in range(len(rows)):
        row, count = rows[i], ends[i] - starts[i]
        for j in range(count):
            out[at[row] + j] = start_times[starts[i] + j]
        at[row] += max(count, 0)


@dataclass(slots=True)
class Piece:
    """Runs of samples in shared arrays: row rows[i] of the answer has times_ms[starts[i]:ends[i]], strictly ascending.

    `rows`, `starts`, `ends`: int64[runs]; a row may have several runs, ascending. The arrays of samples are shared and
    never written to. `start_timestamps_ms` and `histograms` are as those of `Samples`; the batch may have rows that no
    sample of the runs refers to.
    """

    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    start_timestamps_ms: NDArray[np.int64] | None = None
    histograms: HistogramBatch | None = None

    @classmethod
    def of(cls, samples: Samples, rows: NDArray[np.int64] | None = None) -> Piece:
        """All samples of `samples`; its series i is row rows[i], or row i without `rows`."""
        return cls(
            samples.timestamps_ms,
            samples.values,
            np.arange(len(samples.offsets) - 1) if rows is None else rows,
            samples.offsets[:-1],
            samples.offsets[1:],
            samples.start_timestamps_ms,
            samples.histograms,
        )

    def _with_runs(self, rows: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Piece:
        """Other runs of the same arrays."""
        return Piece(self.times_ms, self.values, rows, starts, ends, self.start_timestamps_ms, self.histograms)

    def clipped(self, start_ms: int, end_ms: int) -> Piece:
        """The samples with start ≤ t ≤ end."""
        starts, ends = self.starts.copy(), self.ends.copy()
        _clip(self.times_ms, starts, ends, start_ms, end_ms)
        return self._with_runs(self.rows, starts, ends)

    def without(self, is_deleted: NDArray[np.bool_], start_ms: int, end_ms: int) -> Piece:
        """All samples except those with start ≤ t ≤ end in the rows where `is_deleted` (bool[rows of the answer])."""
        is_affected = is_deleted[self.rows]
        if not is_affected.any():
            return self
        affected = self._with_runs(self.rows[is_affected], self.starts[is_affected], self.ends[is_affected])
        before, after = affected.clipped(_TIME_MIN, start_ms - 1), affected.clipped(end_ms + 1, _TIME_MAX)
        is_unaffected = ~is_affected
        return self._with_runs(
            np.concatenate((self.rows[is_unaffected], before.rows, after.rows)),
            np.concatenate((self.starts[is_unaffected], before.starts, after.starts)),
            np.concatenate((self.ends[is_unaffected], before.ends, after.ends)),
        )


_TIME_MIN, _TIME_MAX = np.iinfo(np.int64).min + 1, np.iinfo(np.int64).max - 1
"""Below and above every accepted time; subtracting or adding 1 does not overflow."""


def join(pieces: Sequence[Piece], rows: int) -> Samples:
    """The samples of all pieces by row, ascending in time. Among equal times, the sample of the last piece counts. The
    batch of the result has the histograms that are referred to, and no others."""
    counts = np.zeros(rows, dtype=np.int64)
    for piece in pieces:
        counts += np.bincount(piece.rows, weights=piece.ends - piece.starts, minlength=rows).astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    samples = Samples(offsets, np.empty(offsets[-1], dtype=np.int64), np.empty(offsets[-1], dtype=np.float64))
    if any(piece.start_timestamps_ms is not None for piece in pieces):
        samples.start_timestamps_ms = np.zeros(offsets[-1], dtype=np.int64)
    values = samples.values.view(np.int64)
    cursors, late = offsets[:-1].copy(), np.zeros(rows, dtype=np.bool_)
    batches: list[HistogramBatch] = []
    histograms = 0
    for p in pieces:
        starts, ends = np.ascontiguousarray(p.starts), np.ascontiguousarray(p.ends)
        if p.start_timestamps_ms is not None:
            _place_start_times(p.start_timestamps_ms, p.rows, starts, ends, cursors, samples.start_timestamps_ms)
        moved_by = 0
        if p.histograms is not None:
            moved_by = histograms
            batches.append(p.histograms)
            histograms += len(p.histograms)
        _place(
            p.times_ms,
            p.values.view(np.int64),
            moved_by,
            p.rows,
            starts,
            ends,
            offsets,
            cursors,
            samples.timestamps_ms,
            values,
            late,
        )
    if late.any():
        samples = in_order(samples, late)
    if batches:
        samples.values, samples.histograms = used_of(samples.values, batches)
    return samples


def in_order(samples: Samples, late: NDArray[np.bool_]) -> Samples:
    """Sort the series that are `late` (bool[n]) by time. Among equal times, only the sample that was written last
    remains; the batch keeps the histograms of the others. Changes `samples` in place and returns it, or returns a copy
    without the repeated times."""
    lengths = np.diff(samples.offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    late_samples = np.flatnonzero(late[rows])
    rows = rows[late_samples]
    order = np.lexsort((samples.timestamps_ms[late_samples], rows))  # stable: arrival order among equal times
    starts = samples.start_timestamps_ms
    for column in (samples.timestamps_ms, samples.values, *(() if starts is None else (starts,))):
        column[late_samples] = column[late_samples[order]]
    times = samples.timestamps_ms[late_samples]
    repeated = (times[1:] == times[:-1]) & (rows[1:] == rows[:-1])
    if not repeated.any():
        return samples
    is_last = np.ones(len(samples.timestamps_ms), dtype=np.bool_)
    is_last[late_samples[:-1][repeated]] = False
    lengths = lengths - np.bincount(rows[:-1][repeated], minlength=len(lengths))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    starts = None if starts is None else starts[is_last]
    return Samples(offsets, samples.timestamps_ms[is_last], samples.values[is_last], starts, samples.histograms)
