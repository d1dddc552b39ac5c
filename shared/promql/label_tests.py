"""Selectors applied to label sets in the form of mappings, such as those of rules and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shared.promql.ast import Matcher
from shared.promql.regex import Regex

Test = Callable[[Mapping[str, str]], bool]


def label_test(matchers: Sequence[Matcher]) -> Test:
    """A test that all matchers hold; a missing label is the empty string. Raises ValueError for an invalid pattern."""
    tests = [(matcher, Regex(matcher.value) if matcher.op in ("=~", "!~") else None) for matcher in matchers]
    return lambda labels: all(_holds(labels.get(matcher.name, ""), matcher, pattern) for matcher, pattern in tests)


def _holds(value: str, matcher: Matcher, pattern: Regex | None) -> bool:
    is_match = value == matcher.value if pattern is None else pattern.matches(value)
    return is_match == (matcher.op in ("=", "=~"))
