"""Whole queries over one source of samples in one process, without planner and workers.

Used by tests and by `loadtest.bench.promql` only: queries over HTTP go by way of `coordinator.queries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.errors import BadData
from shared.labels import LabelFrame, Symbols
from shared.promql import parser, types
from shared.promql.ast import ValueType
from shared.promql.engine import rows
from shared.promql.engine.context import EvalContext
from shared.promql.engine.evaluator import evaluate
from shared.promql.engine.finishing import finish
from shared.promql.model import Annotations, Grid, Matrix, Scalar, Source, Value


@dataclass(frozen=True, slots=True)
class QueryResult:
    """`value` is finished; `samples_read` is how many samples were read, `samples_peak` how many were held at a
    time."""

    value: Value
    annotations: Annotations
    samples_read: int = 0
    samples_peak: int = 0


def instant(text: str, source: Source, time_ms: int, **options: Any) -> QueryResult:
    """Evaluate `text` at one time. `options` are fields of EvalContext (lookback_ms, samples_max, deadline …)."""
    return _run(text, source, Grid(time_ms, time_ms), options)


def range_query(text: str, source: Source, grid: Grid, **options: Any) -> QueryResult:
    """Evaluate `text` over `grid`; the series are sorted by label set, a scalar becomes a series without labels."""
    result = _run(text, source, grid, options, over_range=True)
    value = result.value
    if isinstance(value, Scalar):
        labels = LabelFrame(Symbols(), 1)
        values = value.values.reshape(1, -1)
        value = Matrix(labels, values, np.ones_like(values, dtype=np.bool_), np.zeros(1, dtype=np.bool_))
    if isinstance(value, Matrix):
        value = rows.take(value, value.labels.sort_order())
    return QueryResult(value, result.annotations, result.samples_read, result.samples_peak)


def _run(text: str, source: Source, grid: Grid, options: Mapping[str, Any], *, over_range: bool = False) -> QueryResult:
    expr = parser.resolve_durations(parser.parse(text), grid)
    kind = types.type_of(expr)
    if over_range and kind not in (ValueType.SCALAR, ValueType.VECTOR):
        named = "range vector" if kind is ValueType.MATRIX else "string"
        raise BadData(f'invalid expression type "{named}" for range query, must be Scalar or instant Vector')
    context = EvalContext(source, **{"symbols": Symbols(), **options}, query_grid=grid)
    value = finish(evaluate(expr, grid, context))
    return QueryResult(value, context.annotations, context.samples_read, context.samples_peak)
