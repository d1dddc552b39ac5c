"""The protobuf exposition: messages `io.prometheus.client.MetricFamily`, each after its length. It is the only format
with native histograms.

Interpreted code reads it, in some 3 µs for each sample, because targets are asked for this format only where native
histograms are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from prometheus_client.utils import floatToGoString

from coordinator.scraping.labelling import Unusable
from coordinator.scraping.series_text import Exemplar, Family
from coordinator.scraping.target_series import DROPPED, LINES_MAX, Ints, Samples, TargetSeries
from proto import exposition_pb2
from shared.errors import BadData
from shared.labels import METRIC_NAME
from shared.protobuf_fields import read_varint

BODY_BYTES_MAX = 16 << 20
"""The limit on an answer, because the protobuf library makes objects of several times its size."""
GAUGE_RESET = 3
"""The counter reset hint of a gauge histogram."""

_TYPES = {
    exposition_pb2.COUNTER: "counter",
    exposition_pb2.GAUGE: "gauge",
    exposition_pb2.SUMMARY: "summary",
    exposition_pb2.UNTYPED: "unknown",
    exposition_pb2.HISTOGRAM: "histogram",
    exposition_pb2.GAUGE_HISTOGRAM: "gaugehistogram",
}


def read(
    series: TargetSeries,
    body: bytes,
    time_ms: int,
    *,
    with_histograms: bool,
    keeps_classic: bool,
    honors_times: bool = True,
) -> Samples:
    """The samples. Those without a time have this one; so have all of them unless `honors_times`. `with_histograms`:
    native histograms are stored, and the classic buckets of their families only if `keeps_classic`. Raises BadData."""
    if len(body) > BODY_BYTES_MAX:
        raise BadData(f"the answer has {len(body)} bytes; in protobuf the limit is {BODY_BYTES_MAX}")
    series.begin()
    reading = _Reading(series, time_ms, with_histograms, keeps_classic, honors_times)
    try:
        for family in _families(body):
            reading.add_family(family)
    except Unusable as error:
        kept = reading.numbers()
        raise Unusable(str(error), reading.total, len(kept), kept) from None
    return reading.samples()


def _families(body: bytes) -> Iterator[exposition_pb2.MetricFamily]:
    at = number = 0
    while at < len(body):
        try:
            size, begin = read_varint(body[at : at + 10], 0)
            begin += at
            if begin + size > len(body):
                raise BadData(f"metric family {number} has {size} bytes, and the answer ends before")
            yield exposition_pb2.MetricFamily.FromString(body[begin : begin + size])
        except (IndexError, DecodeError) as error:
            raise BadData(f"metric family {number} is not a MetricFamily message: {error}") from None
        at, number = begin + size, number + 1


@dataclass(slots=True)
class _Reading:
    """The samples that have been read so far."""

    series: TargetSeries
    time_ms: int
    with_histograms: bool
    keeps_classic: bool
    honors_times: bool
    rows: list[tuple[int, float, int, bool, int]] = field(default_factory=list)
    """(number, value, time, whether the target gave it, start timestamp)."""
    exemplars: list[tuple[int, Exemplar]] = field(default_factory=list)
    histograms: list[tuple[int, bool, bytes]] = field(default_factory=list)
    families: dict[str, Family] = field(default_factory=dict)
    total: int = 0

    def samples(self) -> Samples:
        kept = [row for row in self.rows if row[0] != DROPPED]
        numbers, values, times, timed, starts = zip(*kept, strict=True) if kept else ((),) * 5
        return Samples(
            np.array(numbers, np.int64),
            np.array(values, np.float64),
            np.array(times, np.int64),
            np.array(timed, np.bool_),
            np.array(starts, np.int64) if any(starts) else None,
            self.total,
            self.exemplars,
            self.histograms,
            self.families,
        )

    def numbers(self) -> Ints:
        """The limit on all series that have samples so far."""
        numbers = [number for number, *_ in (*self.rows, *self.histograms) if number != DROPPED]
        return np.array(numbers, np.int64)

    def add_family(self, family: exposition_pb2.MetricFamily) -> None:
        name = family.name
        if not name:
            raise BadData("a metric family has no name")
        self.families[name] = Family(_TYPES.get(family.type, "unknown"), family.help, family.unit)
        for metric in family.metric:
            self._add_metric(name, family.type, metric)

    def _add_metric(self, name: str, kind: int, metric: exposition_pb2.Metric) -> None:
        is_timed = self.honors_times and metric.timestamp_ms != 0
        time_ms = metric.timestamp_ms if is_timed else self.time_ms
        own = _Metric(name, metric, time_ms, is_timed)
        if kind == exposition_pb2.COUNTER:
            number = self._add(own, "", metric.counter.value, _ms(metric.counter.created_timestamp))
            if metric.counter.HasField("exemplar"):
                self._add_exemplars(number, [metric.counter.exemplar], time_ms)
        elif kind == exposition_pb2.SUMMARY:
            start_ms = _ms(metric.summary.created_timestamp)
            self._add(own, "_count", float(metric.summary.sample_count), start_ms)
            self._add(own, "_sum", metric.summary.sample_sum, start_ms)
            for quantile in metric.summary.quantile:
                self._add(own, "", quantile.value, start_ms, ("quantile", floatToGoString(quantile.quantile)))
        elif kind in (exposition_pb2.HISTOGRAM, exposition_pb2.GAUGE_HISTOGRAM):
            is_native = self.with_histograms and _is_native(metric.histogram)
            if is_native:
                self._add_native(own, kind)
            if not is_native or self.keeps_classic:
                self._add_classic(own)
        else:
            value = metric.gauge.value if kind == exposition_pb2.GAUGE else metric.untyped.value
            self._add(own, "", value, 0)

    def _add(self, own: _Metric, suffix: str, value: float, start_ms: int, *pair: tuple[str, str]) -> int:
        """Returns the number of the series."""
        self._count()
        number = self.series.line(own.key(suffix, pair), lambda: own.labels(suffix, pair), {}).number
        self.rows.append((number, value, own.time_ms, own.is_timed, start_ms))
        return number

    def _count(self) -> None:
        self.total += 1
        if self.total > LINES_MAX:
            raise BadData(f"the answer has more than {LINES_MAX} samples")

    def _add_classic(self, own: _Metric) -> None:
        histogram = own.metric.histogram
        start_ms = _ms(histogram.created_timestamp)
        count = histogram.sample_count_float or float(histogram.sample_count)
        has_infinite = False
        for bucket in histogram.bucket:
            has_infinite |= bucket.upper_bound == float("inf")
            value = bucket.cumulative_count_float or float(bucket.cumulative_count)
            number = self._add(own, "_bucket", value, start_ms, ("le", floatToGoString(bucket.upper_bound)))
            if bucket.HasField("exemplar"):
                self._add_exemplars(number, [bucket.exemplar], own.time_ms)
        if not has_infinite:
            self._add(own, "_bucket", count, start_ms, ("le", "+Inf"))
        self._add(own, "_count", count, start_ms)
        self._add(own, "_sum", histogram.sample_sum, start_ms)

    def _add_native(self, own: _Metric, kind: int) -> None:
        self._count()
        number = self.series.line(own.key("", ()), lambda: own.labels("", ()), {}).number
        if number == DROPPED:
            return
        stored = _stored(own.metric.histogram, own.time_ms)
        stored.reset_hint = GAUGE_RESET if kind == exposition_pb2.GAUGE_HISTOGRAM else 0
        self.histograms.append((number, own.is_timed, stored.SerializeToString()))
        exemplars = own.metric.histogram.exemplars or [
            bucket.exemplar for bucket in own.metric.histogram.bucket if bucket.HasField("exemplar")
        ]
        self._add_exemplars(number, sorted(exemplars, key=lambda one: _ms(one.timestamp)), own.time_ms)

    def _add_exemplars(self, number: int, exemplars: Sequence[exposition_pb2.Exemplar], time_ms: int) -> None:
        texts = tuple(exemplar.SerializeToString(deterministic=True) for exemplar in exemplars)
        if number == DROPPED or not texts or not self.series.is_news(number, texts):
            return
        for exemplar in exemplars:
            labels = tuple(sorted((label.name, label.value) for label in exemplar.label))
            own_ms = _ms(exemplar.timestamp) or time_ms
            self.exemplars.append((number, Exemplar(labels, exemplar.value, own_ms)))


@dataclass(slots=True)
class _Metric:
    """A metric of a family, and the time of its samples."""

    name: str
    metric: exposition_pb2.Metric
    time_ms: int
    is_timed: bool
    own_labels: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        self.own_labels = tuple((label.name, label.value) for label in self.metric.label)

    def key(self, suffix: str, pair: tuple[tuple[str, str], ...]) -> bytes:
        return repr((self.name, suffix, self.own_labels, pair)).encode()

    def labels(self, suffix: str, pair: tuple[tuple[str, str], ...]) -> dict[str, str]:
        """Raises BadData for a name that is empty or appears twice."""
        labels: dict[str, str] = {METRIC_NAME: self.name + suffix}
        for name, value in (*self.own_labels, *pair):
            if not name or name in labels:
                raise BadData(
                    f"a series of {self.name[:100]!r} has the label name {name[:100]!r} twice, or it is empty"
                )
            labels[name] = value
        return labels


def _is_native(histogram: exposition_pb2.Histogram) -> bool:
    """Whether the histogram has native buckets: libraries that make them add a span even without observations."""
    has_spans = bool(histogram.positive_span or histogram.negative_span)
    return has_spans or histogram.zero_threshold > 0 or histogram.zero_count > 0 or histogram.zero_count_float > 0


def _stored(histogram: exposition_pb2.Histogram, time_ms: int) -> exposition_pb2.StoredHistogram:
    fields: dict[str, Any] = {
        "sum": histogram.sample_sum,
        "schema": histogram.schema,
        "zero_threshold": histogram.zero_threshold,
        "negative_spans": histogram.negative_span,
        "positive_spans": histogram.positive_span,
        "timestamp": time_ms,
        "start_timestamp": _ms(histogram.created_timestamp),
    }
    if histogram.sample_count_float or histogram.zero_count_float:
        return exposition_pb2.StoredHistogram(
            **fields,
            count_float=histogram.sample_count_float,
            zero_count_float=histogram.zero_count_float,
            negative_counts=histogram.negative_count,
            positive_counts=histogram.positive_count,
        )
    return exposition_pb2.StoredHistogram(
        **fields,
        count_int=histogram.sample_count,
        zero_count_int=histogram.zero_count,
        negative_deltas=histogram.negative_delta,
        positive_deltas=histogram.positive_delta,
    )


def _ms(timestamp: exposition_pb2.Timestamp) -> int:
    """The time in ms, 0 for a missing one. Raises BadData for a time that is out of range."""
    milliseconds = timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
    if abs(milliseconds) >= 2**62:
        raise BadData(f"a timestamp of {timestamp.seconds} s is out of range")
    return int(milliseconds)
