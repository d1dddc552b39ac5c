"""Queries are parsed once, as long as the trees that are kept are few enough for their length."""

from __future__ import annotations

import pytest

from shared.promql import parser


@pytest.mark.parametrize("length", [1, parser.SHORT_LENGTH_MAX, parser.SHORT_LENGTH_MAX + 1, parser.CACHED_LENGTH_MAX])
def test_a_query_up_to_the_longest_that_is_kept_is_parsed_once(length: int) -> None:
    assert parser.parse("m" * length) is parser.parse("m" * length)


def test_a_longer_query_is_not_kept() -> None:
    text = "m" * (parser.CACHED_LENGTH_MAX + 1)
    assert parser.parse(text) is not parser.parse(text)


def test_a_thousand_rules_are_kept() -> None:
    texts = [f'sum(m_total{{rule="{number}"}})' for number in range(1000)]
    trees = [parser.parse(text) for text in texts]
    assert all(parser.parse(text) is tree for text, tree in zip(texts, trees, strict=True))
