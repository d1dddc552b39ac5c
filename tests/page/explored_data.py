"""Metrics for tests of the page: written over the last hour, so that the page shows them as it opens."""

from __future__ import annotations

import time
from typing import Any

import snappy

from loadtest.harness.cluster import Cluster
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import HEADERS, body, compressed
from proto import remote_write_pb2

STEP_S = 15
SAMPLES = 240
JOBS = ("api", "shop", "mail")
LES = ("0.1", "0.5", "1", "5", "+Inf")
COUNTER, GAUGE, HISTOGRAM = 1, 2, 3
FAMILIES = [
    ("page_requests_total", COUNTER, "Requests that were answered.", ""),
    ("page_seconds", HISTOGRAM, "How long requests took.", "seconds"),
    ("page_native_seconds", HISTOGRAM, "How long requests took, in native histograms.", "seconds"),
    ("page_many", GAUGE, "A gauge with thousands of series.", "bytes"),
]


def write(cluster: Cluster, series: Any) -> None:
    answer = cluster.request("POST", "/api/v1/write", compressed(series), HEADERS)
    assert answer.status == 204, answer.body


def write_metadata(cluster: Cluster, families: list[tuple[str, int, str, str]]) -> None:
    request = remote_write_pb2.WriteRequest()
    for name, kind, text, unit in families:
        request.metadata.add(type=kind, metric_family_name=name, help=text, unit=unit)
    answer = cluster.request("POST", "/api/v1/write", snappy.compress(request.SerializeToString()), HEADERS)
    assert answer.status == 204, answer.body


def write_all(cluster: Cluster) -> int:
    """Writes counters, classic and native histograms and 10,000 gauges that end now, once for all tests that share the
    cluster. Returns the last time, in s."""
    if cluster.url not in _last_s:
        _last_s[cluster.url] = _write_all(cluster)
    return _last_s[cluster.url]


_last_s: dict[str, int] = {}


def _write_all(cluster: Cluster) -> int:
    last = int(time.time()) // STEP_S * STEP_S
    times = [(last - STEP_S * (SAMPLES - 1 - index)) * 1000 for index in range(SAMPLES)]
    counters = [
        (
            {"__name__": "page_requests_total", "job": job, "instance": f"{job}-{number}", "dc": "zürich"},
            [(at, float(index * (number + 1))) for index, at in enumerate(times)],
        )
        for job in JOBS
        for number in range(2)
    ]
    buckets = [
        (
            {"__name__": "page_seconds_bucket", "job": "api", "le": le},
            [(at, float(index * (place + 1))) for index, at in enumerate(times)],
        )
        for place, le in enumerate(LES)
    ]
    write(cluster, counters + buckets)
    write(
        cluster,
        [({"__name__": "page_many", "i": f"{i:05}", "half": str(i % 2)}, [(times[-1], i / 8)]) for i in range(10_000)],
    )
    write_native(cluster, times[-20:])
    write_metadata(cluster, FAMILIES)
    return last


def write_native(cluster: Cluster, times: list[int]) -> None:
    request: Any = remote_write_pb2.WriteRequest.FromString(
        body([({"__name__": "page_native_seconds", "job": "api"}, [])])
    )
    messages = [
        histogram_message(
            timestamp=at,
            count_int=6 * index,
            sum=2.5 * index,
            schema=0,
            positive_spans=[(0, 3)],
            positive_deltas=[index, index, index],
        )
        for index, at in enumerate(times, 1)
    ]
    request.timeseries[0].histograms.extend(messages)
    answer = cluster.request("POST", "/api/v1/write", snappy.compress(request.SerializeToString()), HEADERS)
    assert answer.status == 204, answer.body
