"""Regular expressions of queries: RE2 with bounds on the cost. They match whole values, and `.` matches a line feed.

Source: https://prometheus.io/docs/prometheus/latest/querying/basics/#regular-expressions.

The binding compiles with the interpreter lock held and matches without it, and neither can be interrupted. The bounds
therefore limit a compilation to about 20 ms and a match to about 0.2 s. The caller's `check` is called between matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import re2
from numpy.typing import NDArray

from shared.errors import NotExecutable
from shared.promql.ast import Matcher

PATTERN_BYTES_MAX: Final = 64 << 10
"""Enough for 10,000 alternatives of a few characters."""

WEIGHT_MAX: Final = 2_000
"""The highest `weight` of a pattern. RE2 takes about 10 µs to compile one unit."""
WEIGHT_TOTAL_MAX: Final = 20_000
"""The highest total weight of the patterns of one request: 0.2 s, one pattern at a time."""
WEIGHT_INSTANT: Final = 100
"""Patterns of at most this total weight compile within a millisecond."""

COMPILED_BYTES_MAX: Final = 512 << 10
"""Memory of one compiled pattern with its automata. RE2 refuses a program that does not fit into two thirds of it,
about 30,000 instructions. Only nested repetitions get there: they multiply what `weight` adds up."""

GROUPS_MAX: Final = 200
"""Groups of a capturing pattern. The time in which RE2 fills them grows with their number times the text's length."""

WORK_MAX: Final = 1 << 26
"""Bytes of a text × instructions of a program × (1 + groups) of one match. If the automaton outgrows its memory, RE2
follows every instruction at every byte, which takes 1 to 3 ns each."""
WORK_UNCHECKED_MAX: Final = 1 << 22
WORK_TEXT: Final = 1 << 14
"""The least work that a text counts as, so that the deadline is checked at least every 256 texts."""

CACHED_LENGTH_MAX: Final = 1024
"""Longer patterns are checked anew each time, so that the cache of results stays within a megabyte."""

_QUANTIFIER: Final = re.compile(r"[?*+]|\{(\d+)(?:,(\d*))?\}")
_UNICODE_CLASS: Final = re.compile(r"\\[pP]")
_UNICODE_CLASS_WEIGHT: Final = 100
_SMALL_PARTS: Final = 10
_BYTES: Final = 80
"""How many alternatives or character classes, and how many bytes, have the weight 1."""

_HIDING: Final = re.compile(r"\\[xuU0-7]")
"""Escapes of a PromQL string that can hide a character of a pattern's syntax."""

_LITERAL: Final = r"(?:[^\\.+*?()|\[\]{}^$]++|\\[\\.+*?()\[\]{}^$/\-])*+"
_LITERALS: Final = re.compile(rf"\((?:\?:)?({_LITERAL}(?:\|{_LITERAL})*)\)|({_LITERAL}(?:\|{_LITERAL})*)")
_AROUND_LITERAL: Final = re.compile(rf"(\.[*+])?({_LITERAL})(\.[*+])?")
_ESCAPED: Final = re.compile(r"\\(.)")


def weight(pattern: str) -> int:
    """What compiling a pattern may cost, in units of about 10 µs. A repetition counts 1 (`x{1,1000}` counts 1,000), a
    Unicode class such as `\\pL` counts 100; ten alternatives or other classes count 1, and so do 80 bytes."""
    repetitions = sum(_repetitions(match) for match in _QUANTIFIER.finditer(pattern))
    classes = len(_UNICODE_CLASS.findall(pattern))
    small_parts = pattern.count("|") + pattern.count("[") + pattern.count("\\")
    return repetitions + _UNICODE_CLASS_WEIGHT * classes + small_parts // _SMALL_PARTS + len(pattern) // _BYTES


def _repetitions(match: re.Match[str]) -> int:
    """The number of repetitions that a quantifier counts as. RE2 itself refuses counts above 1,000."""
    counts = [min(int(count[:5]), 1_000) for count in match.groups() if count]
    return max(counts, default=1)


@lru_cache(maxsize=1024)
def is_instant(query: str) -> bool:
    """Whether all patterns in the text of a query together compile within a millisecond. For short queries only,
    because the results are cached."""
    return weight(query) <= WEIGHT_INSTANT and _HIDING.search(query) is None


class Regex:
    """One pattern. Raises ValueError with the reason if RE2 or a bound refuses it.

    `literals` are the texts that match the pattern if it is just `a|b|c` or `(a|b|c)`, else None. These patterns, and
    those such as `.*a.*`, do not need RE2. Without `captures`, groups are ignored.
    """

    def __init__(self, pattern: str, *, captures: bool = False) -> None:
        _require(_size_error(pattern))
        self.literals = None if captures else _literals(pattern)
        self._test = None if captures else _simple_test(pattern, self.literals)
        self._compiled: Any = None if self._test is not None else _compiled_within_bounds(pattern, captures)
        self.groups: int = 0 if self._compiled is None or not captures else self._compiled.groups
        if self.groups > GROUPS_MAX:
            raise ValueError(f"the pattern has {self.groups} groups, at most {GROUPS_MAX} are allowed")
        self._work = 0 if self._compiled is None else self._compiled.programsize * (1 + self.groups)

    @property
    def group_numbers(self) -> dict[str, int]:
        """The numbers of the named groups."""
        return dict(self._compiled.groupindex) if self.groups else {}

    def matches(self, text: str) -> bool:
        """Raises NotExecutable for a text that is too long for the pattern."""
        return bool(self.matching([text.encode(errors="surrogatepass")], unchecked)[0])

    def matching(self, texts: Sequence[bytes], check: Callable[[], None]) -> NDArray[np.bool_]:
        """bool[n]: which of these UTF-8 texts match as a whole. `check` is called regularly, and may raise.

        Raises NotExecutable for a text that is too long for the pattern.
        """
        if self._test is not None:
            return np.fromiter(map(self._test, texts), np.bool_, len(texts))
        return np.fromiter((match is not None for match in self.captured(texts, check)), np.bool_, len(texts))

    def captured(self, texts: Sequence[bytes], check: Callable[[], None]) -> Iterator[re2._Match | None]:
        """RE2's match of each of these UTF-8 texts as a whole, or None. `check` and errors are as in `matching`."""
        fullmatch = self._compiled.fullmatch
        unchecked = 0
        for text in texts:
            work = self._work * len(text)
            if work > WORK_MAX:
                raise self._too_long(len(text))
            unchecked += max(work, WORK_TEXT)
            if unchecked > WORK_UNCHECKED_MAX:
                check()
                unchecked = work
            yield fullmatch(text)

    def _too_long(self, size: int) -> NotExecutable:
        groups = f" and {self.groups} groups" if self.groups else ""
        return NotExecutable(
            f"a label value of {size} bytes is too long for a regular expression with {self._compiled.programsize} "
            f"instructions{groups}: at most {WORK_MAX // self._work} bytes; use a simpler expression"
        )


def unchecked() -> None:
    """A `check` for work that nothing interrupts."""


def bound_error(pattern: str) -> str | None:
    """Why a capturing pattern is too costly to compile, as far as can be told without compiling it; else None."""
    return _size_error(pattern) or _weight_error(pattern)


def _size_error(pattern: str) -> str | None:
    size = len(pattern.encode())
    if size <= PATTERN_BYTES_MAX:
        return None
    return f"the pattern is {size} bytes long, at most {PATTERN_BYTES_MAX} are allowed"


def _weight_error(pattern: str) -> str | None:
    pattern_weight = weight(pattern)
    if pattern_weight <= WEIGHT_MAX:
        return None
    return (
        f"the pattern weighs {pattern_weight}, at most {WEIGHT_MAX} is allowed: a repetition weighs 1, x{{1,1000}} "
        rf"weighs 1,000, a Unicode class such as \pL {_UNICODE_CLASS_WEIGHT}, {_SMALL_PARTS} alternatives or other "
        f"classes 1, {_BYTES} bytes 1"
    )


def _require(error: str | None) -> None:
    if error is not None:
        raise ValueError(error)


def _compiled_within_bounds(pattern: str, captures: bool) -> Any:
    _require(_weight_error(pattern))
    return compiled(pattern, dot_nl=True, never_capture=not captures)


def compiled(pattern: str, **flags: bool) -> Any:
    """The pattern as RE2 compiles it with these options, within COMPILED_BYTES_MAX. The caller must have bounded its
    `weight`. Raises ValueError with the reason if RE2 refuses it."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = COMPILED_BYTES_MAX
    for name, flag in flags.items():
        setattr(options, name, flag)
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "not RE2"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        if "too large" in text:
            text += f": it needs more than {COMPILED_BYTES_MAX} bytes of memory; use fewer or smaller repetitions"
        raise ValueError(text) from None


def _literals(pattern: str) -> list[str] | None:
    match = _LITERALS.fullmatch(pattern)
    if match is None:
        return None
    literals = match[2] if match[1] is None else match[1]
    return [_unescaped(literal) for literal in literals.split("|")]  # `\|` is not among the escapes


def _unescaped(literal: str) -> str:
    return _ESCAPED.sub(r"\1", literal) if "\\" in literal else literal


def _simple_test(pattern: str, literals: Sequence[str] | None) -> Callable[[bytes], bool] | None:
    """A test of texts that is equivalent to a pattern such as `a|b`, `a.*`, `.+a` or `.*a.*`; None for other patterns.
    It takes about 50 ns; RE2 takes 2 µs."""
    if literals is not None:
        return frozenset(literal.encode() for literal in literals).__contains__
    match = _AROUND_LITERAL.fullmatch(pattern)
    if match is None or (match[1] and match[3] and not match[2]):  # `.+.+` counts characters, not bytes
        return None
    literal = _unescaped(match[2]).encode()
    before, after = match[1], match[3]
    size_min = len(literal) + (before == ".+") + (after == ".+")
    if before and after:
        first, last = int(before == ".+"), -1 if after == ".+" else None
        return lambda text: len(text) >= size_min and literal in text[first:last]
    if before:
        return lambda text: len(text) >= size_min and text.endswith(literal)
    return lambda text: len(text) >= size_min and text.startswith(literal)


def regex_error(pattern: str) -> str | None:
    """Why a pattern cannot be used, or None."""
    return _checked(pattern)[0]


def matches_empty(matcher: Matcher) -> bool:
    """Whether a matcher also selects series that lack its label. Its pattern must compile."""
    match matcher.op:
        case "=":
            return matcher.value == ""
        case "!=":
            return matcher.value != ""
        case "=~":
            return _checked(matcher.value)[1]
        case _:
            return not _checked(matcher.value)[1]


def _checked(pattern: str) -> tuple[str | None, bool]:
    """(why the pattern cannot be used, or None; whether it matches the empty string)."""
    return _checked_cached(pattern) if len(pattern) <= CACHED_LENGTH_MAX else _check(pattern)


def _check(pattern: str) -> tuple[str | None, bool]:
    try:
        return None, Regex(pattern).matches("")
    except ValueError as error:
        return str(error), False


_checked_cached = lru_cache(maxsize=1024)(_check)
