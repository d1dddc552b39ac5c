"""What is cut out of a query for the workers, and what is left."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from coordinator.queries import planner
from coordinator.queries.merge import message
from coordinator.queries.planner import Plan, plan
from loadtest.harness.memory_source import MemorySource
from shared.errors import DeadlineExceeded, NotExecutable
from shared.labels import Symbols
from shared.promql import parser
from shared.promql.ast import MatrixSelector, Remote, ValueType
from shared.promql.engine.context import EvalContext
from shared.promql.model import Grid, Matrix
from shared.promql.tokens import NESTING_MAX
from shared.promql.types import presence
from tests.sharded import Terms, evaluate_sharded
from tests.unit.test_planner_equivalence import QUERIES, RANGE

GRID = Grid(1_000_000, 1_600_000, 60_000)


def sent(text: str) -> list[tuple[str, str]]:
    return [(leaf.mode, leaf.text) for leaf in plan(text, GRID).leaves]


def grids(text: str, grid: Grid = GRID) -> list[tuple[int, int, int]]:
    made = plan(text, grid)
    clock = EvalContext(None, Symbols(), grid)
    return [dataclasses.astuple(leaf.grid(clock)) for leaf in made.leaves]


@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        ("1 + 2", []),
        ("vector(1)", []),
        ("up", [("value", "up")]),
        ("rate(a[5m]) * 2 > 1", [("value", "rate(a[5m]) * 2 > 1")]),
        ("sum by (x) (rate(a[5m]))", [("partial", "sum by (x) (rate(a[5m]))")]),
        ("sum(a) by (x)", [("partial", "sum(a) by (x)")]),
        ("1 - sum(a) / sum(b)", [("partial", "sum(a)"), ("partial", "sum(b)")]),
        ("sum(sum by (x) (a))", [("partial", "sum by (x) (a)")]),
        ("topk(2 + 1, a)", [("partial", "topk(2 + 1, a)")]),
        ("topk(scalar(b), a)", [("value", "b"), ("value", "a")]),
        ("a + b", [("value", "a"), ("value", "b")]),
        ("a * scalar(sum(b))", [("value", "a"), ("partial", "sum(b)")]),
        ("histogram_quantile(0.9, sum by (le) (rate(b[5m])))", [("partial", "sum by (le) (rate(b[5m]))")]),
        ("histogram_quantile(0.9, rate(b[5m]))", [("value", "rate(b[5m])")]),
        ("sort(a)", [("value", "a")]),
        ('label_replace(abs(a), "x", "$1", "y", "(.*)")', [("value", "abs(a)")]),
        ('sum(label_replace(a, "x", "", "", ""))', [("relabelled", 'sum(label_replace(a, "x", "", "", ""))')]),
        ('sum(label_replace(a, "x", "", "", "") > 1)', [("value", "a")]),
        ("absent(a > 5)", [("presence", "a > 5")]),
        ("absent_over_time(a[5m])", [("presence", "a[5m]")]),
        ("a[5m]", [("value", "a[5m]")]),
        ("(a > 1)[5m:1m]", [("value", "(a > 1)[5m:1m]")]),
        ("max_over_time(a[5m:1m])", [("value", "max_over_time(a[5m:1m])")]),
        ("max_over_time(sum(a)[5m:1m])", [("partial", "sum(a)")]),
        ("quantile_over_time(scalar(b), a[5m])", [("value", "b"), ("samples", "a[5m]")]),
        ("sum(a) + sum(a)", [("partial", "sum(a)")]),
    ],
)
def test_largest_local_subtrees_are_sent(text: str, leaves: list[tuple[str, str]]) -> None:
    assert sent(text) == leaves


@pytest.mark.parametrize("text", QUERIES)
def test_sent_text_means_the_subtree_it_was_cut_from(text: str) -> None:
    for leaf in plan(text, RANGE).leaves:
        again = parser.resolve_durations(parser.parse(leaf.text), RANGE)
        sent_expr = presence(again) if leaf.mode == "presence" else again
        assert sent_expr == (leaf.aggregate or leaf.expr)


def test_root_has_a_leaf_in_place_of_what_is_sent() -> None:
    made = plan("sum(a)", GRID)
    assert made.root == Remote(0, ValueType.VECTOR, made.expr)


def test_same_text_is_sent_once_and_remembered_at_each_place() -> None:
    (leaf,) = plan("sum(a) + sum(a)", GRID).leaves
    assert leaf.starts == (0, 9)


def test_same_text_on_another_grid_is_another_leaf() -> None:
    assert len(plan("sum(a) + max_over_time(sum(a)[5m:1m])", GRID).leaves) == 2


def test_leaf_inside_a_subquery_has_the_subquerys_grid() -> None:
    assert grids("max_over_time(sum(a)[5m:1m])") == [(720_000, 1_600_000, 60_000)]
    assert grids("max_over_time(sum(a)[5m:30s] offset 1m)") == [(660_000, 1_540_000, 30_000)]
    assert grids("max_over_time(sum(a)[5m:1m] @ 900)") == [(660_000, 900_000, 60_000)]


def test_samples_are_asked_for_from_the_first_window_to_the_last() -> None:
    made = plan("quantile_over_time(scalar(b), a[5m] offset 1m)", GRID)
    leaf = made.leaves[1]
    assert isinstance(leaf.expr, MatrixSelector)
    asked = leaf.subquery(EvalContext(None, Symbols(), GRID))
    assert (asked.start_ms, asked.end_ms) == (1_000_000 - 360_000 + 1, 1_600_000 - 60_000)


def test_step_and_range_are_those_of_the_query() -> None:
    fine = plan("sum_over_time(a[step()])", Grid(0, 600_000, 60_000))
    coarse = plan("sum_over_time(a[step()])", Grid(0, 600_000, 120_000))
    assert fine.expr != coarse.expr


def test_an_instant_and_a_range_query_of_one_step_have_plans_of_their_own() -> None:
    text = "sum_over_time(a[range() + step()])"
    with pytest.raises(NotExecutable, match="duration must be greater than 0"):
        plan(text, Grid(5000, 5000))
    assert "range=1," in repr(plan(text, Grid(5000, 5000, 1)).expr)


@pytest.mark.parametrize(("text", "values"), [("vector(step())", [0.001]), ("sum_over_time(m[range() + step()])", [2])])
def test_a_range_query_of_one_time_has_a_step(text: str, values: list[float]) -> None:
    labels = (("__name__", "m"),)
    sources = [MemorySource({labels: [np.array([4999, 5000]), np.array([1.0, 2.0])]}), MemorySource({})]
    value = evaluate_sharded(text, sources, Grid(5000, 5000, 1)).value
    assert isinstance(value, Matrix) and value.values.ravel().tolist() == values


@pytest.mark.parametrize("text", ["absent_over_time({})", "absent_over_time(max_over_time({})[5m:1m])"])
def test_the_sent_text_of_the_deepest_queries_is_accepted_by_workers(text: str) -> None:
    for levels in range(NESTING_MAX - 6, NESTING_MAX + 1):
        deep = text.format("(" * levels + "a[5m]" + ")" * levels)
        try:
            parser.parse(deep)
        except NotExecutable:
            continue
        value = evaluate_sharded(deep, [MemorySource({}), MemorySource({})], Grid(5000, 5000)).value
        assert isinstance(value, Matrix) and value.present.all() and value.labels.size == 1
    with pytest.raises(NotExecutable):
        parser.parse(deep)


def test_plans_are_remembered_across_times_of_the_same_shape() -> None:
    text = "sum(rate(cached[5m])) / sum(cached)"
    first = plan(text, Grid(0, 600_000, 60_000))
    assert plan(text, Grid(60_000, 660_000, 60_000)) is first


def test_remembered_plan_is_quick() -> None:
    text = "sum by (job) (rate(a[5m])) / on (job) group_left sum by (job) (rate(b[5m])) > 0.1"
    plan(text, GRID)
    started = time.perf_counter()
    for _ in range(100):
        plan(text, GRID)
    assert (time.perf_counter() - started) / 100 < 0.001


@pytest.mark.parametrize("text", ["(" * 400 + "a" + ")" * 400, "-" * 400 + "a", "+".join(["a"] * 900)])
def test_deep_queries_are_planned_or_refused(text: str) -> None:
    try:
        made: Plan | None = plan(text, GRID)
    except NotExecutable:
        made = None
    assert made is None or len(made.leaves) == 1


def test_too_many_selections_are_refused() -> None:
    leaves = [f"sum(a{i})" for i in range(planner.LEAVES_MAX + 1)]
    text = leaves[0]
    while len(leaves) > 1:  # a balanced tree, so that depth is not what is refused
        leaves = [f"({'+'.join(leaves[i : i + 2])})" for i in range(0, len(leaves), 2)]
        text = leaves[0]
    with pytest.raises(NotExecutable, match="selections"):
        plan(text, GRID)


def test_samples_count_in_the_process_that_holds_them() -> None:
    times = list(range(0, 600_000, 15_000))
    shards = [MemorySource({(("__name__", f"m{i}"),): (times, [1.0] * len(times))}) for i in range(3)]
    grid = Grid(300_000, 300_000)
    text = 'sum(sum_over_time({__name__=~"m.*"}[5m]))'
    # A worker holds a value and the samples of a series; what all of them read together does not matter.
    done = evaluate_sharded(text, shards, grid, samples_max=21)
    assert (done.samples_read, done.samples_peak) == (60, 21)
    values = [evaluate_sharded(text, shards, grid, **terms).value for terms in ({}, {"samples_max": 21})]
    assert [value.values.tolist() for value in values if isinstance(value, Matrix)] == [[[60.0]], [[60.0]]]
    with pytest.raises(NotExecutable, match=r"too many samples into memory in query execution: 21 at a time.* 20 "):
        evaluate_sharded(text, shards, grid, samples_max=20)
    # The coordinator holds what all of them send.
    raw = '{__name__=~"m.*"}[5m]'
    done = evaluate_sharded(raw, shards, grid, samples_max=60)
    assert (done.samples_read, done.samples_peak) == (60, 60)
    with pytest.raises(NotExecutable, match=r"too many samples into memory in query execution: 60 at a time.* 59 "):
        evaluate_sharded(raw, shards, grid, samples_max=59)


def test_subquery_with_more_times_than_the_budget_is_refused_before_it_is_sent() -> None:
    made = plan("max_over_time(sum(a)[1y:1ms])", GRID)
    with pytest.raises(NotExecutable, match="too many samples"):
        message(made, Terms(GRID, 300_000, 50_000_000, time.monotonic() + 1))


def test_deadline_and_cancellation_reach_the_evaluation() -> None:
    source = MemorySource({(("__name__", "m"),): ([0], [1.0])})
    with pytest.raises(DeadlineExceeded, match="query timed out"):
        evaluate_sharded("sum(m)", [source], Grid(0, 0), deadline=time.monotonic() - 1)
    with pytest.raises(DeadlineExceeded):
        evaluate_sharded("sum(m)", [source], Grid(0, 0), cancelled=lambda: True)


@pytest.mark.parametrize(
    ("text", "keeps_order"),
    [
        ("sort(m)", True),
        ("(-sort_desc(m))", True),
        ("1 + sort(m)", True),
        ("sort(m) + 1", True),
        ("count(m) + on () group_right () sort_desc(m)", True),
        ("abs(sort_by_label(m, 'a'))", True),
        ("topk(2, m)", True),
        ("0 < bottomk(2, m)", True),
        ("m", False),
        ("1 + m", False),
        ("m + m", False),
        ("-abs(m)", False),
        ("sum by (a) (sort(m))", False),
        ("1", False),
    ],
)
def test_an_answer_keeps_its_order_when_an_operand_on_either_side_is_ordered(text: str, keeps_order: bool) -> None:
    assert plan(text, GRID).keeps_order is keeps_order
