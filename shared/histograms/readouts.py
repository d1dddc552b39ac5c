"""Values computed from native histograms: averages, quantiles, fractions, variances; and the interpolation they share.

Source: the specification's sections "Interpolation within a bucket" and "Functions", and the conformance scripts for
custom buckets. Observations are assumed to be distributed evenly within a bucket: on a logarithmic scale in exponential
buckets, on a linear scale in the zero bucket and in custom buckets.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import (
    EDGES,
    FLOATS,
    LAYOUTS,
    ROWS,
    Floats,
    HistogramBatch,
    HistogramColumns,
    LayoutColumns,
    read_only,
)
from shared.histograms.schemas import CUSTOM
from shared.kernels import inlined, kernel, types

SKEWED, NO_RANK = 1, 2
"""Notes on a quantile: there are NaN observations, which count as larger than all others; the rank falls among them,
and the quantile is NaN."""

_RESULTS = types.float64[::1]


def averages(batch: HistogramBatch) -> Floats:
    """float64[rows]: the mean of the observations."""
    with np.errstate(all="ignore"):
        return batch.columns.sum / batch.columns.observations


def quantiles(batch: HistogramBatch, q: Floats) -> tuple[Floats, NDArray[np.uint8]]:
    """(float64[rows]: the q[row]-quantile of each row, uint8[rows]: notes).

    -∞ for q < 0, +∞ for q > 1, and NaN without observations. The rank is counted from the nearer end: if it falls
    between two buckets, the result is the end of the lower one for q < 0.5, otherwise the beginning of the higher one.
    """
    result, notes = np.empty(len(batch)), np.zeros(len(batch), np.uint8)
    _quantiles(batch.layouts.columns, batch.layouts.edges, batch.columns, read_only(q, np.float64), result, notes)
    return result, notes


def fractions(batch: HistogramBatch, lower: Floats, upper: Floats) -> Floats:
    """float64[rows]: the share of the observations of each row between lower[row] and upper[row]; NaN without
    observations. NaN observations are never between."""
    result = np.empty(len(batch))
    _fractions(
        batch.layouts.columns, batch.layouts.edges, batch.columns, read_only(lower, np.float64),
        read_only(upper, np.float64), result,
    )  # fmt: skip
    return result


def variances(batch: HistogramBatch) -> Floats:
    """float64[rows]: the estimated variance, with the mean of its bucket for each observation: the geometric mean in
    exponential buckets, the arithmetic mean in others; NaN without observations."""
    result = np.empty(len(batch))
    _variances(batch.layouts.columns, batch.layouts.edges, batch.columns, result)
    return result


def deviations(batch: HistogramBatch) -> Floats:
    """float64[rows]: the square root of the variance; NaN if that is negative, as negative counts make it."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt(variances(batch)))


@inlined
def sides(layouts: Any, rows: Any, row: Any) -> Any:
    """(whether a negative bucket has observations, whether a positive one has)."""
    zero = rows.start[row] + layouts.zero_at[rows.layout[row]]
    negative = positive = False
    for i in range(rows.start[row], zero):
        negative |= rows.counts[i] != 0
    for i in range(zero + 1, rows.start[row + 1]):
        positive |= rows.counts[i] != 0
    return negative, positive


@kernel(
    types.UniTuple(types.float64, 2)(
        types.float64, types.float64, types.boolean, types.boolean, types.boolean, types.boolean
    ),
    error_model="numpy",
)
def assumed_edges(
    left: float, right: float, is_custom: bool, is_zero: bool, negative: bool, positive: bool
) -> tuple[float, float]:
    """The boundaries between which observations are assumed: the zero bucket has only one side if all other
    observations are on that side, and the lowest custom bucket begins at 0 if it ends above 0."""
    if is_zero and negative != positive:
        return (0.0, right) if positive else (left, 0.0)
    if is_custom and left == -np.inf and 0 < right < np.inf:
        return 0.0, right
    return left, right


@kernel(
    types.float64(types.float64, types.float64, types.float64, types.boolean),
    error_model="numpy",
)
def share_below(x: float, left: float, right: float, is_linear: bool) -> float:
    """The share of a bucket's observations that are at most x. An infinite bucket is not divided: the observations of
    the lowest one are below every number, and those of the highest one above."""
    if x >= right:
        return 1.0
    if x <= left:
        return 0.0
    if right == np.inf:
        return 0.0
    if left == -np.inf:
        return 1.0
    if is_linear or left <= 0 <= right:
        return (x - left) / (right - left)
    if left > 0:
        return math.log2(x / left) / math.log2(right / left)
    return 1.0 - math.log2(x / right) / math.log2(left / right)


@kernel(types.float64(types.float64, types.float64, types.float64, types.boolean, types.boolean), error_model="numpy")
def _value_at(share: float, left: float, right: float, is_linear: bool, is_custom: bool) -> float:
    """The value below which this share of a bucket's observations lies; the finite end of an infinite custom bucket."""
    if left == -np.inf and right == np.inf:
        return np.nan
    if is_custom and (left == -np.inf or right == np.inf):
        return right if left == -np.inf else left
    if share <= 0 or share >= 1:
        return left if share <= 0 else right
    if left == -np.inf or right == np.inf:
        return left if left == -np.inf else right
    if is_linear or left <= 0 <= right:
        return left + (right - left) * share
    sign = 1.0 if left > 0 else -1.0
    low, high = math.log2(sign * left), math.log2(sign * right)
    return sign * 2.0 ** (low + (high - low) * share)


@kernel(types.void(LAYOUTS, EDGES, ROWS, FLOATS, _RESULTS, types.uint8[::1]), error_model="numpy")
def _quantiles(
    layouts: LayoutColumns,
    edges: Floats,
    rows: HistogramColumns,
    q: Floats,
    result: Floats,
    notes: NDArray[np.uint8],
) -> None:
    for row in range(result.size):
        observations, total = rows.observations[row], rows.sum[row]
        if observations == 0 or np.isnan(observations) or np.isnan(q[row]):
            result[row] = np.nan
        elif q[row] < 0 or q[row] > 1:
            result[row] = np.inf if q[row] > 1 else -np.inf
        else:
            result[row] = _quantile(layouts, edges, rows, row, q[row])
            if np.isnan(total):
                populated = 0.0
                for i in range(rows.start[row], rows.start[row + 1]):
                    populated += rows.counts[i]
                if populated < observations:
                    notes[row] = NO_RANK if np.isnan(result[row]) else SKEWED


@kernel(types.float64(LAYOUTS, EDGES, ROWS, types.int64, types.float64), error_model="numpy")
def _quantile(layouts: LayoutColumns, edges: Floats, rows: HistogramColumns, row: int, q: float) -> float:
    layout, first = rows.layout[row], rows.start[row]
    buckets = rows.start[row + 1] - first
    is_custom, zero = layouts.schema[layout] == CUSTOM, layouts.zero_at[layout]
    has_nan = np.isnan(rows.sum[row])
    # NaN observations are counted but are in no bucket, so ranks from above would be wrong with them.
    is_from_below = has_nan or q < 0.5
    rank = (q if is_from_below else 1.0 - q) * rows.observations[row]
    passed, at = 0.0, -1
    for step in range(buckets):
        i = step if is_from_below else buckets - 1 - step
        count = rows.counts[first + i]
        if count == 0:
            continue
        at = i
        if passed + count >= rank:
            break
        passed += count
    else:
        if at < 0 or has_nan:
            return np.nan
        passed = rank - rows.counts[first + at]
    share = (rank - passed) / rows.counts[first + at]
    negative = positive = False
    if at == zero:
        negative, positive = sides(layouts, rows, row)
    bucket = layouts.start[layout] + at
    left, right = assumed_edges(edges[bucket, 0], edges[bucket, 1], is_custom, at == zero, negative, positive)
    return _value_at(
        share if is_from_below else 1.0 - share, left, right, bool(is_custom or at == zero), is_custom
    )  # fmt: skip


@kernel(types.void(LAYOUTS, EDGES, ROWS, FLOATS, FLOATS, _RESULTS), error_model="numpy")
def _fractions(
    layouts: LayoutColumns, edges: Floats, rows: HistogramColumns, lower: Floats, upper: Floats, result: Floats
) -> None:
    for row in range(result.size):
        observations, low, high = rows.observations[row], lower[row], upper[row]
        if observations == 0 or np.isnan(observations) or np.isnan(low) or np.isnan(high):
            result[row] = np.nan
            continue
        if low >= high:
            result[row] = 0.0
            continue
        layout = rows.layout[row]
        is_custom, zero = layouts.schema[layout] == CUSTOM, rows.start[row] + layouts.zero_at[layout]
        negative = positive = False
        if not is_custom:
            negative, positive = sides(layouts, rows, row)
        shift = layouts.start[layout] - rows.start[row]
        below_low = below_high = 0.0
        for i in range(rows.start[row], rows.start[row + 1]):
            count, is_zero = rows.counts[i], not is_custom and i == zero
            if count != 0:
                left, right = assumed_edges(
                    edges[i + shift, 0], edges[i + shift, 1], is_custom, is_zero, negative, positive
                )
                below_low += count * share_below(low, left, right, is_custom or is_zero)
                below_high += count * share_below(high, left, right, is_custom or is_zero)
        result[row] = (min(below_high, observations) - min(below_low, observations)) / observations


@kernel(types.float64(types.float64, types.float64, types.boolean), error_model="numpy")
def bucket_mean(left: float, right: float, is_linear: bool) -> float:
    """The mean of a bucket's boundaries: arithmetic if it is linear, otherwise geometric."""
    if is_linear:
        return (left + right) / 2
    mean = math.sqrt(abs(left)) * math.sqrt(abs(right))
    return -mean if left < 0 else mean


@kernel(types.void(LAYOUTS, EDGES, ROWS, _RESULTS), error_model="numpy")
def _variances(layouts: LayoutColumns, edges: Floats, rows: HistogramColumns, result: Floats) -> None:
    for row in range(result.size):
        layout, observations = rows.layout[row], rows.observations[row]
        if observations == 0:
            result[row] = np.nan
            continue
        is_custom, zero = layouts.schema[layout] == CUSTOM, rows.start[row] + layouts.zero_at[layout]
        mean = rows.sum[row] / observations
        shift = layouts.start[layout] - rows.start[row]
        total = 0.0
        for i in range(rows.start[row], rows.start[row + 1]):
            if rows.counts[i] != 0:
                distance = bucket_mean(edges[i + shift, 0], edges[i + shift, 1], is_custom or i == zero) - mean
                total += rows.counts[i] * distance * distance
        result[row] = total / observations
