"""OTLP over HTTP: metrics and log records, by the SDK's exporters and by hand."""

from __future__ import annotations

import gzip
import json
import logging
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from loadtest.harness.cluster import Cluster, Response
from tests.otlp_requests import JSON, PROTOBUF, T_MS, T_NS, Request, any_value, attributes

PATHS = ("/v1/metrics", "/api/v1/otlp/v1/metrics")
LOG_PATHS = ("/v1/logs", "/api/v1/otlp/v1/logs")
TOO_LARGE = gzip.compress(Random(1).randbytes(300_000), mtime=0)[:-4] + (257 << 20).to_bytes(4, "little")
"""It says that it has 257 MB."""
TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


def query(cluster: Cluster, text: str, at_ms: float = T_MS) -> list[tuple[dict[str, str], Any]]:
    answer = cluster.get("/api/v1/query", query=text, time=str(at_ms / 1000)).json()
    assert answer["status"] == "success", answer
    return [(each["metric"], each.get("value", each.get("histogram"))[1]) for each in answer["data"]["result"]]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", ["protobuf", "json", "gzip"])
def test_points_are_queried_back(cluster: Cluster, path: str, form: str) -> None:
    name = f"back_{form}_{path.count('/')}"
    request = Request({"service.name": "s", "service.instance.id": "i", "host.name": "h"})
    request.gauge(name, 2.5, {"a.b": "c"})
    body, headers = request.bytes(), PROTOBUF
    if form == "json":
        point = {
            "timeUnixNano": str(T_NS),
            "asDouble": 2.5,
            "attributes": [{"key": "a.b", "value": {"stringValue": "c"}}],
        }
        resource = {
            "attributes": [
                {"key": f"service.{key}", "value": {"stringValue": text}}
                for key, text in (("name", "s"), ("instance.id", "i"))
            ]
        }
        scope = {"metrics": [{"name": name, "gauge": {"dataPoints": [point]}}]}
        body, headers = (
            json.dumps({"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}).encode(),
            JSON,
        )
    elif form == "gzip":
        body, headers = gzip.compress(body), {**PROTOBUF, "Content-Encoding": "gzip"}
    for _ in range(2):
        answer = cluster.request("POST", path, body, headers)
        assert (answer.status, answer.body) == (200, b"{}" if form == "json" else b"")
        assert answer.headers["content-type"].startswith(headers["Content-Type"])
        assert query(cluster, name) == [({"__name__": name, "a_b": "c", "instance": "i", "job": "s"}, "2.5")]
    if form != "json":
        assert query(cluster, 'target_info{job="s",instance="i"}')[0][0]["host_name"] == "h"


def test_a_large_request_is_stored_whole(cluster: Cluster) -> None:
    request = Request()
    for i in range(5000):
        request.sum("large", i, {"i": str(i), "pad": "x" * 60})
    request.histogram("large_h", [float(i) for i in range(50)], [1] * 51)
    for _ in range(2):
        assert cluster.request("POST", PATHS[0], request.bytes(), PROTOBUF).status == 200
        assert query(cluster, "sum(large_total)")[0][1] == str(sum(range(5000)))
        assert query(cluster, "histogram_quantile(0.5, large_h_bucket)")[0][1] == "24.5"


def test_a_partial_success_names_what_was_refused(cluster: Cluster) -> None:
    request = Request()
    request.sum("moved", 1, temporality=1)
    request.sum("stays", 1)
    answer = cluster.request("POST", PATHS[0], request.bytes(), PROTOBUF)
    assert answer.status == 200
    partial = ExportMetricsServiceResponse.FromString(answer.body).partial_success
    assert partial.rejected_data_points == 1
    assert "metric 'moved'" in partial.error_message and "TRIPTYCH_OTLP_KEEP_DELTA" in partial.error_message
    assert len(query(cluster, "stays_total")) == 1


def test_exponential_histograms_stale_markers_exemplars_and_metadata(cluster: Cluster) -> None:
    request = Request()
    metric = request.metric("duration", "s", "How long.")
    metric.exponential_histogram.aggregation_temporality = 2
    point = metric.exponential_histogram.data_points.add(time_unix_nano=T_NS, count=3, sum=6.0, scale=0)
    point.positive.bucket_counts.extend([1, 2])
    point.exemplars.add(as_double=1.5, time_unix_nano=T_NS, trace_id=b"\xab" * 16)
    request.gauge("gone", 1.0, flags=1)
    request.sum("orders", 1).exemplars.add(as_int=1, time_unix_nano=T_NS, span_id=b"\x01" * 8)
    assert cluster.request("POST", PATHS[0], request.bytes(), PROTOBUF).status == 200
    [(_, histogram)] = query(cluster, "duration_seconds")
    assert (histogram["count"], histogram["sum"]) == ("3", "6")
    assert [bucket[1:] for bucket in histogram["buckets"]] == [["1", "2", "1"], ["2", "4", "2"]]
    assert query(cluster, "gone") == []
    found = cluster.get(
        "/api/v1/query_exemplars", query='{__name__=~"duration_seconds|orders_total"}', start="0"
    ).json()
    exemplars = {each["seriesLabels"]["__name__"]: each["exemplars"][0]["labels"] for each in found["data"]}
    assert exemplars == {"duration_seconds": {"trace_id": "ab" * 16}, "orders_total": {"span_id": "01" * 8}}
    metadata = cluster.get("/api/v1/metadata", metric="duration_seconds").json()["data"]
    assert metadata == {"duration_seconds": [{"type": "histogram", "help": "How long.", "unit": "seconds"}]}


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"\x0a\x05abc", PROTOBUF, 400, "not a protobuf ExportMetricsServiceRequest"),
        (b"{", JSON, 400, "in JSON"),
        (b"", {"Content-Type": "text/plain"}, 415, "Content-Type is 'text/plain'"),
        (b"", {}, 415, "it must be application/x-protobuf or application/json"),
        (b"abc", {**PROTOBUF, "Content-Encoding": "zstd"}, 415, "Content-Encoding is 'zstd'"),
        (b"abc", {**PROTOBUF, "Content-Encoding": "gzip"}, 400, "gzip"),
        (TOO_LARGE, {**PROTOBUF, "Content-Encoding": "gzip"}, 413, "decompresses to"),
    ],
    ids=["broken", "no json", "other type", "no type", "zstd", "no gzip", "large"],
)
@pytest.mark.parametrize("path", [PATHS[0], LOG_PATHS[1]])
def test_errors_are_a_status_in_the_form_of_the_request(
    cluster: Cluster, path: str, body: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    answer = cluster.request("POST", path, body, headers)
    assert answer.status == status
    if headers.get("Content-Type") == "application/x-protobuf":
        assert answer.headers["content-type"] == "application/x-protobuf"
        message = Status.FromString(answer.body)
        seen = message.message
        assert message.code
    else:
        assert set(answer.json()) == {"code", "message"}
        seen = answer.json()["message"]
    assert text.replace("Metrics", "Logs" if "logs" in path else "Metrics") in seen


def resource(name: str) -> Resource:
    return Resource.create({"service.name": name, "service.instance.id": "1", "deployment.environment": "test"})


def test_the_sdk_exports_every_kind_of_instrument(cluster: Cluster) -> None:
    exporter = OTLPMetricExporter(f"{cluster.url}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)
    view = View(instrument_name="exponential", aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider([reader], resource("sdk"), AlwaysOnExemplarFilter(), views=[view])
    meter = provider.get_meter("the.meter", "2.0")
    span = trace.NonRecordingSpan(trace.SpanContext(TRACE, SPAN, False, trace.TraceFlags(1)))
    token = otel_context.attach(trace.set_span_in_context(span))
    try:
        meter.create_counter("requests", "{request}", "How many.").add(3, {"http.method": "GET"})
        meter.create_up_down_counter("active").add(-2)
        meter.create_gauge("temperature", "Cel").set(20.5)
        meter.create_histogram("latency", "ms", explicit_bucket_boundaries_advisory=[1.0, 10.0]).record(5)
        meter.create_histogram("exponential", "By").record(100)
        meter.create_observable_counter("pulled", [lambda _: [_observed(7)]])
        meter.create_observable_gauge("seen", [lambda _: [_observed(1.5)]])
        assert provider.force_flush()
    finally:
        otel_context.detach(token)
        provider.shutdown()
    now_ms = time.time() * 1000
    own = {"instance": "1", "job": "sdk", "otel_scope_name": "the.meter", "otel_scope_version": "2.0"}
    expected = {
        'requests_total{http_method="GET"}': "3", "active": "-2", "temperature_celsius": "20.5",
        'latency_milliseconds_bucket{le="10"}': "1", "latency_milliseconds_sum": "5", "pulled_total": "7",
        "seen": "1.5",
    }  # fmt: skip
    for text, value in expected.items():
        [(labels, seen)] = query(cluster, text, now_ms)
        assert seen == value, text
        assert own.items() <= labels.items()
    [(_, histogram)] = query(cluster, "exponential_bytes", now_ms)
    assert (histogram["count"], histogram["sum"]) == ("1", "100")
    [(info, _)] = query(cluster, 'target_info{job="sdk"}', now_ms)
    assert info["deployment_environment"] == "test"
    found = cluster.get(
        "/api/v1/query_exemplars", query="latency_milliseconds_bucket", start=str(now_ms / 1000 - 60)
    ).json()
    assert [each["exemplars"][0]["labels"]["trace_id"] for each in found["data"]] == [f"{TRACE:032x}"]
    assert HistogramData  # the SDK's own name of what was sent


def _observed(value: float) -> Any:
    from opentelemetry.metrics import Observation

    return Observation(value)


def records(cluster: Cluster, key: str, **search: str) -> list[dict[str, Any]]:
    answer = cluster.get("/api/v1/log/scan", key=key, encoding="json", **search).json()
    assert answer["status"] == "success", answer
    return [record["json"] for record in answer["records"]]


def test_the_sdk_s_logging_handler_writes_to_the_log(cluster: Cluster) -> None:
    provider = LoggerProvider(resource("app"))
    provider.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(f"{cluster.url}/v1/logs")))
    logger = logging.getLogger("otlp.test")
    handler = LoggingHandler(logger_provider=provider)
    logger.addHandler(handler)
    span = trace.NonRecordingSpan(trace.SpanContext(TRACE, SPAN, False, trace.TraceFlags(1)))
    token = otel_context.attach(trace.set_span_in_context(span))
    try:
        logger.warning("paid %d", 7, extra={"order": "o-1"})
    finally:
        otel_context.detach(token)
        logger.removeHandler(handler)
        provider.shutdown()
    [record] = records(cluster, "app")
    assert (record["body"], record["severityText"], record["severityNumber"]) == ("paid 7", "WARN", 13)
    assert record["attributes"]["order"] == "o-1"
    assert (record["traceId"], record["spanId"]) == (f"{TRACE:032x}", f"{SPAN:016x}")
    assert record["resource"]["service.name"] == "app"
    assert len(records(cluster, "app", where="$.severityNumber >= 13")) == 1
    assert records(cluster, "app", where="$.severityNumber > 13") == []


def logs_body(service: str, texts: list[str]) -> bytes:
    message = ExportLogsServiceRequest()
    own = message.resource_logs.add()
    own.resource.attributes.extend(attributes({"service.name": service}))
    scope = own.scope_logs.add()
    for number, text in enumerate(texts):
        scope.log_records.add(time_unix_nano=T_NS + number, body=any_value(text))
    return message.SerializeToString()


@pytest.mark.parametrize("path", LOG_PATHS)
def test_a_batch_that_is_sent_again_is_appended_once(cluster: Cluster, path: str) -> None:
    service = f"again{path.count('/')}"
    body = logs_body(service, ["a", "b"])
    sends: list[Callable[[], Response]] = [
        lambda: cluster.request("POST", path, body, PROTOBUF),
        lambda: cluster.request("POST", path, gzip.compress(body), {**PROTOBUF, "Content-Encoding": "gzip"}),
    ]
    for send in sends:
        answer = send()
        assert (answer.status, answer.body) == (200, b"")
    assert [record["body"] for record in records(cluster, service)] == ["a", "b"]
    assert cluster.request("POST", path, logs_body(service, ["c"]), PROTOBUF).status == 200
    assert [record["body"] for record in records(cluster, service)] == ["a", "b", "c"]


def test_log_records_in_json(cluster: Cluster) -> None:
    record = {
        "timeUnixNano": str(T_NS), "body": {"stringValue": "hi"}, "severityNumber": 9,
        "traceId": f"{TRACE:032X}", "spanId": f"{SPAN:016x}",
    }  # fmt: skip
    sent = {
        "resourceLogs": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "js"}}]},
                "scopeLogs": [{"logRecords": [record]}],
            }
        ]
    }
    answer = cluster.request("POST", LOG_PATHS[0], json.dumps(sent).encode(), JSON)
    assert (answer.status, answer.json()) == (200, {})
    [stored] = records(cluster, "js")
    assert (stored["body"], stored["traceId"]) == ("hi", f"{TRACE:032x}")
