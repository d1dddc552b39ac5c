"""Links to Prometheus's page as our page reads them."""

from __future__ import annotations

import urllib.parse

import pytest
from multidict import MultiDict

from coordinator.api.prometheus_links import QUERIES_MAX, fragment


def shown(link: str) -> list[tuple[str, str]]:
    """The parameters of our link for one of Prometheus's."""
    area, _, query = fragment(MultiDict(urllib.parse.parse_qsl(link))).partition("?")
    assert area == "metrics"
    return urllib.parse.parse_qsl(query)


def test_the_link_of_an_alert_shows_its_expression_as_a_table() -> None:
    assert shown("g0.expr=up+%3D%3D+0&g0.tab=1") == [("expr", "up == 0"), ("view", "table")]


def test_several_queries_keep_their_order_and_share_the_times_of_the_first() -> None:
    link = "g1.expr=b&g1.tab=graph&g1.range_input=1d&g0.expr=a&g0.tab=0&g0.range_input=2h&g0.end_input=2026-01-31+17:05"
    assert shown(link) == [
        ("expr", "a"),
        ("view", "graph"),
        ("expr", "b"),
        ("view", "graph"),
        ("range", "2h"),
        ("end", "2026-01-31 17:05Z"),
    ]


def test_stacked_graphs_steps_and_heat_maps_are_kept() -> None:
    assert shown("g0.expr=a&g0.tab=graph&g0.stacked=1&g0.step_input=30") == [
        ("expr", "a"),
        ("view", "graph stacked"),
        ("step", "30"),
    ]
    assert ("view", "graph heat") in shown("g0.expr=a&g0.tab=graph&g0.display_mode=heatmap")


def test_text_of_a_link_cannot_add_parameters_or_leave_the_fragment() -> None:
    hostile = "g0.expr=" + urllib.parse.quote("a&view=x#//evil.example/\r\nSet-Cookie: a")
    assert shown(hostile) == [("expr", "a&view=x#//evil.example/\r\nSet-Cookie: a"), ("view", "table")]
    assert "\n" not in fragment(MultiDict(urllib.parse.parse_qsl(hostile)))


@pytest.mark.parametrize("link", ["", "g0.tab=1", "expr=up", "gx.expr=a"])
def test_a_link_without_a_query_shows_the_empty_page(link: str) -> None:
    assert fragment(MultiDict(urllib.parse.parse_qsl(link))) == "metrics"


def test_a_link_shows_at_most_so_many_queries() -> None:
    link = "&".join(f"g{number}.expr=q{number}" for number in range(100))
    assert [text for name, text in shown(link) if name == "expr"] == [f"q{number}" for number in range(QUERIES_MAX)]
