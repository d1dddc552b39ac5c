"""Functions of counters and of differences: from the first to the last sample of a window, resets accounted for.

Shapes as in `windows`.
"""

from __future__ import annotations

import numpy as np
from numba import types

from shared.kernels import kernel
from shared.promql.engine.kernels.windows import (
    EDGES,
    EXACT_INTEGER,
    FLAGS,
    FLOATS,
    INTS,
    PRESENT_OUT,
    SERIES,
    VALUES_OUT,
    advance,
    longest_series,
)
from shared.promql.model import Bool, Float, Int

RATE, INCREASE, DELTA, IRATE, IDELTA = 0, 1, 2, 3, 4


@kernel(types.boolean(FLOATS, FLAGS, types.int64), error_model="numpy")
def is_reset(values: Float, began: Bool, i: int) -> bool:
    """Whether the counter was reset between samples i-1 and i: it fell, or its start timestamp says so."""
    return values[i] < values[i - 1] or (began.size > 0 and began[i])


@kernel(
    types.Tuple((types.int64, types.boolean))(
        FLOATS, FLAGS, types.int64, types.int64, types.int64[::1], types.float64[::1]
    ),
    error_model="numpy",
)
def counter_resets(values: Float, began: Bool, begin: int, end: int, resets: Int, sums: Float) -> tuple[int, bool]:
    """Collect a series' resets: `resets[j]` is the index of the sample after the j-th, `sums[j]` the sum of the values
    lost at the first j. Returns (number of resets, whether differences of `sums` are exact)."""
    n = 0
    exact = True
    total = 0.0
    sums[0] = 0.0
    for i in range(begin + 1, end):
        if is_reset(values, began, i):
            lost = values[i - 1]
            exact = exact and lost == np.floor(lost)
            total += abs(lost)
            resets[n] = i
            sums[n + 1] = sums[n] + lost
            n += 1
    return n, exact and total < EXACT_INTEGER


@kernel(types.float64(FLOATS, INTS, FLOATS, types.int64, types.int64, types.boolean), error_model="numpy")
def lost_at(values: Float, resets: Int, sums: Float, left: int, right: int, exact: bool) -> float:
    """The sum of the values lost at the resets left ≤ j < right of `counter_resets`."""
    if exact:
        return sums[right] - sums[left] if right > left else 0.0
    total = 0.0
    for j in range(left, right):
        total += values[resets[j] - 1]
    return total


@kernel(
    types.float64(
        types.float64,
        types.float64,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.boolean,
    ),
    error_model="numpy",
)
def extrapolation(
    result: float,
    first_value: float,
    first_t: int,
    last_t: int,
    samples: int,
    from_t: int,
    to_t: int,
    zero_t: int,
    counter: bool,
) -> float:
    """The factor by which an increase between the first and last sample (`result`) grows when it is extrapolated to the
    window's bounds as Prometheus does.

    A counter is not extrapolated to below zero. `zero_t` > `from_t` is a time the counter is known to have been zero;
    `result` then counts from there.
    """
    # All times are in ms, which cancel out. Products stand in for quotients, because divisions dominate the cost.
    to_start = float(first_t - from_t)
    to_end = float(to_t - last_t)
    interval = float(last_t - first_t)
    gaps = float(max(samples - 1, 1))
    threshold = 1.1 * interval
    half_average = 0.0
    if to_start * gaps >= threshold or to_end * gaps >= threshold:
        half_average = interval / gaps / 2
    if zero_t > from_t:
        interval = float(last_t - zero_t)
        to_start = 0.0
    elif to_start * gaps >= threshold:
        to_start = half_average
    limited = counter and zero_t <= from_t and result > 0 and first_value >= 0
    if limited and interval * first_value < to_start * result:
        to_start = min(to_start, interval * (first_value / result))
    if to_end * gaps >= threshold:
        to_end = half_average
    return (interval + to_start + to_end) / interval


@kernel(types.void(types.int64, *SERIES, FLAGS, INTS, *EDGES, VALUES_OUT, PRESENT_OUT), error_model="numpy")
def counters(
    op: int,
    offsets: Int,
    timestamps: Int,
    values: Float,
    began: Bool,
    starts: Int,
    first: int,
    step: int,
    range_ms: int,
    out: Float,
    present: Bool,
) -> None:
    """RATE, INCREASE, DELTA, IRATE, IDELTA.

    `began`: bool[m] or empty: whether start timestamps say that the counter was reset before that sample; `starts`:
    int64[m] or empty: the samples' start timestamps, in ms. The values lost at resets are summed for each window in
    order, or, where all are integers (the sum is then exact in any order), by a difference of prefix sums.
    """
    longest = longest_series(offsets)
    resets = np.empty(longest + 1, np.int64)
    sums = np.empty(longest + 1, np.float64)
    counter = op != DELTA and op != IDELTA
    for s in range(out.shape[0]):
        lo = offsets[s]
        hi = lo
        end = offsets[s + 1]
        n = 0
        exact = True
        if op <= INCREASE:
            n, exact = counter_resets(values, began, lo, end, resets, sums)
        left = 0
        right = 0
        for k in range(out.shape[1]):
            to_t = first + k * step
            from_t = to_t - range_ms
            hi = advance(timestamps, hi, end, to_t)
            lo = advance(timestamps, lo, hi, from_t)
            zero_t = from_t
            if counter and starts.size > 0 and hi > lo and starts[lo] != 0 and starts[lo] < timestamps[lo]:
                zero_t = max(from_t, starts[lo])
            ok = hi - lo >= 2 or (hi - lo == 1 and zero_t > from_t and op <= INCREASE)
            present[s, k] = ok
            if not ok:
                continue
            if op >= IRATE:
                value = values[hi - 1]
                if not (counter and is_reset(values, began, hi - 1)):
                    value -= values[hi - 2]
                if op == IRATE:
                    value /= (timestamps[hi - 1] - timestamps[hi - 2]) / 1000.0
                out[s, k] = value
                continue
            value = values[hi - 1] if zero_t > from_t else values[hi - 1] - values[lo]
            while left < n and resets[left] <= lo:
                left += 1
            while right < n and resets[right] < hi:
                right += 1
            value += lost_at(values, resets, sums, left, right, exact)
            value *= extrapolation(
                value, values[lo], timestamps[lo], timestamps[hi - 1], hi - lo, from_t, to_t, zero_t, counter
            )
            out[s, k] = value / (range_ms / 1000.0) if op == RATE else value
