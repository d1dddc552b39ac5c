"""OTLP: bodies of metrics and of log records, in protobuf and in JSON."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from coordinator.otlp import bodies, exemplars, logs, metrics
from coordinator.otlp.known_sets import KnownSets
from coordinator.series.remote_write import NO_REFERENCES
from shared.settings import Settings
from tests.fuzz.target import Target
from tests.otlp_requests import T_NS, Request, any_value, attributes, expected, prepared, rules_of, series_of

RULES = rules_of()
SHARDS = 3
_KNOWN = KnownSets(1 << 16)
_BY_KERNELS = ("gauge", "sum", "histogram", None)


def _metrics(data: bytes) -> None:
    """What is stored is what plain Python says, the first time and when it is known."""
    for known in (KnownSets(0), _KNOWN, _KNOWN):
        ready = prepared(data, RULES, known)
        written = ready.written()
        assert len(written) <= ready.bytes_total
        split_request = metrics.split(ready, written, SHARDS, RULES, NO_REFERENCES)
        assert ready.refusals.count == 0 or ready.refusals.message("data points")
        try:
            message = ExportMetricsServiceRequest.FromString(data)
        except DecodeError:  # a text that is not UTF-8 is refused with its point
            return
        kinds = [
            metric.WhichOneof("data")
            for resource in message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        if all(kind in _BY_KERNELS for kind in kinds):
            series, refused = expected(message, RULES)
            assert series_of(written) == series
            assert ready.refusals.count == refused
            assert split_request.samples == sum(map(len, series.values()))


def _metrics_json(data: bytes) -> None:
    _metrics(bodies.of_json(data, ExportMetricsServiceRequest, exemplars.all_of).SerializeToString())


def _logs(data: bytes) -> None:
    _require_appends(logs.export_of(data, logs.message_of(data), Settings()))


def _logs_json(data: bytes) -> None:
    _require_appends(logs.export_of(data, logs.message_of_json(data), Settings()))


def _require_appends(batch: logs.LogExport) -> None:
    for part in batch.parts:
        part.cut(SHARDS)
        assert part.durable and part.count == len(part.records) > 0


def metric_bodies() -> Iterator[bytes]:
    request = Request({"service.name": "s", "service.instance.id": "i", "x": [1, {"a": None}]}, "scope", "1")
    request.gauge("g", 1.5, {"a": "b"}, unit="By/s")
    request.sum("s", 3).exemplars.add(as_int=1, time_unix_nano=T_NS, trace_id=b"\x01" * 16)
    request.histogram("h", [0.5, 2.0], [1, 2, 3]).exemplars.add(as_double=1.0)
    yield request.bytes()
    request = Request()
    metric = request.metric("e")
    metric.exponential_histogram.aggregation_temporality = 2
    point = metric.exponential_histogram.data_points.add(time_unix_nano=T_NS, count=6, sum=1.0, scale=9)
    point.positive.bucket_counts.extend([1, 0, 5])
    summary = request.metric("q").summary.data_points.add(time_unix_nano=T_NS, count=1)
    summary.quantile_values.add(quantile=0.5, value=1.0)
    request.gauge("stale", 1.0, flags=1)
    yield request.bytes()


def _metric_json() -> Iterator[bytes]:
    for body in metric_bodies():
        message = ExportMetricsServiceRequest.FromString(body)
        for exemplar in exemplars.all_of(message):  # so that their base64 is hexadecimal digits
            exemplar.trace_id = bytes(12)
        yield json_format.MessageToJson(message, indent=None).encode()


def log_bodies() -> Iterator[bytes]:
    message = ExportLogsServiceRequest()
    own = message.resource_logs.add()
    own.resource.attributes.extend(attributes({"service.name": "s"}))
    record = own.scope_logs.add().log_records.add(time_unix_nano=T_NS, severity_number=9, severity_text="INFO")
    record.body.CopyFrom(any_value({"a": [1, 2.5, None, b"x", True]}))
    record.attributes.extend(attributes({"k": "v"}))
    yield message.SerializeToString()


def _log_json() -> Iterator[bytes]:
    for body in log_bodies():
        yield json_format.MessageToJson(ExportLogsServiceRequest.FromString(body), indent=None).encode()


_TOKENS = (
    "resourceMetrics", "scopeMetrics", "metrics", "gauge", "sum", "histogram", "exponentialHistogram", "dataPoints",
    "asInt", "asDouble", "timeUnixNano", "attributes", "stringValue", "arrayValue", "NaN", "null",
)  # fmt: skip

TARGETS = [
    Target("otlp-metrics", _metrics, metric_bodies),
    Target("otlp-metrics-json", _metrics_json, _metric_json, tokens=_TOKENS),
    Target("otlp-logs", _logs, log_bodies),
    Target("otlp-logs-json", _logs_json, _log_json, tokens=("resourceLogs", "logRecords", "body", "traceId", *_TOKENS)),
]
