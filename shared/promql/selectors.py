"""The grammar's rules for selectors, their modifiers and durations. See builder.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, cast

from lark import Token, Transformer, v_args

from shared.labels import METRIC_NAME
from shared.promql import tokens
from shared.promql.ast import (
    At,
    Duration,
    DurationBinary,
    DurationCall,
    DurationLiteral,
    DurationUnary,
    Expr,
    Matcher,
    MatrixSelector,
    Span,
    Subquery,
    ValueType,
    VectorSelector,
)
from shared.promql.durations import NOT_POSITIVE, Length, evaluate_ms
from shared.promql.positions import Fault
from shared.promql.regex import matches_empty, regex_error
from shared.promql.tokens import NESTING_MAX
from shared.promql.types import Typed, subquery_fault

AT_MS_MAX: Final = (1 << 63) - 1


class Labels(NamedTuple):
    """A list of label names in parentheses, and the offset after its closing parenthesis."""

    names: tuple[str, ...]
    end: int


NO_LABELS: Final = Labels((), 0)


class Matchers(NamedTuple):
    """`items`: the matchers in braces, each with whether it is a bare quoted metric name. `span`: the braces' span."""

    items: list[tuple[Matcher, bool]]
    span: Span


def start(token: Token) -> int:
    return cast(int, token.start_pos)


def end(token: Token) -> int:
    return cast(int, token.end_pos)


def height(*children: Typed) -> int:
    """The height of a node with these children. Raises Fault above NESTING_MAX."""
    depth = 1 + max(child.depth for child in children)
    if depth > NESTING_MAX:
        raise Fault(
            f"query is nested deeper than {NESTING_MAX} levels (each operator of a chain is one)",
            children[0].expr.span[0],
            executable=True,
        )
    return depth


@v_args(inline=True)
class SelectorRules(Transformer):
    """The callbacks of the rules for selectors; `Builder` adds the others."""

    # Names and labels.

    def name(self, token: Token) -> Token:
        return token

    def label(self, token: Token) -> str:
        if token.type == "STRING":
            return _label_name(tokens.string(token), token)
        if ":" in token:
            raise Fault(f'invalid label name "{token}", expected it in quotes', start(token))
        return str(token)

    def labels_none(self, _open: Token, closing: Token) -> Labels:
        return Labels((), end(closing))

    def labels(self, _open: Token, names: list[str], *comma_and_closing: Token) -> Labels:
        return Labels(tuple(names), end(comma_and_closing[-1]))

    # Matchers and vector selectors.

    def matcher(self, name: Token, op: Token, value_token: Token) -> tuple[Matcher, bool]:
        label = _label_name(tokens.string(name), name) if name.type == "STRING" else str(name)
        value = tokens.string(value_token)
        if op in ("=~", "!~") and (error := regex_error(value)) is not None:
            shown = value if len(value) <= 80 else value[:80] + "…"
            raise Fault(f"error parsing regexp {shown!r}: {error}", start(value_token))
        return Matcher(label, cast(Any, str(op)), value), False

    def matcher_name(self, token: Token) -> tuple[Matcher, bool]:
        return Matcher(METRIC_NAME, "=", tokens.string(token)), True

    def matchers_none(self, opening: Token, closing: Token) -> Matchers:
        return Matchers([], (start(opening), end(closing)))

    def matchers(self, opening: Token, items: list[tuple[Matcher, bool]], *comma_and_closing: Token) -> Matchers:
        return Matchers(items, (start(opening), end(comma_and_closing[-1])))

    def selector_name(self, name: Token) -> Typed:
        matcher = Matcher(METRIC_NAME, "=", str(name))
        expr = VectorSelector(str(name), (matcher,), span=(start(name), end(name)))
        return Typed(expr, ValueType.VECTOR, 1)

    def selector(self, name: Token, matchers: Matchers) -> Typed:
        named = (Matcher(METRIC_NAME, "=", str(name)), True)
        return _selector([named, *matchers.items], (start(name), matchers.span[1]))

    def selector_anonymous(self, matchers: Matchers) -> Typed:
        return _selector(matchers.items, matchers.span)

    # What may follow an expression.

    def matrix(self, inner: Typed, opening: Token, length: Length, closing: Token) -> Typed:
        vector = inner.expr
        if not isinstance(vector, VectorSelector):
            raise Fault("ranges only allowed for vector selectors", vector.span[0])
        if vector.offset != 0:
            raise Fault("no offset modifiers allowed before range", start(opening))
        if vector.at is not None:
            raise Fault("no @ modifiers allowed before range", start(opening))
        if vector.anchored or vector.smoothed:
            raise Fault("no anchored or smoothed modifiers allowed before range", start(opening))
        expr = MatrixSelector(vector, _range(length), span=(vector.span[0], end(closing)))
        return Typed(expr, ValueType.MATRIX, height(inner), inner.fault)

    def subquery(self, inner: Typed, _open: Token, length: Length, _colon: Token, *step_and_closing: Any) -> Typed:
        step = _range(step_and_closing[0]) if len(step_and_closing) == 2 else None
        span = (inner.expr.span[0], end(step_and_closing[-1]))
        expr = Subquery(inner.expr, _range(length), step, span=span)
        return Typed(expr, ValueType.MATRIX, height(inner), inner.fault or subquery_fault(inner))

    def offset(self, inner: Typed, _word: Token, length: Length) -> Typed:
        target, duration = inner.expr, _milliseconds(length)
        expr: Expr
        span = (target.span[0], length.expr.span[1])
        if isinstance(target, MatrixSelector):
            _once(target.vector.offset == 0, "offset may not be set multiple times", length.expr.span)
            expr = replace(target, vector=replace(target.vector, offset=duration), span=span)
        elif isinstance(target, VectorSelector | Subquery):
            _once(target.offset == 0, "offset may not be set multiple times", length.expr.span)
            expr = replace(target, offset=duration, span=span)
        else:
            raise Fault(f"offset modifier {_AFTER_SELECTOR}", target.span[0])
        return inner._replace(expr=expr)

    def at_time(self, inner: Typed, at: Token, seconds: tuple[float, int]) -> Typed:
        value, last = seconds
        if not abs(value * 1000) < AT_MS_MAX:
            raise Fault(f"timestamp out of bounds for @ modifier: {value}", start(at))
        return _pinned(inner, At(round(value * 1000)), (start(at), last))

    def at_bound(self, inner: Typed, at: Token, bound: Token, _open: Token, closing: Token) -> Typed:
        return _pinned(inner, At(cast(Literal["start", "end"], bound.lower())), (start(at), end(closing)))

    def extend(self, inner: Typed, word: Token) -> Typed:
        target, modifier, place = inner.expr, word.lower(), (start(word), end(word))
        vector = target.vector if isinstance(target, MatrixSelector) else target
        if not isinstance(vector, VectorSelector):
            raise Fault(f"{modifier} modifier must be preceded by an instant or range vector selector", place[0])
        if modifier == "anchored" and vector is target:
            raise Fault("anchored modifier must be preceded by a range vector selector", place[0])
        _once(not (vector.anchored or vector.smoothed), "anchored or smoothed may be set only once", place)
        span = (target.span[0], place[1])
        vector = replace(vector, anchored=modifier == "anchored", smoothed=modifier == "smoothed")
        if isinstance(target, MatrixSelector):
            return inner._replace(expr=replace(target, vector=vector, span=span))
        return inner._replace(expr=replace(vector, span=span))

    def plain_number(self, token: Token) -> tuple[float, int]:
        return tokens.number(token), end(token)

    def signed_number(self, sign: Token, token: Token) -> tuple[float, int]:
        value = tokens.number(token)
        return -value if sign == "-" and not math.isnan(value) else value, end(token)

    # Durations.

    def duration_literal(self, token: Token) -> Length:
        seconds = tokens.number(token)
        if not abs(seconds * 1000) <= tokens.DURATION_MS_MAX:
            raise Fault("duration out of range", start(token))
        span = (start(token), end(token))
        return Length(DurationLiteral(seconds * 1000, token.type == "NUMBER", span=span))

    def duration_paren(self, opening: Token, inner: Length, closing: Token) -> Length:
        return inner._replace(expr=replace(inner.expr, span=(start(opening), end(closing))))

    def duration_unary(self, sign: Token, operand: Length) -> Length:
        expr = DurationUnary(cast(Any, str(sign)), operand.expr, span=(start(sign), operand.expr.span[1]))
        return Length(expr, _duration_height(operand), operand.constant)

    def duration_binary(self, lhs: Length, op: Token, rhs: Length) -> Length:
        span = (lhs.expr.span[0], rhs.expr.span[1])
        expr = DurationBinary(cast(Any, str(op)), lhs.expr, rhs.expr, span=span)
        return Length(expr, _duration_height(lhs, rhs), lhs.constant and rhs.constant)

    def duration_call(self, word: Token, _open: Token, *args_and_closing: Any) -> Length:
        args = tuple(part for part in args_and_closing if isinstance(part, Length))
        func = cast(Any, word.lower().removesuffix("_of"))
        expr = DurationCall(func, tuple(arg.expr for arg in args), span=(start(word), end(args_and_closing[-1])))
        return Length(expr, _duration_height(*args) if args else 1, bool(args) and all(arg.constant for arg in args))


_AFTER_SELECTOR: Final = "must be preceded by an instant vector selector or range vector selector or a subquery"


def _label_name(name: str, token: Token) -> str:
    if not name:
        raise Fault('invalid label name "", expected at least one character', start(token))
    return name


def _selector(items: list[tuple[Matcher, bool]], span: Span) -> Typed:
    matchers = tuple(matcher for matcher, _ in items)
    name = next((matcher.value for matcher, is_name in items if is_name), None)
    if name is not None:
        others = [matcher.value for matcher in matchers if matcher.name == METRIC_NAME]
        if len(others) > 1:
            others.remove(name)
            raise Fault(f'metric name must not be set twice: "{name}" or "{others[0]}"', span[0])
    fault = None
    if all(matches_empty(matcher) for matcher in matchers):
        fault = Fault("vector selector must contain at least one non-empty matcher", span[0])
    return Typed(VectorSelector(name, matchers, span=span), ValueType.VECTOR, 1, fault)


def _pinned(inner: Typed, at: At, place: Span) -> Typed:
    target, message = inner.expr, "@ <timestamp> may not be set multiple times"
    expr: Expr
    span = (target.span[0], place[1])
    if isinstance(target, MatrixSelector):
        _once(target.vector.at is None, message, place)
        expr = replace(target, vector=replace(target.vector, at=at), span=span)
    elif isinstance(target, VectorSelector | Subquery):
        _once(target.at is None, message, place)
        expr = replace(target, at=at, span=span)
    else:
        raise Fault(f"@ modifier {_AFTER_SELECTOR}", target.span[0])
    return inner._replace(expr=expr)


def _once(is_first: bool, message: str, place: Span) -> None:
    if not is_first:
        raise Fault(message, place[0])


def _duration_height(*lengths: Length) -> int:
    depth = 1 + max(length.depth for length in lengths)
    if depth > NESTING_MAX:
        raise Fault(f"duration is nested deeper than {NESTING_MAX} levels", lengths[0].expr.span[0], executable=True)
    return depth


def _milliseconds(length: Length) -> Duration:
    """The milliseconds of a plain or signed literal. Other expressions are returned unchanged; constant ones are
    evaluated as a check. Raises Fault if that fails."""
    if not length.constant:
        return length.expr
    try:
        ms = evaluate_ms(length.expr)
    except ValueError as error:
        raise Fault(str(error), length.expr.span[0]) from None
    inner = length.expr
    while isinstance(inner, DurationUnary):
        inner = inner.operand
    return ms if isinstance(inner, DurationLiteral) else length.expr


def _range(length: Length) -> Duration:
    if length.constant:
        try:
            ms = evaluate_ms(length.expr)
        except ValueError as error:
            raise Fault(str(error), length.expr.span[0]) from None
        if ms <= 0:
            raise Fault(NOT_POSITIVE, length.expr.span[0])
    return _milliseconds(length)
