"""OTLP requests for tests, and what plain Python makes of their data points."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from coordinator.otlp import label_sets, metrics, survey, walk
from coordinator.otlp.known_sets import KnownSets
from coordinator.otlp.label_sets import NotValid, Translation
from coordinator.otlp.metrics import Prepared
from proto import remote_write_pb2
from shared import labels
from shared.promql.model import STALE_NAN_BITS
from shared.settings import Settings
from shared.wire import Frame

T_MS = 1_700_000_000_000
T_NS = T_MS * 1_000_000
START_NS = T_NS - 60_000_000_000
START_MS = START_NS // 1_000_000
PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}

Series = dict[tuple[tuple[str, str], ...], list[tuple[int, int, int]]]
"""Labels → (Unix ms, bits of the value, start timestamp)."""


def any_value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[any_value(each) for each in value]))
    if isinstance(value, dict):
        return AnyValue(kvlist_value=KeyValueList(values=attributes(value)))
    return AnyValue() if value is None else AnyValue(string_value=value)


def attributes(pairs: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in pairs.items()]


class Request:
    """A request with one resource and one scope, to which metrics are added."""

    def __init__(self, resource: Mapping[str, Any] | None = None, scope: str = "", version: str = "") -> None:
        self.message = ExportMetricsServiceRequest()
        self.resource = self.message.resource_metrics.add()
        self.resource.resource.attributes.extend(attributes(resource or {}))
        self.scope = self.resource.scope_metrics.add()
        self.scope.scope.name, self.scope.scope.version = scope, version

    def metric(self, name: str, unit: str = "", description: str = "") -> Any:
        return self.scope.metrics.add(name=name, unit=unit, description=description)

    def gauge(self, name: str, value: float, own: Mapping[str, Any] | None = None, unit: str = "", **more: Any) -> Any:
        point = self.metric(name, unit).gauge.data_points.add(time_unix_nano=T_NS, attributes=attributes(own or {}))
        return _filled(point, value, more)

    def sum(
        self, name: str, value: float, own: Mapping[str, Any] | None = None, unit: str = "", *, monotonic: bool = True,
        temporality: int = walk.CUMULATIVE, **more: Any,
    ) -> Any:  # fmt: skip
        metric = self.metric(name, unit)
        metric.sum.is_monotonic, metric.sum.aggregation_temporality = monotonic, temporality
        point = metric.sum.data_points.add(
            time_unix_nano=T_NS, start_time_unix_nano=START_NS, attributes=attributes(own or {})
        )
        return _filled(point, value, more)

    def histogram(
        self, name: str, bounds: Sequence[float], counts: Sequence[int], *, total: float | None = 1.5,
        temporality: int = walk.CUMULATIVE, own: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        metric = self.metric(name)
        metric.histogram.aggregation_temporality = temporality
        return metric.histogram.data_points.add(
            time_unix_nano=T_NS, start_time_unix_nano=START_NS, explicit_bounds=bounds, bucket_counts=counts,
            count=sum(counts), sum=total, attributes=attributes(own or {}),
        )  # fmt: skip

    def bytes(self) -> bytes:
        return self.message.SerializeToString()


def _filled(point: Any, value: float, more: Mapping[str, Any]) -> Any:
    if isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value
    for name, own in more.items():
        setattr(point, name, own)
    return point


def prepared(
    body: bytes, translation: Translation, known: KnownSets | None = None, bytes_max: int = 1 << 28
) -> Prepared:
    known = known if known is not None else KnownSets(1 << 20)
    ready = metrics.prepare(
        survey.survey(body, known, (), custom_buckets=translation.custom_buckets), translation, bytes_max
    )
    known.add(ready.new, ready.new_keys)
    return ready


def rules_of(**settings: Any) -> Translation:
    return Translation.of(Settings(**settings))


def series_of(request: Frame) -> Series:
    """The samples of a request of remote write 1.0."""
    found: Series = {}
    for series in remote_write_pb2.WriteRequest.FromString(bytes(request)).timeseries:
        own = found.setdefault(tuple((label.name, label.value) for label in series.labels), [])
        own += [(each.timestamp, bits(each.value), each.start_timestamp) for each in series.samples]
    return {own: samples for own, samples in found.items() if samples}


def bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def values(body: bytes, translation: Translation, **names: Any) -> dict[str, float]:
    """Text of the labels → value, of what becomes of a request without more than one sample a series."""
    return {
        ",".join(f"{name}={text}" for name, text in own): struct.unpack("<d", struct.pack("<q", samples[0][1]))[0]
        for own, samples in series_of(prepared(body, translation).written()).items()
    }


def expected(message: Any, translation: Translation) -> tuple[Series, int]:
    """(what gauges, sums and classic histograms become, how many points are refused), one point after the other."""
    found: Series = {}
    refused = 0
    for resource_metrics in message.resource_metrics:
        newest = 0
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                points = _points(metric)
                newest = max([newest, *(point.time_unix_nano // 1_000_000 for point in points)])
                for point in points:
                    try:
                        sets, numbers = _translated(resource_metrics, scope_metrics, metric, point, translation)
                        if point.time_unix_nano < 1_000_000:
                            raise NotValid("a data point has no time")
                    except NotValid:
                        refused += 1
                        continue
                    start_ms = 0 if metric.HasField("gauge") else point.start_time_unix_nano // 1_000_000
                    for own, number in zip(sets, numbers, strict=True):
                        stale = STALE_NAN_BITS if point.flags & 1 else bits(number)
                        sample = (point.time_unix_nano // 1_000_000, stale, start_ms)
                        found.setdefault(own, []).append(sample)
        try:
            info = label_sets.target_of(resource_metrics.resource, translation).info
            if info and newest:
                own = labels.decode(label_sets.encoded(info, translation))
                found.setdefault(own, []).append((newest, bits(1.0), 0))
        except NotValid:
            pass
    return found, refused


def _points(metric: Any) -> Sequence[Any]:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind else ()


def _translated(
    resource: Any, scope: Any, metric: Any, point: Any, translation: Translation
) -> tuple[list[Any], list[float]]:
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    number = {"gauge": walk.GAUGE, "sum": walk.SUM, "histogram": walk.HISTOGRAM}[kind]
    target = label_sets.target_of(resource.resource, translation)
    scope_labels = label_sets.scope_labels(scope.scope, scope.schema_url, translation)
    temporality = getattr(data, "aggregation_temporality", 0)
    own = label_sets.metric_of(
        metric.name,
        metric.unit,
        number,
        temporality,
        getattr(data, "is_monotonic", False),
        target,
        scope_labels,
        translation,
    )
    if kind != "histogram":
        if point.WhichOneof("value") is None and not point.flags & 1:
            raise NotValid("no value")
        numbers = [float(point.as_int) if point.WhichOneof("value") == "as_int" else point.as_double]
        joined, sizes = label_sets.number_sets(own, point, translation)
    else:
        counts = list(point.bucket_counts)
        if not point.flags & 1 and len(counts) != len(point.explicit_bounds) + 1 and (counts or point.explicit_bounds):
            raise NotValid("buckets")
        cumulative = [float(sum(counts[: i + 1])) for i in range(len(point.explicit_bounds))]
        numbers = [*([point.sum] if point.HasField("sum") else []), float(point.count), *cumulative, float(point.count)]
        joined, sizes = label_sets.histogram_sets(own, point, translation)
    ends = np.cumsum(sizes).tolist()
    return [labels.decode(joined[end - size : end]) for end, size in zip(ends, sizes, strict=True)], numbers
