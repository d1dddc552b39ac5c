"""Health, readiness, metrics, build information, and the cluster's state."""

from __future__ import annotations

import asyncio
import platform
import time
from pathlib import Path

from aiohttp import web

from coordinator.context import CONTEXT
from coordinator.headers.negotiation import accepts_gzip
from coordinator.http.responses import success, zipped
from coordinator.rfc_3339 import time_text
from coordinator.watching import memory as watched_memory
from shared.setting_values import as_text
from shared.settings import Settings
from shared.version import version

HEALTHY, READY = "Triptych is healthy.\n", "Triptych is ready.\n"


async def healthy(request: web.Request) -> web.Response:
    """200 while the process serves."""
    return web.Response(text=HEALTHY)


async def ready(request: web.Request) -> web.Response:
    """200 when every shard is loaded; otherwise 503 with a line for each shard that is not."""
    missing = request.app[CONTEXT].links.unready()
    if not missing:
        return web.Response(text=READY)
    lines = [f"shard {shard}: {why}\n" for shard, why in sorted(missing.items())]
    return web.Response(text="Triptych is not ready.\n" + "".join(lines), status=503)


async def metrics(request: web.Request) -> web.Response:
    """Prometheus's text format, or OpenMetrics if the request accepts it."""
    body, content_type = await request.app[CONTEXT].watch.exposition(request.headers.get("Accept", ""))
    response = web.Response(body=body, headers={"Content-Type": content_type})
    return await asyncio.to_thread(zipped, response) if accepts_gzip(request) else response


async def buildinfo(request: web.Request) -> web.Response:
    """The fields Prometheus has, so that Grafana and promtool recognise the answer."""
    return success(
        {
            "application": "Triptych",
            "version": version(),
            "revision": "",
            "branch": "",
            "buildUser": "",
            "buildDate": "",
            "goVersion": "",
            "pythonVersion": platform.python_version(),
        }
    )


async def runtimeinfo(request: web.Request) -> web.Response:
    """Those of Prometheus's fields that have a meaning here."""
    context = request.app[CONTEXT]
    await context.watch.refresh()
    damaged = context.telemetry.values().by_name.get("triptych_damaged", [])
    started_at = time_text(context.started_at)
    return success(
        {
            "startTime": started_at,
            "CWD": str(Path.cwd()),
            "hostname": platform.node(),
            "serverTime": time_text(time.time()),
            "reloadConfigSuccess": context.access.is_current and context.config_file.is_current,
            "lastConfigTime": time_text(context.config_file.loaded_at),
            "corruptionCount": int(sum(count for _, count in damaged if not isinstance(count, list))),
            "storageRetention": _retention(context.settings),
        }
    )


def _retention(settings: Settings) -> str:
    limits = [
        as_text(name, value)
        for name, value in (("retention_ms", settings.retention_ms), ("retention_bytes", settings.retention_bytes))
        if value
    ]
    return " or ".join(limits) or "unlimited"


async def walreplay(request: web.Request) -> web.Response:
    """How many shards have been loaded, which includes the replay of their part of the write-ahead log."""
    shards = request.app[CONTEXT].links.states()
    loaded = sum(shard.state == "ready" for shard in shards)
    is_replaying = any(shard.state == "loading" for shard in shards)
    state = "done" if loaded == len(shards) else "in progress" if is_replaying else "waiting"
    return success({"min": 0, "max": len(shards), "current": loaded, "state": state})


async def memory(request: web.Request) -> web.Response:
    """For each process: resident, anonymous, shared and proportional bytes, and the bytes of each owner of memory."""
    context = request.app[CONTEXT]
    await context.watch.refresh()
    return success({"processes": watched_memory.report(context.telemetry.values())})


async def cluster(request: web.Request) -> web.Response:
    """Every shard with its owner, state and counts, and every worker."""
    context = request.app[CONTEXT]
    shards = [
        {
            "shard": s.number,
            "state": s.state,
            "detail": s.detail,
            "worker": s.worker,
            "counts": s.counts,
            "memoryBytes": s.memory_bytes,
            "rates": s.rates.per_second(),
        }
        for s in context.links.states()
    ]
    workers = [
        {
            "worker": name,
            "pid": pid,
            "shards": list(numbers),
            "requestsInFlight": in_flight,
            "restarts": context.links.registrations[name] - 1,
        }
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
    web.get("/api/v1/status/runtimeinfo", runtimeinfo),
    web.get("/api/v1/status/walreplay", walreplay),
    web.get("/api/v1/status/memory", memory),
    web.get("/api/v1/cluster", cluster),
]
