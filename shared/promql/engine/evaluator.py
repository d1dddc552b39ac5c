"""Evaluates the tree: each node's value over a grid of evaluation times, as columns.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/basics/. This module only decides which module computes
a node, and evaluates the operands that it needs. Other modules evaluate a subtree only through a function that is
passed to them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from shared.errors import BadData, Internal, NotExecutable
from shared.histograms import operators
from shared.histograms.references import is_reference
from shared.promql.ast import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Matching,
    MatrixSelector,
    NumberLiteral,
    Remote,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
    children,
    without_parens,
)
from shared.promql.engine import batches, binary, partial, range_vectors, scan, smoothed
from shared.promql.engine.aggregate import evaluate_aggregate
from shared.promql.engine.context import EvalContext
from shared.promql.engine.functions import INSTANT_FUNCTIONS
from shared.promql.engine.histogram_ranges import SUMS
from shared.promql.engine.invariance import broadcast, step_invariant
from shared.promql.engine.partial import Partial
from shared.promql.engine.range_functions import evaluate_range_function, range_argument
from shared.promql.engine.range_vectors import RangeSeries
from shared.promql.engine.subquery import inner_grid
from shared.promql.functions import FUNCTIONS
from shared.promql.model import Grid, Matrix, RangeVector, Scalar, String, Value, cells

OF_STATISTICS = frozenset({"histogram_avg", "histogram_count", "histogram_sum"})
OF_BUCKETS = frozenset({"histogram_fraction", "histogram_quantile", "histogram_quantiles"})


def evaluate(expr: Expr, grid: Grid, context: EvalContext) -> Value:
    """The value of `expr` at every time of `grid`.

    A range vector has a value only if the grid is one instant. A subtree that is the same at every step because of `@`
    is evaluated once. Raises NotExecutable, BadData, DeadlineExceeded.
    """
    context.check()
    expr = without_parens(expr)
    if isinstance(expr, Remote):
        return context.remote[expr.index]  # has counted as held since it was received
    started = 0.0 if context.node_seconds is None else time.perf_counter()
    held_before = context.samples_held
    if grid.steps > 1 and not isinstance(expr, NumberLiteral | StringLiteral) and step_invariant(expr, context):
        instant = Grid(grid.start_ms, grid.start_ms, grid.step_ms)
        value = broadcast(_evaluate(expr, instant, context), grid.steps, context)
    else:
        value = _evaluate(expr, grid, context)
    context.keep(held_before, cells(value))
    if context.node_seconds is not None:
        context.node_seconds[id(expr)] = context.node_seconds.get(id(expr), 0.0) + time.perf_counter() - started
    return value


def _evaluate(expr: Expr, grid: Grid, context: EvalContext) -> Value:
    match expr:
        case NumberLiteral():
            return Scalar(np.full(grid.steps, expr.value))
        case StringLiteral():
            return String(expr.value)
        case VectorSelector():
            return (smoothed if expr.smoothed else scan).instant_vector(expr, grid, context)
        case MatrixSelector() | Subquery():
            return _range_vector(expr, grid, context)
        case Unary():
            return _unary(expr, evaluate(expr.expr, grid, context))
        case Binary():
            lhs = evaluate(expr.lhs, grid, context)
            return binary.evaluate_binary(expr, lhs, evaluate(expr.rhs, grid, context), grid, context)
        case Call():
            return _call(expr, grid, context)
        case Aggregate():
            return _aggregate(expr, grid, context)
    raise Internal(f"{type(expr).__name__} reached the evaluator")


def evaluate_vector(expr: Expr, grid: Grid, context: EvalContext) -> Matrix:
    """`evaluate` for an expression that the type check found to be an instant vector."""
    value = evaluate(expr, grid, context)
    if not isinstance(value, Matrix):
        raise NotExecutable(f"expected an instant vector, got a {type(value).__name__.lower()}")
    return value


def evaluate_scalar(expr: Expr, grid: Grid, context: EvalContext) -> Scalar:
    """`evaluate` for an expression that the type check found to be a scalar."""
    value = evaluate(expr, grid, context)
    if not isinstance(value, Scalar):
        raise NotExecutable(f"expected a scalar, got a {type(value).__name__.lower()}")
    return value


def evaluate_partial(node: Aggregate, grid: Grid, context: EvalContext) -> Partial:
    """The partial form of an aggregation over this source's series."""
    param = _param(node, grid, context)
    return batches.combined(node, param, grid, context, evaluate_vector)


def _aggregate(node: Aggregate, grid: Grid, context: EvalContext) -> Matrix:
    """The value of an aggregation, computed from partials if its series come in batches."""
    if batches.batched_selector(node) is not None:
        param = _param(node, grid, context)
        combined = batches.combined(node, param, grid, context, evaluate_vector)
        return partial.merge(node, [combined], param, grid, context)
    value = evaluate_vector(node.expr, grid, context)
    return evaluate_aggregate(node, value, _param(node, grid, context), grid, context)


def _param(node: Aggregate, grid: Grid, context: EvalContext) -> Scalar | String | None:
    if node.param is None:
        return None
    value = evaluate(node.param, grid, context)
    assert isinstance(value, Scalar | String), "the type check admits scalars and strings as parameters"
    return value


def _range_vector(node: MatrixSelector | Subquery, grid: Grid, context: EvalContext) -> RangeVector:
    if grid.steps != 1:
        raise BadData('invalid expression type "range vector" for range query, must be Scalar or instant Vector')
    return range_vectors.first_windows(_range_series(node, grid, context, is_kept=True))


def _range_series(
    node: MatrixSelector | Subquery, grid: Grid, context: EvalContext, *, is_kept: bool = False
) -> RangeSeries:
    """The series of a range selector or subquery. `is_kept`: their samples are the result, so they stay held. Raises
    NotExecutable if one series over the inner grid of a subquery is more than the query may hold."""
    if isinstance(node, MatrixSelector):
        return range_vectors.of_selector(node, grid, context, is_kept=is_kept)
    inner = inner_grid(node, grid, context)
    context.require(inner.steps)
    with _finding_resets(False, context):
        value = evaluate(node.expr, inner, context)
    return range_vectors.of_subquery(node, value, inner, grid, context)


def _unary(node: Unary, value: Value) -> Value:
    if node.op == "+":
        return value
    if isinstance(value, Scalar):
        return Scalar(-value.values)
    if isinstance(value, Matrix):
        return _negated(value)
    raise NotExecutable(f"unary minus is defined on scalars and instant vectors, not on a {type(value).__name__}")


def _negated(value: Matrix) -> Matrix:
    dropped = np.ones_like(value.drop_name)
    if value.histograms is None:
        return Matrix(value.labels, -value.values, value.present, dropped)
    values = np.where(is_reference(value.values), value.values, -value.values)
    histograms = operators.scaled(value.histograms, np.full(len(value.histograms), -1.0))
    return Matrix(value.labels, values, value.present, dropped, histograms)


def _call(node: Call, grid: Grid, context: EvalContext) -> Value:
    signature = FUNCTIONS.get(node.func)
    if signature is None:
        raise Internal(f"function {node.func} has no implementation")
    if signature.of_samples and node.args:
        selector = without_parens(node.args[0])
        if isinstance(selector, VectorSelector):
            return (smoothed if selector.smoothed else scan).sample_times(node.func, selector, grid, context)
    if signature.takes_range:
        return _range_call(node, grid, context)
    with _finding_resets(finds_resets(node, context.finds_resets), context):
        arguments = [evaluate(argument, grid, context) for argument in node.args[: signature.unevaluated_from]]
    return INSTANT_FUNCTIONS[node.func](node, arguments, grid, context)


@contextmanager
def _finding_resets(finds: bool, context: EvalContext) -> Iterator[None]:
    """Sets `EvalContext.finds_resets` while a subtree is evaluated, and restores it afterwards."""
    outer, context.finds_resets = context.finds_resets, finds
    try:
        yield
    finally:
        context.finds_resets = outer


def finds_resets(node: Call, outer: bool) -> bool:
    """`EvalContext.finds_resets` for the arguments of a call; `outer` is its value for the call itself."""
    if node.func in OF_STATISTICS:
        return _adds_up(node)
    return outer and node.func not in OF_BUCKETS


def _adds_up(expr: Expr) -> bool:
    """Whether the expression adds up histograms, whose reset hints may therefore contradict each other."""
    match expr:
        case Aggregate() | Binary(op="+" | "-", matching=Matching()):
            return True
        case Call() if expr.func in SUMS:
            return True
    return any(map(_adds_up, children(expr)))


def _range_call(node: Call, grid: Grid, context: EvalContext) -> Matrix:
    index, ranged = range_argument(node)
    others = [argument for i, argument in enumerate(node.args) if i != index]
    parameters = [evaluate_scalar(argument, grid, context).values for argument in others]
    return evaluate_range_function(node, _range_series(ranged, grid, context), parameters, grid, context)
