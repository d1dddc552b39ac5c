"""The load of the log's benchmark over HTTP: appends, scans, polls, followers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

import psutil

from loadtest.harness.cluster import Cluster
from proto import log_pb2

KEYS = 1000
VALUE_BYTES = 100
SCAN_RECORDS = 100_000
FOLLOWERS = 1000
DELIVERIES = 500
POLLS = 500
FILL_RECORDS = 10_000
CONNECTIONS = 4
RECEIVE_BYTES = 1 << 20
BUSY_S = 30.0
RETRY_S = 0.5


def json_body(keys: list[bytes], durable: bool = True) -> bytes:
    records = [
        {"key": base64.b64encode(k).decode(), "value": base64.b64encode(os.urandom(VALUE_BYTES)).decode()} for k in keys
    ]
    return json.dumps({"records": records, "awaitDurable": durable}).encode()


def protobuf_body(keys: list[bytes], durable: bool = True) -> bytes:
    """An AppendRequest, put together from its parts: all lengths are below 128, which is one byte each."""
    values = os.urandom(VALUE_BYTES * len(keys))
    pieces = [b"\x10\x01"] if durable else []
    for i, key in enumerate(keys):
        named = b"\x0a%c\x0a%c%b" % (len(key) + 2, len(key), key)
        value = values[i * VALUE_BYTES : (i + 1) * VALUE_BYTES]
        pieces.append(b"\x0a%c%b\x12%c%b" % (len(named) + 2 + VALUE_BYTES, named, VALUE_BYTES, value))
    return b"".join(pieces)


BODIES: dict[str, tuple[Callable[[list[bytes]], bytes], str]] = {
    "JSON": (json_body, "application/json"),
    "protobuf": (protobuf_body, "application/protobuf"),
}


def post(body: bytes, media_type: str) -> bytes:
    fields = f"Host: localhost\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}"
    return f"POST /api/v1/log/append HTTP/1.1\r\n{fields}\r\n\r\n".encode() + body


def keys_from(number: int, count: int) -> list[bytes]:
    return [b"key-%06d" % ((number * count + i) % KEYS) for i in range(count)]


def connect(cluster: Cluster) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", cluster.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket) -> tuple[bytes, bytes]:
    """(head, body) of one answer."""
    data = connection.recv(RECEIVE_BYTES)
    while b"\r\n\r\n" not in data:
        data += connection.recv(RECEIVE_BYTES)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(RECEIVE_BYTES)
    return head, body


def read_answer(connection: socket.socket) -> bytes:
    head, body = receive(connection)
    assert head.startswith(b"HTTP/1.1 200"), (head, body)
    return body


def _send_patiently(connection: socket.socket, request: bytes) -> None:
    """Again when it is refused with 503, as a client should; what takes longer than BUSY_S is an error."""
    give_up = time.monotonic() + BUSY_S
    while True:
        connection.sendall(request)
        head, body = receive(connection)
        if head.startswith(b"HTTP/1.1 200"):
            return
        assert head.startswith(b"HTTP/1.1 503") and time.monotonic() < give_up, (head, body)
        time.sleep(RETRY_S)


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """How long as many threads took, in seconds; an error in one is raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    started = time.perf_counter()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - started


def append_rate(cluster: Cluster, requests: list[bytes], connections: int, seconds: float) -> tuple[float, list[float]]:
    """(requests a second, latency of each in ms): every connection sends the requests in turn."""
    times: list[float] = []
    stop_at = time.perf_counter() + seconds

    def send(offset: int) -> None:
        number = offset
        with connect(cluster) as connection:
            while (began := time.perf_counter()) < stop_at:
                connection.sendall(requests[number % len(requests)])
                read_answer(connection)
                times.append((time.perf_counter() - began) * 1000)
                number += 1

    took = in_threads(connections, send)
    return len(times) / took, times


async def _receive(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))


def fill(cluster: Cluster, name: Callable[[int], bytes], numbers: Iterable[int]) -> None:
    """A record under each number's name, FILL_RECORDS a request, CONNECTIONS at a time."""
    following = iter(numbers)
    turn = threading.Lock()

    def send(_: int) -> None:
        with connect(cluster) as connection:
            while True:
                with turn:
                    keys = [name(number) for number in islice(following, FILL_RECORDS)]
                if not keys:
                    return
                _send_patiently(connection, post(protobuf_body(keys, durable=False), "application/protobuf"))

    in_threads(CONNECTIONS, send)


def long_scan(cluster: Cluster) -> tuple[float, float]:
    """(records a second, ms to the first byte) of key `long`'s SCAN_RECORDS in protobuf."""
    request = f"GET /api/v1/log/scan?key=long&limit={SCAN_RECORDS} HTTP/1.0\r\nAccept: application/protobuf\r\n\r\n"
    with connect(cluster) as connection:
        began = time.perf_counter()
        connection.sendall(request.encode())
        data = [connection.recv(RECEIVE_BYTES)]
        first = time.perf_counter()
        while chunk := connection.recv(RECEIVE_BYTES):
            data.append(chunk)
        took = time.perf_counter() - began
    answer = log_pb2.ScanResponse.FromString(b"".join(data).partition(b"\r\n\r\n")[2])
    assert sum(len(page.sequences) for page in answer.pages) == SCAN_RECORDS
    return SCAN_RECORDS / took, (first - began) * 1000


def polls(cluster: Cluster, keys: int, each: int) -> list[float]:
    """Ms of each catch-up poll of one of so many keys `many-…` with `each` records."""
    times = []
    with connect(cluster) as connection:
        for i in range(POLLS):
            path = f"/api/v1/log/scan?key=many-{(i * 7919) % keys:07d}"
            began = time.perf_counter()
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            body = read_answer(connection)
            times.append((time.perf_counter() - began) * 1000)
            assert len(json.loads(body)["records"]) == each, body
    return times


async def deliveries(cluster: Cluster) -> list[float]:
    """Ms from sending an append to its event at the follower of that key, FOLLOWERS following one each."""
    sent: dict[int, float] = {}
    times: list[float] = []
    writers = []

    async def follow(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port, limit=1 << 20)
        writers.append(writer)
        start = cluster_end
        path = f"/api/v1/log/scan?key=live-{number}&start_seq={start}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"data:"):
                times.append((time.perf_counter() - sent[number]) * 1000)

    cluster_end = cluster.get("/api/v1/log/frontier").json()["readableSequence"]
    tasks = [asyncio.create_task(follow(i)) for i in range(FOLLOWERS)]
    await asyncio.sleep(3)
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
    for i in range(DELIVERIES):
        number = i * 7 % FOLLOWERS
        request = post(json_body([b"live-%d" % number], durable=False), "application/json")
        sent[number] = time.perf_counter()
        writer.write(request)
        await _receive(reader)
        await asyncio.sleep(0.002)
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
    for opened in [writer, *writers]:
        opened.close()
    assert len(times) == DELIVERIES, len(times)
    return times


def processes(cluster: Cluster) -> list[psutil.Process]:
    roots = [psutil.Process(p.pid) for p in (cluster.coordinator, cluster.supervisor) if p is not None]
    return [*roots, *(child for root in roots for child in root.children(recursive=True))]


class AnonymousMemory(NamedTuple):
    """Of all processes, in MB. `rows`: what the stores of rows hold to write out or to find rows by; `log`: records
    that are gathered next; `unattributed`: merges of the stores, and what the allocators keep for a while."""

    total: float
    rows: float
    log: float
    unattributed: float


def anonymous_mb(cluster: Cluster) -> AnonymousMemory:
    report = cluster.get("/api/v1/status/memory").json()["data"]["processes"]
    owners: Counter[str] = Counter()
    for process in report:
        owners.update(process.get("owners", {}))
    sizes = (
        sum(process.get("anonymousBytes", 0) for process in report),
        owners["rows"],
        owners["log"],
        sum(process.get("unattributedBytes", 0) for process in report),
    )
    return AnonymousMemory(*(size / 1e6 for size in sizes))


def cpu_seconds(cluster: Cluster) -> tuple[float, float]:
    """Of the coordinator, and of the workers and their supervisor."""
    assert cluster.coordinator is not None
    own, others = 0.0, 0.0
    for process in processes(cluster):
        spent = sum(process.cpu_times()[:2])
        if process.pid == cluster.coordinator.pid:
            own += spent
        else:
            others += spent
    return own, others
