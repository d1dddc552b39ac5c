"""`python -m loadtest.bench.metrics`: the servers in turn under the same load, one table, docs/benchmarks/metrics.md.

Every server gets the same encoded bytes over loopback, starts with an empty directory and is alone on the machine while
it is measured. A write counts as done when it is answered: Triptych answers when the samples are on the disk (fsync),
the other two when they are in memory or the page cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations

from loadtest.bench.metrics import measuring, report, scrapes
from loadtest.bench.metrics.answers import Answer, difference
from loadtest.bench.metrics.measuring import SAME_EVERYWHERE, Figures
from loadtest.bench.metrics.payloads import STEP_MS, Workload, requests
from loadtest.bench.metrics.servers import SERVERS, Prometheus, Server, VictoriaMetrics

PARTS = ("ingest", "query", "disk", "restart", "scrapes", "many")
CONNECTIONS = 4
EQUAL = 1e-6
WINDOW_MS = 7_200_000
LONG_AGO_MS = 2 * WINDOW_MS
"""The scrapes are of a window that is past, and lie within it."""
BEHIND_NOW_MS = 120_000
"""The newest sample is this old: VictoriaMetrics does not show the last 30 s."""


class Bench:
    """What is measured, of which servers, and what came out."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.parts: set[str] = set(options.only or PARTS)
        self.kinds = [kind for kind in SERVERS if kind.name.lower() not in options.without and kind.installed()]
        self.quick: bool = options.quick
        self.load = os.getloadavg()[0]
        self.runs: int = options.runs or (1 if self.quick else 3)
        self.times = 3 if self.quick else 7
        series, samples, many = (10_000, 60, 100_000) if self.quick else (10_000, 240, 1_000_000)
        end_ms = (int(time.time() * 1000) - BEHIND_NOW_MS) // STEP_MS * STEP_MS
        self.work = Workload("m", series, samples, end_ms - (samples - 1) * STEP_MS)
        self.many = Workload("many", many, 3, end_ms - 2 * STEP_MS)
        self.measured: dict[str, dict[str, list[float]]] = {kind.name: defaultdict(list) for kind in self.kinds}
        self.differences: dict[tuple[str, str, str], float] = {}

    def run(self) -> None:
        if self.parts - {"many", "scrapes"}:
            streams = requests(self.work, CONNECTIONS)
            for number in range(self.runs):
                answers: dict[str, dict[str, Answer]] = {}
                for kind in self.kinds:
                    say(f"run {number + 1} of {self.runs}: {kind.name}")
                    self._with(kind, partial(self._small, streams=streams, answers=answers))
                self._compare(answers)
        if "scrapes" in self.parts:
            self._scrapes(scrapes.load())
        if "many" in self.parts:
            streams = requests(self.many, CONNECTIONS)
            for kind in self.kinds:
                say(f"{self.many.series:,} new series: {kind.name}")
                self._with(kind, lambda server: self._many(server, streams))

    def _with(self, kind: type[Server], work: Callable[[Server], None]) -> None:
        server = kind()
        try:
            server.start()
            server.wait_quiet()
            work(server)
        finally:
            server.stop()
            server.remove()

    def _keep(self, server: Server, figures: Figures) -> None:
        for row, figure in figures.items():
            self.measured[server.name][row].append(figure)
        say("  " + ", ".join(f"{row} {figure:.4g}" for row, figure in figures.items()))

    def _small(self, server: Server, streams: Sequence[Sequence[bytes]], answers: dict[str, dict[str, Answer]]) -> None:
        written = measuring.ingest(server, self.work, streams, "write")
        if "ingest" in self.parts:
            self._keep(server, written | measuring.memory(server, "write"))
        if "query" in self.parts:
            figures, answers[server.name] = measuring.queries(server, self.work, self.times)
            self._keep(server, figures | measuring.doubling(server, self.work, self.times))
        if "disk" in self.parts:
            self._keep(server, measuring.disk(server, self.work))
        if "restart" in self.parts:
            self._keep(server, measuring.restart(server, self.work, "restart"))

    def _scrapes(self, recording: scrapes.Recording) -> None:
        start_ms = (int(time.time() * 1000) - LONG_AGO_MS) // WINDOW_MS * WINDOW_MS + WINDOW_MS // 4

        def measure(server: Server) -> None:
            self._keep(server, measuring.scraped(server, recording, start_ms))

        for kind in self.kinds:
            if kind is not Prometheus:  # it has no way to compact on demand
                say(f"an hour of scrapes, {recording.samples:,} samples: {kind.name}")
                self._with(kind, measure)

    def _many(self, server: Server, streams: Sequence[Sequence[bytes]]) -> None:
        self._keep(server, measuring.ingest(server, self.many, streams, "many"))
        self._keep(server, measuring.memory(server, "many"))
        self._keep(server, measuring.restart(server, self.many, "many restart"))

    def _compare(self, answers: dict[str, dict[str, Answer]]) -> None:
        for one, other in combinations(answers, 2):
            for row in answers[one]:
                apart = difference(answers[one][row], answers[other][row])
                self.differences[row, one, other] = apart
                comparable = row in SAME_EVERYWHERE or VictoriaMetrics.name not in (one, other)
                if comparable and apart > EQUAL:
                    raise RuntimeError(f"{one} and {other} differ by {apart:.2g} in {row!r}: nothing here compares")

    def report(self, command: str) -> str:
        sizes = {
            "series": f"{self.work.series:,}",
            "samples": str(self.work.samples),
            "many": f"{self.many.series:,}",
        }
        equal = [apart for (row, *_), apart in self.differences.items() if row in SAME_EVERYWHERE]
        lines = [
            "## Metrics\n\n",
            f"`{command}`, {report.facts(self.kinds, self.load)}\n",
            report.table(self.measured, sizes),
            "\n" + NOTES.format(runs=self.runs, times=self.times),
        ]
        if equal:
            lines.append(f"- Largest relative difference between answers that must be equal: {max(equal):.1g}.\n")
        return "".join(lines)


NOTES = """\
- Figures are medians of {runs} runs, each with an empty directory (new series: one run). Queries are medians of {times}
  repetitions in each run.
- A request carries 2,000 samples, one for each of 2,000 series, in protobuf and snappy.
- Triptych acknowledges a write when it is on the disk (fsync). Prometheus and VictoriaMetrics acknowledge it when it is
  in memory or the page cache, where it does not survive a power loss.
- The load generator sends requests that were encoded beforehand, from threads that wait for their sockets. It uses the
  same part of the two cores for all servers.
- Caches of query results are off (VictoriaMetrics: `-search.disableCache`, `nocache=1`).
- Queries are timed after all samples have appeared in answers. The answers are compared to 1e-6: `sum(m)` and the
  single series between all servers, the others between Triptych and Prometheus. VictoriaMetrics's `rate` is another
  function by design. Evaluation times lie between samples, because Prometheus 2 counts a sample on the left edge of a
  window.
"""


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.metrics", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part only; may be repeated")
    parser.add_argument("--without", action="append", default=[], help="leave a server out, such as prometheus")
    parser.add_argument("--runs", type=int, help="runs of each server (default 3)")
    parser.add_argument("--quick", action="store_true", help="small loads, one run: two minutes")
    options = parser.parse_args()
    options.without = [name.lower() for name in options.without]
    bench = Bench(options)
    bench.run()
    text = bench.report(" ".join(["python -m loadtest.bench.metrics", *sys.argv[1:]]))
    sys.stdout.write(text)
    if not (options.only or options.without or options.quick):
        report.write_document(text)


if __name__ == "__main__":
    main()
