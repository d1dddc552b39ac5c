"""The page at `/`, and its files."""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web

from coordinator.headers.negotiation import accepts_gzip, names_etag
from coordinator.http.responses import PAGE_HEADERS
from coordinator.ui.files import PREFIX, File, Files, load
from shared.errors import NotFound

FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
PATH_CHARS_SHOWN = 200
"""Characters of an unknown path that an error repeats: a path may have 64 KiB."""


async def index(request: web.Request) -> web.Response:
    """The page. It names the files of this version, so browsers must revalidate it."""
    return answer(request, (await _files()).index, ASK_AGAIN)


async def file(request: web.Request) -> web.Response:
    """A file of the page. Raises NotFound, also for files of other versions."""
    files = await _files()
    wanted = files.files.get(request.match_info["path"])
    if wanted is None or request.match_info["version"] != files.version:
        raise NotFound(
            f"there is no {_shown(request.path)}; the page at / names the files of this version, which lie under "
            f"/{files.base}/"
        )
    return answer(request, wanted, FOR_EVER)


async def _files() -> Files:
    """Loaded once, in a thread. After that, no thread is needed, so the page can be shown while all of them are
    busy."""
    return load() if load.cache_info().currsize else await asyncio.to_thread(load)


def answer(request: web.Request, file: File, caching: str) -> web.Response:
    """The file, or 304 if the client has it."""
    headers = {hdrs.ETAG: file.etag, hdrs.CACHE_CONTROL: caching, hdrs.VARY: "Accept-Encoding", **PAGE_HEADERS}
    if names_etag(request, file.etag):
        return web.Response(status=304, headers=headers)
    gzipped = accepts_gzip(request)
    if gzipped:
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    body = file.gzipped if gzipped else file.content
    return web.Response(body=body, headers=headers, content_type=file.content_type, charset="utf-8")


def _shown(path: str) -> str:
    return path if len(path) <= PATH_CHARS_SHOWN else f"{path[:PATH_CHARS_SHOWN]}…"


ROUTES = [web.get("/", index), web.get(f"/{PREFIX}/{{version}}/{{path:.+}}", file)]
