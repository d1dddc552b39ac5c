"""Whole queries in one process, and the last step of every evaluation: dropping names and refusing duplicates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.errors import BadData, NotExecutable
from shared.labels import LabelFrame, Symbols
from shared.promql import parser, types
from shared.promql.ast import ValueType
from shared.promql.engine import rows
from shared.promql.engine.context import EvalContext
from shared.promql.engine.evaluator import evaluate
from shared.promql.model import METADATA_LABELS, Annotations, Bool, Grid, Matrix, RangeVector, Scalar, Source, Value


@dataclass(frozen=True, slots=True)
class QueryResult:
    """`value` is finished; `samples_read` is how many samples were touched."""

    value: Value
    annotations: Annotations
    samples_read: int = 0


def finish(value: Value, grid: Grid) -> Value:
    """Remove the metric names that operators have dropped, and series without a sample.

    Series that became equal are merged where no step has both. Raises NotExecutable where one has.
    """
    if isinstance(value, Matrix):
        return _finish_matrix(value)
    if isinstance(value, RangeVector):
        labels = without_dropped_names(value.labels, value.drop_name)
        _, first = labels.unique()
        if len(first) != labels.size:
            raise NotExecutable(rows.SAME_LABELS)
        return RangeVector(labels, value.samples, np.zeros(labels.size, dtype=np.bool_))
    return value


def without_dropped_names(labels: LabelFrame, drop_name: Bool) -> LabelFrame:
    """`labels` without name (and type and unit, which belong to it) where `drop_name` says so."""
    if not drop_name.any():
        return labels
    if drop_name.all():
        return labels.without(METADATA_LABELS)
    for name in METADATA_LABELS:
        if name in labels.columns:
            labels = labels.with_column(name, np.where(drop_name, np.int32(0), labels.columns[name]))
    return labels


def _finish_matrix(matrix: Matrix) -> Matrix:
    matrix = rows.without_empty(matrix)
    labels = without_dropped_names(matrix.labels, matrix.drop_name)
    return rows.united(Matrix(labels, matrix.values, matrix.present, np.zeros(labels.size, dtype=np.bool_)))


def instant(text: str, source: Source, time_ms: int, **options: Any) -> QueryResult:
    """Evaluate `text` at one time. `options` are fields of EvalContext (lookback_ms, samples_left, deadline …)."""
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
    return QueryResult(value, result.annotations, result.samples_read)


def _run(text: str, source: Source, grid: Grid, options: Mapping[str, Any], *, over_range: bool = False) -> QueryResult:
    expr = parser.resolve_durations(parser.parse(text), grid)
    kind = types.type_of(expr)
    if over_range and kind not in (ValueType.SCALAR, ValueType.VECTOR):
        named = "range vector" if kind is ValueType.MATRIX else "string"
        raise BadData(f'invalid expression type "{named}" for range query, must be Scalar or instant Vector')
    context = EvalContext(source, **{"symbols": Symbols(), **options}, query_grid=grid)
    value = finish(evaluate(expr, grid, context), grid)
    return QueryResult(value, context.annotations, context.samples_read)
