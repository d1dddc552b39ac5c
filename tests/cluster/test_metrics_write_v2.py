"""Remote write 2.0 over HTTP: what the specification asks of receivers.

https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
import snappy

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import HEADERS, HEADERS_V2, body, body_v2, request_v2
from proto import remote_write_v2_pb2

T = 1_700_000_000_000
V1_HEADERS = [
    HEADERS,
    {**HEADERS, "Content-Type": "application/x-protobuf;proto=prometheus.WriteRequest"},
    {**HEADERS, "X-Prometheus-Remote-Write-Version": "0.1.0"},
]
V2_TYPES = [
    "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "application/x-protobuf; proto=io.prometheus.write.v2.Request",
    'Application/X-Protobuf ; charset=utf-8; Proto="io.prometheus.write.v2.Request"',
]
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"second_{next(_numbers)}_total"


def send(cluster: Cluster, raw: bytes, headers: Mapping[str, str] = HEADERS_V2) -> Response:
    return cluster.request("POST", "/api/v1/write", snappy.compress(raw), headers)


def written(answer: Response) -> tuple[str, str, str]:
    """What the headers say was written: samples, histograms, exemplars."""
    samples, histograms, exemplars = (
        answer.headers[f"x-prometheus-remote-write-{what}-written"] for what in ("samples", "histograms", "exemplars")
    )
    return samples, histograms, exemplars


def values(cluster: Cluster, query: str) -> dict[str, str]:
    """Label `i` → value at T."""
    answer = cluster.get("/api/v1/query", query=query, time=str(T / 1000)).json()
    return {series["metric"].get("i", ""): series["value"][1] for series in answer["data"]["result"]}


@pytest.mark.parametrize("media_type", V2_TYPES)
def test_samples_are_queried_back(cluster: Cluster, name: str, media_type: str) -> None:
    raw = body_v2([({"__name__": name, "i": str(i)}, [(T - 1000, 0.5), (T, float(i))]) for i in range(20)])
    answer = send(cluster, raw, {**HEADERS_V2, "Content-Type": media_type, "User-Agent": "a sender/1.0"})
    assert (answer.status, answer.body) == (204, b"")
    assert written(answer) == ("40", "0", "0")
    assert values(cluster, name) == {str(i): str(i) for i in range(20)}


@pytest.mark.parametrize("headers", V1_HEADERS)
def test_version_1_is_told_what_was_written_too(cluster: Cluster, name: str, headers: Mapping[str, str]) -> None:
    answer = send(cluster, body([({"__name__": name}, [(T, 1.0)])]), headers)
    assert answer.status == 204
    assert written(answer) == ("1", "0", "0")
    answer = send(cluster, body([({"__name__": name}, [(T, 1.0)]), ({"job": "nameless"}, [(T, 1.0)])]), headers)
    assert answer.status == 400
    assert written(answer) == ("1", "0", "0")


def test_series_that_were_sent_before_are_known_and_written_like_the_first_time(cluster: Cluster, name: str) -> None:
    for i in range(3):
        sent = [({"__name__": name, "i": str(number)}, [(T + i, float(10 * i + number))]) for number in range(5)]
        assert written(send(cluster, body_v2(sent))) == ("5", "0", "0")
        assert values(cluster, f"{name} @ {(T + i) / 1000}") == {
            str(number): str(10 * i + number) for number in range(5)
        }
    [line] = [line for line in cluster.get("/metrics").body.decode().splitlines() if 'owner="known_labels"' in line]
    assert float(line.rsplit(" ", 1)[1]) > 5 * 50


def test_a_request_that_comes_again_is_recognised_and_written_like_the_first_time(cluster: Cluster, name: str) -> None:
    def memory() -> float:
        lines = cluster.get("/metrics").body.decode().splitlines()
        [line] = [line for line in lines if 'owner="request_templates"' in line]
        return float(line.rsplit(" ", 1)[1])

    before = memory()
    for i in range(6):
        request = request_v2([({"__name__": name, "i": str(n)}, [(T + i, float(10 * i + n))]) for n in range(30)])
        if i == 4:  # nobody knows this series as a number, and it has no name
            request.timeseries.add(labels_refs=[3, 4], samples=[remote_write_v2_pb2.Sample(value=1, timestamp=T)])
        if i == 5:
            request.timeseries[7].histograms.append(histogram_message(timestamp=T + i, sum=1.0, schema=99))
        answer = send(cluster, request.SerializeToString())
        assert written(answer) == ("30", "0", "0")
        assert answer.status == (400 if i >= 4 else 204)
        assert values(cluster, f"{name} @ {(T + i) / 1000}") == {str(n): str(10 * i + n) for n in range(30)}
        if i == 5:
            assert f'__name__="{name}", i="7"' in answer.json()["error"]
    assert memory() > before + 30 * 50


def test_both_versions_write_the_same_series(cluster: Cluster, name: str) -> None:
    own = [({"__name__": name, "i": str(i), "é": "ü"}, [(T, 1.0)]) for i in range(20)]
    assert send(cluster, body(own), HEADERS).status == 204
    assert send(cluster, body_v2([(labels, [(T, 2.0)]) for labels, _ in own])).status == 204
    assert values(cluster, name) == {str(i): "2" for i in range(20)}
    assert len(cluster.get("/api/v1/series", **{"match[]": name}).json()["data"]) == 20


def test_a_partial_write_is_a_400_that_tells_how_much_was_written(cluster: Cluster, name: str) -> None:
    request = request_v2([({"__name__": name, "i": "0"}, [(T, 1.0), (1 << 62, 1.0)]), ({"job": "x"}, [(T, 1.0)])])
    request.timeseries.add(labels_refs=[1, 99], samples=[remote_write_v2_pb2.Sample(value=1, timestamp=T)])
    answer = send(cluster, request.SerializeToString())
    assert answer.status == 400
    text = answer.json()["error"]
    assert text.startswith("1 samples stored, these refused: ")
    for refused in (
        f"{1 << 62} ms",
        'series 1 {job="x"}: it has no label __name__',
        "series 2: a label reference is 99",
    ):
        assert refused in text
    assert written(answer) == ("1", "0", "0")
    assert values(cluster, name) == {"0": "1"}


@pytest.mark.parametrize(
    ("raw", "status"), [(b"", 400), (b"\x22\x01a", 400), (b"\x22\x00\x2a\x05abc", 400), (bytes(257 << 20), 413)]
)
def test_a_request_that_is_refused_as_a_whole_says_that_nothing_was_written(
    cluster: Cluster, raw: bytes, status: int
) -> None:
    answer = send(cluster, raw)
    assert answer.status == status
    assert written(answer) == ("0", "0", "0")


def test_a_histogram_that_is_not_valid_is_refused_and_the_rest_is_stored(cluster: Cluster, name: str) -> None:
    request = request_v2([({"__name__": name, "i": "0"}, [(T, 1.0)]), ({"__name__": name, "i": "1"}, [])])
    one = histogram_message(timestamp=T, count_int=1, positive_spans=[(0, 1)], positive_deltas=[1])
    request.timeseries[1].histograms.extend([histogram_message(timestamp=T - 1, schema=9), one])
    answer = send(cluster, request.SerializeToString())
    assert answer.status == 400
    text = answer.json()["error"]
    assert text.startswith("1 samples and 1 histograms stored, these refused: series 1 {")
    assert f'i="1"}}: the histogram at {T - 1} ms is not valid: schema 9 is unknown' in text
    assert written(answer) == ("1", "1", "0")


def test_metadata_comes_with_the_series_and_stays(new_cluster) -> None:
    cluster = new_cluster(shards=2, workers=1).start()
    names = ["req_total", "lat_bucket", "lat_sum", "lat_count"]
    request = request_v2([({"__name__": name}, [(T, 1.0)]) for name in names])
    request.symbols.extend(["how long", "seconds"])
    for entry, kind in zip(request.timeseries, (1, 3, 3, 3), strict=True):
        entry.metadata.type = kind
        entry.metadata.help_ref, entry.metadata.unit_ref = len(request.symbols) - 2, len(request.symbols) - 1
    expected = {
        "lat": [{"type": "histogram", "help": "how long", "unit": "seconds"}],
        "req_total": [{"type": "counter", "help": "how long", "unit": "seconds"}],
    }
    for _ in range(2):
        for _ in range(2):
            assert send(cluster, request.SerializeToString()).status == 204
        assert cluster.get("/api/v1/metadata").json()["data"] == expected
        cluster.kill()
        cluster.start()
    assert values(cluster, "req_total") == {"": "1"}


@pytest.mark.parametrize("series", [3, 30_000])
def test_a_small_body_of_long_labels_is_held_with_the_labels_written_out(new_cluster, series: int) -> None:
    settings = {"TRIPTYCH_DECOMPRESSED_BYTES_MAX": str(32 << 20)}
    cluster = new_cluster(shards=2, workers=1, settings=settings).start()
    request = request_v2([({"__name__": "m", "long": "x" * 60_000}, [(T, 1.0)])])
    raw = request.SerializeToString()
    one = request.timeseries[0].SerializeToString()
    answer = send(cluster, raw + (b"\x2a" + bytes([len(one)]) + one) * series)
    if series == 3:
        assert answer.status == 204
        assert written(answer) == ("4", "0", "0")
    else:
        assert answer.status == 413
        assert "TRIPTYCH_DECOMPRESSED_BYTES_MAX" in answer.json()["error"]
        assert written(answer) == ("0", "0", "0")
