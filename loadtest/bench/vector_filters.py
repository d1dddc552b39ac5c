"""Searches with filters on arrays and datetimes, over HTTP: `python -m loadtest.bench.vector_filters`.

Every vector has an array of 8 tags of 1,000, an array of 3 sizes of 50, the first tag again as a single value, its
number, and a datetime of its own; offsets differ. Each row of the output is a filter: how many vectors it leaves, the
recall of the 10 nearest among them, the median time of searches that come one after the other, and searches a second by
8 connections. With `--alone`, the filters are evaluated in one process without any search: the time of the first, which
may parse the datetimes, and the median of the following.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from coordinator.vectors.filters import from_json
from loadtest.bench.vector_client import Connection, for_seconds
from loadtest.bench.vector_data import CONNECTIONS, QUERIES, WRITE_BATCH, K, clustered
from loadtest.bench.vector_service import PATH, SETTLE_S
from loadtest.harness.cluster import Cluster
from worker.vectors.attributes import Attributes

EVALUATIONS = 21
Rows = list[dict[str, Any]]
START = datetime(2026, 1, 1, tzinfo=UTC)


def attributes(count: int, first: int = 0) -> Rows:
    random = np.random.default_rng((3, first))
    tags, sizes = random.integers(0, 1000, (count, 8)).tolist(), random.integers(0, 50, (count, 3)).tolist()
    return [
        {"tags": [f"t{tag}" for tag in own], "tag": f"t{own[0]}", "sizes": sizes[row], "n": n, "at": moment(n)}
        for row, (n, own) in enumerate(enumerate(tags, first))
    ]


def moment(n: int) -> str:
    """The n-th second of 2026, in one of 24 zones."""
    return (START + timedelta(seconds=n)).astimezone(timezone(timedelta(hours=n % 24 - 12))).isoformat()


def filters(count: int) -> dict[str, tuple[dict[str, Any] | None, Callable[[dict[str, Any]], bool]]]:
    """Title → (the filter, whether it should leave a row)."""
    several = [f"t{n}" for n in range(10)]
    return {
        "none": (None, lambda row: True),
        "eq tag": ({"eq": {"field": "tag", "value": "t5"}}, lambda row: row["tag"] == "t5"),
        "contains tags": ({"contains": {"field": "tags", "value": "t5"}}, lambda row: "t5" in row["tags"]),
        "containsAny of 10 tags": (
            {"containsAny": {"field": "tags", "values": several}},
            lambda row: bool({*several} & {*row["tags"]}),
        ),
        "containsAll of 2 sizes": (
            {"containsAll": {"field": "sizes", "values": [3, 4]}},
            lambda row: {3, 4} <= {*row["sizes"]},
        ),
        "contains sizes": ({"contains": {"field": "sizes", "value": 3}}, lambda row: 3 in row["sizes"]),
        "n of the first 1 %": ({"lt": {"field": "n", "value": count // 100}}, lambda row: row["n"] < count // 100),
        "at in the first 1 %": (
            {"lt": {"field": "at", "value": moment(count // 100)}},
            lambda row: row["n"] < count // 100,
        ),
        "at in the first half": (
            {"lt": {"field": "at", "value": moment(count // 2)}},
            lambda row: row["n"] < count // 2,
        ),
    }


async def write(url: str, vectors: np.ndarray, rows: Rows) -> None:
    connection = Connection(url)
    for first in range(0, len(rows), WRITE_BATCH):
        batch = zip(vectors[first : first + WRITE_BATCH].tolist(), rows[first : first + WRITE_BATCH], strict=True)
        upserts = [
            {"id": f"{n}", "attributes": {"vector": vector, **row}} for n, (vector, row) in enumerate(batch, first)
        ]
        await connection.send(connection.request(PATH + "write", json.dumps({"upsertVectors": upserts}).encode()))
    connection.close()


def wait_indexed(cluster: Cluster) -> None:
    while cluster.get(PATH + "stats").json()["collections"]["default"]["pending"]:
        time.sleep(0.1)
    time.sleep(SETTLE_S)


async def found(url: str, bodies: list[bytes]) -> list[set[int]]:
    connection = Connection(url)
    answers = [json.loads(await connection.send(connection.request(PATH + "search", body))) for body in bodies]
    connection.close()
    return [{int(hit["vector"]["id"]) for hit in answer["results"]} for answer in answers]


def measured(url: str, queries: np.ndarray, condition: dict[str, Any] | None, seconds: float) -> tuple[float, float]:
    """(the median time of a search that comes alone, ms; searches a second by CONNECTIONS)."""
    bodies = [_body(query, condition) for query in queries]

    async def one(connection: Connection, number: int) -> None:
        await connection.send(connection.request(PATH + "search", bodies[number % len(bodies)]))

    alone = uvloop.run(for_seconds(seconds, one, url, 1))
    together = uvloop.run(for_seconds(seconds, one, url, CONNECTIONS))
    return float(np.median(alone)), len(together) / seconds


def _body(query: np.ndarray, condition: dict[str, Any] | None) -> bytes:
    content = {"vector": query.tolist(), "k": K, "includeFields": [], "filter": condition}
    return json.dumps(content).encode()


def evaluate(count: int) -> None:
    indexed = Attributes()
    for first in range(0, count, WRITE_BATCH):
        rows = attributes(min(WRITE_BATCH, count - first), first)
        indexed.append(first, [msgspec.msgpack.encode(row) for row in rows])
    indexed.build_index(count)
    print(f"{indexed.memory_bytes / count:.0f} bytes of attributes a vector")
    print(f"{'filter':24} {'left':>9} {'first, ms':>10} {'then, ms':>9}")
    for title, (content, _) in filters(count).items():
        if content is not None:
            condition = from_json(content)
            took = []
            for _ in range(EVALUATIONS):
                started = time.perf_counter()
                mask = indexed.mask(condition, count)
                took.append(1000 * (time.perf_counter() - started))
            print(f"{title:24} {np.count_nonzero(mask):9,} {took[0]:10.2f} {np.median(took[1:]):9.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.vector_filters", description=__doc__)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--alone", action="store_true", help="the filters without searches, in this process")
    arguments = parser.parse_args()
    if arguments.alone:
        evaluate(arguments.vectors)
        return
    vectors, queries = (clustered(n, arguments.dimension, seed) for n, seed in ((arguments.vectors, 1), (QUERIES, 2)))
    rows = attributes(arguments.vectors)
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), workers=2)
        try:
            cluster.start()
            uvloop.run(write(cluster.url, vectors, rows))
            wait_indexed(cluster)
            print(f"{'filter':24} {'left':>8} {'recall':>7} {'ms alone':>9} {'a second':>9}")
            for title, (condition, leaves) in filters(arguments.vectors).items():
                left = np.array([n for n, row in enumerate(rows) if leaves(row)])
                nearest = [{*left[np.argsort(-(vectors[left] @ query))[:K]].tolist()} for query in queries[:100]]
                answers = uvloop.run(found(cluster.url, [_body(query, condition) for query in queries[:100]]))
                recall = np.mean([len(a & b) / len(b) for a, b in zip(answers, nearest, strict=True)])
                alone, rate = measured(cluster.url, queries, condition, arguments.seconds)
                print(f"{title:24} {len(left):8,} {recall:7.3f} {alone:9.2f} {rate:9,.0f}", flush=True)
        finally:
            cluster.kill()


if __name__ == "__main__":
    main()
