"""Merges the samples of series from several sources, the blocks and the layers in memory, into one result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import HistogramBatch
from shared.histograms.references import refers, used_of
from shared.kernels import kernel, types
from shared.promql.model import Samples

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_FLAGS = types.Array(types.boolean, 1, "C")


@kernel(types.int64(_INTS_IN, types.int64, types.int64, types.int64), allocates=False)
def first_at_least(times: np.ndarray, low: int, high: int, time: int) -> int:
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
            low = first_at_least(times, low, high, start_ms)
        if low < high and times[high - 1] > end_ms:
            high = first_at_least(times, low, high, end_ms + 1)
        starts[i], ends[i] = low, max(low, high)


@kernel(types.void(_INTS_IN, _INTS_IN, _INTS, _INTS, _INTS), allocates=False)
def _lay_out(rows: np.ndarray, counts: np.ndarray, offsets: np.ndarray, cursors: np.ndarray, at: np.ndarray) -> None:
    """Fill at[i] with the position of run i in the result, after earlier runs of the same row, and offsets[r] with the
    position of the first run of row r. `cursors`: scratch space, one number for each row."""
    offsets[:] = 0
    for i in range(len(rows)):
        offsets[rows[i] + 1] += counts[i]
    for row in range(len(cursors)):
        cursors[row] = offsets[row]
        offsets[row + 1] += offsets[row]
    for i in range(len(rows)):
        at[i] = cursors[rows[i]]
        cursors[rows[i]] += counts[i]


@kernel(types.void(_INTS_IN, _INTS_IN, _INTS_IN, _INTS_IN, _INTS_IN, _FLAGS), allocates=False)
def _mark_late(
    rows: np.ndarray, counts: np.ndarray, at: np.ndarray, firsts: np.ndarray, times: np.ndarray, late: np.ndarray
) -> None:
    """Mark the rows in which times do not ascend from one run to the next. Run i begins at at[i], row r at
    firsts[r]."""
    for i in range(len(rows)):
        if counts[i] > 0 and at[i] > firsts[rows[i]] and times[at[i] - 1] >= times[at[i]]:
            late[rows[i]] = True


@kernel(types.void(_INTS_IN, _INTS_IN, _INTS_IN, _INTS_IN, _INTS_IN, _INTS, _INTS), allocates=False)
def _copy(
    times: np.ndarray,
    values: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    at: np.ndarray,
    out_times: np.ndarray,
    out_values: np.ndarray,
) -> None:
    """Copy each run, times and bits of values, from starts[i] up to ends[i], to at[i]."""
    for i in range(len(starts)):
        for j in range(ends[i] - starts[i]):
            out_times[at[i] + j] = times[starts[i] + j]
            out_values[at[i] + j] = values[starts[i] + j]


@kernel(types.void(_INTS_IN, _INTS_IN, _INTS_IN, _INTS_IN, _INTS), allocates=False)
def _copy_start_times(
    start_times: np.ndarray, starts: np.ndarray, ends: np.ndarray, at: np.ndarray, out: np.ndarray
) -> None:
    """Copy the start times of each run, from starts[i] up to ends[i], to at[i]."""
    for i in range(len(starts)):
        for j in range(ends[i] - starts[i]):
            out[at[i] + j] = start_times[starts[i] + j]


@kernel(types.void(_INTS_IN, _INTS_IN, types.int64, _INTS), allocates=False)
def _move_references(at: np.ndarray, counts: np.ndarray, moved_by: int, values: np.ndarray) -> None:
    """Add `moved_by` to the references to histograms among the values of each run, values[at[i]:at[i] + counts[i]].
    `values`: the bits of float64."""
    for i in range(len(at)):
        for j in range(at[i], at[i] + counts[i]):
            if refers(values[j]):
                values[j] += moved_by


class Part(Protocol):
    """Runs of samples that are part of a result: a `Piece`, or runs that are not decoded yet. `rows` and `counts`:
    int64[runs], the row of each run, and its number of samples. Runs of one row ascend in time."""

    @property
    def rows(self) -> NDArray[np.int64]: ...

    @property
    def counts(self) -> NDArray[np.int64]: ...

    def write(self, at: NDArray[np.int64], times_ms: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Write the times and values of run i to the arrays, from at[i] on."""
        ...

    def decoded(self) -> Piece: ...

    def without(self, is_deleted: NDArray[np.bool_], start_ms: int, end_ms: int) -> Part: ...


@dataclass(slots=True)
class Piece:
    """Runs of samples in shared arrays: row rows[i] of the result has times_ms[starts[i]:ends[i]], strictly ascending.

    `rows`, `starts`, `ends`: int64[runs]; a row may have several runs, ascending. The arrays of samples are shared and
    read-only. `start_timestamps_ms` and `histograms` are as those of `Samples`; the batch may have rows that no sample
    of the runs refers to.
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
        """All samples of `samples`; its series i is row rows[i], or row i if `rows` is None."""
        return cls(
            samples.timestamps_ms,
            samples.values,
            np.arange(len(samples.offsets) - 1) if rows is None else rows,
            samples.offsets[:-1],
            samples.offsets[1:],
            samples.start_timestamps_ms,
            samples.histograms,
        )

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.maximum(self.ends - self.starts, 0)

    def decoded(self) -> Piece:
        return self

    def write(self, at: NDArray[np.int64], times_ms: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Write the times and values of run i to the arrays, from at[i] on. References to histograms stay as they
        are."""
        starts, ends = np.ascontiguousarray(self.starts), np.ascontiguousarray(self.ends)
        _copy(self.times_ms, self.values.view(np.int64), starts, ends, at, times_ms, values.view(np.int64))

    def _with_runs(self, rows: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Piece:
        """Other runs of the same arrays."""
        return Piece(self.times_ms, self.values, rows, starts, ends, self.start_timestamps_ms, self.histograms)

    def clipped(self, start_ms: int, end_ms: int) -> Piece:
        """The samples with start ≤ t ≤ end."""
        starts, ends = self.starts.copy(), self.ends.copy()
        _clip(self.times_ms, starts, ends, start_ms, end_ms)
        return self._with_runs(self.rows, starts, ends)

    def without(self, is_deleted: NDArray[np.bool_], start_ms: int, end_ms: int) -> Piece:
        """All samples except those with start ≤ t ≤ end in the rows where `is_deleted` (bool[rows of the result])."""
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


def join(parts: Sequence[Part], rows: int) -> Samples:
    """The samples of all parts by row, ascending in time. Among equal times, the sample of the last part wins. The
    batch of the result has only the histograms that samples refer to. Raises what decoding a part raises."""
    no_runs = np.zeros(0, dtype=np.int64)
    run_rows = np.concatenate([no_runs, *(part.rows for part in parts)])
    counts = np.concatenate([no_runs, *(part.counts for part in parts)])
    offsets, at = np.empty(rows + 1, dtype=np.int64), np.empty(len(counts), dtype=np.int64)
    _lay_out(run_rows, counts, offsets, np.empty(rows, dtype=np.int64), at)
    samples = Samples(offsets, np.empty(offsets[-1], dtype=np.int64), np.empty(offsets[-1], dtype=np.float64))
    if any(isinstance(part, Piece) and part.start_timestamps_ms is not None for part in parts):
        samples.start_timestamps_ms = np.zeros(offsets[-1], dtype=np.int64)
    batches: list[HistogramBatch] = []
    histogram_rows = last = 0
    for part in parts:
        first, last = last, last + len(part.rows)
        part_at = at[first:last]
        part.write(part_at, samples.timestamps_ms, samples.values)
        if not isinstance(part, Piece):
            continue
        if part.start_timestamps_ms is not None:
            starts, ends = np.ascontiguousarray(part.starts), np.ascontiguousarray(part.ends)
            _copy_start_times(part.start_timestamps_ms, starts, ends, part_at, samples.start_timestamps_ms)
        if part.histograms is not None:
            _move_references(part_at, counts[first:last], histogram_rows, samples.values.view(np.int64))
            batches.append(part.histograms)
            histogram_rows += len(part.histograms)
    late = np.zeros(rows, dtype=np.bool_)
    _mark_late(run_rows, counts, at, offsets, samples.timestamps_ms, late)
    if late.any():
        samples = in_order(samples, late)
    if batches:
        samples.values, samples.histograms = used_of(samples.values, batches)
    return samples


def between(samples: Samples, start_ms: int, end_ms: int) -> Samples:
    """The samples with start ≤ t ≤ end, of series that ascend in time. The batch keeps all histograms."""
    runs = Piece.of(samples).clipped(start_ms, end_ms)
    offsets = np.zeros(len(samples.offsets), dtype=np.int64)
    np.cumsum(runs.counts, out=offsets[1:])
    times_ms, values = np.empty(offsets[-1], dtype=np.int64), np.empty(offsets[-1], dtype=np.float64)
    runs.write(offsets[:-1], times_ms, values)
    start_times = None
    if samples.start_timestamps_ms is not None:
        start_times = np.empty(offsets[-1], dtype=np.int64)
        _copy_start_times(samples.start_timestamps_ms, runs.starts, runs.ends, offsets[:-1], start_times)
    return Samples(offsets, times_ms, values, start_times, samples.histograms)


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
