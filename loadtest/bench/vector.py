"""Vectors: Triptych over HTTP beside usearch and hnswlib in process and Chroma's server, on the same data.

    python -m loadtest.bench.vector [--seconds 5] [--quick] [--write docs/benchmarks-vector.md]

The data is seeded, recall@10 is against brute force. A cluster of 8 shards in 2 workers is started in a temporary
directory. The load generator runs on the same cores.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench import chroma, vector_rivals, vector_service
from loadtest.bench.vector_data import Data, K, make, recall

COMMAND = "python -m loadtest.bench.vector"
RECALL_LEAST = 0.95
PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks-vector.md"


def line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Row:
    work: str
    target: str
    measured: str
    met: str


def rival(data: Data, seconds: float) -> dict[str, float] | None:
    program = chroma.command()
    if program is None:
        return None
    return chroma.measure(program, data.vectors, data.queries, K, seconds, lambda found: recall(found, data.expected))


def rows(
    own: dict[str, float], usearch: dict[str, float], hnswlib: dict[str, float] | None, other: dict[str, float] | None
) -> list[Row]:
    """The issue's table. `own` is the service's."""

    def met(*held: bool) -> str:
        return "yes" if all(held) else "no"

    def beside(key: str) -> str:
        return f"; Chroma {other[key]:,.0f}/s ({own[key] / other[key]:.1f} ×)" if other else "; Chroma not installed"

    def times(key: str, least: float) -> bool:
        return other is None or own[key] >= least * other[key]

    extra = f"; hnswlib {hnswlib['one']:,.0f}/s, recall {hnswlib['recall']:.3f}" if hnswlib else ""
    one, batch = own["search"] / usearch["one"], own["batch"] / usearch["batch"]
    least = own["search"] / usearch["least one"]
    indexed, p99 = own["indexed"] / usearch["add"], own["p99_busy"] / own["p99_idle"]
    return [
        Row(
            "single searches, k=10, 8 connections",
            "recall ≥ 0.95, ≥ 0.35 × usearch on one core, ≥ 5 × Chroma",
            f"{own['search']:,.0f}/s, recall {own['recall']:.3f}; usearch {usearch['one']:,.0f}/s, recall "
            f"{usearch['recall']:.3f} ({one:.2f} ×), with as few candidates as have the service's recall "
            f"{usearch['least one']:,.0f}/s ({least:.2f} ×){extra}{beside('search')}",
            met(own["recall"] >= RECALL_LEAST, one >= 0.35, times("search", 5)),
        ),
        Row(
            "batch search of 100",
            "≥ 0.7 × usearch, same cores",
            f"{own['batch']:,.0f}/s; usearch {usearch['batch']:,.0f}/s ({batch:.2f} ×)",
            met(batch >= 0.7),
        ),
        Row(
            "upserts, binary, 1,000 a request, durable",
            "≥ 40,000/s at 128, ≥ 3 × Chroma",
            f"{own['upsert']:,.0f}/s{beside('upsert')}",
            met(own["upsert"] >= 40_000, times("upsert", 3)),
        ),
        Row(
            "until all are indexed",
            "≤ 1.3 × usearch's add, same cores",
            f"{own['indexed']:.1f} s; usearch {usearch['add']:.1f} s ({indexed:.2f} ×)"
            + (f"; hnswlib {hnswlib['add']:.1f} s" if hnswlib else ""),
            met(indexed <= 1.3),
        ),
        Row("restart until searchable", "≤ 3 s", f"{own['restart']:.2f} s", met(own["restart"] <= 3)),
        Row(
            "p99 of a search beside 5,000 upserts/s",
            "≤ 4 × idle",
            f"{own['p99_busy']:.1f} ms at {own['upserts_beside']:,.0f} upserts/s; idle {own['p99_idle']:.1f} ms "
            f"({p99:.1f} ×); p50 {own['p50_busy']:.1f} and {own['p50_idle']:.1f} ms",
            met(p99 <= 4),
        ),
    ]


def _alike(own: float) -> float:
    """The recall at which libraries are compared with a service of recall `own`: not below it, but for chance."""
    return max(RECALL_LEAST, own - 0.002)


def section(data: Data, seconds: float) -> str:
    line(data.name)
    own = vector_service.measure(data, seconds)
    wanted = _alike(own["recall"])
    usearch = vector_rivals.usearch(data, wanted)
    table = rows(own, usearch, vector_rivals.hnswlib(data, wanted), rival(data, seconds))
    text = [f"## {data.name}", "", "| work | target | measured | met |", "|---|---|---|---|"]
    text += [f"| {row.work} | {row.target} | {row.measured} | {row.met} |" for row in table]
    text += [
        "",
        f"Expansion {own['expansion']:.0f} in each of 2 workers (measured by them); usearch in process "
        f"{vector_rivals.USEARCH_DEFAULT}, its own, and {usearch['least']:.0f}, the least with which its recall is the "
        "service's. "
        f"Processor time of a single search: coordinator {own['coordinator_us']:,.0f} µs, workers "
        f"{own['workers_us']:,.0f} µs together. "
        f"{own['bytes']:,.0f} bytes of memory a vector.",
        "",
    ]
    for entry in text:
        line(entry)
    return "\n".join(text)


def unstructured(data: Data, seconds: float) -> str:
    line(data.name)
    own = vector_service.measure(data, seconds, searches_only=True)
    known = vector_rivals.usearch(data, _alike(own["recall"]))
    text = (
        f"## {data.name}\n\nWithout structure every point is about as far as any other, and a graph needs far more "
        f"candidates. By default (expansion {own['expansion']:.0f} in each worker, as measured by them): "
        f"{own['search']:,.0f} searches/s by 8 connections, recall {own['recall']:.3f}; usearch in process at "
        f"expansion {known['least']:.0f} {known['least one']:,.0f}/s on one core, recall {known['least recall']:.3f}; "
        f"all indexed after {own['indexed']:.0f} s, usearch {known['add']:.0f} s.\n"
    )
    line(text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--quick", action="store_true", help="5,000 × 32 only, nothing written: to try the benchmark")
    parser.add_argument("--write", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.quick:
        section(make(5000, 32), options.seconds)
        return
    head = (
        "# Benchmark: vectors\n\n"
        f"`{COMMAND}`, {datetime.date.today().isoformat()}, {os.cpu_count()} cores shared with the load generator "
        f"(load average at the start {os.getloadavg()[0]:.1f}). A cluster of 8 shards in 2 workers, over HTTP; recall "
        "is of the 10 nearest, against brute force; libraries in process in the same run, one after the other. "
        "What is met is said of this run.\n"
    )
    sections = [head]
    for count, dimension in ((100_000, 128), (50_000, 384)):
        sections.append(section(make(count, dimension), options.seconds))
        options.write.write_text("\n".join(sections))
    sections.append(unstructured(make(100_000, 128, structured=False), options.seconds))
    options.write.write_text("\n".join(sections))


if __name__ == "__main__":
    main()
