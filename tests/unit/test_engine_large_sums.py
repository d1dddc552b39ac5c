"""Sums of values past 2^53, where a sum that keeps no compensation loses every small term."""

from __future__ import annotations

import pytest

from shared.labels import Labels
from shared.promql.model import Grid, Matrix
from tests.sharded import evaluate_sharded, split
from tests.unit.engine_answers import at, source

BIG = 2.0**53
CANCELLED = [BIG, *[1.0] * 10, -BIG]
"""Ten ones between two values that take each other away: added one by one to 2^53, each of them is rounded off."""


def test_a_naive_sum_would_lose_the_small_terms() -> None:
    total = 0.0
    for value in CANCELLED:
        total += value
    assert total != 10.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("sum_over_time(m[5m])", 10.0), ("avg_over_time(m[5m])", 10.0 / 12), ("sum_over_time((m)[5m:10s])", 10.0)],
)
def test_sums_over_time_keep_what_a_large_value_would_round_off(text: str, expected: float) -> None:
    assert list(at(text, source({"m": CANCELLED}), 115).values()) == [expected]  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "expected"), [("sum(m)", 10.0), ("avg(m)", 10.0 / 12), ("sum by (job) (m)", 10.0)])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_sums_over_series_keep_what_a_large_value_would_round_off(text: str, expected: float, shards: int) -> None:
    data: dict[Labels, list[list[float]]] = {
        (("__name__", "m"), ("i", str(i)), ("job", "a")): [[0], [value]] for i, value in enumerate(CANCELLED)
    }
    value = evaluate_sharded(text, split(data, shards), Grid(0, 0, 1)).value
    assert isinstance(value, Matrix)
    assert value.values.tolist() == [[expected]]
