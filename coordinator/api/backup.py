"""Snapshots and backups: POST /api/v1/admin/tsdb/snapshot, and the views that `triptych backup` copies."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from aiohttp import web

from coordinator.api.parameters import seconds
from coordinator.backup.sources import listed
from coordinator.backup.views import View, file_of
from coordinator.context import CONTEXT
from coordinator.headers.negotiation import boolean
from coordinator.http.responses import success

PIECE_BYTES = 256 << 10
HOLD_MAX_S = 30.0


async def snapshot(request: web.Request) -> web.Response:
    """Make a snapshot of all data, in `snapshots/` of the data directory, as Prometheus does. With `skip_head`, it does
    not have the samples that are not in blocks yet."""
    skip_head = boolean(request.query, "skip_head", False)
    name = await request.app[CONTEXT].views.snapshot(skip_head=skip_head)
    return success({"name": name})


async def begin(request: web.Request) -> web.Response:
    """Make a view of the data directory. It is removed when it has not been renewed for half a minute, or when the
    connection of a client that holds it is closed."""
    return success(_described(await request.app[CONTEXT].views.lease()))


async def renew(request: web.Request) -> web.Response:
    """Keep the view for another half a minute. With `hold`, answer only after so many seconds, and remove the view if
    the client disconnects before that."""
    views, view_id = request.app[CONTEXT].views, request.match_info["view"]
    hold_s = seconds(request.query, "hold", 0.0, HOLD_MAX_S)
    return success(_described(await views.hold(view_id, hold_s) if hold_s else views.renew(view_id)))


async def end(request: web.Request) -> web.Response:
    await request.app[CONTEXT].views.release(request.match_info["view"])
    return success({})


def _described(view: View) -> dict[str, Any]:
    return {
        "view": view.id,
        "path": str(view.path.resolve()),
        "momentMs": view.moment_ms,
        "heldBackMs": round(view.pause_ms, 1),
        "warnings": view.warnings,
    }


async def files(request: web.Request) -> web.Response:
    """The view's files: [path, size, time of the last change in ns, inode]."""
    view = request.app[CONTEXT].views.renew(request.match_info["view"])
    return success(await asyncio.to_thread(listed, view.path))


async def content(request: web.Request) -> web.StreamResponse:
    """The content of one of the view's files, `name`."""
    views = request.app[CONTEXT].views
    view_id = request.match_info["view"]
    path = file_of(views.renew(view_id), request.query.get("name", ""))
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    with await asyncio.to_thread(open, path, "rb") as file:
        response.content_length = os.fstat(file.fileno()).st_size
        await response.prepare(request)
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            await response.write(piece)
            views.renew(view_id)
    await response.write_eof()
    return response


ROUTES: list[web.RouteDef] = [
    web.post("/api/v1/admin/tsdb/snapshot", snapshot),
    web.put("/api/v1/admin/tsdb/snapshot", snapshot),
    web.post("/api/v1/admin/backup", begin),
    web.post("/api/v1/admin/backup/{view}", renew),
    web.delete("/api/v1/admin/backup/{view}", end),
    web.get("/api/v1/admin/backup/{view}/files", files, allow_head=False),
    web.get("/api/v1/admin/backup/{view}/content", content, allow_head=False),
]
"""Served only with TRIPTYCH_ADMIN_API=true."""
