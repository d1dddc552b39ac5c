"""The memory and disk usage of a cluster after writes have ended: `python -m loadtest.bench.rest`.

A cluster with the default settings receives a day of 10,000 series as fast as possible or, with `--scrapes`, the
recorded hour of node_exporter. Then there are no more writes, and memory and disk usage are measured several times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from loadtest.attacks.watching import MB
from loadtest.bench import filling
from loadtest.bench.capacity import State
from loadtest.bench.metrics import scrapes
from loadtest.bench.metrics.sending import send
from loadtest.harness.cluster import MEASURED, Cluster
from loadtest.harness.processes import family, processor_s

STEPS = 5_800
LOOK_AT_S = (0, 15, 30, 60, 90, 180)
HOUR_MS = 3_600_000


def _row(cluster: Cluster, what: str) -> str:
    state = State.of(cluster)
    logs = sum(path.stat().st_blocks * 512 for path in (cluster.directory / "data" / "wal").glob("*/*"))
    shards = cluster.get("/api/v1/cluster").json()["data"]["shards"]
    head, blocks = (sum(shard["counts"][name] for shard in shards) for name in ("head_samples", "blocks"))
    return (
        f"| {what} | {state.memory / MB:,.0f} | {state.disk / MB:,.1f} | {logs / MB:,.1f} | {head:,} | {blocks} "
        f"| {processor_s(family(cluster)):.1f} |\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scrapes", action="store_true", help="the hour of node_exporter")
    parser.add_argument("--steps", type=int, default=STEPS, help="samples of each of the 10,000 series")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), workers=2, settings=MEASURED).start()
        try:
            sys.stdout.write(
                "| s after | MB of memory | MB on disk | of logs | samples in heads | blocks | s of CPU |\n"
            )
            sys.stdout.write("|---|---|---|---|---|---|---|\n" + _row(cluster, "start"))
            if options.scrapes:
                send(cluster.port, [list(scrapes.load().bodies(int(time.time() * 1000) - 3 * HOUR_MS))])
            else:
                filling.write_samples(cluster, options.steps)
            ended = time.monotonic()
            for seconds in LOOK_AT_S:
                time.sleep(max(0.0, ended + seconds - time.monotonic()))
                sys.stdout.write(_row(cluster, str(seconds)))
                sys.stdout.flush()
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
