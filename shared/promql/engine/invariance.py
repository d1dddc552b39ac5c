"""Finds subtrees whose value is the same at every step because of `@`. They are evaluated once and broadcast."""

from __future__ import annotations

import numpy as np

from shared.promql.ast import (
    Aggregate,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    Paren,
    Remote,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
    without_parens,
)
from shared.promql.engine.context import EvalContext
from shared.promql.functions import FUNCTIONS
from shared.promql.model import Matrix, Scalar, Value


def step_invariant(expr: Expr, context: EvalContext) -> bool:
    """Whether every step of `expr` has the same value; cached in the context for each node."""
    cached = context.invariant.get(id(expr))
    if cached is None:
        cached = context.invariant[id(expr)] = (expr, _step_invariant(expr, context))
    return cached[1]


def _step_invariant(expr: Expr, context: EvalContext) -> bool:
    match expr:
        case NumberLiteral() | StringLiteral():
            return True
        case VectorSelector() | Subquery():
            return expr.at is not None
        case MatrixSelector():
            return expr.vector.at is not None
        case Paren() | Unary():
            return step_invariant(expr.expr, context)
        case Binary():
            return step_invariant(expr.lhs, context) and step_invariant(expr.rhs, context)
        case Call():
            return _call(expr, context)
        case Aggregate():
            parameter = expr.param is None or step_invariant(expr.param, context)
            return parameter and step_invariant(expr.expr, context)
        case Remote():
            # Its value already covers the grid at this place in the tree.
            return False


def _call(call: Call, context: EvalContext) -> bool:
    signature = FUNCTIONS[call.func]
    if signature.of_samples and isinstance(selector := without_parens(call.args[0]), VectorSelector):
        return step_invariant(selector, context)
    # A function that orders warns about its use in a range query, which it would not notice if it were evaluated once.
    if signature.depends_on_time or signature.gives_order:
        return False
    return all(step_invariant(argument, context) for argument in call.args)


def broadcast(value: Value, steps: int, context: EvalContext) -> Value:
    """The value of one step, repeated."""
    if isinstance(value, Scalar):
        return Scalar(np.repeat(value.values, steps))
    if isinstance(value, Matrix):
        context.hold(value.labels.size * steps)
        values, present = np.repeat(value.values, steps, axis=1), np.repeat(value.present, steps, axis=1)
        return Matrix(value.labels, values, present, value.drop_name, value.histograms)
    return value
