"""GET /api/v1/debug/profile: where a process spends its time. Served only with TRIPTYCH_ADMIN_API."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp import web

from coordinator.context import CONTEXT, Context
from shared.errors import BadData, NotFound, Unavailable
from shared.messages.debug import ProfileBody
from shared.process.profiling import SECONDS_MAX, profile
from shared.wire import pack

COORDINATOR = "coordinator"
SECONDS = 5.0
REPLY_S = 5.0
"""How long a worker may take to reply after its profile is complete."""
MODES = ("cpu", "wall")
_NUMBER = re.compile(r"\d{1,3}(?:\.\d{1,6})?", re.ASCII)
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="profile")
"""One thread makes a profile; the other one refuses a second request."""


async def profiled(request: web.Request) -> web.Response:
    """Collapsed stacks as text. Raises NotFound, BadData, Overloaded, Unavailable."""
    context = request.app[CONTEXT]
    if not context.settings.admin_api:
        raise NotFound(f"{request.path} is switched off; TRIPTYCH_ADMIN_API=true switches it on")
    mode = request.query.get("mode", MODES[0])
    if mode not in MODES:
        raise BadData(f"parameter 'mode' is {mode!r}; it must be one of {', '.join(MODES)}")
    wanted = ProfileBody(_seconds(request.query.get("seconds", "")), mode == "cpu")
    process = request.query.get("process", COORDINATOR)
    text = await (_own(wanted) if process == COORDINATOR else _of_worker(context, process, wanted))
    return web.Response(body=text, content_type="text/plain", charset="utf-8")


def _seconds(text: str) -> float:
    if not text:
        return SECONDS
    seconds = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < seconds <= SECONDS_MAX:
        raise BadData(f"parameter 'seconds' is {text!r}; it must be more than 0 and at most {SECONDS_MAX:g}")
    return seconds


async def _own(wanted: ProfileBody) -> bytes:
    left = threading.Event()
    run = partial(profile, wanted.seconds, left.is_set, by_processor=wanted.by_processor)
    try:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, run)
    finally:
        left.set()  # the client may have disconnected


async def _of_worker(context: Context, name: str, wanted: ProfileBody) -> bytes:
    shards = {worker: numbers for worker, _, numbers, _ in context.links.workers()}
    if name not in shards:
        known = ", ".join((COORDINATOR, *shards))
        raise NotFound(f"parameter 'process' is {name!r}; it must be one of {known}")
    timeout_s = wanted.seconds + REPLY_S
    result = await context.links.fan_out("debug.profile", shards=shards[name], body=pack(wanted), timeout_s=timeout_s)
    for reply in result.replies:
        return bytes(reply.message.frames[0])
    raise Unavailable(f"{name} did not answer")


ROUTES = [web.get("/api/v1/debug/profile", profiled)]
