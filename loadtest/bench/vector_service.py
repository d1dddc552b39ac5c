"""Triptych's vector area under load, over HTTP, on a cluster of its own."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from loadtest.bench.vector_client import Connection, for_seconds
from loadtest.bench.vector_data import WRITE_BATCH, Data, batch_body, clustered, recall, search_body, write_bodies
from tests.cluster.cluster import Cluster

CONNECTIONS = 8
WRITERS = 4
BATCH = 100
UPSERTS_S = 5000
PATH = "/api/v1/vector/"
PROTOBUF = "application/protobuf"


def measure(data: Data, seconds: float, *, searches_only: bool = False) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), shards=8, workers=2).start()
        try:
            result = asyncio.run(_load(cluster, data, seconds, searches_only))
            if not searches_only:
                cluster.stop()
                started = time.perf_counter()
                cluster.start()
                assert asyncio.run(_search_once(cluster, data))
                result["restart"] = time.perf_counter() - started
            return result
        finally:
            cluster.kill()


def _ids(answer: bytes) -> list[int]:
    return [int(hit["vector"]["id"]) for hit in json.loads(answer)["results"]]


async def _search_once(cluster: Cluster, data: Data) -> set[int]:
    connection = Connection(cluster.url)
    answer = await connection.send(connection.request(PATH + "search", search_body(data.queries[0])))
    connection.close()
    return set(_ids(answer))


def _stats(cluster: Cluster) -> dict[str, Any]:
    return cluster.get(PATH + "stats").json()["collections"]["default"]


async def _load(cluster: Cluster, data: Data, seconds: float, searches_only: bool) -> dict[str, float]:
    connection = Connection(cluster.url)
    result: dict[str, float] = {}
    result["upsert"], result["indexed"] = await _write(cluster, data)
    stats = _stats(cluster)
    result["bytes"] = stats["bytes"] / len(data.vectors)
    result["expansion"] = stats["expansion"]
    searches = [connection.request(PATH + "search", search_body(query)) for query in data.queries]
    result["recall"] = recall([_ids(await connection.send(search)) for search in searches], data.expected)

    async def one(by: Connection, number: int) -> None:
        await by.send(searches[number % len(searches)])

    used = _processor(cluster)
    latencies = await for_seconds(seconds, one, cluster.url, CONNECTIONS)
    result["search"] = len(latencies) / seconds
    for name, now in _processor(cluster).items():
        result[f"{name}_us"] = (now - used[name]) / len(latencies) * 1e6
    if searches_only:
        return result
    batch = connection.request(PATH + "search", batch_body(data.queries[:BATCH]))

    async def many(by: Connection, number: int) -> None:
        await by.send(batch)

    result["batch"] = BATCH * len(await for_seconds(seconds, many, cluster.url, 2)) / seconds
    idle = await for_seconds(seconds, one, cluster.url, 1)
    result["p50_idle"], result["p99_idle"] = np.percentile(idle, [50, 99])
    busy, result["upserts_beside"] = await _beside_writes(cluster, data, seconds, one)
    result["p50_busy"], result["p99_busy"] = np.percentile(busy, [50, 99])
    connection.close()
    return result


async def _write(cluster: Cluster, data: Data) -> tuple[float, float]:
    """(upserts a second, seconds until all are indexed)."""
    first = Connection(cluster.url)
    pending = iter([first.request(PATH + "write", body, PROTOBUF) for body in write_bodies(data.vectors)])
    started = time.perf_counter()

    async def writer() -> None:
        connection = Connection(cluster.url)
        for request in pending:
            await connection.send(request)
        connection.close()

    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    rate = len(data.vectors) / (time.perf_counter() - started)
    while _stats(cluster)["pending"]:  # noqa: ASYNC110 - it is other processes that are waited for
        await asyncio.sleep(0.05)
    took = time.perf_counter() - started
    await asyncio.sleep(3)  # the last measurement of the expansion, and a snapshot
    return rate, took


async def _beside_writes(cluster: Cluster, data: Data, seconds: float, one: Any) -> tuple[np.ndarray, float]:
    """(latencies of searches by one connection in ms, upserts a second meanwhile)."""
    connection = Connection(cluster.url)
    more = clustered(20_000, data.vectors.shape[1], 7)
    writes = [connection.request(PATH + "write", body, PROTOBUF) for body in write_bodies(more, len(data.vectors))]
    stop = asyncio.Event()
    written = 0

    async def steady() -> None:
        nonlocal written
        begun = time.perf_counter()
        while not stop.is_set():
            await connection.send(writes[(written // WRITE_BATCH) % len(writes)])
            written += WRITE_BATCH
            await asyncio.sleep(max(0.0, begun + written / UPSERTS_S - time.perf_counter()))

    task = asyncio.create_task(steady())
    latencies = await for_seconds(seconds, one, cluster.url, 1)
    stop.set()
    await task
    connection.close()
    return latencies, written / seconds


def _processor(cluster: Cluster) -> dict[str, float]:
    """Processor seconds used so far."""
    assert cluster.coordinator is not None and cluster.supervisor is not None
    workers = psutil.Process(cluster.supervisor.pid).children()
    groups = {"coordinator": [psutil.Process(cluster.coordinator.pid)], "workers": workers}
    return {name: sum(sum(p.cpu_times()[:2]) for p in processes) for name, processes in groups.items()}
