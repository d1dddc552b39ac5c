"""Vectors: Triptych over HTTP beside usearch and hnswlib in process and Chroma's server, on the same data.

    python -m loadtest.bench.vector [--count 100000] [--dimension 128] [--seconds 5]

The data is clustered and seeded; recall is against brute force. A cluster of 8 shards in 2 workers is started in a
temporary directory. The load generator runs on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import numpy as np
import psutil
from usearch.index import Index

from loadtest.bench import chroma
from proto import vector_pb2
from tests.cluster.cluster import Cluster

CLUSTERS = 1000
QUERIES = 500
K = 10
CONNECTIONS = 8
BATCH = 100
WRITE_BATCH = 1000


def line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def clustered(count: int, dimension: int, seed: int) -> np.ndarray:
    """float32[count, dimension] around centres that every seed shares."""
    centres = np.random.default_rng(0).standard_normal((CLUSTERS, dimension)).astype(np.float32)
    random = np.random.default_rng(seed)
    noise = random.standard_normal((count, dimension), dtype=np.float32)
    vectors = centres[random.integers(0, CLUSTERS, count)] + 0.7 * noise
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def truth(vectors: np.ndarray, queries: np.ndarray) -> list[set[int]]:
    return [set(np.argpartition(-(vectors @ query), K)[:K].tolist()) for query in queries]


def recall(found: list[list[int]], expected: list[set[int]]) -> float:
    return float(np.mean([len(set(a) & b) / K for a, b in zip(found, expected, strict=True)]))


def in_process(vectors: np.ndarray, queries: np.ndarray, expected: list[set[int]]) -> None:
    index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
    keys = np.arange(len(vectors))
    started, used = time.perf_counter(), time.process_time()
    index.add(keys, vectors, threads=0)
    rate, cost = len(vectors) / (time.perf_counter() - started), (time.process_time() - used) / len(vectors) * 1e6
    line(f"usearch   add, all cores             {rate:>10,.0f}/s, processor {cost:.0f} µs each")
    for expansion in (32, 64, 128):
        index.expansion_search = expansion
        index.search(queries[:20], K, threads=1)
        started, used = time.perf_counter(), time.process_time()
        found = [index.search(query, K).keys.tolist() for query in queries]
        one = len(queries) / (time.perf_counter() - started)
        cost = (time.process_time() - used) / len(queries) * 1e6
        started = time.perf_counter()
        index.search(queries, K, threads=0)
        batch = len(queries) / (time.perf_counter() - started)
        line(
            f"usearch   search, expansion {expansion:>4}      {one:>10,.0f}/s one core, {batch:,.0f}/s batch "
            f"all cores, recall {recall(found, expected):.3f}, processor {cost:.0f} µs each"
        )
    try:
        import hnswlib
    except ImportError:
        return
    graph = hnswlib.Index("ip", vectors.shape[1])
    graph.init_index(len(vectors), ef_construction=128, M=16)
    started = time.perf_counter()
    graph.add_items(vectors, keys)
    line(f"hnswlib   add, all cores             {len(vectors) / (time.perf_counter() - started):>10,.0f}/s")
    for expansion in (32, 64, 128):
        graph.set_ef(expansion)
        started = time.perf_counter()
        found = [graph.knn_query(query, K, num_threads=1)[0][0].tolist() for query in queries]
        one = len(queries) / (time.perf_counter() - started)
        line(f"hnswlib   search, expansion {expansion:>4}      {one:>10,.0f}/s, recall {recall(found, expected):.3f}")


def write_bodies(vectors: np.ndarray, first: int = 0) -> Iterator[bytes]:
    for start in range(0, len(vectors), WRITE_BATCH):
        request = vector_pb2.WriteRequest()
        for row, vector in enumerate(vectors[start : start + WRITE_BATCH].tolist(), first + start):
            request.upsert_vectors.add(id=f"{row}").attributes["vector"].vector_value.values.extend(vector)
        yield request.SerializeToString()


def search_body(vector: np.ndarray) -> bytes:
    return b'{"k":10,"includeFields":[],"vector":[' + ",".join(f"{x:.8g}" for x in vector.tolist()).encode() + b"]}"


class Client:
    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        self.url = cluster.url + "/api/v1/vector/"
        self.session = session

    async def post(self, path: str, body: bytes, kind: str = "application/json") -> dict:
        async with self.session.post(self.url + path, data=body, headers={"Content-Type": kind}) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def search(self, body: bytes) -> list[int]:
        answer = await self.post("search", body)
        return [int(result["vector"]["id"]) for result in answer["results"]]

    async def wait_indexed(self) -> None:
        while True:
            if not (await self.stats())["pending"]:
                return
            await asyncio.sleep(0.05)

    async def stats(self) -> dict:
        async with self.session.get(self.url + "stats") as answer:
            return (await answer.json())["collections"]["default"]


async def for_seconds(seconds: float, act: Callable[[int], Awaitable[object]], connections: int) -> list[float]:
    """Latencies in ms of `act(number)` run by so many at once."""
    latencies: list[float] = []
    stop = time.perf_counter() + seconds
    numbers = iter(range(1 << 60))

    async def run() -> None:
        while (started := time.perf_counter()) < stop:
            await act(next(numbers))
            latencies.append((time.perf_counter() - started) * 1000)

    await asyncio.gather(*(run() for _ in range(connections)))
    return latencies


class Processor:
    """Processor time of the cluster's processes, which says more than rates do where cores are shared."""

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.coordinator is not None and cluster.supervisor is not None
        self._coordinator = psutil.Process(cluster.coordinator.pid)
        self._workers = psutil.Process(cluster.supervisor.pid).children()
        self._last = self._now()

    def _now(self) -> tuple[float, float]:
        def used(process: psutil.Process) -> float:
            times = process.cpu_times()
            return float(times.user + times.system)

        return used(self._coordinator), sum(map(used, self._workers))

    def lap(self, count: int) -> str:
        """Since the last lap, for each of so many."""
        now = self._now()
        coordinator, workers = ((b - a) / count * 1e6 for a, b in zip(self._last, now, strict=True))
        self._last = now
        return f"processor: coordinator {coordinator:,.0f} µs, workers {workers:,.0f} µs each"


def rates(name: str, latencies: list[float], seconds: float, processor: Processor | None, each: int = 1) -> str:
    p50, p99 = np.percentile(latencies, [50, 99])
    count = len(latencies) * each
    rate = f"{name:<36} {count / seconds:>10,.0f}/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms"
    return rate if processor is None else f"{rate}, {processor.lap(count)}"


async def triptych(
    cluster: Cluster, vectors: np.ndarray, queries: np.ndarray, expected: list[set[int]], seconds: float
) -> None:
    bodies = list(write_bodies(vectors))
    searches = [search_body(query) for query in queries]
    connector = aiohttp.TCPConnector(limit=64)
    async with aiohttp.ClientSession(connector=connector) as session:
        client = Client(cluster, session)
        processor = Processor(cluster)
        started = time.perf_counter()
        pending = iter(bodies)

        async def writer() -> None:
            for body in pending:
                await client.post("write", body, "application/protobuf")

        await asyncio.gather(*(writer() for _ in range(4)))
        took = time.perf_counter() - started
        line(f"triptych  upsert, durable, binary    {len(vectors) / took:>10,.0f}/s, {processor.lap(len(vectors))}")
        await client.wait_indexed()
        indexed = time.perf_counter() - started
        line(f"triptych  upsert until all indexed   {len(vectors) / indexed:>10,.0f}/s, {processor.lap(len(vectors))}")
        stats = await client.stats()
        line(f"triptych  memory                     {stats['bytes'] / len(vectors):>10,.0f} bytes a vector")

        found = [await client.search(body) for body in searches]
        line(f"triptych  recall                     {recall(found, expected):>10.3f}")

        processor.lap(1)

        async def one(number: int) -> None:
            await client.search(searches[number % len(searches)])

        idle = await for_seconds(seconds, one, 1)
        line(rates("triptych  search, 1 connection", idle, seconds, processor))
        idle = await for_seconds(seconds, one, CONNECTIONS)
        line(rates(f"triptych  search, {CONNECTIONS} connections", idle, seconds, processor))

        text = (
            b'{"k":10,"includeFields":[],"vectors":['
            + b",".join(body[body.rindex(b"[") : -1] for body in searches[:BATCH])
            + b"]}"
        )

        async def many(number: int) -> None:
            await client.post("search", text)

        line(
            rates(
                "triptych  batch of 100, 2 connections", await for_seconds(seconds, many, 2), seconds, processor, BATCH
            )
        )

        small = list(write_bodies(clustered(20_000, vectors.shape[1], 7), len(vectors)))
        stop = asyncio.Event()
        written = 0

        async def steady() -> None:
            nonlocal written
            begun = time.perf_counter()
            while not stop.is_set():
                await client.post("write", small[(written // WRITE_BATCH) % len(small)], "application/protobuf")
                written += WRITE_BATCH
                await asyncio.sleep(max(0.0, begun + written / 5000 - time.perf_counter()))

        task = asyncio.create_task(steady())
        idle_one = await for_seconds(seconds, one, 1)
        stop.set()
        await task
        line(rates(f"triptych  search, {written / seconds:,.0f} upserts/s", idle_one, seconds, processor))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--skip-in-process", action="store_true", help="measure Triptych only")
    options = parser.parse_args()
    vectors = clustered(options.count, options.dimension, 1)
    queries = clustered(QUERIES, options.dimension, 2)
    expected = truth(vectors, queries)
    line(f"{options.count:,} × {options.dimension}, k={K}")
    if not options.skip_in_process:
        in_process(vectors, queries, expected)
    program = chroma.command()
    if program is not None and not options.skip_in_process:

        async def searches(name: str, act: Callable[[int], Awaitable[object]]) -> None:
            latencies = await for_seconds(options.seconds, act, CONNECTIONS)
            line(rates(name, latencies, options.seconds, None))

        chroma.measure(program, vectors, queries, K, line, searches, lambda found: recall(found, expected))
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), shards=8, workers=2).start()
        try:
            asyncio.run(triptych(cluster, vectors, queries, expected, options.seconds))
            cluster.stop()
            started = time.perf_counter()
            cluster.start()
            line(f"triptych  restart until ready        {time.perf_counter() - started:>10.2f} s")
        finally:
            cluster.kill()


if __name__ == "__main__":
    main()
