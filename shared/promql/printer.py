"""Prints trees: as text, on one line or formatted over several, and as the JSON of /api/v1/parse_query.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/ (formatting and parsing query expressions).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

from shared.durations import format_duration
from shared.labels import METRIC_NAME
from shared.promql.ast import (
    Aggregate,
    At,
    Binary,
    Call,
    Duration,
    DurationBinary,
    DurationCall,
    DurationExpr,
    DurationLiteral,
    DurationUnary,
    Expr,
    Matcher,
    Matching,
    MatrixSelector,
    NumberLiteral,
    Paren,
    Remote,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
)
from shared.promql.functions import FUNCTIONS

LINE_WIDTH: Final = 100
INDENT: Final = "  "

Pieces = Iterable["str | Expr"]


def to_text(expr: Expr) -> str:
    """The canonical text on one line; parses to an equal tree."""
    parts: list[str] = []
    pending: list[str | Expr] = [expr]
    while pending:
        piece = pending.pop()
        if isinstance(piece, str):
            parts.append(piece)
        else:
            pending.extend(reversed(tuple(_pieces(piece))))
    return "".join(parts)


def _pieces(expr: Expr) -> Pieces:
    """The text of a node, with its children as nodes."""
    match expr:
        case NumberLiteral(value=value, is_duration=is_duration):
            return (format_number(value, is_duration=is_duration),)
        case StringLiteral(value=value):
            return (quote(value),)
        case VectorSelector():
            return (_selector(expr) + _modifiers(expr),)
        case MatrixSelector(vector=vector, range=range_):
            return (f"{_selector(vector)}[{duration_text(range_)}]{_modifiers(vector)}",)
        case Subquery(expr=inner):
            return (inner, _subquery_suffix(expr))
        case Paren(expr=inner):
            return ("(", inner, ")")
        case Unary(op=op, expr=inner):
            return (op, inner)
        case Binary(lhs=lhs, rhs=rhs):
            return (lhs, f" {_operator(expr)} ", rhs)
        case Call(func=func, args=args):
            return (f"{func}(", *_joined(args), ")")
        case Aggregate(expr=inner, param=param):
            return (f"{_aggregator(expr)}(", *_joined((inner,) if param is None else (param, inner)), ")")
        case Remote(expr=inner):
            return (inner,)


def _joined(args: tuple[Expr, ...]) -> Iterable[str | Expr]:
    for position, arg in enumerate(args):
        if position:
            yield ", "
        yield arg


def _aggregator(expr: Aggregate) -> str:
    if not expr.grouping and not expr.without:
        return expr.op
    return f"{expr.op} {'without' if expr.without else 'by'} ({_labels(expr.grouping)}) "


def _operator(expr: Binary) -> str:
    words = [expr.op]
    if expr.return_bool:
        words.append("bool")
    if expr.matching is not None:
        words += _matching(expr.matching)
    return " ".join(words)


def _matching(matching: Matching) -> Iterable[str]:
    grouped = matching.card in ("many-to-one", "one-to-many")
    if matching.on or matching.labels or grouped:
        yield f"{'on' if matching.on else 'ignoring'} ({_labels(matching.labels)})"
    if grouped:
        yield f"{'group_left' if matching.card == 'many-to-one' else 'group_right'} ({_labels(matching.include)})"
    left, right = matching.fill_left, matching.fill_right
    if left is not None and right is not None and (left == right or (math.isnan(left) and math.isnan(right))):
        yield f"fill ({format_number(left)})"
        return
    if left is not None:
        yield f"fill_left ({format_number(left)})"
    if right is not None:
        yield f"fill_right ({format_number(right)})"


_LABEL_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_METRIC_NAME: Final = re.compile("[A-Za-z_:][A-Za-z0-9_:]*")
_NOT_METRICS: Final = frozenset({"bool", "on", "ignoring", "group_left", "group_right", "inf", "nan"})


def _labels(names: tuple[str, ...]) -> str:
    return ", ".join(_label(name) for name in names)


def _label(name: str) -> str:
    return name if _LABEL_NAME.fullmatch(name) and name.lower() not in ("inf", "nan") else quote(name)


def _selector(expr: VectorSelector) -> str:
    """The text of a selector, without its modifiers. A name that needs quotes comes first within the braces."""
    matchers, name = list(expr.matchers), expr.name
    if name is not None:
        named = Matcher(METRIC_NAME, "=", name)
        plain = _METRIC_NAME.fullmatch(name) is not None and name.lower() not in _NOT_METRICS
        if plain and matchers[:1] == [named]:
            other_matchers = ", ".join(_matcher(matcher) for matcher in matchers[1:])
            return f"{name}{{{other_matchers}}}" if other_matchers else name
        return "{" + ", ".join(quote(name) if matcher == named else _matcher(matcher) for matcher in matchers) + "}"
    return "{" + ", ".join(_matcher(matcher) for matcher in matchers) + "}"


def _matcher(matcher: Matcher) -> str:
    name = matcher.name if _LABEL_NAME.fullmatch(matcher.name) else quote(matcher.name)
    return f"{name}{matcher.op}{quote(matcher.value)}"


def _modifiers(expr: VectorSelector) -> str:
    extended = " anchored" if expr.anchored else " smoothed" if expr.smoothed else ""
    return extended + _shift(expr.at, expr.offset)


def _shift(at: At | None, offset: Duration) -> str:
    text = ""
    if at is not None:
        text = f" @ {at.at}()" if isinstance(at.at, str) else f" @ {Decimal(at.at) / 1000:.3f}"
    if isinstance(offset, int):
        return f"{text} offset {format_duration(offset)}" if offset else text
    offset_text = duration_text(offset)
    return f"{text} offset {offset_text}" if isinstance(offset, DurationCall) else f"{text} offset ({offset_text})"


def _subquery_suffix(expr: Subquery) -> str:
    step = "" if expr.step is None else duration_text(expr.step)
    return f"[{duration_text(expr.range)}:{step}]{_shift(expr.at, expr.offset)}"


_PRECEDENCE: Final = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 4}
_UNARY: Final = 3
_ATOM: Final = 5


def duration_text(duration: Duration) -> str:
    return format_duration(duration) if isinstance(duration, int) else _duration(duration)[0]


def _duration(duration: DurationExpr) -> tuple[str, int]:
    """(text, precedence) of a duration expression."""
    match duration:
        case DurationLiteral(ms=ms, is_number=is_number):
            is_whole_ms = not is_number and ms == int(ms)
            return (format_duration(int(ms)) if is_whole_ms else format_number(ms / 1000)), _ATOM
        case DurationCall(func=func, args=args):
            name = func if func in ("step", "range") else f"{func}_of"
            return f"{name}({', '.join(_duration(arg)[0] for arg in args)})", _ATOM
        case DurationUnary(op=op, operand=operand):
            return op + _bound(operand, _UNARY), _UNARY
        case DurationBinary(op=op, lhs=lhs, rhs=rhs):
            level = _PRECEDENCE[op]
            left = _bound(lhs, level + 1 if op == "^" else level)
            return f"{left} {op} {_bound(rhs, _UNARY if op == '^' else level + 1)}", level


def _bound(duration: DurationExpr, at_least: int) -> str:
    """The text of an operand, in parentheses if its precedence is lower than `at_least`."""
    text, level = _duration(duration)
    return text if level >= at_least else f"({text})"


def format_number(value: float, *, is_duration: bool = False) -> str:
    """The shortest decimal text of a number, without an exponent. If `is_duration`, whole milliseconds are written as a
    duration."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if is_duration and value and float(value * 1000).is_integer() and round(value * 1000) / 1000 == value:
        return format_duration(round(value * 1000))
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


_NOT_PRINTABLE: Final = re.compile(r'["\\]|[^ -~]')
_NAMED_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def quote(value: str) -> str:
    """A string literal in double quotes."""
    return '"' + _NOT_PRINTABLE.sub(_escaped, value) + '"'


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[character]
    point = ord(character)
    if character.isprintable():
        return character
    return f"\\x{point:02x}" if point < 0x80 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def pretty(expr: Expr) -> str:
    """The text as /api/v1/format_query returns it: a node longer than LINE_WIDTH is spread over several lines."""
    return "\n".join(_Layout().lines(expr, 0))


class _Layout:
    """Caches the width of each node on one line, so that a layout takes time linear in the size of the tree."""

    def __init__(self) -> None:
        self._widths: dict[int, int] = {}

    def width(self, expr: Expr) -> int:
        width = self._widths.get(id(expr))
        if width is None:
            width = sum(len(piece) if isinstance(piece, str) else self.width(piece) for piece in _pieces(expr))
            self._widths[id(expr)] = width
        return width

    def lines(self, expr: Expr, level: int) -> list[str]:
        """The lines of a node, the first indented by `level`."""
        indent = INDENT * level
        if isinstance(expr, Remote):
            return self.lines(expr.expr, level)
        if isinstance(expr, Unary):
            inner = self.lines(expr.expr, level)
            return [f"{indent}{expr.op}{inner[0].lstrip()}", *inner[1:]]
        if isinstance(expr, Subquery):
            inner = self.lines(expr.expr, level)
            return [*inner[:-1], inner[-1] + _subquery_suffix(expr)]
        if self.width(expr) <= LINE_WIDTH or not isinstance(expr, Binary | Call | Aggregate | Paren):
            return [indent + to_text(expr)]
        if isinstance(expr, Binary):
            middle = f"{indent}{_operator(expr)}"
            return [*self.lines(expr.lhs, level + 1), middle, *self.lines(expr.rhs, level + 1)]
        if isinstance(expr, Call):
            return self._block(f"{indent}{expr.func}(", expr.args, level)
        if isinstance(expr, Aggregate):
            args = (expr.expr,) if expr.param is None else (expr.param, expr.expr)
            return self._block(f"{indent}{_aggregator(expr)}(", args, level)
        return self._block(f"{indent}(", (expr.expr,), level)

    def _block(self, opening: str, args: tuple[Expr, ...], level: int) -> list[str]:
        lines = [opening]
        for position, arg in enumerate(args):
            inner = self.lines(arg, level + 1)
            if position < len(args) - 1:
                inner[-1] += ","
            lines += inner
        return [*lines, f"{INDENT * level})"]


def to_json(expr: Expr) -> dict[str, Any]:
    """The tree as /api/v1/parse_query returns it. A duration expression appears as 0 ms, with its text in a second
    field."""
    match expr:
        case NumberLiteral(value=value):
            return {"type": "numberLiteral", "val": format_number(value)}
        case StringLiteral(value=value):
            return {"type": "stringLiteral", "val": value}
        case VectorSelector():
            return {"type": "vectorSelector", **_selector_json(expr)}
        case MatrixSelector(vector=vector, range=range_):
            return {"type": "matrixSelector", **_selector_json(vector), **_duration_json("range", range_)}
        case Subquery(expr=inner):
            step = {"step": 0} if expr.step is None else _duration_json("step", expr.step)
            return {
                "type": "subquery",
                "expr": to_json(inner),
                **_duration_json("range", expr.range),
                **_duration_json("offset", expr.offset),
                **step,
                **_at_json(expr.at),
            }
        case Paren(expr=inner):
            return {"type": "parenExpr", "expr": to_json(inner)}
        case Unary(op=op, expr=inner):
            return {"type": "unaryExpr", "op": op, "expr": to_json(inner)}
        case Binary():
            return _binary_json(expr)
        case Call(func=func, args=args):
            return {"type": "call", "func": _function_json(func), "args": [to_json(arg) for arg in args]}
        case Aggregate(op=op, expr=inner, param=param):
            return {
                "type": "aggregation",
                "op": op,
                "expr": to_json(inner),
                "param": None if param is None else to_json(param),
                "grouping": list(expr.grouping),
                "without": expr.without,
            }
        case Remote(expr=inner):
            return to_json(inner)


def _binary_json(expr: Binary) -> dict[str, Any]:
    matching = expr.matching
    node: dict[str, Any] = {
        "type": "binaryExpr",
        "op": expr.op,
        "lhs": to_json(expr.lhs),
        "rhs": to_json(expr.rhs),
        "matching": None,
        "bool": expr.return_bool,
    }
    if matching is not None:
        node["matching"] = {
            "card": matching.card,
            "labels": list(matching.labels),
            "on": matching.on,
            "include": list(matching.include),
            "fillValues": {
                side: None if fill is None else format_number(fill)
                for side, fill in (("lhs", matching.fill_left), ("rhs", matching.fill_right))
            },
        }
    return node


def _function_json(func: str) -> dict[str, Any]:
    signature = FUNCTIONS[func]
    return {
        "name": func,
        "argTypes": [str(arg) for arg in signature.args],
        "variadic": signature.variadic,
        "returnType": str(signature.returns),
    }


def _selector_json(expr: VectorSelector) -> dict[str, Any]:
    return {
        "name": expr.name or "",
        "matchers": [{"name": m.name, "type": m.op, "value": m.value} for m in expr.matchers],
        **_duration_json("offset", expr.offset),
        **_at_json(expr.at),
        "anchored": expr.anchored,
        "smoothed": expr.smoothed,
    }


def _duration_json(name: str, duration: Duration) -> dict[str, Any]:
    if isinstance(duration, int):
        return {name: duration}
    return {name: 0, f"{name}Expr": duration_text(duration)}


def _at_json(at: At | None) -> dict[str, Any]:
    if at is None:
        return {"timestamp": None, "startOrEnd": None}
    if isinstance(at.at, int):
        return {"timestamp": at.at, "startOrEnd": None}
    return {"timestamp": None, "startOrEnd": at.at}
