"""`make bench-start`: from the first second, and restarts.

Remote write of 10,000 series begins as soon as a new cluster is ready: 2,000 samples a request, 4 connections, every
answer after its sync. The rate of each of the first 10 seconds is compared with the steady rate, the median of the
later seconds. A cluster is measured with all kernels in the cache on disk; with `--empty` also with an empty cache, and
with one that `triptych warm` has filled, which is timed. Then a cluster with 2.4 million samples of these series is
stopped and started several times: how long until all of them are in answers, and the first and the second query after.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from loadtest.bench.metrics.measuring import range_path, wait_visible
from loadtest.bench.metrics.payloads import REQUEST_SERIES, STEP_MS, Workload, requests
from loadtest.bench.metrics.sending import send
from loadtest.bench.metrics.servers import Triptych
from shared.kernels.cache import VARIABLE

SERIES, CONNECTIONS = 10_000, 4
STEPS = 2_000
"""Samples of each series from the first second on: some 20 s."""
FIRST_S, SHOWN_S = 5, 10
STORED_STEPS = 240
RESTARTS = 5
QUERY = "sum by (job) (rate(m[5m]))"


def workload(steps: int) -> Workload:
    return Workload("m", SERIES, steps, int(time.time() * 1000) - steps * STEP_MS)


@contextmanager
def running() -> Iterator[Triptych]:
    """A new cluster, not started yet."""
    server = Triptych()
    try:
        yield server
    finally:
        server.stop()
        server.remove()


def rates(server: Triptych) -> list[float]:
    """Samples a second, in each whole second from the moment when the cluster is ready."""
    streams = requests(workload(STEPS), CONNECTIONS)
    server.start()
    _, latencies = send(server.port, streams)
    by_connection = np.split(np.array(latencies), np.cumsum([len(stream) for stream in streams])[:-1])
    answered_s = np.concatenate([np.cumsum(each) for each in by_connection])
    whole_seconds = int(min(each.sum() for each in by_connection))
    return [float(count) for count in np.bincount(answered_s.astype(int))[:whole_seconds] * REQUEST_SERIES]


def first_seconds(title: str) -> None:
    with running() as server:
        each = rates(server)
    steady = statistics.median(each[SHOWN_S:] or each[FIRST_S:])
    share = statistics.mean(each[:FIRST_S]) / steady
    shown = ", ".join(f"{rate / 1e6:.2f}" for rate in each[:SHOWN_S])
    sys.stdout.write(f"| {title} | {shown} | {steady / 1e6:.2f} | {100 * share:.0f} % |\n")
    sys.stdout.flush()


@contextmanager
def empty_cache() -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix="triptych-kernels-") as directory:
        os.environ[VARIABLE] = directory
        try:
            yield
        finally:
            del os.environ[VARIABLE]
            if before is not None:
                os.environ[VARIABLE] = before


def restarts() -> None:
    work = workload(STORED_STEPS)
    taken, processor_s, first_ms, second_ms = [], [], [], []
    with running() as server:
        path = range_path(server, QUERY, work.end_ms)
        server.start()
        send(server.port, requests(work, CONNECTIONS))
        for _ in range(RESTARTS):
            server.stop()
            started = time.monotonic()
            server.start()
            wait_visible(server, work)
            taken.append(time.monotonic() - started)
            processor_s.append(server.cpu_s())
            first_ms.append(_asked_ms(server, path))
            second_ms.append(_asked_ms(server, path))
    sys.stdout.write(
        f"\nRestarts with {work.total:,} samples, medians of {RESTARTS}: {statistics.median(taken):.2f} s "
        f"until all are in answers (from {min(taken):.2f} to {max(taken):.2f}), "
        f"{statistics.median(processor_s):.2f} s of CPU time; first query {statistics.median(first_ms):.0f} ms, "
        f"second {statistics.median(second_ms):.0f} ms\n"
    )


def _asked_ms(server: Triptych, path: str) -> float:
    started = time.perf_counter()
    status, body = server.get(path)
    if status != 200:
        raise RuntimeError(f"{path} gave {status}: {body[:300]!r}")
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--empty", action="store_true", help="also with an empty cache of kernels: some minutes more")
    given = options.parse_args()
    warm = [sys.executable, "-m", "coordinator.cli", "warm"]
    subprocess.run(warm, check=True)
    sys.stdout.write(
        f"\n| cache of kernels | M samples/s in the first {SHOWN_S} seconds | steady | of it in the first "
    )
    sys.stdout.write(f"{FIRST_S} s |\n|---|---|---|---|\n")
    first_seconds("full")
    if given.empty:
        with empty_cache():
            first_seconds("empty at the start")
        with empty_cache():
            started = time.monotonic()
            subprocess.run(warm, check=True, stdout=subprocess.DEVNULL)
            first_seconds(f"filled by `triptych warm` in {time.monotonic() - started:.0f} s")
    restarts()


if __name__ == "__main__":
    main()
