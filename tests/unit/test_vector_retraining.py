"""Putting the rows of a collection into more lists, beside its writes and searches."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from shared.messages.vectors import Collection, Floats
from shared.settings import Settings
from worker.damage import DamageReport
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.vectors import clustering
from worker.vectors.collection import WorkerCollection
from worker.vectors.indexing import Indexing
from worker.vectors.inverted_lists import ROWS_MIN, SLICE_ROWS_SEARCHED, InvertedLists, lists_of
from worker.vectors.loading import Loading
from worker.vectors.pace import REST_S_MAX
from worker.vectors.recall_curve import RecallCurve
from worker.vectors.row_filter import Allowed
from worker.vectors.search import search
from worker.vectors.similarity import Rows, prepared
from worker.vectors.stored_rows import Columns
from worker.vectors.table import Table

DIMENSION, ROWS, DEAD = 16, 4000, 400
K = 10
EXPANSION = 300
"""With this expansion, all rows are compared by their codes, and it is not cheaper yet to compare them exactly."""

pytestmark = pytest.mark.usefixtures("power_stays_on")


class Own:
    """A collection in a store of its own, with `Indexing` that only the test runs."""

    def __init__(self, path: Path, metric: str, storage: str = "f32") -> None:
        self.metric, self.path = metric, path
        self.description = Collection(1, "c", DIMENSION, metric, storage)
        self.store = Store(path / "store")
        self.begin()

    def begin(self) -> None:
        snapshots = LocalObjects(self.path / "snapshots")
        self.collection = WorkerCollection(self.description, snapshots, self.path)
        self.indexing = Indexing(self.collection, snapshots, Settings(data=self.path, shards=1, workers=1))
        self.collection.attach(0, self.store, DamageReport())

    def write(self, numbers: range, seed: int = 1) -> Floats:
        vectors = np.random.default_rng(seed).normal(size=(len(numbers), DIMENSION)).astype(np.float32)
        names = [b"%05d" % number for number in numbers]
        self.collection.upsert(0, names, vectors, [b""] * len(numbers))
        return vectors

    def delete(self, numbers: range) -> None:
        assert self.collection.delete(0, [b"%05d" % number for number in numbers]) == len(numbers)

    def index(self) -> None:
        while self.indexing.index_step():
            pass

    def lists(self) -> InvertedLists:
        index = self.collection.view().index
        assert isinstance(index, InvertedLists)
        return index

    def rows_in_lists(self) -> Rows:
        size = self.collection.view().size
        found = self.lists().search(np.ones((1, DIMENSION), np.float32), size, size, size, size, Allowed())[0]
        return np.sort(found[found >= 0])

    def found(self, queries: Floats) -> list[list[bytes]]:
        """The ids that the index leads to."""
        view = self.collection.view()
        asked = prepared(queries, self.metric)
        ranking = search(view, asked, K, self.metric, EXPANSION, exhaustive=False, bits=None, check=lambda: None)
        return [view.ids.take(rows) for rows, _ in ranking.parts()]

    def retrain(self) -> int:
        """Returns in how many slices."""
        return sum(1 for _ in self.indexing.retrain())


@pytest.fixture(params=["cosine", "dot", "l2"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Own]:
    """Rows in one list, of which every tenth is dead."""
    opened = Own(tmp_path, request.param)
    opened.write(range(ROWS))
    opened.index()
    opened.delete(range(0, ROWS, ROWS // DEAD))
    yield opened
    opened.store.close()


QUERIES = np.random.default_rng(2).normal(size=(30, DIMENSION)).astype(np.float32)


def test_the_same_rows_are_found_in_more_lists_and_dead_ones_have_left(
    own: Own, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    searched: list[InvertedLists] = []
    look = InvertedLists.search

    def noted(lists: InvertedLists, *given: object) -> object:
        searched.append(lists)
        return look(lists, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(InvertedLists, "search", noted)
    one, table = own.lists(), own.collection.table
    assert (one.lists, len(one), own.indexing.retrain_due()) == (1, ROWS, True)
    before = own.found(QUERIES)
    with caplog.at_level(logging.INFO, "triptych"):
        assert own.retrain() > 1
    many = own.lists()
    assert own.found(QUERIES) == before
    assert searched == [one, many]
    assert (many.lists, len(many)) == (lists_of(ROWS - DEAD), ROWS - DEAD)
    assert own.rows_in_lists().tolist() == [row for row in range(ROWS) if row % (ROWS // DEAD)]
    assert own.collection.table is table and own.collection.view().dead == DEAD
    assert sum("vector index retrained" in record.message for record in caplog.records) == 1
    assert not own.indexing.retrain_due()


def test_what_is_measured_and_saved_is_of_the_old_lists(own: Own) -> None:
    own.collection.curve = RecallCurve((12, 24), (0.9, 0.99))
    own.collection.measured_rows = own.collection.saved_rows = ROWS
    assert not (own.indexing.measure_due() or own.indexing.snapshot_due())
    own.retrain()
    assert (own.collection.measured_rows, own.collection.saved_rows) == (0, 0)
    assert own.indexing.measure_due() and own.collection.curve is not None
    own.indexing.save()
    assert own.collection.saved_rows == ROWS
    lists, before = own.lists(), own.found(QUERIES)
    own.begin()
    assert own.lists() is not lists and own.lists().lists == lists.lists
    assert own.collection.view().indexed == ROWS
    assert own.found(QUERIES) == before


def test_rows_that_are_written_later_get_into_the_new_lists(own: Own) -> None:
    own.retrain()
    lists = own.lists()
    vectors = own.write(range(ROWS, ROWS + 300), seed=3)
    assert own.collection.table.pending() == 300
    own.index()
    assert own.lists() is lists and len(lists) == ROWS - DEAD + 300
    if own.metric != "dot":
        assert [names[0] for names in own.found(vectors[:50])] == [b"%05d" % (ROWS + row) for row in range(50)]


def test_writes_and_deletions_meanwhile_are_not_lost(own: Own) -> None:
    slices = own.indexing.retrain()
    next(slices)
    own.delete(range(1, 101, 10))
    own.write(range(2, 102, 10), seed=4)
    own.write(range(ROWS, ROWS + 50), seed=5)
    before = own.found(QUERIES)
    for _ in slices:
        pass
    view = own.collection.view()
    assert own.lists().lists == lists_of(ROWS - DEAD)
    assert (view.size, view.indexed, view.dead) == (ROWS + 60, ROWS, DEAD + 20)
    assert own.found(QUERIES) == before
    own.index()
    assert own.found(QUERIES) == before
    assert not {b"%05d" % number for number in range(1, 101, 10)} & {name for names in before for name in names}


def test_rows_that_are_indexed_meanwhile_get_into_the_new_lists_too(own: Own) -> None:
    slices = own.indexing.retrain()
    added = 0
    for turn, _ in enumerate(slices):
        if turn < 10:
            own.write(range(ROWS + added, ROWS + added + 20), seed=turn)
            added += 20
        if turn == 8:
            own.delete(range(ROWS + 5, ROWS + 9))
        own.indexing.index_step()
    own.index()
    view = own.collection.view()
    assert (view.size, view.indexed) == (ROWS + added, ROWS + added)
    living = np.flatnonzero(view.alive[: view.size])
    assert set(living.tolist()) <= set(own.rows_in_lists().tolist())
    assert own.lists().lists == lists_of(ROWS - DEAD) and added == 200


def test_beside_searches_it_has_more_and_smaller_slices(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.vectors.pace.time.sleep", lambda _: None)
    own.collection.searched_at = math.inf
    added: list[int] = []
    add = InvertedLists.add
    monkeypatch.setattr(
        InvertedLists, "add", lambda own, rows, vectors: [added.append(len(rows)), add(own, rows, vectors)]
    )
    monkeypatch.setattr(clustering, "MULTIPLIED_BESIDE_SEARCHES", 1 << 16)
    beside = own.retrain()
    assert max(added) <= SLICE_ROWS_SEARCHED and sum(added) == ROWS - DEAD
    assert own.rows_in_lists().tolist() == [row for row in range(ROWS) if row % (ROWS // DEAD)]
    own.collection.searched_at = -math.inf
    alone = own.retrain()
    assert beside > 10 * alone


def test_until_the_last_slice_the_old_lists_are_searched(own: Own) -> None:
    one = own.lists()
    own.collection.measured_rows = own.collection.saved_rows = 7
    for _ in own.indexing.retrain():
        assert own.lists() is one
        assert (own.collection.measured_rows, own.collection.saved_rows) == (7, 7)
    assert own.lists() is not one


@pytest.mark.parametrize("how", ["replaced", "dropped"])
def test_a_table_that_has_gone_meanwhile_changes_nothing(own: Own, how: str, caplog: pytest.LogCaptureFixture) -> None:
    collection, old, one = own.collection, own.collection.table, own.lists()
    slices = own.indexing.retrain()
    next(slices)
    if how == "replaced":
        collection.replace_table(Table(own.description, directory=own.path))
    else:
        collection.leave(0, own.store.batch())
        assert collection.is_left
    table, index = collection.table, own.lists()
    collection.measured_rows = collection.saved_rows = 7
    with caplog.at_level(logging.INFO, "triptych"):
        for _ in slices:
            pass
    assert collection.table is table and own.lists() is index and old.view.index is one
    assert (table is old) == (how == "dropped")
    assert (collection.measured_rows, collection.saved_rows) == (7, 7)
    assert not caplog.records


@pytest.mark.parametrize(("step_s", "rest_s"), [(0.01, 0.01), (9.0, REST_S_MAX)])
def test_it_rests_as_long_as_it_works_while_there_are_searches(
    own: Own, monkeypatch: pytest.MonkeyPatch, step_s: float, rest_s: float
) -> None:
    times = iter(step_s * number for number in range(1 << 20))
    rests: list[float] = []
    monkeypatch.setattr("worker.vectors.pace.time.perf_counter", lambda: next(times))
    monkeypatch.setattr("worker.vectors.pace.time.sleep", rests.append)
    own.collection.searched_at = math.inf
    slices = own.retrain()
    assert rests == pytest.approx([rest_s] * slices) and slices > 1


def test_a_compaction_rests_too_while_there_are_searches(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("worker.vectors.pace.time.sleep", rests.append)
    for is_searched in (False, True):
        own.collection.searched_at = math.inf if is_searched else -math.inf
        assert len(list(own.indexing.compact())) > 1
        assert bool(rests) == is_searched


def test_it_does_not_rest_without_searches(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("worker.vectors.pace.time.sleep", rests.append)
    own.collection.searched_at = -math.inf
    assert own.retrain() > 1
    assert rests == []


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Own]:
    opened = Own(tmp_path, "l2")
    yield opened
    opened.store.close()


def test_lists_are_retrained_again_as_the_table_grows(empty: Own) -> None:
    sizes, lists = [], []
    for start in range(0, 8 * ROWS_MIN, ROWS_MIN // 2):
        empty.write(range(start, start + ROWS_MIN // 2), seed=start)
        empty.index()
        if empty.indexing.retrain_due():
            empty.retrain()
            sizes.append(start + ROWS_MIN // 2)
            lists.append(empty.lists().lists)
            assert not empty.indexing.retrain_due()
    assert sizes[0] == ROWS_MIN and len(sizes) > 2
    assert lists == [lists_of(size) for size in sizes]
    assert all(after >= 1.7 * before for before, after in pairwise(sizes))
    assert empty.rows_in_lists().tolist() == list(range(8 * ROWS_MIN))


def test_it_is_due_while_a_shard_is_there(empty: Own) -> None:
    empty.write(range(ROWS_MIN - 1))
    empty.index()
    assert not empty.indexing.retrain_due()
    empty.write(range(ROWS_MIN - 1, ROWS_MIN))
    assert not empty.indexing.retrain_due(), "the last row is not indexed yet"
    empty.index()
    assert empty.indexing.retrain_due()
    empty.collection.leave(0, empty.store.batch())
    assert not empty.indexing.retrain_due()


def test_a_graph_has_no_lists(tmp_path: Path) -> None:
    own = Own(tmp_path, "cosine", "b1")
    own.write(range(ROWS_MIN))
    own.index()
    assert own.collection.view().indexed == ROWS_MIN
    assert not own.indexing.retrain_due()
    own.store.close()


@pytest.mark.parametrize("storage", ["f16", "i8"])
def test_rows_of_half_precision_are_retrained(tmp_path: Path, storage: str) -> None:
    own = Own(tmp_path, "l2", storage)
    own.write(range(ROWS))
    own.index()
    before = own.found(QUERIES)
    own.retrain()
    assert own.lists().lists == lists_of(ROWS)
    assert own.found(QUERIES) == before
    assert own.rows_in_lists().tolist() == list(range(ROWS))
    own.store.close()


def test_rows_that_no_store_has_confirmed_yet_are_waited_for(empty: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    empty.write(range(ROWS))
    empty.index()
    empty.indexing.save()
    due: list[bool] = []
    load = Loading.load_batch

    def between(self: Loading, shard: int, batch: Columns) -> None:
        due.append(empty.indexing.retrain_due() if self is empty.collection.loading else False)
        load(self, shard, batch)

    monkeypatch.setattr(Loading, "load_batch", between)
    snapshots = LocalObjects(empty.path / "snapshots")
    empty.collection = WorkerCollection(empty.description, snapshots, empty.path)
    empty.indexing = Indexing(empty.collection, snapshots, Settings(data=empty.path, shards=1, workers=1))
    empty.collection.attach(0, empty.store, DamageReport())
    assert empty.lists().is_outgrown() and len(due) > 2 and not any(due)
    assert empty.indexing.retrain_due()
    empty.retrain()
    assert empty.rows_in_lists().tolist() == list(range(ROWS))
