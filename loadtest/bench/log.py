"""The log's speed over HTTP on a cluster of its own, beside Redis Streams where `redis-server` is installed:
`python -m loadtest.bench.log [--seconds 5] [--keys 100000]`.

100-byte values over 1,000 keys; the load generator shares the machine's cores. Redis runs with `appendfsync always`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from proto import log_pb2
from tests.cluster.cluster import Cluster

KEYS = 1000
VALUE_BYTES = 100
SCAN_RECORDS = 100_000
FOLLOWERS = 1000
DELIVERIES = 500


def json_body(keys: list[bytes], durable: bool = True) -> bytes:
    records = [
        {"key": base64.b64encode(k).decode(), "value": base64.b64encode(os.urandom(VALUE_BYTES)).decode()} for k in keys
    ]
    return json.dumps({"records": records, "awaitDurable": durable}).encode()


def protobuf_body(keys: list[bytes], durable: bool = True) -> bytes:
    message = log_pb2.AppendRequest(await_durable=durable)
    for key in keys:
        message.records.add(key=log_pb2.Key(value=key), value=os.urandom(VALUE_BYTES))
    return message.SerializeToString()


def post(body: bytes, media_type: str) -> bytes:
    head = f"POST /api/v1/log/append HTTP/1.1\r\nHost: x\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def keys_from(number: int, count: int) -> list[bytes]:
    return [b"key-%06d" % ((number * count + i) % KEYS) for i in range(count)]


def read_answer(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    assert data.startswith(b"HTTP/1.1 200"), data
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return body


def append_rate(cluster: Cluster, requests: list[bytes], connections: int, seconds: float) -> tuple[float, list[float]]:
    """(requests a second, latency of each in ms) of as many threads, each sending its requests in turn."""
    times: list[float] = []
    stop_at = time.perf_counter() + seconds

    def send(offset: int) -> None:
        with socket.create_connection(("127.0.0.1", cluster.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = offset
            while (began := time.perf_counter()) < stop_at:
                connection.sendall(requests[number % len(requests)])
                read_answer(connection)
                times.append((time.perf_counter() - began) * 1000)
                number += 1

    started = time.perf_counter()
    threads = [threading.Thread(target=send, args=(i,)) for i in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(times) / (time.perf_counter() - started), times


async def small_appends(cluster: Cluster, connections: int, seconds: float) -> tuple[float, list[float]]:
    requests = [post(json_body(keys_from(i, 1)), "application/json") for i in range(64)]
    times: list[float] = []
    stop_at = time.perf_counter() + seconds

    async def send(offset: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
        number = offset
        while (began := time.perf_counter()) < stop_at:
            writer.write(requests[number % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            times.append((time.perf_counter() - began) * 1000)
            number += 1
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(send(i) for i in range(connections)))
    return len(times) / (time.perf_counter() - started), times


def long_scan(cluster: Cluster) -> tuple[float, float]:
    """(records a second, ms to the first byte) of one key's records in protobuf."""
    request = f"GET /api/v1/log/scan?key=long&limit={SCAN_RECORDS} HTTP/1.0\r\nAccept: application/protobuf\r\n\r\n"
    with socket.create_connection(("127.0.0.1", cluster.port)) as connection:
        began = time.perf_counter()
        connection.sendall(request.encode())
        data = [connection.recv(1 << 20)]
        first = time.perf_counter()
        while chunk := connection.recv(1 << 20):
            data.append(chunk)
        took = time.perf_counter() - began
    answer = log_pb2.ScanResponse.FromString(b"".join(data).partition(b"\r\n\r\n")[2])
    assert sum(len(page.sequences) for page in answer.pages) == SCAN_RECORDS
    return SCAN_RECORDS / took, (first - began) * 1000


def polls(cluster: Cluster, keys: int) -> list[float]:
    """Ms of each catch-up poll of one of many keys."""
    times = []
    with socket.create_connection(("127.0.0.1", cluster.port)) as connection:
        for i in range(500):
            path = f"/api/v1/log/scan?key=many-{(i * 7919) % keys:07d}"
            began = time.perf_counter()
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            body = read_answer(connection)
            times.append((time.perf_counter() - began) * 1000)
            assert len(json.loads(body)["records"]) == 10, body
    return times


async def deliveries(cluster: Cluster) -> list[float]:
    """Ms from sending an append to its event at the follower of that key."""
    sent: dict[int, float] = {}
    times: list[float] = []
    writers = []

    async def follow(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port, limit=1 << 20)
        writers.append(writer)
        request = f"GET /api/v1/log/scan?key=live-{number} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n"
        writer.write(request.encode())
        while line := await reader.readline():
            if line.startswith(b"data:"):
                times.append((time.perf_counter() - sent[number]) * 1000)

    tasks = [asyncio.create_task(follow(i)) for i in range(FOLLOWERS)]
    await asyncio.sleep(3)
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
    for i in range(DELIVERIES):
        number = i * 7 % FOLLOWERS
        request = post(json_body([b"live-%d" % number], durable=False), "application/json")
        sent[number] = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        await asyncio.sleep(0.002)
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
    for opened in [writer, *writers]:
        opened.close()
    assert len(times) == DELIVERIES, len(times)
    return times


def redis_rate(seconds: float) -> float | None:
    """XADD of 1,000 records a pipeline over 1,000 streams, 4 connections; records a second."""
    server = shutil.which("redis-server")
    if server is None:
        return None
    with tempfile.TemporaryDirectory() as directory, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        options = ["--port", str(port), "--dir", directory, "--appendonly", "yes", "--appendfsync", "always"]
        redis = subprocess.Popen([server, *options, "--save", ""], stdout=subprocess.DEVNULL)
        try:
            return _redis_load(port, seconds)
        finally:
            redis.terminate()
            redis.wait()


def _redis_load(port: int, seconds: float) -> float:
    value = os.urandom(VALUE_BYTES)
    commands = [
        b"*5\r\n$4\r\nXADD\r\n$10\r\n%b\r\n$1\r\n*\r\n$1\r\nv\r\n$%d\r\n%b\r\n" % (key, len(value), value)
        for key in keys_from(0, KEYS)
    ]
    pipeline = b"".join(commands)
    counts = []
    time.sleep(0.5)
    stop_at = time.perf_counter() + seconds

    def send() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            sent = 0
            while time.perf_counter() < stop_at:
                connection.sendall(pipeline)
                answers = 0
                while answers < 2 * KEYS:  # a length line and an id line each
                    answers += connection.recv(1 << 16).count(b"\r\n")
                sent += KEYS
            counts.append(sent)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def line(name: str, figure: str) -> None:
    sys.stdout.write(f"{name:<62}{figure}\n")
    sys.stdout.flush()


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def memory_mb(cluster: Cluster) -> int:
    roots = [psutil.Process(p.pid) for p in (cluster.coordinator, cluster.supervisor) if p is not None]
    family = [*roots, *(child for root in roots for child in root.children(recursive=True))]
    return sum(process.memory_info().rss for process in family) >> 20


def fill(cluster: Cluster, name: Callable[[int], bytes], records: int) -> None:
    for start in range(0, records, 10_000):
        body = protobuf_body([name(i) for i in range(start, min(start + 10_000, records))], durable=False)
        answer = cluster.request("POST", "/api/v1/log/append", body, {"Content-Type": "application/protobuf"})
        assert answer.status == 200, answer.body


def measure(cluster: Cluster, seconds: float, keys: int) -> None:
    line("memory of all processes at the start", f"{memory_mb(cluster)} MB")
    for name, make, media_type in (
        ("JSON", json_body, "application/json"),
        ("protobuf", protobuf_body, "application/protobuf"),
    ):
        requests = [post(make(keys_from(i, 1000)), media_type) for i in range(8)]
        append_rate(cluster, requests, 4, 1)
        rate, times = append_rate(cluster, requests, 4, seconds)
        line(f"durable append, 1,000 a request, 4 connections, {name}", f"{rate * 1000:,.0f} records/s")
        line("", f"{statistics.median(times):.1f} ms median, {p99(times):.1f} ms p99")
    rate, times = asyncio.run(small_appends(cluster, 64, seconds))
    line("durable append, 1 a request, 64 connections", f"{rate:,.0f}/s")
    line("", f"{statistics.median(times):.1f} ms median, {p99(times):.1f} ms p99")
    fill(cluster, lambda i: b"long", SCAN_RECORDS)
    scans = [long_scan(cluster) for _ in range(7)]
    line("scan of one key, 100,000 records, protobuf", f"{statistics.median(s[0] for s in scans):,.0f} records/s")
    line("", f"first byte {statistics.median(s[1] for s in scans):.1f} ms")
    times = asyncio.run(deliveries(cluster))
    line(
        "append to delivery, 1,000 followers on different keys",
        f"{statistics.median(times):.1f} ms median, {p99(times):.1f} ms p99",
    )
    fill(cluster, lambda i: b"many-%07d" % (i % keys), 10 * keys)
    times = polls(cluster, keys)
    line(f"poll of one of {keys:,} keys", f"{statistics.median(times):.2f} ms median, {p99(times):.2f} ms p99")
    line("memory of all processes at the end", f"{memory_mb(cluster)} MB")
    count = cluster.get("/api/v1/log/frontier").json()["nextSequence"]
    line("records", f"{count:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each append measurement")
    parser.add_argument("--keys", type=int, default=100_000, help="keys of the poll, with 10 records each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), shards=8, workers=0).start()
        try:
            measure(cluster, arguments.seconds, arguments.keys)
        finally:
            cluster.stop()
    rate = redis_rate(arguments.seconds)
    if rate is not None:
        line("Redis Streams, appendfsync always, pipelines of 1,000", f"{rate:,.0f} records/s")


if __name__ == "__main__":
    main()
