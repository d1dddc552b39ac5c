"""All attacks in turn beside a mixed load, for minutes: what is left of it at the end.

The load stores data meanwhile. What that takes is told by a run of the load alone, for as long.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from loadtest.attacks import report
from loadtest.attacks.catalogue import Attack
from loadtest.attacks.running import Result, run
from loadtest.attacks.target import Target
from loadtest.attacks.watching import proportional_mb
from loadtest.harness.cluster import ROOT, Cluster
from loadtest.harness.processes import end

USERS = 10
LOAD_SECONDS_MAX = 86_400.0
"""The load is ended before."""
WARM_S = 30.0
"""The load runs for so long before memory is measured for the first time."""
REST_S = 30.0
"""Memory has this much time to come back after the last attack."""
GROWTH_SHARE_MAX = 0.1
STOP_WITHIN_S = 20.0


def run_mixed(
    cluster: Cluster, target: Target, attacks: Sequence[Attack | None], seconds: float, total_s: float
) -> int:
    """The exit code: 1 if a process was restarted, or memory has not come back to within GROWTH_SHARE_MAX.

    Without attacks (None in their place) the load is alone. Waits of the bystander are shown as well; they have no
    target here, since the load beside takes its share.
    """
    results: list[Result] = []
    with _load(cluster, LOAD_SECONDS_MAX):
        time.sleep(WARM_S)
        before_mb, held_before = proportional_mb(cluster), _held(cluster)
        stop = time.monotonic() + total_s
        for attack in itertools.cycle(attacks):
            if time.monotonic() >= stop:
                break
            results.append(run(cluster, target, attack, seconds))
            sys.stdout.write(report.lines(results[-1]))
            sys.stdout.flush()
        time.sleep(REST_S)
        after_mb, held_after = proportional_mb(cluster), _held(cluster)
    restarts = sum(result.faults.restarts for result in results)
    down = sum(len(result.faults.down) for result in results)
    growth = after_mb / before_mb - 1
    sys.stdout.write(
        f"\n{report.table(results)}\n{report.growth(held_before, held_after)}\n{total_s / 60:g} minutes of mixed load"
        f" with {sum(result.attack is not None for result in results)} attacks beside:"
        f" {restarts} restarts, {down} times a worker counted as down;"
        f" memory {before_mb:,.0f} MB before, {after_mb:,.0f} MB after ({growth:+.0%})\n"
    )
    return 1 if restarts or down or growth > GROWTH_SHARE_MAX else 0


def _held(cluster: Cluster) -> report.Held:
    """Bytes by process and owner, as the service tells them."""
    held: dict[tuple[str, str], int] = {}
    for process in cluster.get("/api/v1/status/memory").json()["data"]["processes"]:
        owners = {**process.get("owners", {}), "unattributed": process.get("unattributedBytes", 0)}
        held |= {(process["process"], owner): size for owner, size in owners.items()}
    return held


@contextmanager
def _load(cluster: Cluster, seconds: float) -> Iterator[None]:
    """Users of `loadtest/locustfile.py`, in a process of their own."""
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"), "--headless"]
    options = ["--host", cluster.url, "--only-summary"]
    load = {"LOAD_SHAPE": "steady", "LOAD_USERS": str(USERS), "LOAD_SECONDS": str(seconds), "PYTHONPATH": str(ROOT)}
    with open(cluster.directory / "locust.log", "wb") as log:
        process = subprocess.Popen([*command, *options], cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **load})
    try:
        yield
    finally:
        end(process, STOP_WITHIN_S)
        sys.stdout.write((cluster.directory / "locust.log").read_text())
