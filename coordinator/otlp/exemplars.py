"""The exemplars of data points in the form of remote write 1.0."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from coordinator.otlp import walk
from coordinator.otlp.attributes import labels as attribute_labels
from coordinator.otlp.label_sets import Translation
from proto import remote_write_pb2
from shared.frames.exemplars import LABEL_CHARACTERS_MAX
from shared.protobuf_fields import delimited_head

_EXEMPLAR = remote_write_pb2.RawTimeSeries.EXEMPLARS_FIELD_NUMBER


def by_series(message: Any, kind: int, has_sum: int, translation: Translation) -> Iterator[tuple[int, bytes]]:
    """(which series of the point, its exemplars). In a histogram, an exemplar belongs to the bucket of its value."""
    if kind != walk.HISTOGRAM:
        yield 0, fields(message, translation)
        return
    by_bucket: dict[int, list[Any]] = {}
    bounds = list(message.explicit_bounds)
    for exemplar in message.exemplars:
        by_bucket.setdefault(bisect_left(bounds, _value(exemplar)), []).append(exemplar)
    for bucket, exemplars in by_bucket.items():
        yield has_sum + 1 + bucket, b"".join(_exemplar(exemplar, translation) for exemplar in exemplars)


def fields(message: Any, translation: Translation) -> bytes:
    return b"".join(_exemplar(exemplar, translation) for exemplar in message.exemplars)


def _exemplar(exemplar: Any, translation: Translation) -> bytes:
    """The field of a TimeSeries. Attributes that are too long together are left out."""
    ids = {"trace_id": exemplar.trace_id.hex(), "span_id": exemplar.span_id.hex()}
    labels = {**attribute_labels(exemplar.filtered_attributes, translation.names), **ids}
    if sum(len(name) + len(text) for name, text in labels.items() if text) > LABEL_CHARACTERS_MAX:
        labels = ids
    pairs = [remote_write_pb2.Label(name=name, value=text) for name, text in sorted(labels.items()) if name and text]
    message = remote_write_pb2.Exemplar(
        labels=pairs, value=_value(exemplar), timestamp=exemplar.time_unix_nano // 1_000_000
    ).SerializeToString()
    return delimited_head(_EXEMPLAR, len(message)) + message


def _value(exemplar: Any) -> float:
    return float(exemplar.as_int) if exemplar.WhichOneof("value") == "as_int" else exemplar.as_double


def all_of(message: Any) -> Iterator[Any]:
    """All exemplars of an ExportMetricsServiceRequest."""
    for resource in message.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind and kind != "summary":
                    for point in getattr(metric, kind).data_points:
                        yield from point.exemplars
