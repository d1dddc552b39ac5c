"""Administration of the time series: POST /api/v1/admin/tsdb/delete_series and …/clean_tombstones. Served only with
TRIPTYCH_ADMIN_API."""

from __future__ import annotations

from aiohttp import web

from coordinator.api import parameters
from coordinator.api.selectors import required_selectors, time_range
from coordinator.context import CONTEXT
from shared.errors import NotFound
from shared.messages.series import DeleteBody
from shared.wire import pack

PREFIX = "/api/v1/admin/"
"""All paths of the admin interface begin so, whatever module they are in."""


async def switched_off(request: web.Request) -> web.Response:
    raise NotFound(f"there is no {request.path}: the admin interface is off; TRIPTYCH_ADMIN_API=true switches it on")


async def delete_series(request: web.Request) -> web.Response:
    """204 when the samples with start ≤ t ≤ end of all series that match any `match[]` are durably gone.

    Every shard must be there, or nothing is deleted and the answer is 503; on a 503 later than that some shards may
    have deleted theirs, and asking again completes it.
    """
    context = request.app[CONTEXT]
    fields = await parameters.form(request)
    start_ms, end_ms = time_range(fields)
    wanted = DeleteBody(await required_selectors(fields), start_ms, end_ms)
    timeout_s = context.settings.write_timeout_ms / 1000
    await context.links.call("series.delete", body=pack(wanted), timeout_s=timeout_s)
    return web.Response(status=204)


async def clean_tombstones(request: web.Request) -> web.Response:
    """204 at once. Nothing needs to be asked for: what was deleted is gone from all answers already, and from the disk
    when the blocks that have it are next rewritten, which happens by itself."""
    await parameters.form(request)
    return web.Response(status=204)


ROUTES: list[web.RouteDef] = [
    web.post("/api/v1/admin/tsdb/delete_series", delete_series),
    web.post("/api/v1/admin/tsdb/clean_tombstones", clean_tombstones),
    web.put("/api/v1/admin/tsdb/clean_tombstones", clean_tombstones),
]
SWITCHED_OFF: list[web.RouteDef] = [web.route("*", PREFIX + "{path:.*}", switched_off)]
