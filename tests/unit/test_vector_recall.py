"""The recall that a search is asked for, and the curve of measurements that it comes from."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import numpy as np
import pytest

from shared.messages.vectors import Collection, Floats
from worker.vectors import calibration
from worker.vectors.graph import ROWS_PER_CANDIDATE
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.recall_curve import RecallCurve
from worker.vectors.search import expansion_of, search
from worker.vectors.similarity import prepared
from worker.vectors.table import Table, TableView

Result = TypeVar("Result")

K = 10
DIMENSION = 32


def clustered(count: int, random: np.random.Generator, centres: Floats) -> Floats:
    return (centres[random.integers(0, len(centres), count)] + 0.7 * random.standard_normal((count, DIMENSION))).astype(
        np.float32
    )


def along_surface(count: int, random: np.random.Generator, bend: Floats) -> Floats:
    """Few real dimensions, bent into many, of very uneven density: as embeddings of texts are."""
    inner = random.standard_normal((count, 8)) * random.lognormal(0, 1, (count, 1))
    return (np.tanh(inner @ bend) + 0.05 * random.standard_normal((count, DIMENSION))).astype(np.float32)


def drawn(kind: str, count: int, seed: int) -> Floats:
    shared, random = np.random.default_rng(0), np.random.default_rng(seed)
    if kind == "clustered":
        return clustered(count, random, shared.standard_normal((100, DIMENSION)).astype(np.float32))
    if kind == "uniform":
        return random.uniform(-1, 1, (count, DIMENSION)).astype(np.float32)
    return along_surface(count, random, shared.standard_normal((8, DIMENSION)).astype(np.float32))


def indexed(vectors: Floats, storage: str = "f32") -> TableView:
    table = Table(Collection(1, "c", vectors.shape[1], "cosine", storage))
    count = len(vectors)
    ids = [str(row).encode() for row in range(count)]
    table.append(ids, vectors, np.arange(count, dtype=np.uint64), 0, [b""] * count, ())
    while table.pending():
        rows, chosen, end = table.index_slice(512)
        table.view.index.add(rows, chosen)
        table.advance(end)
        index = table.view.index
        if isinstance(index, InvertedLists) and index.is_outgrown():
            vectors, living = table.view.vectors, np.arange(table.view.indexed)
            table.replace_index(finished(index.retrained(vectors, living))[0])
    return table.view


def finished(slices: Generator[None, None, Result]) -> tuple[Result, int]:
    """(the result, in how many slices it was made)."""
    count = 0
    while True:
        try:
            next(slices)
            count += 1
        except StopIteration as end:
            return end.value, count


def recall(view: TableView, queries: Floats, expansion: int) -> float:
    def rows(expansion: int, *, exhaustive: bool) -> list[set[int]]:
        ranking = search(view, queries, K, "cosine", expansion, exhaustive=exhaustive, bits=None, check=lambda: None)
        return [set(part.tolist()) for part, _ in ranking.parts()]

    pairs = zip(rows(expansion, exhaustive=False), rows(0, exhaustive=True), strict=True)
    return float(np.mean([len(found & expected) / K for found, expected in pairs]))


@pytest.mark.parametrize("kind", ["clustered", "uniform", "along a surface"])
def test_searches_have_the_recall_that_they_ask_for(kind: str) -> None:
    view = indexed(drawn(kind, 20_000, 1))
    queries = prepared(drawn(kind, 300, 2), "cosine")
    real, _ = finished(calibration.measure(view, "cosine", 1.0, prepared(drawn(kind, 128, 3), "cosine")))
    made, _ = finished(calibration.measure(view, "cosine", 1.0, np.zeros((0, DIMENSION), np.float32)))
    assert (real.queries, made.queries) == (128, 0)
    expansions = []
    for wanted in (0.8, 0.95, 0.99):
        expansions.append(expansion_of(real, wanted, K))
        assert recall(view, queries, expansions[-1]) >= wanted - 0.005
        assert recall(view, queries, expansion_of(made, wanted, K)) >= wanted - 0.005
    assert expansions == sorted(expansions)
    if kind == "uniform":
        assert expansions[0] < expansions[2] / 2
        assert recall(view, queries, expansions[0]) < 0.93


def test_signs_of_many_components_lead_to_the_nearest() -> None:
    """Of b1, the graph compares signs only; what it leads to is compared exactly."""
    random = np.random.default_rng(5)
    bend = random.standard_normal((16, 250))

    def drawn_signs(count: int) -> Floats:
        inner = random.standard_normal((count, 16))
        return (inner @ bend + 0.1 * random.standard_normal((count, 250))).astype(np.float32)

    view = indexed(drawn_signs(6000), "b1")
    curve, _ = finished(calibration.measure(view, "cosine", 1.0, prepared(drawn_signs(128), "cosine")))
    assert curve.recalls[0] < 0.8
    expansion = expansion_of(curve, 0.95, K)
    assert expansion * ROWS_PER_CANDIDATE < 6000  # else all vectors would be compared
    assert recall(view, prepared(drawn_signs(200), "cosine"), expansion) >= 0.945


def test_real_queries_far_from_the_vectors_get_more_candidates() -> None:
    view = indexed(drawn("clustered", 10_000, 1))
    alike, _ = finished(calibration.measure(view, "cosine", 1.0, prepared(drawn("clustered", 128, 3), "cosine")))
    odd, _ = finished(calibration.measure(view, "cosine", 1.0, prepared(drawn("uniform", 128, 3), "cosine")))
    assert alike.expansion(0.99) < odd.expansion(0.99)


def test_with_few_queries_it_is_measured_with_made_ones() -> None:
    view = indexed(drawn("clustered", 3000, 1))
    few = prepared(drawn("clustered", calibration.QUERIES_MIN - 1, 3), "cosine")
    curve, _ = finished(calibration.measure(view, "cosine", 1.0, few))
    assert curve.queries == 0
    assert curve.expansions[0] == calibration.EXPANSION_MIN["cosine"]
    enough = prepared(drawn("clustered", calibration.QUERIES_MIN, 3), "cosine")
    curve, _ = finished(calibration.measure(view, "cosine", 1.0, enough))
    assert (curve.queries, curve.expansions[0]) == (calibration.QUERIES_MIN, calibration.LADDER[0])


def test_the_comparison_with_all_vectors_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    view = indexed(drawn("clustered", 3000, 1))
    queries = prepared(drawn("clustered", 128, 3), "cosine")
    monkeypatch.setattr(calibration, "COMPARED_MAX", 50 * 3000 * DIMENSION)
    assert finished(calibration.measure(view, "cosine", 1.0, queries))[0].queries == 50
    monkeypatch.setattr(calibration, "COMPARED_MAX", 1)
    curve, slices = finished(calibration.measure(view, "cosine", 1.0, queries))
    assert curve.queries == calibration.QUERIES_MIN
    monkeypatch.setattr(calibration, "COMPARED_AT_ONCE", 2 * 3000 * DIMENSION)
    more = finished(calibration.measure(view, "cosine", 1.0, queries))[1]
    assert more - slices == calibration.QUERIES_MIN // 2 - 1


def test_between_two_measurements_the_curve_is_a_line() -> None:
    curve = RecallCurve((10, 20, 40), (0.8, 0.9, 0.98), 64)
    assert [curve.expansion(wanted) for wanted in (0.5, 0.8, 0.85, 0.9, 0.94, 0.98, 0.999)] == [
        10,
        10,
        15,
        20,
        30,
        40,
        40,
    ]
    assert RecallCurve((10, 20, 40), (0.8, 0.7, 0.98), 64).expansion(0.8) == 10


def test_made_queries_must_find_more_than_was_asked() -> None:
    curve = RecallCurve((10, 20, 40), (0.9, 0.985, 1.0))
    assert curve.expansion(0.95) == 20
    assert curve.expansion(0.5) == 10
