"""Selectors over label sets that are at hand as mappings, such as those of rules and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shared.promql.ast import Matcher
from shared.promql.regex import Regex

Test = Callable[[Mapping[str, str]], bool]


def label_test(matchers: Sequence[Matcher]) -> Test:
    """Whether all matchers hold; a label that is missing is the empty string. Raises ParseError for a pattern."""
    tests = [(matcher, Regex(matcher.value) if matcher.op in ("=~", "!~") else None) for matcher in matchers]
    return lambda labels: all(_holds(labels.get(matcher.name, ""), matcher, pattern) for matcher, pattern in tests)


def _holds(value: str, matcher: Matcher, pattern: Regex | None) -> bool:
    is_equal = value == matcher.value if pattern is None else pattern.matches(value)
    return is_equal == (matcher.op in ("=", "=~"))
