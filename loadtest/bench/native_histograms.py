"""`python -m loadtest.bench.native_histograms`: native histograms beside Prometheus, and classic ones beside
VictoriaMetrics.

1,000 series of 40 buckets with 240 samples 15 s apart are sent by remote write 1.0 over two connections, and their
quantile is asked for at 200 steps; then the same quantile from 1,000 × 12 series of classic buckets. Triptych
acknowledges a write when it is on the disk, the others when it is in memory.

One server runs at a time, and the servers take turns, each with an empty directory: what is written counts by the
median of the turns, and queries are asked in the last one.
"""

from __future__ import annotations

import http.client
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import snappy

from loadtest.bench.metrics.measuring import OFF_SAMPLES_MS, range_path
from loadtest.bench.metrics.sending import send
from loadtest.bench.metrics.servers import Prometheus, Server, Triptych, VictoriaMetrics
from loadtest.harness.histogram_messages import histogram_message
from proto.remote_write_pb2 import WriteRequest

SERIES, BUCKETS, SAMPLES, JOBS = 1_000, 40, 240, 10
VARIANTS = 50
"""Different histograms at a time: series have the next one's each."""
BOUNDS = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf")
STEP_MS = 15_000
CONNECTIONS = 2
SAMPLES_AT_ONCE = 4
TURNS = 5
ROUNDS = 21
ENOUGH_MS = 30e3
"""Once queries have taken this long together, two of them are enough."""
QUERY_TIMEOUT_S = 30
"""Version 2.42 of Prometheus takes longer than this for the query of native histograms, and may not heed it."""
NATIVE = "histogram_quantile(0.99, sum by (job) (rate(h[5m])))"
CLASSIC = "histogram_quantile(0.99, sum by (job, le) (rate(h_bucket[5m])))"


class NativePrometheus(Prometheus):
    def _spawn(self, command: list[str]) -> None:
        super()._spawn([*command, "--enable-feature=native-histograms"])


def native_messages(times_ms: np.ndarray) -> list[list[bytes]]:
    """By sample, by variant."""
    random = np.random.default_rng(1)
    counts = np.cumsum(random.poisson(3.0, (len(times_ms), VARIANTS, BUCKETS)), axis=0)
    return [
        [
            histogram_message(
                timestamp=int(time_ms), schema=3, count_int=int(row.sum()), sum=float(row.sum()) / 7,
                zero_threshold=2.0**-128, positive_spans=[(-20, BUCKETS // 2), (3, BUCKETS // 2)],
                positive_deltas=np.diff(row, prepend=0).tolist(),
            )
            for row in rows
        ]
        for time_ms, rows in zip(times_ms, counts, strict=True)
    ]  # fmt: skip


def native_requests(times_ms: np.ndarray, own: range) -> Iterator[bytes]:
    messages = native_messages(times_ms)
    for first in range(0, len(times_ms), SAMPLES_AT_ONCE):
        request = WriteRequest()
        for i in own:
            series = _series(request, __name__="h", instance=f"instance-{i:04d}", job=f"job-{i % JOBS}")
            series.histograms.extend(rows[i % VARIANTS] for rows in messages[first : first + SAMPLES_AT_ONCE])
        yield snappy.compress(request.SerializeToString())


def classic_requests(times_ms: np.ndarray, own: range) -> Iterator[bytes]:
    random = np.random.default_rng(1)
    counts = np.cumsum(np.cumsum(random.poisson(3.0, (SAMPLES, VARIANTS, len(BOUNDS))), axis=0), axis=2)
    for first in range(0, SAMPLES, SAMPLES_AT_ONCE):
        request = WriteRequest()
        for i in own:
            for place, bound in enumerate(BOUNDS):
                labels = {"instance": f"instance-{i:04d}", "job": f"job-{i % JOBS}", "le": bound}
                series = _series(request, __name__="h_bucket", **labels)
                for k in range(first, first + SAMPLES_AT_ONCE):
                    value = float(counts[k, i % VARIANTS, place])
                    series.samples.add(timestamp=int(times_ms[k]), value=value)
        yield snappy.compress(request.SerializeToString())


def _series(request: WriteRequest, **labels: str):  # type: ignore[no-untyped-def]
    series = request.timeseries.add()
    for name, value in labels.items():
        series.labels.add(name=name, value=value)
    return series


def query_ms(server: Server, text: str, end_ms: int) -> str:
    """The median of the milliseconds it takes, and the bytes of the answer."""
    path = f"{range_path(server, text, end_ms)}&timeout={QUERY_TIMEOUT_S}s"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=QUERY_TIMEOUT_S + 5)
    took, size = list[float](), 0
    while len(took) <= ROUNDS and (len(took) < 2 or sum(took) < ENOUGH_MS):  # the first one may compile
        started = time.perf_counter()
        connection.request("GET", path)
        try:
            answer = connection.getresponse()
        except TimeoutError:
            return f"more than {QUERY_TIMEOUT_S},000 | none"
        body = answer.read()
        took.append((time.perf_counter() - started) * 1e3)
        if answer.status == 503 and b"timed out" in body:
            return f"more than {QUERY_TIMEOUT_S},000 | none"
        assert answer.status == 200, body[:300]
        size = len(body)
    connection.close()
    return f"{statistics.median(took[1:]):.1f} | {size:,}"


@dataclass(slots=True)
class Turns:
    """What one kind of server did in its turns. `query`: how long it took and what it gave in the last one."""

    kind: type[Server]
    rates: list[float] = field(default_factory=list)
    """Samples a second."""
    busy_ns: list[float] = field(default_factory=list)
    """CPU time a sample."""
    query: str = ""

    def take(self, streams: list[list[bytes]], samples: int, query: Callable[[Server], str] | None) -> None:
        server = self.kind()
        try:
            server.start()
            server.wait_quiet()
            busy_s = server.cpu_s()
            took, _ = send(server.port, streams)
            self.busy_ns.append((server.cpu_s() - busy_s) / samples * 1e9)
            self.rates.append(samples / took)
            if query is not None:
                server.settle()
                self.query = query(server)
        finally:
            server.stop()
            server.remove()

    def row(self) -> str:
        rate, busy_ns = statistics.median(self.rates), statistics.median(self.busy_ns)
        each = ", ".join(f"{own / 1000:,.0f}" for own in self.rates)
        name = f"{self.kind.name} ({self.kind.version()})"
        return f"| {name} | {rate:,.0f} | {each} | {busy_ns:,.0f} | {self.query} |\n"


def main() -> None:
    end_ms = int(time.time() * 1000) // 60_000 * 60_000
    times_ms = end_ms - STEP_MS * np.arange(SAMPLES, dtype=np.int64)[::-1]
    at_ms = end_ms - STEP_MS + OFF_SAMPLES_MS
    parts = [range(k * SERIES // CONNECTIONS, (k + 1) * SERIES // CONNECTIONS) for k in range(CONNECTIONS)]
    for text, requests, samples, rival in (
        (NATIVE, native_requests, SERIES * SAMPLES, NativePrometheus),
        (CLASSIC, classic_requests, SERIES * SAMPLES * len(BOUNDS), VictoriaMetrics),
    ):
        streams = [list(requests(times_ms, part)) for part in parts]
        sys.stdout.write(
            f"\n`{text}`\n\n"
            "| server | written, samples/s | each turn, thousands | CPU, ns a sample | query, ms | answer |\n"
            "|---|---|---|---|---|---|\n"
        )
        ask = partial(query_ms, text=text, end_ms=at_ms)
        every = [Turns(kind) for kind in (Triptych, rival) if kind.installed()]
        for turn in range(TURNS):
            for turns in every:
                turns.take(streams, samples, ask if turn == TURNS - 1 else None)
        sys.stdout.writelines(turns.row() for turns in every)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
