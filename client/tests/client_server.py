"""A server for tests of the client, which answers requests from a list and remembers them."""

from __future__ import annotations

import json
import os
import threading
from typing import Any, Callable

import httpx
import pytest
from proto import log_pb2

from triptych import AsyncClient, Client

Reply = Any
forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")


def reply(status: int, content: Any = None, **headers: str) -> httpx.Response:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, content=body, headers=named)


def data(content: Any, **beside: Any) -> httpx.Response:
    """In the envelope of the metrics area."""
    return reply(200, {"status": "success", "data": content, **beside})


def page(records: Any, following: int, warnings: Any = (), key: bytes | None = None) -> httpx.Response:
    """A ScanResponse of (sequence, key, value) or (sequence, key, value, headers)."""
    message = log_pb2.ScanResponse(status="success", next_sequence=following, log_start_sequence=1, warnings=warnings)
    if records:
        columns = message.pages.add()
        columns.sequences.extend(record[0] for record in records)
        columns.value_lengths.extend(len(record[2]) for record in records)
        columns.values = b"".join(record[2] for record in records)
        columns.times_ms.extend(1000 * record[0] for record in records)
        if key is None:
            columns.key_lengths.extend(len(record[1]) for record in records)
            columns.keys = b"".join(record[1] for record in records)
        heads = [record[3].SerializeToString() if len(record) > 3 else b"" for record in records]
        if any(heads):
            columns.header_lengths.extend(map(len, heads))
            columns.headers = b"".join(heads)
    return reply(200, message.SerializeToString())


def in_a_fork(act: Callable[[], Any]) -> str:
    """What `act` returns in a forked process, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(act()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def is_soon_over(act: Callable[..., Any], *arguments: Any) -> bool:
    """Whether `act` returns within 5 s. It goes on in a thread that keeps no process from ending."""
    acting = threading.Thread(target=act, args=arguments, daemon=True)
    acting.start()
    acting.join(5)
    return not acting.is_alive()


class FakeServer:
    """`replies`: one for each request, the last one again and again: a response, an exception, or a function of the
    request."""

    def __init__(self, *replies: Reply) -> None:
        self.requests: list[httpx.Request] = []
        self._replies = list(replies)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        chosen = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(chosen, Exception):
            raise chosen
        if isinstance(chosen, httpx.Response):
            return httpx.Response(chosen.status_code, content=chosen.content, headers=chosen.headers)
        made: httpx.Response = chosen(request)
        return made

    def client(self, **options: Any) -> Client:
        return Client(http=httpx.Client(transport=httpx.MockTransport(self)), **options)

    def async_client(self, **options: Any) -> AsyncClient:
        return AsyncClient(http=httpx.AsyncClient(transport=httpx.MockTransport(self)), **options)

    def json(self, at: int = -1) -> Any:
        return json.loads(self.requests[at].content)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time."""
    made: list[float] = []
    monkeypatch.setattr("triptych.client.time.sleep", made.append)
    return made
