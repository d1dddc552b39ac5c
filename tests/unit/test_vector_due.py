"""When work behind the requests is due: building anew, measuring, saving, indexing attributes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shared.messages.vectors import DIMENSION_MAX, Collection
from shared.process import huge_pages
from shared.settings import Settings
from worker.storage.objects import LocalObjects
from worker.vectors import attributes as attributes_module
from worker.vectors import indexing as module
from worker.vectors.attributes import Attributes
from worker.vectors.collection import WorkerCollection
from worker.vectors.indexing import Indexing
from worker.vectors.query_sample import PAUSE_S, QUERIES_MAX, QuerySample
from worker.vectors.recall_curve import RecallCurve
from worker.vectors.table import Table

NOW_S = 1000.0
MEASURED = RecallCurve((12, 24), (0.9, 0.99))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Indexing:
    monkeypatch.setattr(module.time, "monotonic", lambda: NOW_S)
    collection = WorkerCollection(Collection(1, "c", 2, "dot"), LocalObjects(tmp_path))
    return Indexing(collection, LocalObjects(tmp_path), Settings(vector_snapshot_ms=5000))


def with_rows(own: Indexing, **view: int) -> None:
    rows: Any = SimpleNamespace(**{"size": 0, "dead": 0, "indexed": 0, **view})
    table: Any = SimpleNamespace(view=rows, pending=lambda: 0)
    own.collection.table = table


@pytest.mark.parametrize(
    ("size", "dead", "due"), [(100, 999, False), (100, 1000, True), (8000, 1999, False), (8000, 2000, True)]
)
def test_a_table_is_built_anew_when_a_quarter_of_it_is_dead(own: Indexing, size: int, dead: int, due: bool) -> None:
    with_rows(own, size=size, dead=dead)
    assert own.compact_due() is due
    own.collection._dropped = True
    assert not own.compact_due()


@pytest.mark.parametrize(("awaited", "attached_s", "settled"), [(0, 0.0, True), (1, 9.9, False), (1, 10.0, True)])
def test_rows_that_no_shard_has_claimed_are_waited_for(
    own: Indexing, awaited: int, attached_s: float, settled: bool
) -> None:
    with_rows(own, size=100, dead=1000, indexed=100_000)
    loading = own.collection.loading
    loading.snapshot_rows, loading._awaited, loading._attached_at = (
        1,
        set(range(awaited)),
        NOW_S - attached_s,
    )
    own._saved_at = 0.0
    assert (own.compact_due(), loading.snapshot_rows == 0) == (settled, settled)
    loading.snapshot_rows = 1
    assert (own.snapshot_due(), loading.snapshot_rows == 0) == (settled, settled)


@pytest.mark.parametrize(
    ("indexed", "measured", "due"),
    [(1999, 0, False), (2000, 0, True), (2799, 2000, False), (2800, 2000, True)],
)
def test_what_searches_need_is_measured_anew_when_there_is_so_much_more(
    own: Indexing, indexed: int, measured: int, due: bool
) -> None:
    with_rows(own, indexed=indexed)
    own.collection.measured_rows = measured
    own.collection.curve = MEASURED if measured else None
    assert own.measure_due() is due
    own.collection._dropped = True
    assert not own.measure_due()


@pytest.mark.parametrize(("pending", "due"), [(9_999, True), (10_000, False)])
def test_a_table_that_is_being_filled_is_indexed_before_it_is_measured(own: Indexing, pending: int, due: bool) -> None:
    with_rows(own, indexed=50_000)
    own.collection.table.pending = lambda: pending  # type: ignore[method-assign]
    assert own.measure_due() is due


def test_the_first_real_queries_and_others_later_have_it_measured_anew(
    own: Indexing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rows(own, indexed=2000)
    collection = own.collection
    collection.measured_rows, collection.curve = 2000, MEASURED
    for number in range(QUERIES_MAX):
        assert not own.measure_due()
        collection.sample.offer(np.full((1, 2), number, np.float32), NOW_S)
    assert own.measure_due()
    own._measured_sample, own._measured_at = True, NOW_S
    collection.curve = RecallCurve((12,), (0.99,), len(collection.sample.queries()))
    assert collection.curve.queries == QUERIES_MAX
    for number in range(QUERIES_MAX):
        assert not own.measure_due()
        collection.sample.offer(np.full((3, 2), -number, np.float32), NOW_S + 1 + number)
    assert not own.measure_due()
    monkeypatch.setattr(module.time, "monotonic", lambda: NOW_S + module.MEASURE_AGAIN_S)
    assert own.measure_due()


def test_a_full_sample_takes_few_queries_and_one_of_a_message() -> None:
    sample = QuerySample(DIMENSION_MAX)
    assert len(sample._table) == 32
    for second in range(32):
        sample.offer(np.full((2, DIMENSION_MAX), second, np.float32), 0.0)
    assert sample.is_full()
    sample.offer(np.ones((1, DIMENSION_MAX), np.float32), PAUSE_S / 2)
    assert sample.taken == 32
    sample.offer(np.ones((1, DIMENSION_MAX), np.float32), PAUSE_S)
    assert (sample.taken, len(sample.queries())) == (33, 31)
    sample.offer(np.zeros((0, DIMENSION_MAX), np.float32), 99.0)
    assert sample.taken == 33


@pytest.mark.parametrize(
    ("indexed", "saved", "saved_s", "due"),
    [
        (1000, 990, 99.0, False),
        (1000, 989, 99.0, True),
        (1000, 989, 4.9, False),
        (1000, 989, 5.0, True),
        (79_999, 60_000, 0.0, False),
        (80_000, 60_000, 0.0, True),
        (100_000, 75_001, 0.0, False),
        (100_000, 75_000, 0.0, True),
    ],
)
def test_a_snapshot_is_written_by_time_when_a_little_is_new_and_at_once_when_much_is(
    own: Indexing, indexed: int, saved: int, saved_s: float, due: bool
) -> None:
    with_rows(own, indexed=indexed)
    own.collection.saved_rows, own._saved_at = saved, NOW_S - saved_s
    assert own.snapshot_due() is due
    own.collection._dropped = True
    assert not own.snapshot_due()


@pytest.mark.parametrize(
    ("saved", "is_dropped", "written"), [(99, False, True), (100, False, False), (99, True, False)]
)
def test_nothing_is_saved_twice(
    own: Indexing, monkeypatch: pytest.MonkeyPatch, saved: int, is_dropped: bool, written: bool
) -> None:
    with_rows(own, indexed=100)
    steps: list[str] = []
    store: Any = SimpleNamespace(sync=lambda: steps.append("sync"))
    own.collection.stores, own.collection.saved_rows, own.collection._dropped, own._saved_at = (
        {0: store, 2: store},
        saved,
        is_dropped,
        0.0,
    )
    monkeypatch.setattr(module.snapshot, "write", lambda *_: steps.append("write"))
    own.save()
    assert steps == (["sync", "sync", "write"] if written else [])
    assert (own.collection.saved_rows, own._saved_at) == ((100, NOW_S) if written else (saved, 0.0))


@pytest.mark.parametrize(
    ("searched_s", "pending", "rows", "pauses"), [(0.4, 9999, 1, 1), (0.4, 10_000, 1, 0), (0.5, 9999, 64, 0)]
)
def test_indexing_makes_room_for_searches_until_too_much_waits(
    own: Indexing, monkeypatch: pytest.MonkeyPatch, searched_s: float, pending: int, rows: int, pauses: int
) -> None:
    asked: list[tuple[str, float]] = []
    view = SimpleNamespace(index=SimpleNamespace(slice_rows=64, slice_rows_searched=1))
    slices = {"index_slice": lambda size: asked.append(("slice", size)) or ([], [], 7)}
    table: Any = SimpleNamespace(
        view=view, pending=lambda: pending, advance=lambda end: asked.append(("advance", end)), **slices
    )
    own.collection.table, own.collection.searched_at = table, NOW_S - searched_s
    monkeypatch.setattr(module.time, "sleep", lambda seconds: asked.append(("sleep", seconds)))
    assert own.index_step()
    assert asked[:2] == [("slice", rows), ("advance", 7)]
    assert len(asked) == 2 + pauses
    assert all(0 <= seconds <= module.PAUSE_S_MAX for _, seconds in asked[2:])
    own.collection._dropped = True
    assert not own.index_step()


@pytest.mark.parametrize(("shards", "all_there"), [([0, 1], True), ([0], False), ([0, 1, 2], True), ([], False)])
def test_rows_of_shards_that_are_not_asked_are_left_out(own: Indexing, shards: list[int], all_there: bool) -> None:
    store: Any = None
    own.collection.stores = {0: store, 1: store}
    view: Any = SimpleNamespace(size=3, shards=np.array([0, 1, 0, 9]))
    mask = own.collection.foreign(view, shards)
    assert (mask is None) is all_there
    if mask is not None:
        assert mask.tolist() == [number in shards for number in (0, 1, 0)]


def test_an_index_of_attributes_is_due_when_there_is_so_much_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attributes_module, "INDEX_ROWS_MIN", 10)
    monkeypatch.setattr(attributes_module, "INDEX_GROWTH", 2)
    empty = Attributes()
    assert not empty.index_due(1000)
    own = Attributes()
    columns: Any = {"a": None}
    own._columns = columns
    for size, indexed, due in ((9, 0, False), (10, 0, True), (59, 30, False), (60, 30, True)):
        index: Any = SimpleNamespace(size=indexed)
        own._index = index
        assert own.index_due(size) is due


@pytest.mark.parametrize("length", [1, 5, 200])
def test_the_memory_of_rows_counts_their_ids(length: int) -> None:
    def memory(count: int) -> int:
        table = Table(Collection(1, "c", 4, "dot"))
        names = [b"%0*d" % (length, number) for number in range(count)]
        versions = np.arange(1, count + 1, dtype=np.uint64)
        table.append(names, np.ones((count, 4), np.float32), versions, 0, [b""] * count, ())
        return table.memory_bytes

    a_row = 4 * 4 + 4 + 1 + 2 + 8 + (4 + 3 * 8)  # with its code, as none is in the graph
    assert memory(7) - memory(3) == 4 * (a_row + length + 8)


@pytest.mark.parametrize(
    ("indexed", "collapsed", "due"),
    [(9_999, 0, False), (10_000, 0, True), (12_499, 10_000, False), (12_500, 10_000, True)],
)
def test_memory_is_collapsed_when_there_is_so_much_more(own: Indexing, indexed: int, collapsed: int, due: bool) -> None:
    with_rows(own, indexed=indexed)
    own._collapsed_rows = collapsed
    assert own.pages_due() is due
    own.collection._dropped = True
    assert not own.pages_due()


def test_the_memory_of_the_process_is_collapsed(own: Indexing, monkeypatch: pytest.MonkeyPatch) -> None:
    with_rows(own, indexed=10_000)
    asked: list[huge_pages.Span] = []
    monkeypatch.setattr(huge_pages, "is_wanted", lambda: True)
    monkeypatch.setattr(huge_pages, "mappings", lambda: [(1, 2), (3, 4)])
    monkeypatch.setattr(huge_pages, "collapse", lambda span: asked.append(span) or iter([True]))
    assert len(list(own.collapse_pages())) == 2
    assert asked == [(1, 2), (3, 4)] and not own.pages_due()
    monkeypatch.setattr(huge_pages, "is_wanted", lambda: False)
    assert not list(own.collapse_pages()) and len(asked) == 2
