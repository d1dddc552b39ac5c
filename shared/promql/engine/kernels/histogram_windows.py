"""The rows of histograms that a window adds up: the bounds of windows, and the members of sums with their weights.

Shapes of `offsets`, `timestamps` and edges as in `windows`. The arithmetic itself is in `shared.histograms`.
"""

from __future__ import annotations

from typing import Any

from shared.kernels import inlined, kernel, types
from shared.promql.engine.kernels.extended import next_window
from shared.promql.engine.kernels.extrapolation import extrapolation
from shared.promql.engine.kernels.windows import EDGES, FLAGS, FLOATS, INTS, advance
from shared.promql.model import Bool, Float, Int

_INTS_OUT = types.int64[:, ::1]
_FLOATS_OUT = types.float64[:, ::1]
_INTS = types.int64[::1]
_FLOATS = types.float64[::1]


@kernel(types.void(INTS, INTS, *EDGES, _INTS_OUT, _INTS_OUT), error_model="numpy")
def window_bounds(offsets: Int, timestamps: Int, first: int, step: int, range_ms: int, begins: Int, ends: Int) -> None:
    """Fill `begins` and `ends` (int64[n, steps]): the window of series s at step k has the samples
    begins[s, k] ≤ i < ends[s, k]."""
    for s in range(begins.shape[0]):
        lo = hi = offsets[s]
        end = offsets[s + 1]
        for k in range(begins.shape[1]):
            t = first + k * step
            hi = advance(timestamps, hi, end, t)
            lo = advance(timestamps, lo, hi, t - range_ms)
            begins[s, k], ends[s, k] = lo, hi


@inlined
def _first_reset(left: Any, left_share: Any) -> Any:
    """The first sample whose reset adds what was lost. A bound between two samples lies after a reset of the second."""
    return left + 1 if left_share == 0.0 else left + 2


@kernel(types.void(INTS, FLOATS, INTS, FLOATS, FLAGS, FLAGS, INTS, _INTS), error_model="numpy")
def count_difference_members(
    left: Int,
    left_share: Float,
    right: Int,
    right_share: Float,
    from_zero: Bool,
    resets: Bool,
    next_reset: Int,
    sizes: Int,
) -> None:
    """Fill sizes[w] with the number of members that `difference_members` gives window w."""
    for w in range(left.size):
        last = right[w] if right_share[w] == 0.0 else right[w] + 1
        begin = _first_reset(left[w], left_share[w])
        size = 2 if right_share[w] != 0.0 and not resets[right[w] + 1] else 1
        if not from_zero[w]:
            size += 2 if left_share[w] != 0.0 and not resets[left[w] + 1] else 1
        i = next_reset[begin] if begin <= last else last + 1
        if not from_zero[w] and left_share[w] == 0.0 and i == left[w] + 1 and i <= last:
            size -= 1  # The first sample is lost to a reset at once.
            i = next_reset[i + 1]
        while i <= last:
            size += 1
            i = next_reset[i + 1]
        sizes[w] = size


@kernel(
    types.void(INTS, FLOATS, INTS, FLOATS, FLAGS, FLAGS, INTS, INTS, INTS, _INTS, _FLOATS),
    error_model="numpy",
)
def difference_members(
    left: Int,
    left_share: Float,
    right: Int,
    right_share: Float,
    from_zero: Bool,
    resets: Bool,
    next_reset: Int,
    rows: Int,
    start: Int,
    members: Int,
    weights: Float,
) -> None:
    """Fill members[start[w]:start[w + 1]] and their weights: the right bound, minus the left one, plus the sample
    before each reset between them.

    The left bound is the sample left[w] or, if left_share[w] is not 0, the point at that share of the way from it to
    the next sample; the way begins at zero if that one comes after a reset. The right bound is given likewise.
    `from_zero`: the left bound is zero. `resets[i]`: whether there was a reset before sample i; `next_reset[i]`: the
    first such sample from i on. rows[i]: the row of sample i. If the first sample is lost to a reset at once, neither
    it nor what was lost is a member.
    """
    for w in range(left.size):
        at = start[w]
        a, b = left[w], right[w]
        share = right_share[w]
        last = b if share == 0.0 else b + 1
        if share == 0.0:
            members[at], weights[at] = rows[b], 1.0
        elif resets[b + 1]:
            members[at], weights[at] = rows[b + 1], share
        else:
            members[at], weights[at] = rows[b], 1.0 - share
            at += 1
            members[at], weights[at] = rows[b + 1], share
        at += 1
        share = left_share[w]
        begin = _first_reset(a, share)
        i = next_reset[begin] if begin <= last else last + 1
        if not from_zero[w]:
            if share == 0.0 and i == a + 1 and i <= last:
                i = next_reset[i + 1]
            elif share == 0.0:
                members[at], weights[at] = rows[a], -1.0
                at += 1
            elif resets[a + 1]:
                members[at], weights[at] = rows[a + 1], -share
                at += 1
            else:
                members[at], weights[at] = rows[a], share - 1.0
                members[at + 1], weights[at + 1] = rows[a + 1], -share
                at += 2
        while i <= last:
            members[at], weights[at] = rows[i - 1], 1.0
            at += 1
            i = next_reset[i + 1]


@kernel(types.void(INTS, INTS, INTS, INTS, _INTS), error_model="numpy")
def range_members(begins: Int, ends: Int, rows: Int, start: Int, members: Int) -> None:
    """Fill members[start[w]:start[w + 1]] with the rows of the samples begins[w] ≤ i < ends[w]."""
    for w in range(begins.size):
        for i in range(ends[w] - begins[w]):
            members[start[w] + i] = rows[begins[w] + i]


@kernel(
    types.void(INTS, INTS, *EDGES, types.int64, types.boolean, _INTS_OUT, _FLOATS_OUT, _INTS_OUT, _FLOATS_OUT),
    error_model="numpy",
)
def extended_bounds(
    offsets: Int,
    timestamps: Int,
    first: int,
    step: int,
    range_ms: int,
    lookback_ms: int,
    smoothed: bool,
    left: Int,
    left_share: Float,
    right: Int,
    right_share: Float,
) -> None:
    """Fill the bounds of anchored and smoothed windows (int64 and float64[n, steps]), as `difference_members` takes
    them. They are those of `extended.increases`. left[s, k] is -1 if a window has no value."""
    for s in range(left.shape[0]):
        begin = lo = hi = offsets[s]
        end = offsets[s + 1]
        for k in range(left.shape[1]):
            to_t = first + k * step
            from_t = to_t - range_ms
            lo, hi, before, after = next_window(timestamps, begin, end, lo, hi, to_t, range_ms, lookback_ms, smoothed)
            left_share[s, k] = right_share[s, k] = 0.0
            left[s, k] = lo - 1 if before else lo
            right[s, k] = hi - 1
            if hi == lo and not (before and after):
                left[s, k] = -1
                continue
            if before and smoothed and timestamps[lo - 1] < from_t:
                left_share[s, k] = (from_t - timestamps[lo - 1]) / (timestamps[lo] - timestamps[lo - 1])
            if after and timestamps[hi - 1] < to_t:
                right_share[s, k] = (to_t - timestamps[hi - 1]) / (timestamps[hi] - timestamps[hi - 1])


@kernel(types.void(FLOATS, FLOATS, INTS, INTS, INTS, INTS, INTS, INTS, types.boolean, _FLOATS), error_model="numpy")
def extrapolations(
    increase: Float,
    first_count: Float,
    first_t: Int,
    last_t: Int,
    samples: Int,
    from_t: Int,
    to_t: Int,
    zero_t: Int,
    counter: bool,
    factors: Float,
) -> None:
    """Fill factors[w] with the factor by which the increase between the first and last sample of window w grows."""
    for w in range(factors.size):
        factors[w] = extrapolation(
            increase[w], first_count[w], first_t[w], last_t[w], samples[w], from_t[w], to_t[w], zero_t[w], counter
        )
