"""Whether the answer to a request is to be an Arrow stream."""

from __future__ import annotations

import asyncio

from aiohttp import web

from coordinator import arrow_streams
from coordinator.negotiation import ARROW, JSON, preferred


async def is_wanted(request: web.Request) -> bool:
    """Whether `Accept` prefers Arrow to JSON. Where pyarrow is not installed, all answers are JSON."""
    if preferred(request, ARROW, JSON) != ARROW or not arrow_streams.is_installed():
        return False
    await asyncio.to_thread(arrow_streams.library)
    return True
