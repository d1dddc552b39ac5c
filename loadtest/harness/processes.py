"""The processes of a cluster, and those that a program has started itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress

import psutil

from loadtest.harness.cluster import Cluster


def family(cluster: Cluster) -> list[psutil.Process]:
    """Coordinator, supervisor and everything they started."""
    roots = [psutil.Process(p.pid) for p in (cluster.coordinator, cluster.supervisor) if p and p.poll() is None]
    return [*roots, *(child for root in roots for child in root.children(recursive=True))]


def processor_s(processes: Iterable[psutil.Process]) -> float:
    """Processor time of these, in seconds; nothing of those that have ended."""
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:2])
    return total


def end(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Have the process end, and kill it if it has not within this time."""
    process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
