"""Aggregation operators over an instant vector, evaluated in one place."""

from __future__ import annotations

from shared.promql.ast import Aggregate
from shared.promql.engine.context import EvalContext
from shared.promql.engine.partial import merge, partial
from shared.promql.model import Grid, Matrix, Value


def evaluate_aggregate(node: Aggregate, value: Matrix, param: Value | None, grid: Grid, context: EvalContext) -> Matrix:
    """`op by|without (…) (param, value)` at every step: an instant vector of groups, or of series for topk and the
    like.

    Raises NotExecutable for an invalid parameter (NaN, beyond int64, not a label name).
    """
    return merge(node, [partial(node, value, param, grid, context)], param, grid, context)
