"""The label sets of data points: attributes, resource and scope, translated to Prometheus labels.

Rules: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from coordinator.otlp import attributes, walk
from coordinator.otlp.names import Names
from coordinator.series.label_sets import Limits, problem_of
from coordinator.series.metadata import TYPES
from shared.labels import METRIC_NAME, encode
from shared.settings import Settings

IDENTIFYING = ("service.namespace", "service.name", "service.instance.id")
TARGET_INFO = "target_info"
ALL = "*"
"""Stands for all attributes in the list of promoted attributes."""
_NUMBER_CHARACTERS = 350
"""The longest text of a number."""
BOUNDS_MAX = 1000
"""Boundaries of one classic histogram, each of which becomes a series."""
MESSAGE_BYTES_MAX = 1 << 20
"""Longest resource, scope or data point that the protobuf library reads."""
_COUNTER, _GAUGE, _HISTOGRAM, _SUMMARY, _UNKNOWN = map(
    TYPES.index, ("counter", "gauge", "histogram", "summary", "unknown")
)
POINTS: Mapping[int, Any] = {
    walk.GAUGE: metrics_pb2.NumberDataPoint,
    walk.SUM: metrics_pb2.NumberDataPoint,
    walk.HISTOGRAM: metrics_pb2.HistogramDataPoint,
    walk.EXPONENTIAL: metrics_pb2.ExponentialHistogramDataPoint,
    walk.SUMMARY: metrics_pb2.SummaryDataPoint,
}
"""Kind of metric → message of its points."""
_KINDS = {walk.SUM: "a sum", walk.HISTOGRAM: "a histogram", walk.EXPONENTIAL: "an exponential histogram"}
"""The kinds that have a temporality."""


class NotValid(ValueError):
    """Something cannot be stored; the text says why."""


@dataclass(frozen=True, slots=True)
class Translation:
    """How points are translated, according to the settings."""

    names: Names
    promoted: frozenset[str]
    scope_labels: bool
    keep_delta: bool
    custom_buckets: bool
    limits: Limits

    @classmethod
    def of(cls, settings: Settings) -> Translation:
        return cls(
            Names.of(settings.otlp_translation_strategy),
            frozenset(settings.otlp_promote_resource_attributes),
            settings.otlp_scope_labels,
            settings.otlp_keep_delta,
            settings.otlp_custom_buckets,
            Limits.of(settings),
        )


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` and `unit` in Prometheus's form; `kind`: the number of its type; `labels`: of its resource and scope."""

    name: str
    unit: str
    kind: int
    is_delta: bool
    labels: Mapping[str, str]
    promoted: Mapping[str, str]
    """Labels that a point's own attributes override."""


LabelSets = tuple[bytes, Sequence[int]]
"""(label sets in canonical form (`shared.labels.encode`), concatenated; the size of each in bytes)."""


@dataclass(slots=True)
class Target:
    """The labels that a resource adds to all of its series, and those of its `target_info`, if it has one."""

    identity: dict[str, str]
    promoted: dict[str, str]
    info: dict[str, str]


def target_of(resource: Any, translation: Translation) -> Target:
    """Raises NotValid."""
    texts = attributes.plain(resource.attributes)
    namespace, name, instance = (texts.get(key, "") for key in IDENTIFYING)
    job = f"{namespace}/{name}" if namespace and name else name
    identity = {label: text for label, text in (("job", job), ("instance", instance)) if text}
    promoted = [
        attribute
        for attribute in resource.attributes
        if ALL in translation.promoted or attribute.key in translation.promoted
    ]
    others = attributes.labels(
        (attribute for attribute in resource.attributes if attribute.key not in IDENTIFYING), translation.names
    )
    info = {**others, **identity, METRIC_NAME: TARGET_INFO} if any(others.values()) and identity else {}
    return Target(
        identity, _within_limit(attributes.labels(promoted, translation.names), translation, "its resource"), info
    )


def _within_limit(labels: dict[str, str], translation: Translation, what: str) -> dict[str, str]:
    """These labels, which every series of a resource or scope gets. Raises NotValid if there are more than any series
    can have, without trying each of them."""
    if len(labels) > translation.limits.labels:
        raise NotValid(f"{what} has {len(labels)} attributes that are labels; the limit is {translation.limits.labels}")
    return labels


def scope_labels(scope: Any, url: str, translation: Translation) -> dict[str, str]:
    """Raises NotValid."""
    if not translation.scope_labels:
        return {}
    labels = _within_limit(attributes.labels(scope.attributes, translation.names), translation, "its scope")
    return {f"otel_scope_{name}": text for name, text in labels.items()} | {
        "otel_scope_name": scope.name,
        "otel_scope_version": scope.version,
        "otel_scope_schema_url": url,
    }


def metric_of(
    name: str,
    unit: str,
    kind: int,
    temporality: int,
    is_monotonic: bool,
    target: Target,
    scope: Mapping[str, str],
    translation: Translation,
) -> Metric:
    """Raises NotValid for a metric whose points cannot be stored."""
    if not name:
        raise NotValid("it has no name")
    has_temporality = kind in _KINDS
    if has_temporality and temporality not in (walk.DELTA, walk.CUMULATIVE):
        raise NotValid(f"its aggregation temporality is {temporality}; it must be 2 (cumulative) or 1 (delta)")
    is_delta = has_temporality and temporality == walk.DELTA
    if is_delta and not translation.keep_delta:
        raise NotValid(
            f"it is {_KINDS[kind]} of delta temporality, which is stored only with TRIPTYCH_OTLP_KEEP_DELTA=true; "
            "have the exporter send cumulative values"
        )
    translated, translated_unit = family_of(name, unit, kind, temporality, is_monotonic, translation)
    if not translated:
        raise NotValid(f"nothing is left of its name {name!r} in Prometheus's form")
    return Metric(
        translated, translated_unit, type_of(kind, temporality, is_monotonic), is_delta,
        {**scope, **target.identity}, target.promoted,
    )  # fmt: skip


def family_of(
    name: str, unit: str, kind: int, temporality: int, is_monotonic: bool, translation: Translation
) -> tuple[str, str]:
    """(name, unit) in Prometheus's form."""
    own_type = type_of(kind, temporality, is_monotonic)
    is_gauge = kind == walk.GAUGE
    translated = translation.names.metric(name, unit, is_counter=own_type == _COUNTER, is_gauge=is_gauge)
    return translated, translation.names.unit(unit)


def type_of(kind: int, temporality: int, is_monotonic: bool) -> int:
    """The number of the type of a metric (`series.metadata.TYPES`)."""
    if kind == walk.SUM:
        if temporality == walk.DELTA:
            return _UNKNOWN
        return _COUNTER if is_monotonic else _GAUGE
    return {walk.GAUGE: _GAUGE, walk.SUMMARY: _SUMMARY}.get(kind, _HISTOGRAM)


def labels_of(metric: Metric, own_attributes: Iterable[Any], translation: Translation) -> dict[str, str]:
    """All labels of a point except the metric name."""
    point_labels = attributes.labels(own_attributes, translation.names)
    return {**metric.promoted, **point_labels, **metric.labels}


def encoded(labels: Mapping[str, str], translation: Translation) -> bytes:
    """A label set in canonical form. Raises NotValid if it exceeds a limit."""
    pairs = tuple((name, text) for name, text in labels.items() if text)
    limits = translation.limits
    names_max, values_max = limits.name_bytes // 4, limits.value_bytes // 4  # a character has four bytes at most
    if len(pairs) > limits.labels or any(
        not 0 < len(name) <= names_max or len(text) > values_max for name, text in pairs
    ):
        problem = problem_of([(name.encode(), text.encode()) for name, text in pairs], limits)
        if problem:
            raise NotValid(problem)
    return encode(pairs)


def _varied(labels: Mapping[str, str], name: str, texts: Iterable[str], translation: Translation) -> Iterator[bytes]:
    """Label sets that differ in one label, in canonical form. Raises NotValid if they exceed a limit."""
    encoded({**labels, name: "-" * _NUMBER_CHARACTERS}, translation)
    prefix = encode(tuple((other, text) for other, text in labels.items() if text and other.encode() < name.encode()))
    suffix = encode(tuple((other, text) for other, text in labels.items() if text and other.encode() > name.encode()))
    for text in texts:
        yield prefix + encode(((name, text),)) + suffix


def number_sets(metric: Metric, point: Any, translation: Translation) -> LabelSets:
    labels = encoded({**labels_of(metric, point.attributes, translation), METRIC_NAME: metric.name}, translation)
    return labels, (len(labels),)


def histogram_sets(metric: Metric, point: Any, translation: Translation) -> LabelSets:
    """The sum, if there is one, the count, and the buckets in the order of their bounds."""
    bounds = point.explicit_bounds
    if len(bounds) > BOUNDS_MAX:
        raise NotValid(f"a histogram has {len(bounds)} explicit bounds; the limit is {BOUNDS_MAX}")
    if any(not low < high for low, high in pairwise(bounds)):
        raise NotValid("the explicit bounds of a histogram do not ascend")
    series_labels = labels_of(metric, point.attributes, translation)
    sets = [encoded({**series_labels, METRIC_NAME: f"{metric.name}_sum"}, translation)] if point.HasField("sum") else []
    sets.append(encoded({**series_labels, METRIC_NAME: f"{metric.name}_count"}, translation))
    series_labels[METRIC_NAME] = f"{metric.name}_bucket"
    sets += _varied(series_labels, "le", map(attributes.number_text, [*bounds, float("inf")]), translation)
    return b"".join(sets), [len(labels) for labels in sets]


def summary_series(metric: Metric, point: Any, translation: Translation) -> list[tuple[bytes, float]]:
    """(label set, value) of each series of a summary."""
    series_labels = labels_of(metric, point.attributes, translation)
    if len(point.quantile_values) > BOUNDS_MAX:
        raise NotValid(f"a summary has {len(point.quantile_values)} quantiles; the limit is {BOUNDS_MAX}")
    series = [
        (encoded({**series_labels, METRIC_NAME: f"{metric.name}_sum"}, translation), point.sum),
        (encoded({**series_labels, METRIC_NAME: f"{metric.name}_count"}, translation), float(point.count)),
    ]
    series_labels[METRIC_NAME] = metric.name
    quantiles = [attributes.number_text(each.quantile) for each in point.quantile_values]
    sets = _varied(series_labels, "quantile", quantiles, translation)
    return series + [(labels, each.value) for labels, each in zip(sets, point.quantile_values, strict=True)]


def message(kind: Any, data: bytes, what: str) -> Any:
    """A message of a body. Raises NotValid."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise NotValid(f"{what} has {len(data)} bytes; the limit is {MESSAGE_BYTES_MAX}")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise NotValid(f"{what} is not valid: {error}") from None


def resource_message(data: bytes) -> Any:
    return message(Resource, data, "its resource")


def scope_message(data: bytes) -> Any:
    return message(InstrumentationScope, data, "its scope")
