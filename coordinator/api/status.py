"""Health, readiness, metrics, build information, and the cluster's state."""

from __future__ import annotations

import platform

from aiohttp import web

from coordinator.context import CONTEXT
from coordinator.responses import success
from coordinator.version import VERSION
from coordinator.watching import memory as watched_memory


async def healthy(request: web.Request) -> web.Response:
    """200 while the process serves."""
    return web.Response(text="Triptych is healthy.\n")


async def ready(request: web.Request) -> web.Response:
    """200 only when every shard is loaded; else 503 with a line for each that is not."""
    missing = request.app[CONTEXT].links.unready()
    if not missing:
        return web.Response(text="Triptych is ready.\n")
    lines = [f"shard {shard}: {why}\n" for shard, why in sorted(missing.items())]
    return web.Response(text="Triptych is not ready.\n" + "".join(lines), status=503)


async def metrics(request: web.Request) -> web.Response:
    """Prometheus's text format, or OpenMetrics if the request accepts it."""
    body, content_type = await request.app[CONTEXT].watch.exposition(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


async def buildinfo(request: web.Request) -> web.Response:
    """The fields Prometheus has, so that Grafana and promtool recognise the answer."""
    return success(
        {
            "application": "Triptych",
            "version": VERSION,
            "revision": "",
            "branch": "",
            "buildUser": "",
            "buildDate": "",
            "goVersion": "",
            "pythonVersion": platform.python_version(),
        }
    )


async def memory(request: web.Request) -> web.Response:
    """For each process: resident, anonymous, shared and proportional bytes, and by owner what holds them."""
    context = request.app[CONTEXT]
    await context.watch.refresh()
    return success({"processes": watched_memory.report(context.telemetry.values())})


async def cluster(request: web.Request) -> web.Response:
    """Every shard with its owner, state and counts, and every worker."""
    context = request.app[CONTEXT]
    shards = [
        {"shard": s.number, "state": s.state, "detail": s.detail, "worker": s.worker, "counts": s.counts}
        for s in context.links.states()
    ]
    workers = [
        {"worker": name, "pid": pid, "shards": list(numbers), "requestsInFlight": in_flight}
        for name, pid, numbers, in_flight in context.links.workers()
    ]
    ready_count = sum(s["state"] == "ready" for s in shards)
    return success(
        {
            "ready": ready_count == len(shards),
            "shardsReady": ready_count,
            "shards": shards,
            "workers": workers,
            "startedAt": context.started_at,
        }
    )


ROUTES = [
    web.get("/-/healthy", healthy),
    web.get("/-/ready", ready),
    web.get("/metrics", metrics),
    web.get("/api/v1/status/buildinfo", buildinfo),
    web.get("/api/v1/status/memory", memory),
    web.get("/api/v1/cluster", cluster),
]
