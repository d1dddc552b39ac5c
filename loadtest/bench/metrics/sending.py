"""Sends encoded requests over several connections at once, with a thread for each that only waits for the socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

TIMEOUT_S = 120.0
VERSION_1, VERSION_2 = (
    ("application/x-protobuf", "0.1.0"),
    ("application/x-protobuf;proto=io.prometheus.write.v2.Request", "2.0.0"),
)
"""The headers Content-Type and X-Prometheus-Remote-Write-Version of each version of the protocol."""
_HEAD = (
    "POST /api/v1/write HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {}\r\nContent-Encoding: snappy\r\n"
    "X-Prometheus-Remote-Write-Version: {}\r\nContent-Length: {}\r\n\r\n"
)


def send(
    port: int, streams: Sequence[Sequence[bytes]], version: tuple[str, str] = VERSION_1
) -> tuple[float, list[float]]:
    """(seconds from the first request to the last acknowledgement, seconds each request took).

    Every answer must be 204 or 200; another one raises RuntimeError with its text.
    """
    latencies: list[list[float]] = [[] for _ in streams]
    problems: list[Exception] = []
    barrier = threading.Barrier(len(streams) + 1)

    def run(number: int) -> None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as own:
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                messages = [_HEAD.format(*version, len(body)).encode() + body for body in streams[number]]
                barrier.wait()
                for message in messages:
                    started = time.perf_counter()
                    own.sendall(message)
                    _take_answer(own)
                    latencies[number].append(time.perf_counter() - started)
        except Exception as error:  # shown by the caller
            problems.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(streams))]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    if problems:
        raise RuntimeError(f"a request failed: {problems[0]}") from problems[0]
    return took, [latency for own in latencies for latency in own]


def _take_answer(own: socket.socket) -> None:
    """Remote write answers have no body; an error's text is only shown."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        got = own.recv(65536)
        if not got:
            raise ConnectionError(f"the server closed the connection after {answer[:200]!r}")
        answer += got
    status = answer[9:12]
    if status not in (b"204", b"200"):
        raise RuntimeError(answer[:500].decode(errors="replace"))
