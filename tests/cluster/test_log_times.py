"""When records were appended, over HTTP: shown, and read by."""

from __future__ import annotations

import json
import time
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster, Response
from proto import log_pb2
from tests.cluster.log_requests import append, b64, refused, scan, values

FAR = "2100-01-01T00:00:00Z"


@pytest.fixture
def key() -> bytes:
    return f"key-{uuid.uuid4().hex}".encode()


@pytest.fixture
def times(cluster: Cluster, key: bytes) -> list[int]:
    """When the records `0` … `5` of the key were appended, two in each batch, in ms."""
    for at in range(3):
        append(cluster, [(key, b"%d" % (2 * at)), (key + b"-other", b"x"), (key, b"%d" % (2 * at + 1))])
        time.sleep(0.02)
    return [record["timeMs"] for record in scan(cluster, key=key.decode())["records"]]


def seconds(time_ms: int) -> str:
    return f"{time_ms / 1000:.3f}"


def answer_as(cluster: Cluster, media_type: str, **parameters: str) -> Response:
    path = "/api/v1/log/scan?" + urllib.parse.urlencode(parameters)
    return cluster.request("GET", path, headers={"Accept": media_type})


def put(cluster: Cluster, path: str, positions: list[dict[str, Any]]) -> Response:
    return cluster.request("PUT", path, json.dumps({"positions": positions}).encode())


def test_a_record_shows_when_it_was_appended(cluster: Cluster, key: bytes, times: list[int]) -> None:
    now_ms = time.time() * 1000
    assert times == sorted(times) and times[0] == times[1] < times[2] == times[3] < times[4] == times[5]
    assert now_ms - 10_000 < times[0] <= times[-1] <= now_ms
    merged = scan(cluster, prefix=key.decode())["records"]
    assert [record["timeMs"] for record in merged] == [time_ms for time_ms in times[::2] for _ in range(3)]
    newest = scan(cluster, key=key.decode(), reverse="true")["records"]
    assert [record["timeMs"] for record in newest] == times[::-1]
    binary = answer_as(cluster, "application/protobuf", key=key.decode())
    (page,) = log_pb2.ScanResponse.FromString(binary.body).pages
    assert list(page.times_ms) == times


def test_an_event_shows_when_its_record_was_appended(cluster: Cluster, key: bytes, times: list[int]) -> None:
    stream = answer_as(cluster, "text/event-stream", key=key.decode(), limit="6")
    events = [json.loads(line[6:]) for line in stream.body.splitlines() if line.startswith(b"data: ")]
    assert [event["timeMs"] for event in events] == times
    late = {"start_time": seconds(times[4]), "limit": "2"}
    stream = answer_as(cluster, "text/event-stream", key=key.decode(), **late)
    events = [json.loads(line[6:]) for line in stream.body.splitlines() if line.startswith(b"data: ")]
    assert [event["timeMs"] for event in events] == times[4:]


@pytest.mark.parametrize("selection", ["key", "prefix"])
def test_a_scan_and_a_count_are_bounded_by_time(cluster: Cluster, key: bytes, times: list[int], selection: str) -> None:
    own: dict[str, Any] = {selection: key.decode() + "-" * (selection == "prefix")}
    per_batch = 2 if selection == "key" else 1
    for low in range(0, 6, 2):
        for high in range(0, 6, 2):
            between = {"start_time": seconds(times[low]), "endTime": seconds(times[high])}
            expected = max(0, high - low) // 2 * per_batch
            assert len(scan(cluster, **own, **between)["records"]) == expected
            assert cluster.get("/api/v1/log/count", **own, **between).json()["count"] == expected
    assert len(scan(cluster, **own, start_time=seconds(times[2]), end_time=FAR)["records"]) == 2 * per_batch
    assert scan(cluster, **own, start_time=FAR)["records"] == []
    assert len(scan(cluster, **own, start_time="0")["records"]) == 3 * per_batch


def test_keys_with_records_of_a_time_are_listed(cluster: Cluster, key: bytes, times: list[int]) -> None:
    append(cluster, [(key + b"-late", b"v")])
    since = cluster.get("/api/v1/log/keys", prefix=key.decode(), start_time=seconds(times[-1] + 1)).json()
    assert since["keys"] == [{"key": b64(key + b"-late")}]
    before = cluster.get("/api/v1/log/keys", prefix=key.decode(), end_time=seconds(times[-1] + 1)).json()
    assert [entry["key"] for entry in before["keys"]] == [b64(key), b64(key + b"-other")]


def test_the_first_sequence_at_a_time_is_told(cluster: Cluster, key: bytes, times: list[int]) -> None:
    records = scan(cluster, key=key.decode())["records"]

    def offset(**parameters: str) -> dict[str, Any]:
        answer = cluster.get("/api/v1/log/offsets", **parameters)
        assert answer.status == 200, answer.body
        return answer.json()

    for record in records[::2]:
        expected = {"status": "success", "sequence": record["sequence"], "timeMs": record["timeMs"]}
        assert offset(key=key.decode(), time=seconds(record["timeMs"])) == expected
        assert offset(time=seconds(record["timeMs"]))["sequence"] <= record["sequence"]
    other = scan(cluster, key=key.decode() + "-other")["records"]
    assert offset(prefix=key.decode() + "-", time=seconds(times[2]))["sequence"] == other[1]["sequence"]
    end = offset(key=key.decode(), time=FAR)
    assert end.keys() == {"status", "sequence"} and end["sequence"] > records[-1]["sequence"]


def test_a_cursor_is_put_by_time(cluster: Cluster, key: bytes, times: list[int]) -> None:
    path = f"/api/v1/log/cursors/{key.decode()}"
    positions = [
        {"key": b64(key), "time": times[2] / 1000},
        {"key": b64(key + b"-other"), "time": FAR},
        {"key": b64(b"k"), "sequence": 5},
    ]
    answer = put(cluster, path, positions)
    assert (answer.status, answer.json()["positionsSet"]) == (200, 3), answer.body
    by_key = {entry["key"]: entry["sequence"] for entry in cluster.get(path).json()["positions"]}
    assert {entry["key"]: entry["sequence"] for entry in answer.json()["positions"]} | {b64(b"k"): 5} == by_key
    assert values(scan(cluster, key=key.decode(), start_seq=str(by_key[b64(key)]))) == [b"2", b"3", b"4", b"5"]
    assert scan(cluster, key=key.decode() + "-other", start_seq=str(by_key[b64(key + b"-other")]))["records"] == []
    for position, text in (
        ({"key": "aw=="}, "must have either `sequence` or `time`"),
        ({"key": "aw==", "sequence": 1, "time": 1}, "must have either `sequence` or `time`"),
        ({"key": "aw==", "time": "noon"}, "positions[0].time"),
    ):
        assert text in refused(put(cluster, path, [position]), 400)
    many = [{"key": "aw==", "time": second} for second in range(101)]
    assert "101 distinct times; it may have at most 100" in refused(put(cluster, path, many), 400)


@pytest.mark.parametrize(
    ("path", "parameters", "text"),
    [
        ("scan", {"key": "k", "start_time": "noon"}, "parameter 'start_time' is 'noon'"),
        ("count", {"endTime": ""}, "parameter 'endTime' is ''"),
        ("keys", {"start_time": "1e99"}, "parameter 'start_time' is '1e99'"),
        ("offsets", {}, "parameter 'time' is missing"),
        ("offsets", {"time": "1", "key": "a", "prefix": "b"}, "exclude each other"),
        ("scan", {"key": "k", "follow": "true", "end_time": FAR}, "'end_time' is in the future"),
    ],
)
def test_a_time_that_is_none_is_refused(cluster: Cluster, path: str, parameters: dict[str, str], text: str) -> None:
    assert text in refused(cluster.get(f"/api/v1/log/{path}", **parameters), 400)


def test_times_survive_a_restart_of_everything(new_cluster: Callable[..., Cluster]) -> None:
    forked = new_cluster().start()
    append(forked, [(b"k", b"v")], awaitDurable=True)
    before = scan(forked, key="k")["records"]
    forked.kill()
    forked.start()
    append(forked, [(b"k", b"w")])
    after = scan(forked, key="k")["records"]
    assert after[:1] == before and after[1]["timeMs"] >= before[0]["timeMs"]
