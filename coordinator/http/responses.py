"""Responses with the envelope of their area, and small responses that are written in one piece with their head.

aiohttp builds, checks and serialises the headers of every response, which takes longer than all other work on most
small requests. Here the head for a status and a set of headers is built once and cached.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from typing import Any

import orjson
from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter

from coordinator.headers.negotiation import JSON, accepts_gzip
from coordinator.headers.request_ids import HEADER
from coordinator.http import otlp_answers
from coordinator.http.compression import compressed
from coordinator.http.streaming import GZIP_BYTES_MIN, WRITE_BYTES, InPieces
from coordinator.limits.request_kinds import OTLP_PATHS
from shared.errors import TriptychError
from shared.telemetry import REQUEST_ID

BODY_BYTES_MAX = 64 << 10
"""Longer bodies are left to aiohttp, since joining them to the head would copy them once more."""
HEADS_MAX = 256
"""The number of cached heads. A few dozen combinations of status and media type are in use."""
_HEADER = HEADER.encode()
MESSAGE_AREAS = ("/api/v1/log/", "/api/v1/vector/")
AREA_PATHS = (MESSAGE_AREAS[0], "/v1/metrics", "/")
"""One path for each kind of envelope. `/` stands for the time-series area."""
SERVER = "Triptych"
"""The Server header, without versions, which would help attackers."""
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""A page may only use scripts and styles that are files of this server, and other sites cannot embed it in a frame."""


def json_answer(data: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(data), status=status, content_type=JSON)


def success(data: Any, warnings: list[str] | None = None, infos: list[str] | None = None) -> web.Response:
    """`data` in the envelope of the time-series area. `warnings`: what is missing from it. `infos`: hints."""
    envelope = {"status": "success", "data": data}
    if warnings:
        envelope["warnings"] = warnings
    if infos:
        envelope["infos"] = infos
    return json_answer(envelope)


def zipped(response: web.Response) -> web.Response:
    """Compress a response with gzip if it is long enough to gain from it. Must run in a thread: it takes about 10 ms
    for a megabyte."""
    body = response.body
    if isinstance(body, bytes) and len(body) >= GZIP_BYTES_MIN:
        response.body = b"".join(compressed(iter((body,))))
        response.headers[hdrs.CONTENT_ENCODING] = "gzip"
        response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
    return response


async def made_in_thread(request: web.Request, make: Callable[[], web.Response]) -> web.Response:
    """Run `make` in a thread, and compress its response if the client accepts gzip. For responses with thousands of
    entries."""
    return await asyncio.to_thread(lambda: zipped(make()) if accepts_gzip(request) else make())


def area_of(path: str) -> str:
    """The path in AREA_PATHS whose errors have the same envelope."""
    if path in OTLP_PATHS:
        return AREA_PATHS[1]
    return AREA_PATHS[0] if path.startswith(MESSAGE_AREAS) else AREA_PATHS[2]


def error_answer(path: str, error: TriptychError) -> web.Response:
    """The error in the envelope of the area that `path` belongs to."""
    if path in OTLP_PATHS:
        response = web.Response(body=otlp_answers.status(error), status=error.status, content_type=JSON)
    elif path.startswith(MESSAGE_AREAS):
        response = json_answer({"status": "error", "message": str(error)}, error.status)
    else:
        envelope = {"status": "error", "errorType": error.error_type, "error": str(error)}
        response = json_answer(envelope, error.status)
    response.headers.update(error.headers)
    if error.retry_after_s is not None:
        # The delay is random, so that clients that were refused together do not retry together.
        response.headers["Retry-After"] = str(random.randint(*error.retry_after_s))
    return response


def at_once(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """A plain response in a form that is written in one piece or, if it is long, in several pieces. Any other response
    is returned unchanged."""
    if (
        type(response) is web.Response
        and request.keep_alive
        and response.keep_alive is not False
        and request.version == HttpVersion11
        and request.method != "HEAD"
        and not response.prepared
        and not response.compression
    ):
        body = response.body or b""
        if isinstance(body, bytes) and len(body) <= BODY_BYTES_MAX:
            return AtOnce(response, body)
        if isinstance(body, bytes) and len(body) > WRITE_BYTES:
            return InPieces(body=body, status=response.status, reason=response.reason, headers=response.headers)
    return response


class AtOnce(web.StreamResponse):
    """Has only what aiohttp needs of a response. The base class's constructor is not called, and nothing else of the
    class is used."""

    def __init__(self, response: web.Response, body: bytes) -> None:
        self._whole = response
        self._content = body

    @property
    def status(self) -> int:
        return self._whole.status

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Write the whole response. Raises ConnectionError if the client has disconnected."""
        response = self._whole
        headers = tuple(response.headers.items())
        await request.writer.write(in_one_piece(response.status, response.reason, headers, self._content))
        if request.protocol.writing_paused:
            await request.writer.drain()  # otherwise responses would pile up for a client that reads none
        return request.writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Does nothing: `prepare` has written everything."""


def in_one_piece(status: int, reason: str, headers: tuple[tuple[str, str], ...], body: bytes) -> bytes:
    """The whole response to the current request, for HTTP/1.1 on a connection that stays open."""
    head = head_of(status, reason, headers)
    if status == 204:
        return b"%b%b\r\n" % (head, own_lines(REQUEST_ID.get()))
    return with_head(head, body)


def with_head(head: bytes, body: bytes) -> bytes:
    """As `in_one_piece`, with a head from `head_of`."""
    return b"%bContent-Length: %d\r\n%b\r\n%b" % (head, len(body), own_lines(REQUEST_ID.get()), body)


@lru_cache(HEADS_MAX)
def head_of(status: int, reason: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """The common part of heads of responses that differ only in body, time and request id."""
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    lines.append(f"Server: {SERVER}")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError(f"a header of {headers} has a line break, which would split it in two")
    return ("\r\n".join(lines) + "\r\n").encode()


def own_lines(request_id: str) -> bytes:
    """The lines of a head that differ in every response."""
    return b"Date: %b\r\n%b: %b\r\n" % (_date(int(time.time())), _HEADER, request_id.encode())


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
