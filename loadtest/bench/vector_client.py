"""A small HTTP load client: sends prepared requests over kept connections, so that its own cost affects rates
little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import numpy as np

ANSWER_WITHIN_S = 120.0


class Connection:
    """One connection; one request at a time."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._host, self._port = place.hostname or "127.0.0.1", place.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def request(self, path: str, body: bytes, kind: str = "application/json") -> bytes:
        """A POST as it goes over the wire."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def send(self, request: bytes) -> bytes:
        """The body of the answer, which must be of status 2xx."""
        async with asyncio.timeout(ANSWER_WITHIN_S):
            if self._reader is None or self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
            self._writer.write(request)
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            if b"transfer-encoding: chunked" in head:
                body = await self._chunks(self._reader)
            else:
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                body = await self._reader.readexactly(int(length or b"0"))
        assert head.split(b" ", 2)[1].startswith(b"2"), body
        return body

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return body

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def for_seconds(seconds: float, act: Callable[[Connection, int], Awaitable[object]], url: str, connections: int):  # type: ignore[no-untyped-def]
    """Latencies in ms, float64[n], of `act(connection, number)` run by so many connections at once."""
    latencies: list[float] = []
    stop = time.perf_counter() + seconds
    numbers = iter(range(1 << 60))

    async def run() -> None:
        connection = Connection(url)
        while (started := time.perf_counter()) < stop:
            await act(connection, next(numbers))
            latencies.append((time.perf_counter() - started) * 1000)
        connection.close()

    await asyncio.gather(*(run() for _ in range(connections)))
    return np.array(latencies)
