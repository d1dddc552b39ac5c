"""How long the engine takes for typical queries in one process: `python -m loadtest.bench.promql [series]`.

10,000 series × 240 samples 15 s apart, held in memory, 200 steps over the whole hour; the median of several runs after
one that compiles. Nothing of HTTP, storage or the wire between processes is in these figures.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from coordinator.queries import planner
from loadtest.harness.local_queries import range_query
from loadtest.harness.memory_source import MemorySource, label_set
from shared.labels import Symbols
from shared.promql import parser
from shared.promql.model import Grid

SERIES = 10_000
SAMPLES = 240
INTERVAL_MS = 15_000
STEPS = 200
RUNS = 7

QUERIES = {
    "sum by (job) (rate(m[5m]))": 80.0,
    "sum by (job) (rate(m[1h]))": None,
    "quantile by (job) (0.9, rate(m[5m]))": 250.0,
    "topk(5, rate(m[5m]))": 150.0,
    "sum(m)": None,
    "rate(m[5m])": None,
    "max by (job) (max_over_time(m[1h]))": None,
    "avg by (job) (avg_over_time(m[1h]))": None,
    "sum by (job) (quantile_over_time(0.9, m[1h]))": None,
    "sum(max_over_time(rate(m[5m])[30m:1m]))": None,
    "sum by (job) (rate(m[5m])) / sum by (job) (rate(m[5m] offset 5m))": None,
}
"""Query → the milliseconds it should stay under, where a target is set."""


def source(series: int) -> MemorySource:
    """Counters `m{job, instance}` of ten jobs that grow by random integers and are never reset."""
    rng = np.random.default_rng(1)
    times = np.arange(SAMPLES, dtype=np.int64) * INTERVAL_MS
    values = np.cumsum(rng.integers(0, 100, (series, SAMPLES)), axis=1).astype(np.float64)
    labels = (label_set({"__name__": "m", "job": f"job-{i % 10}", "instance": f"host-{i}"}) for i in range(series))
    return MemorySource({key: (times, values[i]) for i, key in enumerate(labels)})


def medians_ms(text: str, data: MemorySource, symbols: Symbols) -> tuple[float, float]:
    """(elapsed, CPU time of this thread): they differ where the machine has other work."""
    end_ms = (SAMPLES - 1) * INTERVAL_MS
    step_ms = end_ms // (STEPS - 1)
    grid = Grid(0, step_ms * (STEPS - 1), step_ms)
    elapsed, busy = [], []
    for _ in range(RUNS + 1):
        started, started_busy = time.perf_counter(), time.thread_time()
        range_query(text, data, grid, symbols=symbols)
        elapsed.append((time.perf_counter() - started) * 1000)
        busy.append((time.thread_time() - started_busy) * 1000)
    return statistics.median(elapsed[1:]), statistics.median(busy[1:])


DASHBOARD = (
    'histogram_quantile(0.95, sum by (le, job) (rate(http_request_duration_seconds_bucket{job=~"api|web"}[5m])))',
    'sum by (job) (rate(http_requests_total{code=~"5.."}[5m])) / sum by (job) (rate(http_requests_total[5m])) * 100',
    '100 - avg by (instance) (irate(node_cpu_seconds_total{mode="idle"}[5m])) * 100',
    'topk(10, sum by (namespace, pod) (rate(container_cpu_usage_seconds_total{image!=""}[5m])))',
)


def planning_ms(times: int) -> tuple[float, float]:
    """Parsing and planning a dashboard query: (seen for the first time, seen before), medians."""
    grid = Grid(0, 3_600_000, 15_000)
    first: list[float] = []
    again: list[float] = []
    for number in range(times):
        for text in DASHBOARD:
            fresh = text.replace("5m", f"{number + 1}m")
            for kept in (first, again):
                started = time.perf_counter()
                planner.plan(fresh, grid)
                kept.append((time.perf_counter() - started) * 1000)
    return statistics.median(first), statistics.median(again)


def main() -> None:
    series = int(sys.argv[1]) if len(sys.argv) > 1 else SERIES
    data, symbols = source(series), Symbols()
    data.frame(symbols)
    write = sys.stdout.write
    write(f"{series} series × {SAMPLES} samples, {STEPS} steps, one thread, median of {RUNS}\n")
    write(f"{'query':66} {'ms':>8} {'cpu ms':>8} {'target':>8}\n")
    for text, target in QUERIES.items():
        elapsed, busy = medians_ms(text, data, symbols)
        write(f"{text:66} {elapsed:8.1f} {busy:8.1f} {target or '':>8}\n")
        sys.stdout.flush()
    parser.parse("1")
    first, again = planning_ms(50)
    write(f"{'parse and plan a dashboard query, first time':66} {first:8.3f} {'':>8} {1.0:>8}\n")
    write(f"{'the same, seen before':66} {again:8.4f}\n")


if __name__ == "__main__":
    main()
