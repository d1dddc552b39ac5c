"""Long answers that their clients do not take at once: they go to a file, and are whole when they are read at last."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coordinator.context import CONTEXT
from coordinator.http import streaming
from coordinator.http.streaming import Body, InPieces, Piece, respond
from coordinator.limits.spool import Spool, SpoolFile
from shared.errors import DeadlineExceeded

PIECES, PIECE_BYTES = 30, 1_000_000
LAST_CHUNK = b"\r\n0\r\n\r\n"
WITHIN_S = 20.0


def numbered() -> Iterator[bytes]:
    for number in range(PIECES):
        yield bytes([number]) * PIECE_BYTES


async def beside(call: Callable[[], Piece | None]) -> Piece | None:
    return await asyncio.to_thread(call)


class Served:
    """A server whose answer is made of `chunks`; `given_back` is set when nothing more has to be produced."""

    def __init__(self, chunks: Callable[[], Iterator[bytes]], directory: Path, bytes_max: int) -> None:
        self.spool = Spool(directory, bytes_max, lambda among: None)
        self.given_back = asyncio.Event()
        self.is_answered = asyncio.Event()
        self.app = web.Application()
        self.app[CONTEXT] = SimpleNamespace(spool=self.spool)  # type: ignore[assignment]

        async def handler(request: web.Request) -> web.StreamResponse:
            try:
                return await respond(request, Body(chunks(), gzip=False), beside, self.given_back.set)
            finally:
                self.is_answered.set()

        async def whole(request: web.Request) -> web.StreamResponse:
            response = InPieces(body=b"".join(chunks()))
            await response.prepare(request)
            try:
                await response.write_eof()
            finally:
                self.is_answered.set()
            return response

        self.app.router.add_get("/", handler)
        self.app.router.add_get("/whole", whole)


@asynccontextmanager
async def asked(served: Served, path: str = "/") -> AsyncIterator[Callable[[], Any]]:
    """A client that has sent a request; what it is given reads all of the answer, to the end of the connection."""
    loop = asyncio.get_running_loop()
    async with TestServer(served.app) as server:
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(client, ("127.0.0.1", server.port))
        await loop.sock_sendall(
            client, b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode()
        )

        async def read() -> bytes:
            data = bytearray()
            while piece := await loop.sock_recv(client, 1 << 20):
                data += piece
            return bytes(data)

        with client:
            async with asyncio.timeout(WITHIN_S):
                yield read


def unchunked(answer: bytes) -> bytes:
    _, _, rest = answer.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


async def test_what_is_not_read_is_given_back_and_is_whole_when_it_is_read_at_last(tmp_path: Path) -> None:
    served = Served(numbered, tmp_path, 64 << 20)
    async with asked(served) as read:
        await served.given_back.wait()
        assert served.spool.bytes > (PIECES - 8) * PIECE_BYTES
        answer = await read()
    assert answer.endswith(LAST_CHUNK)
    assert unchunked(answer) == b"".join(numbered())
    assert served.spool.bytes == 0


async def test_an_answer_that_is_read_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PATIENCE_S", 10.0)  # whatever else the machine does
    served = Served(numbered, tmp_path / "that is not there", 64 << 20)
    async with asked(served) as read:
        assert unchunked(await read()) == b"".join(numbered())
    assert not served.given_back.is_set()


@pytest.mark.parametrize("bytes_max", [1 << 20, 12 << 20])
async def test_what_has_no_room_in_the_spool_follows_from_memory(tmp_path: Path, bytes_max: int) -> None:
    served = Served(numbered, tmp_path, bytes_max)
    async with asked(served) as read:
        await asyncio.sleep(2 * streaming.PATIENCE_S)
        assert served.spool.bytes <= bytes_max
        assert unchunked(await read()) == b"".join(numbered())


async def test_an_answer_whose_file_cannot_be_written_follows_from_memory(tmp_path: Path) -> None:
    served = Served(numbered, tmp_path / "that is not there", 64 << 20)
    async with asked(served) as read:
        await asyncio.sleep(2 * streaming.PATIENCE_S)
        assert unchunked(await read()) == b"".join(numbered())


async def test_an_answer_whose_file_cannot_be_read_does_not_look_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: SpoolFile, start: int) -> bytes:
        raise OSError("the disk has gone")

    monkeypatch.setattr(SpoolFile, "_read", fail)
    served = Served(numbered, tmp_path, 64 << 20)
    async with asked(served) as read:
        await served.given_back.wait()
        with pytest.raises(ConnectionResetError):
            assert not (await read()).endswith(LAST_CHUNK)
            raise ConnectionResetError


async def test_an_answer_that_cannot_be_produced_to_its_end_does_not_look_whole(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield bytes(PIECE_BYTES)
        raise DeadlineExceeded("too late")

    served = Served(failing, tmp_path, 64 << 20)
    async with asked(served) as read:
        with pytest.raises(ConnectionResetError):
            assert not (await read()).endswith(LAST_CHUNK)
            raise ConnectionResetError


async def test_a_client_that_goes_away_leaves_nothing(tmp_path: Path) -> None:
    served = Served(numbered, tmp_path, 64 << 20)
    async with asked(served):
        await served.given_back.wait()
    async with asyncio.timeout(WITHIN_S):
        await served.is_answered.wait()
    assert served.spool.bytes == 0


async def test_a_body_that_is_there_as_a_whole_goes_to_a_file_as_well(tmp_path: Path) -> None:
    served = Served(numbered, tmp_path, 64 << 20)
    async with asked(served, "/whole") as read:
        async with asyncio.timeout(WITHIN_S):
            while not served.spool.bytes:
                await asyncio.sleep(0.01)
        head, _, body = (await read()).partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % (PIECES * PIECE_BYTES) in head
    assert body == b"".join(numbered())
