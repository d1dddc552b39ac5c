"""`anchored` and `smoothed` selectors: windows whose bounds have a value of their own.

Shapes as in `windows`. Semantics: https://prometheus.io/docs/prometheus/latest/feature_flags/ (extended range
selectors) and Prometheus's proposal PROM-52. Nothing is extrapolated.
"""

from __future__ import annotations

import numpy as np

from shared.kernels import inlined, kernel, types
from shared.promql.engine.kernels.counters import DELTA, RATE, counter_resets, is_reset, lost_at
from shared.promql.engine.kernels.windows import EDGES, FLAGS, PRESENT_OUT, SERIES, VALUES_OUT, advance, longest_series
from shared.promql.model import Bool, Float, Int


@inlined(error_model="numpy")
def between(timestamps: Int, values: Float, i: int, t: int, from_zero: bool) -> float:
    """The value at `t` on the line from sample i-1, or from zero, to sample i."""
    share = (t - timestamps[i - 1]) / (timestamps[i] - timestamps[i - 1])
    if from_zero:
        return values[i] * share
    return values[i - 1] + (values[i] - values[i - 1]) * share


@kernel(types.void(*SERIES, *EDGES, VALUES_OUT, PRESENT_OUT), error_model="numpy")
def smoothed_at(
    offsets: Int, timestamps: Int, values: Float, first: int, step: int, lookback_ms: int, out: Float, present: Bool
) -> None:
    """The value at each time on the line between the neighbouring samples, which are at most `lookback_ms` away.

    Without a later sample, it is the earlier one's value. Without an earlier one, there is no value.
    """
    for s in range(out.shape[0]):
        hi = offsets[s]
        end = offsets[s + 1]
        for k in range(out.shape[1]):
            t = first + k * step
            hi = advance(timestamps, hi, end, t)
            is_present = hi > offsets[s] and timestamps[hi - 1] > t - lookback_ms
            present[s, k] = is_present
            if not is_present:
                continue
            if timestamps[hi - 1] < t and hi < end and timestamps[hi] <= t + lookback_ms:
                out[s, k] = between(timestamps, values, hi, t, False)
            else:
                out[s, k] = values[hi - 1]


@inlined(allocates=False)
def next_window(
    timestamps: Int, begin: int, end: int, lo: int, hi: int, to_t: int, range_ms: int, lookback_ms: int, smoothed: bool
) -> tuple[int, int, bool, bool]:
    """(`lo`, `hi`, `before`, `after`) of a series' window that ends at `to_t`: it has the samples lo ≤ i < hi; `before`
    and `after` say whether the samples before and after those give its bounds a value. The arguments `lo` and `hi` are
    those of an earlier window."""
    from_t = to_t - range_ms
    hi = advance(timestamps, hi, end, to_t)
    lo = advance(timestamps, lo, hi, from_t)
    before = lo > begin and timestamps[lo - 1] > from_t - lookback_ms
    after = smoothed and hi < end and timestamps[hi] <= to_t + lookback_ms
    return lo, hi, before, after


@inlined(error_model="numpy")
def left_bound(
    timestamps: Int, values: Float, began: Bool, lo: int, from_t: int, before: bool, smoothed: bool, counter: bool
) -> tuple[float, int, bool]:
    """(the value at the left bound of a window, the first sample after it, whether the value is that of a sample)."""
    if not before:
        return values[lo], lo + 1, True
    if smoothed and timestamps[lo - 1] < from_t:
        return between(timestamps, values, lo, from_t, counter and is_reset(values, began, lo)), lo, False
    return values[lo - 1], lo, True


@kernel(
    types.void(types.int64, types.boolean, *SERIES, FLAGS, *EDGES, types.int64, VALUES_OUT, PRESENT_OUT),
    error_model="numpy",
)
def increases(
    op: int, smoothed: bool, offsets: Int, timestamps: Int, values: Float, began: Bool, first: int, step: int,
    range_ms: int, lookback_ms: int, out: Float, present: Bool,
) -> None:  # fmt: skip
    """RATE, INCREASE, DELTA between the window's bounds.

    Anchored: from the last sample at or before the start (the first in the window if there is none within
    `lookback_ms`) to the last in the window. Smoothed: the values at both bounds are interpolated between neighbouring
    samples. If a counter was reset between these, the value is on a line from zero, and counts as after the reset.
    `began`: as for `counters.counter_resets`.
    """
    counter = op != DELTA
    longest = longest_series(offsets)
    resets = np.empty(longest + 1, np.int64)
    sums = np.empty(longest + 1, np.float64)
    for s in range(out.shape[0]):
        begin = offsets[s]
        lo = begin
        hi = begin
        end = offsets[s + 1]
        n = 0
        exact = True
        if counter:
            n, exact = counter_resets(values, began, begin, end, resets, sums)
        first_reset = 0
        last_reset = 0
        for k in range(out.shape[1]):
            to_t = first + k * step
            from_t = to_t - range_ms
            lo, hi, before, after = next_window(timestamps, begin, end, lo, hi, to_t, range_ms, lookback_ms, smoothed)
            has_result = hi > lo or (before and after)
            present[s, k] = has_result
            if not has_result:
                continue
            left, inner, is_sample = left_bound(timestamps, values, began, lo, from_t, before, smoothed, counter)
            last = hi
            if after and (hi == begin or timestamps[hi - 1] < to_t):
                right = between(timestamps, values, hi, to_t, counter and is_reset(values, began, hi))
            else:
                right = values[hi - 1]
                last = hi - 1
            value = right - left
            if counter:
                while last_reset < n and resets[last_reset] < last:
                    last_reset += 1
                # Once there is no sample after the window, its last sample becomes the bound.
                while last_reset > first_reset and resets[last_reset - 1] >= last:
                    last_reset -= 1
                while first_reset < last_reset and resets[first_reset] <= inner:
                    first_reset += 1
                if inner < last and is_sample and is_reset(values, began, inner):
                    value += left
                value += lost_at(values, resets, sums, first_reset, last_reset, exact)
                previous = values[last - 1] if inner < last else left
                if inner <= last and (inner < last or is_sample) and is_reset(values, began, last):
                    value += previous
            out[s, k] = value / (range_ms / 1000.0) if op == RATE else value
