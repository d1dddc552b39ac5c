"""`make bench-smoke`: latency of small requests on an idle cluster, medians over many, printed as a table."""

from __future__ import annotations

import http.client
import statistics
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

import snappy

from loadtest.harness.cluster import Cluster
from proto import remote_write_pb2

SERIES = 10
REQUESTS = 300
WARM_UP = 30


def write_series(cluster: Cluster) -> None:
    request = remote_write_pb2.WriteRequest()
    now_ms = int(time.time() * 1000)
    for number in range(SERIES):
        series = request.timeseries.add()
        series.labels.add(name="__name__", value="smoke_total")
        series.labels.add(name="instance", value=str(number))
        for age in range(40):
            series.samples.add(value=1000.0 - age, timestamp=now_ms - age * 15_000)
    body = snappy.compress(request.SerializeToString())
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    answer = cluster.request("POST", "/api/v1/write", body, headers)
    assert answer.status == 204, answer.body


def measure(port: int, path: str) -> list[float]:
    """Milliseconds of each request, one connection, one after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    times = []
    for number in range(WARM_UP + REQUESTS):
        started = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        if number >= WARM_UP:
            times.append((time.perf_counter() - started) * 1000)
    connection.close()
    return times


def main() -> None:
    queries = {
        "instant, 10 series": "smoke_total",
        "instant, sum by": "sum by (instance) (rate(smoke_total[5m]))",
        "instant, one series": 'smoke_total{instance="3"}',
    }
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory)).start()
        try:
            write_series(cluster)
            rows = [
                (name, measure(cluster.port, "/api/v1/query?" + urllib.parse.urlencode({"query": query})))
                for name, query in queries.items()
            ]
            rows.append(("/-/healthy", measure(cluster.port, "/-/healthy")))
        finally:
            cluster.stop()
    sys.stdout.write(f"{'request':<22}{'median ms':>12}{'p99 ms':>10}\n")
    for name, times in rows:
        p99 = statistics.quantiles(times, n=100)[98]
        sys.stdout.write(f"{name:<22}{statistics.median(times):>12.2f}{p99:>10.2f}\n")


if __name__ == "__main__":
    main()
