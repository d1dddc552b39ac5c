"""Whether ingest holds up queries: `python -m loadtest.bench.isolation`, or `make bench-isolation`; about a minute.

A dashboard asks 20 queries a second, at fixed times whether or not earlier ones were answered: first of an idle
cluster, then while 100,000 samples a second come in, and last while four connections send as fast as they can. The
targets: the second p99 is below 4 times the first, and the third median below 1.9 times the first.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from loadtest.bench.metrics.payloads import REQUEST_SERIES, STEP_MS, Workload, requests
from loadtest.bench.metrics.sending import send
from loadtest.bench.metrics.servers import Triptych

SERIES, HISTORY = 10_000, 40
SAMPLES_A_SECOND = 100_000
CONNECTIONS = 4
QUERIES_A_SECOND = 20
QUERY_THREADS = 32
PHASE_S = 10.0
WARM_S = 3.0
FULL_SPEED_ROUNDS, FULL_SPEED_WARM_S, FULL_SPEED_S = 1500, 0.5, 4.0
"""Samples of each series sent at full speed, and how long the dashboard asks meanwhile."""
TARGET, FULL_SPEED_TARGET = 4.0, 1.9
PANELS = (
    "sum by (job) (rate(m[5m]))",
    "sum(m)",
    'm{{pod="server-{number:07d}-x2k4q"}}',
    'rate(m{{instance="10.000.000.{instance:03d}:9100"}}[2m])',
    'max by (zone) (m{{job="job-{job}"}})',
)


class Dashboard:
    """Range queries of ten minutes, a panel after the other, with other series each time."""

    def __init__(self, port: int, end_ms: int) -> None:
        self._port = port
        self._end_s = end_ms / 1000

    def run(self, seconds: float) -> list[float]:
        """Seconds from the time each query was due to its answer."""
        started = time.perf_counter() + 0.05
        due = [started + i / QUERIES_A_SECOND for i in range(int(seconds * QUERIES_A_SECOND))]
        with ThreadPoolExecutor(QUERY_THREADS) as pool:
            waits = []
            for number, at in enumerate(due):
                time.sleep(max(0.0, at - time.perf_counter()))
                waits.append(pool.submit(self._ask, number, at))
            return [wait.result() for wait in waits]

    def _ask(self, number: int, due: float) -> float:
        panel = PANELS[number % len(PANELS)].format(number=number, instance=number % 256, job=number % 10)
        fields = {"query": panel, "start": self._end_s - 600, "end": self._end_s, "step": 15}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", "/api/v1/query_range?" + urllib.parse.urlencode(fields))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{panel} gave {answer.status}: {text[:300]!r}")
        return time.perf_counter() - due


class Feed:
    """Sends samples at SAMPLES_A_SECOND until stopped, over CONNECTIONS connections."""

    def __init__(self, port: int, streams: list[list[bytes]]) -> None:
        self._port = port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(stream,)) for stream in streams]
        self.sent = 0
        self.late_s = 0.0

    def start(self) -> None:
        self._started = time.perf_counter()
        for thread in self._threads:
            thread.start()

    def stop(self) -> float:
        """Samples a second that were acknowledged."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.sent / (time.perf_counter() - self._started)

    def _run(self, stream: list[bytes]) -> None:
        pause = REQUEST_SERIES * CONNECTIONS / SAMPLES_A_SECOND
        for number, body in enumerate(stream):
            if self._stop.wait(max(0.0, self._started + number * pause - time.perf_counter())):
                return
            send(self._port, [[body]])
            self.sent += REQUEST_SERIES
            self.late_s = max(self.late_s, time.perf_counter() - self._started - (number + 1) * pause)


def main() -> None:
    end_ms = (int(time.time() * 1000) - 3_600_000) // STEP_MS * STEP_MS
    history = Workload("m", SERIES, HISTORY, end_ms - (HISTORY - 1) * STEP_MS)
    rounds = int((WARM_S + PHASE_S + 10) * SAMPLES_A_SECOND / SERIES)
    streams = requests(Workload("m", SERIES, rounds, end_ms + STEP_MS), CONNECTIONS)
    at_once = requests(Workload("m", SERIES, FULL_SPEED_ROUNDS, end_ms + (rounds + 1) * STEP_MS), CONNECTIONS)
    server = Triptych()
    try:
        server.start()
        send(server.port, requests(history, CONNECTIONS))
        dashboard = Dashboard(server.port, end_ms)
        dashboard.run(WARM_S)
        server.wait_quiet()
        idle = dashboard.run(PHASE_S)
        feed = Feed(server.port, streams)
        feed.start()
        dashboard.run(WARM_S)
        busy = dashboard.run(PHASE_S)
        rate = feed.stop()
        full_speed, full_rate = _at_full_speed(dashboard, server.port, at_once)
    finally:
        server.stop()
        server.remove()
    _show("idle", idle)
    _show(f"under {rate:,.0f} samples/s (longest delay {feed.late_s:.2f} s)", busy)
    _show(f"at full speed, {full_rate:,.0f} samples/s", full_speed)
    _judge("p99 under a steady load", float(np.percentile(busy, 99) / np.percentile(idle, 99)), TARGET)
    _judge("median at full speed", float(np.median(full_speed) / np.median(idle)), FULL_SPEED_TARGET)


def _at_full_speed(dashboard: Dashboard, port: int, streams: list[list[bytes]]) -> tuple[list[float], float]:
    """(seconds of each query, samples a second) while the streams are sent."""
    with ThreadPoolExecutor(1) as sender:
        sent = sender.submit(send, port, streams)
        dashboard.run(FULL_SPEED_WARM_S)
        waits = dashboard.run(FULL_SPEED_S)
        if sent.done():
            raise RuntimeError("all samples were sent before the last query; raise FULL_SPEED_ROUNDS")
        return waits, FULL_SPEED_ROUNDS * SERIES / sent.result()[0]


def _judge(what: str, ratio: float, target: float) -> None:
    verdict = "met" if ratio < target else "missed"
    sys.stdout.write(
        f"{what}: {ratio:.2f} times that of the idle cluster; the target, below {target:g}, is {verdict}\n"
    )


def _show(what: str, waits: list[float]) -> None:
    median, p99 = np.percentile(waits, [50, 99]) * 1000
    sys.stdout.write(
        f"{what:<60} median {median:7.1f} ms, p99 {p99:7.1f} ms, longest {max(waits) * 1000:7.1f} ms"
        f" of {len(waits)} queries\n"
    )


if __name__ == "__main__":
    main()
