"""Aggregations over one selector's series, evaluated some series at a time to bound memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.promql import types
from shared.promql.ast import (
    Aggregate,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    ValueType,
    VectorSelector,
    children,
)
from shared.promql.engine import partial
from shared.promql.engine.context import BatchTooLarge, EvalContext, SeriesBatch
from shared.promql.engine.partial import Partial
from shared.promql.engine.range_functions import range_argument
from shared.promql.engine.subquery import inner_grid
from shared.promql.functions import FUNCTIONS, Scope
from shared.promql.model import Grid, Matrix, Scalar, String
from shared.promql.operators import SCALAR_OPERATORS, TRIMS

BATCH_CELLS = 1 << 18
"""Series × steps of a batch: 2 MB of values, which stay in the CPU's cache from one operator to the next."""

BATCH_SHARE = 4
"""A batch's values take at most 1/BATCH_SHARE of the samples that the query may still hold. The remainder is for the
samples that are read, the values of subqueries, and the partial forms."""

BATCH_BUCKETS = 1 << 21
"""Buckets of a batch's histograms: 16 MB of counts, of which a few copies exist at a time."""

BATCH_SERIES = 1 << 14
"""The most series in a batch. Their samples are read in several parts."""

STREAMED = frozenset({"sum", "avg", "count", "min", "max", "group", "stddev", "stdvar", "topk", "bottomk"})
"""Aggregations whose partial form is smaller than their input."""


EvaluateVector = Callable[[Expr, Grid, EvalContext], Matrix]
"""A function that evaluates an expression whose type is an instant vector."""


def batched_selector(node: Aggregate) -> VectorSelector | None:
    """The selector whose series come in batches, or None if the aggregation takes all of its series at once."""
    return leaf(node.expr) if node.op in STREAMED else None


def combined(
    node: Aggregate,
    param: Scalar | String | None,
    grid: Grid,
    context: EvalContext,
    evaluate_vector: EvaluateVector,
) -> Partial:
    """The partial form of an aggregation over all series of this source."""
    held_before = context.samples_held
    selector = batched_selector(node)
    if selector is None:
        contribution = partial.partial(node, evaluate_vector(node.expr, grid, context), param, grid, context)
        context.keep(held_before, contribution.cells)
        return contribution
    cells = max(1, min(BATCH_CELLS, context.samples_left // BATCH_SHARE))
    batch = _first_batch(node, selector, cells, grid, context)
    parts: list[Partial] = []  # the first may combine many batches
    later_cells = 0  # of the other parts
    while batch.first == 0 or batch.first < batch.total:
        parts_held = context.samples_held
        try:
            with _restricted(batch, context):
                value = evaluate_vector(node.expr, grid, context)
        except BatchTooLarge:
            context.keep(parts_held, 0)
            continue
        part = partial.partial(node, value, param, grid, context)
        del value
        context.keep(parts_held, part.cells)
        later_cells += part.cells if parts else 0
        parts.append(part)
        batch.first += batch.size
        context.check()
        # Combining waits until the later parts are as large as the first, so the total work is linear.
        if later_cells >= max(cells, parts[0].cells):
            parts, later_cells = [partial.combine(node, parts, param, context)], 0
            context.keep(held_before, parts[0].cells)
    contribution = partial.combine(node, parts, param, context)
    context.keep(held_before, contribution.cells)
    return contribution


def _first_batch(
    node: Aggregate, selector: VectorSelector, cells: int, grid: Grid, context: EvalContext
) -> SeriesBatch:
    """The first batch: as many series as have at most `cells` values at the steps of the longest grid."""
    steps = max(1, _steps_max(node.expr, grid, context))
    buckets = max(1, min(BATCH_BUCKETS, context.samples_left // BATCH_SHARE))
    return SeriesBatch(selector, max(1, min(BATCH_SERIES, cells // steps)), steps, buckets)


def _steps_max(expr: Expr, grid: Grid, context: EvalContext) -> int:
    """The steps of the longest grid on which a part of `expr` is evaluated: `grid`, or that of a subquery."""
    inner = inner_grid(expr, grid, context) if isinstance(expr, Subquery) else grid
    return max([grid.steps, *(_steps_max(child, inner, context) for child in children(expr))])


@contextmanager
def _restricted(batch: SeriesBatch, context: EvalContext) -> Iterator[None]:
    outer = context.batch
    context.batch = batch
    try:
        yield
    finally:
        context.batch = outer


def leaf(expr: Expr) -> VectorSelector | None:
    """The one selector of `expr` if every series of its value comes from one series of that selector."""
    match expr:
        case VectorSelector():
            return expr
        case Paren() | Unary():
            return leaf(expr.expr)
        case Call() if FUNCTIONS[expr.func].scope is Scope.ONE and expr.args:
            return _leaf_of_call(expr)
        case Binary() if expr.op in SCALAR_OPERATORS | TRIMS:
            for scalar, other in ((expr.lhs, expr.rhs), (expr.rhs, expr.lhs)):
                if types.type_of(scalar) is ValueType.SCALAR and constant(scalar):
                    return leaf(other)
    return None


def _leaf_of_call(call: Call) -> VectorSelector | None:
    if not FUNCTIONS[call.func].takes_range:
        return leaf(call.args[0]) if all(map(constant, call.args[1:])) else None
    index, ranged = range_argument(call)
    if not all(constant(argument) for i, argument in enumerate(call.args) if i != index):
        return None
    return leaf(ranged.expr) if isinstance(ranged, Subquery) else ranged.vector


def constant(expr: Expr) -> bool:
    """Whether `expr` reads no samples, so that evaluating it for each batch costs next to nothing."""
    match expr:
        case NumberLiteral() | StringLiteral():
            return True
        case Paren() | Unary():
            return constant(expr.expr)
        case Binary():
            return constant(expr.lhs) and constant(expr.rhs)
        case Call():
            return all(map(constant, expr.args))
        case VectorSelector() | MatrixSelector() | Subquery() | Aggregate():
            return False
    return False
