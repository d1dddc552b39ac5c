"""The operators between histograms, and between histograms and numbers: `+ - * / ==`, and the average of a group.

Source: the specification's section "PromQL". Warnings are left to the caller, which gets the notes of `merging`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import (
    FLOATS,
    HINT,
    HINT_GAUGE,
    INTS,
    LAYOUTS,
    NO_ZERO,
    ROWS,
    Floats,
    HistogramBatch,
    HistogramColumns,
    Ints,
    LayoutColumns,
    concatenated,
    sealed,
)
from shared.histograms.buckets import without_buckets
from shared.histograms.merging import Merged, summed
from shared.kernels import kernel, types


def added(left: HistogramBatch, right: HistogramBatch) -> Merged:
    """Row by row, left + right. Expects the same number of rows on both sides, and no stale markers."""
    return added_rows(*_in_one_batch(left, right))


def subtracted(left: HistogramBatch, right: HistogramBatch) -> Merged:
    """Row by row, left - right, which is a gauge. Expects the same number of rows on both sides, and no stale
    markers."""
    return subtracted_rows(*_in_one_batch(left, right))


def added_rows(batch: HistogramBatch, left: Ints, right: Ints) -> Merged:
    """Row left[i] + row right[i] for each i. Expects no stale markers."""
    return _combined(batch, left, right, 1.0)


def subtracted_rows(batch: HistogramBatch, left: Ints, right: Ints) -> Merged:
    """Row left[i] - row right[i] for each i, which is a gauge. Expects no stale markers."""
    merged = _combined(batch, left, right, -1.0)
    return merged._replace(batch=_as_gauges(merged.batch, np.ones(len(merged.batch), np.bool_)))


def _in_one_batch(left: HistogramBatch, right: HistogramBatch) -> tuple[HistogramBatch, Ints, Ints]:
    rows = len(left)
    if rows != len(right):
        raise ValueError(f"{rows} histograms cannot be combined with {len(right)}")
    return concatenated([left, right]), np.arange(rows), np.arange(rows, 2 * rows)


def _combined(batch: HistogramBatch, left: Ints, right: Ints, weight: float) -> Merged:
    members = np.stack((left, right), axis=1).ravel()
    return summed(batch, members, np.arange(0, len(members) + 1, 2), np.tile(np.array([1.0, weight]), len(left)))


def averaged(batch: HistogramBatch, members: Ints, group_start: Ints) -> Merged:
    """The sum of each group (`merging.summed`), divided by the number of its rows. If the sum would overflow, the rows
    are divided before they are added up."""
    sizes = np.diff(group_start).astype(np.float64)
    sums, notes = summed(batch, members, group_start)
    means = scaled_by_rows(sums, 1.0, sizes)
    overflows = infinite_rows(means)
    if not overflows.any():
        return Merged(means, notes)
    weights = np.repeat(np.where(overflows, 1.0 / sizes, 1.0), np.diff(group_start))
    sums, notes = summed(batch, members, group_start, weights)
    return Merged(scaled_by_rows(sums, 1.0, np.where(overflows, 1.0, sizes)), notes)


def scaled(batch: HistogramBatch, factors: Floats) -> HistogramBatch:
    """Each row times its factor (float64[rows]). A negative factor turns it into a gauge. Regular buckets without
    observations stay empty whatever the factor."""
    return _as_gauges(scaled_by_rows(_without_empty(batch, factors), factors, 1.0), factors < 0)


def divided(batch: HistogramBatch, divisors: Floats) -> HistogramBatch:
    """Each row divided by its divisor (float64[rows]). A negative divisor turns it into a gauge. Division by zero
    leaves no regular buckets, and infinities or NaN as count, sum and zero bucket. Regular buckets without observations
    stay empty whatever the divisor."""
    quotients = _as_gauges(scaled_by_rows(_without_empty(batch, divisors), 1.0, divisors), divisors < 0)
    if not (divisors == 0).any():
        return quotients
    return without_buckets(quotients, np.repeat(divisors == 0, np.diff(quotients.columns.start)))


def _without_empty(batch: HistogramBatch, numbers: Floats) -> HistogramBatch:
    """The batch without the empty buckets of the rows whose number (float64[rows]) is infinite or NaN: the presence of
    an empty bucket says nothing about observations, and must not turn anything into NaN."""
    is_finite = np.isfinite(numbers)
    if is_finite.all():
        return batch
    return without_buckets(batch, (batch.columns.counts == 0) & np.repeat(~is_finite, np.diff(batch.columns.start)))


def scaled_by_rows(batch: HistogramBatch, factors: Floats | float, divisors: Floats | float) -> HistogramBatch:
    """Each row × factors / divisors (float64[rows], or one for all); hints stay."""
    columns, sizes = batch.columns, np.diff(batch.columns.start)

    def scale(values: Floats, factor: Floats | float, divisor: Floats | float) -> Floats:
        with np.errstate(all="ignore"):
            return values * factor if isinstance(divisor, float) else values / divisor

    is_even = len(sizes) > 0 and sizes.min() == sizes.max()
    counts = columns.counts.reshape(len(sizes), -1) if is_even else columns.counts

    def by_bucket(numbers: Floats | float) -> Floats | float:
        if isinstance(numbers, float):
            return numbers
        return numbers.reshape(-1, 1) if is_even else np.repeat(numbers, sizes)

    return HistogramBatch(
        batch.layouts,
        sealed(
            columns._replace(
                observations=scale(columns.observations, factors, divisors),
                sum=scale(columns.sum, factors, divisors),
                counts=scale(counts, by_bucket(factors), by_bucket(divisors)).reshape(-1),
            )
        ),
    )


def _as_gauges(batch: HistogramBatch, which: NDArray[np.bool_]) -> HistogramBatch:
    flags = np.where(which, batch.columns.flags & ~np.uint8(HINT) | np.uint8(HINT_GAUGE), batch.columns.flags)
    return HistogramBatch(batch.layouts, sealed(batch.columns._replace(flags=flags)))


def infinite_rows(batch: HistogramBatch) -> NDArray[np.bool_]:
    """bool[rows]: whether count, sum or a bucket is infinite, as after an overflow."""
    columns = batch.columns
    are_infinite = np.isinf(columns.observations) | np.isinf(columns.sum)
    return are_infinite | ~all_by_row(~np.isinf(columns.counts), columns.start)


def zero_rows(batch: HistogramBatch) -> NDArray[np.bool_]:
    """bool[rows]: whether count, sum and all buckets are 0."""
    columns = batch.columns
    are_zero = (columns.observations == 0) & (columns.sum == 0)
    return are_zero & all_by_row(columns.counts == 0, columns.start)


def all_by_row(values: NDArray[np.bool_], start: Ints) -> NDArray[np.bool_]:
    """bool[rows]: whether all values of a row are true, as for a row without values."""
    result = np.ones(len(start) - 1, np.bool_)
    if not values.all():
        _unmark_false(values, start, result)
    return result


@kernel(types.void(types.boolean[::1], INTS, types.boolean[::1]), error_model="numpy")
def _unmark_false(values: NDArray[np.bool_], start: Ints, result: NDArray[np.bool_]) -> None:
    for row in range(result.size):
        for i in range(start[row], start[row + 1]):
            result[row] &= values[i]


def equal(left: HistogramBatch, right: HistogramBatch) -> NDArray[np.bool_]:
    """bool[rows]: whether the rows are the same histogram: schema, zero threshold, custom boundaries, count, sum and
    all buckets. A missing bucket equals one without observations. Flags are ignored; NaN equals NaN."""
    if len(left) != len(right):
        raise ValueError(f"{len(left)} histograms cannot be compared with {len(right)}")
    result = np.empty(len(left), np.bool_)
    _compare(left.layouts.columns, left.columns, right.layouts.columns, right.columns, result)
    return result


@kernel(types.boolean(types.float64, types.float64), error_model="numpy")
def _same(x: float, y: float) -> bool:
    return x == y or (x != x and y != y)


@kernel(types.boolean(FLOATS, FLOATS), error_model="numpy")
def _same_all(x: Floats, y: Floats) -> bool:
    if x.size != y.size:
        return False
    are_equal = True
    for i in range(x.size):
        are_equal &= x[i] == y[i]
    return are_equal


@kernel(types.void(LAYOUTS, ROWS, LAYOUTS, ROWS, types.boolean[::1]), error_model="numpy")
def _compare(
    left_layouts: LayoutColumns,
    left: HistogramColumns,
    right_layouts: LayoutColumns,
    right: HistogramColumns,
    result: NDArray[np.bool_],
) -> None:
    for row in range(result.size):
        a, b = left.layout[row], right.layout[row]
        result[row] = (
            left_layouts.schema[a] == right_layouts.schema[b]
            and left_layouts.zero_threshold[a] == right_layouts.zero_threshold[b]
            and _same(left.observations[row], right.observations[row])
            and _same(left.sum[row], right.sum[row])
            and _same_all(
                left_layouts.bound[left_layouts.bound_start[a] : left_layouts.bound_start[a + 1]],
                right_layouts.bound[right_layouts.bound_start[b] : right_layouts.bound_start[b + 1]],
            )
            and _same_buckets(left_layouts, left, right_layouts, right, row)
        )


@kernel(types.boolean(LAYOUTS, ROWS, LAYOUTS, ROWS, types.int64), error_model="numpy")
def _same_buckets(
    left_layouts: LayoutColumns,
    left: HistogramColumns,
    right_layouts: LayoutColumns,
    right: HistogramColumns,
    row: int,
) -> bool:
    """Whether two rows with the same schema have the same populated buckets, with equal counts."""
    a, b = left.layout[row], right.layout[row]
    i, j = left.start[row], right.start[row]
    a_shift, b_shift = left_layouts.start[a] - i, right_layouts.start[b] - j
    a_zero, b_zero = i + left_layouts.zero_at[a], j + right_layouts.zero_at[b]
    if left_layouts.zero_at[a] == NO_ZERO:
        a_zero = b_zero = -1
    while True:
        while i < left.start[row + 1] and left.counts[i] == 0:
            i += 1
        while j < right.start[row + 1] and right.counts[j] == 0:
            j += 1
        if i == left.start[row + 1] or j == right.start[row + 1]:
            return i == left.start[row + 1] and j == right.start[row + 1]
        if (
            not _same(left.counts[i], right.counts[j])
            or left_layouts.indexes[i + a_shift] != right_layouts.indexes[j + b_shift]
            or (i > a_zero) != (j > b_zero)
            or (i == a_zero) != (j == b_zero)
        ):
            return False
        i += 1
        j += 1
