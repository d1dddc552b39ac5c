"""The live tail: events from now on, continued by `Last-Event-ID`, and `triptych log tail` over a restart."""

from __future__ import annotations

import asyncio
import http.client
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from loadtest.harness.cluster import ROOT, Cluster
from tests.cluster.log_requests import append, refused

WITHIN_S = 60.0
FOLLOWERS = 700


@contextmanager
def tailing(cluster: Cluster, query: str, last: str = "") -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=30)
    connection.request("GET", f"/api/v1/log/tail?{query}", headers={"Last-Event-ID": last} if last else {})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
    yield answer
    connection.close()


def events(answer: http.client.HTTPResponse, count: int) -> list[dict[str, str]]:
    """The next events, each as its fields."""
    found: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    while len(found) < count:
        line = answer.readline().decode().rstrip("\n")
        if not line:
            found += [fields] if fields else []
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
    return found


@pytest.fixture
def key() -> str:
    return f"tail-{uuid4().hex}"


def test_a_tail_begins_now(cluster: Cluster, key: str) -> None:
    append(cluster, [(key.encode(), b"before")])
    with tailing(cluster, f"key={key}") as answer:
        (place,) = events(answer, 1)
        assert place.keys() == {"id"}
        start = append(cluster, [(key.encode(), b"after")])["startSequence"]
        (record,) = events(answer, 1)
        assert record["id"] == str(start) and '"value":"YWZ0ZXI="' in record["data"]


def test_a_tail_continues_after_the_last_event(cluster: Cluster, key: str) -> None:
    with tailing(cluster, f"prefix={key}") as answer:
        (place,) = events(answer, 1)  # the reader goes before it had a record
    first = append(cluster, [(f"{key}{n}".encode(), b"") for n in range(3)])["startSequence"]
    with tailing(cluster, f"prefix={key}", place["id"]) as answer:
        assert [event["id"] for event in events(answer, 4)[1:]] == [str(first + n) for n in range(3)]
    with tailing(cluster, f"prefix={key}&start_seq=0", str(first + 1)) as answer:
        assert [event["id"] for event in events(answer, 2)[1:]] == [str(first + 2)]
    with tailing(cluster, f"prefix={key}", "-1") as answer:
        assert [event["id"] for event in events(answer, 4)] == ["-1", *(str(first + n) for n in range(3))]


def test_a_reader_that_comes_back_misses_nothing_with_a_start_time_that_is_ahead(cluster: Cluster, key: str) -> None:
    """Its clock is ahead of the server's."""
    query = f"key={key}&start_time={time.time() + 3600:.3f}"
    with tailing(cluster, query) as answer:
        (place,) = events(answer, 1)
    start = append(cluster, [(key.encode(), b"")])["startSequence"]
    with tailing(cluster, query, place["id"]) as answer:
        assert [event["id"] for event in events(answer, 2)] == [place["id"], str(start)]


def test_followers_that_all_come_back_together_are_all_let_in(cluster: Cluster, key: str) -> None:
    """As after a start of the coordinator: many at once are a burst, and no overload."""
    request = f"GET /api/v1/log/tail?key={key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    async def first_lines() -> list[bytes]:
        async def follow() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
            writers.append(writer)
            writer.write(request)
            return await reader.readline()

        writers: list[asyncio.StreamWriter] = []
        async with asyncio.timeout(WITHIN_S):
            lines = await asyncio.gather(*(follow() for _ in range(FOLLOWERS)))
        for writer in writers:
            writer.close()
        return lines

    assert Counter(asyncio.run(first_lines())) == {b"HTTP/1.1 200 OK\r\n": FOLLOWERS}


def test_a_tail_may_begin_in_the_past_and_end(cluster: Cluster, key: str) -> None:
    first = append(cluster, [(key.encode(), b"")] * 4)["startSequence"]
    with tailing(cluster, f"key={key}&start_seq={first + 1}&end_seq={first + 3}") as answer:
        assert [event["id"] for event in events(answer, 3)] == [str(first + n) for n in range(3)]
        assert answer.read() == b""


@pytest.mark.parametrize(
    ("query", "last", "says"),
    [("", "", "'key' is missing"), ("key=a&prefix=b", "", "exclude"), ("key=a", "x", "Last-Event-ID is 'x'")],
)
def test_what_is_wrong_is_named(cluster: Cluster, query: str, last: str, says: str) -> None:
    headers = {"Last-Event-ID": last} if last else {}
    assert says in refused(cluster.request("GET", f"/api/v1/log/tail?{query}", headers=headers), 400)


def test_the_command_goes_on_where_it_was_after_restarts(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster().start()
    append(cluster, [(b"k", b"before")])
    command = [sys.executable, "-m", "coordinator.cli", "log", "tail", "--key", "k", "--values", "--limit", "40"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    tail = subprocess.Popen(
        [*command, "--url", cluster.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=ROOT
    )
    try:
        deadline = time.monotonic() + WITHIN_S
        while cluster.get("/api/v1/queries").json()["data"] == []:
            assert time.monotonic() < deadline and tail.poll() is None
            time.sleep(0.05)
        for round_number in range(4):
            for number in range(10):
                append(cluster, [(b"k", b"%d" % (round_number * 10 + number))])
                if number == 5 and round_number < 3:
                    assert cluster.coordinator is not None
                    cluster.coordinator.kill()
                    cluster.coordinator.wait()
                    cluster.start_coordinator()
                    cluster.wait_ready()
        output, messages = tail.communicate(timeout=WITHIN_S)
    finally:
        tail.kill()
    assert output.split() == [b"%d" % number for number in range(40)]
    assert b"trying again" in messages and b"resuming at sequence number" in messages
    assert tail.returncode == 0


def test_the_command_does_not_wait_for_a_cluster_that_never_was(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "coordinator.cli", "log", "tail", "--key", "k", "--start", "0"]
    ended = subprocess.run([*command, "--url", "http://127.0.0.1:1"], capture_output=True, cwd=ROOT, timeout=60)
    assert ended.returncode == 1 and b"does not answer" in ended.stderr
