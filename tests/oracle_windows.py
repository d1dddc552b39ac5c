"""The oracle's functions of range vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from tests.oracle_counters import change_over, changed, counted, last_two, restarts
from tests.oracle_folds import added_up, deviation, highest, lowest, parted, quantile, rounded, variance
from tests.oracle_native_histograms import NativeHistogram
from tests.oracle_values import Number, OracleError, Point, Remarks, Sample, Series, Value, of_metric

KEEP_NAME = {"last_over_time", "first_over_time"}
Function = Callable[[Series, Sequence[float], int, Remarks], Number | None]


def call(name: str, args: Sequence[Value], time_ms: int, remarks: Remarks | None = None) -> list[Sample]:
    """Apply a function to each series; a series with too few points gives nothing."""
    series_list = next(arg for arg in args if isinstance(arg, list))
    params = [arg for arg in args if isinstance(arg, float)]
    found = []
    for series in series_list:
        assert isinstance(series, Series)
        value = FUNCTIONS[name](series, params, time_ms, remarks or Remarks())
        if value is not None:
            found.append(Sample(series.labels, value, drop_name=series.drop_name or name not in KEEP_NAME))
    return found


# Regressions


def regression(points: Sequence[Point], origin_ms: int) -> tuple[float, float]:
    """(slope per second, value at `origin_ms`) of the least-squares line."""
    values = _floats(points)
    if all(v == values[0] for v in values):
        return (math.nan, math.nan) if math.isinf(values[0]) else (0.0, values[0])
    if not all(math.isfinite(v) for v in values):
        return math.nan, math.nan
    xs = [Fraction(point.time_ms - origin_ms, 1000) for point in points]
    ys = [Fraction(v) for v in values]
    n = len(points)
    x_sum, y_sum = sum(xs, Fraction(0)), sum(ys, Fraction(0))
    covariance = sum((x * y for x, y in zip(xs, ys, strict=True)), Fraction(0)) - x_sum * y_sum / n
    slope = covariance / (sum((x * x for x in xs), Fraction(0)) - x_sum**2 / n)
    return rounded(slope), rounded(y_sum / n - slope * x_sum / n)


def _deriv(series: Series, params: Sequence[float], time_ms: int) -> float | None:
    return regression(series.points, series.points[0].time_ms)[0] if len(series.points) > 1 else None


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
    values = _floats(series.points)
    before, level, trend = 0.0, values[0], values[1] - values[0]
    for i, value in enumerate(values[1:]):
        if i > 0:
            trend = trend_factor * (level - before) + (1 - trend_factor) * trend
        before, level = level, level_factor * value + (1 - level_factor) * (level + trend)
    return level


# One value for each window


def _floats(points: Sequence[Point]) -> list[float]:
    return parted([point.value for point in points])[0]


def _of_floats(function: Callable[[Series, Sequence[float], int], float | None]) -> Function:
    """Histograms are ignored, which is said where there are floats beside them."""

    def call(series: Series, params: Sequence[float], time_ms: int, remarks: Remarks) -> Number | None:
        kept = [point for point in series.points if not isinstance(point.value, NativeHistogram)]
        if kept and len(kept) < len(series.points):
            remarks.info("ignored histograms in a range containing both floats and histograms" + of_metric(series.name))
        return function(replace(series, points=kept), params, time_ms)

    return call


def _of_values(function: Callable[[list[float]], float]) -> Function:
    return _of_floats(lambda series, params, time_ms: function(_floats(series.points)) if series.points else None)


def _of_points(function: Callable[[list[Point]], Number]) -> Function:
    return lambda series, params, time_ms, remarks: function(series.points) if series.points else None


def _sum_or_mean(how: str) -> Function:
    def call(series: Series, params: Sequence[float], time_ms: int, remarks: Remarks) -> Number | None:
        values = [point.value for point in series.points]
        return added_up(how, values, remarks, series.name, f'metric name "{series.name}"') if values else None

    return call


def _median_deviation(values: list[float]) -> float:
    if any(math.isnan(v) for v in values):
        return math.nan
    middle = quantile(0.5, values)
    return quantile(0.5, [abs(v - middle) for v in values])


def _time_of(pick: Callable[[list[float]], float]) -> Function:
    """When the picked value was last seen, in seconds; the last time of all where everything is NaN."""

    def function(series: Series, params: Sequence[float], time_ms: int) -> float | None:
        if not series.points:
            return None
        best = pick(_floats(series.points))
        times = [point.time_ms for point in series.points if point.value == best]
        return (times[-1] if times else series.points[-1].time_ms) / 1000

    return _of_floats(function)


FUNCTIONS: dict[str, Function] = {
    "rate": lambda s, p, t, r: change_over(s, r, counter=True, per_second=True),
    "increase": lambda s, p, t, r: change_over(s, r, counter=True, per_second=False),
    "delta": lambda s, p, t, r: change_over(s, r, counter=False, per_second=False),
    "irate": lambda s, p, t, r: last_two(s, r, rate=True),
    "idelta": lambda s, p, t, r: last_two(s, r, rate=False),
    "changes": lambda s, p, t, r: counted(s, changed),
    "resets": lambda s, p, t, r: counted(s, restarts),
    "deriv": _of_floats(_deriv),
    "predict_linear": _of_floats(_predict_linear),
    "double_exponential_smoothing": _of_floats(_smoothing),
    "sum_over_time": _sum_or_mean("sum"),
    "avg_over_time": _sum_or_mean("avg"),
    "count_over_time": _of_points(lambda points: float(len(points))),
    "present_over_time": _of_points(lambda points: 1.0),
    "last_over_time": _of_points(lambda points: points[-1].value),
    "first_over_time": _of_points(lambda points: points[0].value),
    "ts_of_last_over_time": _of_points(lambda points: points[-1].time_ms / 1000),
    "ts_of_first_over_time": _of_points(lambda points: points[0].time_ms / 1000),
    "min_over_time": _of_values(lowest),
    "max_over_time": _of_values(highest),
    "stddev_over_time": _of_values(deviation),
    "stdvar_over_time": _of_values(variance),
    "mad_over_time": _of_values(_median_deviation),
    "quantile_over_time": _of_floats(lambda s, p, t: quantile(p[0], _floats(s.points)) if s.points else None),
    "ts_of_max_over_time": _time_of(highest),
    "ts_of_min_over_time": _time_of(lowest),
}
