"""Long tasks on a collection: small slices and rests beside searches, large ones without rest otherwise."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest

from shared.messages.vectors import Collection
from shared.settings import Settings
from worker.damage import DamageReport
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.vectors import calibration, exact, pace
from worker.vectors.collection import WorkerCollection
from worker.vectors.engine import Engine
from worker.vectors.indexing import PAGES_PAUSE_S_MAX, Indexing, _added_since
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.pace import REST_S_MAX, Pace
from worker.vectors.recall_curve import RecallCurve
from worker.vectors.similarity import prepared
from worker.vectors.table import Table

DIMENSION, ROWS = 16, 3000


class Clock:
    """Replaces `time`: sleeping takes as long as it should, and nothing else takes any time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rests: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


def test_a_task_rests_as_long_as_it_worked_but_only_beside_searches(clock: Clock) -> None:
    is_searched = False
    own = Pace(lambda: is_searched)
    for work, resting in ((3.0, False), (0.001, True), (0.002, True), (9.0, True)):
        is_searched = resting
        clock.now += work
        own.rest()
    assert clock.rests == pytest.approx([0.001, 0.002, REST_S_MAX])


def test_time_before_it_resumes_does_not_count(clock: Clock) -> None:
    own = Pace(lambda: True)
    clock.now += 5.0
    own.resume()
    clock.now += 0.003
    own.rest()
    assert clock.rests == pytest.approx([0.003])


@pytest.mark.parametrize(
    ("alone", "beside", "is_searched", "size"),
    [(100, 7, False, 100), (100, 7, True, 7), (3, 7, True, 3), (0, 7, False, 1), (100, 0, True, 1)],
)
def test_slices_are_small_beside_searches(alone: int, beside: int, is_searched: bool, size: int) -> None:
    assert Pace(lambda: is_searched).size(alone, beside) == size


def test_each_slice_has_the_size_that_is_right_when_it_begins() -> None:
    is_searched = False
    slices = Pace(lambda: is_searched).slices(100, 50, 20)
    assert next(slices) == slice(0, 50)
    is_searched = True
    assert list(slices) == [slice(50, 70), slice(70, 90), slice(90, 100)]


def _slices(of: Generator[None, None, RecallCurve]) -> tuple[RecallCurve, int]:
    count = 0
    while True:
        try:
            next(of)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize("queries", [0, 100])
def test_the_recall_measured_beside_searches_is_the_same(queries: int, clock: Clock) -> None:
    random = np.random.default_rng(1)
    table = Table(Collection(1, "c", DIMENSION, "cosine"))
    vectors = random.normal(size=(ROWS, DIMENSION)).astype(np.float32)
    names = [b"%d" % number for number in range(ROWS)]
    table.append(names, vectors, np.arange(ROWS, dtype=np.uint64), 0, [b""] * ROWS, [])
    rows, components, end = table.index_slice(ROWS)
    table.view.index.add(rows, components)
    table.advance(end)
    asked = prepared(random.normal(size=(queries, DIMENSION)).astype(np.float32), "cosine")
    alone, few = _slices(calibration.measure(table.view, "cosine", 1.0, asked))
    beside, many = _slices(calibration.measure(table.view, "cosine", 1.0, asked, Pace(lambda: True)))
    assert beside == alone and many > 2 * few
    slices, blocks = -(-100 // calibration.COMPARED_BESIDE_SEARCHES), -(-ROWS // exact.BLOCK_ROWS_MIN)
    assert len(clock.rests) >= slices * (1 + blocks)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Indexing]:
    store = Store(tmp_path / "store")
    snapshots = LocalObjects(tmp_path / "snapshots")
    collection = WorkerCollection(Collection(1, "c", DIMENSION, "cosine"), snapshots, tmp_path)
    collection.attach(0, store, DamageReport())
    vectors = np.random.default_rng(2).normal(size=(ROWS, DIMENSION)).astype(np.float32)
    collection.upsert(0, [b"%d" % number for number in range(ROWS)], vectors, [b""] * ROWS)
    yield Indexing(collection, snapshots, Settings(data=tmp_path, shards=1, workers=1))
    store.close()


@pytest.mark.parametrize(("is_searched", "least", "steps"), [(True, ROWS - 20, 2), (True, 0, 3), (False, 0, 0)])
def test_rows_are_indexed_beside_a_long_task_only_if_searches_have_to_compare_many(
    own: Indexing, is_searched: bool, least: int, steps: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(WorkerCollection, "is_searched", lambda _: is_searched)
    monkeypatch.setattr("worker.vectors.indexing.time.sleep", lambda _: None)
    monkeypatch.setattr("worker.vectors.indexing.CATCH_UP_PENDING", least)
    engine = Engine(Settings(data=tmp_path), LocalObjects(tmp_path / "others"))
    engine._beside_indexing(own, iter([None] * 3))
    assert own.collection.table.pending() == ROWS - steps * own.collection.view().index.slice_rows_searched


@pytest.mark.parametrize("task", ["retrain", "measure", "pages"])
def test_rows_are_indexed_beside_every_long_task(
    own: Indexing, task: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    caught_up: list[None] = []
    for name, method in (("retrain", "retrain"), ("measure", "measure"), ("pages", "collapse_pages")):
        monkeypatch.setattr(own, f"{name}_due", lambda is_due=name == task: is_due)
        monkeypatch.setattr(own, method, lambda: iter([None] * 3))
    monkeypatch.setattr(own, "catch_up", lambda: caught_up.append(None))
    Engine(Settings(data=tmp_path), LocalObjects(tmp_path / "others"))._step(own)
    assert len(caught_up) == 3


def test_a_fresh_index_catches_up_while_more_rows_are_indexed(own: Indexing) -> None:
    own.collection.searched_at = math.inf
    table = own.collection.table
    for _ in range(10):
        own.catch_up()
    fresh = InvertedLists(DIMENSION, "cosine")
    for _ in _added_since(table, 0, fresh):
        own.catch_up()
    assert len(fresh) == table.view.indexed and table.pending() > ROWS // 2


def test_huge_pages_that_take_long_are_followed_by_long_pauses(
    own: Indexing, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.vectors.indexing.time", clock)
    monkeypatch.setattr("worker.vectors.indexing.huge_pages.is_wanted", lambda: True)
    monkeypatch.setattr("worker.vectors.indexing.huge_pages.mappings", lambda: [(0, 1)])
    monkeypatch.setattr("worker.vectors.indexing.huge_pages.collapse", lambda _: _taking(clock, (0.00002, 0.006, 0.5)))
    monkeypatch.setattr(WorkerCollection, "is_searched", lambda _: True)
    assert len(list(own.collapse_pages())) == 3
    assert clock.rests == pytest.approx([0.001, 0.3, PAGES_PAUSE_S_MAX])
    monkeypatch.setattr(WorkerCollection, "is_searched", lambda _: False)
    assert len(list(own.collapse_pages())) == 3 and len(clock.rests) == 3


def test_memory_that_is_about_to_be_left_is_not_collapsed(own: Indexing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.vectors.indexing.huge_pages.is_wanted", lambda: True)
    monkeypatch.setattr("worker.vectors.indexing.huge_pages.mappings", lambda: [(0, 1), (1, 2)])
    monkeypatch.setattr("worker.vectors.indexing.huge_pages.collapse", lambda _: iter([True, True]))
    assert len(list(own.collapse_pages())) == 4
    own.collection.delete(0, [b"%d" % number for number in range(ROWS // 2)])
    assert own.compact_due() and len(list(own.collapse_pages())) == 1


def _taking(clock: Clock, seconds: tuple[float, ...]) -> Iterator[bool]:
    for each in seconds:
        clock.now += each
        yield True
