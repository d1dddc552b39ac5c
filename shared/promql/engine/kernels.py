"""Range functions over ragged samples: windows with two moving edges.

Shared shapes: `offsets` int64[n+1] (series i owns samples [offsets[i], offsets[i+1])), `timestamps` int64[m] ascending
within a series, `values` float64[m]; `out` float64[n, steps] and `present` bool[n, steps] are written whole. The window
of step k is the samples with end - range_ms < t ≤ end, end = first + k * step; step 0 repeats one window. Both edges
only move forward, so the cost is samples + steps for every operation here that does not say otherwise.

What is returned follows https://prometheus.io/docs/prometheus/latest/querying/functions/. Every kernel has one type
signature and an integer opcode instead of variants, because compiling is what the first start waits for.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from shared.promql.model import Bool, Float, Int

RATE, INCREASE, DELTA, IRATE, IDELTA = 0, 1, 2, 3, 4
COUNT, PRESENT, FIRST, LAST, FIRST_TIME, LAST_TIME, CHANGES, RESETS = 0, 1, 2, 3, 4, 5, 6, 7
MIN, MAX, MIN_TIME, MAX_TIME = 0, 1, 2, 3

EXACT_INTEGER = 2.0**53
"""Sums of integers below this magnitude are exact in any order, so a difference of prefix sums is, too."""


kernel = njit(cache=True, nogil=True, error_model="numpy")
"""Compiled on first use and kept on disk; releases the GIL; a division by zero is Inf or NaN, as in the language."""


@kernel
def advance(timestamps: Int, at: int, end: int, limit: int) -> int:
    """The first index ≥ `at` whose timestamp is past `limit`."""
    while at < end and timestamps[at] <= limit:
        at += 1
    return at


@kernel
def is_reset(values: Float, began: Bool, i: int) -> bool:
    """Whether the counter began anew between samples i-1 and i: it fell, or its start timestamp says so."""
    return values[i] < values[i - 1] or (began.size > 0 and began[i])


@kernel
def last_in_window(
    offsets: Int,
    timestamps: Int,
    bits: Int,
    column: Float,
    stale: int,
    first: int,
    step: int,
    range_ms: int,
    out: Float,
    present: Bool,
) -> None:
    """The newest sample of each window unless it is a staleness marker.

    `bits`: int64[m], the samples' bits; `column`: float64[m], what to answer of the sample.
    """
    for s in range(out.shape[0]):
        end = offsets[s + 1]
        hi = offsets[s]
        for k in range(out.shape[1]):
            t = first + k * step
            hi = advance(timestamps, hi, end, t)
            found = hi > offsets[s] and timestamps[hi - 1] > t - range_ms and bits[hi - 1] != stale
            present[s, k] = found
            if found:
                out[s, k] = column[hi - 1]


@kernel
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


@kernel
def lost_at(values: Float, resets: Int, sums: Float, left: int, right: int, exact: bool) -> float:
    """The sum of the values lost at the resets left ≤ j < right of `counter_resets`."""
    if exact:
        return sums[right] - sums[left] if right > left else 0.0
    total = 0.0
    for j in range(left, right):
        total += values[resets[j] - 1]
    return total


@kernel
def extrapolated(
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
    """Extrapolate an increase between the first and last sample to the window's bounds, as Prometheus does.

    A counter is not extrapolated to below zero. `zero_t` > `from_t` is a time the counter is known to have been zero;
    `result` then counts from there.
    """
    # All in ms, which cancel out; products where quotients would say the same: divisions are what this costs.
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
    return result * ((interval + to_start + to_end) / interval)


@kernel
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

    `began`: bool[m] or empty: whether start timestamps say that the counter began anew at that sample;
    `starts`: int64[m] or empty: the samples' start timestamps.
    The values lost at resets are summed per window in order; where all are integers (the sum is then exact in any
    order) by a difference of prefix sums.
    """
    longest = 0
    for s in range(out.shape[0]):
        longest = max(longest, offsets[s + 1] - offsets[s])
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
            value = extrapolated(
                value, values[lo], timestamps[lo], timestamps[hi - 1], hi - lo, from_t, to_t, zero_t, counter
            )
            out[s, k] = value / (range_ms / 1000.0) if op == RATE else value


@kernel
def tallies(
    op: int,
    offsets: Int,
    timestamps: Int,
    values: Float,
    began: Bool,
    first: int,
    step: int,
    range_ms: int,
    anchor_ms: int,
    out: Float,
    present: Bool,
) -> None:
    """COUNT … RESETS: what prefix counts and the window's ends tell.

    `anchor_ms` > 0 takes the last sample at or before the window's start, if not older than that, into the window,
    provided that the window has a sample.
    """
    longest = 0
    for s in range(out.shape[0]):
        longest = max(longest, offsets[s + 1] - offsets[s])
    before = np.zeros(longest + 1, np.int64)
    for s in range(out.shape[0]):
        begin = offsets[s]
        lo = begin
        hi = begin
        end = offsets[s + 1]
        if op >= CHANGES:
            for i in range(begin + 1, end):
                if op == RESETS:
                    hit = is_reset(values, began, i)
                else:
                    a, b = values[i - 1], values[i]
                    hit = a != b and not (np.isnan(a) and np.isnan(b))
                before[i - begin] = before[i - begin - 1] + hit
        for k in range(out.shape[1]):
            t = first + k * step
            hi = advance(timestamps, hi, end, t)
            lo = advance(timestamps, lo, hi, t - range_ms)
            present[s, k] = hi > lo
            if hi == lo:
                continue
            left = lo
            if anchor_ms > 0 and lo > begin and timestamps[lo - 1] > t - range_ms - anchor_ms:
                left = lo - 1
            if op == COUNT:
                out[s, k] = hi - left
            elif op == PRESENT:
                out[s, k] = 1.0
            elif op == FIRST:
                out[s, k] = values[left]
            elif op == LAST:
                out[s, k] = values[hi - 1]
            elif op == FIRST_TIME:
                out[s, k] = timestamps[left] / 1000.0
            elif op == LAST_TIME:
                out[s, k] = timestamps[hi - 1] / 1000.0
            else:
                out[s, k] = before[hi - 1 - begin] - before[left - begin]


@kernel
def extremes(
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
    """MIN, MAX and the time of the last sample that has it, by a queue of samples each better than all after it.

    NaN loses to every other value; a window of NaN alone answers NaN, and its last sample's time.
    """
    longest = 0
    for s in range(out.shape[0]):
        longest = max(longest, offsets[s + 1] - offsets[s])
    queue = np.empty(longest + 1, np.int64)
    sign = 1.0 if op % 2 == MAX else -1.0
    for s in range(out.shape[0]):
        lo = offsets[s]
        hi = lo
        end = offsets[s + 1]
        head = 0
        tail = 0
        for k in range(out.shape[1]):
            t = first + k * step
            entered = hi
            hi = advance(timestamps, hi, end, t)
            for i in range(entered, hi):
                if np.isnan(values[i]):
                    continue
                while tail > head and sign * values[queue[tail - 1]] <= sign * values[i]:
                    tail -= 1
                queue[tail] = i
                tail += 1
            lo = advance(timestamps, lo, hi, t - range_ms)
            while head < tail and queue[head] < lo:
                head += 1
            present[s, k] = hi > lo
            if hi == lo:
                continue
            best = queue[head] if head < tail else hi - 1
            out[s, k] = values[best] if op <= MAX else timestamps[best] / 1000.0
