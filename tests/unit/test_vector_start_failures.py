"""Failures around fast starts: snapshots that cannot be written, stores of another history, shards that are removed
while they are compared."""

from __future__ import annotations

import gc
import shutil
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from shared.errors import Unavailable
from shared.messages.vectors import Collection
from shared.settings import Settings
from tests.unit.test_vector_fast_start import ROWS, VECTORS, Own, few_are_many, own, own_records
from worker.damage import DamageReport
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.vectors import engine as engine_module
from worker.vectors import indexing, loading, saved_vectors, snapshot, verification
from worker.vectors.engine import Engine
from worker.vectors.indexing import Indexing
from worker.vectors.stored_rows import Row

__all__ = ["few_are_many", "own"]  # fixtures


@pytest.mark.parametrize("place", ["put", "replace"])
def test_snapshots_that_fail_leave_nothing_and_are_tried_again_after_a_pause(
    own: Own, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt would else leave an index on a disk that is nearly full."""
    directory = own.path / "vector-index" / "000001" / "0"
    own.write(range(ROWS, ROWS + 300))
    while own.indexing.index_step():
        pass
    monkeypatch.setattr(own.indexing, "_snapshot_s", 0.0)
    before = {path.name: path.stat().st_size for path in directory.iterdir()}
    replace = LocalObjects.replace

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def full_for_rows(objects: LocalObjects, name: str, content: bytes) -> None:
        full() if name == snapshot.ROWS else replace(objects, name, content)

    assert own.indexing.snapshot_due()
    with monkeypatch.context() as filled:
        if place == "put":
            filled.setattr(saved_vectors, "write", full)
        else:
            filled.setattr(LocalObjects, "replace", full_for_rows)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                own.indexing.save()
            assert {path.name: path.stat().st_size for path in directory.iterdir()} == before
            assert not own.indexing.snapshot_due()
    own.indexing._retry_at -= indexing.SNAPSHOT_RETRY_S
    assert own.indexing.snapshot_due()
    own.indexing.save()
    assert not own.indexing.snapshot_due()
    expected = own.held()
    own.reopen()
    assert own.trusted == [0] and own.held() == expected


def test_a_snapshot_that_is_named_already_when_it_fails_stays(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    own.write(range(ROWS, ROWS + 50))
    replace = LocalObjects.replace

    def named_and_failed(objects: LocalObjects, name: str, content: bytes) -> None:
        replace(objects, name, content)
        if name == snapshot.ROWS:
            raise OSError(5, "the directory could not be synced")

    with monkeypatch.context() as failing, pytest.raises(OSError, match="could not be synced"):
        failing.setattr(LocalObjects, "replace", named_and_failed)
        own.save()
    expected = own.held()
    own.reopen()
    assert own.trusted == [0] and own.held() == expected


def test_a_store_from_before_the_snapshot_is_noticed_if_vectors_were_pending(own: Own) -> None:
    """The versions are the same, and the snapshot names a position that both histories have passed."""
    own.write([ROWS])
    own.close()
    copy = own.path / "copy"
    shutil.copytree(own.path / "store-0", copy)
    mark = own.path / "store-0.mark"
    mark_content = mark.read_bytes() if mark.exists() else None
    own.open()
    expected = own.held()
    own.collection.delete(0, [b"1", b"2"])
    own.collection.saved_rows = 0
    own.indexing.save()
    own.reopen()
    assert own.trusted == [0] and own.held().keys() == expected.keys() - {b"1", b"2"}
    own.close()
    shutil.rmtree(own.path / "store-0")
    shutil.copytree(copy, own.path / "store-0")
    if mark_content is not None:
        mark.write_bytes(mark_content)
    own.open()
    assert own.trusted == [] and own.held() == expected


def test_a_deletion_after_a_write_that_was_refused_counts(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the store was behind with its compaction for a while: it has not heard of the versions of that write."""

    def refuse(*_: object, **__: bool) -> None:
        raise Unavailable("try again later")

    with monkeypatch.context() as refusing, pytest.raises(Unavailable):
        refusing.setattr(Store, "write", refuse)
        own.write([ROWS, ROWS + 1])
    own.collection.delete(0, [b"1"])
    expected = own.held()
    for _ in range(2):
        own.reopen()
        assert own.held() == expected and b"1" not in expected
        own.write([2], VECTORS + 1)
        own.collection.delete(0, [b"3"])
        expected = own.held()


def test_a_collection_with_texts_saves_no_vectors(tmp_path: Path) -> None:
    """A start would read them from the snapshot, and then once more from the stores with the texts."""
    own = Own(tmp_path, text=("t",))
    own.write(range(ROWS))
    own.save()
    assert not list(tmp_path.rglob("*.vectors"))
    own.close()


def test_a_shard_that_is_loaded_again_while_it_is_compared_has_each_vector_once(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loading and the comparison would both add the vectors that the table does not have yet."""
    monkeypatch.setattr(loading, "LOAD_ROWS", 64)
    own.reopen()
    expected = own.held()
    assert own.trusted == [0]
    next_rows, load = loading.next_rows, loading.Loading._load
    has_begun, may_go_on = threading.Event(), threading.Event()

    def halting_load(loaded: loading.Loading, shard: int, rows: Sequence[Row]) -> object:
        wrong = load(loaded, shard, rows)
        has_begun.set()
        assert may_go_on.wait(10)
        return wrong

    def next_rows_of_a_removed_shard(entries: Iterator[Row], rows_max: int) -> list[Row]:
        rows = next_rows(entries, rows_max)
        monkeypatch.setattr(verification, "next_rows", next_rows)
        own.collection.detach(0)
        own.snapshots.within("0").remove()
        again.start()
        assert has_begun.wait(10)
        return rows

    again = threading.Thread(target=own.collection.attach, args=(0, own.stores[0], own.damage))
    with monkeypatch.context() as halting:
        halting.setattr(loading.Loading, "_load", halting_load)
        monkeypatch.setattr(verification, "next_rows", next_rows_of_a_removed_shard)
        own.indexing.verify_step()
        may_go_on.set()
        again.join()
    own.verify()
    assert own.held() == expected and own.trusted == []
    assert own.collection.counts(0)[0] == ROWS


def test_a_comparison_of_a_shard_that_is_gone_ends(own: Own, caplog: pytest.LogCaptureFixture) -> None:
    own.reopen()
    expected = own.held()
    assert own.indexing.verify_step()
    own.collection.detach(0)
    own.collection.attach(0, own.stores[0], own.damage)
    assert own.trusted == [0]
    own.verify()
    assert own.held() == expected and not own_records(caplog)


def test_rows_of_a_snapshot_are_given_up_between_two_batches_of_a_load_only(own: Own) -> None:
    """A table that is compacted after that would lose those of the batch."""
    own.reopen()
    awaiting = own.collection.loading
    awaiting.snapshot_rows, awaiting._awaited = ROWS, set()
    with own.collection.lock:
        asking = threading.Thread(target=awaiting.is_settled)
        asking.start()
        asking.join(0.1)
        assert awaiting.snapshot_rows == ROWS
    asking.join()
    assert awaiting.snapshot_rows == 0


def test_a_snapshot_of_a_table_that_has_been_given_up_does_not_count(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectors of the next table are to be saved, too."""
    own.write(range(ROWS, ROWS + 50))
    write = snapshot.write

    def write_and_detach(*parts: object) -> object:
        segments = write(*parts)  # type: ignore[arg-type]
        own.collection.detach(0)
        return segments

    monkeypatch.setattr(snapshot, "write", write_and_detach)
    own.save()
    assert own.collection.saved_rows == 0 and own.collection.loading.segments == ()


def test_the_first_write_after_a_start_copies_no_vectors(own: Own) -> None:
    own.reopen()
    before = own.collection.view().vectors
    own.write([1], VECTORS + 1)
    assert own.collection.view().vectors is before


def test_a_comparison_keeps_no_vectors_of_a_table_that_has_grown(own: Own) -> None:
    """They would be in memory twice until its end."""
    own.reopen()
    before = weakref.ref(own.collection.view().vectors)
    assert own.indexing.verify_step()
    own.write(range(2 * ROWS))
    gc.collect()
    assert before() is None


def test_a_failure_in_one_collection_does_not_keep_others_from_being_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "IDLE_S", 0.05)
    step, failed = Indexing.verify_step, []

    def failing_step(own: Indexing) -> bool:
        if own.collection.collection.id == 1:
            failed.append(own)
            raise Unavailable("the disk does not answer")
        return step(own)

    monkeypatch.setattr(Indexing, "verify_step", failing_step)
    engine = Engine(Settings(data=tmp_path), LocalObjects(tmp_path / "vector-index"))
    store, damage = Store(tmp_path / "store"), DamageReport()
    collections = [Collection(number, str(number), VECTORS.shape[1], "l2") for number in (1, 2)]
    engine.join(0, store, damage, collections)
    try:
        for collection in collections:
            held = engine.find(collection.id)
            assert held is not None
            held.upsert(0, [b"a"], np.ascontiguousarray(VECTORS[:1]), [b""])
        engine.wake()
        deadline = time.monotonic() + 10
        while engine.counts(0)["vectors_to_index"] or len(failed) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert engine.failures >= 2
    finally:
        engine.stop()
        store.close()
