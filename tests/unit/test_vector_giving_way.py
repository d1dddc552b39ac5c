"""Writes and indexing beside searches: what gives way to them, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shared.messages.vectors import Collection
from tests.unit.vector_shard import OneShard
from worker.methods import vectors as methods
from worker.vectors import collection as collection_module
from worker.vectors import indexing as indexing_module
from worker.vectors.collection import GIVE_WAY_S, QUIET_S, WorkerCollection

WIDE = Collection(1, "default", 64, "cosine")


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneShard]:
    monkeypatch.setattr("worker.vectors.engine.Engine._step", lambda *_: False)  # nothing but the test indexes
    own = OneShard(tmp_path)
    own.write(["first"], rows(1), into=WIDE)
    yield own
    own.close()


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, 64)).astype(np.float32)


def collection_of(shard: OneShard) -> WorkerCollection:
    found = shard.vectors.find(WIDE)
    assert found is not None
    return found


def search_ago(shard: OneShard, seconds: float) -> None:
    collection_of(shard).searched_at = time.monotonic() - seconds


def write(shard: OneShard, count: int) -> None:
    shard.write([f"v{row}" for row in range(count)], rows(count), into=WIDE)


@pytest.mark.parametrize(("ago_s", "slices"), [(0.0, [50, 50, 20]), (2 * QUIET_S, [120])])
def test_a_write_beside_searches_is_made_in_slices(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch, ago_s: float, slices: list[int]
) -> None:
    monkeypatch.setattr(methods, "WRITTEN_BYTES_SEARCHED", 50 * 4 * 64 + 3)
    written: list[int] = []
    upsert = WorkerCollection.upsert

    def noted(own: WorkerCollection, number: int, ids: list[bytes], *columns: object) -> None:
        written.append(len(ids))
        upsert(own, number, ids, *columns)  # type: ignore[arg-type]

    monkeypatch.setattr(WorkerCollection, "upsert", noted)
    search_ago(shard, ago_s)
    write(shard, 120)
    assert written == slices
    assert len(shard.search(rows(1)[0], 200, of=WIDE)) == 121


def test_a_vector_of_any_size_is_written(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "WRITTEN_BYTES_SEARCHED", 1)
    search_ago(shard, 0.0)
    write(shard, 3)
    assert len(shard.search(rows(1)[0], 10, of=WIDE)) == 4


@pytest.mark.parametrize(("ago_s", "is_searched"), [(0.0, True), (2 * QUIET_S, False)])
def test_a_write_gives_way_between_its_steps_only_beside_searches(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch, ago_s: float, is_searched: bool
) -> None:
    steps: list[str] = []
    collection, store = collection_of(shard), shard.store
    sleep, put, append = time.sleep, store.write, collection.table.append

    def noted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def noting(*given: object) -> object:
            steps.append(name)
            return call(*given)

        return noting

    def rest(seconds: float) -> None:
        if seconds == GIVE_WAY_S:  # else it is another thread
            steps.append("rest")
        sleep(seconds)

    monkeypatch.setattr(collection_module.time, "sleep", rest)
    monkeypatch.setattr(store, "write", noted("store", put))
    monkeypatch.setattr(collection.table, "append", noted("table", append))
    search_ago(shard, ago_s)
    write(shard, 2)
    rests = ["rest"] if is_searched else []
    assert steps == [*rests, *rests, "store", *rests, "table"]


@pytest.mark.parametrize(
    ("ago_s", "pending_max", "is_written", "waits"),
    [(0.0, 10, True, True), (0.0, 10, False, False), (2 * QUIET_S, 10, True, False), (0.0, 5, True, False)],
)
def test_nothing_is_indexed_beside_searches_during_a_write_unless_much_is_pending(
    shard: OneShard,
    monkeypatch: pytest.MonkeyPatch,
    ago_s: float,
    pending_max: int,
    is_written: bool,
    waits: bool,
) -> None:
    write(shard, 4)
    monkeypatch.setattr(indexing_module, "PAUSE_PENDING_MAX", pending_max)
    collection = collection_of(shard)
    [indexing] = shard.vectors.engine._indexing.values()
    pending = collection.table.pending()
    search_ago(shard, ago_s)
    if is_written:
        with collection.writing():
            assert indexing.index_step()
    else:
        assert indexing.index_step()
    assert (collection.table.pending() == pending) == waits


def test_a_write_counts_until_all_of_them_have_ended(shard: OneShard) -> None:
    collection = collection_of(shard)
    with collection.writing():
        with pytest.raises(ValueError, match="no room"), collection.writing():
            raise ValueError("no room")
        assert collection.is_written()
    assert not collection.is_written()


def test_a_request_that_writes_counts_while_it_does(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = collection_of(shard)
    seen: list[bool] = []
    monkeypatch.setattr(WorkerCollection, "upsert", lambda own, *_: seen.append(own.is_written()))
    write(shard, 2)
    assert (seen, collection.is_written()) == ([True], False)
