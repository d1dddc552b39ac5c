"""What a query held is freed when it ends, and not when the cycle collector happens to run: processes run it seldom
(shared/process/interpreter.py), and it does not know how large arrays are."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coordinator.queries.joining import Joined
from coordinator.queries.merge import Merged
from coordinator.queries.results import Result, ordered
from loadtest.harness.memory_source import MemorySource, label_set
from shared.errors import NotExecutable
from shared.promql.model import Grid
from shared.promql.rendering.series import SeriesWriter
from tests.sharded import evaluate_sharded
from worker.queries import evaluation

T = 1_700_000_000_000
GRID = Grid(T, T + 300_000, 15_000)
INSTANT = Grid(T + 60_000, T + 60_000)
QUERIES = [
    "m",
    "m[1m]",
    "rate(m[1m])",
    "quantile_over_time(0.9, m[1m])",
    "avg_over_time(m[2m:15s])",
    "sum by (job) (m)",
    "topk(2, m)",
    "quantile(0.5, m)",
    'count_values("v", m)',
    "m * on (i) group_left n",
    "m and n",
    "m unless on (i) n",
    'label_replace(m, "a", "$1", "job", "(.*)")',
    "histogram_quantile(0.9, b)",
    "sort_desc(m)",
    "absent(nothing)",
    "time() + scalar(n)",
    "sum(rate(m[1m])) / count(n)",
]


def source(first: int, last: int) -> MemorySource:
    times = T + 15_000 * np.arange(21)
    series: dict[Any, Any] = {}
    for i in range(first, last):
        values = np.arange(21.0) * i
        series[label_set({"__name__": "m", "job": f"j{i % 3}", "i": str(i)})] = (times, values)
        series[label_set({"__name__": "b", "le": str(i)})] = (times, values)
    series[label_set({"__name__": "n", "i": str(first)})] = (times, np.ones(21))
    return MemorySource(series)


@pytest.fixture
def always_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker sends text, which it writes in several threads."""
    monkeypatch.setattr(evaluation, "TEXT_WEIGHT_MIN", 0)
    spans = SeriesWriter.spans
    monkeypatch.setattr(SeriesWriter, "spans", lambda self: spans(self, 50))


def left_by(work: Callable[[], object]) -> list[tuple[object, tuple[int, ...]]]:
    """(holder, shape) of the arrays of more than one number that only the collector frees after this work."""
    work()  # compiles kernels, which leaves objects of the compiler
    gc.collect()
    gc.freeze()  # what other tests hold need not be looked through once more, here and in later tests
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        work()
        gc.collect()
        return [
            (holder, held.shape)
            for holder in gc.garbage
            for held in gc.get_referents(holder)
            if isinstance(held, np.ndarray) and held.size > 1
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def answered(merged: Merged, grid: Grid) -> int:
    value = merged.value if isinstance(merged.value, Joined) else ordered(merged.value)
    return sum(len(chunk) for chunk in Result(value, grid, not grid.instant).chunks())


@pytest.mark.usefixtures("always_rendered")
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_that_has_ended_holds_no_array(query: str) -> None:
    sources = [source(0, 6), source(6, 12)]

    def work() -> None:
        for grid in (INSTANT,) if query.endswith("]") else (INSTANT, GRID):
            form = "matrix" if not grid.instant or query.endswith("]") else "vector"
            for terms in ({}, {"form": form}):
                assert answered(evaluate_sharded(query, sources, grid, **terms), grid)

    assert left_by(work) == []


@pytest.mark.usefixtures("always_rendered")
@pytest.mark.parametrize("query", [query for query in QUERIES if "nothing" not in query])
def test_a_query_that_was_refused_holds_no_array(query: str) -> None:
    sources = [source(0, 6), source(6, 12)]

    def work() -> None:
        with pytest.raises(NotExecutable, match="samples"):
            evaluate_sharded(query, sources, INSTANT, samples_max=5)

    assert left_by(work) == []


def test_a_cycle_with_an_array_would_be_seen() -> None:
    def work() -> None:
        cycle: list[object] = [np.zeros(5)]
        cycle.append(cycle)

    assert [shape for _, shape in left_by(work)] == [(5,)]
