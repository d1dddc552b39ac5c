"""Attacks by connections: heads and bodies that never end, connections without a request, readers that do not read."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from urllib.parse import urlencode

from loadtest.attacks.sending import Answers, Prepare, Run
from loadtest.attacks.target import HOST, LOG_KEY, METRIC, Target, base64_text

UNFINISHED_HEADS = 1_100
IDLE = 2_000
DEAF_FOLLOWERS = 400
SLOW_BODIES = 200
UNREAD_ANSWERS = 50
CONNECT_WITHIN_S = 10.0
DRIP_INTERVAL_S = 1.0
APPENDED_BYTES_A_SECOND = 1_000_000
APPEND_BYTES = 100_000
APPEND_RECORDS = 100
RECEIVE_BUFFER_BYTES = 4096
"""Of the attacker's sockets that do not read, so that what is not read lies on the server's side."""
_ESTABLISHED = 1
"""Of the states of TCP_INFO, see tcp(7)."""

Hold = Callable[[Target, Sequence[socket.socket], float], Awaitable[None]]


def _sockets(count: int, greeting: Callable[[Target, int], bytes], hold: Hold) -> Prepare:
    """So many connections that send a greeting; then `hold` is run with those that could be opened."""

    def prepare(target: Target) -> Run:
        async def run(answers: Answers, seconds: float) -> None:
            opened = await asyncio.gather(*(_open(target, greeting(target, i), answers) for i in range(count)))
            sockets = [one for one in opened if one is not None]
            try:
                await hold(target, sockets, seconds)
            finally:
                for one in sockets:
                    answers.note("closed by the server" if _is_closed(one) else "still open")
                    one.close()

        return run

    return prepare


async def _open(target: Target, greeting: bytes, answers: Answers) -> socket.socket | None:
    loop = asyncio.get_running_loop()
    opened = socket.socket()
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            await loop.sock_connect(opened, (HOST, target.port))
            await loop.sock_sendall(opened, greeting)
    except OSError as error:
        answers.note(f"not opened: {type(error).__name__}")
        opened.close()
        return None
    return opened


def _is_closed(one: socket.socket) -> bool:
    """Whether the server has ended the connection, even if there is something left to read."""
    state: int = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != _ESTABLISHED


async def _wait(_: Target, sockets: Sequence[socket.socket], seconds: float) -> None:
    await asyncio.sleep(seconds)


async def _drip(_: Target, sockets: Sequence[socket.socket], seconds: float) -> None:
    """A byte to each connection at an interval, so that none of them looks idle."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        await asyncio.sleep(min(DRIP_INTERVAL_S, seconds))
        for one in sockets:
            with suppress(OSError):
                one.send(b"a")


async def _append(target: Target, sockets: Sequence[socket.socket], seconds: float) -> None:
    """Records that every follower is told of."""
    loop = asyncio.get_running_loop()
    appender = socket.create_connection((HOST, target.port))
    appender.setblocking(False)
    stop = time.monotonic() + seconds
    try:
        while time.monotonic() < stop:
            with suppress(OSError):
                await loop.sock_sendall(appender, _append_request())
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    await loop.sock_recv(appender, 1 << 16)
            await asyncio.sleep(APPEND_BYTES / APPENDED_BYTES_A_SECOND)
    finally:
        appender.close()


def _append_request() -> bytes:
    value = base64_text(os.urandom(APPEND_BYTES // APPEND_RECORDS))
    record = f'{{"key":"{base64_text(LOG_KEY.encode())}","value":"{value}"}}'
    body = f'{{"records":[{",".join([record] * APPEND_RECORDS)}]}}'
    return _head("POST", "/api/v1/log/append", f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n") + (
        body.encode()
    )


def _head(method: str, path: str, fields: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n".encode()


def _slow_body(_: Target, number: int) -> bytes:
    path, kind = (("/api/v1/log/append", "application/json"), ("/api/v1/write", "application/x-protobuf"))[number % 2]
    encoding = "Content-Encoding: snappy\r\n" * (number % 2)
    return _head("POST", path, f"Content-Type: {kind}\r\n{encoding}Content-Length: 60000000\r\n") + b"[" * 1000


def _large_answer(target: Target, number: int) -> bytes:
    """In turn: a range query of all series, a scan of the log's longest key, all label sets."""
    query = {"query": f"{METRIC} + {number}", "start": target.end_s - 3600, "end": target.end_s, "step": 15}
    paths = (
        "/api/v1/query_range?" + urlencode(query),
        f"/api/v1/log/scan?key={LOG_KEY}&limit=1000000",
        "/api/v1/series?" + urlencode({"match[]": METRIC, "limit": 0}),
    )
    return _head("GET", paths[number % len(paths)])


unfinished_heads = _sockets(
    UNFINISHED_HEADS,
    lambda _, number: b"GET /api/v1/query?query=1 HTTP/1.1\r\nHost: localhost\r\nX-%d: " % number,
    _drip,
)
idle = _sockets(IDLE, lambda _, number: _head("GET", "/-/healthy") if number % 2 else b"", _wait)
deaf_followers = _sockets(
    DEAF_FOLLOWERS,
    lambda _, number: _head("GET", f"/api/v1/log/scan?key={LOG_KEY}", "Accept: text/event-stream\r\n"),
    _append,
)
slow_bodies = _sockets(SLOW_BODIES, _slow_body, _drip)
unread_answers = _sockets(UNREAD_ANSWERS, _large_answer, _wait)
