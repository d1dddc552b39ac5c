"""`python -m loadtest.overload`: see the package."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from loadtest.attacks import data
from loadtest.attacks.priority import prefer, raised
from loadtest.attacks.watching import becomes_quiet
from loadtest.harness.cluster import ROOT, Cluster
from loadtest.overload.client import HOST, Client, Request
from loadtest.overload.mix import requests
from loadtest.overload.report import HEADING, HEADING_BY_KIND, Measured, row, rows_by_kind

SHARDS, WORKERS = 4, 2
CLUSTER_NICENESS, OWN_NICENESS = -5, -10
"""So that neither waits for other work on the machine, and the clients not for the cluster."""
IDLE_RATE, IDLE_S = 50.0, 15.0
FIRST_RATE, RATE_FACTOR = 200.0, 1.25
"""The search for the peak: each rate is so much higher than the one before."""
SEARCH_S = 4.0
PAST_PEAK = 3
"""The search ends when so many rates in a row have brought no more goodput."""
FAILED_SHARE_MAX = 0.005
"""The sustainable rate is the highest one, below the first that is not, at which no larger share than this is refused
or late, in each of `REPEATS` runs."""
REPEATS = 3
"""Runs at rest, at the rates that the search has found, and at each multiple: what counts are medians."""
REST_S = 3.0
LOADS = (1, 2, 3)
GOODPUT_SHARE_MIN, WAIT_RATIO_MAX = 0.8, 5.0
ADDRESSES = 50
OPEN_FILES = 8192


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and so the cluster as well
    options = _options()
    with raised(CLUSTER_NICENESS), _cluster(options.tree.resolve()) as cluster:
        target = data.load(cluster, data.Amounts().scaled(options.scale))
        becomes_quiet(cluster)
        prefer(OWN_NICENESS)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, OPEN_FILES), hard), hard))
        return asyncio.run(_measure(target.port, requests(target), options))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.overload", description="More load than can be carried.")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each run at a multiple of the rate")
    parser.add_argument("--rate", type=float, default=0.0, help="the sustainable rate, if it is known; 0: look for it")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the source tree whose code runs in the cluster")
    parser.add_argument("--scale", type=float, default=0.2, help="share of the data that the attacks load")
    return parser.parse_args()


async def _measure(port: int, mix: Sequence[Request], options: argparse.Namespace) -> int:
    _say(_machine())
    one, many = [HOST], [f"127.0.0.{number}" for number in range(2, 2 + ADDRESSES)]
    await _run(port, mix, IDLE_RATE, 2.0, one)  # first requests load kernels
    at_rest = [await _run(port, mix, IDLE_RATE, IDLE_S, one) for _ in range(REPEATS)]
    _say(HEADING)
    for idle in at_rest:
        _say(row("idle", idle, None, None))
    idle = sorted(at_rest, key=lambda run: run.p99_ms)[REPEATS // 2]
    sustainable, peaks = await _find_sustainable(port, mix, idle, options.rate)
    peak_goodput = statistics.median(run.outcomes.goodput for run in peaks)
    _say(f"\nsustainable: {sustainable:,.0f}/s; peak of goodput: {peak_goodput:,.0f}/s\n\n{HEADING}")
    is_missed, medians = False, []
    by_kind = [*rows_by_kind("idle", idle), *rows_by_kind("peak", peaks[0])]
    for label, addresses in (("one address", one), (f"{ADDRESSES} addresses", many)):
        for load in LOADS:
            name, runs = f"{load} ×, {label}", []
            for _ in range(REPEATS):
                runs.append(await _run(port, mix, load * sustainable, options.seconds, addresses))
                _say(row(name, runs[-1], idle, peak_goodput))
            goodput = statistics.median(run.outcomes.goodput for run in runs) / peak_goodput
            wait = statistics.median(run.p99_ms for run in runs) / idle.p99_ms
            medians.append(f"- {name}: {goodput:.0%} of the peak's goodput, p99 {wait:.1f} × idle")
            if load == max(LOADS):
                is_missed |= goodput < GOODPUT_SHARE_MIN or wait > WAIT_RATIO_MAX
                by_kind += rows_by_kind(name, runs[0])
    _say("\n".join(["", f"Medians of {REPEATS} runs:", "", *medians, "", HEADING_BY_KIND, *by_kind]))
    return int(is_missed)


async def _find_sustainable(
    port: int, mix: Sequence[Request], idle: Measured, known_rate: float
) -> tuple[float, list[Measured]]:
    """(the sustainable rate a second, the runs at the rate with the best goodput)."""

    async def run_at(rate: float) -> Measured:
        run = await _run(port, mix, rate, SEARCH_S, [HOST])
        _say(row("search", run, idle, None))
        return run

    if known_rate:
        return known_rate, [await run_at(known_rate) for _ in range(REPEATS)]
    rate, runs, best = FIRST_RATE, [idle], 0
    while len(runs) - 1 - best < PAST_PEAK:
        runs.append(await run_at(rate))
        best = max(range(len(runs)), key=lambda place: runs[place].outcomes.goodput)
        rate *= RATE_FACTOR
    is_carried = [run.outcomes.failed_share <= FAILED_SHARE_MAX for run in runs]
    place = (is_carried.index(False) if False in is_carried else len(runs)) - 1
    while place > 0:
        again = [await run_at(runs[place].rate) for _ in range(REPEATS - 1)]
        if all(run.outcomes.failed_share <= FAILED_SHARE_MAX for run in again):
            break
        place -= 1
    return runs[max(place, 0)].rate, [runs[best], *[await run_at(runs[best].rate) for _ in range(REPEATS - 1)]]


async def _run(port: int, mix: Sequence[Request], rate: float, seconds: float, addresses: Sequence[str]) -> Measured:
    client = Client(port, addresses)
    own, began = psutil.Process().cpu_times(), time.perf_counter()
    outcomes = await client.run(mix, rate, seconds)
    now = psutil.Process().cpu_times()
    share = (now.user + now.system - own.user - own.system) / (time.perf_counter() - began)
    await client.close()
    await asyncio.sleep(REST_S)
    return Measured(rate, outcomes, share)


def _machine() -> str:
    gigabytes = psutil.virtual_memory().total / (1 << 30)
    return f"{os.cpu_count()} cores, {gigabytes:.0f} GiB, load average {os.getloadavg()[0]:.1f}\n"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def _cluster(tree: Path) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="overload-") as directory:
        cluster = Cluster(Path(directory), shards=SHARDS, workers=WORKERS, tree=tree)
        try:
            cluster.compile_kernels()
            cluster.start()
            yield cluster
        finally:
            cluster.kill()


if __name__ == "__main__":
    sys.exit(main())
