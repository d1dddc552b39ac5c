"""Remote write, the lists of series and labels, and deletion, over HTTP against a running cluster."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
import snappy

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.remote_write_bodies import HEADERS, HEADERS_V2, Series, body, compressed
from proto import remote_write_pb2

T = 1_700_000_000_000
SERIES = 40

_numbers = itertools.count()


def write(cluster: Cluster, series: Sequence[Series]) -> Response:
    return cluster.request("POST", "/api/v1/write", compressed(series), HEADERS)


def write_raw(cluster: Cluster, raw: bytes, headers: Mapping[str, str] = HEADERS) -> Response:
    return cluster.request("POST", "/api/v1/write", raw, headers)


@pytest.fixture
def metric(cluster: Cluster) -> str:
    """A metric of the test's own: 40 series `i`, over all shards, sample k at T + k minutes, k < 3."""
    name = f"own_{next(_numbers)}"
    series = [
        (
            {"__name__": name, "i": str(i), "parity": "even" if i % 2 == 0 else "odd"},
            [(T + k * 60_000, i + k) for k in range(3)],
        )
        for i in range(SERIES)
    ]
    answer = write(cluster, series)
    assert (answer.status, answer.body) == (204, b"")
    return name


def listed(cluster: Cluster, **parameters: str | Sequence[str]) -> list[dict[str, str]]:
    answer = cluster.get("/api/v1/series", **parameters)
    assert answer.status == 200, answer.body
    assert answer.json()["status"] == "success"
    return answer.json()["data"]


def assert_bad(answer: Response, *texts: str, status: int = 400, kind: str = "bad_data") -> None:
    assert answer.status == status, answer.body
    envelope = answer.json()
    assert envelope["status"] == "error"
    assert envelope["errorType"] == kind
    for text in texts:
        assert text in envelope["error"]


def test_series_are_listed_with_their_labels_in_order(cluster: Cluster, metric: str) -> None:
    found = listed(cluster, match=metric)
    assert len(found) == SERIES
    assert {"__name__": metric, "i": "7", "parity": "odd"} in found
    assert found == sorted(found, key=lambda labels: sorted(labels.items()))


def test_selectors_are_ored_and_their_matchers_anded(cluster: Cluster, metric: str) -> None:
    both = listed(cluster, match=[f'{metric}{{i=~"1|2"}}', f'{{__name__="{metric}",parity="odd",i!~"[2-9].*"}}'])
    assert sorted(int(labels["i"]) for labels in both) == [1, 2, 11, 13, 15, 17, 19]


def test_a_form_is_as_good_as_a_query_string(cluster: Cluster, metric: str) -> None:
    posted = cluster.post_form("/api/v1/series", match=metric)
    assert posted.json() == cluster.get("/api/v1/series", match=metric).json()
    assert cluster.post_form("/api/v1/labels", match=metric).json()["data"] == ["__name__", "i", "parity"]


def test_start_and_end_leave_out_series_without_samples_there(cluster: Cluster, metric: str) -> None:
    seconds = T // 1000
    assert len(listed(cluster, match=metric, start=str(seconds + 120), end="2023-11-14T23:00:00Z")) == SERIES
    assert listed(cluster, match=metric, start=str(seconds + 120.5)) == []
    assert listed(cluster, match=metric, end=str(seconds - 0.001)) == []
    assert cluster.get("/api/v1/labels", match=metric, start=str(seconds + 121)).json()["data"] == []
    assert cluster.get("/api/v1/label/i/values", match=metric, end=str(seconds - 1)).json()["data"] == []


def test_a_limit_cuts_and_says_so(cluster: Cluster, metric: str) -> None:
    for path, whole in (("series", SERIES), ("labels", 3), ("label/i/values", SERIES)):
        cut = cluster.get(f"/api/v1/{path}", match=metric, limit="2").json()
        assert len(cut["data"]) == 2
        assert cut["warnings"] == ["results truncated due to limit"]
        for enough in ("0", str(whole)):
            answer = cluster.get(f"/api/v1/{path}", match=metric, limit=enough).json()
            assert len(answer["data"]) == whole
            assert "warnings" not in answer


def test_label_names_and_values_are_sorted_and_distinct(cluster: Cluster, metric: str) -> None:
    assert "__name__" in cluster.get("/api/v1/labels").json()["data"]
    assert metric in cluster.get("/api/v1/label/__name__/values").json()["data"]
    values = cluster.get("/api/v1/label/i/values", match=metric).json()["data"]
    assert values == sorted(map(str, range(SERIES)))
    assert cluster.get("/api/v1/label/parity/values", match=metric).json()["data"] == ["even", "odd"]
    assert cluster.get("/api/v1/label/nobody_has_this/values").json()["data"] == []


def test_a_label_name_that_is_no_identifier_can_be_escaped(cluster: Cluster, metric: str) -> None:
    labels = [("__name__", metric), ("http.status", "200")]
    assert write(cluster, [(labels, [(T, 1.0)])]).status == 204
    assert cluster.get("/api/v1/label/U__http_2e_status/values", match=metric).json()["data"] == ["200"]
    assert cluster.get("/api/v1/label/http.status/values", match=metric).json()["data"] == ["200"]
    assert_bad(cluster.get("/api/v1/label/not-a-name/values"), "invalid label name 'not-a-name'")
    assert_bad(cluster.get("/api/v1/label/%FF/values"), "invalid label name")


def test_unsorted_labels_are_the_same_series(cluster: Cluster, metric: str) -> None:
    unsorted = [("parity", "odd"), ("i", "1"), ("empty", ""), ("__name__", metric)]
    assert write(cluster, [(unsorted, [(T, 99.0)])]).status == 204
    assert len(listed(cluster, match=metric)) == SERIES


def test_the_bad_series_is_named_and_the_good_ones_are_kept(cluster: Cluster, metric: str) -> None:
    good = [({"__name__": metric, "kept": str(i)}, [(T, 1.0)]) for i in range(10)]
    answer = write(cluster, [*good[:5], ({"job": "nameless"}, [(T, 1.0)]), *good[5:]])
    assert_bad(answer, "10 samples stored", 'series 5 {job="nameless"}', "no label __name__")
    assert len(listed(cluster, match=f'{{__name__="{metric}",kept!=""}}')) == 10


@pytest.mark.parametrize("timestamp", [(1 << 63) - 1, -(1 << 63)])
def test_a_timestamp_beyond_reason_is_refused(cluster: Cluster, metric: str, timestamp: int) -> None:
    assert_bad(write(cluster, [({"__name__": metric, "x": "y"}, [(timestamp, 1.0)])]), f"{timestamp} ms")


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({**HEADERS, "Content-Type": "application/json"}, "Content-Type is 'application/json'"),
        ({"Content-Encoding": "snappy"}, "Content-Type is ''"),
        ({"Content-Type": HEADERS["Content-Type"]}, "Content-Encoding is ''"),
        ({**HEADERS, "Content-Encoding": "gzip"}, "Content-Encoding is 'gzip'"),
        (
            {**HEADERS, "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v3.Request"},
            "write.v3.Request",
        ),
        ({**HEADERS, "Content-Type": "application/x-protobuf;proto="}, "Content-Type has proto=''"),
        (HEADERS_V2, "no symbols"),  # what is sent is the message of version 1.0
    ],
)
def test_write_names_the_header_that_is_wrong(cluster: Cluster, headers: Mapping[str, str], named: str) -> None:
    assert_bad(write_raw(cluster, compressed([({"__name__": "m"}, [(T, 1.0)])]), headers), named)


@pytest.mark.parametrize(
    ("raw", "named", "status"),
    [
        (b"", "not snappy", 400),
        (body([({"__name__": "m"}, [(T, 1.0)])]), "not snappy", 400),
        (snappy.compress(b"\x0a\x05abc"), "not a protobuf WriteRequest", 400),
        (snappy.compress(b"\xff" * 100), "not a protobuf WriteRequest", 400),
        (b"\xff\xff\xff\xff\x0f" + bytes(1000), "decompresses to 4294967295 bytes", 413),
        (snappy.compress(bytes(257 << 20)), "the limit is 268435456", 413),
    ],
)
def test_a_damaged_or_oversized_write_is_refused(cluster: Cluster, raw: bytes, named: str, status: int) -> None:
    assert_bad(write_raw(cluster, raw), named, status=status)


def test_an_empty_request_and_metadata_alone_are_welcome(cluster: Cluster) -> None:
    assert write_raw(cluster, snappy.compress(b"")).status == 204
    metadata = remote_write_pb2.WriteRequest(metadata=[remote_write_pb2.MetricMetadata(metric_family_name="m")])
    assert write_raw(cluster, snappy.compress(metadata.SerializeToString())).status == 204


@pytest.mark.parametrize(
    ("path", "parameters", "named"),
    [
        ("/api/v1/series", {}, "'match[]' is missing"),
        ("/api/v1/series", {"match": "{"}, "match[]"),
        ("/api/v1/series", {"match": '{a=~".*"}'}, "at least one non-empty matcher"),
        ("/api/v1/series", {"match": '{a=~"("}'}, "("),
        ("/api/v1/series", {"match": "m", "start": "yesterday"}, "'start' is 'yesterday'"),
        ("/api/v1/series", {"match": "m", "end": "NaN"}, "'end' is 'NaN'"),
        ("/api/v1/series", {"match": "m", "start": "2", "end": "1"}, "must not be before"),
        ("/api/v1/series", {"match": "m", "limit": "-1"}, "'limit' is '-1'"),
        ("/api/v1/labels", {"match": "1x{"}, "match[]"),
        ("/api/v1/labels", {"limit": "1.5"}, "'limit' is '1.5'"),
        ("/api/v1/label/a/values", {"match": "}"}, "match[]"),
        ("/api/v1/label/a/values", {"start": "2026-13-01T00:00:00Z"}, "'start'"),
    ],
)
def test_a_malformed_parameter_is_named(cluster: Cluster, path: str, parameters: Mapping[str, str], named: str) -> None:
    assert_bad(cluster.get(path, **parameters), named)


def test_deletion_takes_the_range_of_the_matching_series_only(cluster: Cluster, metric: str) -> None:
    seconds = T // 1000
    deleted = cluster.post_form(
        "/api/v1/admin/tsdb/delete_series", match=f'{metric}{{parity="odd"}}', start=str(seconds), end=str(seconds + 60)
    )
    assert (deleted.status, deleted.body) == (204, b"")
    early = listed(cluster, match=metric, end=str(seconds + 60))
    assert {labels["parity"] for labels in early} == {"even"}
    assert len(listed(cluster, match=metric)) == SERIES
    assert cluster.post_form("/api/v1/admin/tsdb/delete_series", match=metric).status == 204
    assert listed(cluster, match=metric) == []
    assert metric not in cluster.get("/api/v1/label/__name__/values").json()["data"]
    assert_bad(cluster.post_form("/api/v1/admin/tsdb/delete_series"), "'match[]' is missing")


def test_what_was_acknowledged_survives_the_death_of_every_process(new_cluster) -> None:
    cluster = new_cluster(shards=4, workers=2).start()
    series = [({"__name__": "m", "i": str(i)}, [(T, float(i)), (T - 5000, 0.5)]) for i in range(500)]
    assert write(cluster, series).status == 204
    assert write(cluster, [({"__name__": "gone", "i": str(i)}, [(T, 1.0)]) for i in range(20)]).status == 204
    assert cluster.post_form("/api/v1/admin/tsdb/delete_series", match="gone").status == 204
    cluster.kill()
    cluster.start()
    assert len(listed(cluster, match="m")) == 500
    assert listed(cluster, match="gone") == []
    answer = cluster.get("/api/v1/query", query="sum(m)", time=str(T // 1000)).json()
    assert answer["data"]["result"][0]["value"][1] == str(sum(range(500)))


def test_writing_is_404_when_it_is_turned_off(new_cluster) -> None:
    cluster = new_cluster(
        shards=1, workers=1, settings={"TRIPTYCH_REMOTE_WRITE": "false", "TRIPTYCH_OTLP": "false"}
    ).start()
    answer = write(cluster, [({"__name__": "m"}, [(T, 1.0)])])
    assert_bad(answer, "there is no /api/v1/write", status=404, kind="not_found")
    for path in ("/v1/metrics", "/v1/logs", "/api/v1/otlp/v1/metrics"):
        answer = cluster.request("POST", path)
        assert (answer.status, answer.json()["message"]) == (404, f"there is no {path}; /docs lists all")
