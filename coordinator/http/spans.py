"""The tracing span of an HTTP request. The code of each part of a request creates the span of that part
(`shared.tracing`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from coordinator.headers.request_ids import TRACE_PARENT
from shared import tracing
from shared.telemetry import REQUEST_ID

AREAS = (
    ("/api/v1/log/", "log"),
    ("/api/v1/vector/", "vectors"),
    ("/api/v1/admin/", "admin"),
    ("/api/v1/debug/", "admin"),
    ("/api/v1/", "metrics"),
)


async def traced(
    request: web.Request, route: str, serve: Callable[[], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Call `serve` within a span, and return its response. The span is a child of the client's span if the request
    names one."""
    attributes = {
        "http.request.method": request.method,
        "http.route": route,
        "triptych.area": next((area for prefix, area in AREAS if route.startswith(prefix)), "status"),
        "triptych.request_id": REQUEST_ID.get(),
    }
    with tracing.span(f"{request.method} {route}", request.headers.get(TRACE_PARENT, ""), attributes) as current:
        response = await serve()
        current.set_attribute("http.response.status_code", response.status)
        return response
