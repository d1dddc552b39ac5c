"""The service's own metrics: counts of this process, and values that sources add when the metrics are read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import UNDERSCORES
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from coordinator.headers.exposition_format import format_for
from coordinator.limits.request_kinds import STATUS_PATHS
from coordinator.watching.catalogue import METRICS
from coordinator.watching.metric import Metric
from shared.errors import TriptychError
from shared.measurements import LONG_S, Latencies, Value, Values

Source = Callable[[Values], None]

LOG_PATHS, VECTOR_PATHS, METRICS_PATHS = "/api/v1/log/", "/api/v1/vector/", ("/api/v1/", "/federate")
SERVICE_PATHS = (*STATUS_PATHS, "/api/v1/cluster")
AREAS, OUTCOMES = ("metrics", "log", "vector", "service"), ("ok", "refused", "failed", "left")
ALERTED_REASONS = (
    "unavailable",
    "deadline",
    "internal",
    "overload",
    "requests_in_flight",
    "client_share",
    "bodies_bytes",
    "worker_requests",
    "worker_bytes",
    "queries_waiting",
    "query_budget",
    "too_large",
)
"""Shown from the beginning, because a counter that appears with its first event shows no increase."""
CLIENT_LEFT = 499
UNAVAILABLE = 503


class Telemetry:
    """Counts requests and their effects. For the event loop's thread only."""

    def __init__(self) -> None:
        self.samples_in = 0
        self.series_refused = 0
        self.series_by_number = 0
        """Runs of samples that went to the workers with a number instead of labels."""
        self.stale_writes = 0
        self.histograms_in = 0
        self.histograms_refused = 0
        self.exemplars_in = 0
        self.exemplars_refused = 0
        self.records_in = 0
        self.vectors_in = 0
        self.refused: Counter[str] = Counter(dict.fromkeys(ALERTED_REASONS, 0))
        """Requests answered with an error, by reason."""
        self._requests: dict[tuple[str, str, int], int] = {}
        self._latencies: dict[str, Latencies] = {}
        self._sources: list[Source] = [self._put_requests]

    def watch(self, source: Source) -> None:
        """Add a source of metrics, which is called whenever the metrics are read."""
        self._sources.append(source)

    def served(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request, by its route."""
        key = (method, path, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        latencies = self._latencies.get(path)
        if latencies is None:
            latencies = self._latencies[path] = Latencies(LONG_S)
        latencies.add(seconds)

    def refuse(self, error: TriptychError) -> None:
        """Count an error that a client gets, by its reason. An error without a reason has been counted elsewhere."""
        if error.reason:
            self.refused[error.reason] += 1

    def values(self) -> Values:
        """All metrics as they are now."""
        values = Values()
        for source in self._sources:
            source(values)
        return values

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return render(self.values(), "")[0]

    def _put_requests(self, values: Values) -> None:
        by_area: Counter[tuple[str, str]] = Counter({(area, outcome): 0 for area in AREAS for outcome in OUTCOMES})
        for (method, path, status), count in self._requests.items():
            values.put("triptych_http_requests_total", count, method, path, str(status))
            by_area[area_of(path), _outcome(status)] += count
        area_latencies: dict[str, Latencies] = defaultdict(lambda: Latencies(LONG_S))
        for path, latencies in self._latencies.items():
            values.put("triptych_http_request_duration_seconds", latencies, path)
            total = area_latencies[area_of(path)]
            total.counts = [a + b for a, b in zip(total.counts, latencies.counts, strict=True)]
            total.seconds += latencies.seconds
        for (area, outcome), count in by_area.items():
            values.put("triptych_area_requests_total", count, area, outcome)
        for area, latencies in area_latencies.items():
            values.put("triptych_area_request_duration_seconds", latencies, area)
        for reason, count in self.refused.items():
            values.put("triptych_requests_refused_total", count, reason)
        values.put("triptych_samples_in_total", self.samples_in)
        values.put("triptych_series_refused_total", self.series_refused)
        values.put("triptych_series_by_number_total", self.series_by_number)
        values.put("triptych_stale_writes_total", self.stale_writes)
        values.put("triptych_histograms_in_total", self.histograms_in)
        values.put("triptych_histograms_refused_total", self.histograms_refused)
        values.put("triptych_exemplars_in_total", self.exemplars_in)
        values.put("triptych_exemplars_refused_total", self.exemplars_refused)
        values.put("triptych_log_records_in_total", self.records_in)
        values.put("triptych_vectors_in_total", self.vectors_in)


def render(values: Values, accept: str) -> tuple[bytes, str]:
    """Metrics in the format that an Accept header asks for, Prometheus's text or OpenMetrics, and its content type. It
    takes some 5 µs for each series."""
    registry = CollectorRegistry()
    registry.register(_Families(values))
    chosen_format = format_for(accept)
    encode = generate_openmetrics if chosen_format.is_openmetrics else generate_latest
    return encode(registry, UNDERSCORES), chosen_format.content_type  # own names are plain: no scheme changes them


def area_of(path: str) -> str:
    """The area of a route: metrics, log or vector; service for all others."""
    if path.startswith(LOG_PATHS):
        return "log"
    if path.startswith(VECTOR_PATHS):
        return "vector"
    return "metrics" if path.startswith(METRICS_PATHS) and not path.startswith(SERVICE_PATHS) else "service"


def _outcome(status: int) -> str:
    if status < 400:
        return "ok"
    if status == CLIENT_LEFT:
        return "left"
    return "refused" if status < 500 or status == UNAVAILABLE else "failed"


def buckets_of(metric: Metric, value: list[float]) -> tuple[list[tuple[str, float]], float]:
    """((upper bound, requests up to it) of each bucket, sum) of a histogram's value."""
    bounds = [*(floatToGoString(bound) for bound in metric.bounds_s), "+Inf"]
    return list(zip(bounds, map(float, accumulate(value[:-1])), strict=True)), value[-1]


class _Families(Collector):
    """Values in the form that the client library takes."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterator[Family]:
        for name, series in self._values.by_name.items():
            yield _family(METRICS[name], series)


def _family(metric: Metric, series: list[tuple[list[str], Value]]) -> Family:
    if metric.type == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in series:
            assert isinstance(value, list)
            buckets, total = buckets_of(metric, value)
            histogram.add_metric(labels, buckets, total)
        return histogram
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    family = kind(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
    for labels, value in series:
        assert not isinstance(value, list)
        family.add_metric(labels, value)
    return family
