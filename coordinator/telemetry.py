"""The coordinator's own metrics, in Prometheus's text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from coordinator.access.gatekeeper import Gatekeeper
from coordinator.connections import Connections
from coordinator.links import Links
from coordinator.pressure import Pressure

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_BOUNDS = [*(floatToGoString(bound) for bound in _SECONDS), "+Inf"]


class Telemetry:
    """Counters of this process, and a view of the shards taken when `/metrics` is read."""

    def __init__(self, links: Links) -> None:
        self._registry = CollectorRegistry()
        self._requests = _Requests()
        self._registry.register(self._requests)
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

    def watch(self, connections: Connections) -> None:
        """Show these connections, too."""
        self._registry.register(_Connections(connections))

    def watch_pressure(self, pressure: Pressure) -> None:
        """Show this, too."""
        self._registry.register(_Overload(pressure))

    def watch_access(self, access: Gatekeeper) -> None:
        """Show this, too."""
        self._registry.register(_Access(access))

    def served(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request. Called on the event loop only."""
        self._requests.add(method, path, status, seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


@dataclass(slots=True)
class _Latencies:
    """`counts[i]` requests took up to `_SECONDS[i]` and more than the bound before it; the last, more than all."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_SECONDS) + 1))
    seconds: float = 0.0


class _Requests(Collector):
    """HTTP requests by method, path and status, and how long they took. The client library's own counters take a lock
    and some microseconds for each of these steps, which is a good part of what a small request costs."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        self._latencies: dict[str, _Latencies] = {}

    def add(self, method: str, path: str, status: int, seconds: float) -> None:
        key = (method, path, status)
        self._counts[key] = self._counts.get(key, 0) + 1
        latencies = self._latencies.get(path)
        if latencies is None:
            latencies = self._latencies[path] = _Latencies()
        latencies.counts[bisect_left(_SECONDS, seconds)] += 1
        latencies.seconds += seconds

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "triptych_http_requests", "HTTP requests served", labels=["method", "path", "status"]
        )
        for (method, path, status), count in self._counts.items():
            requests.add_metric([method, path, str(status)], count)
        took = HistogramMetricFamily(
            "triptych_http_request_duration_seconds", "Time to serve an HTTP request", labels=["path"]
        )
        for path, latencies in self._latencies.items():
            totals = [float(total) for total in accumulate(latencies.counts)]
            buckets = list(zip(_BOUNDS, totals, strict=True))
            took.add_metric([path], buckets=buckets, sum_value=latencies.seconds)
        yield from (requests, took)


class _Connections(Collector):
    """Connections, and those that were ended before their clients closed them."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("triptych_connections", "HTTP connections", len(self._connections.open))
        ended = CounterMetricFamily(
            "triptych_connections_ended", "HTTP connections ended or refused", labels=["reason"]
        )
        for reason, count in self._connections.ended.items():
            ended.add_metric([reason], count)
        yield ended


class _Overload(Collector):
    """How overloaded the service is, and what it has refused therefore."""

    def __init__(self, pressure: Pressure) -> None:
        self._pressure = pressure

    def collect(self) -> Iterator[Metric]:
        pressure = self._pressure
        yield GaugeMetricFamily(
            "triptych_overload_level",
            "What is given up: 0 nothing, 1 background work, 2 heavy queries, 3 writes",
            float(pressure.level),
        )
        yield GaugeMetricFamily(
            "triptych_queue_wait_seconds", "How long work waits for its turn, on average", pressure.wait_s
        )
        yield GaugeMetricFamily(
            "triptych_memory_available_bytes",
            "Memory that is left on the machine or in the control group",
            pressure.available_bytes,
        )
        refused = CounterMetricFamily(
            "triptych_overload_refused", "Requests refused because of overload", labels=["reason"]
        )
        for reason, count in pressure.refused.items():
            refused.add_metric([reason], count)
        yield refused


class _Access(Collector):
    """Who was not let in, and whether the files of users and tokens are in force."""

    def __init__(self, access: Gatekeeper) -> None:
        self._access = access

    def collect(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "triptych_access_refused",
            "Requests refused: unauthorized, forbidden, rate (of a token), busy (too many new credentials)",
            labels=["reason"],
        )
        for reason, count in self._access.refused.items():
            refused.add_metric([reason], count)
        reloads = CounterMetricFamily(
            "triptych_access_reloads", "Times that changed files of users and tokens were read", labels=["result"]
        )
        for result, count in self._access.reloads.items():
            reloads.add_metric([result], count)
        current = GaugeMetricFamily(
            "triptych_access_files_valid",
            "0 while a file of users, tokens or TLS cannot be used, and what it said before stays in force",
            float(self._access.is_current),
        )
        yield from (refused, reloads, current)


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
