"""Plain text in and out of the log over HTTP, and parameters with a wrong name."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster
from tests.cluster.log_requests import append, b64, refused, scan


@pytest.fixture
def key() -> str:
    return f"ключ-{uuid.uuid4().hex}"


def post(cluster: Cluster, *records: dict[str, Any], query: str = "", **options: Any) -> dict[str, Any]:
    answer = cluster.post_json(f"/api/v1/log/append{query}", {"records": list(records), **options})
    assert answer.status == 200, answer.body
    return answer.json()


def untimed(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of an answer without their times, which each of them has."""
    assert all(record.pop("timeMs") > 0 for record in answer["records"])
    return list(answer["records"])


def test_text_goes_in_and_comes_out(cluster: Cluster, key: str) -> None:
    order = {"paid": True, "items": [1, 2.5]}
    answer = post(cluster, {"keyText": key, "text": "naïve"}, {"keyText": key, "json": order}, awaitDurable=True)
    start = answer["startSequence"]
    assert answer == {"status": "success", "recordsAppended": 2, "startSequence": start}
    append(cluster, [(key.encode(), b"\xff")])
    expected = [
        {"sequence": start, "keyText": key, "text": "naïve"},
        {"sequence": start + 1, "keyText": key, "json": order},
    ]
    as_json = untimed(scan(cluster, key=key, encoding="json"))
    assert as_json[:2] == expected
    assert (as_json[2]["keyText"], as_json[2]["value"]) == (key, "/w==")
    as_text = untimed(scan(cluster, prefix=key, encoding="text"))
    assert [record.get("text") for record in as_text] == ["naïve", '{"paid":true,"items":[1,2.5]}', None]
    assert untimed(scan(cluster, key=key))[0] == {
        "sequence": start,
        "key": b64(key.encode()),
        "value": b64("naïve".encode()),
    }


def test_events_keys_and_cursors_show_text(cluster: Cluster, key: str) -> None:
    post(cluster, {"keyText": key, "json": {"n": 1}})
    headers = {"Accept": "text/event-stream"}
    path = f"/api/v1/log/scan?key_base64={b64(key.encode())}&limit=1&encoding=json"
    events = cluster.request("GET", path, headers=headers).body.decode()
    data = json.loads(events.splitlines()[1].removeprefix("data: "))
    assert (data["keyText"], data["json"]) == (key, {"n": 1})
    listed = cluster.get("/api/v1/log/keys", prefix=key, encoding="text").json()
    assert listed["keys"] == [{"keyText": key}]
    cursor = f"/api/v1/log/cursors/{uuid.uuid4().hex}"
    body = json.dumps({"positions": [{"keyText": key, "sequence": 5}]}).encode()
    assert cluster.request("PUT", cursor, body).status == 200
    assert cluster.get(cursor, encoding="text").json()["positions"] == [{"keyText": key, "sequence": 5}]
    assert cluster.get(cursor, key=key).json()["positions"] == [{"key": b64(key.encode()), "sequence": 5}]


def test_of_long_values_only_the_beginning_is_asked_for(cluster: Cluster, key: str) -> None:
    post(cluster, {"keyText": key, "text": "x" * 200_000}, {"keyText": key, "text": "short"})
    shown = untimed(scan(cluster, key=key, encoding="text", value_bytes="10"))
    assert [(one["text"], one.get("valueBytes")) for one in shown] == [("x" * 10, 200_000), ("short", None)]
    tail = cluster.get("/api/v1/log/tail", key=key, start_seq="0", limit="2", value_bytes="1").body.decode()
    assert '"value":"eA==","timeMs"' in tail and '"valueBytes":200000}' in tail and '"valueBytes":5}' in tail
    protobuf = {"Accept": "application/protobuf"}
    answer = cluster.request("GET", "/api/v1/log/scan?key=k&value_bytes=1", headers=protobuf)
    assert "'value_bytes' is for JSON and events" in refused(answer, 400)
    assert "'value_bytes' is '-1'" in refused(cluster.get("/api/v1/log/scan", key="k", value_bytes="-1"), 400)


def test_a_word_that_is_base64_by_chance_gets_a_hint_and_the_keys_can_be_shown(cluster: Cluster) -> None:
    answer = post(cluster, {"key": "user", "value": ""}, {"key": b64(b"k"), "value": ""}, query="?echo=true")
    assert answer["keys"] == [{"key": "user"}, {"keyText": "k"}]
    (hint,) = answer["infos"]
    assert "'user'" in hint and "ba c7 ab" in hint and "`keyText`" in hint
    assert "infos" not in post(cluster, {"keyText": "user", "value": ""})


def test_a_record_in_two_forms_is_refused(cluster: Cluster) -> None:
    answer = cluster.post_json("/api/v1/log/append", {"records": [{"key": "aw==", "keyText": "k", "text": "v"}]})
    assert "`$.records[0]` has `key` and `keyText`" in refused(answer, 400)


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("GET", "/api/v1/log/scan?key=k&starts_seq=5", "'starts_seq' is unknown here; did you mean 'start_seq'?"),
        ("GET", "/api/v1/log/count?prefx=k", "did you mean 'prefix'?"),
        ("GET", "/api/v1/log/keys?offset=1", "'offset' is unknown here; known are after, "),
        ("GET", "/api/v1/log/frontier?key=k", "'key' is unknown here; this endpoint has no parameters"),
        ("POST", "/api/v1/log/append?durable=true", "'durable' is unknown here"),
        ("DELETE", "/api/v1/log/cursors/c?key=k", "'key' is unknown here"),
        ("GET", "/api/v1/vector/vectors/v?colection=c", "did you mean 'collection'?"),
        ("POST", "/api/v1/vector/search?partial_respons=1", "did you mean 'partial_response'?"),
    ],
)
def test_a_parameter_with_a_wrong_name_is_refused(cluster: Cluster, method: str, path: str, hint: str) -> None:
    assert hint in refused(cluster.request(method, path, b"{}" if method == "POST" else None), 400)


def test_the_endpoints_of_prometheus_ignore_what_they_do_not_know(cluster: Cluster) -> None:
    assert cluster.get("/api/v1/query", query="1", dedup="true").status == 200
    assert cluster.get("/api/v1/labels", foo="bar").status == 200
