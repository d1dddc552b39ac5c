"""Aggregation operators in one place: values, parameters, groups and names."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shared.errors import NotExecutable, OverBudget
from shared.promql.ast import Aggregate, NumberLiteral, VectorSelector
from shared.promql.engine import selection
from shared.promql.engine.aggregate import evaluate_aggregate
from shared.promql.engine.kernels.aggregation import STEP_BLOCK
from shared.promql.model import String
from tests.unit.operators_setup import Bench, by_labels, rows

M = VectorSelector("m", ())


def aggregate(bench, op, matrix, param=None, by=(), *, without=False):
    node = Aggregate(op, M, None if param is None else NumberLiteral(0.0, span=(5, 6)), tuple(by), without)
    if param is not None:
        param = String(param) if isinstance(param, str) else bench.scalar(*np.atleast_1d(param).tolist())
    return evaluate_aggregate(node, matrix, param, bench.grid, bench.context)


def column(bench, values):
    return bench.matrix(*(({"i": str(i)}, [value]) for i, value in enumerate(values)))


def total(op, values, param=None):
    bench = Bench()
    (row,) = rows(aggregate(bench, op, column(bench, values), param))
    return row[1][0]


@pytest.mark.parametrize(
    ("op", "values", "expected"),
    [
        ("sum", [2, 8, 1e100, -1e100], 10.0),
        ("sum", [math.inf, 1, -math.inf], math.nan),
        ("sum", [1e308, 1e308], math.inf),
        ("avg", [1, 2, 6], 3.0),
        ("avg", [9.9e307] * 4, 9.9e307),
        ("avg", [1e-300, 9e307, 9e307, -9e307, -9e307], 0.0),
        ("avg", [-9.9e307, -9.9e307, 9.9e307, 9.9e307], 0.0),
        ("avg", [0, math.inf, 0, math.inf], math.inf),
        ("avg", [math.inf, -math.inf], math.nan),
        ("avg", [math.nan, 1], math.nan),
        ("min", [math.nan, 3, 1], 1.0),
        ("max", [math.nan, -3, -1], -1.0),
        ("max", [math.nan, math.nan], math.nan),
        ("count", [math.nan, 1], 2.0),
        ("group", [7, 9], 1.0),
        ("stdvar", [100, 200, 300, 400], 12500.0),
        ("stddev", [13.3, 13.3, 13.3], 0.0),
        ("stddev", [math.inf], math.nan),
        ("stdvar", [1, math.nan], math.nan),
    ],
)
def test_reductions(op, values, expected):
    np.testing.assert_allclose(total(op, values), expected, rtol=1e-12, atol=1e-280)


def test_an_average_of_equal_values_is_that_value():
    assert total("avg", [52.0] * 12) == 52.0


@pytest.mark.parametrize(
    ("q", "values", "expected"),
    [
        (0.8, [0, 1, 4], 2.8),
        (0.8, [0, 1, math.nan], 0.6),
        (0.2, [0, 1, math.nan], math.nan),
        (1.5, [1, 2], math.inf),
        (-1, [1, 2], -math.inf),
        (math.nan, [1, 2], math.nan),
        (0.5, [7], 7.0),
    ],
)
def test_quantiles_interpolate_and_put_nan_below_all(q, values, expected):
    np.testing.assert_allclose(total("quantile", values, q), expected)


def test_quantiles_of_many_values_are_those_of_sorted_ones():
    rng = np.random.default_rng(7)
    bench = Bench(40)
    cells = np.round(rng.normal(size=(301, 40)), 1)
    matrix = bench.matrix(*(({"i": str(i), "g": str(i % 3)}, row) for i, row in enumerate(cells)))
    q = rng.random(40)
    answer = by_labels(aggregate(bench, "quantile", matrix, q, by=["g"]))
    for group in range(3):
        expected = [np.quantile(cells[group::3, step], q[step]) for step in range(40)]
        np.testing.assert_allclose(answer[(("g", str(group)),)], expected, rtol=1e-12, atol=1e-12)


def test_a_bad_quantile_is_remarked_on_where_it_stands():
    bench = Bench(2)
    aggregate(bench, "quantile", bench.matrix(), [1.5, math.nan])
    assert [(a.text, a.offset) for a in bench.context.annotations.items.values()] == [
        ("PromQL warning: quantile value should be between 0 and 1, got 1.5", 5),
        ("PromQL warning: quantile value should be between 0 and 1, got NaN", 5),
    ]


def test_groups_by_and_without_labels_at_every_step():
    bench = Bench(2)
    matrix = bench.matrix(
        ({"__name__": "m", "a": "1", "b": "x"}, [1, None]),
        ({"__name__": "m", "a": "2", "b": "x"}, [2, 5]),
        ({"__name__": "m", "b": "y"}, [None, None]),
    )
    assert by_labels(aggregate(bench, "sum", matrix, by=["b"])) == {(("b", "x"),): [3.0, 5.0]}
    assert by_labels(aggregate(bench, "sum", matrix, by=["b"], without=True)) == {
        (("a", "1"),): [1.0, None],
        (("a", "2"),): [2.0, 5.0],
    }
    assert rows(aggregate(bench, "count", matrix)) == [({}, [2.0, 1.0])]


def test_an_empty_vector_has_no_groups():
    bench = Bench(2)
    for op, param in [("sum", None), ("quantile", 0.5), ("topk", 1), ("count_values", "v"), ("limitk", 2)]:
        assert rows(aggregate(bench, op, bench.matrix(), param)) == []


def test_a_group_drops_its_name_if_any_of_its_series_does():
    bench = Bench()
    matrix = bench.matrix(({"__name__": "m", "a": "1"}, [1]), ({"__name__": "m", "a": "2"}, [2]))
    matrix.drop_name = np.array([False, True])
    assert aggregate(bench, "sum", matrix, by=["__name__"]).drop_name.tolist() == [True]
    assert aggregate(bench, "max", matrix, by=["__name__", "a"]).drop_name.tolist() == [False, True]


def test_topk_orders_an_instant_by_value_with_nan_last():
    bench = Bench()
    matrix = column(bench, [3, math.nan, 5, 1])
    assert [labels["i"] for labels, _ in rows(aggregate(bench, "topk", matrix, 4))] == ["2", "0", "3", "1"]
    assert [labels["i"] for labels, _ in rows(aggregate(bench, "bottomk", matrix, 4))] == ["3", "0", "2", "1"]
    assert [labels["i"] for labels, _ in rows(aggregate(bench, "bottomk", matrix, 1))] == ["3"]


def test_topk_chooses_at_every_step_with_its_own_k():
    bench = Bench(3)
    matrix = bench.matrix(({"i": "a"}, [1, 5, 5]), ({"i": "b"}, [2, 4, None]), ({"i": "c"}, [3, 3, 3]))
    assert rows(aggregate(bench, "topk", matrix, [1, 2, 0])) == [
        ({"i": "a"}, [None, 5.0, None]),
        ({"i": "b"}, [None, 4.0, None]),
        ({"i": "c"}, [3.0, None, None]),
    ]


def test_equal_values_are_chosen_in_the_order_of_their_label_sets():
    bench = Bench(2)
    matrix = bench.matrix(*(({"i": name}, [1, 1]) for name in "dbac"))
    for op in ("topk", "bottomk"):
        assert [labels["i"] for labels, _ in rows(aggregate(bench, op, matrix, 2))] == ["b", "a"]


@pytest.mark.parametrize("op", ["topk", "bottomk"])
@pytest.mark.parametrize("k", [1, 2, 7, 40, 1000])
def test_topk_agrees_with_sorting(op, k):
    rng = np.random.default_rng(k)
    bench = Bench(20)
    cells = rng.integers(0, 30, size=(90, 20)).astype(float)
    cells[rng.random(cells.shape) < 0.1] = np.nan
    matrix = bench.matrix(*(({"i": f"{i:02}", "g": str(i % 4)}, row) for i, row in enumerate(cells)))
    matrix.present = rng.random(cells.shape) < 0.8
    answer = {labels["i"]: values for labels, values in rows(aggregate(bench, op, matrix, float(k), by=["g"]))}
    for step in range(20):
        for group in range(4):
            there = [i for i in range(group, 90, 4) if matrix.present[i, step]]
            sign = -1 if op == "topk" else 1
            best = sorted(there, key=lambda i: (math.isnan(v := cells[i, step]), 0 if math.isnan(v) else sign * v, i))
            chosen = [i for i in there if answer.get(f"{i:02}", [None] * 20)[step] is not None]
            assert sorted(best[:k]) == chosen


@pytest.mark.parametrize(
    ("op", "param"),
    [("topk", 4), ("bottomk", 4), ("limitk", 4), ("quantile", 0.3), ("count_values", "v"), ("count_values", "i")],
)
@pytest.mark.parametrize(
    "grouping", [{}, {"by": ["g"]}, {"by": ["i"], "without": True}, {"by": ["i", "v"], "without": True}]
)
@pytest.mark.parametrize("values_at_once", [1, 9 * (STEP_BLOCK + 1)])
def test_many_values_are_taken_in_parts_that_do_not_change_the_result(op, param, grouping, values_at_once, monkeypatch):
    rng = np.random.default_rng(3)
    bench = Bench(4 * STEP_BLOCK)
    cells = rng.integers(0, 4, size=(9, bench.grid.steps)).astype(float)
    cells[rng.random(cells.shape) < 0.1] = np.nan
    names = [(str(i), str(i % 2)) for i in rng.permutation(9)]
    matrix = bench.matrix(*(({"i": i, "g": g}, row) for (i, g), row in zip(names, cells, strict=True)))
    matrix.present = rng.random(cells.shape) < 0.8
    whole = by_labels(aggregate(bench, op, matrix, param, **grouping))
    checks = []
    bench.context.cancelled = lambda: bool(checks.append(None))
    monkeypatch.setattr(selection, "VALUES_AT_ONCE", values_at_once)
    assert repr(by_labels(aggregate(bench, op, matrix, param, **grouping))) == repr(whole)
    assert len(checks) >= bench.grid.steps // max(1, values_at_once // 9)


def test_count_values_stops_as_soon_as_there_are_more_cells_than_the_query_may_hold(monkeypatch):
    bench = Bench(100)
    matrix = bench.matrix(*(({"i": str(i)}, np.arange(100.0) + 100 * i) for i in range(50)))
    checks = []
    bench.context.cancelled = lambda: bool(checks.append(None))
    bench.context.samples_max = 200 * bench.grid.steps
    monkeypatch.setattr(selection, "VALUES_AT_ONCE", 1)
    with pytest.raises(OverBudget, match="would load too many samples"):
        aggregate(bench, "count_values", matrix, "v")
    assert len(checks) <= 10


@pytest.mark.parametrize(
    ("op", "param", "message"),
    [
        ("topk", math.nan, "Parameter value is NaN"),
        ("limitk", 1e19, "Scalar value 1e\\+19 overflows int64"),
        ("bottomk", -1e19, "Scalar value -1e\\+19 underflows int64"),
        ("limit_ratio", math.nan, "Ratio value is NaN"),
        ("count_values", "", "invalid label name"),
    ],
)
def test_parameters_that_are_none_are_refused_even_for_no_series(op, param, message):
    bench = Bench()
    with pytest.raises(NotExecutable, match=message):
        aggregate(bench, op, bench.matrix(), param)


def test_a_huge_k_is_no_trouble():
    bench = Bench(2)
    matrix = bench.matrix(({"i": "a"}, [1, 2]), ({"i": "b"}, [3, 4]))
    for op in ("topk", "bottomk", "limitk"):
        assert len(rows(aggregate(bench, op, matrix, 1e18))) == 2
        assert rows(aggregate(bench, op, matrix, -1e18)) == []


def test_limitk_takes_k_of_each_group_at_each_step():
    bench = Bench(2)
    matrix = bench.matrix(*(({"i": str(i), "g": str(i % 2)}, [i, None if i < 4 else i]) for i in range(8)))
    answer = aggregate(bench, "limitk", matrix, 3, by=["g"])
    counts = by_labels(aggregate(bench, "count", answer, by=["g"]))
    assert counts == {(("g", "0"),): [3.0, 2.0], (("g", "1"),): [3.0, 2.0]}


def test_limit_ratio_and_its_complement_share_the_series():
    bench = Bench()
    matrix = column(bench, range(500))
    low = {labels["i"] for labels, _ in rows(aggregate(bench, "limit_ratio", matrix, 0.3))}
    high = {labels["i"] for labels, _ in rows(aggregate(bench, "limit_ratio", matrix, -0.7))}
    assert not low & high
    assert len(low | high) == 500
    assert 100 < len(low) < 200


def test_a_ratio_beyond_1_is_capped_with_a_warning():
    bench = Bench()
    assert len(rows(aggregate(bench, "limit_ratio", column(bench, range(5)), 1.1))) == 5
    assert bench.remarks == ["PromQL warning: ratio value should be between -1 and 1, got 1.1, capping to 1"]


def test_count_values_counts_texts_of_values():
    bench = Bench(2)
    matrix = bench.matrix(
        ({"j": "a"}, [6, math.nan]), ({"j": "b"}, [6, math.nan]), ({"j": "c"}, [1e21, 0.5]), ({"j": "d"}, [0.0, -0.0])
    )
    assert by_labels(aggregate(bench, "count_values", matrix, "v")) == {
        (("v", "6"),): [2.0, None],
        (("v", "NaN"),): [None, 2.0],
        (("v", "1000000000000000000000"),): [1.0, None],
        (("v", "0.5"),): [None, 1.0],
        (("v", "0"),): [1.0, None],
        (("v", "-0"),): [None, 1.0],
    }


def test_count_values_drops_the_name_of_a_group_if_one_of_its_series_does():
    bench = Bench()
    matrix = bench.matrix(({"__name__": "m", "a": "1"}, [6]), ({"__name__": "m", "a": "2"}, [6]))
    for drops, expected in (([False, False], False), ([False, True], True), ([True, True], True)):
        matrix.drop_name = np.array(drops)
        assert aggregate(bench, "count_values", matrix, "v", by=["__name__"]).drop_name.tolist() == [expected]
    matrix.drop_name = np.array([True, True])
    assert aggregate(bench, "count_values", matrix, "__name__", by=["a"]).drop_name.tolist() == [False, False]


def test_count_values_may_write_over_a_label_it_groups_by():
    bench = Bench()
    matrix = bench.matrix(({"j": "a", "g": "p"}, [6]), ({"j": "b", "g": "p"}, [6]), ({"j": "c", "g": "q"}, [6]))
    assert by_labels(aggregate(bench, "count_values", matrix, "j", by=["i"], without=True)) == {
        (("g", "p"), ("j", "6")): [2.0],
        (("g", "q"), ("j", "6")): [1.0],
    }
    assert by_labels(aggregate(bench, "count_values", matrix, "j", by=["j"], without=True)) == {
        (("g", "p"),): [2.0],
        (("g", "q"),): [1.0],
    }
