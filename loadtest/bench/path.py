"""`make bench-path`: the CPU time of small requests in the coordinator and in the workers, printed as a table.

CPU time depends least on other load on the machine, so two versions are compared by it. The rate beside it is
meaningful only on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import snappy

from loadtest.bench.log_load import json_body
from loadtest.bench.vector_client import Connection, for_seconds
from loadtest.bench.vector_data import clustered, search_body, write_bodies
from loadtest.harness.cluster import Cluster
from loadtest.harness.http_messages import message
from loadtest.harness.remote_write_bodies import HEADERS, HEADERS_V2, Series, body_v2, compressed

CONNECTIONS = 8
SHARDS = 4
WORKERS = 2
WRITE_SERIES = 2000
VECTORS = 500
DIMENSION = 8
WARM_UP_S = 0.5
IDLE_SHARE = 0.05
IDLE_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request: `message` is its HTTP request as bytes."""

    name: str
    message: bytes


def write_series(now_ms: int) -> Iterator[Series]:
    for number in range(WRITE_SERIES):
        yield {"__name__": "path_total", "instance": str(number)}, [(now_ms, float(number))]


def write_body(now_ms: int) -> bytes:
    return compressed(write_series(now_ms))


def write_body_v2(now_ms: int) -> bytes:
    return bytes(snappy.compress(body_v2(write_series(now_ms))))


def kinds(now_ms: int) -> list[Kind]:
    def query(text: str) -> bytes:
        return message("GET", "/api/v1/query?" + urllib.parse.urlencode({"query": text, "time": now_ms // 1000}))

    is_json = {"Content-Type": "application/json"}
    vector = clustered(1, DIMENSION, 2)[0]
    return [
        Kind("GET /-/healthy", message("GET", "/-/healthy")),
        Kind("query, a scalar", query("1")),
        Kind("query, one series", query('path_total{instance="3"}')),
        Kind("log append, one record", message("POST", "/api/v1/log/append", json_body([b"key"], False), is_json)),
        Kind("vector search, k=10", message("POST", "/api/v1/vector/search", search_body(vector), is_json)),
        Kind("remote write, 2,000", message("POST", "/api/v1/write", write_body(now_ms), HEADERS)),
        Kind("remote write 2.0, 2,000", message("POST", "/api/v1/write", write_body_v2(now_ms), HEADERS_V2)),
    ]


def fill(cluster: Cluster, now_ms: int) -> None:
    answer = cluster.request("POST", "/api/v1/write", write_body(now_ms), HEADERS)
    assert answer.status == 204, answer.body
    for body in write_bodies(clustered(VECTORS, DIMENSION, 1)):
        answer = cluster.request("POST", "/api/v1/vector/write", body, {"Content-Type": "application/protobuf"})
        assert answer.status == 200, answer.body
    while cluster.get("/api/v1/vector/stats").json()["collections"]["default"]["pending"]:
        time.sleep(0.05)


def processes(cluster: Cluster) -> dict[str, psutil.Process]:
    assert cluster.coordinator is not None
    workers = {name: psutil.Process(pid) for name, pid in sorted(cluster.worker_pids().items())}
    return {"coordinator": psutil.Process(cluster.coordinator.pid), **workers}


def wait_idle(cluster: Cluster) -> None:
    """Until kernels are compiled and indexes built."""
    give_up = time.monotonic() + IDLE_WITHIN_S
    family = list(processes(cluster).values())
    used, before = 0.0, -IDLE_WITHIN_S
    while used - before > IDLE_SHARE:
        assert time.monotonic() < give_up, "the cluster is not idle"
        time.sleep(1)
        used, before = sum(sum(process.cpu_times()[:2]) for process in family), used


def measure(cluster: Cluster, kind: Kind, seconds: float, connections: int) -> dict[str, float]:
    """Microseconds of CPU time a request, by process, and the rate."""

    async def one(by: Connection, number: int) -> None:
        await by.send(kind.message)

    asyncio.run(for_seconds(WARM_UP_S, one, cluster.url, connections))
    used = {name: sum(process.cpu_times()[:2]) for name, process in processes(cluster).items()}
    count = len(asyncio.run(for_seconds(seconds, one, cluster.url, connections)))
    costs = {
        name: (sum(process.cpu_times()[:2]) - used[name]) / count * 1e6 for name, process in processes(cluster).items()
    }
    return {**costs, "rate": count / seconds}


def run(seconds: float, connections: int, only: str) -> dict[str, dict[str, float]]:
    now_ms = int(time.time() * 1000)
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), shards=SHARDS, workers=WORKERS)
        try:
            cluster.start()
            fill(cluster, now_ms)
            wait_idle(cluster)
            return {
                kind.name: measure(cluster, kind, seconds, connections) for kind in kinds(now_ms) if only in kind.name
            }
        finally:
            cluster.stop()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0, help="of each kind of request")
    options.add_argument("--connections", type=int, default=CONNECTIONS, help="requests at once")
    options.add_argument("--only", default="", help="part of the names of the kinds to run")
    options.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = options.parse_args()
    results = run(given.seconds, given.connections, given.only)
    if given.json:
        sys.stdout.write(json.dumps(results) + "\n")
        return
    names = list(next(iter(results.values())))
    sys.stdout.write(f"CPU time of a request in µs, {given.connections} connections\n")
    sys.stdout.write(f"{'':<24}" + "".join(f"{name:>14}" for name in [*names[:-1], "requests/s"]) + "\n")
    for kind, costs in results.items():
        sys.stdout.write(f"{kind:<24}" + "".join(f"{round(costs[name]):>14,}" for name in names) + "\n")


if __name__ == "__main__":
    main()
