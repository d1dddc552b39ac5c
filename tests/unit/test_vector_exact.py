"""The arithmetic of exact search: candidates, their similarities and their order, against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from worker.vectors import exact, search
from worker.vectors.exact import TIE_SLACK, candidates
from worker.vectors.ranking import best
from worker.vectors.recall_curve import RecallCurve
from worker.vectors.similarity import lengths, prepared, similarities

METRICS = ["cosine", "dot", "l2"]
QUERIES = 3


def near_by_definition(vectors: np.ndarray, queries: np.ndarray, metric: str) -> np.ndarray:
    """float64[q, n]."""
    wide, asked = vectors.astype(np.float64), queries.astype(np.float64)
    if metric == "l2":
        return -np.sqrt(np.square(wide[None] - asked[:, None]).sum(axis=2))
    return asked @ wide.T


def made(count: int, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(vectors as they are compared, their lengths, queries); the lengths of the vectors differ by far."""
    random = np.random.default_rng(count)
    vectors = random.normal(size=(count, 5)) * random.uniform(0.1, 30, (count, 1))
    compared = prepared(vectors.astype(np.float32), metric)
    queries = prepared(random.normal(size=(QUERIES, 5)).astype(np.float32), metric)
    return compared, np.sqrt(np.square(compared).sum(axis=1)), queries


@pytest.mark.parametrize("metric", METRICS)
def test_similarities_are_those_of_the_definition(metric: str) -> None:
    vectors, _, queries = made(9, metric)
    index = np.array([[0, 3, -1], [8, 8, 1], [-1, -1, 2]])
    expected = np.take_along_axis(near_by_definition(vectors, queries, metric), np.maximum(index, 0), axis=1)
    expected = np.where(index < 0, -np.inf, expected)
    np.testing.assert_allclose(similarities(vectors, index, queries, metric), expected, rtol=1e-6)
    halves = vectors.astype(np.float16)
    expected = np.where(
        index < 0,
        -np.inf,
        np.take_along_axis(near_by_definition(halves, queries, metric), np.maximum(index, 0), axis=1),
    )
    np.testing.assert_allclose(similarities(halves, index, queries, metric), expected, rtol=1e-6, atol=1e-6)


def test_a_similarity_beyond_float32_is_the_greatest_that_there_is() -> None:
    most = np.finfo(np.float32).max
    vectors = np.array([[1e20], [-1e20], [3e38], [-3e38]], np.float32)
    index, queries = np.array([[0, 1, -1]]), np.array([[1e20]], np.float32)
    assert similarities(vectors, index, queries, "dot").tolist() == [[most, -most, -np.inf]]
    index = np.array([[2, 3, -1]])
    assert similarities(vectors, index, vectors[2:3], "l2").tolist() == [[0, -most, -np.inf]]


def test_a_vector_that_is_the_query_is_found_however_many_components_are_added_up() -> None:
    """Sums in float32 of as many equal squares are wrong by so much that others seem nearer."""
    random = np.random.default_rng(1)
    sizes = random.uniform(1.0, 1.003, 1500).astype(np.float32)
    wrong = [float(np.einsum("i,i->", v, v)) - float(s) ** 2 * 16_384 for s in sizes for v in [np.full(16_384, s)]]
    order = np.argsort(wrong)
    chosen = sizes[[order[-1], *order[:40]]]
    table = np.repeat(chosen[:, None], 16_384, axis=1)
    found = candidates(table, lengths(table), np.arange(41), table[:1], 3, "l2", lambda: None)
    [near] = similarities(table, found, table[:1], "l2")
    assert near.max() == 0


@pytest.mark.parametrize("metric", ["dot", "l2"])
def test_the_nearest_is_found_where_products_are_beyond_float32(metric: str) -> None:
    vectors = np.random.default_rng(5).normal(size=(200, 8)).astype(np.float32)
    vectors[150] = 1e20
    query = (
        np.array([[1e20, -1e20, 1e20, -1e20, 1e20, -1e20, 1e20, 1e20]], np.float32)
        if metric == "dot"
        else vectors[150:151]
    )
    found = candidates(vectors, lengths(vectors), np.arange(200), query, 5, metric, lambda: None)
    [near] = similarities(vectors, found, query, metric)
    assert found[0][near.argmax()] == 150


def test_a_cosine_lies_within_one_whatever_rounding_does() -> None:
    vectors = prepared(np.full((1, 7), 0.3, np.float32), "cosine")
    index = np.zeros((1, 1), np.int64)
    for sign in (1, -1):
        [[near]] = similarities(np.float32(1.001 * sign) * vectors, index, vectors, "cosine")
        assert near == sign
    assert abs(similarities(2 * vectors, index, vectors, "dot")[0, 0]) > 1.9


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_length_of_a_vector_neither_overflows_nor_vanishes(scale: float) -> None:
    given = np.array([[3, 0, -4], [0, -2, 0]], np.float32) * np.float32(scale)
    np.testing.assert_allclose(prepared(given, "cosine"), [[0.6, 0, -0.8], [0, -1, 0]], rtol=1e-6)
    assert prepared(given, "dot").tolist() == given.tolist()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "rows", [np.arange(40), np.arange(7, 30), np.delete(np.arange(3, 40), [2, 9, 20]), np.array([1, 2, 19, 38])]
)
def test_products_order_as_similarities_do_whichever_rows_there_are(metric: str, rows: np.ndarray) -> None:
    vectors, norms, queries = made(40, metric)
    near = exact._products(vectors, norms, rows, queries, metric)
    expected = near_by_definition(vectors, queries, metric)[:, rows]
    if metric == "l2":  # the same up to the query's own length
        expected = -0.5 * np.square(expected) + 0.5 * np.square(queries.astype(np.float64)).sum(axis=1)[:, None]
    np.testing.assert_allclose(near, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("metric", METRICS)
def test_candidates_hold_the_nearest_and_few_more(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "BLOCK_CELLS_MAX", 0)  # blocks of 1,024 rows then
    vectors, norms, queries = made(3000, metric)
    rows = np.delete(np.arange(3000), [5, 1500, 2999])
    looks: list[int] = []
    found = candidates(vectors, norms, rows, queries, 4, metric, lambda: looks.append(1))
    assert len(looks) == 3
    assert found.shape[1] <= 4 + TIE_SLACK
    near = near_by_definition(vectors, queries, metric)[:, rows]
    for query in range(QUERIES):
        nearest = rows[np.argsort(-near[query])[:4]]
        assert set(nearest.tolist()) <= set(found[query].tolist())


@pytest.mark.parametrize(
    ("cells", "blocks"), [(0, 4), (3 * 1024, 4), (3 * 1025, 4), (3 * 1366, 3), (3 * 2048, 2), (1 << 20, 1)]
)
def test_so_many_similarities_are_held_at_once(cells: int, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "BLOCK_CELLS_MAX", cells)
    vectors, norms, queries = made(4096, "dot")
    looks: list[int] = []
    candidates(vectors, norms, np.arange(4096), queries, 4, "dot", lambda: looks.append(1))
    assert len(looks) == blocks


@pytest.mark.parametrize(("measured", "k"), [(0, 1), (0, 10), (0, 40), (50, 10), (50, 11), (50, 160)])
def test_more_candidates_are_kept_where_more_are_wanted(measured: int, k: int) -> None:
    curve = RecallCurve((measured, 2 * measured), (0.95, 0.99), 100) if measured else None
    least = measured or search.EXPANSION
    expected = least * max(1.0, k / search.K_MEASURED) ** search.DEPTH_POWER
    assert expected <= search.expansion_of(curve, 0.0, k) < expected + 1


def test_all_that_are_equally_near_at_the_edge_stay_candidates() -> None:
    vectors = np.ones((200, 3), np.float32)
    vectors[50:60] = 3.0
    vectors[60:70] = -1.0
    queries = np.array([[1, 1, 1], [-1, -1, -1]], np.float32)
    norms = np.sqrt(np.square(vectors).sum(axis=1))
    found = candidates(vectors, norms, np.arange(200), queries, 15, "dot", lambda: None)
    left_out = set(range(60, 70))
    assert set(found[0].tolist()) - {-1} == set(range(200)) - left_out
    assert set(found[1].tolist()) - {-1} == set(range(200)) - set(range(50, 60))
    assert sorted(found[0][found[0] >= 0].tolist()) == sorted(set(found[0].tolist()) - {-1}), "each once"


def test_fewer_rows_than_are_wanted_are_all_candidates() -> None:
    vectors, norms, queries = made(10, "dot")
    found = candidates(vectors, norms, np.array([2, 5]), queries, 3, "dot", lambda: None)
    assert found.tolist() == [[2, 5]] * QUERIES
    assert candidates(vectors, norms, np.zeros(0, np.int64), queries, 3, "dot", lambda: None).shape == (QUERIES, 0)


@pytest.mark.parametrize("k", [1, 2, 3, 7, 31, 64, 65, 100])
def test_the_best_of_each_query_are_in_order(k: int) -> None:
    random = np.random.default_rng(k)
    near = random.permuted(np.tile(np.arange(64, dtype=np.float32), (4, 1)), axis=1)
    near[1, 3:50] = -np.inf
    near[2] = -np.inf
    index = random.permuted(np.tile(np.arange(100, 164), (4, 1)), axis=1)
    parts: list[Any] = best(near, index, k, [b"%03d" % row for row in range(200)]).parts()
    for query, (rows, values) in enumerate(parts):
        order = [place for place in np.argsort(-near[query]) if near[query, place] > -np.inf][:k]
        assert (rows.tolist(), values.tolist()) == (index[query, order].tolist(), near[query, order].tolist())
    assert [len(rows) for rows, _ in parts] == [min(k, 64), min(k, 17), 0, min(k, 64)]


def test_equal_ones_are_in_order_of_their_ids_also_at_the_edge() -> None:
    near = np.array([[1, 2, 2, 2, 0], [5, 4, 3, 2, 1]], np.float32)
    index = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    names = [b"e", b"d", b"b", b"c", b"a"]
    ranking = best(near, index, 2, names)
    assert ranking.rows.tolist() == [2, 3, 4, 3]
    assert ranking.near.tolist() == [2, 2, 5, 4]
    assert best(near, index, 4, names).rows.tolist() == [2, 3, 1, 0, 4, 3, 2, 1]
