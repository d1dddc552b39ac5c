"""The log under SIGKILL: what was acknowledged as durable is there once, in order; no half batch is."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster
from tests.forked_cluster import ForkedCluster

ROUNDS = int(os.environ.get("LOG_KILL_ROUNDS", "4"))
SEED = int(os.environ.get("LOG_KILL_SEED", "1"))
KINDS = ("worker", "coordinator", "everything")
WRITERS = 3


def body_of(records: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "records": [{"key": base64.b64encode(k).decode(), "value": base64.b64encode(v).decode()} for k, v in records]
    }


def append(cluster: Cluster, records: list[tuple[bytes, bytes]], durable: bool) -> int | None:
    """The first sequence number, None when it was refused or the connection broke."""
    try:
        answer = cluster.post_json("/api/v1/log/append", {**body_of(records), "awaitDurable": durable})
    except (OSError, HTTPException, json.JSONDecodeError):
        return None
    assert answer.status in (200, 429, 503), answer.body
    return answer.json()["startSequence"] if answer.status == 200 else None


def decoded(record: dict[str, Any]) -> tuple[int, bytes, bytes]:
    return record["sequence"], base64.b64decode(record["key"]), base64.b64decode(record["value"])


def read_all(cluster: Cluster) -> list[tuple[int, bytes, bytes]]:
    rows: list[tuple[int, bytes, bytes]] = []
    following = 0
    while True:
        answer = cluster.get("/api/v1/log/scan", prefix="", start_seq=str(following), limit="10000").json()
        assert answer["status"] == "success", answer
        rows += [decoded(record) for record in answer["records"]]
        if answer["nextSequence"] == following:
            return rows
        following = answer["nextSequence"]


class Load:
    """Writers that append batches all the time, and a reader that follows the whole log."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.acknowledged: dict[int, list[tuple[bytes, bytes]]] = {}
        self.sent: list[list[tuple[bytes, bytes]]] = []
        self.seen: list[tuple[int, bytes, bytes]] = []
        self.following = 0
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(i,)) for i in range(WRITERS)]
        self._threads.append(threading.Thread(target=self._read))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, writer: int) -> None:
        number, last = 0, -1
        while not self._stop.is_set():
            number += 1
            records = [(b"key-%d" % (i % 7), b"%d/%d/%d" % (writer, number, i)) for i in range(1 + number % 20)]
            self.sent.append(records)
            start = append(self.cluster, records, durable=number % 2 == 0)
            if start is None:
                time.sleep(0.05)
                continue
            if start <= last:
                self.wrong.append(f"{start} was given after {last}")
            last = start
            self.acknowledged[start] = records

    def _read(self) -> None:
        while not self._stop.wait(0.02):
            try:
                answer = self.cluster.get("/api/v1/log/scan", prefix="", start_seq=str(self.following), limit="10000")
                page = answer.json()
            except (OSError, ValueError, HTTPException):
                continue
            if answer.status == 200:
                self.seen += [decoded(record) for record in page["records"]]
                self.following = page["nextSequence"]


def kill_one(cluster: Cluster, kind: str, chance: random.Random) -> None:
    if kind == "coordinator":
        assert cluster.coordinator is not None
        cluster.coordinator.kill()
        cluster.coordinator.wait()
        cluster.start_coordinator()
    elif kind == "worker":
        name = f"worker-{chance.randrange(cluster.workers)}"
        killed = cluster.worker_pids()[name]
        os.kill(killed, signal.SIGKILL)
        give_up = time.monotonic() + 30
        while cluster.worker_pids().get(name, killed) == killed:
            assert time.monotonic() < give_up, f"{name} did not come back"
            time.sleep(0.05)
    else:
        cluster.kill()
        cluster.start()
    cluster.wait_ready()


@pytest.mark.timeout(60 + 40 * ROUNDS)
def test_what_was_acknowledged_or_read_survives_kills_under_load(new_cluster: Callable[..., Cluster]) -> None:
    """ROUNDS times a coordinator, a worker or everything gets SIGKILL; LOG_KILL_ROUNDS=20 for the long form."""
    chance = random.Random(SEED)
    cluster = new_cluster(shards=4, workers=2, settings={"TRIPTYCH_WRITE_TIMEOUT": "4s"}).start()
    load = Load(cluster)
    before = 0
    try:
        for number in range(ROUNDS):
            time.sleep(chance.uniform(0.2, 0.8))
            kill_one(cluster, KINDS[number] if number < len(KINDS) else chance.choice(KINDS), chance)
            before = len(load.acknowledged)
        time.sleep(0.5)
    finally:
        load.stop()
    assert not load.wrong
    assert len(load.acknowledged) > before, "nothing was acknowledged after the last kill"
    cluster.kill()
    cluster.start()
    rows = read_all(cluster)
    numbers = [number for number, _, _ in rows]
    assert numbers == sorted(set(numbers))
    stored = {number: (key, value) for number, key, value in rows}
    for start, records in load.acknowledged.items():
        assert [stored.get(start + i) for i in range(len(records))] == records
    assert load.seen == [row for row in rows if row[0] < load.following], "what was read once has changed"
    values = {value for _, _, value in rows}
    assert len(values) == len(rows)
    for records in load.sent:
        assert sum(value in values for _, value in records) in (0, len(records)), "half a batch"


def test_a_restart_in_order_leaves_no_gap(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=2, workers=1).start()
    assert append(cluster, [(b"k", b"1"), (b"j", b"2")], durable=False) == 0
    assert cluster.coordinator is not None
    cluster.coordinator.terminate()
    cluster.coordinator.wait(10)
    cluster.start_coordinator()
    cluster.wait_ready()
    assert append(cluster, [(b"k", b"3")], durable=False) == 2
    cluster.stop()
    cluster.start()
    assert append(cluster, [(b"k", b"4")], durable=True) == 3
    assert [value for _, _, value in read_all(cluster)] == [b"1", b"2", b"3", b"4"]


def test_a_shard_that_is_down_is_named_and_nothing_is_written(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=2, workers=2).start()
    assert append(cluster, [(b"key-%d" % i, b"") for i in range(20)], durable=True) == 0
    assert cluster.supervisor is not None
    cluster.supervisor.kill()
    cluster.supervisor.wait()
    give_up = time.monotonic() + 20
    while cluster.get("/-/ready").body.count(b"shard ") < 2 and time.monotonic() < give_up:
        time.sleep(0.05)
    body: Any = {"records": [{"key": "aw==", "value": "dg=="}]}
    answer = cluster.post_json("/api/v1/log/append", body)
    assert answer.status == 503
    assert "not available: shard " in answer.json()["message"]
    assert cluster.get("/api/v1/log/scan", prefix="").status == 503


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory whose `data` is a file system of 64 MB."""
    data = tmp_path / "small" / "data"
    data.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(data)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system takes root")
    yield data.parent
    subprocess.run(["umount", "--lazy", str(data)], check=True)


def test_a_full_disk_is_named_and_forgotten_when_there_is_room(small_disk: Path) -> None:
    """Reads go on meanwhile; what was refused is never seen, and no number comes twice."""
    cluster = ForkedCluster(small_disk, shards=2, workers=1).start()
    try:
        first = [(b"key-%d" % i, os.urandom(50_000)) for i in range(20)]
        last = append(cluster, first, durable=True)
        assert last == 0
        ballast = small_disk / "data" / "ballast"
        fill(ballast)
        answer = cluster.post_json("/api/v1/log/append", body_of([(b"k", bytes(2 << 20)), (b"j", bytes(2 << 20))]))
        assert answer.status == 503
        assert "shard" in answer.json()["message"]
        assert "No space left on device" in answer.json()["message"]
        assert [(key, value) for _, key, value in read_all(cluster)] == first
        ballast.unlink()
        give_up = time.monotonic() + 30
        while (start := append(cluster, [(b"k", b"1"), (b"j", b"2")], durable=True)) is None:
            assert time.monotonic() < give_up, cluster.log("worker")[-2000:]
            time.sleep(0.2)
        assert start >= 22
        rows = read_all(cluster)
        assert [(key, value) for _, key, value in rows] == [*first, (b"k", b"1"), (b"j", b"2")]
        cluster.kill()
        cluster.start()
        assert read_all(cluster) == rows
    finally:
        cluster.kill()


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
