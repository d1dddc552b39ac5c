"""info(): labels of info series."""

from __future__ import annotations

import math

import pytest

from shared.errors import DeadlineExceeded, NotExecutable
from shared.promql.ast import At, Call, Matcher, MatrixSelector, Remote, Subquery, ValueType, VectorSelector
from shared.promql.engine.functions import INSTANT_FUNCTIONS
from shared.promql.engine.functions.info import info_selector
from tests.unit.operators_setup import Bench, by_labels, rows

M = VectorSelector("m", (Matcher("__name__", "=", "m"),))


def info(bench, base, info_times, *matchers):
    """`info_times`: the info series, with their samples' timestamps as values."""
    given = VectorSelector(None, tuple(Matcher(*matcher) for matcher in matchers))
    selector = info_selector(Call("info", (M, given)))
    bench.context.remote = [info_times]
    leaf = Remote(0, ValueType.VECTOR, Call("timestamp", (selector,)))
    return INSTANT_FUNCTIONS["info"](Call("info", (M, leaf)), [base], bench.grid, bench.context)


def series(name, times, **labels):
    return ({"__name__": name, "instance": "a", "job": "1", **labels}, times)


def test_labels_of_the_info_series_are_added_and_own_labels_kept():
    bench = Bench(2)
    base = bench.matrix(series("m", [1, 2], data="own"), ({"__name__": "m", "instance": "b", "job": "1"}, [3, 4]))
    answer = info(bench, base, bench.matrix(series("target_info", [0, 60], data="d", v="1")))
    assert rows(answer) == [
        ({"__name__": "m", "instance": "a", "job": "1", "data": "own", "v": "1"}, [1.0, 2.0]),
        ({"__name__": "m", "instance": "b", "job": "1"}, [3.0, 4.0]),
    ]


def test_only_labels_with_a_matcher_are_added():
    bench = Bench()
    times = bench.matrix(series("target_info", [0], data="d", v="1"))
    answer = info(bench, bench.matrix(series("m", [1])), times, ("v", "=~", ".+"))
    assert rows(answer) == [({"__name__": "m", "instance": "a", "job": "1", "v": "1"}, [1.0])]


def test_series_without_an_info_series_stay_only_if_no_label_is_required():
    bench = Bench(2)
    base = bench.matrix(series("m", [1, 2]))
    gone = bench.matrix(series("target_info", [0, None], data="d"))
    assert by_labels(info(bench, base, gone, ("data", "=~", ".*"))) == {
        tuple(sorted(series("m", [], data="d")[0].items())): [1.0, None],
        tuple(sorted(series("m", [])[0].items())): [None, 2.0],
    }
    assert [cells for _, cells in rows(info(bench, base, gone, ("data", "=~", ".+")))] == [[1.0, None]]


def test_the_newest_of_several_info_series_counts():
    bench = Bench(2)
    times = bench.matrix(series("target_info", [0, 0], s="old"), series("target_info", [None, 60], s="new"))
    answer = info(bench, bench.matrix(series("m", [1, 2])), times)
    assert [(labels["s"], cells) for labels, cells in rows(answer)] == [("old", [1.0, None]), ("new", [None, 2.0])]


def test_two_info_series_with_samples_of_one_time_are_refused():
    bench = Bench()
    times = bench.matrix(series("target_info", [0], s="x"), series("target_info", [0], s="y"))
    with pytest.raises(NotExecutable, match="found duplicate series for info metric"):
        info(bench, bench.matrix(series("m", [1])), times)


def test_info_series_of_another_target_may_be_equal_or_histograms():
    bench = Bench(2)
    other = {"instance": "b"}
    times = bench.matrix(
        series("target_info", [0, 0], v="1"),
        series("target_info", [0, 60], **other, v="2"),
        series("target_info", [0, math.nan], **other, v="3"),
    )
    answer = info(bench, bench.matrix(series("m", [1, 2])), times)
    assert rows(answer) == [({"__name__": "m", "instance": "a", "job": "1", "v": "1"}, [1.0, 2.0])]
    with pytest.raises(NotExecutable, match="found duplicate series for info metric"):
        info(bench, bench.matrix(series("m", [1, None], **other)), times)
    with pytest.raises(NotExecutable, match="info metrics must be floats"):
        info(bench, bench.matrix(series("m", [None, 2], **other)), times)


def test_info_series_that_no_series_needs_at_a_step_may_be_equal_there():
    bench = Bench(2)
    times = bench.matrix(series("target_info", [0, 0], s="x"), series("target_info", [0, None], s="y"))
    answer = info(bench, bench.matrix(series("m", [None, 2])), times)
    assert [(labels["s"], cells) for labels, cells in rows(answer)] == [("x", [None, 2.0])]


def test_info_metrics_that_disagree_are_refused():
    bench = Bench()
    times = bench.matrix(series("target_info", [0], x="t"), series("build_info", [0], x="b"))
    with pytest.raises(NotExecutable, match="conflicting label: x"):
        info(bench, bench.matrix(series("m", [1])), times, ("__name__", "=~", ".+_info"))


def test_info_series_themselves_pass_through():
    bench = Bench()
    base = bench.matrix(series("target_info", [1]), series("m", [2]))
    answer = info(bench, base, bench.matrix(series("target_info", [0], v="1")))
    assert [labels.get("v") for labels, _ in rows(answer)] == [None, "1"]


def test_series_that_nothing_identifies_get_nothing():
    bench = Bench()
    answer = info(
        bench, bench.matrix(({"__name__": "m"}, [1])), bench.matrix(({"__name__": "target_info", "v": "1"}, [0]))
    )
    assert rows(answer) == [({"__name__": "m"}, [1.0])]


def test_a_dropped_name_stays_dropped():
    bench = Bench()
    base = bench.matrix(series("m", [1]), series("target_info", [1]), drop_name=True)
    assert info(bench, base, bench.matrix(series("target_info", [0], v="1"))).drop_name.all()


def test_many_info_series_of_one_target_are_compared_within_the_time_of_the_query():
    bench = Bench()
    times = bench.matrix(*(series("target_info", [time], s=str(time)) for time in range(6)))
    checks = 0

    def is_over():
        nonlocal checks
        checks += 1
        return checks == 3

    bench.context.cancelled = is_over
    with pytest.raises(DeadlineExceeded):
        info(bench, bench.matrix(series("m", [1])), times)
    assert checks == 3


def test_without_a_name_the_selector_is_of_target_info():
    assert info_selector(Call("info", (M,))).matchers == (Matcher("__name__", "=", "target_info"),)
    excluded = VectorSelector(None, (Matcher("__name__", "!=", "target_info"),))
    assert info_selector(Call("info", (M, excluded))).matchers == (
        Matcher("__name__", "=~", ".+_info"),
        *excluded.matchers,
    )


def test_the_selector_looks_when_the_argument_looks():
    shifted = VectorSelector("m", M.matchers, offset=60_000)
    assert info_selector(Call("info", (shifted,))).offset == 60_000
    pinned = Subquery(shifted, 600_000, None, offset=5_000, at=At(180_000))
    selector = info_selector(Call("info", (Call("last_over_time", (pinned,)),)))
    assert (selector.at, selector.offset) == (At(180_000), 65_000)
    inner = VectorSelector("m", M.matchers, offset=60_000, at=At("end"))
    over = Subquery(Call("rate", (MatrixSelector(inner, 1),)), 600_000, None, offset=5_000, at=At(180_000))
    selector = info_selector(Call("info", (over,)))
    assert (selector.at, selector.offset) == (At("end"), 60_000)
