"""`make bench-memory`: what the processes of a cluster hold, before any data and with data at rest.

A cluster with the default settings is measured when its kernels are loaded, right after the last response to its
writes, and after some time at rest. The writes are 2.4 million samples of 10,000 series or, with `--new-series`, one
sample of each of the given number of series. Pages that processes share count once in `PSS`. `shared`: pages that other
processes have too, all of them in each row; `private`: pages that only this process has. Other processes that use the
same libraries reduce `PSS`, but not `anonymous`, the pages that are not mapped from files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadtest.attacks.watching import MB, becomes_quiet
from loadtest.bench import filling
from loadtest.bench.metrics.payloads import STEP_MS, Workload, requests
from loadtest.bench.metrics.sending import send
from loadtest.harness.cluster import MEASURED, ROOT, Cluster
from loadtest.harness.processes import family

SAMPLES = 2_400_000
SERIES_AT_ONCE = 100_000
REST_S = 30.0
KIB = 1024


@dataclass(frozen=True, slots=True)
class Pages:
    """Of one process, in bytes."""

    pss: int
    anonymous: int
    shared: int
    private: int

    @classmethod
    def of(cls, pid: int) -> Pages:
        """Raises OSError if the process has ended."""
        kib: dict[str, int] = {}
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, number, _ = line.split()
            kib[name.removesuffix(":")] = int(number)
        shared = kib["Shared_Clean"] + kib["Shared_Dirty"]
        private = kib["Private_Clean"] + kib["Private_Dirty"]
        return cls(*(number * KIB for number in (kib["Pss"], kib["Pss_Anon"], shared, private)))


def processes(cluster: Cluster) -> Iterator[tuple[str, Pages]]:
    """(what it is, its pages) of each process of the cluster."""
    roots = {one.pid: what for one, what in _roots(cluster)}
    number = 0
    for process in family(cluster):
        try:
            pages = Pages.of(process.pid)
        except OSError:
            continue  # it has ended
        number += process.pid not in roots
        yield roots.get(process.pid, f"child {number} of the supervisor"), pages


def _roots(cluster: Cluster) -> list[tuple[psutil.Process, str]]:
    given = ((cluster.coordinator, "coordinator"), (cluster.supervisor, "supervisor"))
    return [(psutil.Process(one.pid), what) for one, what in given if one is not None]


def _look(cluster: Cluster, when: str) -> None:
    total = anonymous = 0
    for what, pages in processes(cluster):
        total += pages.pss
        anonymous += pages.anonymous
        numbers = (pages.pss, pages.anonymous, pages.shared, pages.private)
        sys.stdout.write(f"| {when} | {what} | " + " | ".join(f"{number / MB:.0f}" for number in numbers) + " |\n")
    sys.stdout.write(f"| {when} | all | {total / MB:.0f} | {anonymous / MB:.0f} | | |\n")
    sys.stdout.flush()


def _rest(cluster: Cluster) -> None:
    becomes_quiet(cluster)
    time.sleep(REST_S)


def _write_series(cluster: Cluster, count: int) -> None:
    for first in range(0, count, SERIES_AT_ONCE):
        work = Workload(f"m{first}", min(SERIES_AT_ONCE, count - first), 1, filling.START_MS + STEP_MS)
        send(cluster.port, requests(work, filling.CONNECTIONS, seed=first))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of 10,000 series")
    parser.add_argument("--new-series", type=int, default=0, help="with one sample each, instead")
    parser.add_argument("--tree", type=Path, default=ROOT, help="sources that are run (default: these)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memory-") as directory:
        settings = {**MEASURED, "TRIPTYCH_SELF_SCRAPE": "0"}
        cluster = Cluster(Path(directory), workers=2, settings=settings, tree=options.tree)
        try:
            cluster.start()
            sys.stdout.write("| when | process | PSS, MB | anonymous | shared | private |\n|---|---|---|---|---|---|\n")
            _rest(cluster)
            _look(cluster, "no data")
            if options.new_series:
                what = f"{options.new_series:,} series"
                _write_series(cluster, options.new_series)
            else:
                what = f"{options.samples:,} samples"
                filling.write_samples(cluster, options.samples // filling.SERIES)
            _look(cluster, f"{what}, at once")
            _rest(cluster)
            _look(cluster, f"{what}, at rest")
        finally:
            cluster.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
