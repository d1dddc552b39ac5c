"""What a worker process answers about a shard whose store is damaged, and when it restarts to open a store anew."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proto import cluster_pb2
from shared import wire
from shared.errors import Unavailable
from shared.settings import Settings
from shared.wire import Reply, Request
from tests.unit.test_store_damage import damaged_table, put
from worker import process
from worker.damage import DamageReport
from worker.methods.method import Lane, Method
from worker.process import WorkerProcess
from worker.shard import Shard
from worker.storage.rows.store import Store, StoreDamaged


class Service:
    def __init__(self, *_: Any) -> None:
        self.sent: list[cluster_pb2.Register] = []

    def progress(self) -> list[tuple[bytes, int]]:
        return []

    def send(self, message: Any) -> bool:
        self.sent.append(wire.decode_register(message))
        return True


def shard_of(store: Store) -> Shard:
    shard = Shard.__new__(Shard)
    shard.store, shard.damage = store, DamageReport()
    shard.counts = dict  # type: ignore[method-assign]
    return shard


@pytest.fixture
def worker(tmp_path: Path, monkeypatch):
    """A worker with two shards, the second of which has a damaged table."""
    monkeypatch.setattr(process, "Service", Service)
    own = WorkerProcess("w", [0, 1], Settings(data=tmp_path), f"ipc://{tmp_path}/none", "c", 1)
    for number in (0, 1):
        path = tmp_path / str(number) / "store"
        store = Store(path)
        put(store, *(b"k%05d" % key for key in range(20_000)))
        if number == 1:
            store.close()
            damaged_table(path)
            store = Store(path)
        own._states[number] = shard_of(store)
    yield own
    for state in own._states.values():
        if isinstance(state, Shard):
            state.store.close()


def counting(lane: Lane) -> Method:
    def run(shards: Any, request: Request) -> Reply:
        return Reply(timings_ms={str(n): float(len(list(shard.store.keys("log")))) for n, shard in shards.items()})

    return Method(run, lane)


def ask(worker: WorkerProcess, lane: Lane) -> Reply:
    request = cast(Request, SimpleNamespace(method="log.count", shards=[0, 1], time_left=5.0))
    return worker._answer(request, counting(lane))


def test_a_read_that_meets_damage_is_answered_without_that_shard_and_says_why(worker) -> None:
    for _ in range(2):
        reply = ask(worker, "read")
        assert reply.timings_ms == {"0": 20_000.0}
        assert list(reply.shard_errors) == [1]
        assert "block checksum mismatch" in reply.shard_errors[1]
        assert ".sst" in reply.shard_errors[1]


def test_a_write_that_meets_damage_is_refused(worker) -> None:
    with pytest.raises(Unavailable, match="checksum") as raised:
        ask(worker, "write")
    assert type(raised.value) is Unavailable  # which the coordinator knows by its name


def test_damage_is_told_with_the_next_beat_and_restarts_nothing(worker) -> None:
    ask(worker, "read")
    assert not worker._beat()  # nobody is there by the connection for control messages
    states = {entry.shard: entry for entry in worker._service.sent[-1].shards}
    assert states[0].state == cluster_pb2.ShardState.READY
    assert states[1].state == cluster_pb2.ShardState.FAILED
    assert "checksum" in states[1].detail
    assert not worker._stopping


def test_a_store_that_refused_a_write_is_opened_again_by_a_restart_when_there_is_room(worker, monkeypatch) -> None:
    store = worker._states[0].store

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(db, name)

        def write(self, *_: Any) -> None:
            raise Exception("IO error: No space left on device: While appending to file")

    db, store._db = store._db, Full()
    with pytest.raises(Unavailable, match="No space left"):
        put(store, b"x")
    store._db = db
    with pytest.raises(Unavailable, match="takes no writes"):
        put(store, b"x")
    full = SimpleNamespace(free=0)
    monkeypatch.setattr("worker.storage.rows.store.shutil.disk_usage", lambda _: full)
    worker._beat()
    assert not worker._stopping
    full.free = 1 << 30
    worker._beat()
    assert worker._stopping


def test_a_shard_that_cannot_be_loaded_is_logged_in_one_line(worker, monkeypatch, caplog) -> None:
    def damaged(*_: Any) -> None:
        raise StoreDamaged("the store 0001/store is damaged: 000007.sst")

    monkeypatch.setattr(process, "Shard", damaged)
    with caplog.at_level(logging.ERROR):
        worker._states[1].store.close()
        worker._load(1)
    assert worker._states[1] == "the store 0001/store is damaged: 000007.sst"
    [record] = [record for record in caplog.records if record.message == "shard refused"]
    assert not record.exc_info
    worker._states[1] = None
