"""Authenticates and authorises requests, or answers them with 401, 403 or 503."""

from __future__ import annotations

import time

from aiohttp import hdrs, web
from multidict import istr

from coordinator.access.roles import need_of
from coordinator.context import Context
from coordinator.http.protocol import connection_of
from coordinator.http.responses import at_once, error_answer
from coordinator.limits.admission import Holder
from shared.errors import TriptychError

OF_A_PAGE = istr("X-Requested-With")
"""Scripts of web pages send this header to show that the request is not a navigation of the browser."""


async def turned_away(request: web.Request, context: Context) -> web.StreamResponse | None:
    """The response to a request that is turned away; None if the request is admitted. An admitted request counts for
    the client that its credential identifies."""
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
    """The challenge, adapted to the client. The service's page asks for user and password itself. For the scheme Basic,
    the browser would also open a window of its own, which gets in the way, so the page gets another scheme name."""
    is_page = OF_A_PAGE in request.headers
    return f"X-{challenge}" if is_page and challenge.startswith("Basic ") else challenge


def _rest(context: Context, holder: Holder) -> None:
    """The request is not at work, or not yet. Another one that waits for its turn may begin."""
    context.admission.begun(holder)
    context.waiting_room.admit()
