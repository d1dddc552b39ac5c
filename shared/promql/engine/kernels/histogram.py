"""Quantiles and fractions of classic histograms, one histogram at a time.

Group g has the rows order[offsets[g]:offsets[g + 1]], ascending by `bounds` (float64, one for each entry of `order`).
Buckets with equal bounds are added up. A series that is absent at a step does not count as a bucket there.
"""

from __future__ import annotations

import math

import numpy as np

from shared.kernels import kernel, types
from shared.promql.model import Bool, Float, Int

_VALUES = types.Array(types.float64, 2, "C", readonly=True)
_PRESENT = types.Array(types.boolean, 2, "C", readonly=True)
_ROWS = types.Array(types.int64, 1, "C", readonly=True)
_BOUNDS = types.Array(types.float64, 1, "C", readonly=True)
_BUFFER = types.float64[::1]
_OUT = types.float64[:, ::1]
_SEEN = types.boolean[:, ::1]
_FLAGS = types.boolean[::1]

TOLERANCE = 1e-12
"""Relative differences between neighbouring buckets up to this are rounding errors, not decreases."""
MIN_NORMAL = 2.2250738585072014e-308


@kernel(
    types.int64(_VALUES, _PRESENT, _ROWS, _BOUNDS, types.int64, types.int64, types.int64, _BUFFER, _BUFFER),
    error_model="numpy",
)
def _gather(
    values: Float, present: Bool, order: Int, bounds: Float, first: int, last: int, t: int, uppers: Float, counts: Float
) -> int:
    """Write the buckets present at step t to `uppers` and `counts`. Returns their number."""
    size = 0
    for p in range(first, last):
        i = order[p]
        if present[i, t]:
            if size > 0 and uppers[size - 1] == bounds[p]:
                counts[size - 1] += values[i, t]
            else:
                uppers[size] = bounds[p]
                counts[size] = values[i, t]
                size += 1
    return size


@kernel(types.boolean(types.float64, types.float64), error_model="numpy")
def _almost_equal(a: float, b: float) -> bool:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    total, difference = abs(a) + abs(b), abs(a - b)
    if a == 0.0 or b == 0.0 or total < MIN_NORMAL:
        return difference < TOLERANCE * MIN_NORMAL
    return difference / min(total, 1.7976931348623157e308) < TOLERANCE


@kernel(types.boolean(_BUFFER, types.int64), error_model="numpy")
def _force_monotonic(counts: Float, size: int) -> bool:
    """Raise every count that is below an earlier one to the earlier one. Returns whether any was lower by more than a
    rounding error."""
    forced = False
    highest = counts[0]
    for k in range(1, size):
        if counts[k] == highest:
            continue
        if _almost_equal(highest, counts[k]):
            counts[k] = highest
        elif counts[k] < highest:
            counts[k] = highest
            forced = True
        else:
            highest = counts[k]
    return forced


@kernel(types.float64(types.float64, _BOUNDS, _BOUNDS, types.int64), error_model="numpy")
def _quantile(q: float, uppers: Float, counts: Float, size: int) -> float:
    """The quantile `q`, interpolated within a bucket. The lowest bucket begins at 0 if its upper bound is positive."""
    if size < 2 or counts[size - 1] == 0.0:
        return math.nan
    rank = q * counts[size - 1]
    b = 0
    while b < size - 1 and not counts[b] >= rank:
        b += 1
    if b == size - 1:
        return uppers[size - 2]
    if b == 0 and uppers[0] <= 0.0:
        return uppers[0]
    start, count = 0.0, counts[b]
    if b > 0:
        start = uppers[b - 1]
        count -= counts[b - 1]
        rank -= counts[b - 1]
    return start + (uppers[b] - start) * (rank / count)


@kernel(types.float64(types.float64, types.float64, _BOUNDS, _BOUNDS, types.int64), error_model="numpy")
def _rank_of(bound: float, floor: float, uppers: Float, counts: Float, size: int) -> float:
    """The number of observations below `bound`; buckets of infinite width are not interpolated."""
    below, lower = 0.0, floor
    for b in range(size):
        if b > 0:
            lower = uppers[b - 1]
        if lower >= bound:
            return below
        if uppers[b] > bound:
            if math.isinf(lower):
                return counts[b]
            return below + (counts[b] - below) * (bound - lower) / (uppers[b] - lower)
        below = counts[b]
    return counts[size - 1]


@kernel(types.float64(types.float64, types.float64, _BOUNDS, _BOUNDS, types.int64), error_model="numpy")
def _fraction(lower: float, upper: float, uppers: Float, counts: Float, size: int) -> float:
    """The fraction of observations between `lower` and `upper`."""
    total = counts[size - 1]
    if total == 0.0 or math.isnan(lower) or math.isnan(upper):
        return math.nan
    if lower >= upper:
        return 0.0
    floor = 0.0 if uppers[0] > 0.0 else -math.inf
    below_upper = min(_rank_of(upper, floor, uppers, counts, size), total)
    below_lower = min(_rank_of(lower, floor, uppers, counts, size), total)
    return (below_upper - below_lower) / total


@kernel(types.void(_VALUES, _PRESENT, _ROWS, _ROWS, _BOUNDS, _BOUNDS, _OUT, _SEEN, _FLAGS), error_model="numpy")
def bucket_quantiles(
    values: Float,
    present: Bool,
    order: Int,
    offsets: Int,
    bounds: Float,
    quantiles: Float,
    out: Float,
    seen: Bool,
    forced: Bool,
) -> None:
    """The quantile `quantiles[t]` of each histogram at each step. `forced[g]`: its counts were not monotonic."""
    uppers, counts = np.empty(len(order)), np.empty(len(order))
    for g in range(len(offsets) - 1):
        for t in range(values.shape[1]):
            size = _gather(values, present, order, bounds, offsets[g], offsets[g + 1], t, uppers, counts)
            if size == 0:
                continue
            seen[g, t] = True
            q = quantiles[t]
            if math.isnan(q):
                out[g, t] = math.nan
            elif q < 0.0:
                out[g, t] = -math.inf
            elif q > 1.0:
                out[g, t] = math.inf
            elif uppers[size - 1] != math.inf:
                out[g, t] = math.nan
            else:
                if _force_monotonic(counts, size):
                    forced[g] = True
                out[g, t] = _quantile(q, uppers, counts, size)


@kernel(types.void(_VALUES, _PRESENT, _ROWS, _ROWS, _BOUNDS, _BOUNDS, _BOUNDS, _OUT, _SEEN), error_model="numpy")
def bucket_fractions(
    values: Float,
    present: Bool,
    order: Int,
    offsets: Int,
    bounds: Float,
    lowers: Float,
    uppers_wanted: Float,
    out: Float,
    seen: Bool,
) -> None:
    """The fraction of observations between `lowers[t]` and `uppers_wanted[t]` for each histogram and step."""
    uppers, counts = np.empty(len(order)), np.empty(len(order))
    for g in range(len(offsets) - 1):
        for t in range(values.shape[1]):
            size = _gather(values, present, order, bounds, offsets[g], offsets[g + 1], t, uppers, counts)
            if size == 0:
                continue
            seen[g, t] = True
            if uppers[size - 1] != math.inf:
                out[g, t] = math.nan
            else:
                out[g, t] = _fraction(lowers[t], uppers_wanted[t], uppers, counts, size)
