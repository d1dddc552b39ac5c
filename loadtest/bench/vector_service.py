"""Triptych's vector area under load, over HTTP, on a cluster of its own."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

from loadtest.bench.vector_client import Connection, for_seconds
from loadtest.bench.vector_data import (
    CONNECTIONS,
    WRITE_BATCH,
    Data,
    batch_body,
    clustered,
    recall,
    search_body,
    write_bodies,
)
from loadtest.harness.cluster import Cluster

WRITERS = 4
BATCH = 100
BATCH_CONNECTIONS = 2
UPSERTS_S = 5000
SETTLE_S = 3.0
"""For the last measurement of the expansion, and a snapshot, after everything is indexed."""
MEASURED_WITHIN_S = 60.0
PATH = "/api/v1/vector/"
PROTOBUF = "application/protobuf"


def _ids(answer: bytes) -> list[int]:
    return [int(hit["vector"]["id"]) for hit in json.loads(answer)["results"]]


@contextmanager
def running(data: Data) -> Iterator[Service]:
    """A cluster with the data, until the block ends."""
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), workers=2)
        try:
            yield Service(cluster.start(), data)
        finally:
            cluster.kill()


class Service:
    """A cluster given the data: `upsert` vectors a second, `indexed` after so many seconds, `recall` of its answers,
    `bytes` of memory a vector, the `expansion` it measured."""

    def __init__(self, cluster: Cluster, data: Data) -> None:
        self._cluster, self._data = cluster, data
        self._more: list[bytes] = []
        of = Connection(self._cluster.url)
        self._searches = [of.request(PATH + "search", search_body(query)) for query in self._data.queries]
        self._batch = of.request(PATH + "search", batch_body(self._data.queries[:BATCH]))
        self.upsert, self.indexed = uvloop.run(self._write())
        self._have_queries_measured()
        stats = self._stats()
        self.bytes, self.expansion = stats["bytes"] / len(self._data.vectors), stats["expansion"]
        self.recall = recall(uvloop.run(self._answers()), self._data.expected)

    def _stats(self) -> dict[str, Any]:
        return self._cluster.get(PATH + "stats").json()["collections"]["default"]

    def _have_queries_measured(self) -> None:
        """Search until the workers know real queries and have measured the expansion with them: the recall that is
        stated has to be that of the searches whose rate is."""
        give_up = time.monotonic() + MEASURED_WITHIN_S
        while not self._stats()["queriesMeasured"]:
            assert time.monotonic() < give_up, "the workers have not measured the expansion with real queries"
            uvloop.run(self._answers())
        time.sleep(SETTLE_S)  # for the other worker

    def _wait_indexed(self) -> None:
        while self._stats()["pending"]:
            time.sleep(0.05)

    async def _write(self) -> tuple[float, float]:
        """(upserts a second, seconds until all are indexed)."""
        of = Connection(self._cluster.url)
        pending = iter([of.request(PATH + "write", body, PROTOBUF) for body in write_bodies(self._data.vectors)])
        started = time.perf_counter()

        async def writer() -> None:
            connection = Connection(self._cluster.url)
            for request in pending:
                await connection.send(request)
            connection.close()

        await asyncio.gather(*(writer() for _ in range(WRITERS)))
        rate = len(self._data.vectors) / (time.perf_counter() - started)
        await asyncio.to_thread(self._wait_indexed)
        took = time.perf_counter() - started
        await asyncio.sleep(SETTLE_S)
        return rate, took

    async def _answers(self) -> list[list[int]]:
        connection = Connection(self._cluster.url)
        found = [_ids(await connection.send(search)) for search in self._searches]
        connection.close()
        return found

    async def _one(self, by: Connection, number: int) -> None:
        await by.send(self._searches[number % len(self._searches)])

    def searches(self, seconds: float) -> dict[str, float]:
        """Single searches by some connections at once: `search` a second; `coordinator_us` and `workers_us` CPU
        time of each."""
        used = self._processor()
        count = len(uvloop.run(for_seconds(seconds, self._one, self._cluster.url, CONNECTIONS)))
        times = {name: (now - used[name]) / count * 1e6 for name, now in self._processor().items()}
        return {"search": count / seconds, **times}

    def batches(self, seconds: float) -> float:
        """Searches a second in requests of BATCH."""

        async def many(by: Connection, number: int) -> None:
            await by.send(self._batch)

        return BATCH * len(uvloop.run(for_seconds(seconds, many, self._cluster.url, BATCH_CONNECTIONS))) / seconds

    def alone_and_beside_upserts(self, seconds: float) -> dict[str, float]:
        """Median and 99th percentile in ms of searches by one connection, `_idle`, and `_busy` beside `upserts` a
        second."""
        idle = uvloop.run(for_seconds(seconds, self._one, self._cluster.url, 1))
        busy, upserts = uvloop.run(self._beside_upserts(seconds))
        self._wait_indexed()
        result = {"upserts": upserts}
        for name, latencies in (("idle", idle), ("busy", busy)):
            result[f"p50_{name}"], result[f"p99_{name}"] = np.percentile(latencies, [50, 99])
        return result

    async def _beside_upserts(self, seconds: float) -> tuple[np.ndarray, float]:
        """(latencies of searches by one connection in ms, upserts a second meanwhile)."""
        connection = Connection(self._cluster.url)
        if not self._more:
            first, dimension = self._data.vectors.shape
            bodies = write_bodies(clustered(20_000, dimension, 7), first)
            self._more = [connection.request(PATH + "write", body, PROTOBUF) for body in bodies]
        stop = asyncio.Event()
        written = 0

        async def steady() -> None:
            nonlocal written
            begun = time.perf_counter()
            while not stop.is_set():
                await connection.send(self._more[(written // WRITE_BATCH) % len(self._more)])
                written += WRITE_BATCH
                await asyncio.sleep(max(0.0, begun + written / UPSERTS_S - time.perf_counter()))

        task = asyncio.create_task(steady())
        latencies = await for_seconds(seconds, self._one, self._cluster.url, 1)
        stop.set()
        await task
        connection.close()
        return latencies, written / seconds

    def restart(self) -> float:
        """Seconds from the start of the processes until a search is answered."""
        self._cluster.stop()
        started = time.perf_counter()
        self._cluster.start()
        assert uvloop.run(self._first_answer())
        return time.perf_counter() - started

    async def _first_answer(self) -> list[int]:
        connection = Connection(self._cluster.url)
        found = _ids(await connection.send(self._searches[0]))
        connection.close()
        return found

    def _processor(self) -> dict[str, float]:
        """CPU seconds used so far, by process."""
        assert self._cluster.coordinator is not None and self._cluster.supervisor is not None
        workers = psutil.Process(self._cluster.supervisor.pid).children()
        groups = {"coordinator_us": [psutil.Process(self._cluster.coordinator.pid)], "workers_us": workers}
        return {name: sum(sum(p.cpu_times()[:2]) for p in processes) for name, processes in groups.items()}
