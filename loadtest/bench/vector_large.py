"""Vectors in large numbers: built, searched, filtered, written to and restarted, beside libraries in process.

    python -m loadtest.bench.vector_large [--vectors 1000000] [--dimension 128] [--storage f32] [--rivals usearch,…]

The data is seeded and clustered. Recall@10 is against brute force. The service runs as 4 shards in 2 workers, and is
asked over HTTP for a recall. A library gets the fewest candidates that reach the same recall, which is the comparison
that counts, and searches one query after the other on one core. Memory is what the processes' anonymous pages have
grown by since before the first vector. hnswlib and faiss are measured where they are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import uvloop

from loadtest.bench.memory import processes
from loadtest.bench.vector_client import Connection, for_seconds
from loadtest.bench.vector_data import CONNECTIONS, WRITE_BATCH, K, clustered, recall
from loadtest.bench.vector_rivals import RIVALS
from loadtest.harness.cluster import MEASURED, Cluster
from proto import vector_pb2

QUERIES = 500
BLOCK_ROWS = 50_000
RECALLS = (0.95, 0.99)
PERCENTS = (1, 10, 50)
WRITERS = 2
SETTLE_S = 10.0
MEASURED_WITHIN_S = 120.0
PATH = "/api/v1/vector/"
NAME = "large"


class LargeData:
    """`vectors` float32[n, d], `queries` float32[q, d]; vector `row` has the attribute `part`, row modulo 100."""

    def __init__(self, count: int, dimension: int) -> None:
        self.vectors, self.queries = clustered(count, dimension, 1), clustered(QUERIES, dimension, 2)
        self.expected = {percent: self._nearest(percent) for percent in (100, *PERCENTS)}

    def _nearest(self, percent: int) -> list[set[int]]:
        """The K nearest of the vectors whose `part` is less than `percent`."""
        near, rows = np.empty((QUERIES, 0), np.float32), np.empty((QUERIES, 0), np.int64)
        for first in range(0, len(self.vectors), BLOCK_ROWS):
            chosen = first + np.flatnonzero(
                np.arange(first, min(first + BLOCK_ROWS, len(self.vectors))) % 100 < percent
            )
            near = np.concatenate([near, self.queries @ self.vectors[chosen].T], axis=1)
            rows = np.concatenate([rows, np.broadcast_to(chosen, (QUERIES, len(chosen)))], axis=1)
            kept = np.argpartition(-near, K, axis=1)[:, :K]
            near, rows = np.take_along_axis(near, kept, axis=1), np.take_along_axis(rows, kept, axis=1)
        return [set(row.tolist()) for row in rows]

    def writes(self) -> Iterator[bytes]:
        """Binary write requests, each made when it is sent."""
        for first in range(0, len(self.vectors), WRITE_BATCH):
            request = vector_pb2.WriteRequest(collection=NAME)
            for row, vector in enumerate(self.vectors[first : first + WRITE_BATCH].tolist(), first):
                attributes = request.upsert_vectors.add(id=f"{row}").attributes
                attributes["vector"].vector_value.values.extend(vector)
                attributes["part"].int64_value = row % 100
            yield request.SerializeToString()


class LargeService:
    """A cluster with the data."""

    def __init__(self, cluster: Cluster, data: LargeData, storage: str) -> None:
        self._cluster, self._data = cluster, data
        settings = {"dimension": data.vectors.shape[1], "metric": "cosine", "storage": storage}
        made = cluster.request(
            "PUT", f"{PATH}collections/{NAME}", json.dumps(settings).encode(), {"Content-Type": "application/json"}
        )
        assert made.status == 200, made.body
        before = self._anonymous()
        started = time.perf_counter()
        uvloop.run(self._write())
        self.write_s = time.perf_counter() - started
        while self.stats()["pending"]:
            time.sleep(0.2)
        self.indexed_s = time.perf_counter() - started
        time.sleep(SETTLE_S)
        self.bytes = (self._anonymous() - before) / len(data.vectors)

    def stats(self) -> dict[str, int]:
        return self._cluster.get(PATH + "stats").json()["collections"][NAME]

    def _anonymous(self) -> int:
        return sum(pages.anonymous for _, pages in processes(self._cluster))

    async def _write(self) -> None:
        of = Connection(self._cluster.url)
        pending = self._data.writes()

        async def writer() -> None:
            connection = Connection(self._cluster.url)
            for body in pending:
                await connection.send(of.request(PATH + "write", body, "application/protobuf"))
            connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(writer())

    def _requests(self, wanted: float, percent: int) -> list[bytes]:
        of = Connection(self._cluster.url)
        body: dict[str, object] = {"collection": NAME, "k": K, "includeFields": [], "recall": wanted}
        if percent < 100:
            body["filter"] = {"lt": {"field": "part", "value": percent}}
        vectors = [[round(float(x), 8) for x in query] for query in self._data.queries]
        return [of.request(PATH + "search", json.dumps({**body, "vector": vector}).encode()) for vector in vectors]

    def search(self, wanted: float, percent: int, seconds: float) -> tuple[float, float]:
        """(searches a second by some connections at once, recall) of vectors whose `part` is less than `percent`."""
        requests = self._requests(wanted, percent)

        async def answers() -> list[list[int]]:
            connection = Connection(self._cluster.url)
            texts = [await connection.send(request) for request in requests]
            connection.close()
            return [[int(hit["vector"]["id"]) for hit in json.loads(text)["results"]] for text in texts]

        async def one(by: Connection, number: int) -> None:
            await by.send(requests[number % len(requests)])

        found = recall(uvloop.run(answers()), self._data.expected[percent])
        return len(uvloop.run(for_seconds(seconds, one, self._cluster.url, CONNECTIONS))) / seconds, found

    def learn(self) -> int:
        """Send the queries once, and wait until the workers have measured with them; returns with how many."""
        self.search(RECALLS[0], 100, 0.1)
        give_up = time.monotonic() + MEASURED_WITHIN_S
        while not self.stats()["queriesMeasured"] and time.monotonic() < give_up:
            time.sleep(0.2)
        time.sleep(SETTLE_S)
        return self.stats()["queriesMeasured"]

    def restart(self) -> float:
        """Seconds from the start of the processes until a search is answered."""
        request = self._requests(RECALLS[0], 100)[0]
        self._cluster.stop()
        started = time.perf_counter()
        self._cluster.start()

        async def first() -> bytes:
            connection = Connection(self._cluster.url)
            text = await connection.send(request)
            connection.close()
            return text

        assert json.loads(uvloop.run(first()))["results"]
        return time.perf_counter() - started


def line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--storage", default="f32")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each rate")
    parser.add_argument("--rivals", default=",".join(RIVALS), help=f"of {', '.join(RIVALS)}")
    options = parser.parse_args()
    data = LargeData(options.vectors, options.dimension)
    count = options.vectors
    line(f"## {count:,} × {options.dimension}, clustered, {options.storage}\n\n| work | measured |\n|---|---|")
    with tempfile.TemporaryDirectory(prefix="vectors-") as directory:
        cluster = Cluster(Path(directory), workers=2, settings=MEASURED)
        try:
            service = LargeService(cluster.start(), data, options.storage)
            line(f"| upserts; until all are indexed | {count / service.write_s:,.0f}/s; {service.indexed_s:.0f} s |")
            line(
                f"| anonymous memory a vector | {service.bytes:,.0f} bytes; "
                f"by `stats` {service.stats()['bytes'] / count:,.0f} |"
            )
            line(f"| real queries measured with | {service.learn()} in each worker |")
            for wanted in RECALLS:
                rate, found = service.search(wanted, 100, options.seconds)
                line(f"| searches, recall {wanted:g} asked for | {rate:,.0f}/s, recall {found:.3f} |")
            plain = service.search(RECALLS[0], 100, options.seconds)[0]
            for percent in PERCENTS:
                rate, found = service.search(RECALLS[0], percent, options.seconds)
                line(
                    f"| filtered to {percent} % | {rate:,.0f}/s ({rate / plain:.2f} × unfiltered), recall {found:.3f} |"
                )
            line(f"| restart until searchable | {service.restart():.2f} s |")
            for name in filter(None, options.rivals.split(",")):
                try:
                    rival = RIVALS[name](data.vectors)
                except ImportError:
                    line(f"| {name} | not installed |")
                    continue
                own = service.search(RECALLS[0], 100, options.seconds)[0]
                for wanted in RECALLS:
                    candidates, found = rival.least(data.queries, data.expected[100], wanted)
                    rate = rival.rate(data.queries, candidates)
                    line(
                        f"| {name}, recall {wanted:g} | {rate:,.0f}/s on a core with {candidates} candidates, "
                        f"recall {found:.3f} |"
                    )
                line(f"| {name} until all are indexed | {rival.build_s:.0f} s; the service then {own:,.0f}/s |")
        finally:
            cluster.kill()


if __name__ == "__main__":
    main()
