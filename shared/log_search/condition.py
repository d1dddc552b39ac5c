"""A condition on values that are JSON, such as `$.level = "error" and not $.a.b >= 3`.

    condition  = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation   = "not" negation | "(" condition ")" | test
    test       = "exists" path | path operator literal
    path       = "$" {"." name | "[" text "]" | "[" number "]"}
    operator   = "=" | "==" | "!=" | "<" | "<=" | ">" | ">="
    literal    = text | number | "true" | "false" | "null"

A text is in double quotes, with JSON's escapes, or in single quotes, without escapes. Comparisons follow RFC 9535
(section 2.3.5.2.2): numbers by value, texts by code point. A missing value, or one of another type, is neither equal
nor less, so `!=` is true for it. A record value that is not JSON satisfies no condition, not even a negated one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

import orjson

LENGTH_MAX: Final = 4096
DEPTH_MAX: Final = 32
"""The deepest nesting of brackets and negations."""
VALUE_BYTES_MAX: Final = 1 << 20
"""Longer values are not examined: decoding one would take tens of megabytes and block for some 20 ms."""

Test = Callable[[Any], bool]

_MISSING: Final = object()
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<path>\$) | (?P<name>\.[^\W\d]\w*) | (?P<index>\[\s*-?\d{1,9}\s*\]) |
    (?P<member>\[\s*(?:"(?:[^"\\]|\\.)*"|'[^']*')\s*\]) |
    (?P<operator><=|>=|!=|==|=|<|>) | (?P<bracket>[()]) |
    (?P<text>"(?:[^"\\]|\\.)*"|'[^']*') | (?P<number>-?\d[\d.eE+-]*) | (?P<word>[A-Za-z]+) | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


def condition(text: str) -> Test:
    """Compile the condition to a test of decoded JSON. Raises ValueError, which names the position."""
    if len(text) > LENGTH_MAX:
        raise ValueError(f"the condition has {len(text)} characters, at most {LENGTH_MAX} are allowed")
    parser = _Parser(text)
    test = parser.condition(0)
    parser.require("end", "and, or, or the end of the condition")
    return test


def satisfies(value: bytes, test: Test) -> bool:
    """Whether the value is JSON of at most VALUE_BYTES_MAX bytes that satisfies the condition."""
    if len(value) > VALUE_BYTES_MAX:
        return False
    try:
        return test(orjson.loads(memoryview(value)))  # orjson rejects subclasses of bytes such as HeadedValue
    except orjson.JSONDecodeError:
        return False


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = self.begin = 0
        self.kind = self.token = ""
        self._next()

    def _next(self) -> tuple[str, str]:
        """Advance to the next token and set its kind, text and position. Returns kind and text of the previous one."""
        previous = self.kind, self.token
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            begin = len(self._text) - len(self._text[self._at :].lstrip())
            raise ValueError(f"{self._text[begin : begin + 20]!r} at character {begin + 1} is not part of a condition")
        self.kind = match.lastgroup or ""
        self.token = match[self.kind]
        self.begin = match.start(self.kind)
        self._at = match.end()
        return previous

    def require(self, kind: str, wanted: str) -> str:
        if self.kind != kind:
            self._refuse(wanted)
        return self._next()[1]

    def _refuse(self, wanted: str) -> NoReturn:
        shown = repr(self.token[:20]) if self.token else "its end"
        raise ValueError(f"the condition has {shown} at character {self.begin + 1}; there must be {wanted}")

    def _accepts(self, kind: str, token: str) -> bool:
        if self.kind != kind or self.token.lower() != token:
            return False
        self._next()
        return True

    def condition(self, depth: int) -> Test:
        return self._joined("or", any, lambda: self._joined("and", all, lambda: self._negation(depth)))

    def _joined(self, word: str, join: Callable[[Any], bool], part: Callable[[], Test]) -> Test:
        tests = [part()]
        while self._accepts("word", word):
            tests.append(part())
        return tests[0] if len(tests) == 1 else lambda value: join(test(value) for test in tests)

    def _negation(self, depth: int) -> Test:
        if depth > DEPTH_MAX:
            raise ValueError(f"the condition is nested too deeply: at most {DEPTH_MAX} brackets and negations")
        if self._accepts("word", "not"):
            negated = self._negation(depth + 1)
            return lambda value: not negated(value)
        if self._accepts("bracket", "("):
            inner = self.condition(depth + 1)
            self._close()
            return inner
        return self._test()

    def _close(self) -> None:
        if not self._accepts("bracket", ")"):
            self._refuse("')'")

    def _test(self) -> Test:
        if self._accepts("word", "exists"):
            has_bracket = self._accepts("bracket", "(")
            path = self._path()
            if has_bracket:
                self._close()
            return lambda value: path(value) is not _MISSING
        path = self._path()
        compare = _OPERATORS[self.require("operator", "one of = != < <= > >=")]
        literal = self._literal()
        return lambda value: compare(path(value), literal)

    def _path(self) -> Callable[[Any], Any]:
        self.require("path", "a path such as $.level, exists, not or '('")
        steps: list[str | int] = []
        while self.kind in ("name", "index", "member"):
            kind, token = self._next()
            inner = token[1:] if kind == "name" else token[1:-1].strip()
            steps.append(inner if kind == "name" else int(inner) if kind == "index" else _decoded(inner))
        return lambda value: _walk(value, steps)

    def _literal(self) -> Any:
        kind, token = self.kind, self.token
        if kind not in ("text", "number") and (kind != "word" or token not in _CONSTANTS):
            self._refuse("a text in quotes, a number, true, false or null")
        self._next()
        return _CONSTANTS[token] if kind == "word" else _decoded(token)


def _decoded(token: str) -> Any:
    """The value of a text or number token."""
    if token[0] == "'":
        return token[1:-1]
    try:
        return orjson.loads(token)
    except orjson.JSONDecodeError:
        raise ValueError(f"{token[:40]!r} in the condition is neither a text nor a number as in JSON") from None


def _walk(value: Any, steps: list[str | int]) -> Any:
    for step in steps:
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return _MISSING
        elif not isinstance(value, list) or not -len(value) <= step < len(value):
            return _MISSING
        value = value[step]
    return value


def _equal(value: Any, literal: Any) -> bool:
    return bool(value == literal) and isinstance(value, bool) == isinstance(literal, bool)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Restrict a comparison to two numbers or two texts; it is false for other pairs."""

    def ordered(value: Any, literal: Any) -> bool:
        if isinstance(literal, str):
            return isinstance(value, str) and compare(value, literal)
        if isinstance(value, bool) or isinstance(literal, bool) or literal is None:
            return False
        return isinstance(value, (int, float)) and compare(value, literal)

    return ordered


_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": _equal,
    "==": _equal,
    "!=": lambda value, literal: not _equal(value, literal),
    "<": _ordered(operator.lt),
    ">": _ordered(operator.gt),
    "<=": lambda value, literal: _at_most(value, literal),
    ">=": lambda value, literal: _at_least(value, literal),
}
_less_or_equal, _greater_or_equal = _ordered(operator.le), _ordered(operator.ge)


def _at_most(value: Any, literal: Any) -> bool:
    return _less_or_equal(value, literal) or _equal(value, literal)  # true <= true, as in the RFC


def _at_least(value: Any, literal: Any) -> bool:
    return _greater_or_equal(value, literal) or _equal(value, literal)
