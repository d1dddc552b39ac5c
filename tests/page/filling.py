"""A cluster that is filled as if it had been at work: a shop whose services are scraped, write a log of orders, and
search their products. The same numbers each time, but for the times, which end now."""

from __future__ import annotations

import math
import time
from base64 import b64encode
from typing import Any

import numpy as np
import orjson
import snappy
from numpy.typing import NDArray

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import HEADERS
from proto import remote_write_pb2

HOURS = 2
STEP_S = 15
STEPS = HOURS * 3600 // STEP_S
INSTANCES = {"api": 3, "checkout": 2, "search": 2}
"""Of each job."""
HANDLERS = {"api": ("/orders", "/products", "/users"), "checkout": ("/cart", "/pay"), "search": ("/search",)}
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, math.inf)
METADATA = (
    (remote_write_pb2.MetricMetadata.COUNTER, "http_requests_total", "Requests by handler and status.", ""),
    (
        remote_write_pb2.MetricMetadata.HISTOGRAM,
        "http_request_duration_seconds",
        "How long requests took.",
        "seconds",
    ),
    (remote_write_pb2.MetricMetadata.GAUGE, "process_resident_memory_bytes", "Resident memory.", "bytes"),
    (remote_write_pb2.MetricMetadata.GAUGE, "queue_length", "Orders that wait to be paid.", ""),
)

ORDERS = 400
APPENDED = 10
"""Records of a request: those of one have the same time."""
STATES = ("placed", "paid", "packed", "shipped", "returned")
TOWNS = ("Basel", "Bern", "Genève", "Lugano", "Zürich")

COLLECTION = "products"
DIMENSION = 32
A_KIND = 150
"""Vectors of each kind."""
KINDS = {
    "shoes": ("running shoe", "hiking boot", "sandal"),
    "coats": ("rain coat", "wool coat", "parka"),
    "books": ("novel", "atlas", "cookery book"),
    "tools": ("hammer", "spanner", "saw"),
    "toys": ("wooden train", "kite", "puzzle"),
    "lamps": ("desk lamp", "lantern", "torch"),
}
COLOURS = ("black", "red", "green", "blue", "white")

Numbers = NDArray[np.float64]


def fill(cluster: Cluster) -> None:
    """Metrics, records and vectors."""
    fill_metrics(cluster)
    fill_log(cluster)
    fill_vectors(cluster)


def fill_metrics(cluster: Cluster) -> None:
    """Two hours of counters, gauges and histograms of three jobs."""
    request = remote_write_pb2.WriteRequest()
    for kind, name, text, unit in METADATA:
        request.metadata.add(type=kind, metric_family_name=name, help=text, unit=unit)
    random = np.random.default_rng(1)
    times_ms = (int(time.time()) - STEP_S * np.arange(STEPS)[::-1]) * 1000
    for number, (job, count) in enumerate(INSTANCES.items()):
        for instance in range(count):
            labels = {"job": job, "instance": f"10.0.{number}.{instance + 1}:8080"}
            _add_instance(request, labels, HANDLERS[job], times_ms, random)
    answer = cluster.request("POST", "/api/v1/write", snappy.compress(request.SerializeToString()), HEADERS)
    assert answer.status < 300, answer.body


def _add_instance(request: Any, labels: dict[str, str], handlers: tuple[str, ...], times_ms: Any, random: Any) -> None:
    place = np.arange(STEPS) / STEPS
    busy = 1.2 + np.sin(2 * math.pi * (place * HOURS / 1.5 + random.uniform(0, 0.2)))  # waves of an hour and a half
    for handler in handlers:
        rate = 40 * random.uniform(0.5, 1.5) * busy
        for code, share in (("200", 0.97), ("404", 0.02), ("500", 0.01)):
            counts = random.poisson(rate * share * STEP_S).cumsum()
            _add(request, "http_requests_total", labels | {"handler": handler, "code": code}, times_ms, counts)
        _add_histogram(request, labels | {"handler": handler}, times_ms, rate, random)
    memory = 3e8 + 5e7 * place + 2e7 * busy + random.normal(0, 2e6, STEPS)
    _add(request, "process_resident_memory_bytes", labels, times_ms, memory.round())
    _add(request, "queue_length", labels, times_ms, random.poisson(6 * busy))
    _add(request, "up", labels, times_ms, np.ones(STEPS))


def _add_histogram(request: Any, labels: dict[str, str], times_ms: Any, rate: Numbers, random: Any) -> None:
    """Durations are log-normal, and longer while there is more to do."""
    name = "http_request_duration_seconds"
    middle_s = 0.02 + 0.04 * rate / rate.max()
    below = [
        0.5 + 0.5 * np.vectorize(math.erf)(np.log(bound / middle_s) / (0.9 * math.sqrt(2))) for bound in BOUNDS_S[:-1]
    ]
    counts = random.poisson(rate * STEP_S)
    for bound, share in zip(BOUNDS_S, [*below, np.ones(STEPS)], strict=True):
        le = "+Inf" if math.isinf(bound) else f"{bound:g}"
        _add(request, f"{name}_bucket", labels | {"le": le}, times_ms, (counts * share).round().cumsum())
    _add(request, f"{name}_count", labels, times_ms, counts.cumsum())
    _add(request, f"{name}_sum", labels, times_ms, (counts * middle_s * 1.5).cumsum().round(3))


def _add(request: Any, name: str, labels: dict[str, str], times_ms: Any, values: Any) -> None:
    entry = request.timeseries.add()
    for key, value in sorted({"__name__": name, **labels}.items()):
        entry.labels.add(name=key, value=value)
    for timestamp, value in zip(times_ms.tolist(), values.tolist(), strict=True):
        entry.samples.add(timestamp=timestamp, value=value)


def fill_log(cluster: Cluster) -> None:
    """Keys of orders as JSON, of payments as text, of a scan as bytes, and of a report of 300 KB."""
    random = np.random.default_rng(2)
    records: list[dict[str, Any]] = []
    for number in range(ORDERS):
        order = {
            "order": 1000 + number // 2,
            "state": STATES[int(random.integers(len(STATES)))],
            "town": TOWNS[int(random.integers(len(TOWNS)))],
            "items": [{"id": int(random.integers(900)), "count": int(random.integers(1, 4))} for _ in range(2)],
            "total": round(float(random.uniform(5, 400)), 2),
        }
        records.append({"keyText": "orders", "json": order})
        if number % 3 == 0:
            records.append(
                {"keyText": "payments", "text": f"order {order['order']} paid by card: {order['total']} CHF"}
            )
    records.append({"keyText": "labels/scan-1", "value": b64encode(random.bytes(600)).decode()})
    records.append({"keyText": "reports/daily", "text": "day,orders,total\n" + "2026-01-31,812,48211.50\n" * 13_000})
    for first in range(0, len(records), APPENDED):
        _post(cluster, "/api/v1/log/append", {"records": records[first : first + APPENDED]})


def fill_vectors(cluster: Cluster) -> None:
    """A collection of six kinds of products, each a cloud of its own."""
    answer = cluster.request(
        "PUT",
        f"/api/v1/vector/collections/{COLLECTION}",
        b'{"dimension": %d, "textFields": ["title"]}' % DIMENSION,
        {"Content-Type": "application/json"},
    )
    assert answer.status == 200, answer.body
    random = np.random.default_rng(3)
    vectors = []
    for kind, names in KINDS.items():
        middle = random.normal(0, 1, DIMENSION)
        for number in range(A_KIND):
            colour, name = COLOURS[int(random.integers(5))], names[number % len(names)]
            attributes = {
                "vector": (middle + random.normal(0, 0.45, DIMENSION)).round(4).tolist(),
                "kind": kind,
                "colour": colour,
                "title": f"{colour} {name}",
                "price": round(float(random.uniform(5, 200)), 2),
                "year": int(random.integers(2018, 2027)),
            }
            vectors.append({"id": f"{kind}-{number}", "attributes": attributes})
    _post(cluster, "/api/v1/vector/write", {"collection": COLLECTION, "upsertVectors": vectors})


def _post(cluster: Cluster, path: str, body: Any) -> None:
    answer = cluster.request("POST", path, orjson.dumps(body), {"Content-Type": "application/json"})
    assert answer.status == 200, answer.body[:500]
