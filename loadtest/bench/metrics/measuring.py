"""Measures one server. Each function returns row name → figure, in the units of `report.ROWS`."""

from __future__ import annotations

import http.client
import statistics
import time
import urllib.parse
from collections.abc import Sequence

import orjson

from loadtest.bench.metrics.answers import Answer, parsed
from loadtest.bench.metrics.payloads import STEP_MS, Workload
from loadtest.bench.metrics.scrapes import Recording
from loadtest.bench.metrics.sending import send
from loadtest.bench.metrics.servers import Server

STEPS = 200
OFF_SAMPLES_MS = 7_000
"""Evaluations lie between samples: Prometheus 2 counts a sample on the left edge of a window, Prometheus 3 does not."""
VISIBLE_WITHIN_S = 120.0

RANGE_QUERIES = {
    "sum by (job) (rate(m[5m]))": "range sum rate",
    "sum(m)": "range sum",
    "quantile by (job) (0.9, rate(m[5m]))": "range quantile",
    "rate(m[5m])": "range rate all",
}
INSTANT_QUERIES = {"sum(m)": "instant sum", 'm{pod="server-0000042-x2k4q"}': "instant one"}
SAME_EVERYWHERE = ("range sum", "instant sum", "instant one")
"""VictoriaMetrics's rate() is another function (it does not extrapolate and looks before the window), so that only
these answers can be equal to the last digits there."""

Figures = dict[str, float]


def ingest(server: Server, work: Workload, streams: Sequence[Sequence[bytes]], prefix: str) -> Figures:
    """Send everything, then wait until a query sees all of it."""
    before = server.cpu_s()
    took, latencies = send(server.port, streams)
    cpu = server.cpu_s() - before
    wait_visible(server, work)
    return {
        f"{prefix} rate": work.total / took,
        f"{prefix} cpu": cpu / work.total * 1e6,
        f"{prefix} p50": statistics.median(latencies) * 1e3,
        f"{prefix} p99": statistics.quantiles(latencies, n=100)[98] * 1e3,
    }


def wait_visible(server: Server, work: Workload) -> None:
    """Until every series has its last sample in answers, and every series all of them."""
    window_ms = work.samples * STEP_MS
    if work.series <= 100_000:
        text, wanted = f"sum(count_over_time({work.metric}[{window_ms}ms]))", work.total
    else:
        text, wanted = f"count({work.metric})", work.series
    path = instant_path(server, text, work.end_ms + OFF_SAMPLES_MS)
    give_up = time.monotonic() + VISIBLE_WITHIN_S
    seen = 0.0
    while seen != wanted:
        if time.monotonic() > give_up:
            raise RuntimeError(f"{server.name} shows {seen:g} of {wanted} samples or series ({text})")
        result = server.json(path)["data"]["result"]
        seen = float(result[0]["value"][1]) if result else 0.0


def instant_path(server: Server, text: str, time_ms: int) -> str:
    fields = {"query": text, "time": f"{time_ms / 1000:.3f}"}
    return "/api/v1/query?" + urllib.parse.urlencode(fields) + server.extra


def range_path(server: Server, text: str, end_ms: int, steps: int = STEPS) -> str:
    fields = {
        "query": text,
        "start": f"{(end_ms - (steps - 1) * STEP_MS) / 1000:.3f}",
        "end": f"{end_ms / 1000:.3f}",
        "step": f"{STEP_MS // 1000}s",
    }
    return "/api/v1/query_range?" + urllib.parse.urlencode(fields) + server.extra


def queries(server: Server, work: Workload, times: int) -> tuple[Figures, dict[str, Answer]]:
    """Milliseconds until the answer's last byte, one connection, medians of `times` after one that does not count; and
    the server's CPU time, which other work on the machine disturbs less."""
    end_ms = work.end_ms + OFF_SAMPLES_MS
    paths = {row: range_path(server, text, end_ms) for text, row in RANGE_QUERIES.items()}
    paths |= {row: instant_path(server, text, end_ms) for text, row in INSTANT_QUERIES.items()}
    figures: Figures = {}
    answers: dict[str, Answer] = {}
    for row, path in paths.items():
        repeated = times * 20 if row == "instant one" else times
        before = server.cpu_s()
        figures[row], body = timed(server, path, repeated)
        figures[f"{row} cpu"] = (server.cpu_s() - before) / (repeated + 1) * 1e3
        answers[row] = parsed(orjson.loads(body))
    return figures, answers


def doubling(server: Server, work: Workload, times: int) -> Figures:
    """How many times as long twice the series, and twice the range, take: the quickest of each, asked by turns."""
    end_ms = work.end_ms + OFF_SAMPLES_MS
    half = 'sum by (job) (rate(m{half="0"}[5m]))'
    whole = 'sum by (job) (rate(m{half=~"0|1"}[5m]))'
    paths = [
        range_path(server, half, end_ms),
        range_path(server, whole, end_ms, STEPS // 2),
        range_path(server, whole, end_ms),
    ]
    rounds = [[timed(server, path, 1)[0] for path in paths] for _ in range(2 * times)]
    series_half, range_half, both = (min(took) for took in zip(*rounds, strict=True))
    return {"twice series": both / series_half, "twice range": both / range_half}


def timed(server: Server, path: str, times: int) -> tuple[float, bytes]:
    """(median milliseconds, the last answer's body)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=VISIBLE_WITHIN_S)
    took = []
    body = b""
    for _ in range(times + 1):
        started = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        took.append((time.perf_counter() - started) * 1e3)
        if answer.status != 200:
            raise RuntimeError(f"{server.name}: {path} gave {answer.status}: {body[:300]!r}")
    connection.close()
    return statistics.median(took[1:]), body


def memory(server: Server, prefix: str) -> Figures:
    resident, proportional = server.memory_bytes()
    return {f"{prefix} rss": resident / 1e6, f"{prefix} pss": proportional / 1e6}


def scraped(server: Server, recording: Recording, start_ms: int) -> Figures:
    """Write an hour of scrapes of long ago, then see what a sample costs where it is kept."""
    send(server.port, [list(recording.bodies(start_ms))])
    server.seal()
    return {"scraped": server.sealed_bytes() / recording.samples, "scraped all": server.disk_bytes() / 1e6}


def disk(server: Server, work: Workload) -> Figures:
    server.settle()
    return {"disk": server.disk_bytes() / work.total}


def restart(server: Server, work: Workload, row: str) -> Figures:
    """Seconds from an orderly stop until all data is in answers again."""
    server.stop()
    started = time.monotonic()
    server.start()
    wait_visible(server, work)
    return {row: time.monotonic() - started}
