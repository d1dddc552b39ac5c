"""Prints the figures as one table, and writes it to docs/benchmarks/metrics.md."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from loadtest.bench.metrics.servers import Prometheus, Server, Triptych, VictoriaMetrics
from shared.process import interpreter

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "benchmarks" / "metrics.md"
BEGIN = "<!-- metrics: written by python -m loadtest.bench.metrics -->"
END = "<!-- end of metrics -->"


@dataclass(frozen=True, slots=True)
class Row:
    """`more` says that higher figures are better; `targets` are the bounds of the ratios to VictoriaMetrics and
    Prometheus, `most` an absolute one."""

    key: str
    text: str
    unit: str
    more: bool = False
    to_victoria: float | None = None
    to_prometheus: float | None = None
    most: float | None = None


ROWS = (
    Row("write rate", "remote write, {series} series × {samples}, 4 connections", "M samples/s", True, 1.0, 3.0),
    Row("write cpu", "… CPU time of the server", "µs/sample"),
    Row("write p50", "… one request, median", "ms"),
    Row("write p99", "… one request, p99", "ms"),
    Row("write rss", "… memory after it, resident", "MB"),
    Row("disk", "… disk", "bytes/sample"),
    Row("restart", "… stop and start until all of it is in answers", "s"),
    Row("range sum rate", "range, 200 steps: `sum by (job) (rate(m[5m]))`", "ms", False, 0.6, 0.2),
    Row("range sum rate cpu", "… CPU time of the server", "ms"),
    Row("range sum", "range: `sum(m)`", "ms", False, 0.6, 0.2),
    Row("range sum cpu", "… CPU time of the server", "ms"),
    Row("range quantile", "range: `quantile by (job) (0.9, rate(m[5m]))`", "ms", False, 0.6, 0.2),
    Row("range quantile cpu", "… CPU time of the server", "ms"),
    Row("range rate all", "range: `rate(m[5m])`, all of its JSON", "ms", False, 0.7),
    Row("range rate all cpu", "… CPU time of the server", "ms"),
    Row("instant sum", "instant: `sum(m)`", "ms", False, 0.4),
    Row("instant sum cpu", "… CPU time of the server", "ms"),
    Row("instant one", "instant: one series", "ms", most=2.0),
    Row("instant one cpu", "… CPU time of the server", "ms"),
    Row("twice series", "`sum by (job) (rate(…))`: twice the series", "times", most=2.1),
    Row("twice range", "`sum by (job) (rate(…))`: twice the range", "times", most=2.1),
    Row("scraped", "an hour of node_exporter, scraped each second: sealed samples", "bytes/sample", to_victoria=1.0),
    Row("scraped all", "… disk, everything", "MB"),
    Row("many rate", "remote write, {many} new series × 3", "M samples/s", True, 1.5),
    Row("many cpu", "… CPU time of the server", "µs/sample"),
    Row("many p99", "… one request, p99", "ms"),
    Row("many rss", "… memory after it, resident, all processes", "MB", most=1200.0),
    Row("many pss", "… the same, shared pages counted once", "MB"),
    Row("many restart", "… stop and start until all of it is in answers", "s", most=15.0),
)  # fmt: skip

Measured = Mapping[str, Mapping[str, Sequence[float]]]
"""Server → row → its figures, one a run."""


def table(measured: Measured, sizes: Mapping[str, str]) -> str:
    """GitHub Markdown: medians, ratios of Triptych to the others, and what was aimed at."""
    servers = [kind.name for kind in (Triptych, VictoriaMetrics, Prometheus) if kind.name in measured]
    rivals = [name for name in servers if name != Triptych.name]
    head = ["work", "unit", *servers, *(f"to {name}" for name in rivals), "target"]
    lines = [_line(head), _line(["---"] * 2 + ["---:"] * (len(head) - 3) + ["---"])]
    for row in ROWS:
        medians = {name: statistics.median(measured[name][row.key]) for name in servers if row.key in measured[name]}
        if medians:
            own = medians.get(Triptych.name)
            ratios = [f"{own / medians[name]:.2f} ×" if own and medians.get(name) else "" for name in rivals]
            scale = 1e-6 if row.unit.startswith("M ") else 1.0
            shown = [f"{medians[name] * scale:.3g}" if name in medians else "" for name in servers]
            lines.append(_line([row.text.format(**sizes), row.unit, *shown, *ratios, _target(row, medians)]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _target(row: Row, medians: Mapping[str, float]) -> str:
    """The bounds, each with whether it was kept, where that can be told."""
    own = medians.get(Triptych.name)
    sign = "≥" if row.more else "≤"
    parts = []
    for bound, rival in ((row.to_victoria, VictoriaMetrics.name), (row.to_prometheus, Prometheus.name)):
        if bound is not None:
            kept = ""
            if own and medians.get(rival):
                ratio = own / medians[rival]
                kept = ", met" if (ratio >= bound if row.more else ratio <= bound) else ", missed"
            parts.append(f"{sign} {bound:g} × {rival}{kept}")
    if row.most is not None:
        parts.append(f"≤ {row.most:g} {row.unit}" + ("" if own is None else ", met" if own <= row.most else ", missed"))
    return "; ".join(parts)


def facts(kinds: Sequence[type[Server]], load: float) -> str:
    """The machine (cores, memory, how busy it was before), the date and the versions."""
    memory = psutil.virtual_memory().total / (1 << 30)
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores shared with the load generator, {memory:.0f} GiB of "
        f"memory, {python()}. Load average of the machine at the start: {load:.1f} (an idle "
        "machine has less than 0.5; other work affects CPU times less than the other figures).",
        "",
        *(f"- {kind.name}: {kind.version()}" for kind in kinds),
    ]
    return "\n".join(lines) + "\n"


def python() -> str:
    return f"Python {platform.python_version()}" + (
        "" if interpreter.is_optimised() else ", compiled without optimisations"
    )


def write_document(text: str) -> None:
    """Put the section into docs/benchmarks/metrics.md, in the place of the last one; the rest of the page stays."""
    page = DOCUMENT.read_text() if DOCUMENT.exists() else "# Benchmark: metrics\n\n"
    section = f"{BEGIN}\n{text}{END}\n"
    before, found, after = page.partition(BEGIN)
    rest = after.partition(END + "\n")[2]
    DOCUMENT.write_text(before + section + rest if found else page.rstrip("\n") + "\n\n" + section)
