"""The order of instant answers that have more label sets than are numbered without their codes."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.harness.memory_source import label_set
from shared.labels import FEW_ROWS
from shared.promql.model import Grid, Matrix
from tests.sharded import Series, evaluate_sharded, split


@pytest.mark.parametrize(
    "text",
    [
        "topk(1, one) or sum by (host) (many * on (host) group_left one)",
        'topk(1, one) or count_values by (host) ("v", many * on (host) group_left one)',
        "sort(quantile by (host) (0.5, many * on (host) group_left one))",
        'sort(histogram_quantile(0.5, label_replace(many, "le", "1", "", "")))',
    ],
)
def test_many_series_come_in_an_order_that_shards_do_not_change(text: str) -> None:
    series: Series = {}
    for host in map(str, range(FEW_ROWS + 1)):
        series[label_set({"__name__": "one", "host": host})] = [[0], [1.0]]
        for i in "ab":
            series[label_set({"__name__": "many", "host": host, "i": i})] = [[0], [float(len(host))]]

    def order(shards: int) -> list[Any]:
        value = evaluate_sharded(text, split(series, shards), Grid(0, 0)).value
        assert isinstance(value, Matrix)
        return [value.labels.labels(row) for row in range(value.labels.size)]

    assert len(order(1)) > FEW_ROWS
    assert order(1) == order(2) == order(5)
