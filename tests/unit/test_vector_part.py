"""A shard's vectors: what searches, restarts and rebuilds must agree on with a brute-force search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.errors import NotFound
from shared.messages import vectors as messages
from shared.messages.vector_text import TextClause, TextQuery
from shared.messages.vectors import Collection, Condition
from tests.unit.vector_shard import COSINE, OneShard, clustered
from worker.vectors import compaction
from worker.vectors import indexing as indexing_module
from worker.vectors.query_sample import QUERIES_MAX
from worker.vectors.similarity import Rows
from worker.vectors.table import Table, TableView
from worker.vectors.text import TextIndex


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    shard = OneShard(tmp_path)
    yield shard
    shard.close()


def nearest(query: np.ndarray, vectors: np.ndarray, k: int, metric: str = "cosine") -> list[int]:
    wide, query = vectors.astype(np.float64), query.astype(np.float64)
    if metric == "cosine":
        near = wide @ query / np.linalg.norm(wide, axis=1)
    else:
        near = wide @ query if metric == "dot" else -np.linalg.norm(wide - query, axis=1)
    return np.argsort(-near, kind="stable")[:k].tolist()


def test_write_is_visible_to_the_next_search(shard: OneShard) -> None:
    vectors = np.eye(8)
    for row in range(8):
        shard.write([f"v{row}"], vectors[row : row + 1])
        assert shard.search(vectors[row], 1) == [(f"v{row}", 1.0)]


def test_replaced_and_deleted_vectors_never_come_back(shard: OneShard) -> None:
    shard.write(["a", "b"], np.eye(8)[:2])
    shard.write(["a"], np.eye(8)[2:3])
    assert shard.delete(["b", "b", "unknown"]) == 1
    for _ in range(2):
        assert shard.search(np.eye(8)[0], 5) == [("a", 0.0)]
        assert shard.search(np.eye(8)[2], 5) == [("a", 1.0)]
        shard.wait_indexed()
        shard.reopen()


def test_the_description_of_a_collection_is_durable_before_its_first_vector_is_written(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for name in ("write", "sync"):
        method = getattr(shard.store, name)

        def noted(*arguments: Any, name: str = name, method: Any = method, **options: Any) -> Any:
            steps.append(name)
            return method(*arguments, **options)

        monkeypatch.setattr(shard.store, name, noted)
    shard.write(["a"], np.eye(8)[:1])
    assert steps == ["write", "sync", "write", "sync"]
    steps.clear()
    shard.write(["b"], np.eye(8)[:1])
    assert steps == ["write", "sync"]


def test_equal_similarities_are_in_order_of_ids(shard: OneShard) -> None:
    ids = [f"{number:04d}" for number in np.random.default_rng(2).permutation(3000)]
    shard.write(ids, np.tile(np.arange(1.0, 9.0), (3000, 1)))
    assert shard.ids(np.arange(1.0, 9.0), 50, exact=True) == sorted(ids)[:50]
    assert {score for _, score in shard.search(np.arange(1.0, 9.0), 50)} == {1.0}


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_search_agrees_with_brute_force_before_and_after_indexing(shard: OneShard, metric: str) -> None:
    collection = Collection(2, metric, 16, metric)
    vectors = clustered(3000, 16)
    shard.write([f"{row:05d}" for row in range(3000)], vectors, into=collection)
    shard.wait_indexed()
    shard.write([f"{row:05d}" for row in range(3000, 3200)], clustered(200, 16, 5), into=collection)
    both = np.concatenate([vectors, clustered(200, 16, 5)])
    hits = 0
    for query in clustered(40, 16, 9):
        expected = [f"{row:05d}" for row in nearest(query, both, 10, metric)]
        assert shard.ids(query, 10, collection, exact=True) == expected
        hits += len(set(expected) & set(shard.ids(query, 10, collection)))
    assert hits >= 0.95 * 400


@pytest.mark.parametrize("storage", ["f16", "i8"])
def test_small_storage_keeps_recall(shard: OneShard, storage: str) -> None:
    collection = Collection(3, storage, 16, "cosine", storage)
    vectors = clustered(2000, 16)
    shard.write([f"{row:05d}" for row in range(2000)], vectors, into=collection)
    shard.wait_indexed()
    shard.reopen()
    hits = 0
    for query in clustered(40, 16, 9):
        expected = [f"{row:05d}" for row in nearest(query, vectors, 10)]
        hits += len(set(expected) & set(shard.ids(query, 10, collection)))
    assert hits >= 0.95 * 400


@pytest.mark.parametrize("structured", [True, False])
def test_filters_keep_recall_at_any_selectivity(shard: OneShard, structured: bool) -> None:
    """From 0.01 % to 100 %, with and without the attribute index, by sorted rows and by bitmaps."""
    count, dimension = (10_000, 16) if structured else (6000, 24)
    draw = clustered if structured else lambda n, d, seed=1: np.random.default_rng(seed).standard_normal((n, d))
    collection = Collection(4, "filtered", dimension, "cosine")
    vectors = draw(count, dimension).astype(np.float32)
    place = np.random.default_rng(3).random(count)
    attributes = [{"place": float(value), "tenth": int(value * 10)} for value in place]
    shard.write([f"{row:05d}" for row in range(count)], vectors, attributes, into=collection)
    shard.wait_indexed()
    queries = draw(30, dimension, 9).astype(np.float32)
    for share in (0.0001, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0):
        conditions = [Condition("lt", "place", (share,))]
        if share in (0.1, 0.3, 0.5, 0.9):
            conditions.append(Condition("lt", "tenth", (round(share * 10),)))
        for condition in conditions:
            chosen = np.flatnonzero(place < share)
            hits = wanted = 0
            for query in queries:
                expected = [f"{chosen[row]:05d}" for row in nearest(query, vectors[chosen], 10)] if len(chosen) else []
                hits += len(set(expected) & set(shard.ids(query, 10, collection, filter=condition)))
                wanted += len(expected)
            assert hits >= 0.95 * wanted, (share, condition.field)


def test_searches_have_the_expansion_measured_anew_with_their_queries(shard: OneShard) -> None:
    collection = Collection(12, "asked", 16, "cosine")
    shard.write([f"{row:05d}" for row in range(3000)], clustered(3000, 16), into=collection)
    shard.wait_indexed()
    indexing = shard.vectors.engine._indexing[collection.id]
    wait_for(lambda: not indexing.measure_due())
    assert [entry.queries_measured for entry in shard.vectors.engine.stats()] == [0]
    for query in clustered(QUERIES_MAX, 16, 9):
        shard.ids(query, 10, collection)
    shard.vectors.engine.wake()
    wait_for(lambda: [entry.queries_measured for entry in shard.vectors.engine.stats()] == [QUERIES_MAX])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_default_expansion_is_measured_on_the_data(shard: OneShard) -> None:
    """Data without structure gets more candidates than clusters do, and both get recall."""
    random = np.random.default_rng(1)
    expansions = []
    for number, table in enumerate((clustered(5040, 64), random.standard_normal((5040, 64)).astype(np.float32))):
        vectors, queries = table[:5000], table[5000:]
        collection = Collection(10 + number, f"kind{number}", 64, "cosine")
        shard.write([f"{row:05d}" for row in range(5000)], vectors, into=collection)
        shard.wait_indexed()
        held = shard.vectors.find(collection)
        assert held is not None
        deadline = time.monotonic() + 30
        indexing = shard.vectors.engine._indexing[collection.id]
        while indexing.measure_due():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        hits = 0
        for query in queries:
            expected = {f"{row:05d}" for row in nearest(query, vectors, 10)}
            hits += len(expected & set(shard.ids(query, 10, collection)))
        assert hits >= (0.95 if number == 0 else 0.9) * 400
        assert held.curve is not None
        expansions.append(held.curve.expansion(0.95))
    assert 0 < expansions[0] < expansions[1]
    shard.reopen()
    assert [entry.expansion for entry in shard.vectors.engine.stats()] == expansions


def test_filter_that_excludes_the_neighbourhood_still_finds_the_rest(shard: OneShard) -> None:
    vectors = clustered(4000, 8)
    query = vectors[0]
    near = set(nearest(query, vectors, 2000))
    shard.write([f"{i:05d}" for i in range(4000)], vectors, [{"far": i not in near} for i in range(4000)])
    shard.wait_indexed()
    far = [row for row in range(4000) if row not in near]
    expected = [f"{far[row]:05d}" for row in nearest(query, vectors[far], 10)]
    found = shard.ids(query, 10, filter=Condition("eq", "far", (True,)))
    assert len(set(found) & set(expected)) >= 9


def test_snapshot_is_loaded_and_later_changes_are_added(shard: OneShard) -> None:
    vectors = clustered(1500, 8)
    shard.write([f"{i:05d}" for i in range(1500)], vectors)
    shard.wait_indexed()
    shard.reopen()
    assert shard.vectors.counts() == {"vectors": 1500, "vectors_to_index": 0}
    shard.delete(["00003"])
    shard.write(["00004"], -vectors[4:5])
    shard.reopen()
    assert shard.ids(vectors[3], 1, exact=True) != ["00003"]
    assert "00004" not in shard.ids(vectors[4], 100)
    assert shard.ids(-vectors[4], 1) == ["00004"]


@pytest.mark.parametrize("damage", ["index", "rows", "missing"])
def test_damaged_snapshot_is_built_anew_from_the_store(shard: OneShard, damage: str) -> None:
    vectors = clustered(800, 8)
    shard.write([f"{i:05d}" for i in range(800)], vectors)
    shard.wait_indexed()
    shard.close()
    directory = shard.path / "vector-index" / "000001" / "0"
    if damage == "missing":
        (directory / "rows").unlink()
    else:
        file = next(directory.glob("*.index")) if damage == "index" else directory / "rows"
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
    shard.open()
    assert shard.vectors.counts()["vectors"] == 800
    assert shard.ids(vectors[7], 1) == ["00007"]
    shard.wait_indexed()
    assert shard.ids(vectors[7], 1) == ["00007"]


def test_dead_rows_lead_to_a_rebuild_that_loses_nothing(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing_module, "DEAD_ROWS_MIN", 100)
    vectors = clustered(1000, 8)
    ids = [f"{i:05d}" for i in range(1000)]
    shard.write(ids, vectors)
    shard.wait_indexed()
    kept = dict(zip(ids, vectors, strict=True))
    for start in range(0, 600, 50):
        shard.delete(ids[start : start + 25])
        shard.write(ids[start + 25 : start + 50], -vectors[start + 25 : start + 50])
        for i in range(start, start + 25):
            kept.pop(ids[i])
            kept[ids[i + 25]] = -vectors[i + 25]
    deadline = time.monotonic() + 20
    while shard.vectors.engine.stats()[0].dead > 250:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for _ in range(2):
        shard.wait_indexed()
        names, table = list(kept), np.stack(list(kept.values()))
        assert shard.vectors.counts()["vectors"] == len(names)
        for query in clustered(20, 8, 4):
            assert shard.ids(query, 10, exact=True) == [names[row] for row in nearest(query, table, 10)]
            assert len(set(shard.ids(query, 10)) & {names[row] for row in nearest(query, table, 10)}) >= 9
        shard.reopen()


def test_a_rebuild_copies_what_is_written_meanwhile_while_writes_go_on(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the last few rows: writes wait for the lock."""
    for module in (compaction, indexing_module):
        monkeypatch.setattr(module, "COPY_ROWS", 8)
    vectors = clustered(200, 8)
    ids = [f"{number:03}" for number in range(200)]
    shard.write(ids[:50], vectors[:50])
    shard.delete(ids[:5])
    collection = shard.vectors.find(COSINE)
    assert collection is not None
    append_copies, locked = Table.append_copies, []

    def noted(table: Table, view: TableView, rows: Rows) -> None:
        if collection.lock._is_owned():  # type: ignore[attr-defined]
            locked.append(len(rows))
        elif ids[150].encode() in view.ids.take(rows):
            shard.write(ids[195:], vectors[195:])  # and while these are copied
            shard.delete(ids[40:60])
        append_copies(table, view, rows)

    monkeypatch.setattr(Table, "append_copies", noted)
    rebuilding = shard.vectors.engine._indexing[COSINE.id].compact()
    next(rebuilding)
    shard.write(ids[40:195], vectors[40:195])
    for _ in rebuilding:
        pass
    assert locked == [5]
    left = [*ids[5:40], *ids[60:]]
    assert collection.view().size - collection.view().dead == len(left)
    for number in map(int, left):
        assert shard.ids(vectors[number], 1) == [ids[number]]
    assert shard.ids(vectors[0], 200, exact=True) == [
        ids[n] for n in nearest(vectors[0], vectors, 200) if ids[n] in left
    ]


def test_dropped_collection_is_gone_and_refuses_late_writes(shard: OneShard) -> None:
    shard.write(["a"], np.eye(8)[:1])
    shard.call("vector.drop", messages.CollectionBody(COSINE))
    for _ in range(2):
        assert shard.search(np.eye(8)[0], 3) == []
        with pytest.raises(NotFound, match="default"):
            shard.write(["b"], np.eye(8)[:1])
        shard.reopen()


def asked(words: str) -> TextQuery:
    return TextQuery((("body", 1.0),), (TextClause(words),))


def test_text_is_ranked_by_bm25_and_filtered(shard: OneShard) -> None:
    collection = Collection(5, "notes", 8, "cosine", text=("body",))
    bodies = ["the quick brown fox", "a lazy dog", "fox fox fox", "nothing here"]
    attributes = [{"body": body, "n": n} for n, body in enumerate(bodies)]
    shard.write(list("abcd"), np.eye(8)[:4], attributes, into=collection)
    none = np.zeros((0, 8))
    assert shard.ids(none, 4, collection, text=asked("Fox!")) == ["c", "a"]
    small = Condition("lt", "n", (2,))
    assert shard.ids(none, 4, collection, text=asked("fox dog"), filter=small) == ["b", "a"]
    shard.write(["c"], np.eye(8)[2:3], [{"body": "owl"}], into=collection)
    shard.delete(["a"], collection)
    shard.reopen()
    assert shard.ids(none, 4, collection, text=asked("fox")) == []
    assert shard.ids(none, 4, collection, text=asked("owl")) == ["c"]


@pytest.mark.parametrize("change", ["replaced", "rebuilt"])
def test_vectors_that_change_their_rows_while_texts_are_searched_stay_found(
    shard: OneShard, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = Collection(5, "notes", 8, "cosine", text=("body",))
    attributes = [{"body": "fox " * (n + 1), "n": n % 2} for n in range(8)]
    names = list("abcdefgh")
    shard.write(names, np.eye(8), attributes, into=collection)
    shard.write(["a", "c"], np.eye(8)[:2], [attributes[0], attributes[2]], into=collection)
    searched = TextIndex.search

    def before_a_change(*given: Any) -> list[tuple[bytes, float]]:
        hits = searched(*given)
        if change == "replaced":
            shard.write(names, np.eye(8), attributes, into=collection)
        else:
            for _ in shard.vectors.engine._indexing[5].compact():
                pass
        return hits

    monkeypatch.setattr(TextIndex, "search", before_a_change)
    odd = Condition("eq", "n", (1,))
    for given, expected in ((odd, list("bdfh")), (None, names)):
        assert sorted(shard.ids(np.zeros((0, 8)), 8, collection, text=asked("fox"), filter=given)) == expected
