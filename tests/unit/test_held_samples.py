"""The limit on the samples that a query holds at a time: long queries are answered in batches that fit, and only what
has to be held all at once is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from coordinator.queries.joining import Joined
from coordinator.queries.merge import Merged
from coordinator.queries.results import Result, ordered
from loadtest.harness.local_queries import QueryResult, instant, range_query
from loadtest.harness.memory_source import MemorySelection, MemorySource
from shared.errors import OverBudget
from shared.labels import Symbols
from shared.process.array_memory import Account
from shared.promql import parser
from shared.promql.engine import batches, scan
from shared.promql.engine.context import EvalContext
from shared.promql.engine.evaluator import evaluate
from shared.promql.model import Grid, Matrix, Samples
from tests.sharded import evaluate_sharded, split

INTERVAL_MS, SAMPLES, SERIES = 15_000, 400, 60
END_MS = INTERVAL_MS * (SAMPLES - 1)
GRID = Grid(60_000, END_MS, 60_000)
INSTANT = Grid(END_MS, END_MS)
TOTAL = SERIES * SAMPLES
LIMIT = 2000
"""A twelfth of all samples; the values of all series at all steps are three times as many, too."""
REFUSED = "too many samples into memory in query execution: {} at a time in one process; the limit is {} "


def series(count: int = SERIES, samples: int = SAMPLES, name: str = "m") -> dict[Any, tuple[Any, Any]]:
    chance = np.random.default_rng(count)
    times = INTERVAL_MS * np.arange(samples)
    return {
        (("__name__", name), ("i", f"{i:03d}"), ("job", str(i % 3))): (times, np.cumsum(chance.random(samples) + i))
        for i in range(count)
    }


def answer(merged: Merged, grid: Grid) -> bytes:
    value = merged.value if isinstance(merged.value, Joined) else ordered(merged.value)
    return b"".join(Result(value, grid, not grid.instant).chunks())


def values(result: QueryResult) -> tuple[list[Any], list[Any]]:
    assert isinstance(result.value, Matrix)
    return result.value.values[result.value.present].tolist(), result.value.present.tolist()


# Queries that run in batches


@pytest.mark.parametrize(
    "query",
    [
        "sum by (job) (rate(m[5m]))",
        "count by (job) (m > 100)",
        "max(max_over_time(m[10m]))",
        "topk(2, rate(m[5m]))",
        "sum(rate(m[5m])) / count(m)",
        "sum(max_over_time(rate(m[1m])[5m:1m]))",
        "quantile(0.9, sum by (job) (m))",
    ],
)
def test_a_query_over_many_times_the_limit_is_answered_exactly(query: str) -> None:
    whole = range_query(query, MemorySource(series()), GRID)
    done = range_query(query, MemorySource(series()), GRID, samples_max=LIMIT)
    assert values(done) == values(whole)
    assert done.samples_read == whole.samples_read > 10 * LIMIT
    assert done.samples_peak <= LIMIT < whole.samples_peak

    shards = split(series(), 2)
    merged = evaluate_sharded(query, shards, GRID)
    limited = evaluate_sharded(query, shards, GRID, samples_max=LIMIT)
    assert answer(limited, GRID) == answer(merged, GRID)
    assert len(json.loads(answer(limited, GRID))) > 0
    assert limited.samples_read == merged.samples_read > 10 * LIMIT
    assert limited.samples_peak <= LIMIT < merged.samples_peak


def test_a_result_that_fits_is_answered_whatever_is_read_for_it() -> None:
    """Without an aggregation, the values of all series are held, and samples only while they are read."""
    data = MemorySource(series())
    done = range_query("rate(m[5m])", data, INSTANT, samples_max=100)
    assert done.samples_read == SERIES * 20 and done.samples_peak <= 100
    assert values(done) == values(range_query("rate(m[5m])", data, INSTANT))
    with pytest.raises(OverBudget, match=REFUSED.format(SERIES, SERIES - 1)):
        range_query("rate(m[5m])", data, INSTANT, samples_max=SERIES - 1)


def test_partial_forms_of_many_batches_become_one_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_CELLS", 2 * GRID.steps)
    planes = 3 * GRID.steps * 2
    limit = 4 * planes
    assert SERIES // 2 * 2 * GRID.steps * 2 > 2 * limit  # of all batches: two series, each in a group of its own
    data = MemorySource(series())
    done = range_query("sum by (job) (m)", data, GRID, samples_max=limit)
    assert values(done) == values(range_query("sum by (job) (m)", data, GRID))
    assert done.samples_peak <= limit


def test_batches_have_room_for_the_steps_of_subqueries() -> None:
    """An instant has one step, and the subquery 90 for each series."""
    query = "sum(max_over_time(rate(m[1m])[90m:1m]))"
    done = range_query(query, MemorySource(series()), INSTANT, samples_max=LIMIT)
    assert done.samples_peak <= LIMIT < SERIES * 90
    assert values(done) == values(range_query(query, MemorySource(series()), INSTANT))


@pytest.mark.parametrize("query", ["avg(m)", "stddev by (job) (increase(m[5m]))"])
def test_means_of_batches_differ_from_the_whole_by_a_rounding_at_most(query: str) -> None:
    whole = range_query(query, MemorySource(series()), GRID)
    done = range_query(query, MemorySource(series()), GRID, samples_max=LIMIT)
    assert values(done)[0] == pytest.approx(values(whole)[0], rel=1e-13)
    assert done.samples_peak <= LIMIT < whole.samples_peak


# Reads


class Watched(MemorySource):
    """Notes what is read: (series, samples) of each read. A read of more than `samples_most` has no memory."""

    def __init__(self, columns: Any, samples_most: int = 1 << 40) -> None:
        super().__init__(columns)
        self.reads: list[tuple[int, int]] = []
        self.samples_most = samples_most

    def select(self, *terms: Any) -> MemorySelection:
        selection = super().select(*terms)
        plain = selection.read

        def read(first: int, last: int) -> Samples:
            samples = plain(first, last)
            self.reads.append((last - first, len(samples.values)))
            if len(samples.values) > self.samples_most:
                raise MemoryError
            return samples

        selection.read = read  # type: ignore[method-assign]
        return selection


def uneven() -> dict[Any, tuple[Any, Any]]:
    """Series with one sample, then others with many."""
    sparse = {(("__name__", "a"), ("i", f"{i:03d}")): ([END_MS], [1.0]) for i in range(SERIES)}
    return sparse | series(name="b")


@pytest.mark.parametrize("query", ["count_over_time({__name__=~'a|b'}[2h])", "{__name__=~'a|b'}[2h]"])
def test_a_read_that_turns_out_too_large_is_made_of_fewer_series(monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    monkeypatch.setattr(scan, "ASSUMED_INTERVAL_MS", END_MS)
    is_kept = query.endswith("]")
    limit = TOTAL + SERIES if is_kept else 2 * SERIES + LIMIT
    source = Watched(uneven())
    done = instant(query, source, END_MS, samples_max=limit)
    assert done.samples_read == TOTAL + SERIES, "what was dropped does not count"
    assert done.samples_peak <= limit
    assert sum(samples for _, samples in source.reads) >= done.samples_read
    if not is_kept:
        assert max(samples for _, samples in source.reads) > LIMIT
        assert sum(count for count, samples in source.reads if samples <= LIMIT) >= 2 * SERIES


def test_a_read_without_memory_is_made_of_fewer_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "ASSUMED_INTERVAL_MS", END_MS)
    source = Watched(uneven(), samples_most=4 * SAMPLES)
    done = instant("count({__name__=~'a|b'} offset 0s)", Watched(uneven()), END_MS)
    assert values(instant("count({__name__=~'a|b'} offset 0s)", source, END_MS)) == values(done)
    counted = "sum(count_over_time({__name__=~'a|b'}[2h]))"
    assert values(instant(counted, source, END_MS)) == values(instant(counted, Watched(uneven()), END_MS))
    assert max(samples for _, samples in source.reads) > 4 * SAMPLES
    source.samples_most = SAMPLES - 1
    with pytest.raises(MemoryError):
        instant(counted, source, END_MS)


def test_a_read_past_the_account_of_memory_leaves_the_query_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "ASSUMED_INTERVAL_MS", END_MS)
    source = MemorySource(uneven())
    account = Account(40 * SAMPLES * 20)
    with account.open():
        done = instant("sum(count_over_time({__name__=~'a|b'}[2h]))", source, END_MS)
    assert isinstance(done.value, Matrix) and done.value.values.tolist() == [[TOTAL + SERIES]]
    assert account.limit_bytes < TOTAL * 16


def test_the_first_read_of_a_long_range_has_few_series() -> None:
    source = Watched(series())
    range_query("sum(rate(m[5m]))", source, INSTANT)
    assert source.reads[0][0] == SERIES
    source.reads.clear()
    range_query("sum(rate(m[100h]))", source, INSTANT)
    assert source.reads[0][0] == 1


# What cannot be cut


def test_one_series_past_the_limit_is_refused() -> None:
    data = MemorySource(series(1))
    assert instant("sum(count_over_time(m[2h]))", data, END_MS, samples_max=SAMPLES + 1).samples_peak == SAMPLES + 1
    with pytest.raises(OverBudget, match=REFUSED.format(SAMPLES + 1, SAMPLES)):
        instant("sum(count_over_time(m[2h]))", data, END_MS, samples_max=SAMPLES)


def test_a_range_vector_past_the_limit_is_refused_before_all_of_it_is_read() -> None:
    source = Watched(series())
    assert instant("m[2h]", source, END_MS, samples_max=TOTAL).samples_peak == TOTAL
    source.reads.clear()
    with pytest.raises(OverBudget, match=r"TRIPTYCH_QUERY_SAMPLES_MAX.; ask for fewer series, a shorter range"):
        instant("m[2h]", source, END_MS, samples_max=LIMIT)
    assert sum(samples for _, samples in source.reads) <= LIMIT + SAMPLES


@pytest.mark.parametrize(
    ("query", "held"),
    [
        ("m + on (i) group_left m", 2 * SERIES),
        ("m and m", 2 * SERIES),
        ("(m + m) + (m + m)", 3 * SERIES),
        ("abs(-m)", SERIES),
        ("m @ 0", SERIES),
        ("(((m)))", SERIES),
        ("max_over_time(m[2m:1m])", 2 * SERIES + SERIES + SERIES),  # the samples of one of two steps
        ("quantile(0.5, m)", SERIES),
    ],
)
def test_results_count_until_what_is_made_of_them_is_complete(query: str, held: int) -> None:
    """Of 60 series with one sample in each lookback; while values are made, the samples of one series at least."""
    data = MemorySource({labels: ([END_MS - 60_000, END_MS], [1.0, 2.0]) for labels in series()})
    done = instant(query, data, END_MS, samples_max=held + 1, lookback_ms=30_000)
    assert values(done) == values(instant(query, data, END_MS, lookback_ms=30_000))
    assert held <= done.samples_peak <= held + 1
    with pytest.raises(OverBudget):
        instant(query, data, END_MS, samples_max=held - 1, lookback_ms=30_000)


def test_nothing_but_the_result_is_held_in_the_end() -> None:
    for query, left in (
        ("rate(m[5m])", SERIES * GRID.steps),
        ("sum by (job) (m) + sum by (job) (rate(m[5m]))", 3 * GRID.steps),
        ("vector(1) + sum(max_over_time(m[5m:1m]))", GRID.steps),
        ("m @ 100", SERIES * GRID.steps),
    ):
        context = EvalContext(MemorySource(series()), Symbols(), GRID)
        evaluate(parser.resolve_durations(parser.parse(query), GRID), GRID, context)
        assert context.samples_held == left, query


# Several processes


def leaves_of(sources: Sequence[MemorySource], query: str, samples_max: int) -> Merged:
    return evaluate_sharded(query, sources, INSTANT, samples_max=samples_max)


@pytest.mark.parametrize(
    ("query", "held"),
    [
        # The parameter needs all shards, so the coordinator gets the samples: of both leaves, with two counts of a
        # worker each; and holds the values beside the samples of a series, or the values of both sides.
        ("quantile_over_time(scalar(count(m)) / 100, m[10m])", SERIES * 40 + 2 + SERIES + 40),
        (
            "quantile_over_time(scalar(count(m)) / 100, m[10m]) + quantile_over_time(scalar(count(m)) / 50, m[5m])",
            SERIES * (40 + 20) + 2 + SERIES + SERIES + 20,
        ),
    ],
)
def test_leaves_that_are_fetched_raw_count_together_in_the_coordinator(query: str, held: int) -> None:
    shards = split(series(), 2)
    done = leaves_of(shards, query, held)
    assert done.samples_peak <= held
    assert answer(done, INSTANT) == answer(leaves_of(shards, query, 50_000_000), INSTANT) != b"[]"
    with pytest.raises(OverBudget):
        leaves_of(shards, query, held - 1)


def test_the_peak_is_that_of_the_process_that_held_most() -> None:
    shards = split(series(), 2)
    in_workers = evaluate_sharded("sum(count_over_time(m[2h]))", shards, INSTANT)
    assert in_workers.samples_peak > 18 * SAMPLES  # as many series are in the first read
    assert evaluate_sharded("m[2h]", shards, INSTANT).samples_peak == TOTAL
    assert evaluate_sharded("1 + 1", shards, INSTANT).samples_peak == 0
