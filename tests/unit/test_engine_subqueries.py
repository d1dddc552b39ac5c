"""Subqueries, step-invariant subtrees, and aggregation in batches of series."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadtest.harness.local_queries import instant, range_query
from loadtest.harness.memory_source import MemorySource
from shared.histograms.references import references
from shared.labels import Symbols
from shared.promql import parser
from shared.promql.ast import Aggregate, Subquery
from shared.promql.engine import batches, evaluator, partial, subquery
from shared.promql.engine.context import EvalContext
from shared.promql.engine.finishing import finish
from shared.promql.model import Grid, Matrix, RangeVector
from tests.conformance.answer import Answer, series_differences
from tests.conformance.memory_backend import answer_of
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import NativeHistogram
from tests.unit.engine_answers import at, named, rows, source


def test_inner_grid_is_multiples_of_the_step_in_a_left_open_window() -> None:
    def inner(text: str, start_s: int, end_s: int) -> tuple[int, int, int]:
        node = parser.parse(text)
        assert isinstance(node, Subquery)
        grid = Grid(start_s * 1000, end_s * 1000, 1000)
        made = subquery.inner_grid(node, grid, EvalContext(None, Symbols(), grid))
        return made.start_ms // 1000, made.end_ms // 1000, made.step_ms // 1000

    assert inner("m[30s:10s]", 60, 100) == (40, 100, 10)
    assert inner("m[30s:10s] offset 3s", 60, 60) == (30, 57, 10)
    assert inner("m[30s:10s] @ 25", 60, 100) == (0, 25, 10)
    assert inner("m[5m:]", 60, 60) == (-180, 60, 60)


def test_range_functions_take_subqueries() -> None:
    data = source({"m": [0, 1, 2, 3, 4, 5]})
    assert at("sum_over_time(m[30s:5s])", data, 30) == {"{}": 0 + 1 + 1 + 2 + 2 + 3 - 0}
    assert rows("max_over_time((-m)[20s:10s])", data, 20, 50, 10) == {"{}": [-1, -2, -3, -4]}


def test_subquery_shorter_than_its_step_may_be_empty() -> None:
    assert at("min_over_time(m[1m:5m])", source({"m": [3] * 100}), 720) == {}


def test_subquery_alone_answers_its_inner_samples() -> None:
    value = instant("(-m)[20s:10s]", source({"m": [0, 1, 2]}), 20_000).value
    assert isinstance(value, RangeVector)
    assert value.samples.timestamps_ms.tolist() == [10_000, 20_000]
    assert value.samples.values.tolist() == [-1, -2]
    assert value.labels.labels(0) == ()


def test_nested_subqueries() -> None:
    data = source({"m": [0, 1, 2, 3, 4, 5, 6]})
    # Inner sums at 40, 50, 60: 3+4, 4+5, 5+6; their maximum.
    assert at("max_over_time(sum_over_time(m[20s:10s])[30s:10s])", data, 60) == {"{}": 11}


def test_step_invariant_subtree_is_read_once() -> None:
    data = source({"m": [0, 1, 2]})
    result = range_query("sum(m @ 20) + 1", data, Grid(0, 1_000_000, 1000))
    assert isinstance(result.value, Matrix)
    assert set(result.value.values.ravel().tolist()) == {3} and result.value.present.all()
    assert result.samples_read == 3


@pytest.mark.parametrize(
    "text",
    [
        "sum by (a) (rate(m[30s]))",
        "avg(m * 2 > 3)",
        "max without (b) (-m)",
        "min by (a) (max_over_time(rate(m[30s])[40s:10s]))",
        "stddev by (a) (predict_linear(m[1m], 5))",
        "count(m smoothed)",
        "topk by (a) (2, m)",
        "bottomk(3, m)",
        "group by (a) (m @ 50)",
        "sum(timestamp(m))",
        "sum(start_timestamp(m))",
        "sum(absent_series)",
    ],
)
def test_batches_of_series_change_no_answer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = source({f'm{{a="{i % 3}",b="{i}"}}': [i, 2 * i, 3 * i, i, 0, i * i] for i in range(17)})
    whole = rows(text, data, 0, 60, 10)
    monkeypatch.setattr(batches, "BATCH_CELLS", 14)
    in_batches = rows(text, data, 0, 60, 10)
    assert in_batches.keys() == whole.keys()
    for name, values in whole.items():
        # A merge of partial deviations may differ in its last bits.
        assert in_batches[name] == [None if v is None else pytest.approx(v, rel=1e-12) for v in values]
    node = parser.parse(text)
    assert isinstance(node, Aggregate) and batches.leaf(node.expr) is not None
    grid = Grid(0, 60_000, 10_000)
    context = EvalContext(data, Symbols(), grid)
    part = evaluator.evaluate_partial(node, grid, context)
    param = evaluator._param(node, grid, context)
    value = finish(partial.merge(node, [part], param, grid, context))
    assert isinstance(value, Matrix)
    assert {named(value, i) for i in range(value.labels.size)} == set(whole)


@pytest.mark.parametrize("text", ["sum by (a) (h)", "avg(rate(h[30s]))", "sum(h </ 1.5)", "max(histogram_count(h))"])
def test_batches_of_histograms_are_bounded_by_their_buckets(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    series, width, steps = 300, 4, 7
    histograms = [
        NativeHistogram(count=4.0 * i, sum=4.0 * i, positive=dict.fromkeys((1, 2, 5, 9), float(i)))
        for i in range(1, 1 + series * steps)
    ]
    times, values = np.arange(steps) * 10_000, references(np.arange(len(histograms))).reshape(series, steps)
    labels = [(("__name__", "h"), ("a", str(i % 3)), ("b", str(i))) for i in range(series)]
    data = MemorySource(dict(zip(labels, ((times, row) for row in values), strict=True)), batch_of(histograms))

    def answer() -> Answer:
        grid = Grid(0, 60_000, 10_000)
        result = range_query(text, data, grid)
        return answer_of(text, result.value, result.annotations, grid, ranged=True)

    whole, sizes = answer(), []
    evaluate = partial.partial

    def recorded(*arguments: Any) -> partial.Partial:
        sizes.append(arguments[1].labels.size)
        return evaluate(*arguments)

    monkeypatch.setattr(partial, "partial", recorded)
    monkeypatch.setattr(batches, "BATCH_BUCKETS", 20 * steps * (width + 1))
    in_batches = answer()
    assert sizes == [20] * (series // 20)
    assert not list(series_differences(whole.series, in_batches.series))


def test_expressions_that_join_series_are_not_batched() -> None:
    for text in ("sum(m + m)", "sum(sum by (a) (m))", 'sum(label_replace(m, "a", "b", "", ""))', "sum(vector(1))"):
        node = parser.parse(text)
        assert isinstance(node, Aggregate) and batches.leaf(node.expr) is None
