"""Range functions that visit every sample of a window: compensated sums, variances, regressions, order statistics.

Shapes as in `kernels`. These cost samples × overlap: a compensated (Kahan–Neumaier) sum depends on the order in which
its terms come, so sliding it would change its last bits. The one exception: where a series' values are integers and
their magnitudes add up to less than 2^53, every order gives the exact sum, and prefix sums slide. Order statistics
keep the window sorted and pay for entering and leaving samples only (each moves at most a window's length of values).
"""

from __future__ import annotations

import numpy as np

from shared.promql.engine.kernels import EXACT_INTEGER, advance, kernel
from shared.promql.model import Bool, Float, Int

SUM, AVG, STDVAR, STDDEV = 0, 1, 2, 3
DERIV, PREDICT, SMOOTH = 0, 1, 2
QUANTILE, MAD = 0, 1


@kernel
def add(term: float, total: float, lost: float) -> tuple[float, float]:
    """One step of a Kahan–Neumaier sum; returns the new (total, lost)."""
    new = total + term
    if np.isinf(new):
        return new, 0.0
    if abs(total) >= abs(term):
        return new, lost + ((total - new) + term)
    return new, lost + ((term - new) + total)


@kernel
def mean(values: Float, lo: int, hi: int) -> float:
    """Compensated mean; from where the sum overflows on, incremental."""
    total = values[lo]
    lost = 0.0
    for i in range(lo + 1, hi):
        count = i - lo + 1.0
        new, new_lost = add(values[i], total, lost)
        if not np.isinf(new):
            total, lost = new, new_lost
            continue
        average = total / (count - 1)
        lost /= count - 1
        for j in range(i, hi):
            count = j - lo + 1.0
            kept = (count - 1) / count
            average, lost = add(values[j] / count, kept * average, kept * lost)
        return average + lost
    return total / (hi - lo) + lost / (hi - lo)


@kernel
def variance(values: Float, lo: int, hi: int) -> float:
    """Population variance by Welford's method, compensated."""
    average = 0.0
    average_lost = 0.0
    squares = 0.0
    squares_lost = 0.0
    for i in range(lo, hi):
        delta = values[i] - (average + average_lost)
        average, average_lost = add(delta / (i - lo + 1), average, average_lost)
        squares, squares_lost = add(delta * (values[i] - (average + average_lost)), squares, squares_lost)
    return (squares + squares_lost) / (hi - lo)


@kernel
def moments(
    op: int,
    offsets: Int,
    timestamps: Int,
    values: Float,
    first: int,
    step: int,
    range_ms: int,
    out: Float,
    present: Bool,
) -> None:
    """SUM, AVG, STDVAR, STDDEV."""
    longest = 0
    for s in range(out.shape[0]):
        longest = max(longest, offsets[s + 1] - offsets[s])
    before = np.zeros(longest + 1, np.float64)
    for s in range(out.shape[0]):
        begin = offsets[s]
        lo = begin
        hi = begin
        end = offsets[s + 1]
        exact = op <= AVG
        magnitude = 0.0
        if exact:
            for i in range(begin, end):
                exact = exact and values[i] == np.floor(values[i])
                magnitude += abs(values[i])
                before[i - begin + 1] = before[i - begin] + values[i]
            exact = exact and magnitude < EXACT_INTEGER
        for k in range(out.shape[1]):
            t = first + k * step
            hi = advance(timestamps, hi, end, t)
            lo = advance(timestamps, lo, hi, t - range_ms)
            present[s, k] = hi > lo
            if hi == lo:
                continue
            if exact:
                value = before[hi - begin] - before[lo - begin]
                out[s, k] = value / (hi - lo) if op == AVG else value
            elif op == SUM:
                total = 0.0
                lost = 0.0
                for i in range(lo, hi):
                    total, lost = add(values[i], total, lost)
                out[s, k] = total + lost
            elif op == AVG:
                out[s, k] = mean(values, lo, hi)
            else:
                value = variance(values, lo, hi)
                out[s, k] = np.sqrt(value) if op == STDDEV else value


@kernel
def regression(timestamps: Int, values: Float, lo: int, hi: int, origin: int) -> tuple[float, float]:
    """Least squares: (slope per second, value at `origin`). Equal values give slope 0 exactly; infinite ones NaN."""
    same = True
    n = hi - lo
    x_sum = x_lost = y_sum = y_lost = xy_sum = xy_lost = xx_sum = xx_lost = 0.0
    for i in range(lo, hi):
        same = same and values[i] == values[lo]
        x = (timestamps[i] - origin) / 1000.0
        x_sum, x_lost = add(x, x_sum, x_lost)
        y_sum, y_lost = add(values[i], y_sum, y_lost)
        xy_sum, xy_lost = add(x * values[i], xy_sum, xy_lost)
        xx_sum, xx_lost = add(x * x, xx_sum, xx_lost)
    if same:
        return (np.nan, np.nan) if np.isinf(values[lo]) else (0.0, values[lo])
    x_sum += x_lost
    y_sum += y_lost
    slope = ((xy_sum + xy_lost) - x_sum * y_sum / n) / ((xx_sum + xx_lost) - x_sum * x_sum / n)
    return slope, y_sum / n - slope * x_sum / n


@kernel
def smoothed_level(values: Float, lo: int, hi: int, smoothing: float, trend: float) -> float:
    """Holt's double exponential smoothing; at least two samples."""
    previous = 0.0
    level = values[lo]
    slope = values[lo + 1] - values[lo]
    for i in range(lo + 1, hi):
        if i > lo + 1:
            slope = trend * (level - previous) + (1 - trend) * slope
        previous, level = level, smoothing * values[i] + (1 - smoothing) * (level + slope)
    return level


@kernel
def trends(
    op: int,
    offsets: Int,
    timestamps: Int,
    values: Float,
    first: int,
    step: int,
    range_ms: int,
    now: int,
    now_step: int,
    a: Float,
    b: Float,
    out: Float,
    present: Bool,
) -> None:
    """DERIV, PREDICT (`a` seconds past the evaluation time now + k * now_step), SMOOTH (`a` smoothing, `b` trend).

    `a`, `b`: float64[steps].
    """
    for s in range(out.shape[0]):
        lo = offsets[s]
        hi = lo
        end = offsets[s + 1]
        for k in range(out.shape[1]):
            t = first + k * step
            hi = advance(timestamps, hi, end, t)
            lo = advance(timestamps, lo, hi, t - range_ms)
            present[s, k] = hi - lo >= 2
            if hi - lo < 2:
                continue
            if op == SMOOTH:
                out[s, k] = smoothed_level(values, lo, hi, a[k], b[k])
                continue
            origin = timestamps[lo] if op == DERIV else now + k * now_step
            slope, level = regression(timestamps, values, lo, hi, origin)
            out[s, k] = slope if op == DERIV else slope * a[k] + level


@kernel
def position(ordered: Float, n: int, value: float) -> int:
    """The first index of the ascending `ordered[:n]` whose value is not below `value`."""
    lo, hi = 0, n
    while lo < hi:
        middle = (lo + hi) >> 1
        if ordered[middle] < value:
            lo = middle + 1
        else:
            hi = middle
    return lo


@kernel
def interpolated(ordered: Float, missing: int, n: int, q: float) -> float:
    """Quantile of `missing` NaNs, which come first, and the ascending `ordered[:n]`."""
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


@kernel
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


@kernel
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
    """QUANTILE (`q`: float64[steps]) and MAD, the median distance from the median (NaN if a sample is)."""
    longest = 0
    for s in range(out.shape[0]):
        longest = max(longest, offsets[s + 1] - offsets[s])
    ordered = np.empty(longest + 1, np.float64)
    distances = np.empty(longest + 1, np.float64)
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
            for i in range(left, min(lo, entered)):
                if np.isnan(values[i]):
                    missing -= 1
                    continue
                at = position(ordered, n, values[i])
                n -= 1
                for j in range(at, n):
                    ordered[j] = ordered[j + 1]
            for i in range(max(entered, lo), hi):
                if np.isnan(values[i]):
                    missing += 1
                    continue
                at = position(ordered, n, values[i])
                for j in range(n, at, -1):
                    ordered[j] = ordered[j - 1]
                ordered[at] = values[i]
                n += 1
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
