"""A data directory with something of every kind in it, as a cluster leaves it that was stopped in order."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import time
from pathlib import Path

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from shared.durable import FILE_UMASK
from tests.forked_cluster import ForkedCluster
from worker.logs.keeper import CHECK_EVERY_S
from worker.storage.rows.store import Store

SHARDS, WORKERS = 3, 2
SETTINGS = {"TRIPTYCH_HEAD_BYTES": "24576", "TRIPTYCH_BLOCK_WINDOW": "10s"}
LONG_KEY_RECORDS = 70_000
"""More than are gathered into runs at once."""
POLICY = {"prefix": "of a policy ", "keepNewest": 1}
"""No record has such a key."""
VECTORS = 300
WITHIN_S = 60.0
GATHERED_S = CHECK_EVERY_S + 0.5
"""A worker with many records in memory has looked whether they are to be gathered by then, if it is not too busy."""


def fill(directory: Path) -> Path:
    """Start a cluster below `directory`, write in all areas, stop it; returns the data directory."""
    cluster = ForkedCluster(directory, SHARDS, WORKERS, SETTINGS)
    before = os.umask(FILE_UMASK)  # stores are opened in this process, too
    try:
        start_and_write(cluster)
        cluster.stop()
        give_up = time.monotonic() + WITHIN_S
        while shard_with_runs(directory / "data") is None:
            assert time.monotonic() < give_up, "no shard has gathered its log"
            cluster.start()
            time.sleep(GATHERED_S)
            cluster.stop()
        cluster.start()  # so that the files have been used by a second start
        _samples(cluster, count=5)
        _append(cluster, "few", 50)
        cluster.stop()
    finally:
        os.umask(before)
        cluster.kill()
    return directory / "data"


def shard_with_runs(data: Path) -> int | None:
    """The shard that has gathered its log: that of the long key. Nobody has the stores open."""
    for shard in range(SHARDS):
        with contextlib.closing(Store(data / f"shards/{shard:04d}/store")) as store:
            if next(store.keys("log", b"r", b"s"), None) is not None:
                return shard
    return None


def kill(directory: Path) -> Path:
    """As `fill`, once, and then every process is killed."""
    cluster = ForkedCluster(directory, SHARDS, WORKERS, SETTINGS)
    try:
        start_and_write(cluster)
    finally:
        cluster.kill()
    return directory / "data"


def start_and_write(cluster: Cluster) -> None:
    """Leave it running, with data in all areas, some of it in blocks."""
    cluster.start()
    _samples(cluster)
    _records(cluster)
    _vectors(cluster)


def _samples(cluster: Cluster, count: int = 100) -> None:
    at_ms = int(time.time() * 1000) - 600_000
    series = [
        ({"__name__": "m", "i": str(i)}, [(at_ms + j * 1000, float(i * j) / 7) for j in range(count)])
        for i in range(60)
    ]
    assert cluster.request("POST", "/api/v1/write", compressed(series), HEADERS).status == 204
    if count == 100:
        _until(cluster, "blocks")


def _until(cluster: Cluster, what: str) -> None:
    give_up = time.monotonic() + WITHIN_S
    while not all(shard["counts"][what] for shard in cluster.get("/api/v1/cluster").json()["data"]["shards"]):
        assert time.monotonic() < give_up, cluster.log("worker")
        time.sleep(0.05)


def _append(cluster: Cluster, key: str, count: int) -> None:
    key = base64.b64encode(key.encode()).decode()
    records = [{"key": key, "value": base64.b64encode(b"value %d" % n).decode()} for n in range(count)]
    answer = cluster.post_json("/api/v1/log/append", {"records": records, "awaitDurable": True})
    assert answer.status == 200, answer.body


def _records(cluster: Cluster) -> None:
    for _ in range(LONG_KEY_RECORDS // 10_000):
        _append(cluster, "long", 10_000)
    for number in range(12):
        _append(cluster, f"key {number}", 20)
    headers = {"Content-Type": "application/json"}
    answer = cluster.request("PUT", "/api/v1/log/policies/newest", json.dumps(POLICY).encode(), headers)
    assert answer.status == 200, answer.body


def _vectors(cluster: Cluster) -> None:
    chance = random.Random(1)
    vectors = [
        {"id": f"v{n}", "attributes": {"vector": [chance.gauss(0, 1) for _ in range(8)], "n": n}}
        for n in range(VECTORS)
    ]
    answer = cluster.post_json("/api/v1/vector/write", {"upsertVectors": vectors})
    assert answer.status == 200, answer.body
