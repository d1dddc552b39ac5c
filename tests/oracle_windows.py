"""The oracle's functions of range vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

from tests.oracle_values import OracleError, Point, Sample, Series, Value

KEEP_NAME = {"last_over_time", "first_over_time"}


def call(name: str, args: Sequence[Value], time_ms: int) -> list[Sample]:
    """Apply a function to each series; a series with too few points gives nothing."""
    series_list = next(arg for arg in args if isinstance(arg, list))
    params = [arg for arg in args if isinstance(arg, float)]
    found = []
    for series in series_list:
        assert isinstance(series, Series)
        value = FUNCTIONS[name](series, params, time_ms)
        if value is not None:
            found.append(Sample(series.labels, value, drop_name=series.drop_name or name not in KEEP_NAME))
    return found


# Sums and quantiles, shared with the aggregations


def total(values: Sequence[float]) -> float:
    """The exact sum, rounded once."""
    if any(math.isnan(v) for v in values) or {math.inf, -math.inf} <= set(values):
        return math.nan
    infinite = [v for v in values if math.isinf(v)]
    if infinite:
        return infinite[0]
    return _rounded(sum((Fraction(v) for v in values), Fraction(0)))


def mean(values: Sequence[float]) -> float:
    sum_ = total(values)
    if math.isnan(sum_) or any(math.isinf(v) for v in values):
        return sum_
    return _rounded(sum((Fraction(v) for v in values), Fraction(0)) / len(values))


def _rounded(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def variance(values: Sequence[float]) -> float:
    """Of the population; NaN where any value is not finite."""
    if not all(math.isfinite(v) for v in values):
        return math.nan
    exact = [Fraction(v) for v in values]
    middle = sum(exact, Fraction(0)) / len(exact)
    return _rounded(sum(((v - middle) ** 2 for v in exact), Fraction(0)) / len(exact))


def quantile(q: float, values: Sequence[float]) -> float:
    """Linear interpolation between the closest ranks; NaN counts as the smallest value."""
    if not values or math.isnan(q):
        return math.nan
    if q < 0:
        return -math.inf
    if q > 1:
        return math.inf
    ordered = sorted(values, key=lambda v: (not math.isnan(v), v))
    rank = q * (len(ordered) - 1)
    lower = math.floor(rank)
    upper = min(len(ordered) - 1, lower + 1)
    weight = rank - lower
    return ordered[lower] * (1 - weight) + ordered[upper] * weight


def lowest(values: Sequence[float]) -> float:
    """The minimum; NaN only where everything is NaN."""
    return min((v for v in values if not math.isnan(v)), default=math.nan)


def highest(values: Sequence[float]) -> float:
    return max((v for v in values if not math.isnan(v)), default=math.nan)


# Counters and gauges


def _difference(points: Sequence[Point], counter: bool) -> float:
    """Last minus first; for a counter, with what was lost at its resets added."""
    difference = points[-1][1] - points[0][1]
    if counter:
        difference += sum(before for (_, before), (_, after) in pairwise(points) if after < before)
    return difference


def interpolated(points: Sequence[Point], time_ms: int, reach_ms: int, counter: bool = False) -> float | None:
    """A `smoothed` value: on the line between the neighbours; the one before where there is none after."""
    before = [p for p in points if time_ms - reach_ms < p[0] <= time_ms]
    after = [p for p in points if time_ms < p[0] <= time_ms + reach_ms]
    if not before:
        return None
    if before[-1][0] == time_ms or not after:
        return before[-1][1]
    (t0, v0), (t1, v1) = before[-1], after[0]
    if counter and v1 < v0:
        v0 = 0.0
    return v0 + (v1 - v0) * (time_ms - t0) / (t1 - t0)


def _bounded(series: Series, counter: bool) -> list[Point]:
    """The points of an extended selector, with its values at the window's edges."""
    if series.mode == "anchored":
        return [*series.before[-1:], *series.points] if series.points else []
    around = [*series.before, *series.points, *series.after]
    reach = 1 << 60
    left = interpolated(around, series.start_ms, reach, counter)
    right = interpolated(around, series.end_ms, reach, counter)
    if not series.points and not (series.before and series.after):
        return []
    start = [(series.start_ms, left)] if left is not None else []
    end = (
        [(series.end_ms, right)]
        if right is not None and (not series.points or series.points[-1][0] < series.end_ms)
        else []
    )
    return [*start, *series.points, *end]


def _extended(series: Series, counter: bool, per_second: bool) -> float | None:
    points = _bounded(series, counter)
    if not points:
        return None
    return _difference(points, counter) / ((series.end_ms - series.start_ms) / 1000 if per_second else 1)


def _extrapolated(series: Series, counter: bool, per_second: bool) -> float | None:
    """Rate, increase and delta: the difference within the window, stretched towards its edges."""
    if series.mode != "plain":
        return _extended(series, counter, per_second)
    points = series.points
    if len(points) < 2:
        return None
    difference = _difference(points, counter)
    sampled = (points[-1][0] - points[0][0]) / 1000
    average_gap = sampled / (len(points) - 1)
    to_start = (points[0][0] - series.start_ms) / 1000
    to_end = (series.end_ms - points[-1][0]) / 1000
    if to_start >= average_gap * 1.1:
        to_start = average_gap / 2
    if to_end >= average_gap * 1.1:
        to_end = average_gap / 2
    if counter and difference > 0 and points[0][1] >= 0:
        to_start = min(to_start, sampled * (points[0][1] / difference))
    stretched = difference * ((sampled + to_start + to_end) / sampled)
    return stretched / ((series.end_ms - series.start_ms) / 1000) if per_second else stretched


def _last_two(series: Series, rate: bool) -> float | None:
    if len(series.points) < 2:
        return None
    (t0, before), (t1, after) = series.points[-2:]
    if not rate:
        return after - before
    return (after if after < before else after - before) / ((t1 - t0) / 1000)


def _counted(series: Series, differs: Callable[[float, float], bool]) -> float | None:
    if not series.points:
        return None
    points = [*series.before[-1:], *series.points] if series.mode == "anchored" else series.points
    return float(sum(differs(before, after) for (_, before), (_, after) in pairwise(points)))


def _changed(before: float, after: float) -> bool:
    return before != after and not (math.isnan(before) and math.isnan(after))


# Regressions


def regression(points: Sequence[Point], origin_ms: int) -> tuple[float, float]:
    """(slope per second, value at `origin_ms`) of the least-squares line."""
    values = [v for _, v in points]
    if all(v == values[0] for v in values):
        return (math.nan, math.nan) if math.isinf(values[0]) else (0.0, values[0])
    if not all(math.isfinite(v) for v in values):
        return math.nan, math.nan
    xs = [Fraction(t - origin_ms, 1000) for t, _ in points]
    ys = [Fraction(v) for v in values]
    n = len(points)
    x_sum, y_sum = sum(xs, Fraction(0)), sum(ys, Fraction(0))
    covariance = sum((x * y for x, y in zip(xs, ys, strict=True)), Fraction(0)) - x_sum * y_sum / n
    slope = covariance / (sum((x * x for x in xs), Fraction(0)) - x_sum**2 / n)
    return _rounded(slope), _rounded(y_sum / n - slope * x_sum / n)


def _deriv(series: Series, params: Sequence[float], time_ms: int) -> float | None:
    return regression(series.points, series.points[0][0])[0] if len(series.points) > 1 else None


def _predict_linear(series: Series, params: Sequence[float], time_ms: int) -> float | None:
    if len(series.points) < 2:
        return None
    slope, value = regression(series.points, time_ms)
    return slope * params[0] + value


def _smoothing(series: Series, params: Sequence[float], time_ms: int) -> float | None:
    level_factor, trend_factor = params
    if not (0 < level_factor < 1 and 0 < trend_factor < 1):
        raise OracleError("smoothing and trend factors must be between 0 and 1")
    if len(series.points) < 2:
        return None
    values = [v for _, v in series.points]
    before, level, trend = 0.0, values[0], values[1] - values[0]
    for i, value in enumerate(values[1:]):
        if i > 0:
            trend = trend_factor * (level - before) + (1 - trend_factor) * trend
        before, level = level, level_factor * value + (1 - level_factor) * (level + trend)
    return level


# One value for each window


def _of_values(function: Callable[[list[float]], float]) -> Callable[[Series, Sequence[float], int], float | None]:
    return lambda series, params, time_ms: function([v for _, v in series.points]) if series.points else None


def _median_deviation(values: list[float]) -> float:
    if any(math.isnan(v) for v in values):
        return math.nan
    middle = quantile(0.5, values)
    return quantile(0.5, [abs(v - middle) for v in values])


def _time_of(pick: Callable[[list[float]], float]) -> Callable[[Series, Sequence[float], int], float | None]:
    """When the picked value was last seen, in seconds; the last time of all where everything is NaN."""

    def function(series: Series, params: Sequence[float], time_ms: int) -> float | None:
        if not series.points:
            return None
        best = pick([v for _, v in series.points])
        times = [t for t, v in series.points if v == best]
        return (times[-1] if times else series.points[-1][0]) / 1000

    return function


FUNCTIONS: dict[str, Callable[[Series, Sequence[float], int], float | None]] = {
    "rate": lambda s, p, t: _extrapolated(s, counter=True, per_second=True),
    "increase": lambda s, p, t: _extrapolated(s, counter=True, per_second=False),
    "delta": lambda s, p, t: _extrapolated(s, counter=False, per_second=False),
    "irate": lambda s, p, t: _last_two(s, rate=True),
    "idelta": lambda s, p, t: _last_two(s, rate=False),
    "changes": lambda s, p, t: _counted(s, _changed),
    "resets": lambda s, p, t: _counted(s, lambda before, after: after < before),
    "deriv": _deriv,
    "predict_linear": _predict_linear,
    "double_exponential_smoothing": _smoothing,
    "sum_over_time": _of_values(total),
    "avg_over_time": _of_values(mean),
    "count_over_time": _of_values(lambda values: float(len(values))),
    "min_over_time": _of_values(lowest),
    "max_over_time": _of_values(highest),
    "stddev_over_time": _of_values(lambda values: math.sqrt(variance(values))),
    "stdvar_over_time": _of_values(variance),
    "last_over_time": _of_values(lambda values: values[-1]),
    "first_over_time": _of_values(lambda values: values[0]),
    "present_over_time": _of_values(lambda values: 1.0),
    "mad_over_time": _of_values(_median_deviation),
    "quantile_over_time": lambda s, p, t: quantile(p[0], [v for _, v in s.points]) if s.points else None,
    "ts_of_last_over_time": lambda s, p, t: s.points[-1][0] / 1000 if s.points else None,
    "ts_of_first_over_time": lambda s, p, t: s.points[0][0] / 1000 if s.points else None,
    "ts_of_max_over_time": _time_of(highest),
    "ts_of_min_over_time": _time_of(lowest),
}
