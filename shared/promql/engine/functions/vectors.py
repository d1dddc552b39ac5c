"""Functions between scalars and vectors, and `absent`.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/functions/.
"""

from __future__ import annotations

import numpy as np

from shared.labels import METRIC_NAME, LabelFrame
from shared.promql.ast import Call, Expr, MatrixSelector, VectorSelector
from shared.promql.engine.context import EvalContext
from shared.promql.engine.functions.arguments import Function, bare, floats, scalar, vector
from shared.promql.engine.rows import without_empty
from shared.promql.model import Grid, Matrix, Scalar, Value


def _vector(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    values = scalar(call, args, 0).reshape(1, -1)
    return Matrix(
        LabelFrame(context.symbols, 1), values, np.ones(values.shape, dtype=np.bool_), np.zeros(1, dtype=np.bool_)
    )


def _scalar(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    """The value of the only sample; NaN at steps at which there is no sample, or more than one."""
    matrix = floats(call, args)
    values = np.full(grid.steps, np.nan)
    if matrix.labels.size:
        is_single = matrix.present.sum(axis=0) == 1
        row = matrix.present.argmax(axis=0)
        values[is_single] = matrix.values[row, np.arange(grid.steps)][is_single]
    return Scalar(values)


def absent_labels(expr: Expr) -> dict[str, str]:
    """The labels that a missing series would have: those that an instant or range selector matches by one `=` and no
    other matcher. Any other expression gives no labels."""
    selector = bare(expr)
    if isinstance(selector, MatrixSelector):
        selector = selector.vector
    if not isinstance(selector, VectorSelector):
        return {}
    labels: dict[str, str] = {}
    equal: set[str] = set()
    for matcher in selector.matchers:
        if matcher.name == METRIC_NAME:
            continue
        if matcher.op == "=" and matcher.name not in equal:
            labels[matcher.name] = matcher.value
            equal.add(matcher.name)
        else:
            labels.pop(matcher.name, None)
    return labels


def _absent(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    """1 at the steps at which the vector is empty."""
    missing = ~vector(call, args).present.any(axis=0).reshape(1, -1)
    labels = LabelFrame.of([absent_labels(call.args[0])], context.symbols)
    return without_empty(Matrix(labels, np.ones(missing.shape), missing, np.zeros(1, dtype=np.bool_)))


FUNCTIONS: dict[str, Function] = {"vector": _vector, "scalar": _scalar, "absent": _absent}
