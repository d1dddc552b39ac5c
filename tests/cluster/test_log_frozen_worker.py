"""A worker that is stopped in the middle of a numbered append: what a repeat is told is there."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from loadtest.harness.cluster import freeze
from shared.hashing import shard_of
from tests.forked_cluster import ForkedCluster


def key_on(shard: int) -> bytes:
    return next(k for i in range(1000) if shard_of(k := b"key-%d" % i, 2) == shard)


PRODUCER = next(name for i in range(1000) if shard_of((name := f"p{i}").encode(), 2) == 0)


def body(durable: bool) -> dict[str, Any]:
    records = [
        {"key": base64.b64encode(key_on(s)).decode(), "value": base64.b64encode(b"%d" % s).decode()} for s in (0, 1)
    ]
    return {"records": records, "awaitDurable": durable, "producerId": PRODUCER, "producerSeq": 1}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("durable", [False, True])
def test_a_repeat_that_is_acknowledged_is_there_when_the_worker_thaws(tmp_path: Path, durable: bool) -> None:
    cluster = ForkedCluster(tmp_path, shards=2, workers=2, settings={"TRIPTYCH_WRITE_TIMEOUT": "1s"}).start()
    try:
        frozen = cluster.worker_pids()["worker-1"]
        freeze(frozen)
        try:
            request = urllib.request.Request(
                f"{cluster.url}/api/v1/log/append",
                data=json.dumps(body(durable)).encode(),
                headers={"Content-Type": "application/json"},
            )
            with contextlib.suppress(OSError):
                urllib.request.urlopen(request, timeout=0.4)
            statuses = [cluster.post_json("/api/v1/log/append", body(durable)).status for _ in range(3)]
        finally:
            os.kill(frozen, signal.SIGCONT)
        assert statuses == [503, 503, 503]
        cluster.wait_ready()
        give_up = time.monotonic() + 20
        while (answer := cluster.post_json("/api/v1/log/append", body(durable))).status != 200:
            assert time.monotonic() < give_up, answer.body
            time.sleep(0.1)
        start = answer.json()["startSequence"]
        assert cluster.post_json("/api/v1/log/append", body(durable)).json()["startSequence"] == start
        time.sleep(0.5)
        rows = cluster.get("/api/v1/log/scan", prefix="").json()["records"]
        assert [row["sequence"] for row in rows] == [start, start + 1]
    finally:
        cluster.kill()
