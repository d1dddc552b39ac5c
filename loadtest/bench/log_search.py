"""The speed of searches in values of the log, on a separate cluster: `python -m loadtest.bench.log_search`.

Events of some 150 bytes, half of them under one key, of which few or all match. Figures are MB of values per second
and, in brackets, per second of CPU time, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

from loadtest.bench import log_load as load
from loadtest.harness.cluster import Cluster

EVENTS = 400_000
BATCH = 1_000
KEY = "one"
SEARCHES = {
    "text, 1 in 1,000 found": {"grep": '"error"'},
    "expression, 1 in 1,000 found": {"grep": "(?i)ERROR.*took [0-9]+ ms"},
    "expression, all found": {"grep": "took [0-9]+ ms"},
    "condition, 1 in 1,000 found": {"where": '$.level = "error"'},
    "text and condition, 1 in 1,000 found": {"grep": '"error"', "where": '$.level = "error"'},
    "no search": {},
}


def event(number: int) -> str:
    return json.dumps(
        {
            "level": "error" if number % 1000 < 2 else "info",
            "message": f"request {number} of /api/v1/things took {number % 97} ms",
            "trace": f"{random.getrandbits(128):032x}",
            "place": {"zone": number % 10},
        }
    )


def fill(cluster: Cluster) -> int:
    """Append the events. Returns the bytes of their values."""
    size = 0
    for first in range(0, EVENTS, BATCH):
        texts = [event(number) for number in range(first, first + BATCH)]
        size += sum(map(len, texts))
        keys = [KEY if i % 2 else f"other-{i % 20}" for i in range(BATCH)]
        records = [{"keyText": key, "text": text} for key, text in zip(keys, texts, strict=True)]
        answer = cluster.post_json("/api/v1/log/append", {"records": records})
        assert answer.status == 200, answer.body
    return size


def measure(cluster: Cluster, path: str, parameters: dict[str, str], size: int, runs: int) -> str:
    """MB/s of the time that the best run took, and of the CPU time that all runs took in all processes."""
    target = f"/api/v1/log/{path}?{urlencode(parameters)}"
    best_s = float("inf")
    processor_s = sum(load.cpu_seconds(cluster))
    for _ in range(runs):
        begin = time.perf_counter()
        answer = cluster.request("GET", target, headers={"Accept": "application/protobuf"})
        best_s = min(best_s, time.perf_counter() - begin)
        assert answer.status == 200, answer.body
    processor_s = (sum(load.cpu_seconds(cluster)) - processor_s) / runs
    return f"{size / best_s / 1e6:7.0f} ({size / max(processor_s, 0.01) / 1e6:4.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), shards=0, workers=0).start()
        try:
            size = fill(cluster)
            for name, search in SEARCHES.items():
                rates = [
                    measure(cluster, "scan", {"key": KEY, "limit": str(EVENTS), **search}, size // 2, options.runs),
                    measure(cluster, "scan", {"prefix": "", "limit": str(EVENTS), **search}, size, options.runs),
                    measure(cluster, "count", {"prefix": "", **search}, size, options.runs),
                ]
                sys.stdout.write(f"{name:40}key {rates[0]}  prefix {rates[1]}  count of all {rates[2]}  MB/s\n")
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
