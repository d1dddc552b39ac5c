"""Functions of time: the evaluation's own times, samples' timestamps, and the parts of a date (UTC).

Semantics: https://prometheus.io/docs/prometheus/latest/querying/functions/.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shared.labels import LabelFrame
from shared.promql.ast import Call
from shared.promql.engine.context import EvalContext
from shared.promql.engine.functions.arguments import Function, floats, vector
from shared.promql.engine.functions.math import mapped
from shared.promql.engine.rows import no_series
from shared.promql.model import Float, Grid, Matrix, Scalar, Value

Seconds = NDArray[np.datetime64]

DATES_AT_ONCE = 1 << 20
"""Dates computed between two checks of the deadline: about 0.15 s."""

DATE_MAX_S = 1e15
"""Dates are computed within 30 million years of 1970; beyond that, and for NaN, the result is NaN."""


def _time(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    return Scalar(grid.times_ms() / 1000.0)


def _constant(seconds: Callable[[Grid], float]) -> Function:
    def evaluate(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
        return Scalar(np.full(grid.steps, seconds(context.query_grid)))

    return evaluate


def _timestamp(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    """The evaluation time, for a vector that is not a selector. For selectors, see `scan.sample_times`."""
    matrix = vector(call, args)
    return mapped(matrix, np.broadcast_to(grid.times_ms() / 1000.0, matrix.values.shape).copy())


def _start_timestamp(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    """The empty vector: only the samples of a selector have start timestamps."""
    return no_series(context.symbols, grid.steps)


def _date(part: Callable[[Seconds], NDArray[np.int64]]) -> Function:
    def evaluate(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
        if args:
            matrix = floats(call, args)
        else:
            now = (grid.times_ms() / 1000.0).reshape(1, -1)
            matrix = Matrix(
                LabelFrame(context.symbols, 1), now, np.ones(now.shape, dtype=np.bool_), np.zeros(1, dtype=np.bool_)
            )
        return mapped(matrix, _parts_of(matrix.values, part, context))

    return evaluate


def _parts_of(values: Float, part: Callable[[Seconds], NDArray[np.int64]], context: EvalContext) -> Float:
    """`_part_of` of values[series, steps]. The deadline is checked between slices."""
    parts = np.empty(values.shape)
    rows_at_once = max(1, DATES_AT_ONCE // max(1, values.shape[1]))
    for first in range(0, len(values), rows_at_once):
        context.check()
        rows = slice(first, first + rows_at_once)
        parts[rows] = _part_of(values[rows], part)
    return parts


def _part_of(values: Float, part: Callable[[Seconds], NDArray[np.int64]]) -> Float:
    is_in_range = np.abs(values) <= DATE_MAX_S
    seconds = np.where(is_in_range, values, 0.0).astype(np.int64).astype("datetime64[s]")
    return np.where(is_in_range, part(seconds).astype(np.float64), np.nan)


def _days(times: Seconds, unit: str) -> NDArray[np.int64]:
    """The day number of the first day of each time's month ("M") or year ("Y")."""
    return times.astype(f"datetime64[{unit}]").astype("datetime64[D]").astype(np.int64)


def _day(times: Seconds) -> NDArray[np.int64]:
    return times.astype("datetime64[D]").astype(np.int64)


def _month(times: Seconds) -> NDArray[np.int64]:
    return times.astype("datetime64[M]").astype(np.int64)


def _days_in_month(times: Seconds) -> NDArray[np.int64]:
    months = times.astype("datetime64[M]")
    return ((months + 1).astype("datetime64[D]") - months.astype("datetime64[D]")).astype(np.int64)


THURSDAY = 4
"""The day of the week of 1970-01-01, Sunday being 0."""

FUNCTIONS: dict[str, Function] = {
    "time": _time,
    "start": _constant(lambda query: query.start_ms / 1000.0),
    "end": _constant(lambda query: query.end_ms / 1000.0),
    "range": _constant(lambda query: (query.end_ms - query.start_ms) / 1000.0),
    "step": _constant(lambda query: query.step_ms / 1000.0),
    "timestamp": _timestamp,
    "start_timestamp": _start_timestamp,
    "minute": _date(lambda times: times.astype(np.int64) // 60 % 60),
    "hour": _date(lambda times: times.astype(np.int64) // 3600 % 24),
    "day_of_week": _date(lambda times: (_day(times) + THURSDAY) % 7),
    "day_of_month": _date(lambda times: _day(times) - _days(times, "M") + 1),
    "day_of_year": _date(lambda times: _day(times) - _days(times, "Y") + 1),
    "days_in_month": _date(_days_in_month),
    "month": _date(lambda times: _month(times) % 12 + 1),
    "year": _date(lambda times: times.astype("datetime64[Y]").astype(np.int64) + 1970),
}
