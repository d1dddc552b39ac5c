"""The page at `/`, and the files that it is made of."""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web

from coordinator.negotiation import accepts_gzip
from coordinator.responses import PAGE_HEADERS
from coordinator.ui.files import PREFIX, File, load
from shared.errors import NotFound

FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"


async def index(request: web.Request) -> web.Response:
    """The page. It names the files of this version, so that it is asked for anew each time."""
    files = await asyncio.to_thread(load)
    return _answer(request, files.index, ASK_AGAIN)


async def file(request: web.Request) -> web.Response:
    """A file of the page. Raises NotFound for those of another version, too."""
    files = await asyncio.to_thread(load)
    found = files.files.get(request.match_info["path"])
    if found is None or request.match_info["version"] != files.version:
        raise NotFound(f"there is no {request.path}; the files of this version lie under /{files.base}/")
    return _answer(request, found, FOR_EVER)


def _answer(request: web.Request, file: File, caching: str) -> web.Response:
    headers = {hdrs.ETAG: file.etag, hdrs.CACHE_CONTROL: caching, hdrs.VARY: "Accept-Encoding", **PAGE_HEADERS}
    if file.etag in request.headers.get(hdrs.IF_NONE_MATCH, ""):
        return web.Response(status=304, headers=headers)
    gzipped = accepts_gzip(request)
    if gzipped:
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    body = file.gzipped if gzipped else file.content()
    return web.Response(body=body, headers=headers, content_type=file.content_type, charset="utf-8")


ROUTES = [web.get("/", index), web.get(f"/{PREFIX}/{{version}}/{{path:.+}}", file)]
