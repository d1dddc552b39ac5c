"""Sends long responses piece by piece: produced in a thread while being sent, and compressed if the client accepts it.

If a client does not read a piece for a while, the rest of its response is written to a file at once
(coordinator/limits/spool.py), which frees the data that the response is made from. Clients that read in time are not
slowed down by this.
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

from coordinator.context import CONTEXT
from coordinator.headers.negotiation import JSON
from coordinator.http.compression import compressed
from coordinator.limits.connections import Waiting
from coordinator.limits.spool import SpoolFile
from shared.errors import TriptychError
from shared.telemetry import event

Piece = bytes | memoryview

PIECE_BYTES = 384 << 10
"""A response below this size is sent whole, a longer one in pieces of about this size."""
GZIP_BYTES_MIN = 16 << 10
"""Shorter responses are not compressed, since clients would not notice a gain."""
WRITE_BYTES = 256 << 10
"""Bytes of a response that are written at once. For a client that does not read, no more than this is buffered."""
PATIENCE_S = 0.3
"""A client that has not read what was written after this time counts as late."""

InThread = Callable[[Callable[[], Piece | None]], Awaitable[Piece | None]]


def _nothing() -> None:
    pass


class Body:
    """A body that is produced piece by piece. The constructor produces the first piece, and `next` produces one more;
    both must run in a thread. `encoding`: the Content-Encoding that the chunks already have."""

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
        """Return `first`, and drop the reference to it."""
        first, self.first = self.first, b""
        return first

    def close(self) -> None:
        """Free the data that the rest would be produced from."""
        self.first, self._pieces = b"", iter(())


class Outlet:
    """Writes a response as fast as its client reads it."""

    def __init__(self, request: web.Request) -> None:
        self.is_late = False
        self._protocol = request.protocol
        self._writer = request.writer
        self._draining: asyncio.Future[None] | None = None

    async def write(self, piece: Piece) -> Piece | None:
        """Wait until the client has read earlier pieces, and then write as much of this piece as it reads in time.
        Returns the rest of the piece, or None if there is none. Sets `is_late` if the client has not read everything
        that was written. Raises ConnectionError if the client has disconnected."""
        await self.taken()
        for start in range(0, len(piece), WRITE_BYTES):
            await self._write(piece if len(piece) <= WRITE_BYTES else memoryview(piece)[start : start + WRITE_BYTES])
            if self.is_late:
                end = start + WRITE_BYTES
                return memoryview(piece)[end:] if end < len(piece) else None
        return None

    async def write_all(self, piece: Piece) -> None:
        """Write the whole piece, however long the client takes to read it. Raises ConnectionError if it has
        disconnected."""
        rest: Piece | None = piece
        while rest is not None:
            rest = await self.write(rest)

    async def _write(self, chunk: Piece) -> None:
        await self._writer.write(chunk, drain=False)  # type: ignore[call-arg]
        if self._protocol.writing_paused:
            # A separate task, because cancelling a wait for the connection would break later waits for it.
            self._draining = asyncio.ensure_future(self._writer.drain())
            await asyncio.wait((self._draining,), timeout=PATIENCE_S)
            if self._draining.done():
                await self.taken()
            else:
                self.is_late = True

    async def taken(self) -> None:
        """Return when the client has read nearly everything that was written. A client that reads nothing is
        disconnected (coordinator/limits/connections.py), which cancels this call. Raises ConnectionError if it has
        disconnected."""
        if self._draining is not None:
            await self._draining
        self._draining = None
        self.is_late = False

    def close(self) -> None:
        if self._draining is not None:
            self._draining.cancel()


@contextmanager
def outlet(request: web.Request) -> Iterator[Outlet]:
    """The outlet for a prepared response. Raises ConnectionError if the client has disconnected. If producing the body
    fails, the connection is aborted, so that the response does not look complete, and ConnectionError is raised,
    too."""
    client = Outlet(request)
    try:
        yield client
    except ConnectionError:
        raise
    except Exception as error:
        is_foreseen = isinstance(error, (TriptychError, OSError))
        level = logging.WARNING if is_foreseen else logging.ERROR
        text = "a response ended before it was complete"
        event(level, text, trace=not is_foreseen, path=request.path, why=error)
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the response cannot be completed") from error
    finally:
        client.close()


async def respond(
    request: web.Request, body: Body, in_thread: InThread, give_back: Callable[[], None] = _nothing
) -> web.StreamResponse:
    """Send the response with this body. For a client that is late or that requests only the head, `give_back` is called
    as soon as nothing more has to be produced."""
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
    """A response whose whole body exists already. It is written as fast as the client reads it."""

    async def write_eof(self, data: bytes = b"") -> None:
        if self._eof_sent:
            return  # aiohttp calls this once more after the dispatcher has sent the response
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
    """Send the body of a prepared response. Raises the errors of `outlet`."""
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
    """Send the first piece, and put back what the client does not read of it. If it is the only piece, the next one is
    produced meanwhile."""
    piece = pieces.popleft()
    next_task = None if pieces else asyncio.ensure_future(in_thread(body.next))
    try:
        rest = await client.write(piece)
    except BaseException:
        if next_task is not None:
            next_task.cancel()
        raise
    if rest is not None:
        pieces.appendleft(rest)
    next_piece = None if next_task is None else await next_task
    if next_piece is not None:
        pieces.append(next_piece)


async def _send_file(client: Outlet, file: SpoolFile) -> None:
    """Send the content of the file. Pieces that found no room in it stay in memory, together with the data that the
    rest is made from. That memory is limited, too (coordinator/queries/gate.py), and a client that is merely slow
    should not lose its response because others have filled the disk."""
    async for piece in file.pieces():
        await client.write_all(piece)


def whole(body: Body) -> web.Response:
    """The response for a body that consists of one piece."""
    return web.Response(body=body.first, headers=_headers(body))


def _headers(body: Body) -> dict[str, str]:
    headers = {"Content-Type": body.content_type, "Vary": "Accept-Encoding"}
    if body.encoding:
        headers["Content-Encoding"] = body.encoding
    return headers


def gathered(chunks: Iterator[Piece], size: int) -> Iterator[Piece]:
    """Join chunks to pieces of at least `size` bytes. Only the last piece may be smaller."""
    pending: list[Piece] = []
    length = 0
    for chunk in chunks:
        pending.append(chunk)
        length += len(chunk)
        del chunk
        if length >= size:
            length = 0
            yield _joined(pending)  # no reference is kept here, since the client may take long to read it
    if pending:
        yield _joined(pending)


def _joined(pending: list[Piece]) -> Piece:
    """Join the pending chunks to one piece, and clear the list."""
    piece = pending[0] if len(pending) == 1 else b"".join(pending)
    pending.clear()
    return piece
