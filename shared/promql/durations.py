"""Duration expressions: their arithmetic, and the conversion of a query's durations to milliseconds.

Source: https://prometheus.io/docs/prometheus/latest/feature_flags/#promql-arithmetic-expressions-in-time-durations.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from shared.errors import NotExecutable
from shared.promql.ast import (
    Aggregate,
    Binary,
    Call,
    Duration,
    DurationBinary,
    DurationCall,
    DurationExpr,
    DurationLiteral,
    DurationUnary,
    Expr,
    MatrixSelector,
    Paren,
    Remote,
    Subquery,
    Unary,
    VectorSelector,
)
from shared.promql.model import Grid
from shared.promql.tokens import DURATION_MS_MAX

NOT_POSITIVE = "duration must be greater than 0"


class Length(NamedTuple):
    """A duration expression as the parser builds it. `depth`: the height of its tree; `constant`: whether it is
    independent of the query's grid."""

    expr: DurationExpr
    depth: int = 1
    constant: bool = True


def resolve_durations(expr: Expr, grid: Grid) -> Expr:
    """`expr` with every duration as an integer of milliseconds; `grid` is that of the whole query.

    Returns the same object if there is nothing to resolve. Raises NotExecutable if a range or a step is not positive,
    or if a result is out of range or undefined.
    """
    match expr:
        case VectorSelector(offset=offset):
            return expr if isinstance(offset, int) else replace(expr, offset=_milliseconds(offset, grid))
        case MatrixSelector(vector=vector, range=range_):
            if isinstance(vector.offset, int) and isinstance(range_, int):
                return expr
            vector = replace(vector, offset=_milliseconds(vector.offset, grid))
            return replace(expr, vector=vector, range=_positive(range_, grid))
        case Subquery():
            return _resolve_subquery(expr, grid)
        case Paren(expr=operand) | Unary(expr=operand):
            inner = resolve_durations(operand, grid)
            return expr if inner is operand else replace(expr, expr=inner)
        case Remote(expr=operand):
            inner = resolve_durations(operand, grid)
            return expr if inner is operand else replace(expr, expr=inner)
        case Binary(lhs=lhs, rhs=rhs):
            left, right = resolve_durations(lhs, grid), resolve_durations(rhs, grid)
            return expr if left is lhs and right is rhs else replace(expr, lhs=left, rhs=right)
        case Call(args=args):
            resolved = tuple(resolve_durations(arg, grid) for arg in args)
            return expr if all(a is b for a, b in zip(args, resolved, strict=True)) else replace(expr, args=resolved)
        case Aggregate(expr=operand, param=param):
            inner = resolve_durations(operand, grid)
            new_param = None if param is None else resolve_durations(param, grid)
            return expr if inner is operand and new_param is param else replace(expr, expr=inner, param=new_param)
        case _:
            return expr


def _resolve_subquery(expr: Subquery, grid: Grid) -> Subquery:
    inner = resolve_durations(expr.expr, grid)
    if inner is expr.expr and all(isinstance(d, int | None) for d in (expr.range, expr.step, expr.offset)):
        return expr
    return replace(
        expr,
        expr=inner,
        range=_positive(expr.range, grid),
        step=None if expr.step is None else _positive(expr.step, grid),
        offset=_milliseconds(expr.offset, grid),
    )


def _positive(duration: Duration, grid: Grid) -> int:
    ms = _milliseconds(duration, grid)
    if ms <= 0:
        raise NotExecutable(NOT_POSITIVE)
    return ms


def _milliseconds(duration: Duration, grid: Grid) -> int:
    if isinstance(duration, int):
        return duration
    try:
        return evaluate_ms(duration, grid)
    except ValueError as error:
        raise NotExecutable(str(error)) from None


def evaluate_ms(duration: DurationExpr, grid: Grid | None = None) -> int:
    """The milliseconds of a duration expression, rounded. `grid` may be None if neither step() nor range() occurs.

    Raises ValueError for a division by zero, and for a result that does not fit into 64-bit nanoseconds.
    """
    ms = _seconds(duration, grid) * 1000
    if not abs(ms) <= DURATION_MS_MAX:
        raise ValueError("duration out of range")
    return round(ms)


def _seconds(duration: DurationExpr, grid: Grid | None) -> float:
    match duration:
        case DurationLiteral(ms=ms):
            return ms / 1000
        case DurationUnary(op=op, operand=operand):
            value = _seconds(operand, grid)
            return -value if op == "-" else value
        case DurationBinary(op=op, lhs=lhs, rhs=rhs):
            return _arithmetic(op, _seconds(lhs, grid), _seconds(rhs, grid))
        case DurationCall(func="min", args=args):
            return min(_seconds(arg, grid) for arg in args)
        case DurationCall(func="max", args=args):
            return max(_seconds(arg, grid) for arg in args)
    if grid is None:
        raise ValueError(f"{duration.func}() is known only when the query is evaluated")
    return (grid.step_ms if duration.func == "step" else grid.end_ms - grid.start_ms) / 1000


def _arithmetic(op: str, lhs: float, rhs: float) -> float:
    if op in "/%" and rhs == 0:
        raise ValueError("division by zero" if op == "/" else "modulo by zero")
    try:
        match op:
            case "+":
                return lhs + rhs
            case "-":
                return lhs - rhs
            case "*":
                return lhs * rhs
            case "/":
                return lhs / rhs
            case "%":
                return math.fmod(lhs, rhs)
            case _:
                return math.pow(lhs, rhs)
    except (OverflowError, ValueError):
        raise ValueError("duration out of range") from None
