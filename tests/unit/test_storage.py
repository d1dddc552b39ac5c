from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from shared.errors import Unavailable
from worker.storage.rows import opening
from worker.storage.rows import store as storage
from worker.storage.rows.store import Store, StoreDamaged, StoreLocked


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "store")
    yield opened
    opened.close()


def put(store, *rows, durable=False):
    batch = store.batch()
    for key, value in rows:
        batch.put("log", key, value)
    store.write(batch, durable=durable)


def test_a_store_whose_families_cannot_be_made_can_be_opened_by_the_same_process_again(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "FAMILIES", (*opening.FAMILIES, 7))
    with pytest.raises(StoreDamaged, match="argument") as refused:
        Store(tmp_path / "store")
    monkeypatch.undo()
    Store(tmp_path / "store").close()
    assert refused.value.__cause__  # which is kept until here, with all that its frames hold


def test_buffers_are_as_large_as_what_their_family_is_for(tmp_path):
    Store(tmp_path / "store").close()
    newest = max((tmp_path / "store").glob("OPTIONS-*"), key=lambda path: path.name)
    sections = newest.read_text().split("[CFOptions ")[1:]
    sizes = {
        section.partition('"')[2].partition('"')[0]: int(section.partition("write_buffer_size=")[2].split()[0])
        for section in sections
    }
    assert sizes["default"] == opening.COUNT_BUFFER_BYTES
    assert (sizes["series"], sizes["meta"], sizes["log"]) == (
        opening.STREAM_BUFFER_BYTES,
        opening.WRITE_BUFFER_BYTES,
        opening.WRITE_BUFFER_BYTES,
    )


def test_scan_is_ordered_and_half_open(store):
    put(store, *((b"k%d" % n, b"v%d" % n) for n in (3, 1, 0, 2, 4)))
    assert list(store.scan("log", b"k1", b"k4")) == [(b"k1", b"v1"), (b"k2", b"v2"), (b"k3", b"v3")]
    assert [k for k, _ in store.scan("log", b"k1", b"k4", reverse=True)] == [b"k3", b"k2", b"k1"]
    assert [k for k, _ in store.scan("log", b"k3")] == [b"k3", b"k4"]
    assert [k for k, _ in store.scan("log", reverse=True)] == [b"k4", b"k3", b"k2", b"k1", b"k0"]


def test_families_are_apart(store):
    put(store, (b"k", b"log"))
    assert store.get("meta", b"k") is None
    assert store.get_many("log", [b"k", b"none"]) == [b"log", None]


def test_delete_range_spares_its_end(store):
    put(store, *((b"k%d" % n, b"") for n in range(5)))
    batch = store.batch()
    batch.delete_range("log", b"k1", b"k4")
    store.write(batch)
    assert [k for k, _ in store.scan("log")] == [b"k0", b"k4"]


def test_a_batch_takes_effect_in_the_order_given(store):
    batch = store.batch()
    batch.put("log", b"k", b"1")
    batch.delete("log", b"k")
    batch.put("log", b"k", b"2")
    store.write(batch)
    assert store.get("log", b"k") == b"2"


def test_a_second_owner_is_refused(store, tmp_path):
    with pytest.raises(StoreLocked):
        Store(tmp_path / "store")


def test_a_written_batch_survives_the_death_of_its_process(tmp_path):
    script = (
        "import os, sys; from pathlib import Path; from worker.storage.rows.store import Store;"
        "s = Store(Path(sys.argv[1])); b = s.batch(); b.put('log', b'k', b'v'); s.write(b); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "store")], check=False)
    assert done.returncode == -9
    reopened = Store(tmp_path / "store")
    assert reopened.get("log", b"k") == b"v"
    reopened.close()


def test_concurrent_durable_writes_all_return_and_all_stay(tmp_path):
    store = Store(tmp_path / "store")
    threads = [
        threading.Thread(target=lambda n=n: [put(store, (b"%d-%d" % (n, i), b""), durable=True) for i in range(20)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    reopened = Store(tmp_path / "store")
    assert len(list(reopened.scan("log"))) == 160
    reopened.close()


def test_a_damaged_store_is_an_os_error(tmp_path):
    Store(tmp_path / "store").close()
    for name in os.listdir(tmp_path / "store"):
        if name.startswith("MANIFEST"):
            (tmp_path / "store" / name).write_bytes(b"not a manifest")
    with pytest.raises(OSError, match=r".+"):
        Store(tmp_path / "store")


def test_a_scan_keeps_its_end_while_it_is_read(store):
    batch = store.batch()
    batch.put_many("log", [b"k%04d" % i for i in range(1000)], [b"v"] * 1000)
    store.write(batch)
    for end in range(0, 1000, 7):
        rows = store.scan("log", b"k0000", b"k%04d" % end)
        keys = store.keys("log", b"k0000", b"k%04d" % end)
        noise = [store.scan("log", b"", b"%d" % i) for i in range(20)]
        assert (len(list(rows)), len(list(keys)), len(noise)) == (end, end, 20)


class Held:
    """A store's database that says how it is: `states` are its answers to being asked, the last one for ever."""

    def __init__(self, db, *states):
        self._db = db
        self._states = list(states)

    def __getattr__(self, name):
        return getattr(self._db, name)

    def property_int_value(self, name):
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return int(state == name)


STOPPED, DELAYED, FREE = "rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate", ""


def test_a_write_waits_outside_of_the_store_while_that_would_hold_it_up(store):
    db = store._db
    store._db = held = Held(db, STOPPED, STOPPED, STOPPED, FREE)
    put(store, (b"k", b"v"))
    assert len(held._states) == 1
    assert store.get("log", b"k") == b"v"


def test_a_store_that_only_slows_writes_down_gets_them_in_the_end(store, monkeypatch):
    monkeypatch.setattr(storage, "HOLD_UP_S", 0.05)
    store._db = Held(store._db, DELAYED)
    started = time.monotonic()
    put(store, (b"k", b"v"))
    assert time.monotonic() - started >= 0.05
    assert store.get("log", b"k") == b"v"


def test_a_store_that_takes_no_writes_refuses_and_recovers(store, monkeypatch):
    monkeypatch.setattr(storage, "HOLD_UP_S", 0.02)
    monkeypatch.setattr(storage, "STOP_S", 0.05)
    db = store._db
    store._db = Held(db, STOPPED)
    with pytest.raises(Unavailable, match="behind with its compaction"):
        put(store, (b"k", b"v"))
    assert not store.recoverable()
    store._db = db
    put(store, (b"k", b"v"))
    assert store.get("log", b"k") == b"v"


def test_a_store_that_stops_writes_for_longer_than_one_that_slows_them_is_not_refused_yet(store, monkeypatch):
    monkeypatch.setattr(storage, "HOLD_UP_S", 0.02)
    states = [STOPPED] * 12  # of which two are asked for in each round of HOLD_UP_POLL_S at most
    store._db = Held(store._db, *states, FREE)
    started = time.monotonic()
    put(store, (b"k", b"v"))
    assert time.monotonic() - started > 0.02
    assert store.get("log", b"k") == b"v"


def test_the_store_knows_the_properties_it_is_asked_for(store):
    assert [store._db.property_int_value(name) for name in (STOPPED, DELAYED)] == [0, 0]


def test_removing_an_empty_range_leaves_a_store_that_opens_again(tmp_path):
    store = Store(tmp_path / "store")
    batch = store.batch()
    batch.put("meta", b"k", b"v")
    batch.delete_range("journal", b"a", b"a")
    store.write(batch, durable=True)
    store.close()
    store = Store(tmp_path / "store")
    assert store.get("meta", b"k") == b"v"
    store.close()
