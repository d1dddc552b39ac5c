"""Sends a long answer piece by piece: produced in a thread while it is sent, compressed if the client accepts that.

When a client does not take a piece for a while, the rest goes to a file at once (coordinator/spool.py), so that what
the answer is made from is free again. A client that reads pays nothing for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import cast

from aiohttp import hdrs, web

from coordinator.compression import compressed
from coordinator.connections import Waiting
from coordinator.context import CONTEXT
from coordinator.negotiation import JSON
from coordinator.spool import SpoolFile
from shared.errors import TriptychError
from shared.telemetry import event

Piece = bytes | memoryview

PIECE_BYTES = 384 << 10
"""An answer up to this size is sent whole, a longer one in pieces of about this size."""
GZIP_BYTES_MIN = 16 << 10
"""Shorter answers gain nothing from compression that the client would notice."""
WRITE_BYTES = 256 << 10
"""So much of an answer is written at once; a client that does not take it holds no more than this."""
PATIENCE_S = 0.3
"""A client that has not taken what was written after this time is late."""

InThread = Callable[[Callable[[], Piece | None]], Awaitable[Piece | None]]


def _nothing() -> None:
    pass


class Body:
    """A body that is produced piece by piece: the constructor produces the first piece, `next` one more. Both are work
    for a thread. `encoding`: the chunks have it already."""

    def __init__(self, chunks: Iterator[Piece], *, gzip: bool, content_type: str = JSON, encoding: str = "") -> None:
        self.content_type = content_type
        self._pieces = gathered(chunks, PIECE_BYTES)
        self.first = next(self._pieces, b"")
        self.encoding = encoding
        if gzip and len(self.first) >= GZIP_BYTES_MIN:
            self.encoding = "gzip"
            self._pieces = gathered(compressed(chain([self.first], self._pieces)), PIECE_BYTES)
            self.first = next(self._pieces, b"")

    @property
    def whole(self) -> bool:
        """Whether `first` is the whole body."""
        return len(self.first) < PIECE_BYTES

    def next(self) -> Piece | None:
        return next(self._pieces, None)

    def take_first(self) -> Piece:
        """`first`, which is not held any longer."""
        first, self.first = self.first, b""
        return first

    def close(self) -> None:
        """Let go of what the rest would be produced from."""
        self.first, self._pieces = b"", iter(())


class Outlet:
    """What the client of a response takes of it."""

    def __init__(self, request: web.Request) -> None:
        self.is_late = False
        self._protocol = request.protocol
        self._writer = request.writer
        self._draining: asyncio.Future[None] | None = None

    async def write(self, piece: Piece) -> Piece | None:
        """Write the piece, once the client has taken what came before, as far as it takes it soon; returns what is left
        of it, None if nothing. `is_late` says whether something that was written is not taken. Raises ConnectionError
        when the client has gone."""
        await self.taken()
        for start in range(0, len(piece), WRITE_BYTES):
            await self._write(piece if len(piece) <= WRITE_BYTES else memoryview(piece)[start : start + WRITE_BYTES])
            if self.is_late:
                end = start + WRITE_BYTES
                return memoryview(piece)[end:] if end < len(piece) else None
        return None

    async def write_all(self, piece: Piece) -> None:
        """Write all of the piece, however long the client takes for that. Raises ConnectionError when it has gone."""
        left: Piece | None = piece
        while left is not None:
            left = await self.write(left)

    async def _write(self, part: Piece) -> None:
        await self._writer.write(part, drain=False)  # type: ignore[call-arg]
        if self._protocol.writing_paused:
            # A task, because to cancel a wait for the connection would spoil the waits that follow.
            self._draining = asyncio.ensure_future(self._writer.drain())
            await asyncio.wait((self._draining,), timeout=PATIENCE_S)
            if self._draining.done():
                await self.taken()
            else:
                self.is_late = True

    async def taken(self) -> None:
        """Return when the client has taken nearly all that was written. A client that takes nothing is disconnected
        (coordinator/connections.py), which cancels this call. Raises ConnectionError when it has gone."""
        if self._draining is not None:
            await self._draining
        self._draining = None
        self.is_late = False

    def close(self) -> None:
        if self._draining is not None:
            self._draining.cancel()


@contextmanager
def outlet(request: web.Request) -> Iterator[Outlet]:
    """For a response that has been prepared. Raises ConnectionError when the client has gone, or when what is to be
    sent cannot be made: the connection has been ended then, so that the answer does not look whole."""
    client = Outlet(request)
    try:
        yield client
    except ConnectionError:
        raise
    except Exception as error:
        is_foreseen = isinstance(error, (TriptychError, OSError))
        level = logging.WARNING if is_foreseen else logging.ERROR
        text = "an answer ended before it was complete"
        event(level, text, trace=not is_foreseen, path=request.path, why=error)
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the answer cannot be completed") from error
    finally:
        client.close()


async def respond(
    request: web.Request, body: Body, in_thread: InThread, give_back: Callable[[], None] = _nothing
) -> web.StreamResponse:
    """The response with this body. `give_back` is called as soon as nothing more has to be produced for a client that
    is late, or that asks for the head alone."""
    if body.whole:
        return whole(body)
    response = web.StreamResponse(headers=_headers(body))
    await response.prepare(request)
    if request.method == hdrs.METH_HEAD:
        body.close()
        give_back()
    else:
        await _send(request, body, in_thread, give_back)
    await response.write_eof()
    return response


class InPieces(web.Response):
    """A response whose body is there as a whole, and is written as far as the client takes it."""

    async def write_eof(self, data: bytes = b"") -> None:
        if self._eof_sent:
            return  # aiohttp asks once more for what the dispatcher has sent already
        assert self._req is not None and not data
        body = Body(self._taken(), gzip=False)
        await _send(cast(web.Request, self._req), body, _at_once, _nothing)
        await web.StreamResponse.write_eof(self)

    def _taken(self) -> Iterator[bytes]:
        body, self._body = cast(bytes, self._body), None
        yield body


async def _at_once(call: Callable[[], Piece | None]) -> Piece | None:
    return call()


async def _send(request: web.Request, body: Body, in_thread: InThread, give_back: Callable[[], None]) -> None:
    """Send the body of a response that has been prepared. Raises as `outlet`."""
    connection = cast(Waiting, request.protocol)
    with outlet(request) as client:
        pieces = deque([body.take_first()])
        while pieces:
            await _send_first(client, pieces, body, in_thread)
            if client.is_late:
                async with request.app[CONTEXT].spool.file(connection) as file:
                    if await file.fill(pieces, body.next):
                        give_back()
                    await _send_file(client, file)


async def _send_first(client: Outlet, pieces: deque[Piece], body: Body, in_thread: InThread) -> None:
    """Send the first piece. If it is the only one, the next is produced meanwhile. What the client does not take of it
    is put back."""
    piece = pieces.popleft()
    coming = None if pieces else asyncio.ensure_future(in_thread(body.next))
    try:
        left = await client.write(piece)
    except BaseException:
        if coming is not None:
            coming.cancel()
        raise
    if left is not None:
        pieces.appendleft(left)
    following = None if coming is None else await coming
    if following is not None:
        pieces.append(following)


async def _send_file(client: Outlet, file: SpoolFile) -> None:
    """What had no room in the file stays in memory, as does what the rest is made from. Those are bounded as well
    (coordinator/queries/gate.py), and a client that is only slow shall not lose its answer because others filled the
    disk."""
    async for part in file.pieces():
        await client.write_all(part)


def whole(body: Body) -> web.Response:
    """The response with a body that is in one piece."""
    return web.Response(body=body.first, headers=_headers(body))


def _headers(body: Body) -> dict[str, str]:
    headers = {"Content-Type": body.content_type, "Vary": "Accept-Encoding"}
    if body.encoding:
        headers["Content-Encoding"] = body.encoding
    return headers


def gathered(chunks: Iterator[Piece], size: int) -> Iterator[Piece]:
    """The same bytes in pieces of at least `size` bytes; only the last piece may be smaller."""
    pending: list[Piece] = []
    length = 0
    for chunk in chunks:
        pending.append(chunk)
        length += len(chunk)
        del chunk
        if length >= size:
            length = 0
            yield _taken(pending)  # which is not held here: a client may take long to read it
    if pending:
        yield _taken(pending)


def _taken(pending: list[Piece]) -> Piece:
    """All of it in one; the list is empty then."""
    piece = pending[0] if len(pending) == 1 else b"".join(pending)
    pending.clear()
    return piece
