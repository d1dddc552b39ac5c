"""What a kept directory has beside what `tests.check.directory` writes: everything that a format has a form for."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import snappy

from loadtest.harness.cluster import Cluster
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import HEADERS, HEADERS_V2
from proto import remote_write_pb2, remote_write_v2_pb2
from tests.unit import exemplar_requests

HISTOGRAMS_IN_BLOCKS, HISTOGRAMS_IN_LOG = 60, 3
SERIES = 12
STEP_MS = 1000
WITHIN_S = 60.0
JSON = {"Content-Type": "application/json"}
CURSOR = "/api/v1/log/cursors/reader"


def write(cluster: Cluster, end_ms: int) -> None:
    """Leave it running, with exemplars, metadata, a cursor, and vectors and samples that were deleted."""
    series = [
        ({"__name__": "e", "i": str(i)}, [(end_ms - 5000, 1.0)], [({"trace_id": f"t{i}"}, 0.5, end_ms - 5000)])
        for i in range(6)
    ]
    _send(cluster, exemplar_requests.body(series))
    said = remote_write_pb2.WriteRequest()
    said.metadata.add(type=1, metric_family_name="m", help="a number", unit="bytes")
    _send(cluster, said.SerializeToString())
    _post(cluster, "/api/v1/vector/delete", {"ids": [f"v{i}" for i in range(20, 40)]})
    positions = [{"key": base64.b64encode(b"key 3").decode(), "sequence": 17}]
    moved = cluster.request("PUT", CURSOR, json.dumps({"positions": positions}).encode(), JSON)
    assert moved.status == 200, moved.body
    deleted = cluster.request("POST", f"/api/v1/admin/tsdb/delete_series?match[]=m{{i='5'}}&end={end_ms // 1000}")
    assert deleted.status == 204, deleted.body


def write_histograms(cluster: Cluster, end_ms: int) -> None:
    """Histograms and start timestamps: of both versions of remote write, in blocks and in the log."""
    blocks = _blocks(cluster)
    times = range(end_ms - 600_000, end_ms - 600_000 + HISTOGRAMS_IN_BLOCKS * STEP_MS, STEP_MS)
    _send(cluster, _request_v2(times))
    give_up = time.monotonic() + WITHIN_S
    while _blocks(cluster) == blocks:
        assert time.monotonic() < give_up, cluster.log("worker")
        time.sleep(0.05)
    _send(cluster, _request_v2(range(end_ms - HISTOGRAMS_IN_LOG * STEP_MS, end_ms, STEP_MS)))
    write_one_histogram(cluster, "first", end_ms - 2 * STEP_MS)


def write_one_histogram(cluster: Cluster, name: str, at_ms: int) -> None:
    """A histogram of 13 observations, by remote write 1.0."""
    request = remote_write_pb2.WriteRequest()
    entry = request.timeseries.add(histograms=[_exponential(0, 3, at_ms)])
    entry.labels.add(name="__name__", value=name)
    _send(cluster, request.SerializeToString())


def paths(end_s: int) -> list[str]:
    """GET requests whose answers depend on what `write` and `write_histograms` have written until then."""
    start_s = end_s - 1200
    return [
        f"/api/v1/query_exemplars?query=e&start={start_s}&end={end_s}",
        "/api/v1/metadata",
        CURSOR,
        f"/api/v1/query_range?query=h&start={start_s}&end={end_s}&step=3",
        f"/api/v1/query_range?query=first&start={end_s - 60}&end={end_s}&step=3",
        f"/api/v1/query?query=h[20m]&time={end_s}",
        f"/api/v1/query_range?query=rate(h[1m])&start={start_s}&end={end_s}&step=60",
    ]


def _request_v2(times_ms: range) -> bytes:
    """Series of histograms with integer, float and custom buckets, of numbers with start timestamps, of both kinds."""
    request = remote_write_v2_pb2.Request(symbols=["", "__name__", "h", "i", *map(str, range(SERIES))])
    for i in range(SERIES):
        entry = request.timeseries.add(labels_refs=[1, 2, 3, 4 + i])
        for number, at_ms in enumerate(times_ms):
            if i % 4 == 3 and number % 2:
                entry.samples.add(timestamp=at_ms, value=number / 7, start_timestamp=times_ms[0] - 1)
            else:
                entry.histograms.append((_exponential, _float, _custom, _exponential)[i % 4](i, number, at_ms))
    return bytes(request.SerializeToString())


def _exponential(i: int, number: int, at_ms: int) -> bytes:
    return histogram_message(
        timestamp=at_ms, start_timestamp=at_ms - 90_000, schema=i % 9, count_int=4 + 3 * number, sum=number / 3,
        zero_threshold=0.001, zero_count_int=1, positive_spans=[(i, 2), (3, 1)],
        positive_deltas=[1 + number, 0, 0], negative_spans=[(-2, 1)], negative_deltas=[0],
    )  # fmt: skip


def _float(i: int, number: int, at_ms: int) -> bytes:
    return histogram_message(
        timestamp=at_ms, schema=-2, count_float=10.5 + number, sum=-1.25 * number, reset_hint=3,
        positive_spans=[(0, 1), (i, 1)], positive_counts=[0.25 + number, 10.25],
    )  # fmt: skip


def _custom(i: int, number: int, at_ms: int) -> bytes:
    return histogram_message(
        timestamp=at_ms, schema=-53, custom_values=[0.5, 1.0, float(2 + i)], count_int=number + 7, sum=9.0 * number,
        positive_spans=[(0, 1), (1, 2)], positive_deltas=[2, number, -number + 1],
    ) if number % 5 else _exponential(0, number, at_ms)  # fmt: skip


def _blocks(cluster: Cluster) -> int:
    return sum(shard["counts"]["blocks"] for shard in cluster.get("/api/v1/cluster").json()["data"]["shards"])


def _send(cluster: Cluster, raw: bytes) -> None:
    headers = HEADERS_V2 if raw.startswith(b"\x22") else HEADERS
    answer = cluster.request("POST", "/api/v1/write", snappy.compress(raw), headers)
    assert answer.status == 204, answer.body


def _post(cluster: Cluster, path: str, content: Any) -> None:
    answer = cluster.post_json(path, content)
    assert answer.status == 200, answer.body
