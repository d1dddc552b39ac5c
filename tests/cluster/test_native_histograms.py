"""Native histograms: remote write 1.0 and 2.0 bring them, and they survive the death of every process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import snappy

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import HEADERS, HEADERS_V2, request_v2
from proto import remote_write_pb2

T = 1_700_000_000_000
VERSIONS = pytest.mark.parametrize("is_second", [False, True])
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"native_{next(_numbers)}"


def send(
    cluster: Cluster, own: Mapping[str, tuple[list[tuple[int, float]], list[bytes]]], name: str, *, is_second: bool
) -> Response:
    """Write to series by their label `i` floats and histograms."""
    request: Any = remote_write_pb2.WriteRequest()
    if is_second:
        request = request_v2([({"__name__": name, "i": i}, samples) for i, (samples, _) in own.items()])
    for place, (i, (samples, messages)) in enumerate(own.items()):
        if is_second:
            entry = request.timeseries[place]
        else:
            entry = request.timeseries.add()
            for label, value in (("__name__", name), ("i", i)):
                entry.labels.add(name=label, value=value)
            for time, number in samples:
                entry.samples.add(timestamp=time, value=number)
        entry.histograms.extend(messages)
    raw = request.SerializeToString()
    return cluster.request("POST", "/api/v1/write", snappy.compress(raw), HEADERS_V2 if is_second else HEADERS)


def message(count: int, at: int = T, **fields: Any) -> bytes:
    """Of `count` observations in (1, 2]."""
    return histogram_message(
        timestamp=at, count_int=count, sum=1.5 * count, positive_spans=[(1, 1)], positive_deltas=[count], **fields
    )


def counts(cluster: Cluster, name: str) -> dict[str, str]:
    """Label `i` → number of observations at T."""
    answer = cluster.get("/api/v1/query", query=f"histogram_count({name})", time=str(T / 1000))
    assert answer.status == 200, answer.body
    return {one["metric"]["i"]: one["value"][1] for one in answer.json()["data"]["result"]}


@VERSIONS
def test_histograms_are_stored_and_counted(cluster: Cluster, name: str, is_second: bool) -> None:
    answer = send(cluster, {str(i): ([(T - 1, 0.5)], [message(i)]) for i in range(20)}, name, is_second=is_second)
    assert (answer.status, answer.body) == (204, b"")
    written = [answer.headers[f"x-prometheus-remote-write-{what}-written"] for what in ("samples", "histograms")]
    assert written == ["20", "20"]
    assert counts(cluster, name) == {str(i): str(i) for i in range(20)}


@VERSIONS
def test_what_is_not_valid_is_named_and_the_rest_is_stored(cluster: Cluster, name: str, is_second: bool) -> None:
    faults = [
        histogram_message(timestamp=T, schema=9),
        histogram_message(timestamp=T, count_int=1, positive_spans=[(0, (1 << 31) - 1)], positive_deltas=[1]),
        histogram_message(timestamp=T, count_float=1, positive_spans=[(0, 1)], positive_counts=[float("nan")]),
        b"\x10\x01",
    ]
    own = {"good": ([(T, 0.5)], [message(3, T - 1)]), "bad": ([], [*faults, message(4)])}
    answer = send(cluster, own, name, is_second=is_second)
    assert answer.status == 400
    text = answer.json()["error"]
    assert text.startswith("1 samples and 2 histograms stored, these refused: series 1 {")
    for fault in ("schema 9 is unknown", "room for 2147483647 buckets", "a count is NaN", "is not a histogram"):
        assert fault in text
    assert answer.headers["x-prometheus-remote-write-histograms-written"] == "2"
    assert counts(cluster, name) == {"bad": "4"}


def test_histograms_survive_the_death_of_every_process(new_cluster) -> None:
    cluster = new_cluster(shards=3, workers=2).start()
    expected = {}
    for version in (False, True):
        own = {f"{version}-{i}": ([(T - 5, 0.5)], [message(i + 1, T - 1), message(i + 2)]) for i in range(10)}
        assert send(cluster, own, "m", is_second=version).status == 204
        expected |= {f"{version}-{i}": str(i + 2) for i in range(10)}
    for _ in range(2):
        assert counts(cluster, "m") == expected
        cluster.kill()
        cluster.start()
    deleted = cluster.request("POST", f"/api/v1/admin/tsdb/delete_series?match[]=m&start={T / 1000}&end={T / 1000}")
    assert deleted.status == 204
    left = {i: str(int(count) - 1) for i, count in expected.items()}
    assert counts(cluster, "m") == left
    cluster.kill()
    cluster.start()
    assert counts(cluster, "m") == left
