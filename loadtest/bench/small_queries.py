"""`make bench-small`: latency of small queries, and their CPU time in each process.

    python -m loadtest.bench.small_queries [--seconds 2] [--rounds 3] [--only NAME] [--against ../other] [--write PATH]

10,000 series with samples over an hour. With `--against`, the same requests go to a cluster of another source tree in
turns, so that other load on the machine affects both alike; the response bodies must be equal. `NUMBA_CACHE_DIR`, if
set, applies to both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import sys
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from loadtest.bench.path import processes, wait_idle
from loadtest.bench.vector_client import Connection, for_seconds
from loadtest.harness.cluster import ROOT, Cluster, side_by_side
from loadtest.harness.http_messages import message
from loadtest.harness.remote_write_bodies import HEADERS, Series, compressed

SHARDS, WORKERS = 4, 2
HOSTS, MODES = 1000, 10
STEP_S = 15
SAMPLES = 240
CONNECTIONS = (1, 8)
WARM_UP_S = 0.5
PANELS = 10


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one kind, sent one after another again and again."""

    name: str
    messages: list[bytes]


@dataclass(slots=True)
class Figures:
    """Of all rounds of a kind. `used_us`: CPU time of a request, by process."""

    rates: list[float] = field(default_factory=list)
    latencies_ms: list[np.ndarray] = field(default_factory=list)
    used_us: list[dict[str, float]] = field(default_factory=list)

    def row(self) -> list[str]:
        latencies = np.concatenate(self.latencies_ms)
        names = list(self.used_us[0])
        used = [statistics.median(each[name] for each in self.used_us) for name in names]
        return [
            f"{statistics.median(self.rates):,.0f}",
            *(f"{np.percentile(latencies, q):.2f}" for q in (50, 99)),
            *(f"{each:,.0f}" for each in used),
            f"{sum(used):,.0f}",
        ]


def series(time_ms: int, number: int) -> Iterator[Series]:
    """The sample with this number of each series."""
    for host, mode in itertools.product(range(HOSTS), range(MODES)):
        labels = {"job": f"job{mode}", "instance": f"host-{host}:9100", "mode": f"mode{mode}"}
        yield {"__name__": "m_total", **labels}, [(time_ms, float(number * (mode + 1) + host))]
    for target in range(100):
        yield {"__name__": "up", "job": "node", "instance": f"host-{target}:9100"}, [(time_ms, 1.0)]


def fill(cluster: Cluster, now_s: int) -> None:
    for number in range(SAMPLES + 1):
        body = compressed(series((now_s - STEP_S * (SAMPLES - number)) * 1000, number))
        answer = cluster.request("POST", "/api/v1/write", body, HEADERS)
        assert answer.status == 204, answer.body


def kinds(now_s: int) -> list[Kind]:
    def instant(*texts: str) -> list[bytes]:
        return [get("query", query=text, time=str(now_s)) for text in texts]

    def get(path: str, **parameters: str) -> bytes:
        return message("GET", f"/api/v1/{path}?" + urllib.parse.urlencode(parameters))

    hosts = [f"host-{host}:9100" for host in random.Random(1).sample(range(HOSTS), HOSTS)]
    hour = {"start": str(now_s - 3600), "end": str(now_s), "step": str(STEP_S)}
    one = [f'm_total{{job="job3",instance="{host}",mode="mode3"}}' for host in hosts]
    panels = [f'rate(m_total{{instance="{host}"}}[5m])' for host in hosts[:PANELS]]
    return [
        Kind("`/-/healthy`", [message("GET", "/-/healthy")]),
        Kind("`1`", instant("1")),
        Kind("one series", instant(one[0])),
        Kind("one series, of 1,000 in turn", instant(*one)),
        Kind("10 series", instant(f'm_total{{instance="{hosts[0]}"}}')),
        Kind("`sum` of 10 series", instant(f'sum(m_total{{instance="{hosts[0]}"}})')),
        Kind("100 series (`up`)", instant("up")),
        Kind("10 panels of `rate` over an hour, 10 series each", [get("query_range", query=p, **hour) for p in panels]),
        Kind(
            "values of a label of 10 series",
            [get("label/mode/values", **{"match[]": f'm_total{{instance="{hosts[0]}"}}', **_times(hour)})],
        ),
    ]


def _times(hour: dict[str, str]) -> dict[str, str]:
    return {name: hour[name] for name in ("start", "end")}


def measure(
    cluster: Cluster, family: Mapping[str, psutil.Process], kind: Kind, seconds: float, connections: int, to: Figures
) -> None:
    count = len(kind.messages)

    async def one(by: Connection, number: int) -> None:
        await by.send(kind.messages[number % count])

    asyncio.run(for_seconds(WARM_UP_S, one, cluster.url, connections))
    before = {name: sum(process.cpu_times()[:2]) for name, process in family.items()}
    latencies = asyncio.run(for_seconds(seconds, one, cluster.url, connections))
    after = {name: sum(process.cpu_times()[:2]) for name, process in family.items()}
    to.rates.append(len(latencies) / seconds)
    to.latencies_ms.append(latencies)
    to.used_us.append({name: (after[name] - before[name]) / len(latencies) * 1e6 for name in after})


def answers(cluster: Cluster, every: list[Kind]) -> list[bytes]:
    """The body of the answer to each request, the first time and again: it may be made in another way then."""

    async def all_of_them() -> list[bytes]:
        connection = Connection(cluster.url)
        bodies = [await connection.send(text) for kind in every for text in kind.messages * 2]
        connection.close()
        return bodies

    return asyncio.run(all_of_them())


def run(trees: dict[str, Path], seconds: float, rounds: int, only: str) -> list[tuple[str, int, str, Figures]]:
    """(kind, connections, tree, figures)."""
    now_s = int(time.time()) // STEP_S * STEP_S
    every = [kind for kind in kinds(now_s) if only in kind.name]
    with side_by_side(trees, SHARDS, WORKERS) as clusters:
        for cluster in clusters.values():
            fill(cluster, now_s)
        for cluster in clusters.values():
            wait_idle(cluster)
        families = {name: processes(cluster) for name, cluster in clusters.items()}
        bodies = [answers(cluster, every) for cluster in clusters.values()]
        assert all(other == bodies[0] for other in bodies), "the trees answer differently"
        found = [(kind, count, name, Figures()) for kind in every for count in CONNECTIONS for name in trees]
        for _ in range(rounds):
            for kind, count, name, figures in found:
                measure(clusters[name], families[name], kind, seconds, count, figures)
    return [(kind.name, count, name, figures) for kind, count, name, figures in found]


def table(results: list[tuple[str, int, str, Figures]]) -> str:
    processes_of = list(results[0][3].used_us[0])
    heads = [
        "query",
        "connections",
        "tree",
        "a second",
        "p50 ms",
        "p99 ms",
        *(f"{p} µs" for p in processes_of),
        "all µs",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for kind, count, name, figures in results:
        lines.append("| " + " | ".join([kind, str(count), name, *figures.row()]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=2.0, help="of each kind of request, in each round")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", default="", help="part of the names of the kinds to run")
    options.add_argument("--against", type=Path, help="another source tree, measured in turns with this one")
    options.add_argument("--write", type=Path, help="a file for the table, too")
    given = options.parse_args()
    trees = {"this": ROOT} if given.against is None else {"other": given.against.resolve(), "this": ROOT}
    load = os.getloadavg()[0]
    text = table(run(trees, given.seconds, given.rounds, given.only))
    text += f"\nLoad average of the machine at the start {load:.1f}, at the end {os.getloadavg()[0]:.1f}.\n"
    sys.stdout.write(text)
    if given.write is not None:
        given.write.write_text(text)


if __name__ == "__main__":
    main()
