"""Extrapolation of an increase to the bounds of its window, as in Prometheus.

Source: https://prometheus.io/docs/prometheus/latest/querying/functions/#rate. All times are in ms, which cancel out.
"""

from __future__ import annotations

from shared.kernels import inlined, kernel, types


@inlined(error_model="numpy")
def _is_far(distance: float, interval: float, gaps: float) -> bool:
    """Whether a distance is at least 1.1 times the average gap of `gaps` gaps in an interval."""
    # Products of whole numbers are exact, and cheaper than quotients. If they are equal, the result is that of rounding
    # in the source's formula, which is in seconds.
    left, right = 10.0 * distance * gaps, 11.0 * interval
    if left != right:
        return left > right
    return distance / 1000.0 >= interval / 1000.0 / gaps * 1.1


@inlined(error_model="numpy")
def reach(first_t: int, last_t: int, samples: int, from_t: int, to_t: int, zero_t: int) -> tuple[float, float, float]:
    """(the time between the first and the last sample, how far the increase is extrapolated before the first, how far
    after the last). If `zero_t` is later than the window's start, it takes the place of the first sample's time."""
    to_start = float(first_t - from_t)
    to_end = float(to_t - last_t)
    interval = float(last_t - first_t)
    gaps = float(max(samples - 1, 1))
    is_far_from_start, is_far_from_end = _is_far(to_start, interval, gaps), _is_far(to_end, interval, gaps)
    half_average = 0.0
    if is_far_from_start or is_far_from_end:
        half_average = interval / gaps / 2
    if zero_t > from_t:
        interval = float(last_t - zero_t)
        to_start = 0.0
    elif is_far_from_start:
        to_start = half_average
    if is_far_from_end:
        to_end = half_average
    return interval, to_start, to_end


@inlined(error_model="numpy")
def limited_start(result: float, first_value: float, interval: float, to_start: float) -> float:
    """How far before its first sample a counter is extrapolated: not below zero."""
    if result > 0 and first_value >= 0 and interval * first_value < to_start * result:
        return min(to_start, interval * (first_value / result))
    return to_start


@inlined(error_model="numpy")
def factor(interval: float, to_start: float, to_end: float) -> float:
    """The factor by which the increase grows."""
    return (interval + to_start + to_end) / interval


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
    window's bounds.

    A counter is not extrapolated below zero. `zero_t` > `from_t` is a time at which the counter is known to have been
    zero; `result` is then the increase since that time.
    """
    interval, to_start, to_end = reach(first_t, last_t, samples, from_t, to_t, zero_t)
    if counter:
        to_start = limited_start(result, first_value, interval, to_start)
    return factor(interval, to_start, to_end)
