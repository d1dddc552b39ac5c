"""Random histories of one collection in one shard: writes and deletes between any two slices of the work behind them
(indexing, compaction, retraining, snapshots, verification) and restarts. After each step everything is where it was
written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from shared.messages.vectors import Attribute, Collection, Condition
from shared.settings import Settings
from tests.unit.test_vector_lists import chains
from worker.damage import DamageReport
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.vectors import attributes, compaction, indexing, inverted_lists, list_filters, loading, verification
from worker.vectors.collection import WorkerCollection
from worker.vectors.indexing import Indexing
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.search import search
from worker.vectors.similarity import Rows, prepared

DIMENSION, IDS, STEPS = 4, 150, 150


class History:
    """What was written last, beside the collection that it was written to."""

    def __init__(self, path: Path, index: str, seed: int) -> None:
        self.path, self.random = path, np.random.default_rng(seed)
        self.description = Collection(1, "c", DIMENSION, "cosine", index=index)
        self.snapshots = LocalObjects(path / "snapshots")
        self.written: dict[bytes, tuple[np.ndarray, dict[str, Attribute]]] = {}
        self.work: Iterator[object] | None = None
        self.is_compaction, self.compacted, self.trusted = False, 0, 0
        self.open()

    def open(self) -> None:
        self.store = Store(self.path / "store")
        self.own = WorkerCollection(self.description, self.snapshots)
        self.own.attach(0, self.store, DamageReport())
        self.indexing = Indexing(self.own, self.snapshots, Settings())
        self.work = None
        self.trusted += len(self.own.loading.unverified)

    def step(self) -> None:
        {
            0: self.write,
            1: self.write,
            2: self.delete,
            3: self.index,
            4: self.index,
            5: self.go_on,
            6: self.go_on,
            7: self.go_on,
            8: self.save,
            9: self.reopen,
        }[min(9, int(self.random.integers(0, 100)) // 10 if self.random.random() < 0.95 else 9)]()

    def write(self) -> None:
        ids = [b"%d" % number for number in set(self.random.integers(0, IDS, self.random.integers(1, 30)).tolist())]
        vectors = self.random.normal(size=(len(ids), DIMENSION)).astype(np.float32)
        attributes: list[dict[str, Attribute]] = [
            {"n": int(n), "of": [str(n), f"only {self.random.integers(1 << 40)}"]} if n else {}
            for n in self.random.integers(0, 4, len(ids))
        ]
        packed = [msgspec.msgpack.encode(entry) if entry else b"" for entry in attributes]
        self.own.upsert(0, ids, vectors, packed)
        self.written.update(zip(ids, zip(vectors, attributes, strict=True), strict=True))

    def delete(self) -> None:
        ids = [b"%d" % number for number in self.random.integers(0, IDS, 15).tolist()]
        self.own.delete(0, ids)
        for vector_id in ids:
            self.written.pop(vector_id, None)

    def index(self) -> None:
        if self.work is None:
            self.indexing.index_step()
            self.indexing.verify_step()
            if self.indexing.attributes_due():
                self.indexing.index_attributes()

    def go_on(self) -> None:
        """With some slices of the work under way, or with other work."""
        if self.work is None:
            is_lists = isinstance(self.own.view().index, InvertedLists)
            self.is_compaction = not is_lists or bool(self.random.random() < 0.7)
            while self.is_compaction and self.indexing.verify_step():
                pass
            self.work = self.indexing.compact() if self.is_compaction else self.indexing.retrain()
        for _ in range(int(self.random.integers(1, 6))):
            if next(self.work, self) is self:
                self.work = None
                self.compacted += self.is_compaction
                return

    def save(self) -> None:
        if self.work is None:
            self.indexing.save()

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def check(self) -> None:
        view, ids = self.own.view(), list(self.written)
        rows = self.own.table.rows_of(ids)
        assert (rows >= 0).all() and view.size - view.dead == len(ids) == self.own.counts(0)[0]
        assert view.ids.take(rows) == ids
        if ids:
            vectors = np.stack([vector for vector, _ in self.written.values()])
            assert view.vectors[rows].tobytes() == prepared(vectors, "cosine").tobytes()
        for condition in (Condition("eq", "n", (2,)), Condition("eq", "of", ("2",)), Condition("exists", "of")):
            expected = [
                bool(entry) and (condition.op == "exists" or entry["n"] == 2) for _, entry in self.written.values()
            ]
            assert view.attributes.mask(condition, view.size)[rows].tolist() == expected
            if any(expected):
                self.check_filtered(condition, rows[np.array(expected)])
        if isinstance(view.index, InvertedLists):
            listed = sorted(row for chain in chains(view.index) for row in chain)
            assert len(listed) == len(set(listed))
            assert set(rows[rows < view.indexed].tolist()) <= set(listed) <= set(range(view.indexed))
        for vector_id, row in list(zip(ids, rows.tolist(), strict=True))[:3]:
            query = view.vectors[row : row + 1]
            found = search(view, query, 1, "cosine", 4096, exhaustive=False, bits=None, check=lambda: None)
            assert view.ids[int(found.rows[0])] == vector_id

    def check_filtered(self, condition: Condition, rows: Rows) -> None:
        """A search that may find these rows finds the nearest one of them."""
        view = self.own.view()
        query = view.vectors[rows[-1:]]
        bits = view.attributes.bits(condition, view.size)
        found = search(view, query, 1, "cosine", 4096, exhaustive=False, bits=bits, check=lambda: None)
        assert int(found.rows[0]) == rows[-1]


@pytest.mark.parametrize("saved_rows_min", [1, 10_000])
@pytest.mark.parametrize("index", ["lists", "graph"])
@pytest.mark.parametrize("seed", range(3))
def test_everything_is_where_it_was_written(
    seed: int,
    index: str,
    saved_rows_min: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(indexing, "SAVED_ROWS_MIN", saved_rows_min)
    monkeypatch.setattr(loading, "CHANGED_SHARE_MAX", 100.0)
    monkeypatch.setattr(verification, "ROWS", 16)
    monkeypatch.setattr(compaction, "COPY_ROWS", 16)
    monkeypatch.setattr(indexing, "COPY_ROWS", 16)
    monkeypatch.setattr(inverted_lists, "RENUMBERED_COMPONENTS", 40 * DIMENSION)
    monkeypatch.setattr(inverted_lists, "ROWS_PER_LIST", 8)
    monkeypatch.setattr(inverted_lists, "SLICE_ROWS", 32)
    monkeypatch.setattr(attributes, "INDEX_ROWS_MIN", 50)
    monkeypatch.setattr(list_filters, "PLACED_SHARE", 1)
    history = History(tmp_path, index, seed)
    for _ in range(STEPS):
        history.step()
        history.check()
    assert history.compacted
    history.reopen()
    history.check()
    assert (history.trusted > 3) is (saved_rows_min == 1)
    while history.indexing.verify_step():
        pass
    history.check()
    assert "differed from their store" not in caplog.text
    history.store.close()
