"""Whether the answer to a request is to be an Arrow stream."""

from __future__ import annotations

import asyncio

from aiohttp import web

from coordinator.headers.negotiation import ARROW, JSON, preferred
from coordinator.http import arrow_streams


async def is_wanted(request: web.Request) -> bool:
    """Whether `Accept` prefers Arrow to JSON. Where pyarrow is not installed, all answers are JSON."""
    if preferred(request, ARROW, JSON) != ARROW or not arrow_streams.is_installed():
        return False
    await asyncio.to_thread(arrow_streams.library)
    return True
