"""Vectors of one text score: in the order of their ids, whatever part of them is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.vectors.text_query import parse
from shared.messages.vector_text import TextQuery
from shared.messages.vectors import Collection
from worker.damage import DamageReport
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.vectors import text_search
from worker.vectors.collection import WorkerCollection
from worker.vectors.selection import Selection
from worker.vectors.text_search import rank_text

COUNT = 40
NAMES = [b"v%02d" % number for number in range(COUNT)]


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[WorkerCollection]:
    store = Store(tmp_path / "store")
    own = WorkerCollection(Collection(1, "a", 2, "l2", text=("body",)), LocalObjects(tmp_path / "index"))
    own.attach(0, store, DamageReport())
    order = np.random.default_rng(3).permutation(COUNT).tolist()
    text = msgspec.msgpack.encode({"body": "quick fox"})
    own.upsert(0, [NAMES[place] for place in order], np.ones((COUNT, 2), np.float32), [text] * COUNT)
    yield own
    store.close()


def found(collection: WorkerCollection, query: str, k: int) -> list[bytes]:
    return [
        name
        for name, _, _ in rank_text(Selection(collection, (0,), None), TextQuery((("body", 1.0),), parse(query)), k)
    ]


@pytest.mark.parametrize("query", ["fox", "-dog", "qui*"])
def test_the_first_of_equal_scores_are_those_with_the_first_ids(collection: WorkerCollection, query: str) -> None:
    for k in (1, 2, 7, COUNT - 1, COUNT, COUNT + 1):
        assert found(collection, query, k) == NAMES[:k]


def test_better_scores_come_first_and_a_tie_behind_them_is_whole(collection: WorkerCollection) -> None:
    better = msgspec.msgpack.encode({"body": "fox fox fox"})
    collection.upsert(0, [NAMES[30], NAMES[10]], np.ones((2, 2), np.float32), [better] * 2)
    assert found(collection, "fox", 4) == [NAMES[10], NAMES[30], NAMES[0], NAMES[1]]


def test_one_search_is_enough_where_scores_differ_at_the_edge(
    collection: WorkerCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [msgspec.msgpack.encode({"body": "fox " * (place + 1)}) for place in range(COUNT)]
    collection.upsert(0, NAMES, np.ones((COUNT, 2), np.float32), texts)
    assert collection.text is not None
    fetched: list[int] = []
    search = collection.text.search
    monkeypatch.setattr(collection.text, "search", lambda query, k: fetched.append(k) or search(query, k))
    assert len(found(collection, "fox", 5)) == 5
    assert fetched == [6]


def test_a_tie_of_too_many_is_cut(collection: WorkerCollection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_search, "TIES_MAX", 3)
    names = found(collection, "fox", 4)
    assert len(set(names)) == 4 and names == sorted(names)
