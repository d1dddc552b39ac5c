"""Queries that take long: listed with what they have read, canceled in all processes, and logged."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from loadtest.harness.cluster import Cluster, Response, freeze
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from tests.cluster.log_requests import b64
from tests.cluster.vector_requests import put, search, write
from tests.forked_cluster import ForkedCluster

NOW = 1_700_000_000
SERIES = 64
SLOW = "sum(quantile_over_time(0.5, abs(running_total)[2h:1s]))"
"""Over 11,000 steps: the workers read some samples at once, and have more to do than a test waits for."""
RANGE = {"query": SLOW, "start": str(NOW - 11_000), "end": str(NOW), "step": "1s"}
WITHIN_S = 10.0


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"TRIPTYCH_SLOW_QUERY": "50ms", "TRIPTYCH_ADMIN_API": "true"}
    cluster = ForkedCluster(tmp_path_factory.mktemp("watched"), settings=settings).start()
    series = [
        ({"__name__": "running_total", "i": str(i)}, [(1000 * (NOW - 60 * age), 1.0) for age in range(240, -1, -1)])
        for i in range(SERIES)
    ]
    assert cluster.request("POST", "/api/v1/write", compressed(series), HEADERS).status == 204
    yield cluster
    cluster.kill()


class Asked(threading.Thread):
    """A request whose answer is waited for in a thread."""

    def __init__(
        self, cluster: Cluster, name: str, path: str = "", search: dict[str, Any] | None = None, **parameters: str
    ) -> None:
        super().__init__(daemon=True)
        self._path = path or "/api/v1/query_range?" + urlencode(RANGE | parameters)
        self._body = None if search is None else json.dumps(search).encode()
        self._cluster, self._headers = cluster, {"X-Request-Id": name, "Content-Type": "application/json"}
        self.answer: Response | None = None
        self.start()

    def run(self) -> None:
        method = "GET" if self._body is None else "POST"
        self.answer = self._cluster.request(method, self._path, self._body, self._headers)

    def answered(self) -> Response:
        self.join(WITHIN_S)
        assert self.answer is not None, "the query is still being served"
        return self.answer


def until(found: Callable[[], Any]) -> Any:
    give_up = time.monotonic() + WITHIN_S
    while not (result := found()):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    return result


def listed(cluster: Cluster, name: str) -> dict[str, Any] | None:
    told = cluster.get("/api/v1/queries").json()["data"]
    return next((one for one in told if one["id"] == name), None)


def kept_as_slow(cluster: Cluster, name: str) -> dict[str, Any] | None:
    told = cluster.get("/api/v1/queries/slow").json()["data"]
    return next((one for one in told if one["id"] == name), None)


def test_a_query_is_listed_and_canceled_and_the_workers_stop(watched: Cluster) -> None:
    asked = Asked(watched, "to-cancel")

    def reading() -> dict[str, Any] | None:
        told = listed(watched, "to-cancel")
        return told if told and told["samples"] else None

    told = until(reading)
    assert (told["kind"], told["query"], told["state"], told["client"]) == ("range", SLOW, "running", "127.0.0.1")
    assert told["grid"] == {"start": NOW - 11_000, "end": NOW, "step": 1}
    assert {part["worker"] for part in told["workers"]} <= {"worker-0", "worker-1"} and told["workers"]
    canceled = watched.request("DELETE", "/api/v1/queries/to-cancel")
    assert (canceled.status, canceled.json()["data"]) == (200, {"canceled": 1})
    answer = asked.answered()
    assert (answer.status, answer.json()["errorType"]) == (503, "canceled")
    assert listed(watched, "to-cancel") is None
    assert watched.request("DELETE", "/api/v1/queries/to-cancel").status == 404
    # The workers have stopped: nothing is in flight, and both heavy places are free for queries that end.
    until(lambda: not any(w["requestsInFlight"] for w in watched.get("/api/v1/cluster").json()["data"]["workers"]))
    for _ in range(2):
        assert watched.get("/api/v1/query", query="sum(running_total)", time=str(NOW)).status == 200


FIELDS = {"collection": "listed", "vector": [1, 1], "k": 3, "exact": True}


@pytest.mark.parametrize(
    ("kind", "path", "fields", "text"),
    [
        ("vector.search", "/api/v1/vector/search", FIELDS, "collection=listed vectors=1 k=3 exact"),
        ("log.count", "/api/v1/log/count?prefix=l", None, "prefix=l"),
        ("log.keys", "/api/v1/log/keys?prefix=l", None, "prefix=l"),
        ("log.offsets", "/api/v1/log/offsets?prefix=l&time=0", None, "prefix=l&time=0"),
    ],
)
def test_what_is_asked_of_vectors_and_of_the_log_is_listed_and_canceled(
    watched: Cluster, kind: str, path: str, fields: dict[str, Any] | None, text: str
) -> None:
    assert put(watched, "listed", {"dimension": 2}).status == 200
    assert write(watched, *((f"v{n}", {"vector": [n, 1]}) for n in range(8)), collection="listed").status == 200
    records = [{"key": b64(b"l%d" % n), "value": ""} for n in range(8)]  # in both workers
    assert watched.post_json("/api/v1/log/append", {"records": records}).status == 200
    pid = watched.worker_pids()["worker-0"]
    freeze(pid)
    try:
        asked = Asked(watched, kind, path, search=fields)
        told = until(lambda: listed(watched, kind))
        assert (told["kind"], told["query"], told["client"]) == (kind, text, "127.0.0.1")
        assert told["age"] >= 0
        until(lambda: (listed(watched, kind) or {}).get("state") == "running")
        workers = until(lambda: (listed(watched, kind) or {}).get("workers"))
        assert "worker-0" in {part["worker"] for part in workers}
        assert watched.request("DELETE", f"/api/v1/queries/{kind}").json()["data"] == {"canceled": 1}
        answer = asked.answered()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert answer.status == 503 and "was canceled" in answer.json()["message"]
    until(lambda: watched.get("/-/ready").status == 200)
    assert len(search(watched, **FIELDS)["results"]) == 3


def test_followers_of_the_log_are_listed_and_canceled(watched: Cluster) -> None:
    path = "/api/v1/log/scan?key=followed&start_seq=1000000&follow=true"
    waiting = Asked(watched, "waits", path)
    with socket.create_connection(("127.0.0.1", watched.port), timeout=WITHIN_S) as events:
        events.sendall(
            b"GET /api/v1/log/scan?prefix=followed HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: events\r\n"
            b"Accept: text/event-stream\r\n\r\n"
        )
        assert events.recv(4096).startswith(b"HTTP/1.1 200")
        for name, text in (("waits", path.partition("?")[2]), ("events", "prefix=followed")):
            told = until(lambda name=name: listed(watched, name))
            assert (told["kind"], told["query"], told["client"]) == ("log.follow", text, "127.0.0.1")
            until(lambda name=name: (listed(watched, name) or {}).get("state") == "following")
            assert watched.request("DELETE", f"/api/v1/queries/{name}").status == 200
        answer = waiting.answered()
        assert answer.status == 503 and "was canceled" in answer.json()["message"]
        with contextlib.suppress(ConnectionResetError):
            while events.recv(4096):
                pass  # the connection has ended
    for name in ("waits", "events"):
        until(lambda name=name: listed(watched, name) is None)


def test_a_slow_query_is_logged_with_where_its_time_went(watched: Cluster) -> None:
    asked = Asked(watched, "slow-one", timeout="500ms")
    assert asked.answered().status == 503
    (told,) = [one for one in watched.get("/api/v1/queries/slow").json()["data"] if one["id"] == "slow-one"]
    assert (told["kind"], told["query"], told["status"]) == ("range", SLOW, 503)
    assert told["states"]["running"] >= 0.3 and told["seconds"] < 5
    assert told["plan"]["node"] == "Aggregate"
    (line,) = [
        line for line in watched.log("coordinator").splitlines() if "request=slow-one" in line and "slow query" in line
    ]
    assert " running_s=0." in line and f'query="{SLOW}" ' in line
    assert watched.get("/api/v1/queries/slow", by="nothing").status == 400


def test_a_slow_query_that_is_answered_says_what_it_cost(watched: Cluster) -> None:
    asked = Asked(watched, "slow-answer", query="sum(quantile_over_time(0.5, abs(running_total)[5m:1s]))")
    assert asked.answered().status == 200
    # A long answer has come before the query counts as over.
    told = until(lambda: kept_as_slow(watched, "slow-answer"))
    assert told["series"] == SERIES and told["samples"] >= SERIES
    assert {part["worker"] for part in told["workers"]} == {"worker-0", "worker-1"}
    assert told["seconds"] == pytest.approx(sum(told["states"].values()), abs=0.01)
    assert told["place"] in ("light", "heavy") and told["estimate"]


def test_a_profile_says_where_a_process_spends_its_time(watched: Cluster) -> None:
    asked = Asked(watched, "profiled", timeout="2s")
    until(lambda: listed(watched, "profiled"))
    worker = watched.get("/api/v1/debug/profile", seconds="0.3", process="worker-0")
    assert worker.status == 200 and b"worker.methods.queries.run;" in worker.body, watched.log("worker")[-3000:]
    own = watched.get("/api/v1/debug/profile", seconds="0.1", mode="wall")
    assert own.status == 200 and b"MainThread;" in own.body
    for wrong in ({"seconds": "0"}, {"seconds": "61"}, {"seconds": "nan"}, {"mode": "x"}):
        assert watched.get("/api/v1/debug/profile", **wrong).status == 400
    assert watched.get("/api/v1/debug/profile", process="worker-9").status == 404
    asked.answered()


def test_an_answer_that_is_being_sent_ends_with_its_connection(watched: Cluster) -> None:
    """A scan of the log whose client does not read on: what has come of it must not look whole."""
    value = base64.b64encode(bytes(100_000)).decode()
    for _ in range(4):
        records = [{"key": "YQ==", "value": value}] * 20
        assert watched.post_json("/api/v1/log/append", {"records": records}).status == 200
    with socket.create_connection(("127.0.0.1", watched.port), timeout=WITHIN_S) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(
            b"GET /api/v1/log/scan?key=a&limit=10000 HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: unread\r\n\r\n"
        )
        told = until(lambda: listed(watched, "unread"))
        assert (told["kind"], told["query"]) == ("log.scan", "key=a&limit=10000")
        head = connection.recv(4096)
        assert head.startswith(b"HTTP/1.1 200") and b"unread" in head
        assert watched.request("DELETE", "/api/v1/queries/unread").status == 200
        until(lambda: listed(watched, "unread") is None)
        came = head
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(1 << 20):
                came += piece
    assert not came.endswith((b"0\r\n\r\n", b"}"))
    assert watched.get("/api/v1/log/scan", key="a", limit="1").status == 200
