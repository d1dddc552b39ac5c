"""What every implementation of `worker.storage.faces.Rows` promises. What a loss of power leaves is found by
`tests/powerloss`."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.errors import Unavailable
from worker.storage.faces import RowBatch, Rows
from worker.storage.rows.damage import StoreDamaged, StoreLocked
from worker.storage.rows.store import Store


class FailingDatabase:
    """A store's database whose writes or syncs fail."""

    def __init__(self, database: Any, call: str) -> None:
        self._database = database
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._call else getattr(self._database, name)

    def _fail(self, *_: Any, **__: Any) -> None:
        raise Exception("IO error: the disk refuses")


class LocalRows:
    """A store in files, and its faults."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._images = 0
        self._open: list[Store] = []

    def open(self) -> Rows:
        """As the next process after an orderly end of the last one."""
        self.close()
        return self._opened(self._directory / "store")

    def open_another(self) -> Rows:
        """As a second process beside the one that has the rows."""
        return Store(self._directory / "store")

    def open_after_death(self) -> Rows:
        """As the next process after the death of the last one at this moment."""
        self._images += 1
        image = self._directory.with_name(f"{self._directory.name}-{self._images}")
        shutil.copytree(self._directory, image)
        return self._opened(image / "store")

    def _opened(self, path: Path) -> Store:
        store = Store(path)
        self._open.append(store)
        return store

    def refuse(self, what: str) -> None:
        """From now on the disk refuses to "write" or to "sync"."""
        store = self._open[-1]
        store._db = FailingDatabase(store._db, {"write": "write", "sync": "flush_wal"}[what])

    def damage(self, value: bytes) -> None:
        """Flip a bit of each copy of this value on the disk; nothing has the rows open."""
        for path in (self._directory / "store").iterdir():
            content = path.read_bytes()
            if value in content:
                path.write_bytes(content.replace(value, bytes([value[0] ^ 1]) + value[1:]))

    def close(self) -> None:
        for store in self._open:
            store.close()
        self._open.clear()


IMPLEMENTATIONS = [pytest.param(LocalRows, id="local")]


@pytest.fixture(params=IMPLEMENTATIONS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalRows]:
    made = request.param(tmp_path / "rows")
    yield made
    made.close()


@pytest.fixture
def rows(storage: LocalRows) -> Rows:
    return storage.open()


def batch_of(rows: Rows, *keys: bytes, family: str = "log") -> RowBatch:
    """Rows whose values are "value of KEY"."""
    batch = rows.batch()
    for key in keys:
        batch.put(family, key, b"value of " + key)
    return batch


def keys(rows: Rows) -> list[bytes]:
    return list(rows.keys("log"))


NUMBERED = [b"k%d" % number for number in range(5)]


# Reading


def test_rows_are_found_by_key_in_their_family(rows: Rows) -> None:
    rows.write(batch_of(rows, b"a", b"b"))
    rows.write(batch_of(rows, b"a", family="meta"))
    assert rows.get("log", b"b") == b"value of b"
    assert rows.get("meta", b"b") is None
    assert rows.get_many("log", [b"b", b"none", b"a"]) == [b"value of b", None, b"value of a"]
    assert rows.get_many("log", []) == []


def test_a_scan_is_ordered_and_half_open(rows: Rows) -> None:
    rows.write(batch_of(rows, *reversed(NUMBERED)))
    assert list(rows.scan("log", b"k1", b"k4")) == [(key, b"value of " + key) for key in NUMBERED[1:4]]
    assert [key for key, _ in rows.scan("log", b"k1", b"k4", reverse=True)] == NUMBERED[3:0:-1]
    assert [key for key, _ in rows.scan("log", b"k3")] == NUMBERED[3:]
    assert [key for key, _ in rows.scan("log", reverse=True)] == NUMBERED[::-1]
    assert list(rows.keys("log", b"k1", b"k3")) == NUMBERED[1:3]
    assert list(rows.scan("log", b"k2", b"k2")) == []


def test_a_scan_has_the_rows_of_the_moment_it_begins(rows: Rows) -> None:
    rows.write(batch_of(rows, *NUMBERED))
    scan = rows.scan("log")
    first = next(scan)
    batch = rows.batch()
    batch.delete("log", NUMBERED[2])
    batch.put("log", b"k9", b"")
    rows.write(batch)
    assert [first[0], *(key for key, _ in scan)] == NUMBERED


# Writing


def test_changes_take_effect_in_the_order_given(rows: Rows) -> None:
    batch = rows.batch()
    batch.put("log", b"k", b"1")
    batch.delete("log", b"k")
    batch.put_many("log", [b"k", b"l"], [b"2", b"3"])
    batch.delete("log", b"l")
    rows.write(batch)
    assert list(rows.scan("log")) == [(b"k", b"2")]


def test_a_batch_is_not_seen_before_it_is_written_and_knows_its_size(rows: Rows) -> None:
    batch = batch_of(rows, b"k")
    assert batch.size_bytes == len(b"k" + b"value of k")
    assert keys(rows) == []
    rows.write(batch)
    assert keys(rows) == [b"k"]


@pytest.mark.parametrize(("start", "end", "left"), [(1, 4, [0, 4]), (1, 1, [0, 1, 2, 3, 4]), (0, 9, [])])
def test_a_deleted_range_spares_its_end(rows: Rows, start: int, end: int, left: list[int]) -> None:
    rows.write(batch_of(rows, *NUMBERED))
    batch = rows.batch()
    batch.delete_range("log", b"k%d" % start, b"k%d" % end)
    rows.write(batch)
    rows.reclaim("log", b"k%d" % start, b"k%d" % end)
    assert keys(rows) == [NUMBERED[number] for number in left]


def test_durable_writes_of_threads_share_their_syncs_and_all_stay(storage: LocalRows) -> None:
    rows = storage.open()

    def work(thread: int) -> None:
        for number in range(20):
            rows.write(batch_of(rows, b"%d-%d" % (thread, number)), durable=True)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys(storage.open())) == 160


# Owners, deaths


def test_a_second_owner_is_refused(storage: LocalRows) -> None:
    storage.open()
    with pytest.raises(StoreLocked):
        storage.open_another()


def test_an_orderly_end_keeps_everything(storage: LocalRows) -> None:
    rows = storage.open()
    rows.write(batch_of(rows, b"a"))
    rows.write(batch_of(rows, b"b"), logged=False)
    assert keys(storage.open()) == [b"a", b"b"]


def test_written_batches_survive_the_death_of_the_process(storage: LocalRows) -> None:
    rows = storage.open()
    rows.write(batch_of(rows, b"durable"), durable=True)
    rows.write(batch_of(rows, b"logged"))
    assert keys(storage.open_after_death()) == [b"durable", b"logged"]


def test_what_is_not_logged_survives_only_with_a_flush_of_its_family(storage: LocalRows) -> None:
    rows = storage.open()
    rows.write(batch_of(rows, b"flushed"), logged=False)
    rows.flush("log")
    rows.write(batch_of(rows, b"lost"), logged=False)
    assert keys(rows) == [b"flushed", b"lost"]
    assert keys(storage.open_after_death()) == [b"flushed"]


# Faults


def test_a_write_that_storage_refuses_is_refused_and_the_rest_can_be_read(storage: LocalRows) -> None:
    rows = storage.open()
    rows.write(batch_of(rows, b"before"))
    storage.refuse("write")
    with pytest.raises(Unavailable):
        rows.write(batch_of(rows, b"refused"))
    assert (rows.get("log", b"before"), rows.damage) == (b"value of before", None)
    assert keys(storage.open_after_death()) == [b"before"]


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_sync_that_fails_ends_all_writing_until_the_rows_are_opened_again(
    storage: LocalRows, is_durable: bool
) -> None:
    rows = storage.open()
    rows.write(batch_of(rows, b"before"))
    assert not rows.recoverable()
    storage.refuse("sync")
    with pytest.raises(Unavailable):
        rows.write(batch_of(rows, b"doubtful"), durable=True)
    for _ in range(2):
        with pytest.raises(Unavailable):
            rows.write(batch_of(rows, b"after"), durable=is_durable)
    assert rows.recoverable()
    assert rows.get("log", b"before") == b"value of before"
    assert set(keys(storage.open_after_death())) - {b"doubtful"} == {b"before"}


def test_damage_is_never_read_as_less_than_there_was(storage: LocalRows) -> None:
    value = random.Random(5).randbytes(40)  # nothing that compresses
    rows = storage.open()
    batch = batch_of(rows, *NUMBERED)
    batch.put("log", b"k2", value)
    rows.write(batch)
    rows.flush("log")
    storage.close()
    storage.damage(value)
    with pytest.raises(StoreDamaged):
        _read_all(storage)


def _read_all(storage: LocalRows) -> None:
    rows = storage.open()
    try:
        list(rows.scan("log"))
    except StoreDamaged:
        assert rows.damage
        raise


def test_a_row_that_cannot_be_decoded_is_damage_that_names_it(rows: Rows) -> None:
    with pytest.raises(StoreDamaged, match="k7"), rows.decoding("log", b"k7"):
        raise ValueError("it makes no sense")
