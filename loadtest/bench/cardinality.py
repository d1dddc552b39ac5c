"""The latency of /api/v1/status/tsdb, and of other requests at the same time: `python -m
loadtest.bench.cardinality`."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed

WRITE_SERIES = 20_000
ROUNDS = 5
PING_S = 0.002
QUERIES: dict[str, dict[str, str]] = {
    "all series": {},
    "all series, focusLabel=pod": {"focusLabel": "pod"},
    'match[]={job=~".+"}, which is all': {"match[]": '{job=~".+"}'},
    "match[]=metric_7": {"match[]": "metric_7"},
    "all series, limit=10000": {"limit": "10000"},
}


def _labels(i: int) -> dict[str, str]:
    return {
        "__name__": f"metric_{i % 500}",
        "code": str(200 + i % 5),
        "instance": f"host-{i % 2000}:9100",
        "job": f"job-{i % 20}",
        "method": "GET",
        "path": f"/p/{i % 100}",
        "pod": f"pod-{i}",
        "zone": f"zone-{i % 3}",
    }


class Pings(threading.Thread):
    """Small requests, one after the other; `longest_s`: what the slowest took."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._is_over = threading.Event()
        self.longest_s = 0.0
        self.start()

    def run(self) -> None:
        while not self._is_over.wait(PING_S):
            started = time.perf_counter()
            self._cluster.get("/-/healthy")
            self.longest_s = max(self.longest_s, time.perf_counter() - started)

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def _measure(cluster: Cluster, name: str, parameters: dict[str, str]) -> None:
    took, series = [], 0
    pings = Pings(cluster)
    for _ in range(ROUNDS):
        started = time.perf_counter()
        answer = cluster.get("/api/v1/status/tsdb", **parameters)
        took.append((time.perf_counter() - started) * 1000)
        series = answer.json()["data"]["totalSeries"]
    pings.stop()
    meanwhile = f"/-/healthy {pings.longest_s * 1000:.0f} ms at most"
    sys.stdout.write(f"{name}: {series} series in {statistics.median(took):.0f} ms; {meanwhile}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=1_000_000)
    series = parser.parse_args().series
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), workers=2, settings={"TRIPTYCH_SELF_SCRAPE": "0"})
        cluster.compile_kernels()
        cluster.start()
        try:
            now_ms = int(time.time() * 1000)
            for first in range(0, series, WRITE_SERIES):
                body = compressed([(_labels(i), [(now_ms, 1.0)]) for i in range(first, first + WRITE_SERIES)])
                assert cluster.request("POST", "/api/v1/write", body, HEADERS).status == 204
            for name, parameters in QUERIES.items():
                _measure(cluster, name, parameters)
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
