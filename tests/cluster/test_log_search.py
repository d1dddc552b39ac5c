"""Searches in the values of the log over HTTP."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster
from proto import log_pb2
from tests.cluster.log_requests import append, refused, scan


@pytest.fixture
def key() -> str:
    return f"key-{uuid.uuid4().hex}"


def event(n: int) -> dict[str, Any]:
    return {"level": "error" if n % 10 == 3 else "info", "n": n, "message": f"request {n} took {n % 7} ms"}


@pytest.fixture
def start(cluster: Cluster, key: str) -> int:
    """The first of 100 events, half of them under another key."""
    records = [{"keyText": f"{key}/{n % 2}", "json": event(n)} for n in range(100)]
    answer = cluster.post_json("/api/v1/log/append", {"records": records, "awaitDurable": True})
    assert answer.status == 200, answer.body
    return int(answer.json()["startSequence"])


def numbers(answer: dict[str, Any]) -> list[int]:
    return [record["json"]["n"] for record in answer["records"]]


def test_records_are_found_by_pattern_and_condition(cluster: Cluster, key: str, start: int) -> None:
    def found(**parameters: str) -> list[int]:
        answer = scan(cluster, encoding="json", **parameters)
        assert answer["nextSequence"] >= start + 100 or "limit" in parameters or "reverse" in parameters
        assert "warnings" not in answer and "infos" not in answer
        return numbers(answer)

    errors = [n for n in range(100) if n % 10 == 3]
    assert found(prefix=key, where='$.level = "error"') == errors
    assert found(key=f"{key}/1", where='$.level = "error" and $.n > 50') == [53, 63, 73, 83, 93]
    assert found(key=f"{key}/1", where='$.level = "error"', reverse="true", limit="3") == [93, 83, 73]
    assert found(prefix=key, grep=r"took [56] ms", grep_not="request [0-8]") == [90, 96, 97]
    assert found(prefix=key, grep="REQUEST 4[0-3]") == []
    assert found(prefix=key, grep="(?i)REQUEST 4[0-3]") == [40, 41, 42, 43]
    assert found(prefix=key, grep="request 4", where="$.n >= 45") == [45, 46, 47, 48, 49]


def test_a_search_goes_on_from_next_sequence(cluster: Cluster, key: str, start: int) -> None:
    seen: list[int] = []
    at = 0
    while True:
        answer = scan(cluster, prefix=key, where='$.level = "error"', encoding="json", limit="3", start_seq=str(at))
        seen += numbers(answer)
        at = answer["nextSequence"]
        if not answer["records"]:
            break
    assert seen == [n for n in range(100) if n % 10 == 3]


def test_what_is_found_is_counted(cluster: Cluster, key: str, start: int) -> None:
    def count(**parameters: str) -> int:
        return int(cluster.get("/api/v1/log/count", **parameters).json()["count"])

    assert count(prefix=key, where='$.level = "error"') == 10
    assert count(key=f"{key}/1", where='$.level = "error"', start_seq=str(start + 50)) == 5
    assert count(grep="request", grep_not="took", start_seq=str(start), end_seq=str(start + 100)) == 0
    assert count(grep="request", start_seq=str(start), end_seq=str(start + 100)) == 100


def test_protobuf_holds_what_is_found(cluster: Cluster, key: str, start: int) -> None:
    path = f"/api/v1/log/scan?prefix={key}&grep=request%201%5Cd%20"
    answer = cluster.request("GET", path, headers={"Accept": "application/protobuf"})
    read = log_pb2.ScanResponse.FromString(answer.body)
    assert [n - start for page in read.pages for n in page.sequences] == list(range(10, 20))


def test_a_reader_that_follows_is_woken_by_what_it_looks_for(cluster: Cluster, key: str, start: int) -> None:
    after = str(start + 100)
    late = threading.Timer(
        0.3, lambda: [append(cluster, [(key.encode(), b"fine"), (key.encode(), b"rare %d" % n)]) for n in (1, 2)]
    )
    late.start()
    answer = scan(cluster, prefix=key, start_seq=after, follow="true", timeout="20s", grep="rare", encoding="text")
    assert answer["records"][0]["text"] == "rare 1"
    headers = {"Accept": "text/event-stream"}
    path = f"/api/v1/log/scan?prefix={key}&start_seq={after}&limit=2&grep=rare&encoding=text"
    events = cluster.request("GET", path, headers=headers).body.decode()
    late.join()
    data = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: ")]
    assert [record["text"] for record in data] == ["rare 1", "rare 2"]


def test_a_reader_that_follows_in_vain_is_told_how_far_it_has_come(cluster: Cluster, key: str, start: int) -> None:
    answer = scan(cluster, prefix=key, follow="true", timeout="300ms", grep="nothing like this")
    assert answer["records"] == [] and answer["nextSequence"] >= start + 100


def test_values_that_are_too_large_for_a_condition_are_warned_of(cluster: Cluster, key: str) -> None:
    append(cluster, [(key.encode(), b'{"n":1}'), (key.encode(), b'{"n":1,"x":"' + b"y" * (1 << 20) + b'"}')])
    answer = scan(cluster, key=key, where="$.n = 1")
    assert len(answer["records"]) == 1
    assert answer["warnings"] == ["values above 1048576 bytes are not examined by 'where'"]
    counted = cluster.get("/api/v1/log/count", key=key, where="$.n = 1").json()
    assert counted == {"status": "success", "count": 1, "warnings": answer["warnings"]}
    append(cluster, [(key.encode(), b'{"n":1}')])
    large = str(answer["records"][0]["sequence"] + 1)
    waited = scan(cluster, key=key, where="$.n = 1", start_seq=large, follow="true")
    assert len(waited["records"]) == 1 and waited["warnings"] == answer["warnings"]


def test_a_search_that_takes_long_sends_how_far_it_has_come(new_cluster: Callable[..., Cluster]) -> None:
    settings = {"TRIPTYCH_LOG_SEARCH_TIMEOUT": "1ms", "TRIPTYCH_LOG_SEGMENT_BYTES": str(1 << 20)}
    short = new_cluster(shards=1, workers=1, settings=settings).start()
    for n in range(5):
        append(short, [(b"k", b"%d rare" % n + (b"" if n == 4 else b"x" * (7 << 20)))])
    for parameters in ({"key": "k"}, {"key": "k", "reverse": "true"}):
        answer = scan(short, grep="4 rare", **parameters)
        assert answer["infos"] == ["the search is not at the end after 0.001 s; it goes on at nextSequence"]
        assert 0 < answer["nextSequence"] < 5
        bound = "end_seq" if "reverse" in parameters else "start_seq"
        found = answer["records"]
        for _ in range(5):
            answer = scan(short, grep="4 rare", **{**parameters, bound: str(answer["nextSequence"])})
            found += answer["records"]
        assert [record["sequence"] for record in found] == [4]
    path = "/api/v1/log/scan?key=k&grep=4%20rare"
    read = log_pb2.ScanResponse.FromString(short.request("GET", path, headers={"Accept": "application/protobuf"}).body)
    assert read.next_sequence < 5 and "it goes on at nextSequence" in read.warnings[0]


@pytest.mark.parametrize(
    ("parameters", "hint"),
    [
        ({"grep": "("}, "parameter 'grep' is '(', which is refused: missing"),
        ({"grep": ""}, "parameter 'grep' is '', which is refused: the pattern is empty"),
        ({"grep_not": "x{1000}"}, "parameter 'grep_not'"),
        (
            {"where": "$.n = "},
            "parameter 'where' is '$.n = ', which is refused: the condition has its end at character 7",
        ),
        ({"grpe": "x"}, "did you mean 'grep'?"),
    ],
)
def test_a_search_that_is_wrong_names_its_parameter(cluster: Cluster, parameters: dict[str, str], hint: str) -> None:
    assert hint in refused(cluster.get("/api/v1/log/scan", key="k", **parameters), 400)
