"""The log under SIGKILL: what was acknowledged as durable is there once, in order; no half batch is."""

from __future__ import annotations

import base64
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.cluster import Cluster

ROUNDS = 4
WRITERS = 3


def append(cluster: Cluster, records: list[tuple[bytes, bytes]], durable: bool) -> int | None:
    """The first sequence number, None when it was refused or the connection broke."""
    body = {
        "records": [{"key": base64.b64encode(k).decode(), "value": base64.b64encode(v).decode()} for k, v in records],
        "awaitDurable": durable,
    }
    try:
        answer = cluster.post_json("/api/v1/log/append", body)
    except (OSError, json.JSONDecodeError):
        return None
    assert answer.status in (200, 429, 503), answer.body
    return answer.json()["startSequence"] if answer.status == 200 else None


def read_all(cluster: Cluster) -> list[tuple[int, bytes, bytes]]:
    rows: list[tuple[int, bytes, bytes]] = []
    following = 0
    while True:
        answer = cluster.get("/api/v1/log/scan", prefix="", start_seq=str(following), limit="10000").json()
        assert answer["status"] == "success", answer
        rows += [(r["sequence"], base64.b64decode(r["key"]), base64.b64decode(r["value"])) for r in answer["records"]]
        if answer["nextSequence"] == following:
            return rows
        following = answer["nextSequence"]


@pytest.mark.timeout(240)
def test_acknowledged_records_survive_kills_under_load(new_cluster: Callable[..., Cluster]) -> None:
    chance = random.Random(1)
    cluster = new_cluster(shards=4, workers=2, settings={"TRIPTYCH_WRITE_TIMEOUT": "4s"}).start()
    acknowledged: dict[int, list[tuple[bytes, bytes]]] = {}
    sent: list[list[tuple[bytes, bytes]]] = []
    stop = threading.Event()

    def write(writer: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            records = [(b"key-%d" % (i % 7), b"%d/%d/%d" % (writer, number, i)) for i in range(1 + number % 20)]
            sent.append(records)
            start = append(cluster, records, durable=number % 2 == 0)
            if start is not None:
                acknowledged[start] = records
            else:
                time.sleep(0.05)

    writers = [threading.Thread(target=write, args=(i,)) for i in range(WRITERS)]
    for thread in writers:
        thread.start()
    for number in range(ROUNDS):
        time.sleep(chance.uniform(0.3, 1.0))
        if number % 2:
            assert cluster.coordinator is not None
            cluster.coordinator.kill()
            cluster.coordinator.wait()
            cluster.start_coordinator()
        else:
            cluster.kill_worker(f"worker-{chance.randrange(2)}")
            time.sleep(0.3)
        cluster.wait_ready()
    before = len(acknowledged)
    time.sleep(0.5)
    stop.set()
    for thread in writers:
        thread.join()
    assert len(acknowledged) > before, "nothing was acknowledged after the last kill"
    cluster.kill()
    cluster.start()
    rows = read_all(cluster)
    numbers = [number for number, _, _ in rows]
    assert numbers == sorted(set(numbers))
    stored = {number: (key, value) for number, key, value in rows}
    for start, records in acknowledged.items():
        assert [stored.get(start + i) for i in range(len(records))] == records
    values = {value for _, _, value in rows}
    assert len(values) == len(rows)
    for records in sent:
        assert sum(value in values for _, value in records) in (0, len(records)), "half a batch"


def test_a_stopped_cluster_goes_on_without_a_gap(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=2, workers=1).start()
    assert append(cluster, [(b"k", b"1"), (b"j", b"2")], durable=False) == 0
    cluster.stop()
    cluster.start()
    assert append(cluster, [(b"k", b"3")], durable=True) == 2
    assert [value for _, _, value in read_all(cluster)] == [b"1", b"2", b"3"]


def test_a_shard_that_is_down_is_named_and_nothing_is_written(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=2, workers=2).start()
    assert append(cluster, [(b"key-%d" % i, b"") for i in range(20)], durable=True) == 0
    assert cluster.supervisor is not None
    cluster.supervisor.kill()
    cluster.supervisor.wait()
    give_up = time.monotonic() + 20
    while cluster.get("/-/ready").status == 200 and time.monotonic() < give_up:
        time.sleep(0.05)
    body: Any = {"records": [{"key": "aw==", "value": "dg=="}]}
    answer = cluster.post_json("/api/v1/log/append", body)
    assert answer.status == 503
    assert answer.json()["message"].startswith("not available: shard ")
    assert cluster.get("/api/v1/log/scan", prefix="").status == 503
