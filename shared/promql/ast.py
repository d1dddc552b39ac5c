"""The syntax tree of PromQL: frozen dataclasses, one for each kind of expression.

Source: https://prometheus.io/docs/prometheus/latest/querying/basics/ and …/operators/. The `span` of a node is a pair
of half-open character offsets into the query text, for the positions of errors and annotations. Equality ignores spans.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal

Span = tuple[int, int]
NO_SPAN: Span = (0, 0)


class ValueType(enum.StrEnum):
    SCALAR = "scalar"
    VECTOR = "vector"
    MATRIX = "matrix"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Matcher:
    """A label matcher; regular expressions are RE2 and match the whole value."""

    name: str
    op: Literal["=", "!=", "=~", "!~"]
    value: str


@dataclass(frozen=True, slots=True)
class DurationLiteral:
    """A duration in milliseconds, which may be negative inside an expression. `is_number`: it was written as a number
    of seconds."""

    ms: float
    is_number: bool = field(default=False, compare=False)
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class DurationUnary:
    op: Literal["+", "-"]
    operand: DurationExpr
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class DurationBinary:
    """Arithmetic on durations, evaluated in seconds as the language defines: `[5m * 2]`."""

    op: Literal["+", "-", "*", "/", "%", "^"]
    lhs: DurationExpr
    rhs: DurationExpr
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class DurationCall:
    """`step()`, `range()`, `min(a, b)` or `max(a, b)`."""

    func: Literal["step", "range", "min", "max"]
    args: tuple[DurationExpr, ...] = ()
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


DurationExpr = DurationLiteral | DurationUnary | DurationBinary | DurationCall

Duration = int | DurationExpr
"""An integer is in milliseconds. `resolve_durations` turns all durations into integers, so the engine sees nothing
else."""


@dataclass(frozen=True, slots=True)
class At:
    """The `@` modifier: a timestamp in milliseconds, or the start or end of the whole query."""

    at: int | Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    value: float
    is_duration: bool = field(default=False, compare=False)
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class StringLiteral:
    value: str
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class VectorSelector:
    """`matchers` is complete: a metric name before the braces is the first matcher (`__name__`, `=`)."""

    name: str | None
    matchers: tuple[Matcher, ...]
    offset: Duration = 0
    at: At | None = None
    anchored: bool = False
    smoothed: bool = False
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class MatrixSelector:
    """`vector[range]`; offset, `@`, anchored and smoothed are on the vector."""

    vector: VectorSelector
    range: Duration
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Subquery:
    """`expr[range:step]`; `step` None means the default resolution."""

    expr: Expr
    range: Duration
    step: Duration | None = None
    offset: Duration = 0
    at: At | None = None
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Paren:
    expr: Expr
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Unary:
    op: Literal["+", "-"]
    expr: Expr
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Matching:
    """How the series of a binary operation's two sides pair up."""

    card: Literal["one-to-one", "many-to-one", "one-to-many", "many-to-many"] = "one-to-one"
    on: bool = False
    labels: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    fill_left: float | None = None
    fill_right: float | None = None


@dataclass(frozen=True, slots=True)
class Binary:
    """`op` is one of + - * / % ^ atan2 == != > < >= <= and or unless; `matching` is None unless both are vectors."""

    op: str
    lhs: Expr
    rhs: Expr
    return_bool: bool = False
    matching: Matching | None = None
    op_span: Span = field(default=NO_SPAN, compare=False, kw_only=True)
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Call:
    func: str
    args: tuple[Expr, ...]
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Aggregate:
    op: str
    expr: Expr
    param: Expr | None = None
    grouping: tuple[str, ...] = ()
    without: bool = False
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Remote:
    """A leaf that the planner inserts in place of `expr`. Its value is merged from the shards' replies to sub-query
    `index`."""

    index: int
    type: ValueType
    expr: Expr
    span: Span = field(default=NO_SPAN, compare=False, kw_only=True)


Expr = (
    NumberLiteral
    | StringLiteral
    | VectorSelector
    | MatrixSelector
    | Subquery
    | Paren
    | Unary
    | Binary
    | Call
    | Aggregate
    | Remote
)


def children(expr: Expr) -> Iterator[Expr]:
    """The direct sub-expressions."""
    for part in fields(expr):
        if part.name in ("lhs", "rhs", "expr", "vector", "param", "args"):
            value = getattr(expr, part.name)
            if value is not None:
                yield from value if isinstance(value, tuple) else (value,)


def selectors(expr: Expr) -> Iterator[VectorSelector]:
    """Every selector in the expression."""
    pending: list[Expr] = [expr]
    while pending:
        node = pending.pop()
        if isinstance(node, VectorSelector):
            yield node
        pending.extend(children(node))


def without_parens(expr: Expr) -> Expr:
    """The expression inside any parentheses around it."""
    while isinstance(expr, Paren):
        expr = expr.expr
    return expr
