"""`make bench-history`: a day of 10,000 series beside VictoriaMetrics, one server after the other.

The day is sent over four connections, 60 samples of each of 500 series in a request. A minute later, memory and disk
usage are measured. Then the queries of a dashboard of the day are sent: medians of five runs after a warm-up, with the
mean CPU time of all six runs in brackets, which other work on the machine disturbs less; and ten queries at once.
Finally the server is restarted. Triptych has its default settings. With `--load ROUNDS`, only the rate of loading is
measured, of the servers in turn, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import snappy
from numpy.typing import NDArray

from loadtest.bench.metrics.measuring import OFF_SAMPLES_MS, timed
from loadtest.bench.metrics.payloads import JOBS, STEP_MS
from loadtest.bench.metrics.sending import send
from loadtest.bench.metrics.servers import Server, Triptych, VictoriaMetrics
from proto import remote_write_pb2

SERIES, HOURS = 10_000, 24
CONNECTIONS, RUN, REQUEST_SERIES = 4, 60, 500
SAMPLE_BYTES, VALUE_AT, TIME_AT, TIME_BYTES = 18, 3, 12, 6
"""Of a sample in a request: tag and length, tag and value, tag and time."""
HOST_SERIES = 100
PACE_MAX = 1000
REST_S = 60.0
TIMES = 5
AT_ONCE = 10
SAMPLING_S = 0.05

DAY = {
    "sum by (job) (rate(m[5m]))": "sum by (job) (rate(m[5m]))",
    "sum(m)": "sum(m)",
    "quantile by (job) (0.9, rate(m[5m]))": "quantile by (job) (0.9, rate(m[5m]))",
    "one host's rate(…[5m])": 'rate(m{instance="host-007"}[5m])',
}
STEPS_S = (300, 60)


def template(first: int) -> tuple[NDArray[np.uint8], int]:
    """(uint8[REQUEST_SERIES, size]: a `timeseries` field with RUN samples for each series; where these begin)."""
    rows = []
    for number in range(first, first + REQUEST_SERIES):
        request = remote_write_pb2.WriteRequest()
        series = request.timeseries.add()
        labels = {
            "__name__": "m",
            "cluster": "eu-west-1",
            "instance": f"host-{number // HOST_SERIES:03d}",
            "job": f"job-{number % JOBS}",
            "pod": f"server-{number:07d}-x2k4q",
            "zone": f"zone-{number % 3}",
        }
        for name, value in labels.items():
            series.labels.add(name=name, value=value)
        for _ in range(RUN):
            series.samples.add(value=1.0, timestamp=1 << (7 * TIME_BYTES - 1))
        rows.append(request.SerializeToString())
    matrix = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(REQUEST_SERIES, -1).copy()
    return matrix, matrix.shape[1] - RUN * SAMPLE_BYTES


def bodies(start_ms: int, runs: int, first: int, count: int, pace_max: int) -> Iterator[bytes]:
    """The requests of `count` series from `first` on, in the order of time.

    Each counter grows at each scrape by a Poisson random number, whose mean is from 1 to `pace_max` - 1.
    """
    random = np.random.default_rng(first)
    templates = [template(begin) for begin in range(first, first + count, REQUEST_SERIES)]
    pace = random.integers(1, pace_max, (count, 1))
    height = random.integers(0, 1_000_000, (count, 1)).astype(np.float64)
    for run in range(runs):
        times_ms = start_ms + STEP_MS * np.arange(run * RUN, (run + 1) * RUN)
        octets = (times_ms[:, None] >> 7 * np.arange(TIME_BYTES) & 0x7F).astype(np.uint8)
        octets[:, :-1] |= 0x80
        values = height + np.cumsum(random.poisson(pace, (count, RUN)), axis=1)
        height = values[:, -1:]
        for place, (matrix, samples_at) in enumerate(templates):
            samples = matrix[:, samples_at:].reshape(REQUEST_SERIES, RUN, SAMPLE_BYTES)
            own = np.ascontiguousarray(values[place * REQUEST_SERIES : (place + 1) * REQUEST_SERIES])
            samples[:, :, VALUE_AT : VALUE_AT + 8] = own.view(np.uint8).reshape(REQUEST_SERIES, RUN, 8)
            samples[:, :, TIME_AT : TIME_AT + TIME_BYTES] = octets
            matrix[:, samples_at:] = samples.reshape(REQUEST_SERIES, -1)
            yield snappy.compress(matrix.tobytes())


def path(server: Server, text: str, start_ms: int, end_ms: int, step_s: int) -> str:
    fields = {"query": text, "start": f"{start_ms / 1000:.3f}", "end": f"{end_ms / 1000:.3f}", "step": f"{step_s}s"}
    return "/api/v1/query_range?" + urllib.parse.urlencode(fields) + server.extra


def paths(server: Server, start_ms: int, end_ms: int) -> dict[str, str]:
    asked = {
        f"{name}, steps of {step_s} s": path(server, text, start_ms + OFF_SAMPLES_MS, end_ms, step_s)
        for name, text in DAY.items()
        for step_s in STEPS_S
    }
    hour_ms = start_ms + 4 * 3_600_000 + OFF_SAMPLES_MS
    asked["an old hour, sum by (job) (rate(m[5m]))"] = path(
        server, DAY["sum by (job) (rate(m[5m]))"], hour_ms, hour_ms + 3_600_000, 15
    )
    return asked


class Peak:
    """The most memory, pages that processes share counted once, that a server has in a `with` block."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.bytes = 0

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(SAMPLING_S):
            self.bytes = max(self.bytes, self._server.memory_bytes()[1])


def measured(server: Server, streams: list[list[bytes]], samples: int, start_ms: int, end_ms: int) -> dict[str, str]:
    figures: dict[str, str] = {}
    server.start()
    server.wait_quiet()
    took, _ = send(server.port, streams)
    figures["load, M samples/s"] = f"{samples / took / 1e6:.2f}"
    time.sleep(REST_S)
    resting = server.memory_bytes()[1]
    figures["memory a minute later, MB (PSS)"] = f"{resting / 1e6:.0f}"
    figures["disk then, bytes a sample"] = f"{server.disk_bytes() / samples:.2f}"
    asked = paths(server, start_ms, end_ms)
    for name, text in asked.items():
        worked_s = server.cpu_s()
        try:
            took_ms = timed(server, text, TIMES)[0]
            worked_ms = (server.cpu_s() - worked_s) / (TIMES + 1) * 1e3
            figures[f"{name}, ms"] = f"{took_ms:.0f} ({worked_ms:.0f})"
        except RuntimeError as error:
            figures[f"{name}, ms"] = str(error)[:200]
    before = server.memory_bytes()[1]
    with Peak(server) as peak, ThreadPoolExecutor(AT_ONCE) as pool:
        started = time.perf_counter()
        every = [list(asked.values())[i % len(asked)] for i in range(AT_ONCE)]
        statuses = [status for status, _ in pool.map(server.get, every)]
        figures["ten at once, s"] = f"{time.perf_counter() - started:.2f}"
    figures["memory of ten at once beyond before, MB"] = f"{max(0, peak.bytes - before) / 1e6:.0f}"
    figures["of which answered"] = str(sum(status == 200 for status in statuses))
    server.stop()
    figures["start, s"] = f"{server.start():.2f}"
    first, second = (_once(server, next(iter(asked.values()))) for _ in range(2))
    figures["first and second query after it, ms"] = f"{first:.0f}, {second:.0f}"
    return figures


def loads(streams: list[list[bytes]], samples: int, rounds: int) -> str:
    """The rates of loading the day, in M samples/s, of both servers in turn, each first in every other round."""
    rates: dict[type[Server], list[float]] = {VictoriaMetrics: [], Triptych: []}
    for number in range(rounds):
        for kind in list(rates)[:: -1 if number % 2 else 1]:
            server = kind()
            try:
                server.start()
                server.wait_quiet()
                rates[kind].append(samples / send(server.port, streams)[0] / 1e6)
            finally:
                server.stop()
                server.remove()
    lines = [f"{kind.name}: {', '.join(f'{rate:.2f}' for rate in own)} M samples/s" for kind, own in rates.items()]
    ratio = statistics.median(rates[Triptych]) / statistics.median(rates[VictoriaMetrics])
    return "\n".join([*lines, f"ratio of the medians: {ratio:.2f}\n"])


def _once(server: Server, asked: str) -> float:
    started = time.perf_counter()
    server.get(asked)
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--scale", type=float, default=1.0, help="a share of the 10,000 series")
    options.add_argument("--only", default="", help="part of a server's name")
    options.add_argument("--pace", type=int, default=PACE_MAX, help="each counter grows by less than this a scrape")
    options.add_argument("--load", type=int, metavar="ROUNDS", help="only load, both servers in turn")
    given = options.parse_args()
    per = max(1, round(given.scale * SERIES / CONNECTIONS / REQUEST_SERIES)) * REQUEST_SERIES
    runs = HOURS * 3_600_000 // STEP_MS // RUN
    samples = CONNECTIONS * per * runs * RUN
    end_ms = int(time.time() * 1000) // 60_000 * 60_000
    start_ms = end_ms - STEP_MS * (runs * RUN - 1)
    streams = [list(bodies(start_ms, runs, number * per, per, given.pace)) for number in range(CONNECTIONS)]
    if given.load:
        sys.stdout.write(loads(streams, samples, given.load))
        return
    tables = {}
    for kind in (VictoriaMetrics, Triptych):
        if kind.installed() and given.only in kind.name:
            server = kind()
            try:
                tables[f"{kind.name} ({kind.version()})"] = measured(server, streams, samples, start_ms, end_ms)
            finally:
                server.stop()
                server.remove()
    sys.stdout.write(f"{CONNECTIONS * per:,} series, {samples:,} samples\n\n| work | {' | '.join(tables)} |\n")
    sys.stdout.write("|---" * (len(tables) + 1) + "|\n")
    for name in next(iter(tables.values())):
        sys.stdout.write(f"| {name} | {' | '.join(table[name] for table in tables.values())} |\n")


if __name__ == "__main__":
    main()
