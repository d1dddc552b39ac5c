"""The coordinator's own metrics, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.links import Links

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)


class Telemetry:
    """Counters of this process, and a view of the shards taken when `/metrics` is read."""

    def __init__(self, links: Links) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "triptych_http_requests", "HTTP requests served", ["method", "path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "triptych_http_request_duration_seconds",
            "Time to serve an HTTP request",
            ["path"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.samples_in = Counter(
            "triptych_samples_in", "Samples acknowledged by remote write", registry=self._registry
        )
        self.series_refused = Counter(
            "triptych_series_refused", "Series of remote write requests that were not valid", registry=self._registry
        )
        self.records_in = Counter("triptych_log_records_in", "Log records acknowledged", registry=self._registry)
        self.vectors_in = Counter("triptych_vectors_in", "Vectors upserted", registry=self._registry)
        ProcessCollector(registry=self._registry)
        self._registry.register(_Shards(links))

    def served(self, method: str, path: str, status: int, seconds: float) -> None:
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Shards(Collector):
    """Per-shard state and counts, from the workers' last beats."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def collect(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily("triptych_shard_ready", "1 where the shard serves", labels=["shard", "state"])
        items = GaugeMetricFamily("triptych_shard_items", "Items a shard holds", labels=["shard", "kind"])
        for shard in self._links.states():
            ready.add_metric([str(shard.number), shard.state], 1.0 if shard.state == "ready" else 0.0)
            for kind, count in shard.counts.items():
                items.add_metric([str(shard.number), kind], count)
        workers = GaugeMetricFamily("triptych_workers", "Worker processes connected", len(self._links.workers()))
        yield from (ready, items, workers)
