"""Compares all areas of this source tree with another one: `python -m loadtest.bench.trees ../other [--rounds 3]`.

A cluster of each tree does the same work in turns, so that other load on the machine affects both alike. Prints the
median rate of each and the ratio of this tree's to the other's; the first round does not count. Small queries have a
separate comparison (`loadtest.bench.small_queries --against`).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from loadtest.bench import log_load, native_histograms
from loadtest.bench.log_single import small_appends
from loadtest.bench.metrics.payloads import REQUEST_SERIES, STEP_MS, Workload, requests
from loadtest.bench.metrics.sending import send
from loadtest.bench.vector_client import Connection, for_seconds
from loadtest.bench.vector_data import clustered, search_body, write_bodies
from loadtest.harness.cluster import ROOT, Cluster, side_by_side

SHARDS, WORKERS = 4, 2
SERIES, WRITERS, STEPS_A_ROUND = 10_000, 4, 60
HISTOGRAM_STEPS_A_ROUND = 240
APPENDERS, RECORDS, SINGLE_CONNECTIONS = 4, 1000, 64
POLLED_KEYS, SCANS = 1000, 20
VECTORS, MORE_VECTORS, DIMENSION, SEARCHERS = 20_000, 2_000, 128, 8
VECTOR_PATH = "/api/v1/vector/"
INDEXED_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Work:
    """`rate`: of a cluster in a round, whose number it is told."""

    name: str
    rate: Callable[[Cluster, int], float]


def remote_writes(rounds: int) -> Work:
    samples = rounds * STEPS_A_ROUND
    start_ms = (int(time.time() * 1000) // STEP_MS - samples) * STEP_MS
    streams = requests(Workload("m", SERIES, samples, start_ms), WRITERS)
    size = len(streams[0]) // rounds

    def rate(cluster: Cluster, number: int) -> float:
        own = [stream[number * size : (number + 1) * size] for stream in streams]
        took, _ = send(cluster.port, own)
        return sum(map(len, own)) * REQUEST_SERIES / took

    return Work("samples by remote write", rate)


def native_histogram_writes(rounds: int) -> Work:
    """Of 40 buckets each, over two connections."""
    samples = rounds * HISTOGRAM_STEPS_A_ROUND
    times_ms = (int(time.time() * 1000) // STEP_MS - np.arange(samples, dtype=np.int64)[::-1]) * STEP_MS
    middle = native_histograms.SERIES // 2
    halves = range(middle), range(middle, native_histograms.SERIES)
    streams = [list(native_histograms.native_requests(times_ms, half)) for half in halves]
    size = HISTOGRAM_STEPS_A_ROUND // native_histograms.SAMPLES_AT_ONCE

    def rate(cluster: Cluster, number: int) -> float:
        own = [stream[number * size : (number + 1) * size] for stream in streams]
        took, _ = send(cluster.port, own)
        return HISTOGRAM_STEPS_A_ROUND * native_histograms.SERIES / took

    return Work("native histograms by remote write", rate)


def appends(form: str, seconds: float) -> Work:
    body, media_type = log_load.BODIES[form]
    sent = [log_load.post(body(log_load.keys_from(number, RECORDS)), media_type) for number in range(16)]

    def rate(cluster: Cluster, _: int) -> float:
        return RECORDS * log_load.append_rate(cluster, sent, APPENDERS, seconds)[0]

    return Work(f"records appended by 1,000, {form}", rate)


def single_appends(seconds: float) -> Work:
    return Work(
        f"records appended one by one, {SINGLE_CONNECTIONS} connections",
        lambda cluster, _: small_appends(cluster, SINGLE_CONNECTIONS, seconds).rate,
    )


def log_reads() -> tuple[Work, Work]:
    return (
        Work(
            "records of a long scan",
            lambda cluster, _: statistics.median(log_load.long_scan(cluster)[0] for _ in range(SCANS)),
        ),
        Work(
            "polls of a key",
            lambda cluster, _: 1000 / statistics.fmean(log_load.polls(cluster, POLLED_KEYS, 1)),
        ),
    )


def vectors(rounds: int, seconds: float) -> tuple[Work, Work]:
    maker = Connection("http://127.0.0.1:80")
    searches = [maker.request(VECTOR_PATH + "search", search_body(each)) for each in clustered(500, DIMENSION, 2)]
    more = clustered(MORE_VECTORS * rounds, DIMENSION, 3)

    async def one(by: Connection, number: int) -> None:
        await by.send(searches[number % len(searches)])

    def search_rate(cluster: Cluster, _: int) -> float:
        return len(asyncio.run(for_seconds(seconds, one, cluster.url, SEARCHERS))) / seconds

    def upsert_rate(cluster: Cluster, number: int) -> float:
        first = number * MORE_VECTORS
        own = more[first : first + MORE_VECTORS]
        took = asyncio.run(upsert(cluster, list(write_bodies(own, VECTORS + first))))
        wait_indexed(cluster)
        return len(own) / took

    return (
        Work(f"searches for one vector, {SEARCHERS} connections", search_rate),
        Work("vectors upserted", upsert_rate),
    )


async def upsert(cluster: Cluster, bodies: list[bytes]) -> float:
    """Seconds that one connection took."""
    connection = Connection(cluster.url)
    started = time.perf_counter()
    for body in bodies:
        await connection.send(connection.request(VECTOR_PATH + "write", body, "application/protobuf"))
    connection.close()
    return time.perf_counter() - started


def wait_indexed(cluster: Cluster) -> None:
    give_up = time.monotonic() + INDEXED_WITHIN_S
    while cluster.get(VECTOR_PATH + "stats").json()["collections"]["default"]["pending"]:
        assert time.monotonic() < give_up, f"vectors are pending after {INDEXED_WITHIN_S:g} s"
        time.sleep(0.05)


def fill(cluster: Cluster) -> None:
    log_load.fill(cluster, lambda _: b"long", range(log_load.SCAN_RECORDS))
    log_load.fill(cluster, lambda number: b"many-%07d" % number, range(POLLED_KEYS))
    asyncio.run(upsert(cluster, list(write_bodies(clustered(VECTORS, DIMENSION, 1)))))
    wait_indexed(cluster)


def run(trees: dict[str, Path], works: list[Work], rounds: int) -> dict[tuple[str, str], list[float]]:
    """(work, tree) → the rates of the rounds that count."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    with side_by_side(trees, SHARDS, WORKERS) as clusters:
        for cluster in clusters.values():
            fill(cluster)
        for number in range(rounds + 1):
            for work in works:
                for name, cluster in clusters.items():
                    rate = work.rate(cluster, number)
                    if number:
                        rates[work.name, name].append(rate)
    return rates


def table(rates: dict[tuple[str, str], list[float]]) -> str:
    lines = ["| a second | other | this | this of other | of each round |", "|---|---|---|---|---|"]
    for work in dict.fromkeys(work for work, _ in rates):
        other, this = rates[work, "other"], rates[work, "this"]
        each = ", ".join(f"{b / a:.2f}" for a, b in zip(other, this, strict=True))
        middle = statistics.median(other), statistics.median(this)
        lines.append(f"| {work} | {middle[0]:,.0f} | {middle[1]:,.0f} | {middle[1] / middle[0]:.2f} | {each} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tree", type=Path, help="the other source tree")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=3.0, help="of each work that lasts so long")
    options.add_argument("--only", default="", help="work whose name has this")
    own = options.parse_args()
    works = [
        remote_writes(own.rounds + 1),
        native_histogram_writes(own.rounds + 1),
        *map(appends, log_load.BODIES, repeat(own.seconds)),
        single_appends(own.seconds),
        *log_reads(),
        *vectors(own.rounds + 1, own.seconds),
    ]
    trees = {"other": own.tree.resolve(), "this": ROOT}
    sys.stdout.write(table(run(trees, [work for work in works if own.only in work.name], own.rounds)))


if __name__ == "__main__":
    main()
