"""The types of expressions, and the rules about which types are allowed where.

A rule returns None, or a Fault with Prometheus's message. The parser keeps the first Fault of a query and raises it
after the whole text has been parsed, so that a type error never hides a syntax error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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
    ValueType,
    VectorSelector,
    without_parens,
)
from shared.promql.functions import AGGREGATORS, FUNCTIONS, functions_with
from shared.promql.operators import COMPARISONS, SET_OPERATORS
from shared.promql.positions import Fault
from shared.promql.regex import bound_error

_NAMES: Final = {
    ValueType.SCALAR: "scalar",
    ValueType.VECTOR: "instant vector",
    ValueType.MATRIX: "range vector",
    ValueType.STRING: "string",
}


class Typed(NamedTuple):
    """An expression with what the rules need to know about it. `depth`: the height of its tree. `fault`: its first type
    error."""

    expr: Expr
    type: ValueType
    depth: int
    fault: Fault | None = None


def presence(expr: Expr) -> Aggregate:
    """The aggregation whose value is one series without labels at the steps at which a vector, or a window of a range
    vector, has any series."""
    series = Call("present_over_time", (expr,), span=expr.span) if type_of(expr) is ValueType.MATRIX else expr
    return Aggregate("group", series, span=expr.span)


def type_of(expr: Expr) -> ValueType:
    """The type of an expression that has passed the parser."""
    match expr:
        case NumberLiteral():
            return ValueType.SCALAR
        case StringLiteral():
            return ValueType.STRING
        case MatrixSelector() | Subquery():
            return ValueType.MATRIX
        case VectorSelector() | Aggregate():
            return ValueType.VECTOR
        case Call(func=func):
            return FUNCTIONS[func].returns
        case Paren(expr=inner) | Unary(expr=inner):
            return type_of(inner)
        case Binary(lhs=lhs, rhs=rhs, matching=matching):
            if matching is not None or type_of(lhs) is ValueType.VECTOR:
                return ValueType.VECTOR
            return type_of(rhs)
        case Remote(type=remote_type):
            return remote_type


def first_fault(*faults: Fault | None) -> Fault | None:
    for fault in faults:
        if fault is not None:
            return fault
    return None


def unary_fault(operand: Typed, offset: int) -> Fault | None:
    if operand.type in (ValueType.SCALAR, ValueType.VECTOR):
        return None
    return _fault(
        f'unary expression only allowed on expressions of type scalar or instant vector, got "{_NAMES[operand.type]}"',
        offset,
    )


def binary_fault(op: str, lhs: Typed, rhs: Typed, *, return_bool: bool, matched: bool, op_offset: int) -> Fault | None:
    """`matched`: the operator has labels to match on, to ignore or to fill."""
    for side in (lhs, rhs):
        if side.type not in (ValueType.SCALAR, ValueType.VECTOR):
            message = f"binary expression must contain only scalar and instant vector types, got {_NAMES[side.type]}"
            return _fault(message, side.expr.span[0])
    vectors = (lhs.type is ValueType.VECTOR) + (rhs.type is ValueType.VECTOR)
    if matched and vectors < 2:
        return _fault("vector matching only allowed between instant vectors", op_offset)
    if op in SET_OPERATORS and vectors < 2:
        return _fault(f'set operator "{op}" not allowed in binary scalar expression', op_offset)
    if op in COMPARISONS and vectors == 0 and not return_bool:
        return _fault("comparisons between scalars must use BOOL modifier", op_offset)
    return None


def call_fault(func: str, args: Sequence[Typed], span: tuple[int, int]) -> Fault | None:
    signature = FUNCTIONS.get(func)
    if signature is None:
        return _fault(f'unknown function with name "{func}"', span[0])
    args_max = len(args) if signature.args_max is None else signature.args_max
    if not signature.args_min <= len(args) <= args_max:
        return _fault(_count_message(func, len(args)), span[0])
    for position, arg in enumerate(args):
        wanted = signature.arg_type(position)
        if arg.type is not wanted:
            return expected(wanted, arg, f'call to function "{func}"')
    if func == "info" and len(args) == 2:
        return _info_fault(args[1])
    if func == "label_replace":
        return _pattern_fault(args[4])
    return _extended_fault(func, args)


def _count_message(func: str, got: int) -> str:
    signature = FUNCTIONS[func]
    if signature.variadic == 0:
        wanted = f"{len(signature.args)}"
    elif got < signature.args_min:
        wanted = f"at least {signature.args_min}"
    else:
        wanted = f"at most {signature.args_max}"
    return f'expected {wanted} argument(s) in call to "{func}", got {got}'


def _info_fault(labels: Typed) -> Fault | None:
    selector, offset = labels.expr, labels.expr.span[0]
    if not isinstance(selector, VectorSelector):
        return _fault('expected label selectors as the second argument to "info" function', offset)
    if selector.name is not None:
        return _fault("expected label selectors only, got vector selector instead", offset)
    return None


def _pattern_fault(pattern: Typed) -> Fault | None:
    """Refuses a costly expression before the series that it applies to are evaluated."""
    if not isinstance(pattern.expr, StringLiteral):
        return None
    error = bound_error(pattern.expr.value)
    if error is None:
        return None
    return _fault(f"invalid regular expression in label_replace(): {error}", pattern.expr.span[0])


def _extended_fault(func: str, args: Sequence[Typed]) -> Fault | None:
    for arg in args:
        message = extension_refusal(func, arg.expr)
        if message is not None:
            return _fault(message, None)
    return None


def extension_refusal(func: str, argument: Expr) -> str | None:
    """What is wrong with an `anchored` or `smoothed` range selector as an argument of `func`; None if nothing is."""
    selector = without_parens(argument)
    if not isinstance(selector, MatrixSelector) or not (selector.vector.anchored or selector.vector.smoothed):
        return None
    modifier = "anchored" if selector.vector.anchored else "smoothed"
    if modifier in FUNCTIONS[func].modifiers:
        return None
    return f"{modifier} modifier can only be used with: {', '.join(functions_with(modifier))} - not with {func}"


def aggregate_fault(op: str, args: Sequence[Typed], span: tuple[int, int]) -> Fault | None:
    wanted = AGGREGATORS[op]
    count = 1 if wanted is None else 2
    if not args:
        return _fault("no arguments for aggregate expression provided", span[0])
    if len(args) != count:
        message = f"wrong number of arguments for aggregate expression provided, expected {count}, got {len(args)}"
        return _fault(message, span[0])
    if args[-1].type is not ValueType.VECTOR:
        return expected(ValueType.VECTOR, args[-1], "aggregation expression")
    if wanted is not None and args[0].type is not wanted:
        return expected(wanted, args[0], "aggregation parameter")
    return None


def subquery_fault(inner: Typed) -> Fault | None:
    if inner.type is ValueType.VECTOR:
        return None
    return _fault(f"subquery is only allowed on instant vector, got {_NAMES[inner.type]}", inner.expr.span[0])


def expected(wanted: ValueType, got: Typed, context: str) -> Fault:
    return _fault(f"expected type {_NAMES[wanted]} in {context}, got {_NAMES[got.type]}", got.expr.span[0])


def _fault(message: str, offset: int | None) -> Fault:
    return Fault(message, offset, executable=True)
