"""From a request to its handler.

aiohttp's Application walks its router, makes a match and wraps the handler in its middlewares for every request. All
but a few of our paths are plain text: for those a table knows the handler, and one coroutine is all that is around it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import HttpVersion10, hdrs, web

from coordinator.context import CONTEXT
from coordinator.http import Malformed, check_escapes, refuse, serve
from coordinator.protocol import Server

LABEL_NAMES = "/api/v1/label/"
"""A path below it names a label."""


class Request(web.Request):
    """A request that is told its match by the dispatcher."""

    ATTRS = web.Request.ATTRS | {"match"}
    match: web.UrlMappingMatchInfo

    @property
    def app(self) -> web.Application:
        return self.match.current_app

    @property
    def match_info(self) -> web.UrlMappingMatchInfo:  # type: ignore[override]
        return self.match


class Dispatcher:
    """Calls the handlers of an application, whose routes are all there."""

    def __init__(self, app: web.Application) -> None:
        app.freeze()
        self._app = app
        self._body_bytes_max = app[CONTEXT].settings.body_bytes_max
        self._plain: dict[tuple[str, str], web.UrlMappingMatchInfo] = {}
        for route in app.router.routes():
            if isinstance(route.resource, web.PlainResource):
                match = web.UrlMappingMatchInfo({}, route)
                self._plain[route.method, route.resource.canonical] = self._own(match)

    def server(self, **options: Any) -> web.Server:
        """For `web.ServerRunner`; the options are those of `web.AppRunner`."""
        return Server(self._handle, request_factory=self._request, **options)  # type: ignore[arg-type]

    def _own(self, match: web.UrlMappingMatchInfo) -> web.UrlMappingMatchInfo:
        match.add_app(self._app)
        match.freeze()
        return match

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Request:
        loop = asyncio.get_running_loop()
        request = Request(message, payload, protocol, writer, task, loop, client_max_size=self._body_bytes_max)
        protocol.path = request.path
        return request

    async def _handle(self, request: Request) -> web.StreamResponse:
        match = self._plain.get((request.method, request.path))
        if match is None:
            match = self._own(await self._app.router.resolve(request))
        request.match = match
        try:
            await self._check(request)
        except Malformed as error:
            return refuse(request, error)
        return await serve(request, match.handler)

    async def _check(self, request: Request) -> None:
        """Raises Malformed for what the parser lets through."""
        if request._version < HttpVersion10:
            request._version = HttpVersion10  # the answer's too: an older version has no status line
            raise Malformed("the request has no HTTP version; it must be HTTP/1.1 or HTTP/1.0")
        if "%" in request.raw_path:
            path, _, query = request.raw_path.partition("?")
            # A label name is said to be invalid by who reads label names.
            check_escapes(query if path.startswith(LABEL_NAMES) else request.raw_path, "the URL")
        if hdrs.EXPECT in request.headers:
            await self._expected(request)

    async def _expected(self, request: Request) -> None:
        try:
            await request.match.expect_handler(request)
        except web.HTTPExpectationFailed:
            raise Malformed(f"Expect is {request.headers[hdrs.EXPECT]!r}; it must be '100-continue'") from None
        await request.writer.drain()
