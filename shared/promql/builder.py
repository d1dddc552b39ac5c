"""Builds the tree from the grammar's rules: one callback for each rule, called when the parser reduces it.

Callbacks are pure, so one parser serves all threads. They pass expressions as `Typed`, with type, height and first type
error, and durations as `Length`, with their height. A syntax error is raised at once as a Fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from lark import Token, v_args

from shared.promql import tokens
from shared.promql.ast import (
    Aggregate,
    Binary,
    Call,
    Matcher,
    Matching,
    NumberLiteral,
    Paren,
    Span,
    StringLiteral,
    Unary,
    ValueType,
    VectorSelector,
)
from shared.promql.functions import ALIASES, FUNCTIONS
from shared.promql.operators import COMPARISONS, SET_OPERATORS
from shared.promql.positions import Fault
from shared.promql.selectors import NO_LABELS, Labels, SelectorRules, end, height, start
from shared.promql.types import (
    Typed,
    aggregate_fault,
    binary_fault,
    call_fault,
    first_fault,
    unary_fault,
)

_CARDINALITY: Final[dict[str, Literal["many-to-one", "one-to-many"]]] = {
    "group_left": "many-to-one",
    "group_right": "one-to-many",
}
Arguments = tuple[list[Typed], int]
"""The arguments of a call, and the offset after its closing parenthesis."""

_MODIFIER_ORDER: Final = ("bool", "match", "group", "fill")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator with the modifiers parsed so far. `matched`: they include labels or fill values. `last`: the place of
    the last modifier in _MODIFIER_ORDER."""

    op: str
    span: Span
    return_bool: bool = False
    matching: Matching = Matching()
    matched: bool = False
    last: int = -1


@dataclass(frozen=True, slots=True)
class Modifier:
    kind: str
    token: Token
    labels: tuple[str, ...] = ()
    value: float = math.nan


@v_args(inline=True)
class Builder(SelectorRules):
    """The callbacks of all rules of the grammar."""

    def start(self, expr: Typed) -> Typed:
        return expr

    # Operators.

    def operator(self, token: Token) -> Operator:
        return Operator(token.lower(), (start(token), end(token)))

    def modifier_bool(self, token: Token) -> Modifier:
        return Modifier("bool", token)

    def modifier_match(self, token: Token, labels: Labels) -> Modifier:
        return Modifier("match", token, labels.names)

    def modifier_group(self, token: Token, labels: Labels = NO_LABELS) -> Modifier:
        return Modifier("group", token, labels.names)

    def modifier_fill(self, token: Token, _open: Token, value: tuple[float, int], _close: Token) -> Modifier:
        return Modifier("fill", token, value=value[0])

    def operator_with(self, operator: Operator, modifier: Modifier) -> Operator:
        word, offset = modifier.token.lower(), start(modifier.token)
        order, matching = _MODIFIER_ORDER.index(modifier.kind), operator.matching
        if order < operator.last or (order == operator.last and modifier.kind != "fill"):
            order_text = "bool, then on or ignoring, then group_left or group_right, then fill"
            raise Fault(f'unexpected "{word}", expected modifiers once each and in this order: {order_text}', offset)
        if modifier.kind == "bool":
            if operator.op not in COMPARISONS:
                raise Fault("bool modifier can only be used on comparison operators", offset)
            return replace(operator, return_bool=True, last=order)
        if modifier.kind == "match":
            matching = replace(matching, on=word == "on", labels=modifier.labels)
        elif modifier.kind == "group":
            matching = self._grouped(operator, modifier)
        else:
            matching = self._filled(operator, modifier)
        matched = operator.matched or modifier.kind == "fill" or matching.on or bool(modifier.labels)
        return replace(operator, matching=matching, matched=matched, last=order)

    def _grouped(self, operator: Operator, modifier: Modifier) -> Matching:
        word, offset = modifier.token.lower(), start(modifier.token)
        if operator.last < _MODIFIER_ORDER.index("match"):
            raise Fault(f'unexpected "{word}", expected on or ignoring before it', offset)
        if operator.op in SET_OPERATORS:
            raise Fault(f'no grouping allowed for "{operator.op}" operation', offset)
        if operator.matching.on:
            for label in modifier.labels:
                if label in operator.matching.labels:
                    raise Fault(f'label "{label}" must not occur in ON and GROUP clause at once', offset)
        return replace(operator.matching, card=_CARDINALITY[word], include=modifier.labels)

    def _filled(self, operator: Operator, modifier: Modifier) -> Matching:
        word, offset, matching = modifier.token.lower(), start(modifier.token), operator.matching
        if operator.op in SET_OPERATORS:
            raise Fault(f'no {word} modifier allowed for "{operator.op}" operation', offset)
        if word != "fill_right":
            if matching.fill_left is not None:
                raise Fault("fill_left value must not be set twice", offset)
            matching = replace(matching, fill_left=modifier.value)
        if word != "fill_left":
            if matching.fill_right is not None:
                raise Fault("fill_right value must not be set twice", offset)
            matching = replace(matching, fill_right=modifier.value)
        return matching

    def binary(self, lhs: Typed, operator: Operator, rhs: Typed) -> Typed:
        op, vectors = operator.op, lhs.type is rhs.type is ValueType.VECTOR
        matching = operator.matching
        if op in SET_OPERATORS:
            matching = replace(matching, card="many-to-many")
        fault = first_fault(lhs.fault, rhs.fault) or binary_fault(
            op, lhs, rhs, return_bool=operator.return_bool, matched=operator.matched, op_offset=operator.span[0]
        )
        expr = Binary(
            op,
            lhs.expr,
            rhs.expr,
            operator.return_bool,
            matching if vectors else None,
            op_span=operator.span,
            span=(lhs.expr.span[0], rhs.expr.span[1]),
        )
        type_ = ValueType.SCALAR if lhs.type is rhs.type is ValueType.SCALAR else ValueType.VECTOR
        return Typed(expr, type_, height(lhs, rhs), fault)

    def unary(self, sign: Token, operand: Typed) -> Typed:
        span, inner = (start(sign), operand.expr.span[1]), operand.expr
        if isinstance(inner, NumberLiteral):
            value = -inner.value if sign == "-" and not math.isnan(inner.value) else inner.value
            return Typed(NumberLiteral(value, inner.is_duration, span=span), ValueType.SCALAR, 1)
        fault = operand.fault or unary_fault(operand, span[0])
        return Typed(Unary(cast(Any, str(sign)), inner, span=span), operand.type, height(operand), fault)

    # Primary expressions.

    def number(self, token: Token) -> Typed:
        span = (start(token), end(token))
        return Typed(NumberLiteral(tokens.number(token), token.type == "DURATION", span=span), ValueType.SCALAR, 1)

    def string(self, token: Token) -> Typed:
        return Typed(StringLiteral(tokens.string(token), span=(start(token), end(token))), ValueType.STRING, 1)

    def paren(self, opening: Token, inner: Typed, closing: Token) -> Typed:
        expr = Paren(inner.expr, span=(start(opening), end(closing)))
        return Typed(expr, inner.type, height(inner), inner.fault)

    def arg_list(self, first: Typed) -> list[Typed]:
        return [first]

    def label_list(self, first: str) -> list[str]:
        return [first]

    def matcher_list(self, first: tuple[Matcher, bool]) -> list[tuple[Matcher, bool]]:
        return [first]

    def list_more(self, items: list[Any], _comma: Token, item: Any) -> list[Any]:
        items.append(item)
        return items

    def args_none(self, _open: Token, closing: Token) -> Arguments:
        return [], end(closing)

    def args(self, _open: Token, args: list[Typed], closing: Token) -> Arguments:
        return args, end(closing)

    def args_trailing(self, _open: Token, _args: list[Typed], comma: Token, _close: Token) -> None:
        raise Fault("trailing commas not allowed in function call args", start(comma))

    def call(self, name: Token, arguments: Arguments) -> Typed:
        args, closing_end = arguments
        span, func = (start(name), closing_end), ALIASES.get(name, str(name))
        if func == "info" and len(args) == 2 and isinstance(args[1].expr, VectorSelector):
            args[1] = args[1]._replace(fault=None)  # unlike any other selector, this one may match everything
        fault = first_fault(*(arg.fault for arg in args)) or call_fault(func, args, span)
        returns = FUNCTIONS[func].returns if func in FUNCTIONS else ValueType.VECTOR
        expr = Call(func, tuple(arg.expr for arg in args), span=span)
        return Typed(expr, returns, height(*args) if args else 1, fault)

    def grouping(self, word: Token, labels: Labels) -> tuple[bool, Labels]:
        return word.lower() == "without", labels

    def aggregate(self, op: Token, arguments: Arguments, grouping: tuple[bool, Labels] = (False, NO_LABELS)) -> Typed:
        return self._aggregate(op, grouping, arguments)

    def aggregate_grouped(self, op: Token, grouping: tuple[bool, Labels], arguments: Arguments) -> Typed:
        return self._aggregate(op, grouping, arguments)

    def _aggregate(self, token: Token, grouping: tuple[bool, Labels], arguments: Arguments) -> Typed:
        (args, closing_end), (without, labels) = arguments, grouping
        op, span = token.lower(), (start(token), max(closing_end, labels.end))
        fault = first_fault(*(arg.fault for arg in args)) or aggregate_fault(op, args, span)
        if not args:
            return Typed(StringLiteral("", span=span), ValueType.VECTOR, 1, fault)
        param = args[0].expr if len(args) > 1 else None
        expr = Aggregate(op, args[-1].expr, param, labels.names, without, span=span)
        return Typed(expr, ValueType.VECTOR, height(*args), fault)
