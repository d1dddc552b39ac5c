"""What Prometheus tells of its targets. This service scrapes nothing, so its lists are empty.

Parameters and shapes: https://prometheus.io/docs/prometheus/latest/querying/api/.
"""

from __future__ import annotations

from aiohttp import web
from multidict import MultiDict

from coordinator.api import parameters
from coordinator.api.selectors import selectors
from coordinator.responses import success


async def targets(request: web.Request) -> web.Response:
    return success({"activeTargets": [], "droppedTargets": [], "droppedTargetCounts": {}})


async def scrape_pools(request: web.Request) -> web.Response:
    return success({"scrapePools": []})


async def target_metadata(request: web.Request) -> web.Response:
    fields = await parameters.form(request)
    parameters.optional(fields, "limit", parameters.limit, 0)
    target = fields.get("match_target", "")
    if target:
        await selectors(MultiDict({"match[]": target}), shown_as="match_target")
    return success([])


ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/targets", targets),
    web.get("/api/v1/scrape_pools", scrape_pools),
    web.get("/api/v1/targets/metadata", target_metadata),
]
