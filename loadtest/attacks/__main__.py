"""`python -m loadtest.attacks`: see the package."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from loadtest.attacks import data, report
from loadtest.attacks.catalogue import ATTACKS, named
from loadtest.attacks.mixed import run_mixed
from loadtest.attacks.priority import raised
from loadtest.attacks.running import Result, few_open_files, run
from loadtest.attacks.target import Target
from loadtest.attacks.watching import QUIET_WITHIN_S, becomes_quiet
from loadtest.harness.cluster import MEASURED, ROOT, Cluster

SHARDS, WORKERS = 4, 2
NICENESS = -5
"""Of this process and the cluster."""
WARM_S = 3.0


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and so the cluster as well
    options = _options()
    attacks = named(options.only)
    if options.list:
        for attack in ATTACKS:
            growth = f", +{attack.growth_mb:g} MB" if attack.growth_mb is not None else ""
            sys.stdout.write(f"{attack.name:<18} {attack.what} (target: {attack.wait_s:g} s{growth})\n")
        return 0
    with raised(NICENESS), _cluster(options.tree.resolve()) as cluster:
        began = time.monotonic()
        target = data.load(cluster, data.Amounts().scaled(options.scale))
        _settle(cluster)
        run(cluster, target, None, WARM_S)  # first requests load kernels
        _say(f"the cluster holds its data and is quiet after {time.monotonic() - began:.0f} s\n")
        if options.mixed:
            beside = [None] if options.alone else attacks
            return run_mixed(cluster, target, beside, options.seconds, options.mixed * 60)
        return _run_all(cluster, target, [None, *attacks], options.seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.attacks", description="What one client can do to others.")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these attacks; shell patterns are good")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each attack goes on sending")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the source tree whose code runs in the cluster")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual amount of data")
    parser.add_argument(
        "--mixed", type=float, default=0.0, metavar="MINUTES", help="mixed load with all attacks beside"
    )
    parser.add_argument("--alone", action="store_true", help="the mixed load without attacks, to compare with")
    parser.add_argument("--list", action="store_true", help="print the attacks and their targets")
    return parser.parse_args()


def _run_all(cluster: Cluster, target: Target, attacks: list, seconds: float) -> int:
    results: list[Result] = []
    for attack in attacks:
        result = run(cluster, target, attack, seconds)
        results.append(result)
        _say(report.lines(result))
        _revive(cluster)
        _settle(cluster)
    _say(f"\n{_machine()}\n\n{report.table(results)}")
    return 1 if any(result.missed() for result in results) else 0


@contextmanager
def _cluster(tree: Path) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="attacks-") as directory:
        cluster = Cluster(Path(directory), shards=SHARDS, workers=WORKERS, settings=MEASURED, tree=tree)
        try:
            cluster.compile_kernels()
            with few_open_files():
                cluster.start()
            yield cluster
        finally:
            cluster.kill()


def _revive(cluster: Cluster) -> None:
    """Start what has died, so that the next attack meets a whole cluster."""
    if cluster.supervisor is None or cluster.supervisor.poll() is not None:
        cluster.start_workers()
    if cluster.coordinator is None or cluster.coordinator.poll() is not None:
        cluster.start_coordinator()
    cluster.wait_ready()


def _settle(cluster: Cluster) -> None:
    if not becomes_quiet(cluster):
        _say(f"the cluster is not quiet after {QUIET_WITHIN_S:g} s\n")


def _machine() -> str:
    memory_gb = psutil.virtual_memory().total / (1 << 30)
    return f"{os.cpu_count()} cores, {memory_gb:.0f} GiB of memory; load average {os.getloadavg()[1]:.1f}"


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
