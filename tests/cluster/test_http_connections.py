"""What clients leave unfinished, over raw sockets against a real cluster: heads, bodies, answers that are not read."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from loadtest.harness.cluster import Cluster
from tests.forked_cluster import ForkedCluster

HOST = b"Host: localhost\r\n"
HEALTHY = b"GET /-/healthy HTTP/1.1\r\n" + HOST + b"\r\n"
CONNECTIONS = 40
SHARE = 30
HEAD_TIMEOUT_S, READER_TIMEOUT_S = 3.0, 2.0
VALUE_BYTES, VALUES = 20_000, 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """40 connections, 30 of one client; the log has 8 MB under the key `k`."""
    settings = {
        "TRIPTYCH_CONNECTIONS_MAX": str(CONNECTIONS),
        "TRIPTYCH_HEAD_TIMEOUT": f"{HEAD_TIMEOUT_S:g}s",
        "TRIPTYCH_SLOW_READER_TIMEOUT": f"{READER_TIMEOUT_S:g}s",
    }
    running = ForkedCluster(tmp_path_factory.mktemp("connections"), shards=1, workers=1, settings=settings).start()
    for _ in range(4):
        assert running.request("POST", "/api/v1/log/append", append_body(VALUES // 4), JSON).status == 200
    yield running
    running.stop()


JSON = {"Content-Type": "application/json"}


def append_body(records: int) -> bytes:
    record = {"key": b64encode(b"k").decode(), "value": b64encode(os.urandom(VALUE_BYTES)).decode()}
    return json.dumps({"records": [record] * records}).encode()


def connect(server: Cluster, text: bytes = b"") -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is not read lies with the server
    made.settimeout(10)
    made.connect(("127.0.0.1", server.port))
    made.sendall(text)
    return made


def is_closed(connection: socket.socket) -> bool:
    state: int = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != 1


def wait_closed(connections: list[socket.socket], within_s: float) -> None:
    give_up = time.monotonic() + within_s
    while not all(is_closed(connection) for connection in connections):
        assert time.monotonic() < give_up, [is_closed(connection) for connection in connections]
        time.sleep(0.05)


def ended(server: Cluster) -> dict[str, float]:
    """Connections that the server has ended, by reason."""
    text = server.get("/metrics").body.decode()
    return {
        reason: float(count)
        for reason, count in re.findall(r'triptych_connections_ended_total{reason="([^"]+)"} ([\d.]+)', text)
    }


def close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def assert_answers(server: Cluster, within_s: float = 2.0) -> None:
    began = time.monotonic()
    assert server.request("GET", "/-/healthy", timeout_s=within_s).status == 200
    assert server.request("POST", "/api/v1/log/append", append_body(1), JSON, timeout_s=within_s).status == 200
    assert time.monotonic() - began < within_s


def test_unfinished_heads_end_in_time_and_keep_nobody_out(server: Cluster) -> None:
    made = [connect(server, b"GET /-/healthy HTTP/1.1\r\nX: ") for _ in range(2 * CONNECTIONS)]
    try:
        assert_answers(server)
        survivors = [connection for connection in made if not is_closed(connection)]
        assert len(survivors) <= SHARE
        give_up = time.monotonic() + HEAD_TIMEOUT_S + 5
        while survivors and time.monotonic() < give_up:
            survivors = [connection for connection in survivors if not is_closed(connection)]
            for connection in survivors:
                with suppress(OSError):
                    connection.send(b"a")  # a byte now and then does not help
            time.sleep(0.1)
        assert survivors == []
        assert ended(server)["head timeout"] > 0
    finally:
        close(made)


def test_idle_connections_give_way_and_a_served_one_does_not(server: Cluster) -> None:
    served = connect(server, b"GET /api/v1/log/scan?key=none&follow=true&timeout=8s HTTP/1.1\r\n" + HOST + b"\r\n")
    made = [connect(server, HEALTHY) for _ in range(SHARE)]
    try:
        time.sleep(1.5)
        for _ in range(2 * CONNECTIONS):
            made.append(connect(server, HEALTHY))
            assert made[-1].recv(12) == b"HTTP/1.1 200"
        assert not is_closed(served)
        assert sum(not is_closed(connection) for connection in made) <= SHARE
        assert served.recv(12) == b"HTTP/1.1 200"
    finally:
        close([served, *made])


def test_a_head_is_bounded_in_all(server: Cluster) -> None:
    lines = b"".join(b"X-%d: %b\r\n" % (number, b"a" * 60_000) for number in range(6))
    with connect(server, b"GET /api/v1/vector/stats HTTP/1.1\r\n" + HOST) as connection:
        for start in range(0, len(lines), 10_000):
            with suppress(OSError):
                connection.sendall(lines[start : start + 10_000])
        answer = connection.recv(65536)
    assert b" 400 " in answer and b"its head is larger than 262144 bytes" in answer


def test_large_answer_that_is_not_read_is_ended(server: Cluster) -> None:
    before = psutil.Process(server.coordinator.pid).memory_info().rss  # type: ignore[union-attr]
    request = b"GET /api/v1/log/scan?key=k&limit=100000 HTTP/1.1\r\n" + HOST + b"\r\n"
    made = [connect(server, request) for _ in range(8)]
    try:
        assert_answers(server)
        wait_closed(made, READER_TIMEOUT_S + 6)
        assert ended(server)["slow reader"] >= 8
    finally:
        close(made)
    assert psutil.Process(server.coordinator.pid).memory_info().rss - before < 200 << 20  # type: ignore[union-attr]


def test_deaf_follower_is_ended_and_can_resume_where_it_was(server: Cluster) -> None:
    follow = b"GET /api/v1/log/scan?key=k&start_seq=%d HTTP/1.1\r\n" + HOST + b"Accept: text/event-stream\r\n\r\n"
    deaf = [connect(server, follow % 0) for _ in range(8)]
    try:
        wait_closed(deaf, READER_TIMEOUT_S + 6)
        received = b""
        with suppress(OSError):
            while piece := deaf[0].recv(65536):
                received += piece
    finally:
        close(deaf)
    seen = [int(number) for number in re.findall(rb"id: (\d+)\ndata: [^\n]+\n\n", received)]
    assert seen == list(range(len(seen)))
    last = seen[-1] if seen else -1
    with connect(server, follow % (last + 1)) as again:
        assert b"id: %d\n" % (last + 1) in again.recv(65536) + again.recv(65536)


def test_pipelined_requests_whose_answers_are_not_read_wait(server: Cluster) -> None:
    before = psutil.Process(server.coordinator.pid).memory_info().rss  # type: ignore[union-attr]
    with connect(server) as connection:
        connection.setblocking(False)
        request, sent = b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n", 0
        give_up = time.monotonic() + 1
        while time.monotonic() < give_up and sent < 4 << 20:
            try:
                sent += connection.send(request * 1000)
            except BlockingIOError:
                time.sleep(0.05)
        assert_answers(server)
        grown = psutil.Process(server.coordinator.pid).memory_info().rss - before  # type: ignore[union-attr]
        assert grown < 64 << 20
        wait_closed([connection], READER_TIMEOUT_S + 6)


def test_slow_bodies_are_not_in_flight(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"TRIPTYCH_REQUESTS_IN_FLIGHT_MAX": "8"}
    running = ForkedCluster(tmp_path_factory.mktemp("slow"), shards=1, workers=1, settings=settings).start()
    try:
        head = b"POST /api/v1/log/append HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
        made = [connect(running, head + b"Content-Length: 1000000\r\n\r\n[") for _ in range(50)]
        time.sleep(0.2)
        assert_answers(running, 5.0)
        close(made)
    finally:
        running.stop()


def test_every_process_may_open_as_many_files_as_the_system_allows(server: Cluster) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pids = [server.coordinator.pid, server.supervisor.pid, *server.worker_pids().values()]  # type: ignore[union-attr]
    assert {psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE) for pid in pids} == {(hard, hard)}
