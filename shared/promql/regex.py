"""Regular expressions of label matchers: RE2, where `.` matches a line feed too and the whole value must match.

Source: https://prometheus.io/docs/prometheus/latest/querying/basics/#regular-expressions.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import re2

from shared.promql.ast import Matcher

PATTERN_BYTES_MAX: Final = 64 << 10
"""Enough for 10,000 alternatives of a few characters."""

REPETITIONS_MAX: Final = 12_000
"""Quantifiers of a pattern, where `x{1,1000}` counts as 1,000. The time that RE2 takes to compile a chain of them is
quadratic: about 0.3 s for this many."""

_QUANTIFIER: Final = re.compile(r"[?*+]|\{(\d+)(?:,(\d*))?\}")

CACHED_LENGTH_MAX: Final = 1024
"""Longer patterns are compiled each time, so that the cache of results stays within a megabyte."""


def compile_pattern(pattern: str) -> Any:
    """The compiled pattern, to be used with `fullmatch(text) is not None`. Raises ValueError with RE2's reason.

    It captures nothing: with captures RE2 takes minutes to match a pattern of many thousand groups.
    """
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise ValueError(f"the pattern is {len(pattern.encode())} bytes long, at most {PATTERN_BYTES_MAX} are allowed")
    repetitions = sum(_repetitions(match) for match in _QUANTIFIER.finditer(pattern))
    if repetitions > REPETITIONS_MAX:
        raise ValueError(f"the pattern has {repetitions} repetitions, at most {REPETITIONS_MAX} are allowed")
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "not RE2"
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None


def _repetitions(match: re.Match[str]) -> int:
    """How many repetitions a quantifier counts as. RE2 itself refuses counts above 1,000."""
    counts = [min(int(count[:5]), 1_000) for count in match.groups() if count]
    return max(counts, default=1)


def regex_error(pattern: str) -> str | None:
    """Why a pattern cannot be used, or None."""
    return _checked(pattern)[0]


def matches_empty(matcher: Matcher) -> bool:
    """Whether a matcher also selects series that lack its label. Its pattern must be one that compiles."""
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
        return None, compile_pattern(pattern).fullmatch("") is not None
    except ValueError as error:
        return str(error), False


_checked_cached = lru_cache(maxsize=1024)(_check)
