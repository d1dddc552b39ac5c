"""Quantiles of windows, and the median distance from the median.

Shapes as in `windows`. The values of a window are kept in ascending order (`ordered`), so a step costs at most a pass
over the window and the sorting of the samples that enter or leave it: of all samples for the first window.
"""

from __future__ import annotations

import numpy as np

from shared.kernels import inlined, kernel, types
from shared.promql.engine.kernels.ordered import numbers, position, put_in, take_out
from shared.promql.engine.kernels.windows import EDGES, FLOATS, PRESENT_OUT, SERIES, VALUES_OUT, advance, longest_series
from shared.promql.model import Bool, Float, Int

QUANTILE, MAD = 0, 1


@inlined(error_model="numpy")
def interpolated(ordered: Float, missing: int, n: int, q: float) -> float:
    """The quantile `q` of `missing` NaNs, which sort first, and the ascending `ordered[:n]`."""
    if np.isnan(q):
        return np.nan
    if q < 0:
        return -np.inf
    if q > 1:
        return np.inf
    rank = q * (missing + n - 1)
    lower = int(np.floor(rank))
    upper = min(missing + n - 1, lower + 1)
    weight = rank - np.floor(rank)
    if lower < missing:
        return np.nan
    return ordered[lower - missing] * (1 - weight) + ordered[upper - missing] * weight


@kernel(types.void(FLOATS, types.int64, types.float64, types.float64[::1]), error_model="numpy")
def deviations(ordered: Float, n: int, centre: float, distances: Float) -> None:
    """The ascending distances of `ordered[:n]` from `centre`, merged outwards from it."""
    right = position(ordered, n, centre)
    left = right - 1
    for i in range(n):
        if left < 0 or (right < n and ordered[right] - centre < centre - ordered[left]):
            distances[i] = abs(ordered[right] - centre)
            right += 1
        else:
            distances[i] = abs(centre - ordered[left])
            left -= 1


@kernel(types.void(types.int64, *SERIES, *EDGES, FLOATS, VALUES_OUT, PRESENT_OUT), error_model="numpy")
def order_statistics(
    op: int,
    offsets: Int,
    timestamps: Int,
    values: Float,
    first: int,
    step: int,
    range_ms: int,
    q: Float,
    out: Float,
    present: Bool,
) -> None:
    """QUANTILE (`q`: float64[steps]), and MAD, the median distance from the median (NaN if any sample is NaN)."""
    longest = longest_series(offsets)
    ordered = np.empty(longest + 1, np.float64)
    distances = np.empty(longest + 1, np.float64)
    changed = np.empty(longest + 1, np.float64)
    for s in range(out.shape[0]):
        lo = offsets[s]
        hi = lo
        end = offsets[s + 1]
        n = 0
        missing = 0
        for k in range(out.shape[1]):
            t = first + k * step
            entered = hi
            left = lo
            hi = advance(timestamps, hi, end, t)
            lo = advance(timestamps, lo, hi, t - range_ms)
            if lo >= entered:
                n = missing = 0
            else:
                count = numbers(values, left, lo, changed)
                missing -= lo - left - count
                n = take_out(ordered, n, changed, count, distances)
            entered = max(entered, lo)
            count = numbers(values, entered, hi, changed)
            missing += hi - entered - count
            n = put_in(ordered, n, changed, count, distances)
            present[s, k] = hi > lo
            if hi == lo:
                continue
            if op == QUANTILE:
                out[s, k] = interpolated(ordered, missing, n, q[k])
                continue
            centre = interpolated(ordered, missing, n, 0.5)
            if missing > 0 or np.isnan(centre):
                out[s, k] = np.nan
            else:
                deviations(ordered, n, centre, distances)
                out[s, k] = interpolated(distances, 0, n, 0.5)
