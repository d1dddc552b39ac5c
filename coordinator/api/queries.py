"""Queries that are being served, their cancellation, and the last slow ones: /api/v1/queries."""

from __future__ import annotations

from aiohttp import web

from coordinator.context import CONTEXT
from coordinator.http.responses import success
from coordinator.queries.running import LISTED_MAX
from shared.errors import BadData, NotFound

ID_SHOWN = 64
"""Characters of an unknown id that an error repeats: no id has more."""
ORDERS = ("seconds", "samples", "start")


async def listed(request: web.Request) -> web.Response:
    """The running queries, the oldest first, and after them the reads that follow the log."""
    context = request.app[CONTEXT]
    rows = context.running.listed(context.links.awaited())
    left_out = len(context.running) - len(rows)
    warnings = [f"{left_out} more are being served; the list has at most {LISTED_MAX}"] if left_out else None
    return success(rows, warnings)


async def cancel(request: web.Request) -> web.Response:
    """Cancel the queries of the HTTP request with this id, and answer how many there were. Each of them is answered
    with 503 and the type `canceled` as soon as the event loop handles it. Raises NotFound when no such query is
    running."""
    query_id = request.match_info["id"]
    count = request.app[CONTEXT].running.cancel(query_id)
    if not count:
        raise NotFound(
            f"no query with the id {query_id[:ID_SHOWN]!r} is being served; GET /api/v1/queries lists those that are"
        )
    return success({"canceled": count})


async def slow(request: web.Request) -> web.Response:
    by = request.query.get("by", ORDERS[0])
    if by not in ORDERS:
        raise BadData(f"parameter 'by' is {by!r}; it must be one of {', '.join(ORDERS)}")
    return success(request.app[CONTEXT].slow.kept(by))


ROUTES = [
    web.get("/api/v1/queries", listed),
    web.get("/api/v1/queries/slow", slow),
    web.delete("/api/v1/queries/{id}", cancel),
]
