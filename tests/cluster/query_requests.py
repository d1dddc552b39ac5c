"""Samples and queries over HTTP, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import snappy

from loadtest.harness.cluster import Cluster, Response
from proto import remote_write_pb2

T0_S = 1_700_000_000
STEP_S = 15


Series = dict[tuple[tuple[str, str], ...], list[tuple[int, float]]]
"""Label pairs → samples (Unix ms, value)."""


def requests_and_levels() -> Series:
    """20 counters `q_requests_total` that grow by i + 1 every 15 s, a gauge `q_level`, two `q_odd` of one sample."""
    series: Series = {}
    for i in range(20):
        labels = (("__name__", "q_requests_total"), ("host", f"h{i:02d}"), ("job", "api" if i % 2 else "db"))
        series[labels] = [((T0_S + k * STEP_S) * 1000, float(k * (i + 1))) for k in range(41)]
    series[(("__name__", "q_level"),)] = [((T0_S + k * STEP_S) * 1000, float(k % 3)) for k in range(41)]
    series[(("__name__", "q_odd"), ("kind", "nan"))] = [(T0_S * 1000 + 781, float("nan"))]
    series[(("__name__", "q_odd"), ("kind", "tiny"))] = [(T0_S * 1000 + 781, 1e-7)]
    return series


def write(cluster: Cluster, series: Mapping[tuple[tuple[str, str], ...], list[tuple[int, float]]]) -> None:
    request = remote_write_pb2.WriteRequest()
    for labels, samples in series.items():
        one = request.timeseries.add()
        for name, value in sorted(labels):
            one.labels.add(name=name, value=value)
        for time_ms, number in samples:
            one.samples.add(timestamp=time_ms, value=number)
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    answer = cluster.request("POST", "/api/v1/write", snappy.compress(request.SerializeToString()), headers)
    assert answer.status == 204, answer.body


def data(answer: Response) -> Any:
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("application/json")
    body = answer.json()
    assert body["status"] == "success"
    return body["data"]


def refused(answer: Response, status: int, kind: str = "bad_data") -> str:
    assert answer.status == status, answer.body
    body = answer.json()
    assert set(body) == {"status", "errorType", "error"}
    assert (body["status"], body["errorType"]) == ("error", kind)
    return body["error"]


def instant(cluster: Cluster, query: str, time_s: float = T0_S + 600, **more: str) -> Any:
    return data(cluster.get("/api/v1/query", query=query, time=str(time_s), **more))


def over_range(
    cluster: Cluster, query: str, start: float = T0_S, end: float = T0_S + 600, step: str = "60", **more: str
) -> Response:
    return cluster.get("/api/v1/query_range", query=query, start=str(start), end=str(end), step=step, **more)
