"""The tokens of a query: how text is split into the grammar's terminals, and the values of literals.

PromQL's tokens depend on their context. Inside braces, every word is a label name. Inside brackets, a colon is a
separator; outside, it is part of a name. Literals are those of Go (https://go.dev/ref/spec#String_literals).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from lark import Token

from shared.durations import parse_duration_ms
from shared.promql.functions import AGGREGATORS
from shared.promql.positions import Fault

NESTING_MAX: Final = 200
"""Levels of brackets, and of the tree. Evaluator, printer and planner recurse, with a few Python frames for each level,
and must stay below the interpreter's default limit of 1,000."""

TOKENS_MAX: Final = 25_000
"""A token takes 5 to 10 µs to parse, so the longest query takes about a quarter of a second."""

DURATION_MS_MAX: Final = 292 * 365 * 86_400_000
"""The longest duration that 64-bit nanoseconds can hold, as in Prometheus."""

NUMBER_LENGTH_MAX: Final = 1_000
"""More digits than any float needs."""

_KEYWORDS: Final = {
    **dict.fromkeys(AGGREGATORS, "AGGREGATOR"),
    **{word.lower(): word for word in ("AND", "OR", "UNLESS", "ATAN2", "BOOL", "ON", "IGNORING")},
    **{word.lower(): word for word in ("GROUP_LEFT", "GROUP_RIGHT", "BY", "WITHOUT", "OFFSET")},
    **{word.lower(): word for word in ("START", "END", "STEP", "RANGE")},
    **dict.fromkeys(("fill", "fill_left", "fill_right"), "FILL"),
    **dict.fromkeys(("anchored", "smoothed"), "EXTEND"),
    **dict.fromkeys(("min", "max"), "MIN_MAX"),
    **dict.fromkeys(("min_of", "max_of"), "MIN_MAX_OF"),
    **dict.fromkeys(("inf", "nan"), "NUMBER"),
}

_OPERATORS: Final = {
    "+": "ADD",
    "-": "SUB",
    "*": "MUL",
    "/": "DIV",
    "%": "MOD",
    "^": "POW",
    "==": "EQLC",
    "!=": "NEQ",
    "<": "LSS",
    "<=": "LTE",
    ">": "GTR",
    ">=": "GTE",
    "</": "TRIM_UPPER",
    ">/": "TRIM_LOWER",
    "=": "EQL",
    "=~": "EQL_REGEX",
    "!~": "NEQ_REGEX",
    "(": "LPAR",
    ")": "RPAR",
    "{": "LBRACE",
    "}": "RBRACE",
    "[": "LBRACKET",
    "]": "RBRACKET",
    ",": "COMMA",
    "@": "AT",
    ":": "COLON",
}
_BRACKETS: Final = {")": "(", "}": "{", "]": "["}
_CLOSING: Final = {opening: closing for closing, opening in _BRACKETS.items()}
_BRACKET_NAMES: Final = {"(": "left parenthesis", "{": "left brace", "[": "left bracket"}


_BLANK: Final = r"(?:[ \t\r\n]++|#[^\n]*+)*+"


def _words(name: str) -> re.Pattern[str]:
    # Repetitions are possessive: a long run of blanks or escapes must not cause backtracking.
    number = r"0[xX][0-9A-Za-z_.]*|\.?[0-9](?:[eE][+-][0-9]|[0-9A-Za-z_.])*+"
    string = r"""'(?:[^'\\\n]++|\\.)*+'|"(?:[^"\\\n]++|\\.)*+"|`[^`]*+`"""
    operator = "|".join(re.escape(text) for text in sorted(_OPERATORS, key=len, reverse=True))
    return re.compile(
        f"{_BLANK}(?:(?P<name>{name})|(?P<operator>{operator})|(?P<number>{number})|(?P<string>{string}))"
    )


_OUTSIDE: Final = _words("[A-Za-z_:][A-Za-z0-9_:]*")
_INSIDE: Final = _words("[A-Za-z_][A-Za-z0-9_]*")
_MODES: Final = {
    "LBRACE": (_INSIDE, True),
    "LBRACKET": (_INSIDE, False),
    "RBRACE": (_OUTSIDE, False),
    "RBRACKET": (_OUTSIDE, False),
}
_SKIP: Final = re.compile(_BLANK)


def tokens(text: str) -> Iterator[Token]:
    """The tokens of `text`, without comments and white space. Raises Fault for text that is not a token, for unbalanced
    brackets, and for too many tokens or levels."""
    at = count = 0
    opened: list[tuple[str, int]] = []
    words, in_braces = _OUTSIDE, False
    while match := words.match(text, at):
        kind = match.lastgroup or ""
        word = match[kind]
        start, at = match.start(kind), match.end()
        count += 1
        if count > TOKENS_MAX:
            raise Fault(f"query has more than {TOKENS_MAX} words", start, executable=True)
        if kind == "name":
            kind = "IDENT" if in_braces else _KEYWORDS.get(word.lower(), "IDENT")
        elif kind == "operator":
            kind = _OPERATORS[word]
            if word in _BRACKET_NAMES:
                opened.append((word, start))
                if len(opened) > NESTING_MAX:
                    raise Fault(f"query is nested deeper than {NESTING_MAX} levels", start, executable=True)
            elif word in _BRACKETS and (not opened or opened.pop()[0] != _BRACKETS[word]):
                raise Fault(f'unexpected "{word}": no "{_BRACKETS[word]}" is open here', start)
            if kind in _MODES:
                words, in_braces = _MODES[kind]
        elif kind == "number":
            kind = "DURATION" if _DURATION.fullmatch(word) else "NUMBER"
        else:
            kind = "STRING"
        yield Token(kind, word, start, end_pos=at)
    match = _SKIP.match(text, at)
    at = match.end() if match else at
    if at < len(text):
        raise _unexpected_character(text, at, opened)
    if opened:
        bracket, start = opened[-1]
        raise Fault(f'unclosed {_BRACKET_NAMES[bracket]}, expected "{_CLOSING[bracket]}"', start)


def _unexpected_character(text: str, at: int, opened: list[tuple[str, int]]) -> Fault:
    character = text[at]
    if character == "`":
        return Fault("unterminated raw string", at)
    if character in "'\"":
        return Fault("unterminated quoted string", at)
    inside = {"{": " inside braces", "[": " inside brackets"}.get(opened[-1][0] if opened else "", "")
    return Fault(f"unexpected character{inside}: {character!r}", at)


_DURATION: Final = re.compile("(?:[0-9]+(?:ms|[smhdwy]))+")
_DIGITS: Final = "[0-9]++(?:_[0-9]++)*+"
_FLOAT: Final = re.compile(rf"(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEX: Final = re.compile("0[xX](?:_?[0-9A-Fa-f])+")
_OCTAL: Final = re.compile("0(?:_?[0-7])+")


def number(token: Token) -> float:
    """The value of a NUMBER (decimal, hexadecimal, octal with a leading 0, Inf, NaN) or, in seconds, of a DURATION.
    Raises Fault."""
    if token.type == "DURATION":
        return duration_ms(token) / 1000
    word, start = str(token), token.start_pos or 0
    if len(word) > NUMBER_LENGTH_MAX:
        raise Fault(f"bad number or duration syntax: {_clip(word)!r}", start)
    special = {"inf": math.inf, "nan": math.nan}.get(word.lower())
    if special is not None:
        return special
    digits = word.replace("_", "")
    if _HEX.fullmatch(word):
        value = int(digits, 16)
    elif _OCTAL.fullmatch(word):
        value = int(digits, 8)
    elif _FLOAT.fullmatch(word):
        parsed = float(digits)
        if math.isinf(parsed):
            raise Fault(f"number {_clip(word)!r} is out of range", start)
        return parsed
    else:
        raise Fault(f"bad number or duration syntax: {_clip(word)!r}", start)
    if value >= 1 << 63:
        raise Fault(f"number {_clip(word)!r} is out of range", start)
    return float(value)


def duration_ms(token: Token) -> int:
    """The milliseconds of a DURATION. Raises Fault."""
    try:
        ms = parse_duration_ms(str(token))
    except ValueError:
        message = f"not a valid duration: {_clip(str(token))!r}, expected one such as 5m or 1h30m"
        raise Fault(message, token.start_pos or 0) from None
    if ms > DURATION_MS_MAX:
        raise Fault("duration out of range", token.start_pos or 0)
    return ms


_ESCAPE: Final = re.compile(
    r"""\\(?:([abfnrtv\\'"])|x([0-9A-Fa-f]{2})|([0-3][0-7]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)""", re.DOTALL
)
_SIMPLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def string(token: Token) -> str:
    r"""The value of a STRING. Raises Fault where `\x` and octal escapes make bytes that are not UTF-8."""
    quote, body = token[0], token[1:-1]
    if quote == "`" or "\\" not in body:
        return body
    start = token.start_pos or 0
    value = _ESCAPE.sub(lambda match: _unescaped(match, quote, start + 1 + match.start()), body)
    try:
        return value.encode("utf-8", "surrogateescape").decode()
    except UnicodeDecodeError:
        raise Fault("the escapes of the string do not make valid UTF-8", start) from None


def _unescaped(match: re.Match[str], quote: str, offset: int) -> str:
    """The character of an escape; for a byte of 0x80 or above, the surrogate that represents it. Raises Fault for an
    invalid escape, whose offset is `offset`."""
    simple, hexadecimal, octal, short, long = match.groups()
    if simple is not None:
        if simple not in "'\"" or simple == quote:
            return _SIMPLE.get(simple, simple)
    elif hexadecimal is not None or octal is not None:
        byte = int(octal, 8) if hexadecimal is None else int(hexadecimal, 16)
        return chr(byte if byte < 0x80 else 0xDC00 + byte)
    elif short is not None or long is not None:
        point = int(short or long, 16)
        if point <= 0x10FFFF and not 0xD800 <= point <= 0xDFFF:
            return chr(point)
    raise Fault(f"invalid escape sequence {match[0]!r} in string", offset)


def _clip(word: str) -> str:
    return word if len(word) <= 40 else word[:40] + "…"
