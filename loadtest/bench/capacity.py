"""What a sample, a record and a vector cost: `python -m loadtest.bench.capacity`.

A cluster with the default settings receives samples, records and vectors, one kind after the other. For each kind, the
table has the CPU time of all its processes until the last response and until background work is done (blocks sealed and
merged, vectors indexed), and the growth of the data directory and of memory. Free memory that processes have not
returned yet counts as used.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtest.attacks.watching import MB, becomes_quiet, proportional_mb
from loadtest.bench import filling
from loadtest.harness.cluster import MEASURED, Cluster
from loadtest.harness.processes import family, processor_s

STEPS, RECORDS, VECTORS = 1_000, 1_000_000, 100_000
REST_S = 15.0
"""So long after background work seems done, memory is looked at: it is returned a while after it became free."""


@dataclass(frozen=True, slots=True)
class State:
    """Of the whole cluster: seconds of CPU time, bytes of files, bytes of memory (shared pages once)."""

    processor_s: float
    disk: int
    memory: float

    @classmethod
    def of(cls, cluster: Cluster) -> State:
        files = [path.stat() for path in (cluster.directory / "data").rglob("*") if path.is_file()]
        disk = sum(status.st_blocks * 512 for status in {status.st_ino: status for status in files}.values())
        return cls(processor_s(family(cluster)), disk, proportional_mb(cluster) * MB)


def _settled(cluster: Cluster) -> State:
    becomes_quiet(cluster)
    time.sleep(REST_S)
    return State.of(cluster)


def measure(cluster: Cluster, what: str, count: int, write: Callable[[], None]) -> str:
    """A row of the table."""
    before = _settled(cluster)
    began = time.perf_counter()
    write()
    seconds = time.perf_counter() - began
    answered_s = processor_s(family(cluster)) - before.processor_s
    after = _settled(cluster)
    total_s = after.processor_s - before.processor_s
    return (
        f"| {what} | {count:,} | {count / seconds:,.0f} | {answered_s / count * 1e6:.2f} | {total_s / count * 1e6:.2f} "
        f"| {(after.disk - before.disk) / count:,.2f} | {(after.memory - before.memory) / count:,.2f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of all amounts")
    parser.add_argument("--directory", type=Path, help="for the data (default: a temporary directory)")
    options = parser.parse_args()
    steps = max(1, round(STEPS * options.scale / filling.CHUNK_STEPS)) * filling.CHUNK_STEPS
    records, vectors = (round(count * options.scale) for count in (RECORDS, VECTORS))
    rows = []
    with tempfile.TemporaryDirectory(prefix="capacity-", dir=options.directory) as directory:
        cluster = Cluster(Path(directory), workers=2, settings={**MEASURED, "TRIPTYCH_SELF_SCRAPE": "0"})
        try:
            cluster.start()
            empty = _settled(cluster)
            # The first of each series is dearer than those that follow.
            filling.write_samples(cluster, filling.CHUNK_STEPS)
            samples = steps * filling.SERIES
            rows.append(
                measure(cluster, "sample", samples, lambda: filling.write_samples(cluster, steps, filling.CHUNK_STEPS))
            )
            rows.append(measure(cluster, "record", records, lambda: filling.write_records(cluster, records)))
            rows.append(measure(cluster, "vector", vectors, lambda: filling.write_vectors(cluster, vectors)))
        finally:
            cluster.kill()
    sys.stdout.write(
        f"empty cluster: {empty.memory / MB:,.0f} MB of memory, {empty.disk / MB:,.1f} MB of files\n\n"
        "| | written | a second | µs of CPU, answered | µs, background too | bytes on disk | bytes of memory |\n"
        "|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
