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
"""The common prefix of all paths of the admin interface, in whatever module their handlers are."""


async def switched_off(request: web.Request) -> web.Response:
    raise NotFound(f"there is no {request.path}: the admin interface is off; TRIPTYCH_ADMIN_API=true switches it on")


async def delete_series(request: web.Request) -> web.Response:
    """204 when the samples with start ≤ t ≤ end of all series that match any `match[]` are durably deleted.

    All shards must be ready, otherwise nothing is deleted and the answer is 503. If a shard fails later, the answer is
    503 as well, and some shards may have deleted their samples: sending the request again completes the deletion.
    """
    context = request.app[CONTEXT]
    fields = await parameters.form(request)
    start_ms, end_ms = time_range(fields)
    wanted = DeleteBody(await required_selectors(fields), start_ms, end_ms)
    timeout_s = context.settings.write_timeout_ms / 1000
    await context.links.call("series.delete", body=pack(wanted), timeout_s=timeout_s)
    return web.Response(status=204)


async def clean_tombstones(request: web.Request) -> web.Response:
    """204 at once. There is nothing to do: deleted samples are gone from all answers already, and from the disk when
    the blocks that contain them are next rewritten, which happens automatically."""
    await parameters.form(request)
    return web.Response(status=204)


ROUTES: list[web.RouteDef] = [
    web.post("/api/v1/admin/tsdb/delete_series", delete_series),
    web.post("/api/v1/admin/tsdb/clean_tombstones", clean_tombstones),
    web.put("/api/v1/admin/tsdb/clean_tombstones", clean_tombstones),
]
SWITCHED_OFF: list[web.RouteDef] = [web.route("*", PREFIX + "{path:.*}", switched_off)]
