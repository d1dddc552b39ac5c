"""GET /api/v1/openapi.yaml: the description of all endpoints, and /docs: the same as a page to read."""

from __future__ import annotations

import asyncio
from functools import cache

from aiohttp import web

from coordinator.api.page import ASK_AGAIN, answer
from coordinator.openapi import document, reading
from coordinator.ui.files import File, file_of

YAML = "application/yaml"


async def described(request: web.Request) -> web.Response:
    """The document (RFC 9512)."""
    return answer(request, (await _files())[0], ASK_AGAIN)


async def docs(request: web.Request) -> web.Response:
    return answer(request, (await _files())[1], ASK_AGAIN)


async def styles(request: web.Request) -> web.Response:
    return answer(request, (await _files())[2], ASK_AGAIN)


async def _files() -> tuple[File, File, File]:
    return _made() if _made.cache_info().currsize else await asyncio.to_thread(_made)


@cache
def _made() -> tuple[File, File, File]:
    """Made once in a process, which takes some 0.3 s."""
    return file_of(document.text(), YAML), file_of(reading.page(), "text/html"), file_of(reading.STYLES, "text/css")


ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/openapi.yaml", described),
    web.get("/docs", docs),
    web.get("/docs.css", styles),
]
"""These paths need no credential: their content is the same for everyone."""
