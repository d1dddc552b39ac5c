"""Metrics while a worker is away: reads are partial and say so, writes that need it change nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from shared import hashing, labels

T = 1_700_000_000_000
SHARDS = 4


def write(cluster: Cluster, name: str, numbers: list[int]) -> Response:
    series = [({"__name__": name, "i": str(i)}, [(T, 1.0)]) for i in numbers]
    return cluster.request("POST", "/api/v1/write", compressed(series), HEADERS)


def shard_of(name: str, i: int) -> int:
    return hashing.shard_of(labels.encode((("__name__", name), ("i", str(i)))), SHARDS)


@pytest.fixture
def halved(new_cluster) -> Iterator[tuple[Cluster, set[int]]]:
    """A cluster with 100 series of `m`, one of whose two workers is dead and stays dead; and the shards it had."""
    cluster = new_cluster(shards=SHARDS, workers=2).start()
    assert write(cluster, "m", list(range(100))).status == 204
    workers = cluster.get("/api/v1/cluster").json()["data"]["workers"]
    lost = next(set(worker["shards"]) for worker in workers if worker["worker"] == "worker-1")
    with cluster.without_worker():
        yield cluster, lost


def test_reads_are_partial_and_writes_all_or_nothing(halved: tuple[Cluster, set[int]]) -> None:
    cluster, lost = halved
    there = {str(i) for i in range(100) if shard_of("m", i) not in lost}
    for path, count in (("series", len(there)), ("label/i/values", len(there)), ("labels", 2)):
        answer = cluster.get(f"/api/v1/{path}", match="m").json()
        assert answer["status"] == "success"
        assert len(answer["data"]) == count
        assert len(answer["warnings"]) == len(lost)
        refused = cluster.get(f"/api/v1/{path}", match="m", partial_response="false")
        assert refused.status == 503
        assert refused.json()["errorType"] == "unavailable"

    refused = write(cluster, "n", list(range(100)))
    assert refused.status == 503
    assert refused.json()["errorType"] == "unavailable"
    assert all(f"shard {shard}" in refused.json()["error"] for shard in lost)
    assert cluster.get("/api/v1/series", match="n").json()["data"] == []
    assert write(cluster, "n", [i for i in range(100) if shard_of("n", i) not in lost]).status == 204
    assert cluster.post_form("/api/v1/admin/tsdb/delete_series", match="m").status == 503
    assert len(cluster.get("/api/v1/series", match="m").json()["data"]) == len(there)

    cluster.supervisor.send_signal(signal.SIGCONT)
    cluster.wait_ready()
    assert write(cluster, "n", list(range(100))).status == 204
    assert len(cluster.get("/api/v1/series", match="n").json()["data"]) == 100
    assert len(cluster.get("/api/v1/series", match="m").json()["data"]) == 100
