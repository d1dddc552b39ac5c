"""What every endpoint has in common: methods, paths, envelopes, status pages."""

from __future__ import annotations

import http.client
import time

import pytest

from loadtest.harness.remote_write_bodies import HEADERS, compressed

GET, POST = "GET", "POST"
ENDPOINTS = {
    "/": (GET,),
    "/graph": (GET,),
    "/query": (GET,),
    "/api/v1/query": (GET, POST),
    "/api/v1/query_range": (GET, POST),
    "/api/v1/query_exemplars": (GET, POST),
    "/api/v1/format_query": (GET, POST),
    "/api/v1/parse_query": (GET, POST),
    "/api/v1/series": (GET, POST),
    "/api/v1/labels": (GET, POST),
    "/api/v1/label/job/values": (GET,),
    "/api/v1/write": (POST,),
    "/api/v1/import": (POST,),
    "/api/v1/import/csv": (POST,),
    "/api/v1/export": (GET,),
    "/v1/metrics": (POST,),
    "/v1/logs": (POST,),
    "/api/v1/otlp/v1/metrics": (POST,),
    "/api/v1/otlp/v1/logs": (POST,),
    "/api/v1/metadata": (GET,),
    "/api/v1/admin/tsdb/delete_series": (POST,),
    "/api/v1/log/append": (POST,),
    "/api/v1/log/segments": (GET,),
    "/api/v1/log/scan": (GET,),
    "/api/v1/log/keys": (GET, "DELETE"),
    "/api/v1/log/offsets": (GET,),
    "/api/v1/log/count": (GET,),
    "/api/v1/vector/write": (POST,),
    "/api/v1/vector/delete": (POST,),
    "/api/v1/vector/search": (POST,),
    "/api/v1/vector/map": (POST,),
    "/api/v1/vector/collections/some/attributes": (GET,),
    "/api/v1/vector/vectors/some-id": (GET,),
    "/api/v1/status/buildinfo": (GET,),
    "/api/v1/status/memory": (GET,),
    "/api/v1/status/tsdb": (GET,),
    "/api/v1/status/runtimeinfo": (GET,),
    "/api/v1/status/walreplay": (GET,),
    "/api/v1/status/flags": (GET,),
    "/api/v1/status/config": (GET,),
    "/api/v1/status/settings": (GET,),
    "/api/v1/cluster": (GET,),
    "/-/healthy": (GET,),
    "/-/ready": (GET,),
    "/-/reload": (POST,),
    "/metrics": (GET,),
    "/federate": (GET,),
    "/api/v1/read": (POST,),
    "/api/v1/openapi.yaml": (GET,),
    "/docs": (GET,),
    "/docs.css": (GET,),
    "/api/v1/rules": (GET,),
    "/api/v1/alerts": (GET,),
    "/api/v1/targets": (GET,),
    "/api/v1/targets/metadata": (GET,),
    "/api/v1/scrape_pools": (GET,),
    "/api/v1/alertmanagers": (GET,),
    "/api/v1/notifications": (GET,),
    "/api/v1/features": (GET,),
    "/api/v1/admin/tsdb/clean_tombstones": (POST,),
}
WRONG = [(path, method) for path, right in ENDPOINTS.items() for method in (GET, POST, "DELETE") if method not in right]
OTLP_PATHS = tuple(path for path in ENDPOINTS if path.endswith(("/v1/metrics", "/v1/logs")))
MESSAGE_AREAS = ("/api/v1/log/", "/api/v1/vector/")


def assert_error(path, answer, status, kinds=("bad_data", "internal", "unavailable")):
    assert answer.status == status, answer.body
    body = answer.json()
    if path in OTLP_PATHS:
        assert set(body) == {"code", "message"}
        return body
    assert body["status"] == "error"
    if path.startswith(MESSAGE_AREAS):
        assert body["message"]
        assert set(body) == {"status", "message"}
    else:
        assert body["error"]
        assert body["errorType"] in kinds
        assert set(body) == {"status", "errorType", "error"}
    return body


@pytest.mark.parametrize(("path", "method"), WRONG)
def test_a_wrong_method_is_405_in_the_envelope_of_its_area(cluster, path, method):
    answer = cluster.request(method, path)
    assert_error(path, answer, 405)
    assert answer.headers["allow"]


@pytest.mark.parametrize(
    "path", ["/ui", "/nothing", "/api/v1/nothing", "/api/v1/log/nothing", "/api/v1/vector/nothing"]
)
def test_an_unknown_path_is_404_in_the_envelope_of_its_area(cluster, path):
    body = assert_error(path, cluster.get(path), 404, kinds=["not_found"])
    assert f"there is no {path}; /docs lists all" == (body.get("error") or body.get("message"))


@pytest.mark.parametrize(
    ("path", "near"), [("/api/v1/qurey", "/api/v1/query"), ("/api/v1/log/apend", "/api/v1/log/append")]
)
def test_an_unknown_path_that_is_near_to_a_known_one_is_answered_with_that(cluster, path, near):
    body = assert_error(path, cluster.get(path), 404, kinds=["not_found"])
    assert (body.get("error") or body.get("message")) == f"there is no {path}; did you mean {near}?"


def test_a_long_unknown_path_is_shown_cut(cluster):
    body = assert_error("/", cluster.get("/" + "a" * 5000), 404, kinds=["not_found"])
    assert body["error"] == f"there is no /{'a' * 63}; /docs lists all"


@pytest.mark.parametrize("path", [path for path, methods in ENDPOINTS.items() if POST in methods])
def test_a_body_over_the_limit_is_413(cluster, path):
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=30)
    connection.putrequest("POST", path)
    content_type = {
        "/api/v1/write": "application/x-protobuf",
        "/api/v1/log/append": "application/json",
        **dict.fromkeys(OTLP_PATHS, "application/x-protobuf"),
    }.get(path, "application/x-www-form-urlencoded")
    if path.startswith("/api/v1/vector/"):
        content_type = "application/protobuf+json"
    connection.putheader("Content-Type", content_type)
    connection.putheader("Content-Encoding", "snappy" if path in ("/api/v1/write", "/api/v1/read") else "identity")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 413, body


def test_metrics_is_prometheus_text_with_requests_and_shards(cluster):
    cluster.get("/api/v1/labels")
    answer = cluster.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    assert 'triptych_http_requests_total{method="GET",path="/api/v1/labels",status="200"}' in text
    assert 'triptych_http_request_duration_seconds_bucket{le="0.005",path="/api/v1/labels"}' in text
    assert 'triptych_shard_ready{shard="0",state="ready"} 1.0' in text
    assert "triptych_samples_in_total" in text


def counter(cluster, name):
    line = next(line for line in cluster.get("/metrics").body.decode().splitlines() if line.startswith(name + " "))
    return float(line.split()[1])


def test_metrics_count_what_each_area_took_in(cluster):
    names = ("triptych_samples_in_total", "triptych_log_records_in_total", "triptych_vectors_in_total")
    before = [counter(cluster, name) for name in names]
    series = [({"__name__": "counted"}, [(1_700_000_000_000, 1.0), (1_700_000_015_000, 2.0)])]
    assert cluster.request("POST", "/api/v1/write", compressed(series), HEADERS).status == 204
    records = [{"key": "aw==", "value": "dg=="}] * 3
    assert cluster.post_json("/api/v1/log/append", {"records": records}).status == 200
    made = cluster.request(
        "PUT", "/api/v1/vector/collections/counted", b'{"dimension": 2}', {"Content-Type": "application/json"}
    )
    assert made.status == 200
    item = {"id": "a", "attributes": {"vector": [1, 2]}}
    assert cluster.post_json("/api/v1/vector/write", {"collection": "counted", "upsertVectors": [item]}).status == 200
    assert [counter(cluster, name) - start for name, start in zip(names, before, strict=True)] == [2, 3, 1]


def test_buildinfo_has_the_fields_clients_look_for(cluster):
    data = cluster.get("/api/v1/status/buildinfo").json()["data"]
    assert {"version", "revision", "branch", "buildUser", "buildDate", "goVersion"} <= set(data)


def test_cluster_lists_shards_with_owners_states_and_counts(cluster):
    data = cluster.get("/api/v1/cluster").json()["data"]
    assert [shard["shard"] for shard in data["shards"]] == list(range(cluster.shards))
    assert all(shard["state"] == "ready" and shard["worker"] for shard in data["shards"])
    assert {"series", "samples"} <= set(data["shards"][0]["counts"])
    assert sorted(n for worker in data["workers"] for n in worker["shards"]) == list(range(cluster.shards))


def test_unfinished_bodies_do_not_hold_up_others(cluster):
    hanging = []
    for _ in range(200):
        connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=5)
        connection.putrequest("POST", "/api/v1/log/append")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b"{")
        hanging.append(connection)
    started = time.monotonic()
    assert cluster.get("/-/healthy").status == 200
    assert cluster.get("/api/v1/query", query="1").status == 200
    assert time.monotonic() - started < 5
    for connection in hanging:
        connection.close()
