"""A request that is listed among the running queries while it is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from coordinator.context import CONTEXT
from coordinator.http.protocol import client_of
from coordinator.queries.running import RunningQuery
from shared.errors import Canceled

T = TypeVar("T", bound=web.StreamResponse)


async def listed(request: web.Request, kind: str, text: str, work: Callable[[RunningQuery], Awaitable[T]]) -> T:
    """The result of `work`. Raises what it raises. When the query is canceled, raises Canceled, or ConnectionError if a
    part of the answer has been sent: then the connection has been ended, so that the answer does not look complete."""
    try:
        return await request.app[CONTEXT].running.serve(kind, text, client_of(request), work)
    except Canceled as error:
        if not request.writer.output_size:
            raise
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the query was canceled while its answer was sent") from error
