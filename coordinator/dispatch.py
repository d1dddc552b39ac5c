"""From a request to its handler and its answer: routes, the bound on requests in flight, errors into envelopes.

aiohttp's Application walks its router, makes a match and wraps the handler in its middlewares for every request. All
but a few of our paths are plain text: for those a table gives the handler, and a single coroutine is wrapped around it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import HttpVersion10, hdrs, web

from coordinator.admission import may_use_reserve
from coordinator.bodies import Malformed, check_escapes
from coordinator.context import CONTEXT
from coordinator.direct_appends import DirectAppends
from coordinator.direct_lists import direct_lists
from coordinator.direct_queries import direct_queries
from coordinator.direct_requests import LABEL_NAMES, DirectConnection, DirectRequests, Endpoint
from coordinator.direct_scans import DirectScans
from coordinator.direct_searches import DirectSearches
from coordinator.direct_states import direct_states
from coordinator.direct_writes import DirectWrites
from coordinator.entrance import turned_away
from coordinator.failures import failure, refusal
from coordinator.protocol import Server, connection_of
from coordinator.request_ids import HEADER, id_of
from coordinator.responses import BODY_BYTES_MAX, SERVER, at_once, error_answer
from coordinator.spans import traced
from coordinator.unknown_paths import unknown_path
from shared import errors, tracing
from shared.errors import TriptychError
from shared.telemetry import REQUEST_ID, event

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        """aiohttp calls this before it writes the head of any answer."""
        response.headers[hdrs.SERVER] = SERVER
        response.headers[HEADER] = REQUEST_ID.get()
        response.headers.update(connection_of(self).headers_of_every_answer)
        if hasattr(self, "match"):  # a request that could not be parsed has no route, and no page sends one
            _allow_page(self, response)


class Dispatcher:
    """Calls the handlers of an application to which no more routes are added."""

    def __init__(self, app: web.Application) -> None:
        app.freeze()
        self._app = app
        self._context = app[CONTEXT]
        self._access = app[CONTEXT].access
        self._body_bytes_max = app[CONTEXT].settings.body_bytes_max
        self._plain: dict[tuple[str, str], web.UrlMappingMatchInfo] = {}
        for route in app.router.routes():
            if isinstance(route.resource, web.PlainResource):
                match = web.UrlMappingMatchInfo({}, route)
                self._plain[route.method, route.resource.canonical] = self._own(match)

    def server(self, **options: Any) -> web.Server:
        """For `web.ServerRunner`; the options are those of `web.AppRunner`."""
        context = self._context
        own: tuple[Endpoint, ...] = (
            DirectAppends(context),
            DirectScans(context),
            DirectSearches(context),
            DirectWrites(context),
            *direct_queries(context),
            *direct_lists(context),
            *direct_states(context),
        )
        paths = {route.resource.canonical for route in self._app.router.routes() if route.resource is not None}
        direct = [endpoint for endpoint in own if endpoint.path in paths]
        return Server(
            self._handle,
            context.connections,
            context.pressure,
            context.waiting_room,
            context.access,
            context.cors,
            partial(DirectConnection, DirectRequests(context, direct)),
            request_factory=self._request,
            **options,
        )  # type: ignore[arg-type]

    def _own(self, match: web.UrlMappingMatchInfo) -> web.UrlMappingMatchInfo:
        match.add_app(self._app)
        match.freeze()
        return match

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Request:
        REQUEST_ID.set(id_of(message.headers))  # in the connection's context, of which the request's task gets a copy
        loop = asyncio.get_running_loop()
        request = Request(message, payload, protocol, writer, task, loop, client_max_size=self._body_bytes_max)
        protocol.path = request.path
        return request

    async def _handle(self, request: Request) -> web.StreamResponse:
        try:
            match = self._plain.get((request.method, request.path))
            if match is None:
                match = self._own(await self._app.router.resolve(request))
            request.match = match
            try:
                self._check(request)
                self._context.cross_site.require(request)
                preflight = self._context.cors.preflight(request) if self._context.cors.is_on else None
                if preflight is not None:
                    self._context.telemetry.served(request.method, _route(request), preflight.status, 0.0)
                    return at_once(request, preflight)
                if not self._access.is_open:
                    refusal = await turned_away(request, self._context)
                    if refusal is not None:
                        return refusal
                if hdrs.EXPECT in request.headers:
                    await self._expected(request)
            except Malformed as error:
                self._context.telemetry.refuse(error)
                return _refused(request, error)
            except errors.Forbidden as error:
                return _forbidden(request, error)
            if tracing.is_on():
                return await traced(request, _route(request), partial(_served, request, match.handler))
            return await _served(request, match.handler)
        finally:
            self._context.admission.over(connection_of(request).holder)
            self._context.waiting_room.admit()
            connection_of(request).rested()

    def _check(self, request: Request) -> None:
        """Raises Malformed for what the parser lets through."""
        if request._version < HttpVersion10:
            request._version = HttpVersion10  # and of the answer: HTTP/0.9 has no status line
            raise Malformed("the request has no HTTP version; it must be HTTP/1.1 or HTTP/1.0")
        if "%" in request.raw_path:
            path, _, query = request.raw_path.partition("?")
            # The handler of label values reports an invalid name itself.
            check_escapes(query if path.startswith(LABEL_NAMES) else request.raw_path, "the URL")

    async def _expected(self, request: Request) -> None:
        try:
            await request.match.expect_handler(request)
        except web.HTTPExpectationFailed:
            raise Malformed(f"Expect is {request.headers[hdrs.EXPECT]!r}; it must be '100-continue'") from None
        await request.writer.drain()


def _refused(request: web.BaseRequest, error: Malformed) -> web.Response:
    """The answer to a malformed request. The connection ends with it, since nobody knows where the next one begins."""
    event(logging.INFO, "malformed request", remote=request.remote, path=request.path, why=error)
    response = error_answer(request.path, error)
    response.force_close()
    return response


def _forbidden(request: web.Request, error: errors.Forbidden) -> web.StreamResponse:
    """The answer to a request that a page of another site may have sent."""
    context = request.app[CONTEXT]
    context.cross_site.log(request, error)
    context.telemetry.refuse(error)
    context.telemetry.served(request.method, _route(request), error.status, 0.0)
    response = error_answer(request.path, error)
    response.headers.update(context.access.headers)
    _allow_page(request, response)
    return at_once(request, response)


def _allow_page(request: web.Request, response: web.StreamResponse) -> None:
    """If the request comes from a page that may read the answer, say so in its head."""
    cors = request.app[CONTEXT].cors
    if cors.is_on:
        cors.allow(request, response.headers)


async def _served(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the request in, answer errors in the envelope of their area, and count."""
    context = request.app[CONTEXT]
    holder = connection_of(request).holder
    started = time.perf_counter()
    context.admission.begun(holder)
    try:
        if context.pressure.is_on:
            context.pressure.require(request.path)
        context.admission.enter(holder, may_use_reserve=may_use_reserve(request.path))
    except errors.Overloaded as error:
        context.telemetry.refuse(error)
        return error_answer(request.path, error)
    response: web.StreamResponse | None = None
    try:
        response = await _answered(request, handler)
        if not response.prepared:
            response.headers.update(context.access.headers)
            _allow_page(request, response)
        response = at_once(request, response)
        if isinstance(response, web.Response):
            await _send(request, response)
        return response
    finally:
        context.admission.leave(holder)
        status = response.status if response is not None else 499  # the client went away
        context.telemetry.served(request.method, _route(request), status, time.perf_counter() - started)


def _route(request: web.Request) -> str:
    """The path with the names of its parameters; "other" if there is none such."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "other"


async def _send(request: web.Request, response: web.Response) -> None:
    """Send a large answer while its request is in flight, since that bounds the number of such answers in memory."""
    if isinstance(response.body, bytes) and len(response.body) > BODY_BYTES_MAX:
        await response.prepare(request)
        await response.write_eof()


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except TriptychError as error:
        answer = refusal(request.app[CONTEXT], request.path, error)
        return _refused(request, error) if isinstance(error, Malformed) else answer
    except web.HTTPNotFound:
        known = (resource.canonical for resource in request.app.router.resources())
        return error_answer(request.path, unknown_path(request.path, known))
    except web.HTTPMethodNotAllowed as refused:
        allowed = ", ".join(sorted(refused.allowed_methods))
        text = f"{request.method} is not allowed on {request.path}; allowed: {allowed}"
        response = error_answer(request.path, errors.MethodNotAllowed(text))
        response.headers["Allow"] = allowed
        return response
    except web.HTTPRequestEntityTooLarge:
        limit = request.app[CONTEXT].settings.body_bytes_max
        too_large = errors.TooLarge(f"the body is larger than the limit of {limit} bytes")
        request.app[CONTEXT].telemetry.refuse(too_large)
        return error_answer(request.path, too_large)
    except (ConnectionResetError, asyncio.CancelledError):
        raise
    except Exception:
        return failure(request.method, request.path)
