"""The log's speed over HTTP on a cluster of its own, beside Redis Streams and NATS JetStream where they are installed:
`python -m loadtest.bench.log`; writes docs/benchmarks/log.md when all parts are measured.

100-byte values over 1,000 keys; the load generator shares the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench import log_load as load
from loadtest.bench.log_rivals import RIVALS
from loadtest.bench.log_single import Appends, ordinary_appends, small_appends
from loadtest.harness.cluster import ROOT, Cluster

PARTS = ("append", "single", "scan", "follow", "sustained", "keys", "memory")
REPORT = ROOT / "docs" / "benchmarks" / "log.md"
RECORDS_EACH = 10
RECORDS_A_REQUEST = 1000
MEMORY_STEPS = 10
SUSTAINED_STEPS, SUSTAINED_STEP_S = 8, 5.0
BREATH_S = 2.0
MEMORY_BREATH_S = 6.0
"""Workers report what holds their memory every few seconds."""


@dataclass(frozen=True, slots=True)
class Row:
    work: str
    measured: str
    target: str = ""


def p99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def append_requests(name: str) -> list[bytes]:
    """Requests of RECORDS_A_REQUEST records each, in this one of `load.BODIES`."""
    make, media_type = load.BODIES[name]
    return [load.post(make(load.keys_from(i, RECORDS_A_REQUEST)), media_type) for i in range(8)]


Cost = tuple[float, float, float]
"""CPU of the coordinator, of the workers, of the load generator: in seconds, or in µs a record or request."""


def spent(cluster: Cluster) -> Cost:
    return (*load.cpu_seconds(cluster), time.process_time())


def cost(cluster: Cluster, before: Cost, count: int) -> Cost:
    coordinator, workers, client = (now - then for now, then in zip(spent(cluster), before, strict=True))
    return coordinator / count * 1e6, workers / count * 1e6, client / count * 1e6


def cost_text(costs: Sequence[Cost], digits: int, unit: str) -> str:
    """Medians; and what a core would do that the server alone has."""
    coordinator, workers, client = (statistics.median(own) for own in zip(*costs, strict=True))
    text = f"CPU µs a {unit}: coordinator {coordinator:.{digits}f}, workers {workers:.{digits}f}, "
    text += f"load generator {client:.{digits}f}"
    return f"{text}; {1e6 / (coordinator + workers):,.0f} {unit}s a second of the server's CPU"


class Bench:
    """The rows of the table, as they are measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows: list[Row] = []
        self.load_before = os.getloadavg()[0]

    def add(self, work: str, measured: str, target: str = "") -> None:
        self.rows.append(Row(work, measured, target))
        sys.stdout.write(f"{work:<72}{measured}\n")
        sys.stdout.flush()

    @contextmanager
    def cluster(self) -> Iterator[Cluster]:
        """A cluster that has just started, with nothing in it."""
        with tempfile.TemporaryDirectory(dir=self.options.directory) as directory:
            running = Cluster(Path(directory), shards=0, workers=0)
            running.compile_kernels()
            running.start()
            try:
                yield running
            finally:
                running.stop()

    def run(self) -> None:
        parts = self.options.only or PARTS
        if {"append", "single", "scan", "follow"} & set(parts):
            with self.cluster() as cluster:
                for part in ("append", "single", "scan", "follow"):
                    if part in parts:
                        getattr(self, f"_{part}")(cluster)
        for part in ("sustained", "keys", "memory"):
            if part in parts:
                with self.cluster() as cluster:
                    getattr(self, f"_{part}")(cluster)

    def _append(self, cluster: Cluster) -> None:
        """Triptych and its rivals in turn, several times: what else the machine does meets all of them."""
        requests = {name: append_requests(name) for name in load.BODIES}
        rivals = [rival for rival in RIVALS if rival.path is not None]
        rates: dict[str, list[float]] = {name: [] for name in [*requests, *(rival.title for rival in rivals)]}
        times: dict[str, list[float]] = {name: [] for name in requests}
        load.append_rate(cluster, requests["JSON"], load.CONNECTIONS, 1.0)
        cpu: dict[str, list[Cost]] = {name: [] for name in requests}
        for _ in range(self.options.runs):
            for name, bodies in requests.items():
                before = spent(cluster)
                rate, latencies = load.append_rate(cluster, bodies, load.CONNECTIONS, self.options.seconds)
                cpu[name].append(cost(cluster, before, len(latencies) * RECORDS_A_REQUEST))
                rates[name].append(rate * RECORDS_A_REQUEST)
                times[name] += latencies
            for rival in rivals:
                rates[rival.title].append(rival.rate(self.options.seconds))
        middle = {name: statistics.median(found) for name, found in rates.items()}
        for name in requests:
            text = f"{middle[name]:,.0f} records/s; {statistics.median(times[name]):.1f} ms median, "
            text += f"{p99(times[name]):.1f} ms p99; {cost_text(cpu[name], 2, 'record')}"
            work = f"durable append, 1,000 records a request, {load.CONNECTIONS} connections, {name}"
            self.add(work, text, "≥ 250,000 records/s")
        for rival in rivals:
            ratio = middle["JSON"] / middle[rival.title]
            text = f"{middle[rival.title]:,.0f} records/s; Triptych (JSON) has {ratio:.2f} ×"
            work = f"the same records, pipelined by 1,000: {rival.title}"
            self.add(work, text, "Triptych ≥ 2 ×" if rival.program == "redis-server" else "")

    def _single(self, cluster: Cluster) -> None:
        self._one_by_one(cluster, "durable append, 1 record a request, 64 connections", small_appends)
        self._one_by_one(cluster, "the same by Python's http.client in 64 threads", ordinary_appends)

    def _one_by_one(self, cluster: Cluster, work: str, client: Callable[[Cluster, int, float], Appends]) -> None:
        measured: list[Appends] = []
        cpu: list[Cost] = []
        for _ in range(self.options.runs):
            before = spent(cluster)
            measured.append(client(cluster, 64, self.options.seconds))
            cpu.append(cost(cluster, before, len(measured[-1].times)))
        rate = statistics.median(appends.rate for appends in measured)
        text = f"{rate:,.0f}/s; p99 {statistics.median(p99(appends.times) for appends in measured):.1f} ms; "
        text += cost_text(cpu, 0, "request")
        if refused := sum(appends.refused for appends in measured):
            text += f"; {refused} refused with 503"
        self.add(work, text, "≥ 5,000/s, p99 ≤ 25 ms" if client is small_appends else "")

    def _scan(self, cluster: Cluster) -> None:
        load.fill(cluster, lambda i: b"long", range(load.SCAN_RECORDS))
        scans = [load.long_scan(cluster) for _ in range(2 * self.options.runs + 1)]
        text = f"{statistics.median(s[0] for s in scans):,.0f} records/s; "
        text += f"first byte {statistics.median(s[1] for s in scans):.1f} ms"
        self.add("scan of one key with 100,000 records, protobuf", text, "≥ 500,000 records/s, first byte ≤ 10 ms")

    def _follow(self, cluster: Cluster) -> None:
        tails, middles = [], []
        for _ in range(self.options.runs):
            times = asyncio.run(load.deliveries(cluster))
            tails.append(p99(times))
            middles.append(statistics.median(times))
        text = f"{statistics.median(middles):.1f} ms median, {statistics.median(tails):.1f} ms p99"
        self.add("append to delivery, 1,000 followers on different keys", text, "p99 ≤ 50 ms")

    def _sustained(self, cluster: Cluster) -> None:
        """Appends at full speed for so long that the stores merge files several times."""
        requests = append_requests("JSON")
        rates: list[float] = []
        cpu: list[Cost] = []
        for _ in range(SUSTAINED_STEPS):
            before = spent(cluster)
            rate, latencies = load.append_rate(cluster, requests, load.CONNECTIONS, SUSTAINED_STEP_S)
            rates.append(rate * RECORDS_A_REQUEST)
            cpu.append(cost(cluster, before, len(latencies) * RECORDS_A_REQUEST))
        steps = ", ".join(f"{rate:,.0f}" for rate in rates)
        text = f"{statistics.mean(rates):,.0f} records/s; in each {SUSTAINED_STEP_S:g} s {steps}; "
        text += cost_text(cpu, 2, "record")
        self.add(f"durable append of JSON for {SUSTAINED_STEPS * SUSTAINED_STEP_S:g} s, from an empty store on", text)

    def _keys(self, cluster: Cluster) -> None:
        keys = self.options.keys
        started = time.perf_counter()
        load.fill(cluster, lambda i: b"many-%07d" % (i % keys), range(RECORDS_EACH * keys))
        filled = RECORDS_EACH * keys / (time.perf_counter() - started)
        time.sleep(BREATH_S)
        times = [t for _ in range(self.options.runs) for t in load.polls(cluster, keys, RECORDS_EACH)]
        text = f"{statistics.median(times):.2f} ms median, {p99(times):.2f} ms p99 (written at {filled:,.0f} records/s)"
        work = f"{keys:,} keys with {RECORDS_EACH} records each: poll of one"
        self.add(work, text, "≤ 3 ms median")

    def _memory(self, cluster: Cluster) -> None:
        total = self.options.records
        step = total // MEMORY_STEPS
        start = load.anonymous_mb(cluster)
        after: list[load.AnonymousMemory] = []
        for at in range(MEMORY_STEPS):
            numbers = itertools.islice(itertools.count(at * step), step)
            load.fill(cluster, lambda i: b"key-%06d" % (i % load.KEYS), numbers)
            time.sleep(MEMORY_BREATH_S)
            after.append(load.anonymous_mb(cluster))
        steps = ", ".join(f"{memory.total:,.0f}" for memory in after)
        parts = (after[-1].rows, after[-1].log, after[-1].unattributed)
        owners = "stores {:,.0f}, records in memory {:,.0f}, allocators {:,.0f}".format(*parts)
        text = f"{start.total:,.0f} MB empty; {steps} MB after each tenth; at the end {owners}"
        self.add(f"anonymous memory of all processes while {total:,} records come", text, "flat")


def report(bench: Bench) -> str:
    table = "\n".join(f"| {row.work} | {row.measured} | {row.target} |" for row in bench.rows)
    options = bench.options
    return f"""# Benchmark: the log

This page compares the speed of the log with Redis Streams and NATS JetStream.

`make bench-log`, 100-byte values over 1,000 keys, the usual number of shards, over loopback; medians of
{options.runs} runs of {options.seconds:g} s. Measured on {time.strftime("%Y-%m-%d")}, {os.cpu_count()} cores
({platform.machine()}), which the load generator shares; load average of the machine {bench.load_before:.1f} at the
start, {os.getloadavg()[0]:.1f} at the end. Command: `{" ".join(["python -m loadtest.bench.log", *sys.argv[1:]])}`.

| work | measured | target |
|---|---|---|
{table}

The competitors are measured between the runs of the first rows, so that other work on the machine affects all of them
equally. On a machine that is not idle, only ratios within one table are meaningful. The load generator shares the
cores, so a rate is that of server and client together; records or requests a second of the server's CPU are its own.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="measure these parts")
    parser.add_argument("--runs", type=int, default=3, help="of which the median counts")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each append measurement")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of the poll, with 10 records each")
    parser.add_argument("--records", type=int, default=10_000_000, help="records of the part `memory`")
    parser.add_argument("--directory", type=Path, help="where the data goes; default: that for temporary files")
    parser.add_argument("--output", type=Path, help=f"of the report; default: {REPORT.name}, when all is measured")
    bench = Bench(parser.parse_args())
    bench.run()
    output = bench.options.output or (None if bench.options.only else REPORT)
    if output is not None:
        output.write_text(report(bench))


if __name__ == "__main__":
    main()
