"""The log over HTTP: append, segments, scan, keys, count, frontier, followers and cursors."""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from typing import Any

import numpy as np
import pytest

from loadtest.harness.cluster import Cluster, Response
from proto import log_pb2
from tests.cluster.log_requests import PROTOBUF, append, b64, record, refused, scan, values


@pytest.fixture
def key() -> bytes:
    return f"key-{uuid.uuid4().hex}".encode()


def test_append_returns_first_sequence_of_batch(cluster: Cluster, key: bytes) -> None:
    first = append(cluster, [(key, b"one"), (key, b"two")], awaitDurable=True)
    second = append(cluster, [(key, b"three")])
    assert first == {"status": "success", "recordsAppended": 2, "startSequence": first["startSequence"]}
    assert second["startSequence"] >= first["startSequence"] + 2


def test_a_key_is_scanned_in_order(cluster: Cluster, key: bytes) -> None:
    batch = [(key, b"%d" % i) if i % 3 else (key + b"-other", b"x") for i in range(300)]
    start = append(cluster, batch)["startSequence"]
    answer = scan(cluster, key=key.decode())
    assert values(answer) == [v for k, v in batch if k == key]
    assert [r["sequence"] for r in answer["records"]] == [start + i for i in range(300) if i % 3]
    assert {r["key"] for r in answer["records"]} == {b64(key)}
    assert answer["nextSequence"] >= start + 300


def test_a_scan_goes_on_from_next_sequence(cluster: Cluster, key: bytes) -> None:
    append(cluster, [(key, b"%d" % i) for i in range(25)])
    seen: list[bytes] = []
    following = 0
    while page := values(answer := scan(cluster, key=key.decode(), start_seq=str(following), limit="10")):
        seen += page
        following = answer["nextSequence"]
    assert seen == [b"%d" % i for i in range(25)]


def test_a_reverse_scan_begins_with_the_newest(cluster: Cluster, key: bytes) -> None:
    append(cluster, [(key, b"%d" % i) for i in range(10)])
    newest = scan(cluster, key=key.decode(), reverse="true", limit="4")
    assert values(newest) == [b"9", b"8", b"7", b"6"]
    rest = scan(cluster, key=key.decode(), reverse="true", end_seq=str(newest["nextSequence"]))
    assert values(rest) == [b"5", b"4", b"3", b"2", b"1", b"0"]


def test_sequence_bounds_are_inclusive_and_exclusive(cluster: Cluster, key: bytes) -> None:
    start = append(cluster, [(key, b"%d" % i) for i in range(6)])["startSequence"]
    answer = scan(cluster, key=key.decode(), start_seq=str(start + 1), end_seq=str(start + 4))
    assert values(answer) == [b"1", b"2", b"3"]
    assert answer["nextSequence"] == start + 4


@pytest.mark.parametrize("raw", [b"\0", b"a\0b", b"a", b"a\0", b"\xff\xff", b"", "ключ".encode()])
def test_keys_of_any_bytes_are_kept_apart(cluster: Cluster, raw: bytes) -> None:
    mark = uuid.uuid4().bytes
    append(cluster, [(raw, mark), (raw + b"\0", b"other"), (raw + b"\xff", b"other")])
    answer = scan(cluster, key_base64=b64(raw), reverse="true", limit="1")
    assert values(answer) == [mark]


def test_protobuf_in_and_out(cluster: Cluster, key: bytes) -> None:
    message = log_pb2.AppendRequest(await_durable=True)
    for i in range(5000):
        message.records.add(key=log_pb2.Key(value=key), value=b"value %d" % i)
    headers = {**PROTOBUF, "Accept": "application/protobuf"}
    answer = cluster.request("POST", "/api/v1/log/append", message.SerializeToString(), headers)
    appended = log_pb2.AppendResponse.FromString(answer.body)
    assert (answer.status, appended.status, appended.records_appended) == (200, "success", 5000)
    path = f"/api/v1/log/scan?key={key.decode()}&limit=100000"
    read = log_pb2.ScanResponse.FromString(
        cluster.request("GET", path, headers={"Accept": "application/protobuf"}).body
    )
    numbers = np.concatenate([page.sequences for page in read.pages])
    np.testing.assert_array_equal(numbers, appended.start_sequence + np.arange(5000))
    joined = b"".join(page.values for page in read.pages)
    assert joined == b"".join(r.value for r in message.records)
    assert sum(sum(page.value_lengths) for page in read.pages) == len(joined)
    assert read.status == "success"
    assert read.next_sequence >= appended.start_sequence + 5000


@pytest.mark.parametrize("accept", ["application/protobuf+json", "application/json, application/protobuf;q=0.5"])
def test_json_is_for_all_who_do_not_ask_for_binary(cluster: Cluster, key: bytes, accept: str) -> None:
    body = json.dumps({"records": [record(key, b"v")]}).encode()
    headers = {"Content-Type": "application/json", "Accept": accept}
    appended = cluster.request("POST", "/api/v1/log/append", body, headers)
    assert appended.headers["content-type"] == "application/json" and appended.json()["recordsAppended"] == 1
    read = cluster.request("GET", f"/api/v1/log/scan?key={key.decode()}", headers={"Accept": accept})
    assert read.headers["content-type"] == "application/json" and values(read.json()) == [b"v"]


def test_protojson_takes_what_its_rules_allow(cluster: Cluster, key: bytes) -> None:
    url_safe = base64.urlsafe_b64encode(b"\xfb\xff").decode().rstrip("=")
    body = {"records": [{"key": {"value": b64(key)}, "value": url_safe}, {"key": {"value": b64(key)}}]}
    answer = cluster.post_json("/api/v1/log/append", {**body, "await_durable": True}, "application/protobuf+json")
    assert answer.status == 200, answer.body
    assert values(scan(cluster, key=key.decode())) == [b"\xfb\xff", b""]


def test_the_key_may_be_an_object_in_json(cluster: Cluster, key: bytes) -> None:
    body = {"records": [{"key": {"value": b64(key)}, "value": b64(b"v")}]}
    assert cluster.post_json("/api/v1/log/append", body).status == 200
    assert values(scan(cluster, key=key.decode())) == [b"v"]


def test_a_long_scan_in_json_is_one_valid_document(cluster: Cluster, key: bytes) -> None:
    for part in range(2):
        append(cluster, [(key, b"%d" % (part * 6000 + i)) for i in range(6000)])
    assert values(scan(cluster, key=key.decode(), limit="20000")) == [b"%d" % i for i in range(12_000)]


def test_a_prefix_is_read_in_the_order_of_sequence_numbers(cluster: Cluster, key: bytes) -> None:
    batch = [(key + b"/%d" % (i % 7), b"%d" % i) for i in range(500)]
    start = append(cluster, batch)["startSequence"]
    append(cluster, [(b"zz" + key, b"not this")])
    whole = scan(cluster, prefix=key.decode(), limit="1000")
    assert values(whole) == [v for _, v in batch]
    assert [base64.b64decode(r["key"]) for r in whole["records"]] == [k for k, _ in batch]
    part = scan(cluster, prefix=key.decode(), start_seq=str(start + 100), limit="50")
    assert values(part) == [v for _, v in batch[100:150]]
    assert part["nextSequence"] == start + 150


def test_keys_are_listed_once_in_order_and_in_pages(cluster: Cluster, key: bytes) -> None:
    expected = sorted(key + b"/%d" % i for i in range(30))
    append(cluster, [(k, b"1") for k in expected] + [(k, b"2") for k in expected])
    first = cluster.get("/api/v1/log/keys", prefix=key.decode(), limit="20").json()
    second = cluster.get("/api/v1/log/keys", prefix=key.decode(), after_base64=first["keys"][-1]["key"]).json()
    found = [base64.b64decode(k["key"]) for k in first["keys"] + second["keys"]]
    assert found == expected
    assert (first["more"], second["more"]) == (True, False)


def test_count_is_exact(cluster: Cluster, key: bytes) -> None:
    start = append(cluster, [(key + b"/%d" % (i % 2), b"") for i in range(999)])["startSequence"]

    def count(**parameters: str) -> int:
        return cluster.get("/api/v1/log/count", **parameters).json()["count"]

    assert count(key=f"{key.decode()}/0") == 500
    assert count(prefix=key.decode()) == 999
    assert count(prefix=key.decode(), start_seq=str(start + 10), end_seq=str(start + 20)) == 10
    assert count(start_seq=str(start), end_seq=str(start + 999)) == 999


def test_segments_name_where_they_start(cluster: Cluster, key: bytes) -> None:
    append(cluster, [(key, b"v")])
    segments = cluster.get("/api/v1/log/segments").json()["segments"]
    assert segments[0].keys() == {"id", "startSeq", "startTimeMs"}
    assert segments[0]["startSeq"] == 0
    assert abs(segments[0]["startTimeMs"] / 1000 - time.time()) < 3600
    assert cluster.get("/api/v1/log/segments", start_seq="1").json() == {"status": "success", "segments": []}
    assert cluster.get("/api/v1/log/segments", startSeq="0", endSeq="0").json()["segments"] == []


def test_the_frontier_reaches_what_was_appended(cluster: Cluster, key: bytes) -> None:
    end = append(cluster, [(key, b"v")])["startSequence"] + 1
    frontier = cluster.get("/api/v1/log/frontier").json()
    assert frontier["readableSequence"] >= end
    assert frontier["nextSequence"] >= frontier["readableSequence"] >= frontier["durableSequence"]
    time.sleep(0.3)
    assert cluster.get("/api/v1/log/frontier").json()["durableSequence"] >= end


def test_a_follower_is_woken_by_the_append(cluster: Cluster, key: bytes) -> None:
    start = append(cluster, [(key, b"before")])["startSequence"] + 1
    found: dict[str, Any] = {}

    def follow() -> None:
        found.update(scan(cluster, key=key.decode(), start_seq=str(start), follow="true", timeout="20s"))
        found["at"] = time.monotonic()

    waiting = threading.Thread(target=follow)
    waiting.start()
    time.sleep(0.3)
    assert not found
    appended_at = time.monotonic()
    append(cluster, [(key, b"after")])
    waiting.join()
    assert values(found) == [b"after"]
    assert found["at"] - appended_at < 1.0


def test_a_follower_whose_time_is_over_gets_no_records(cluster: Cluster, key: bytes) -> None:
    started = time.monotonic()
    answer = scan(cluster, key=key.decode(), follow="true", timeout="200ms")
    assert answer["records"] == []
    assert 0.15 < time.monotonic() - started < 3


def test_an_event_stream_sends_past_and_new_records(cluster: Cluster, key: bytes) -> None:
    start = append(cluster, [(key, b"%d" % i) for i in range(3)])["startSequence"]
    late = threading.Timer(0.3, append, (cluster, [(key, b"3"), (key, b"4")]))
    late.start()
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(start)}
    answer = cluster.request("GET", f"/api/v1/log/scan?key={key.decode()}&limit=4", headers=headers)
    late.join()
    assert answer.headers["content-type"] == "text/event-stream"
    events = [
        dict(line.split(": ", 1) for line in text.splitlines()) for text in answer.body.decode().split("\n\n") if text
    ]
    got = [(int(e["id"]), base64.b64decode(json.loads(e["data"])["value"])) for e in events]
    assert [v for _, v in got] == [b"1", b"2", b"3", b"4"]
    assert got[0][0] == start + 1


def test_a_cursor_moves_only_from_where_it_is_expected(cluster: Cluster, key: bytes) -> None:
    path = f"/api/v1/log/cursors/{key.decode()}"

    def put(sequence: int, **expected: int | None) -> Response:
        body = json.dumps({"positions": [{"key": b64(key), "sequence": sequence, **expected}]}).encode()
        return cluster.request("PUT", path, body)

    assert put(5, expected=None).status == 200
    assert "is at 5, expected was at 4" in refused(put(9, expected=4), 409)
    assert put(9, expected=5).status == 200
    assert "is at 9, expected was not set" in refused(put(1, expected=None), 409)
    assert cluster.get(path).json() == {"status": "success", "positions": [{"key": b64(key), "sequence": 9}]}
    assert cluster.get(path, key="unknown").json()["positions"] == []
    assert cluster.request("DELETE", path).status == 200
    assert cluster.get(path).json()["positions"] == []


def test_a_repeated_batch_of_a_producer_gets_the_first_answer(cluster: Cluster, key: bytes) -> None:
    producer = key.decode()
    first = append(cluster, [(key, b"a"), (key, b"b")], producerId=producer, producerSeq=1)
    append(cluster, [(key, b"c")], producerId=producer, producerSeq=2)
    again = append(cluster, [(key, b"a"), (key, b"b")], producerId=producer, producerSeq=1, awaitDurable=True)
    assert again == first
    assert values(scan(cluster, key=key.decode())) == [b"a", b"b", b"c"]


def test_a_producer_may_not_go_back_beyond_what_is_remembered(cluster: Cluster, key: bytes) -> None:
    for seq in range(12):
        append(cluster, [(key, b"v")], producerId=key.decode(), producerSeq=seq)
    body = {"records": [record(key, b"v")], "producerId": key.decode(), "producerSeq": 1}
    assert "`producerSeq` is 1" in refused(cluster.post_json("/api/v1/log/append", body), 400)
