"""Estimates of what a query costs, beside what it does cost."""

from __future__ import annotations

import time

import pytest

from coordinator.queries.cost import (
    CELL_BYTES,
    LIGHT_MARGIN,
    LIGHT_TOUCHES_MAX,
    SELECTION_CHARACTERS_MAX,
    SELECTIONS_MAX,
    Costs,
    Demand,
    Estimate,
    require_fits,
)
from coordinator.queries.merge import Terms, message
from coordinator.queries.planner import plan
from shared.errors import NotExecutable
from shared.promql.model import Grid
from shared.wire import pack
from tests.sharded import Series, ask, split

SECOND = 1000
STEP_MS = 15 * SECOND
HOUR_MS = 3600 * SECOND
END_MS = 10 * HOUR_MS
TIMES = list(range(END_MS - 2 * HOUR_MS, END_MS + 1, STEP_MS))
INSTANT = Grid(END_MS, END_MS)
RANGE = Grid(END_MS - HOUR_MS, END_MS, 60 * SECOND)
COUNTS = {"m": 40, "n": 10}
"""Series of each metric."""


def data() -> Series:
    return {
        (("__name__", name), ("i", str(number))): (TIMES, [float(at % 977) for at in TIMES])
        for name, count in COUNTS.items()
        for number in range(count)
    }


class Cluster:
    """Two workers, and what is learned of their replies."""

    def __init__(self) -> None:
        self.sources = split(data(), 2)
        self.costs = Costs()

    def estimate(self, text: str, grid: Grid) -> Estimate:
        return self.costs.estimate(plan(text, grid).demands)

    def run(self, text: str, grid: Grid) -> int:
        """The samples that the query reads."""
        query_plan = plan(text, grid)
        terms = Terms(grid, 300_000, 50_000_000, time.monotonic() + 60)
        replies = [ask(source, pack(message(query_plan, terms)), terms)[0] for source in self.sources]
        for demand, *parts in zip(query_plan.demands, *(reply.answers for reply in replies), strict=True):
            self.costs.learn(demand, sum(p.series_read for p in parts), sum(p.samples_read for p in parts))
        return sum(part.samples_read for reply in replies for part in reply.answers)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """One that has seen both metrics in one short query each."""
    cluster = Cluster()
    for name in COUNTS:
        cluster.run(f"rate({name}[5m])", INSTANT)
    return cluster


def test_a_selection_that_was_never_asked_for_is_unknown_and_counts_as_light() -> None:
    estimate = Cluster().estimate("rate(m[1h])", RANGE)
    assert estimate == Estimate(unknown=1)
    assert not estimate.is_heavy(1)


@pytest.mark.parametrize(
    ("text", "grid", "series"),
    [
        ("m", INSTANT, 40),
        ("m", RANGE, 40),
        ("rate(m[5m])", INSTANT, 40),
        ("rate(m[5m])", RANGE, 40),
        ("rate(m[1h])", RANGE, 40),
        ("rate(m[5m] offset 30m)", INSTANT, 40),
        ("sum by (i) (rate(m[5m]))", RANGE, 40),
        ("topk(3, avg_over_time(m[10m]))", RANGE, 40),
        ("quantile_over_time(0.9, m[30m])", RANGE, 40),
        ("sum(rate(m[5m])) / sum(rate(n[5m]))", RANGE, 50),
        ("m * on (i) group_left n", RANGE, 50),
        ("max_over_time(m[30m:1m])", INSTANT, 40),
        ("max_over_time(sum(rate(m[5m]))[30m:1m])", RANGE, 40),
        ("absent(m)", RANGE, 40),
    ],
)
def test_the_estimate_is_of_the_order_of_what_is_read(cluster: Cluster, text: str, grid: Grid, series: int) -> None:
    estimate = cluster.estimate(text, grid)
    read = Cluster().run(text, grid)
    assert estimate.series == series
    assert read / 2 <= estimate.samples <= read * 2
    assert estimate.touches > estimate.samples
    assert estimate.unknown == 0


def test_touches_grow_with_steps_with_inner_steps_and_with_sorted_windows(cluster: Cluster) -> None:
    def touches(text: str, grid: Grid = RANGE) -> int:
        return cluster.estimate(text, grid).touches

    fine = Grid(RANGE.start_ms, RANGE.end_ms, SECOND)
    assert touches("m", fine) - touches("m") == 40 * (fine.steps - RANGE.steps)
    assert touches("max_over_time(m[30m:1s])") > 10 * touches("max_over_time(m[30m:1m])")
    assert touches("quantile_over_time(0.5, m[30m])") > 3 * touches("max_over_time(m[30m])")


def test_a_query_is_heavy_by_what_each_worker_has_to_do() -> None:
    assert not Estimate(touches=400_000).is_heavy(1)
    assert Estimate(touches=400_001).is_heavy(1)
    assert not Estimate(touches=800_000).is_heavy(2)
    assert Estimate(touches=400_001).is_heavy(0)


def test_a_query_is_surely_light_only_if_all_is_known_and_far_below_the_bound() -> None:
    bound = LIGHT_TOUCHES_MAX // LIGHT_MARGIN
    assert Estimate().is_light(0)
    assert [Estimate(touches=touches).is_light(1) for touches in (bound - 1, bound)] == [True, False]
    assert Estimate(touches=2 * bound - 1).is_light(2)
    assert not Estimate(unknown=1).is_light(1)


def test_a_selection_with_a_long_text_is_not_remembered() -> None:
    costs = Costs()
    for length, unknown in ((SELECTION_CHARACTERS_MAX, 0), (SELECTION_CHARACTERS_MAX + 1, 1)):
        demand = Demand("x" * length, 1, 1, 1)
        costs.learn(demand, 1, 1)
        assert costs.estimate([demand]).unknown == unknown


def test_so_many_selections_are_known_and_the_latest_stay() -> None:
    costs = Costs()
    demands = [Demand(str(number), 1000, 1, 1) for number in range(SELECTIONS_MAX + 1)]
    for demand in demands[:-1]:
        costs.learn(demand, 1, 1)
    costs.learn(demands[0], 1, 1)
    costs.learn(demands[-1], 1, 1)
    assert costs.estimate(demands).unknown == 1
    assert costs.estimate([demands[1]]).unknown == 1


def test_steps_that_need_more_than_a_process_may_hold_are_refused_at_once() -> None:
    require_fits(1000, 1000 * CELL_BYTES, "one worker")
    with pytest.raises(NotExecutable) as refused:
        require_fits(1001, 1000 * CELL_BYTES, "one worker")
    assert str(refused.value) == (
        "the query is evaluated at 1001 steps, which needs 9009 bytes for each series; the limit is 9000 bytes in one "
        "worker, its share of TRIPTYCH_QUERY_BYTES_MAX; ask for a shorter range or a longer step"
    )


def test_the_longest_grid_is_known_of_leaves_and_of_the_coordinators_part() -> None:
    assert plan("max_over_time(m[1h:1s])", INSTANT).demands[0].steps_most == 3600
    assert plan("max_over_time(vector(1)[1h:1s])", INSTANT).steps_most == (3600, 0)
    assert plan("max_over_time(sum(m)[1h:1s])", INSTANT).steps_most == (3600, 3600)
    assert plan("m", RANGE).steps_most == (RANGE.steps, RANGE.steps)
