"""A cluster that is short of memory, or cannot keep up: what it refuses, how, and what it still answers."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.remote_write_bodies import HEADERS, compressed

MORE_THAN_THERE_IS = "1000TB"
CLIENTS, ASKED_FOR_S = 200, 3.0
RECORDS = {"records": [{"key": "YQ==", "value": "Yg=="}]}


def metric(cluster: Cluster, name: str) -> float:
    text = cluster.get("/metrics").body.decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def asked_until_light(cluster: Cluster, path: str, **parameters: str) -> Response:
    """The answer when the kernels have been loaded, for which the first query takes the time of a heavy one."""
    give_up = time.monotonic() + 20
    while (answer := cluster.get(path, **parameters)).status == 503 and time.monotonic() < give_up:
        time.sleep(0.05)
    return answer


@pytest.fixture
def short_of_memory(new_cluster: Callable[..., Cluster]) -> Cluster:
    """Holds one series."""
    cluster = new_cluster().start()
    body = compressed([({"__name__": "up", "job": "a"}, [(int(time.time() * 1000), 1.0)])])
    assert cluster.request("POST", "/api/v1/write", body, HEADERS).status == 204
    cluster.stop()
    cluster.settings = {"TRIPTYCH_MEMORY_RESERVE_BYTES": MORE_THAN_THERE_IS}
    return cluster.start()


def test_short_of_memory_writes_are_refused_and_reads_answered(short_of_memory: Cluster) -> None:
    cluster = short_of_memory
    body = compressed([({"__name__": "up", "job": "b"}, [(int(time.time() * 1000), 1.0)])])
    vectors = {"upsertVectors": [{"id": "a", "attributes": {"vector": [1, 2]}}]}
    for refused in (
        cluster.request("POST", "/api/v1/write", body, HEADERS),
        cluster.post_json("/api/v1/log/append", RECORDS),
        cluster.post_json("/api/v1/vector/write", vectors),
    ):
        assert refused.status == 503
        assert 1 <= int(refused.headers["retry-after"]) <= 3
        assert "TRIPTYCH_MEMORY_RESERVE_BYTES" in refused.body.decode()
    assert len(asked_until_light(cluster, "/api/v1/query", query="up").json()["data"]["result"]) == 1
    assert asked_until_light(cluster, "/api/v1/labels").status == 200
    assert cluster.get("/api/v1/log/scan", key="a").status == 200
    assert cluster.post_json("/api/v1/vector/delete", {"ids": ["a"]}).status == 200
    assert cluster.get("/-/ready").status == 200
    assert metric(cluster, "triptych_overload_level") == 3
    assert metric(cluster, 'triptych_overload_refused_total{reason="memory"}') >= 3
    assert metric(cluster, "triptych_memory_available_bytes") > 0
    assert "memory is short" in cluster.log("coordinator")


def test_short_of_memory_a_heavy_query_is_refused(short_of_memory: Cluster) -> None:
    now = int(time.time())
    heavy = short_of_memory.get("/api/v1/query", query="count_over_time(vector(1)[200d:1s])", time=str(now))
    assert heavy.status == 503, heavy.body[:300]
    assert "heavy queries" in heavy.json()["error"]
    assert heavy.headers["retry-after"]


def test_a_flood_is_refused_in_part_and_the_state_is_still_told(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(settings={"TRIPTYCH_QUEUE_WAIT": "1ms"}).start()
    body = json.dumps({"records": RECORDS["records"] * 100}).encode()
    head = b"POST /api/v1/log/append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    statuses: set[bytes] = set()
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", cluster.port))) for _ in range(300)]
        give_up = time.monotonic() + 30
        while {b"200", b"503"} - statuses and time.monotonic() < give_up:
            for client in clients:
                client.sendall(request)
            assert cluster.get("/-/healthy").status == 200
            statuses |= {client.recv(65536)[9:12] for client in clients}
    assert statuses == {b"200", b"503"}
    assert metric(cluster, "triptych_overload_refused_total") > 0
    assert "overload: work has to wait" in cluster.log("coordinator")


def test_answers_stay_in_order_whatever_way_a_refused_request_arrives(short_of_memory: Cluster) -> None:
    body = json.dumps(RECORDS).encode()
    append = b"POST /api/v1/log/append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    append += b"Content-Length: %d\r\n\r\n" % len(body) + body
    ready = b"GET /-/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", short_of_memory.port), timeout=10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        for pieces in (
            [ready, append],
            [ready + append],
            [append, ready],
            [append[:40], append[40:]],
            [append[:-5], append[-5:] + ready],
            [append],
            [append],
        ):
            for piece in pieces:
                client.sendall(piece)
                time.sleep(0.01)
        while received.count(b"HTTP/1.1 ") < 11:
            more = client.recv(65536)
            assert more, received[-500:]
            received += more
    statuses = [int(answer[:3]) for answer in received.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 503, 200, 503, 503, 200, 503, 503, 200, 503, 503]


def test_requests_that_wait_for_their_turn_are_answered_in_order_or_forgotten_with_their_connection(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster(settings={"TRIPTYCH_QUEUE_WAIT": "1ms"}).start()
    body = json.dumps({"records": RECORDS["records"] * 300}).encode()
    head = b"POST /api/v1/log/append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    append = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    ready = b"GET /-/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    seen: set[tuple[bytes, bytes]] = set()
    give_up = time.monotonic() + 30
    while {(b"200", b"200"), (b"503", b"200")} - seen and time.monotonic() < give_up:
        with ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(("127.0.0.1", cluster.port), 10)) for _ in range(200)
            ]
            for client in clients:
                client.sendall(append)
            for client in clients[::4]:
                client.close()
            for number, client in enumerate(clients):
                if number % 4:
                    client.sendall(ready)  # behind a request that may still wait
            for number, client in enumerate(clients):
                received = b""
                while number % 4 and received.count(b"HTTP/1.1 ") < 2:
                    more = client.recv(65536)
                    assert more, received[-500:]
                    received += more
                if number % 4:
                    first, second = (answer[:3] for answer in received.split(b"HTTP/1.1 ")[1:])
                    seen.add((first, second))
    assert seen == {(b"200", b"200"), (b"503", b"200")}
    assert "trace" not in cluster.log("coordinator")


def test_each_of_many_clients_that_ask_again_and_again_has_its_turn(cluster: Cluster) -> None:
    """They are no overload: none is refused, and none waits for long while the others are answered."""
    request = b"GET /api/v1/labels HTTP/1.1\r\nHost: localhost\r\n\r\n"
    statuses: Counter[bytes] = Counter()
    answered = []

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
        count, until = 0, time.monotonic() + ASKED_FOR_S
        while time.monotonic() < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
            statuses[head[9:12]] += 1
            count += 1
        writer.close()
        answered.append(count)

    async def ask_all() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*(ask() for _ in range(CLIENTS)))

    asyncio.run(ask_all())
    assert set(statuses) == {b"200"}
    assert min(answered) >= 0.3 * statistics.median(answered), sorted(answered)
