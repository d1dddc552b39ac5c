"""An open-loop client: requests are due at fixed times, and a wait counts from the time at which a request was due.

It parses just enough of HTTP to find the end of an answer, since it shares the machine with the service and must be
able to send several times as much as the service can answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from loadtest.overload.outcomes import DEADLINE_S, Failure, Outcome, Outcomes

HOST = "127.0.0.1"
TICK_S = 0.001
CONNECTIONS_MAX = 3_000
"""A request that finds no connection below this bound has failed: its client could not even ask."""
OPENED_S = 0.3
"""Connections that are open from the beginning: for all requests of so many seconds."""
CONTENT_LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class Request:
    """`data`: head and body as they are sent."""

    kind: str
    data: bytes


class _Connection(asyncio.Protocol):
    """One kept-alive connection with at most one request under way."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self.request: Request | None = None
        self.due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: Request, due: float) -> None:
        assert self._transport is not None
        self.request, self.due = request, due
        self._transport.write(request.data)

    def data_received(self, data: bytes) -> None:
        self._received = received = self._received + data if self._received else data
        if is_complete(received):
            self._received = b""
            self._client.answered(self, received)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.lost(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Client:
    """Sends requests at a fixed rate, in turn from several addresses of this host."""

    def __init__(self, port: int, addresses: Sequence[str]) -> None:
        self._port = port
        self._addresses = addresses
        self._idle: list[_Connection] = []
        self._busy: dict[_Connection, None] = {}  # in the order in which their requests were due
        self._opened = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = 0.0
        self._outcomes: list[Outcome] = []

    async def run(self, requests: Sequence[Request], rate: float, seconds: float) -> Outcomes:
        """The outcomes of `requests`, sent in turn `rate` times a second."""
        self._outcomes = []
        await self._connect(min(round(rate * OPENED_S), CONNECTIONS_MAX))
        self._began = began = time.perf_counter()
        count, sent = round(rate * seconds), 0
        while sent < count:
            now = time.perf_counter()
            while sent < count and began + sent / rate <= now:
                self._send(requests[sent % len(requests)], began + sent / rate)
                sent += 1
            self._give_up(now)
            await asyncio.sleep(TICK_S)
        while self._busy or self._tasks:
            self._give_up(time.perf_counter())
            await asyncio.sleep(TICK_S)
        return Outcomes(tuple(self._outcomes), seconds)

    def _note(self, request: Request, due: float, status: str, *, lacks_advice: bool = False) -> None:
        waited_s = time.perf_counter() - due
        self._outcomes.append(Outcome(request.kind, due - self._began, waited_s, status, lacks_advice))

    async def close(self) -> None:
        for connection in list(self._idle):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0.1)

    async def _connect(self, count: int) -> None:
        """Open connections before the first request is due. To open one takes this process as long as several requests:
        several hundred at once would keep requests waiting that the service does not know of."""
        loop = asyncio.get_running_loop()
        while self._opened < count:
            address = (self._addresses[self._opened % len(self._addresses)], 0)
            _, connection = await loop.create_connection(
                lambda: _Connection(self), HOST, self._port, local_addr=address
            )
            self._opened += 1
            self._idle.append(connection)

    def _send(self, request: Request, due: float) -> None:
        if self._idle:
            connection = self._idle.pop()
            self._busy[connection] = None
            connection.send(request, due)
        elif self._opened < CONNECTIONS_MAX:
            self._opened += 1
            task = asyncio.get_running_loop().create_task(self._open(request, due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._note(request, due, Failure.NO_CONNECTION)

    async def _open(self, request: Request, due: float) -> None:
        address = (self._addresses[self._opened % len(self._addresses)], 0)
        connection = _Connection(self)
        try:
            async with asyncio.timeout(max(0.001, due + DEADLINE_S - time.perf_counter())):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: connection, HOST, self._port, local_addr=address)
        except (OSError, TimeoutError):
            self._opened -= 1
            self._note(request, due, Failure.NOT_CONNECTED)
            connection.abort()
            return
        self._busy[connection] = None
        connection.send(request, due)

    def answered(self, connection: _Connection, answer: bytes) -> None:
        request = connection.request
        if request is None:
            return
        connection.request = None
        self._busy.pop(connection, None)
        self._idle.append(connection)
        status = answer[9:12].decode("latin-1")
        lacks_advice = status == "503" and b"\r\nRetry-After: " not in answer
        self._note(request, connection.due, status, lacks_advice=lacks_advice)

    def lost(self, connection: _Connection) -> None:
        self._opened -= 1
        if connection in self._idle:
            self._idle.remove(connection)
        if self._busy.pop(connection, connection) is None and connection.request is not None:
            self._note(connection.request, connection.due, Failure.LOST)

    def _give_up(self, now: float) -> None:
        for connection in list(self._busy):
            if now - connection.due < DEADLINE_S:
                return
            del self._busy[connection]
            if connection.request is not None:
                self._note(connection.request, connection.due, Failure.LATE)
            connection.abort()


def is_complete(received: bytes) -> bool:
    """Whether an answer has arrived in full."""
    head_end = received.find(b"\r\n\r\n")
    if head_end < 0:
        return False
    head = received[:head_end].lower()
    if received[9:12] == b"204":
        return True
    at = head.find(CONTENT_LENGTH)
    if at < 0:
        return received.endswith(b"0\r\n\r\n")
    line_end = head.find(b"\r\n", at)
    length = int(head[at + len(CONTENT_LENGTH) : line_end if line_end > 0 else None])
    return len(received) >= head_end + 4 + length
