"""Lets requests in by their credentials, or answers them with 401, 403 or 503."""

from __future__ import annotations

import time

from aiohttp import hdrs, web
from multidict import istr

from coordinator.access.roles import need_of
from coordinator.admission import Holder
from coordinator.context import Context
from coordinator.protocol import connection_of
from coordinator.responses import at_once, error_answer
from shared.errors import TriptychError

OF_A_PAGE = istr("X-Requested-With")
"""Scripts of pages say with this header that they are no navigation of the browser."""


async def turned_away(request: web.Request, context: Context) -> web.StreamResponse | None:
    """The answer to a request that does not get in, None for one that does. From then on it counts for the client that
    its credential names."""
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else None
    need = need_of(request.method, route)
    header = request.headers.get(hdrs.AUTHORIZATION)
    holder = connection_of(request).holder
    started = time.perf_counter()
    access = context.access
    try:
        grant = access.known(header, need)
        if grant is None:
            _rest(context, holder)
            grant = await access.compared(header, route, need, holder.address)
        context.connections.identify(holder, grant.client, grant.share)
    except TriptychError as error:
        _rest(context, holder)
        context.telemetry.refuse(error)
        response = error_answer(request.path, error)
        for challenge in access.challenges(error):
            response.headers.add(hdrs.WWW_AUTHENTICATE, _for_client(challenge, request))
        response.headers.update(access.headers)
        if context.cors.is_on:
            context.cors.allow(request, response.headers)
        context.telemetry.served(request.method, route or "other", error.status, time.perf_counter() - started)
        return at_once(request, response)
    return None


def _for_client(challenge: str, request: web.Request) -> str:
    """The page asks for a user and a password itself. At the scheme Basic a browser would do so, too, with a window of
    its own that is in the way and never shown again."""
    is_page = OF_A_PAGE in request.headers
    return f"X-{challenge}" if is_page and challenge.startswith("Basic ") else challenge


def _rest(context: Context, holder: Holder) -> None:
    """The request is not at work, or not yet: another one may be, which waits for its turn."""
    context.admission.begun(holder)
    context.waiting_room.admit()
