"""Functions of counters and of differences: from the first to the last sample of a window, corrected for resets.

Shapes as in `windows`. All series of a target are scraped at once, so most series have the same timestamps as the
series before them. The bounds of their windows and the extrapolation are then known already, and a window costs a few
operations that are vectorised over steps.
"""

from __future__ import annotations

import numpy as np

from shared.kernels import inlined, kernel, types
from shared.promql.engine.kernels.extrapolation import factor, limited_start, reach
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
    same_numbers,
)
from shared.promql.model import Bool, Float, Int

RATE, INCREASE, DELTA, IRATE, IDELTA = 0, 1, 2, 3, 4

INTERVAL, TO_START, TO_END, FACTOR = 0, 1, 2, 3
"""The rows of `reaches`."""

FLAGS_OUT = types.boolean[::1]
_PLACES = types.uint64[::1]
_PLACES_IN = types.Array(types.uint64, 1, "C", readonly=True)
"""Unsigned: numba lets negative indices count from the end, and does not vectorise loops that might have any."""
_BUFFER = types.float64[::1]
_REACHES = types.float64[:, ::1]
_REACHES_IN = types.Array(types.float64, 2, "C", readonly=True)


@kernel(types.boolean(FLOATS, FLAGS, types.int64), error_model="numpy", allocates=False)
def is_reset(values: Float, began: Bool, i: int) -> bool:
    """Whether the counter was reset between samples i-1 and i: its value fell, or its start timestamp says so."""
    return values[i] < values[i - 1] or (began.size > 0 and began[i])


@kernel(
    types.Tuple((types.int64, types.boolean))(
        FLOATS, FLAGS, types.int64, types.int64, types.int64[::1], types.float64[::1]
    ),
    error_model="numpy",
    allocates=False,
)
def counter_resets(values: Float, began: Bool, begin: int, end: int, resets: Int, sums: Float) -> tuple[int, bool]:
    """Collect a series' resets: `resets[j]` is the index of the sample after the j-th reset, `sums[j]` the sum of the
    values lost at the first j resets. Returns (number of resets, whether differences of `sums` are exact)."""
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


@kernel(
    types.float64(FLOATS, INTS, FLOATS, types.int64, types.int64, types.boolean), error_model="numpy", allocates=False
)
def lost_at(values: Float, resets: Int, sums: Float, left: int, right: int, exact: bool) -> float:
    """The sum of the values lost at the resets left ≤ j < right of `counter_resets`."""
    if exact:
        return sums[right] - sums[left] if right > left else 0.0
    total = 0.0
    for j in range(left, right):
        total += values[resets[j] - 1]
    return total


@inlined(error_model="numpy")
def same_times(timestamps: Int, starts: Int, offsets: Int, known_series: int, series: int) -> bool:
    """Whether two series have equal timestamps and equal start timestamps, in the sense of `same_numbers`."""
    if not same_numbers(timestamps, offsets, known_series, series):
        return False
    return starts.size == 0 or same_numbers(starts, offsets, known_series, series)


@kernel(types.boolean(FLOATS, FLAGS), error_model="numpy", allocates=False)
def any_reset(values: Float, began: Bool) -> bool:
    """Whether there is a reset between any two of the samples, in the sense of `is_reset`."""
    count = 0
    before, after = values[:-1], values[1:]
    for i in range(len(after)):
        count += after[i] < before[i]
    for i in range(1, len(began)):
        count += began[i]
    return count > 0


@kernel(
    types.void(INTS, INTS, *EDGES, types.boolean, _PLACES, _PLACES, FLAGS_OUT, FLAGS_OUT, _REACHES),
    error_model="numpy",
    allocates=False,
)
def spans(
    timestamps: Int,
    starts: Int,
    first: int,
    step: int,
    range_ms: int,
    counter: bool,
    lows: Int,
    lasts: Int,
    from_zero: Bool,
    ok: Bool,
    reaches: Float,
) -> None:
    """Fill in what does not depend on the series' values in its windows.

    `lows`, `lasts`: the places of the first and the last sample. `from_zero`: whether the counter is known to have been
    zero after the window's start. `ok`: whether there is a result. `reaches`: float64[4, steps], the values of `reach`
    and the factor. Where there is no result, the arrays get harmless values.
    """
    lo = hi = 0
    for k in range(len(ok)):
        to_t = first + k * step
        from_t = to_t - range_ms
        hi = advance(timestamps, hi, len(timestamps), to_t)
        lo = advance(timestamps, lo, hi, from_t)
        zero_t = from_t
        if counter and starts.size > 0 and hi > lo and starts[lo] != 0 and starts[lo] < timestamps[lo]:
            zero_t = max(from_t, starts[lo])
        from_zero[k] = zero_t > from_t
        ok[k] = hi - lo >= 2 or (hi - lo == 1 and zero_t > from_t)
        lows[k] = lasts[k] = 0
        interval, to_start, to_end = 1.0, 0.0, 0.0
        if ok[k]:
            lows[k], lasts[k] = lo, hi - 1
            interval, to_start, to_end = reach(timestamps[lo], timestamps[hi - 1], hi - lo, from_t, to_t, zero_t)
        reaches[INTERVAL, k], reaches[TO_START, k], reaches[TO_END, k] = interval, to_start, to_end
        reaches[FACTOR, k] = factor(interval, to_start, to_end)


@kernel(
    types.void(FLOATS, FLAGS, _PLACES_IN, _PLACES_IN, types.int64[::1], types.int64[::1], _BUFFER, _BUFFER),
    error_model="numpy",
    allocates=False,
)
def add_lost(
    values: Float, began: Bool, lows: Int, lasts: Int, resets: Int, counts: Int, sums: Float, rises: Float
) -> None:
    """Add to the rise of each window what its counter lost at resets. `resets`, `counts` and `sums` must be longer than
    `values` by at least one."""
    n, exact = counter_resets(values, began, 0, len(values), resets, sums)
    resets[n] = len(values)
    counts[: resets[0]] = 0
    for j in range(n):
        counts[resets[j] : resets[j + 1]] = j + 1
    for k in range(len(rises)):
        left, right = counts[lows[k]], counts[lasts[k]]
        if exact:
            rises[k] += sums[right] - sums[left]
        elif right > left:
            rises[k] += lost_at(values, resets, sums, left, right, exact)


@kernel(types.void(types.int64, *SERIES, FLAGS, INTS, *EDGES, VALUES_OUT, PRESENT_OUT), error_model="numpy")
def counters(
    op: int, offsets: Int, timestamps: Int, values: Float, began: Bool, starts: Int, first: int, step: int,
    range_ms: int, out: Float, present: Bool,
) -> None:  # fmt: skip
    """RATE, INCREASE, DELTA.

    `began`: bool[m] or empty: whether start timestamps say that the counter was reset before that sample. `starts`:
    int64[m] or empty: the samples' start timestamps, in ms. The values lost at resets are summed for each window in
    order, or as a difference of prefix sums if all are integers, whose sum is exact in any order.
    """
    longest = longest_series(offsets)
    resets, counts = np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    sums = np.empty(longest + 1)
    steps = out.shape[1]
    lows, lasts = np.empty(steps, np.uint64), np.empty(steps, np.uint64)
    from_zero, ok = np.empty(steps, np.bool_), np.empty(steps, np.bool_)
    reaches = np.empty((4, steps))
    first_values, rises = np.empty(steps), np.empty(steps)
    counter = op != DELTA
    seconds = range_ms / 1000.0 if op == RATE else 1.0
    known_series = -1
    for s in range(out.shape[0]):
        begin, end = offsets[s], offsets[s + 1]
        if begin == end:
            present[s, :] = False
            continue
        if not same_times(timestamps, starts, offsets, known_series, s):
            series_starts = starts[begin:end] if starts.size > 0 else starts
            spans(
                timestamps[begin:end],
                series_starts,
                first,
                step,
                range_ms,
                counter,
                lows,
                lasts,
                from_zero,
                ok,
                reaches,
            )
            known_series = s
        present[s, :] = ok
        series_values = values[begin:end]
        for k in range(steps):
            first_values[k] = series_values[lows[k]]
            rises[k] = series_values[lasts[k]] - first_values[k] + 0.0  # not −0
        if starts.size > 0:
            for k in range(steps):
                if from_zero[k]:
                    rises[k] = series_values[lasts[k]] + 0.0
        series_began = began[begin:end] if began.size > 0 else began
        if counter and any_reset(series_values, series_began):
            add_lost(series_values, series_began, lows, lasts, resets, counts, sums, rises)
        extrapolate(first_values, rises, reaches, counter, seconds, out[s])


@kernel(
    types.void(FLOATS, FLOATS, _REACHES_IN, types.boolean, types.float64, _BUFFER), error_model="numpy", allocates=False
)
def extrapolate(first_values: Float, rises: Float, reaches: Float, counter: bool, seconds: float, out: Float) -> None:
    """Fill out[k] with the rise of window k, extrapolated and divided by `seconds`. `first_values`: those of the
    windows; `reaches`: as filled by `spans`."""
    intervals, to_starts, to_ends, factors = reaches[INTERVAL], reaches[TO_START], reaches[TO_END], reaches[FACTOR]
    limited = 0
    for k in range(len(out)):
        out[k] = rises[k] * factors[k] / seconds
        limited += (rises[k] > 0) & (first_values[k] >= 0) & (intervals[k] * first_values[k] < to_starts[k] * rises[k])
    if not counter or not limited:
        return
    for k in range(len(out)):
        to_start = limited_start(rises[k], first_values[k], intervals[k], to_starts[k])
        if to_start != to_starts[k]:
            out[k] = rises[k] * factor(intervals[k], to_start, to_ends[k]) / seconds


@kernel(types.void(types.int64, *SERIES, FLAGS, *EDGES, VALUES_OUT, PRESENT_OUT), error_model="numpy")
def last_changes(
    op: int,
    offsets: Int,
    timestamps: Int,
    values: Float,
    began: Bool,
    first: int,
    step: int,
    range_ms: int,
    out: Float,
    present: Bool,
) -> None:
    """IRATE, IDELTA: between the last two samples of a window. `began`: as for `counters`."""
    counter = op == IRATE
    for s in range(out.shape[0]):
        lo = hi = offsets[s]
        end = offsets[s + 1]
        for k in range(out.shape[1]):
            to_t = first + k * step
            hi = advance(timestamps, hi, end, to_t)
            lo = advance(timestamps, lo, hi, to_t - range_ms)
            present[s, k] = hi - lo >= 2
            if not present[s, k]:
                continue
            value = values[hi - 1]
            if not (counter and is_reset(values, began, hi - 1)):
                value -= values[hi - 2]
            if counter:
                value /= (timestamps[hi - 1] - timestamps[hi - 2]) / 1000.0
            out[s, k] = value
