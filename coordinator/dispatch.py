"""Dispatches requests to their handlers: routes, admission, and errors as envelopes.

For every request, aiohttp's Application walks its router, creates a match and wraps the handler in middlewares. Nearly
all of our paths have no parameters, so a table gives the handler, and a single coroutine wraps it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import HttpVersion10, hdrs, web

from coordinator.context import CONTEXT
from coordinator.direct.appends import DirectAppends
from coordinator.direct.lists import direct_lists
from coordinator.direct.queries import direct_queries
from coordinator.direct.requests import LABEL_NAMES, DirectConnection, DirectRequests, Endpoint
from coordinator.direct.scans import DirectScans
from coordinator.direct.searches import DirectSearches
from coordinator.direct.states import direct_states
from coordinator.direct.writes import DirectWrites
from coordinator.headers.request_ids import HEADER, id_of
from coordinator.http.bodies import Malformed, check_escapes
from coordinator.http.entrance import turned_away
from coordinator.http.failures import failure, refusal
from coordinator.http.protocol import Server, connection_of
from coordinator.http.responses import BODY_BYTES_MAX, SERVER, at_once, error_answer
from coordinator.http.spans import traced
from coordinator.http.unknown_paths import unknown_path
from coordinator.limits.admission import may_use_reserve
from coordinator.limits.clients import CURRENT_CLIENT
from shared import errors, tracing
from shared.errors import TriptychError
from shared.telemetry import REQUEST_ID, event

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Request(web.Request):
    """A request whose match is set by the dispatcher."""

    ATTRS = web.Request.ATTRS | {"match"}
    match: web.UrlMappingMatchInfo

    @property
    def app(self) -> web.Application:
        return self.match.current_app

    @property
    def match_info(self) -> web.UrlMappingMatchInfo:  # type: ignore[override]
        return self.match

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        """aiohttp calls this before it writes the head of any response."""
        response.headers[hdrs.SERVER] = SERVER
        response.headers[HEADER] = REQUEST_ID.get()
        response.headers.update(connection_of(self).headers_of_every_answer)
        if hasattr(self, "match"):  # a request that could not be parsed has no match, and does not come from a page
            _allow_page(self, response)


class Dispatcher:
    """Calls the handlers of an application whose routes are complete."""

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
                self._plain[route.method, route.resource.canonical] = self._bound(match)

    def server(self, **options: Any) -> web.Server:
        """The server for `web.ServerRunner`. The options are those of `web.AppRunner`."""
        context = self._context
        endpoints: tuple[Endpoint, ...] = (
            DirectAppends(context),
            DirectScans(context),
            DirectSearches(context),
            DirectWrites(context),
            *direct_queries(context),
            *direct_lists(context),
            *direct_states(context),
        )
        paths = {route.resource.canonical for route in self._app.router.routes() if route.resource is not None}
        served_endpoints = [endpoint for endpoint in endpoints if endpoint.path in paths]
        return Server(
            self._handle,
            context.connections,
            context.pressure,
            context.waiting_room,
            context.access,
            context.cors,
            partial(DirectConnection, DirectRequests(context, served_endpoints)),
            request_factory=self._request,
            **options,
        )  # type: ignore[arg-type]

    def _bound(self, match: web.UrlMappingMatchInfo) -> web.UrlMappingMatchInfo:
        match.add_app(self._app)
        match.freeze()
        return match

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Request:
        REQUEST_ID.set(id_of(message.headers))  # in the connection's context; the request's task gets a copy of it
        loop = asyncio.get_running_loop()
        request = Request(message, payload, protocol, writer, task, loop, client_max_size=self._body_bytes_max)
        protocol.path = request.path
        return request

    async def _handle(self, request: Request) -> web.StreamResponse:
        try:
            match = self._plain.get((request.method, request.path))
            if match is None:
                match = self._bound(await self._app.router.resolve(request))
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
        """Raises Malformed for invalid requests that the parser accepts."""
        if request._version < HttpVersion10:
            request._version = HttpVersion10  # also used for the response, since HTTP/0.9 has no status line
            raise Malformed("the request has no HTTP version; it must be HTTP/1.1 or HTTP/1.0")
        coding = request.headers.get(hdrs.TRANSFER_ENCODING, "chunked").strip().lower()
        if coding != "chunked":
            raise Malformed(f"Transfer-Encoding is {coding[:100]!r}; it must be 'chunked', with any Content-Encoding")
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
    """The response to a malformed request. The connection is closed after it, since it is unclear where the next
    request begins."""
    event(logging.INFO, "malformed request", remote=request.remote, path=request.path, why=error)
    response = error_answer(request.path, error)
    response.force_close()
    return response


def _forbidden(request: web.Request, error: errors.Forbidden) -> web.StreamResponse:
    """The response to a request that may come from a page of another site."""
    context = request.app[CONTEXT]
    context.cross_site.log(request, error)
    context.telemetry.refuse(error)
    context.telemetry.served(request.method, _route(request), error.status, 0.0)
    response = error_answer(request.path, error)
    response.headers.update(context.access.headers)
    _allow_page(request, response)
    return at_once(request, response)


def _allow_page(request: web.Request, response: web.StreamResponse) -> None:
    """If the request comes from a page that may read the response, add the headers that allow it."""
    cors = request.app[CONTEXT].cors
    if cors.is_on:
        cors.allow(request, response.headers)


async def _served(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Admit the request, call its handler, answer errors with the envelope of their area, and count the request."""
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
    CURRENT_CLIENT.set(holder.client.name)  # in the context of the request's task
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
        status = response.status if response is not None else 499  # the client disconnected
        context.telemetry.served(request.method, _route(request), status, time.perf_counter() - started)


def _route(request: web.Request) -> str:
    """The path of the route with the names of its parameters; "other" if there is no route."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "other"


async def _send(request: web.Request, response: web.Response) -> None:
    """Send a large response while its request is still in flight, which limits the number of such responses in
    memory."""
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
