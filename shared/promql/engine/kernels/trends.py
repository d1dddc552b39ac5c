"""Linear regression and double exponential smoothing of windows.

Shapes as in `windows`. These kernels visit every sample of every window, so they cost samples × overlap.
"""

from __future__ import annotations

import numpy as np

from shared.kernels import kernel, types
from shared.promql.engine.kernels.moments import add
from shared.promql.engine.kernels.windows import EDGES, FLOATS, INTS, PRESENT_OUT, SERIES, VALUES_OUT, advance
from shared.promql.model import Bool, Float, Int

DERIV, PREDICT, SMOOTH = 0, 1, 2


@kernel(types.UniTuple(types.float64, 2)(INTS, FLOATS, types.int64, types.int64, types.int64), error_model="numpy")
def regression(timestamps: Int, values: Float, lo: int, hi: int, origin: int) -> tuple[float, float]:
    """Least squares: (slope per second, value at `origin`). Equal values give exactly slope 0; equal infinite values
    give NaN."""
    all_equal = True
    n = hi - lo
    x_sum = x_lost = y_sum = y_lost = xy_sum = xy_lost = xx_sum = xx_lost = 0.0
    for i in range(lo, hi):
        all_equal = all_equal and values[i] == values[lo]
        x = (timestamps[i] - origin) / 1000.0
        x_sum, x_lost = add(x, x_sum, x_lost)
        y_sum, y_lost = add(values[i], y_sum, y_lost)
        xy_sum, xy_lost = add(x * values[i], xy_sum, xy_lost)
        xx_sum, xx_lost = add(x * x, xx_sum, xx_lost)
    if all_equal:
        return (np.nan, np.nan) if np.isinf(values[lo]) else (0.0, values[lo])
    x_sum += x_lost
    y_sum += y_lost
    slope = ((xy_sum + xy_lost) - x_sum * y_sum / n) / ((xx_sum + xx_lost) - x_sum * x_sum / n)
    return slope, y_sum / n - slope * x_sum / n


@kernel(types.float64(FLOATS, types.int64, types.int64, types.float64, types.float64), error_model="numpy")
def smoothed_level(values: Float, lo: int, hi: int, smoothing: float, trend: float) -> float:
    """Holt's double exponential smoothing of at least two samples."""
    previous = 0.0
    level = values[lo]
    slope = values[lo + 1] - values[lo]
    for i in range(lo + 1, hi):
        if i > lo + 1:
            slope = trend * (level - previous) + (1 - trend) * slope
        previous, level = level, smoothing * values[i] + (1 - smoothing) * (level + slope)
    return level


@kernel(
    types.void(types.int64, *SERIES, *EDGES, types.int64, types.int64, FLOATS, FLOATS, VALUES_OUT, PRESENT_OUT),
    error_model="numpy",
)
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
