"""The evaluated arguments of a call, by type, and the expressions that they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.errors import NotExecutable
from shared.promql.ast import Call, Expr, Paren, Remote
from shared.promql.engine.context import EvalContext
from shared.promql.engine.rows import floats_only
from shared.promql.model import Float, Grid, Matrix, Scalar, String, Value

Function = Callable[[Call, list[Value], Grid, EvalContext], Value]


def vector(call: Call, args: Sequence[Value], index: int = 0) -> Matrix:
    """Argument `index`. Raises NotExecutable unless it is an instant vector."""
    value = args[index]
    if not isinstance(value, Matrix):
        raise _mistyped(call, index, "an instant vector", value)
    return value


def floats(call: Call, args: Sequence[Value], index: int = 0) -> Matrix:
    """`vector` without histograms, for functions of numbers."""
    return floats_only(vector(call, args, index))


def scalar(call: Call, args: Sequence[Value], index: int) -> Float:
    """float64[steps]: argument `index`. Raises NotExecutable unless it is a scalar."""
    value = args[index]
    if not isinstance(value, Scalar):
        raise _mistyped(call, index, "a scalar", value)
    return value.values


def text(call: Call, args: Sequence[Value], index: int) -> str:
    """Argument `index`. Raises NotExecutable unless it is a string."""
    value = args[index]
    if not isinstance(value, String):
        raise _mistyped(call, index, "a string", value)
    return value.value


def _mistyped(call: Call, index: int, expected: str, value: Value) -> NotExecutable:
    return NotExecutable(
        f"argument {index + 1} of {call.func} must be {expected}, not a {type(value).__name__.lower()}"
    )


def offset(call: Call, index: int) -> int | None:
    """The character offset of an argument in the query, for annotations; None if there is no such argument."""
    return call.args[index].span[0] if index < len(call.args) else None


def bare(expr: Expr) -> Expr:
    """The expression without the parentheses and the planner's leaves (`Remote`) around it."""
    while isinstance(expr, Paren | Remote):
        expr = expr.expr
    return expr
