"""Names that are dropped at some steps only: at each step a series is named as an instant query names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadtest.harness.local_queries import instant
from shared.histograms.batch import HistogramBatch
from shared.histograms.references import references
from shared.promql.ast import Aggregate, NumberLiteral, StringLiteral, VectorSelector
from shared.promql.engine.partial import merge, partial
from shared.promql.engine.rows import take
from shared.promql.model import RangeVector, String
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import NativeHistogram
from tests.unit.engine_answers import at, rows, source
from tests.unit.operators_setup import Bench, by_labels

SIGNS = {'a{x="1"}': [1, 2, -3, -4], 'a{x="2"}': [5, -6, 7, -8], 'b{x="1"}': [10, 20, 30, 40]}
MIXED = "((-(a > 0)) or a)"


@pytest.mark.parametrize(
    "text",
    [
        MIXED,
        f"sum by (x) {MIXED}",
        f"sum by (__name__) {MIXED}",
        f"sum by (__name__, x) {MIXED}",
        f"quantile by (__name__) (0.5, {MIXED})",
        f'count_values by (__name__) ("v", {MIXED})',
        f"topk by (x) (1, {MIXED})",
        f"{MIXED} * on (x) b",
        f"b * on (x) {MIXED}",
        f"{MIXED} > on (x) -b",
        f"{MIXED} and b",
        f"({MIXED} or b)",
        f'label_replace({MIXED}, "y", "$1", "x", "(.*)")',
        f"scalar({MIXED} and on (x) b)",
        f"last_over_time({MIXED}[20s:10s])",
        f"first_over_time(({MIXED} > -5)[20s:10s])",
    ],
)
def test_a_range_query_names_series_as_instant_queries_do(text: str) -> None:
    data = source(SIGNS)
    instants = [at(text, data, time_s) for time_s in (0, 10, 20, 30)]
    if isinstance(instants[0], float):
        instants = [{"{}": value} for value in instants]  # a scalar of a range query is a series
    found = rows(text, data, 0, 30, 10)

    names = dict.fromkeys(name for answer in instants for name in answer)
    assert found == {name: [answer.get(name) for answer in instants] for name in names}


def test_series_that_lose_their_names_at_some_steps_keep_them_at_the_others() -> None:
    assert rows("(-(a > 0)) or a", source({'a{x="1"}': [1, 2, -3, -4]}), 0, 30, 10) == {
        'a{x="1"}': [None, None, -3, -4],
        '{x="1"}': [-1, -2, None, None],
    }


def test_a_subquery_joins_the_samples_of_a_series_with_and_without_its_name() -> None:
    data = source(SIGNS)

    assert at(f"count_over_time({MIXED}[40s:10s])", data, 30) == {'{x="1"}': 4, '{x="2"}': 4}
    assert at(f"sum_over_time({MIXED}[40s:10s])", data, 30) == {'{x="1"}': -10, '{x="2"}': -26}
    window = instant(f"{MIXED}[40s:10s]", data, 30_000).value
    assert isinstance(window, RangeVector)
    assert window.labels.size == 2 and np.diff(window.samples.offsets).tolist() == [4, 4]


@pytest.mark.parametrize("op", ["max", "min", "stddev", "stdvar", "topk", "quantile"])
def test_histograms_that_an_operator_ignores_leave_the_name_to_others(op: str) -> None:
    bench = Bench()
    matrix = bench.matrix(({"__name__": "m", "i": "1"}, [1]), ({"__name__": "m", "i": "2"}, [2]))
    matrix.values[1] = references(np.array([0]))
    matrix.histograms = batch_of([NativeHistogram(count=1.0, positive={0: 1.0})])
    matrix.drop_name = np.array([False, True])
    literal = {"quantile": NumberLiteral(0.5), "topk": NumberLiteral(1.0)}.get(op)
    param = None if literal is None else bench.scalar(literal.value)
    node = Aggregate(op, VectorSelector("m", ()), literal, ("__name__",))

    for shards in ([[0, 1]], [[0], [1]]):
        parts = [partial(node, take(matrix, np.array(shard)), param, bench.grid, bench.context) for shard in shards]
        assert merge(node, parts, param, bench.grid, bench.context).drop_name.tolist() == [False]


@pytest.mark.parametrize("op", ["sum", "avg", "min", "count", "stddev", "quantile", "count_values"])
def test_shards_agree_on_the_steps_at_which_a_group_has_a_name(op: str) -> None:
    bench = Bench(4)
    matrix = bench.matrix(
        ({"__name__": "m", "i": "1"}, [1, None, 3, None]),
        ({"__name__": "m", "i": "2"}, [None, 2, 5, None]),
        ({"__name__": "m", "i": "3"}, [7, 2, None, None]),
        ({"__name__": "n", "i": "1"}, [None, None, None, 4]),
    )
    matrix.drop_name = np.array([True, False, False, True])
    literal = {"quantile": NumberLiteral(0.5), "count_values": StringLiteral("v")}.get(op)
    param = {"quantile": bench.scalar(0.5), "count_values": String("v")}.get(op)
    node = Aggregate(op, VectorSelector("m", ()), literal, ("__name__",))

    def merged(*shards: list[int]) -> dict[Any, Any]:
        parts = [partial(node, take(matrix, np.array(shard)), param, bench.grid, bench.context) for shard in shards]
        answer = merge(node, parts, param, bench.grid, bench.context)
        return {
            is_dropped: by_labels(take(answer, np.flatnonzero(answer.drop_name == is_dropped)))
            for is_dropped in (False, True)
        }

    whole = merged([0, 1, 2, 3])
    named = np.array(list(whole[False].values()), dtype=float)
    assert (~np.isnan(named)).any(axis=0).tolist() == [op == "count_values", True, op == "count_values", False]
    for shards in ([[0], [1], [2], [3]], [[0, 1], [2, 3]], [[0, 1, 2], [3]], [[3], [0, 2], [1]]):
        assert merged(*shards) == whole


def test_sums_of_histograms_have_names_where_all_of_their_series_have() -> None:
    bench = Bench(2)
    matrix = bench.matrix(({"__name__": "m", "i": "1"}, [1, None]), ({"__name__": "m", "i": "2"}, [2, 3]))
    histograms: HistogramBatch = batch_of([NativeHistogram(count=n, sum=n, positive={0: n}) for n in (1.0, 2.0, 4.0)])
    matrix.values[matrix.present], matrix.histograms = references(np.arange(3)), histograms
    matrix.drop_name = np.array([True, False])
    node = Aggregate("sum", VectorSelector("m", ()), None, ("__name__",))

    for shards in ([[0, 1]], [[0], [1]]):
        parts = [partial(node, take(matrix, np.array(shard)), None, bench.grid, bench.context) for shard in shards]
        answer = merge(node, parts, None, bench.grid, bench.context)
        order = np.argsort(answer.drop_name)
        assert answer.drop_name[order].tolist() == [False, True]
        assert answer.present[order].tolist() == [[False, True], [True, False]]
        assert bench.remarks == []
