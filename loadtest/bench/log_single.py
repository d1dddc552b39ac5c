"""Appends of one record per request, with two clients: one that uses as little CPU time as possible, since it shares
the cores with the service, and one that is typical of users' programs."""

from __future__ import annotations

import http.client
import json
import select
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from loadtest.bench.log_load import BUSY_S, RECEIVE_BYTES, connect, in_threads, json_body, keys_from, post
from loadtest.harness.cluster import Cluster

BODIES = 64
PATH = "/api/v1/log/append"


@dataclass(slots=True)
class Appends:
    """`times`: of each append, in ms. `refused`: requests that were answered with 503, which a client sends again."""

    times: list[float] = field(default_factory=list)
    refused: int = 0
    took_s: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.times) / self.took_s


def _bodies() -> list[bytes]:
    return [json_body(keys_from(number, 1)) for number in range(BODIES)]


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    return bool(end) and len(body) == int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])


@dataclass(slots=True)
class _Sender:
    connection: socket.socket
    number: int
    sent_at: float = 0.0
    answer: bytes = b""

    def send(self, requests: list[bytes], now: float) -> None:
        self.sent_at, self.answer = now, b""
        self.connection.sendall(requests[self.number % len(requests)])


def small_appends(cluster: Cluster, connections: int, seconds: float) -> Appends:
    """Connections that send one prepared request after another, all in one thread. Every answer is read whole and must
    say that one record was appended."""
    requests = [post(body, "application/json") for body in _bodies()]
    appends = Appends()
    with ExitStack() as opened, select.epoll() as ready:
        senders: dict[int, _Sender] = {}
        for number in range(connections):
            connection = opened.enter_context(connect(cluster))
            senders[connection.fileno()] = _Sender(connection, number)
            ready.register(connection, select.EPOLLIN)
        began = time.perf_counter()
        for sender in senders.values():
            sender.send(requests, time.perf_counter())
        busy = connections
        while busy:
            answered = ready.poll(BUSY_S)
            assert answered, f"no answer came within {BUSY_S:g} s"
            for descriptor, _ in answered:
                busy -= _heard(senders[descriptor], requests, appends, began + seconds)
        appends.took_s = time.perf_counter() - began
    return appends


def _heard(sender: _Sender, requests: list[bytes], appends: Appends, stop_at: float) -> bool:
    """Take what has come, and send the next request if that was the answer. Returns whether this was the last one."""
    chunk = sender.connection.recv(RECEIVE_BYTES)
    assert chunk, "the server closed the connection"
    sender.answer += chunk
    if not _is_whole(sender.answer):
        return False
    now = time.perf_counter()
    if sender.answer.startswith(b"HTTP/1.1 200"):
        assert b'"recordsAppended":1,' in sender.answer, sender.answer
        appends.times.append((now - sender.sent_at) * 1000)
        sender.number += 1
    else:
        assert sender.answer.startswith(b"HTTP/1.1 503"), sender.answer
        appends.refused += 1
    if now >= stop_at:
        return True
    sender.send(requests, now)
    return False


def ordinary_appends(cluster: Cluster, connections: int, seconds: float) -> Appends:
    """The same with `http.client` of Python's standard library, which sends head and body one after the other, and a
    thread for each connection; the bodies are written and the answers read as JSON each time."""
    appends = Appends()
    record: dict[str, Any] = {"keyText": "key-000000", "text": "x" * 100}
    stop_at = time.perf_counter() + seconds

    def send(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=BUSY_S)
        while (began := time.perf_counter()) < stop_at:
            body = json.dumps({"records": [{**record, "keyText": f"key-{number:06d}"}], "awaitDurable": True})
            connection.request("POST", PATH, body.encode(), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status == 200:
                assert answer["recordsAppended"] == 1, answer
                appends.times.append((time.perf_counter() - began) * 1000)
            else:
                assert response.status == 503, answer
                appends.refused += 1
        connection.close()

    appends.took_s = in_threads(connections, send)
    return appends
