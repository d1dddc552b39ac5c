"""The cost of OTLP metrics compared with remote write of the same samples: `python -m loadtest.bench.otlp [--seconds
N]`.

Measures the coordinator's CPU time per sample, with both protocols in turns, on a cluster on this machine. The target:
OTLP at 0.6 times the rate of remote write 1.0 or more. Sums have a start timestamp, which remote write 1.0 lacks;
gauges have none in OTLP either.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import snappy
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from coordinator.otlp import bodies, exemplars, logs, metrics, survey
from coordinator.otlp.known_sets import KnownSets
from coordinator.otlp.label_sets import Translation
from loadtest.bench.path import Kind, measure, wait_idle
from loadtest.harness.cluster import Cluster
from loadtest.harness.http_messages import message
from loadtest.harness.remote_write_bodies import HEADERS
from proto import remote_write_pb2
from shared.settings import Settings

POINTS = 2000
CONNECTIONS = 8
TURNS = 5
PATH = "/v1/metrics"
PROTOBUF = {"Content-Type": "application/x-protobuf"}


def one_metric(now_ns: int) -> ExportMetricsServiceRequest:
    """A sum of one process with many points, of four attributes each."""
    request = _of_process("checkout-7d4f9c-x2k4q")
    _add(request, "http.server.requests", POINTS, now_ns)
    return request


def many_metrics(now_ns: int) -> ExportMetricsServiceRequest:
    """As an SDK sends them: 200 sums of 10 points each."""
    request = _of_process("checkout-7d4f9c-x2k4q")
    for number in range(POINTS // 10):
        _add(request, f"process.work.{number}", 10, now_ns)
    return request


def gauges(now_ns: int) -> ExportMetricsServiceRequest:
    request = _of_process("checkout-7d4f9c-x2k4q")
    metric = request.resource_metrics[0].scope_metrics[0].metrics.add(name="queue.size", unit="By")
    for number in range(POINTS):
        point = metric.gauge.data_points.add(time_unix_nano=now_ns, as_double=number / 8)
        _describe(point, number)
    return request


def _of_process(instance: str) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    own = {"service.namespace": "shop", "service.name": "checkout", "service.instance.id": instance, "host.name": "n1"}
    for key, value in own.items():
        resource.resource.attributes.add(key=key).value.string_value = value
    scope = resource.scope_metrics.add()
    scope.scope.name, scope.scope.version = "io.opentelemetry.http", "2.1.0"
    return request


def _add(request: ExportMetricsServiceRequest, name: str, points: int, now_ns: int) -> None:
    metric = request.resource_metrics[0].scope_metrics[0].metrics.add(name=name, unit="s", description="How much work.")
    metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, AGGREGATION_TEMPORALITY_CUMULATIVE
    for number in range(points):
        point = metric.sum.data_points.add(
            time_unix_nano=now_ns, start_time_unix_nano=now_ns - 3600 * 10**9, as_double=number * 1.25
        )
        _describe(point, number)


def _describe(point, number: int) -> None:  # type: ignore[no-untyped-def]
    attributes = {"http.method": "GET", "http.route": f"/v1/orders/{number}", "zone": f"zone-{number % 3}"}
    for key, value in attributes.items():
        point.attributes.add(key=key).value.string_value = value
    point.attributes.add(key="http.status_code").value.int_value = 200


SHAPES: dict[str, Callable[[int], ExportMetricsServiceRequest]] = {
    "sums, one metric": one_metric,
    "sums, 200 metrics": many_metrics,
    "gauges, one metric": gauges,
}


def remote_write_of(body: bytes) -> tuple[bytes, int]:
    """(the same samples as remote write 1.0, without start timestamps; how many)."""
    translation = Translation.of(Settings())
    prepared = metrics.prepare(survey.survey(body, KnownSets(0), ()), translation, 1 << 30)
    request = remote_write_pb2.WriteRequest.FromString(bytes(prepared.written()))
    for series in request.timeseries:
        for sample in series.samples:
            sample.ClearField("start_timestamp")
    return request.SerializeToString(), len(request.timeseries)


def kinds(body: bytes, request: bytes) -> list[Kind]:
    return [
        Kind("remote write 1.0", message("POST", "/api/v1/write", snappy.compress(request), HEADERS)),
        Kind("OTLP", message("POST", PATH, body, PROTOBUF)),
        Kind("OTLP, gzip", message("POST", PATH, gzip.compress(body), {**PROTOBUF, "Content-Encoding": "gzip"})),
    ]


def run(seconds: float, turns: int) -> None:
    now_ns = time.time_ns()
    with tempfile.TemporaryDirectory(prefix="bench-otlp-") as directory:
        cluster = Cluster(Path(directory), workers=2)
        cluster.start()
        try:
            wait_idle(cluster)
            print("| samples | request | bytes | coordinator, µs a sample | workers | requests/s | of remote write |")
            print("|---|---|---|---|---|---|---|")
            for name, shape in SHAPES.items():
                _measure_shape(cluster, name, shape(now_ns).SerializeToString(), seconds, turns)
        finally:
            cluster.stop()


def _measure_shape(cluster: Cluster, name: str, body: bytes, seconds: float, turns: int) -> None:
    request, samples = remote_write_of(body)
    found: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    sizes = {}
    for _ in range(turns):
        for kind in kinds(body, request):
            sizes[kind.name] = len(kind.message)
            found[kind.name].append(measure(cluster, kind, seconds, CONNECTIONS))
    first = 0.0
    for kind_name, measured in found.items():
        own = statistics.median(each["coordinator"] for each in measured) / samples
        workers = [sum(value for key, value in each.items() if key not in ("coordinator", "rate")) for each in measured]
        rate = statistics.median(each["rate"] for each in measured)
        first = first or own
        print(
            f"| {name} | {kind_name} | {sizes[kind_name]} | {own:.3f} | {statistics.median(workers) / samples:.3f} "
            f"| {rate:.0f} | {first / own:.2f} × |"
        )
        sys.stdout.flush()


def stages() -> None:
    """Print what a point takes in process, in microseconds of CPU time: the least of many turns."""
    translation, now_ns = Translation.of(Settings()), time.time_ns()
    for name, request in (
        ("sums that are known", one_metric(now_ns)),
        ("sums, the first time", one_metric(now_ns)),
        ("exponential histograms", exponential_histograms(now_ns)),
        ("log records", log_records(now_ns)),
    ):
        body = request.SerializeToString()
        known = KnownSets(64 << 20 if name.endswith("known") else 0)

        def as_points(body: bytes = body, known: KnownSets = known) -> None:
            prepared = metrics.prepare(survey.survey(body, known, ()), translation, 1 << 30)
            known.add(prepared.new, prepared.new_keys)
            prepared.written()

        def as_records(body: bytes = body) -> None:
            logs.export_of(body, logs.message_of(body), Settings())

        work = as_records if name == "log records" else as_points
        took = []
        for _ in range(20):
            started = time.process_time()
            work()
            took.append(time.process_time() - started)
        print(f"{name:<24} {min(took) / POINTS * 1e6:>8.2f} µs")
    text = json_format.MessageToJson(one_metric(now_ns), indent=None).encode()
    started = time.process_time()
    bodies.of_json(text, ExportMetricsServiceRequest, exemplars.all_of)
    print(f"{'JSON to protobuf':<24} {(time.process_time() - started) / POINTS * 1e6:>8.2f} µs")


def exponential_histograms(now_ns: int) -> ExportMetricsServiceRequest:
    """Of 40 buckets each."""
    request = _of_process("checkout-7d4f9c-x2k4q")
    metric = request.resource_metrics[0].scope_metrics[0].metrics.add(name="http.duration", unit="s")
    metric.exponential_histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    for number in range(POINTS):
        point = metric.exponential_histogram.data_points.add(time_unix_nano=now_ns, count=820, sum=1.0, scale=3)
        point.positive.bucket_counts.extend(range(1, 41))
        _describe(point, number)
    return request


def log_records(now_ns: int) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    own = request.resource_logs.add()
    own.resource.attributes.add(key="service.name").value.string_value = "checkout"
    scope = own.scope_logs.add()
    for number in range(POINTS):
        record = scope.log_records.add(time_unix_nano=now_ns + number, severity_number=9, severity_text="INFO")
        record.body.string_value = f"order {number} was paid"
        _describe(record, number)
    return request


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--stages", action="store_true", help="only what the translation takes, in process")
    arguments = parser.parse_args()
    if arguments.stages:
        stages()
        sys.exit()
    run(arguments.seconds, arguments.turns)
