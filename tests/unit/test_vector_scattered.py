"""Exact search over rows that lie scattered in their table: compared in place for a few queries, else copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.messages.vectors import Floats
from worker.vectors import exact
from worker.vectors.exact import SCATTERED_QUERIES_MAX, SPAN_MAX, TIE_SLACK, candidates
from worker.vectors.ranking import best
from worker.vectors.similarity import Rows, prepared, similarities

METRICS = ["cosine", "dot", "l2"]
FEW = [1, SCATTERED_QUERIES_MAX]
QUERIES = [*FEW, SCATTERED_QUERIES_MAX + 1]
K = 10


def made(count: int, dimension: int, metric: str, seed: int) -> Floats:
    random = np.random.default_rng(seed)
    given = random.normal(size=(count, dimension)) * random.uniform(0.1, 9, (count, 1))
    return prepared(given.astype(np.float32), metric)


def lengths_of(table: NDArray[np.floating]) -> Floats:
    lengths: Floats = np.sqrt(np.square(table.astype(np.float32)).sum(axis=1))
    return lengths


def scattered(count: int, share: float) -> Rows:
    rows = np.flatnonzero(np.random.default_rng(count).random(count) < share)
    assert rows[-1] + 1 - rows[0] > SPAN_MAX * len(rows)
    return rows


def near_by_definition(table: NDArray[np.floating], queries: Floats, metric: str) -> NDArray[np.float64]:
    wide, asked = table.astype(np.float64), queries.astype(np.float64)
    if metric == "l2":
        near: NDArray[np.float64] = -np.sqrt(np.square(asked[:, None] - wide[None]).sum(axis=2))
        return near
    return asked @ wide.T


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each time that scattered rows are compared in place, with how many queries."""
    asked: list[int] = []
    compare: Callable[..., None] = exact._scattered

    def noted(table: Floats, rows: Rows, queries: Floats, out: Floats) -> None:
        asked.append(len(queries))
        compare(table, rows, queries, out)

    monkeypatch.setattr(exact, "_scattered", noted)
    return asked


def found_by(
    table: NDArray[np.floating], rows: Rows, queries: Floats, metric: str, k: int = K
) -> tuple[Rows, list[list[int]]]:
    """(the candidates, the `k` nearest of them in order)."""
    found = candidates(table, lengths_of(table), rows, queries, k, metric, lambda: None)
    near = similarities(table, found, queries, metric)
    ranking: Any = best(near, found, k, [b"%06d" % row for row in range(len(table))])
    return found, [own.tolist() for own, _ in ranking.parts()]


@pytest.mark.parametrize("dimension", [1, 5, 300])
@pytest.mark.parametrize("count", QUERIES)
@pytest.mark.parametrize("metric", METRICS)
def test_the_candidates_of_scattered_rows_hold_the_nearest(
    compared: list[int], metric: str, count: int, dimension: int
) -> None:
    table, queries = made(3000, dimension, metric, 1), made(count, dimension, metric, 2)
    rows = scattered(3000, 0.2)
    found, ordered = found_by(table, rows, queries, metric)
    assert compared == ([count] if count in FEW else [])
    near = near_by_definition(table, queries, metric)
    for query in range(count):
        own = found[query][found[query] >= 0].tolist()
        assert len(own) == len(set(own)) and set(own) <= set(rows.tolist())
        kth = np.sort(near[query, rows])[-K]
        assert set(own) >= set(rows[near[query, rows] > kth].tolist())
        np.testing.assert_allclose(near[query, ordered[query]], -np.sort(-near[query, rows])[:K], rtol=1e-5)
        if dimension > 1:
            assert ordered[query] == rows[np.argsort(-near[query, rows])[:K]].tolist()


@pytest.mark.parametrize("count", QUERIES)
@pytest.mark.parametrize("metric", METRICS)
def test_products_of_scattered_rows_are_those_of_the_definition(compared: list[int], metric: str, count: int) -> None:
    table, queries = made(500, 65, metric, 1), made(count, 65, metric, 2)
    rows = scattered(500, 0.3)
    expected = queries.astype(np.float64) @ table[rows].astype(np.float64).T
    if metric == "l2":
        expected -= 0.5 * np.square(table[rows].astype(np.float64)).sum(axis=1)
    near = exact._products(table, lengths_of(table), rows, queries, metric)
    assert (near.dtype.name, near.shape) == ("float32", (count, len(rows)))
    assert compared == ([count] if count in FEW else [])
    np.testing.assert_allclose(near, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count", QUERIES)
@pytest.mark.parametrize("metric", METRICS)
def test_a_table_of_half_precision_is_copied_with_the_same_result(
    compared: list[int], metric: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves, queries = made(2000, 16, metric, 1).astype(np.float16), made(count, 16, metric, 2)
    rows = scattered(2000, 0.2)
    _, ordered = found_by(halves, rows, queries, metric)
    assert compared == []
    assert ordered == found_by(halves.astype(np.float32), rows, queries, metric)[1]
    for copied_bytes in (1, 7 * 16 * 2):
        monkeypatch.setattr(exact, "COPIED_BYTES_MAX", copied_bytes)
        assert ordered == found_by(halves, rows, queries, metric)[1]


@pytest.mark.parametrize(("end", "times"), [(10 * SPAN_MAX, 0), (10 * SPAN_MAX + 1, 1)])
def test_rows_are_scattered_if_most_between_them_do_not_count(compared: list[int], end: int, times: int) -> None:
    table, queries = made(100, 8, "dot", 1), made(1, 8, "dot", 2)
    rows = 30 + np.append(np.arange(9), end - 1)
    found, _ = found_by(table, rows, queries, "dot")
    assert (len(compared), found.tolist()) == (times, [rows.tolist()])


def test_blocks_of_scattered_rows_are_compared_one_after_the_other(
    compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "BLOCK_CELLS_MAX", 0)  # blocks of 1,024 rows then
    table, queries = made(20_000, 4, "l2", 1), made(2, 4, "l2", 2)
    rows = scattered(20_000, 0.15)
    near = near_by_definition(table, queries, "l2")[:, rows]
    found, ordered = found_by(table, rows, queries, "l2")
    assert compared == [2] * -(-len(rows) // 1024) and len(compared) > 1
    assert ordered == [rows[np.argsort(-own)[:K]].tolist() for own in near]
    assert found.shape[1] <= K + TIE_SLACK


@pytest.mark.parametrize("count", QUERIES)
def test_scattered_rows_that_are_equally_near_are_all_candidates(compared: list[int], count: int) -> None:
    table = np.ones((600, 3), np.float32)
    table[::10] = 2
    rows = np.arange(0, 600, 5)
    found, _ = found_by(table, rows, np.ones((count, 3), np.float32), "dot")
    assert all(set(own.tolist()) - {-1} == set(range(0, 600, 10)) for own in found)
    assert len(compared) == (count in FEW)
