"""Vectors: Triptych over HTTP beside usearch and hnswlib in process and Chroma's server, on the same data.

    python -m loadtest.bench.vector [--seconds 3] [--rounds 5] [--quick] [--write docs/benchmarks/vectors.md]

The data is seeded, recall@10 is against brute force. A cluster of 4 shards in 2 workers is started in a temporary
directory; the load generator runs on the same cores. What is compared is measured in turns, some rounds of all, and
the medians are compared: a machine that is faster for a minute is so for all.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from loadtest.bench import chroma, vector_service
from loadtest.bench.vector_data import Data, make
from loadtest.bench.vector_rivals import USEARCH_DEFAULT, Hnswlib, Usearch
from loadtest.bench.vector_service import Service

COMMAND = "python -m loadtest.bench.vector"
RECALL_MIN = 0.95
PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "vectors.md"
WARM_UP_S = 1.0


def line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Row:
    work: str
    target: str
    measured: str
    met: str


def _medians(rounds: int, measures: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The median of each figure over so many rounds."""
    found = [measures() for _ in range(rounds)]
    return {name: median(figures[name] for figures in found) for name in found[0]}


def _alike(own: float) -> float:
    """The recall at which libraries are compared with a service of recall `own`: not below it, but for chance."""
    return max(RECALL_MIN, own - 0.002)


@dataclass(slots=True)
class Compared:
    """All that is measured of one set of data, ready to search. `hnswlib` and `chroma` are None where not installed."""

    own: Service
    usearch: Usearch
    hnswlib: Hnswlib | None
    chroma: chroma.Server | None

    def rates(self, seconds: float) -> dict[str, float]:
        """Searches a second, of each in turn."""
        found = {**self.own.searches(seconds), "batch": self.own.batches(seconds)}
        found["usearch"], found["usearch batch"] = self.usearch.one(), self.usearch.batch()
        found["usearch least"] = self.usearch.one(self.usearch.least)
        if self.hnswlib is not None:
            found["hnswlib"] = self.hnswlib.one()
        if self.chroma is not None:
            found["chroma"] = self.chroma.searches(seconds)
        return found


def _hnswlib(data: Data, wanted: float) -> Hnswlib | None:
    try:
        return Hnswlib(data, wanted)
    except ImportError:
        return None


def rows(of: Compared, rates: dict[str, float], delays: dict[str, float], restart: float) -> list[Row]:
    """The table of one data set."""

    def met(*held: bool) -> str:
        return "yes" if all(held) else "no"

    own, usearch, hnswlib, other = of.own, of.usearch, of.hnswlib, of.chroma
    one, batch = rates["search"] / rates["usearch"], rates["batch"] / rates["usearch batch"]
    least = rates["search"] / rates["usearch least"]
    indexed, p99 = own.indexed / usearch.add, delays["p99_busy"] / delays["p99_idle"]
    searched = (
        f"{rates['search']:,.0f}/s, recall {own.recall:.3f}; usearch {rates['usearch']:,.0f}/s, recall "
        f"{usearch.recall:.3f} ({one:.2f} ×), with the fewest candidates that reach the service's recall "
        f"{rates['usearch least']:,.0f}/s ({least:.2f} ×)"
    )
    added = f"{own.indexed:.1f} s; usearch {usearch.add:.1f} s ({indexed:.2f} ×)"
    if hnswlib is not None:
        searched += f"; hnswlib {rates['hnswlib']:,.0f}/s, recall {hnswlib.recall:.3f}"
        added += f"; hnswlib {hnswlib.add:.1f} s"
    upserts, times, upsert_times = f"{own.upsert:,.0f}/s", 7.0, 3.0
    if other is not None:
        times, upsert_times = rates["search"] / rates["chroma"], own.upsert / other.upsert
        searched += f"; Chroma {rates['chroma']:,.0f}/s, recall {other.recall:.3f} ({times:.1f} ×)"
        upserts += f"; Chroma {other.upsert:,.0f}/s ({upsert_times:.1f} ×)"
    else:
        searched += "; Chroma not installed"
    return [
        Row(
            "single searches, k=10, 8 connections",
            "recall ≥ 0.95, ≥ 0.88 × usearch with the fewest candidates on one core, ≥ 7 × Chroma",
            searched,
            met(own.recall >= RECALL_MIN, least >= 0.88, times >= 7),
        ),
        Row(
            "batch search of 100",
            "≥ 0.7 × usearch, same cores",
            f"{rates['batch']:,.0f}/s; usearch {rates['usearch batch']:,.0f}/s ({batch:.2f} ×)",
            met(batch >= 0.7),
        ),
        Row(
            "upserts, binary, 1,000 a request, durable",
            "≥ 40,000/s at 128, ≥ 3 × Chroma",
            upserts,
            met(own.upsert >= 40_000, upsert_times >= 3),
        ),
        Row("until all are indexed", "≤ 0.6 × usearch's add, same cores", added, met(indexed <= 0.6)),
        Row("restart until searchable", "≤ 3 s", f"{restart:.2f} s", met(restart <= 3)),
        Row(
            "p99 of a search beside 5,000 upserts/s",
            "≤ 2.5 × idle",
            f"{delays['p99_busy']:.1f} ms at {delays['upserts']:,.0f} upserts/s; idle {delays['p99_idle']:.1f} ms "
            f"({p99:.1f} ×); p50 {delays['p50_busy']:.1f} and {delays['p50_idle']:.1f} ms",
            met(p99 <= 2.5),
        ),
    ]


def section(data: Data, seconds: float, rounds: int) -> str:
    line(data.name)
    with ExitStack() as stack:
        own = stack.enter_context(vector_service.running(data))
        wanted = _alike(own.recall)
        other = stack.enter_context(chroma.running(data)) if chroma.installed() else None
        compared = Compared(own, Usearch(data, wanted), _hnswlib(data, wanted), other)
        compared.rates(WARM_UP_S)
        rates = _medians(rounds, lambda: compared.rates(seconds))
        delays = _medians(rounds, lambda: own.alone_and_beside_upserts(seconds))
        restart = median(own.restart() for _ in range(rounds))
    table = rows(compared, rates, delays, restart)
    text = [f"## {data.name}", "", "| work | target | measured | met |", "|---|---|---|---|"]
    text += [f"| {row.work} | {row.target} | {row.measured} | {row.met} |" for row in table]
    text += [
        "",
        f"Expansion: {own.expansion} in each of 2 workers, as they measured it; usearch in process {USEARCH_DEFAULT}, "
        f"its default, and {compared.usearch.least}, the lowest with which it reaches the service's recall. CPU "
        f"time of a single search: coordinator {rates['coordinator_us']:,.0f} µs, workers {rates['workers_us']:,.0f} "
        f"µs together. {own.bytes:,.0f} bytes of memory per vector.",
        "",
    ]
    for entry in text:
        line(entry)
    return "\n".join(text)


def unstructured(data: Data, seconds: float, rounds: int) -> str:
    line(data.name)
    with vector_service.running(data) as own:
        usearch = Usearch(data, _alike(own.recall))
        rate = median(own.searches(seconds)["search"] for _ in range(rounds))
        text = (
            f"## {data.name}\n\nIn data without structure all distances are about equal, and a graph needs far more "
            f"candidates. By default (expansion {own.expansion} in each worker, as they measured it): {rate:,.0f} "
            f"searches/s by 8 connections, recall {own.recall:.3f}; usearch in process at expansion {usearch.least} "
            f"{usearch.one(usearch.least):,.0f}/s on one core, recall {usearch.least_recall:.3f}; all indexed after "
            f"{own.indexed:.0f} s, usearch {usearch.add:.0f} s.\n"
        )
    line(text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="5,000 × 32 only, nothing written: to try the benchmark")
    parser.add_argument("--write", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.quick:
        section(make(5000, 32), options.seconds, options.rounds)
        return
    head = (
        "# Benchmark: vectors\n\n"
        "This page compares the speed of writing and searching vectors with usearch, hnswlib and Chroma.\n\n"
        f"`{COMMAND}`, {datetime.date.today().isoformat()}, {os.cpu_count()} cores shared with the load generator "
        f"(load average at the start {os.getloadavg()[0]:.1f}). A cluster of 4 shards in 2 workers, over HTTP; recall "
        "is of the 10 nearest, against brute force. Rates and latencies are medians of "
        f"{options.rounds} rounds of {options.seconds:g} s. In each round, all systems were measured one after the "
        "other. Upserts and indexing were measured once. The column `met` refers to this run.\n"
    )
    sections = [head]
    for count, dimension in ((100_000, 128), (50_000, 384)):
        sections.append(section(make(count, dimension), options.seconds, options.rounds))
        options.write.write_text("\n".join(sections))
    sections.append(unstructured(make(100_000, 128, structured=False), options.seconds, options.rounds))
    options.write.write_text("\n".join(sections))


if __name__ == "__main__":
    main()
