"""Sends a long JSON answer while it is produced: piece by piece in a thread, compressed if the client accepts that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain

from aiohttp import web

from coordinator.compression import compressed
from coordinator.negotiation import JSON

Piece = bytes | memoryview

PIECE_BYTES = 384 << 10
"""An answer up to this size is sent whole, a longer one in pieces of about this size."""
GZIP_BYTES_MIN = 16 << 10
"""Shorter answers gain nothing from compression that the client would notice."""

InThread = Callable[[Callable[[], Piece | None]], Awaitable[Piece | None]]


class Body:
    """A body that is produced piece by piece: the constructor produces the first piece, `next` one more. Both are work
    for a thread."""

    def __init__(self, chunks: Iterator[Piece], *, gzip: bool) -> None:
        self._pieces = gathered(chunks, PIECE_BYTES)
        self.first = next(self._pieces, b"")
        self.compressed = gzip and len(self.first) >= GZIP_BYTES_MIN
        if self.compressed:
            self._pieces = gathered(compressed(chain([self.first], self._pieces)), PIECE_BYTES)
            self.first = next(self._pieces, b"")

    @property
    def whole(self) -> bool:
        """Whether `first` is the whole body."""
        return len(self.first) < PIECE_BYTES

    def next(self) -> Piece | None:
        return next(self._pieces, None)


async def respond(request: web.Request, body: Body, in_thread: InThread) -> web.StreamResponse:
    """The response with this body. At most two pieces are in memory at once. A client that does not take them is
    disconnected (coordinator/connections.py), which cancels this call."""
    if body.whole:
        return whole(body)
    response = web.StreamResponse(headers=_headers(body))
    response.content_type = JSON
    await response.prepare(request)
    piece: Piece | None = body.first
    while piece is not None:
        # The next piece is produced while this one is sent.
        coming = asyncio.ensure_future(in_thread(body.next))
        try:
            await response.write(piece)
        except BaseException:
            coming.cancel()
            raise
        piece = await coming
    await response.write_eof()
    return response


def whole(body: Body) -> web.Response:
    """The response with a body that is in one piece."""
    return web.Response(body=body.first, content_type=JSON, headers=_headers(body))


def _headers(body: Body) -> dict[str, str]:
    headers = {"Vary": "Accept-Encoding"}
    if body.compressed:
        headers["Content-Encoding"] = "gzip"
    return headers


def gathered(chunks: Iterator[Piece], size: int) -> Iterator[Piece]:
    """The same bytes in pieces of at least `size` bytes; only the last piece may be smaller."""
    pending: list[Piece] = []
    length = 0
    for chunk in chunks:
        pending.append(chunk)
        length += len(chunk)
        if length >= size:
            yield pending[0] if len(pending) == 1 else b"".join(pending)
            pending, length = [], 0
    if pending:
        yield b"".join(pending)
