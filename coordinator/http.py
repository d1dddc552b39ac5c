"""What every endpoint shares: bodies with bounds, JSON answers, and errors in the envelope of their area."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson
from aiohttp import http_exceptions, web

from coordinator.context import CONTEXT
from coordinator.negotiation import JSON
from coordinator.responses import at_once
from shared import errors
from shared.errors import TriptychError
from shared.telemetry import event

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_TIMEOUT_S = 30.0
"""A body that has not arrived by then is given up; slow senders of the largest body still need only 17 Mbit/s."""
BODIES_BYTES_MAX = 512 << 20
"""Bodies that are arriving together take at most twice this: once in equal shares of all requests that may be in flight
(512 KiB, more than agents send at once), which nobody can take from a small request, and once for what is larger."""
_MESSAGE_AREAS = ("/api/v1/log/", "/api/v1/vector/")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_BEYOND_ASCII = re.compile(r"%[89A-Fa-f]")


class Malformed(errors.BadData):
    """The request breaks the rules of HTTP or of URLs, whatever it asks for: logged, as what the parser refuses is."""


def check_escapes(text: str, where: str) -> None:
    """Raises Malformed unless every percent sign of a URL or a form begins an escape, and all are UTF-8 together.

    Read leniently, such text would be taken for another than the client meant.
    """
    bad = _BAD_ESCAPE.search(text)
    if bad is not None:
        raise Malformed(f"{where} has {bad[0]!r}; a percent sign must be followed by two hexadecimal digits")
    if _BEYOND_ASCII.search(text):
        try:
            unquote_to_bytes(text).decode()
        except UnicodeDecodeError as error:
            wrong = "".join(f"%{byte:02X}" for byte in error.object[error.start : error.end])
            raise Malformed(f"{where} has {wrong}, which is not UTF-8") from None


async def read_body(request: web.Request, limit_bytes: int, *, encoding: str = "identity") -> bytes:
    """The request's body as it was sent.

    Raises TooLarge past the limit, Overloaded when too many large bodies are arriving, BadData when it does not arrive
    in time or is encoded in another way than expected.
    """
    found = request.headers.get("Content-Encoding", "").strip().lower()
    if (found or "identity") != encoding:
        raise Malformed(f"Content-Encoding is {found!r}; it must be {encoding!r}")
    if request.content_length is not None and request.content_length > limit_bytes:
        raise errors.TooLarge(f"the body has {request.content_length} bytes; the limit is {limit_bytes}")
    content = request.content
    if not content.is_eof():
        return await _arriving(request, limit_bytes)
    body = content.read_nowait()  # all of it is there
    if len(body) > limit_bytes:
        raise errors.TooLarge(f"the body has more than the limit of {limit_bytes} bytes")
    return body


async def _arriving(request: web.Request, limit_bytes: int) -> bytes:
    """The body, of which more is to come."""
    context = request.app[CONTEXT]
    share = BODIES_BYTES_MAX // context.settings.requests_in_flight_max
    chunks, size, beyond = [], 0, 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > limit_bytes:
                    raise errors.TooLarge(f"the body has more than the limit of {limit_bytes} bytes")
                more = max(size - share, 0) - beyond
                others = context.body_bytes - beyond
                if more and others and context.body_bytes + more > BODIES_BYTES_MAX:
                    raise errors.Overloaded(
                        f"large bodies of {context.body_bytes} bytes are arriving, the limit is {BODIES_BYTES_MAX}; "
                        f"try again later, or with a body of at most {share} bytes"
                    )
                context.body_bytes += more
                beyond += more
                chunks.append(chunk)
    except TimeoutError:
        raise errors.BadData(f"the body did not arrive within {BODY_TIMEOUT_S:g} s; {size} bytes of it did") from None
    except (web.RequestPayloadError, http_exceptions.HttpProcessingError) as error:
        raise Malformed(f"the body is not encoded as its head says, after {size} bytes of it") from error
    finally:
        context.body_bytes -= beyond
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def json_answer(data: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(data), status=status, content_type=JSON)


def success(data: Any, warnings: list[str] | None = None) -> web.Response:
    """The time-series area's envelope around `data`."""
    envelope = {"status": "success", "data": data}
    if warnings:
        envelope["warnings"] = warnings
    return json_answer(envelope)


def error_answer(path: str, error: TriptychError) -> web.Response:
    """The error in the envelope of the area that `path` belongs to."""
    status = error.status
    if path.startswith(_MESSAGE_AREAS):
        return json_answer({"status": "error", "message": str(error)}, status)
    if isinstance(error, errors.Overloaded):
        status = errors.Unavailable.status  # the time-series area knows 503 for backpressure
    return json_answer({"status": "error", "errorType": error.error_type, "error": str(error)}, status)


def refuse(request: web.BaseRequest, error: Malformed) -> web.Response:
    """The answer to a malformed request, after which its connection ends: where the next one begins is not sure."""
    event(logging.INFO, "malformed request", remote=request.remote, path=request.path, why=error)
    response = error_answer(request.path, error)
    response.force_close()
    return response


async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Bounds the requests in flight, turns every error into its area's envelope, and counts."""
    context = request.app[CONTEXT]
    started = time.perf_counter()
    if context.in_flight >= context.settings.requests_in_flight_max:
        error = errors.Overloaded(
            f"{context.in_flight} requests are in flight, the limit is {context.settings.requests_in_flight_max} "
            "(TRIPTYCH_REQUESTS_IN_FLIGHT_MAX); try again later"
        )
        return error_answer(request.path, error)
    context.in_flight += 1
    response: web.StreamResponse | None = None
    try:
        response = await _answer(request, handler)
        return at_once(request, response)
    finally:
        context.in_flight -= 1
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "other"
        status = response.status if response is not None else 499  # the client went away
        context.telemetry.served(request.method, route, status, time.perf_counter() - started)


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except TriptychError as error:
        if error.status >= 500:
            event(logging.WARNING, "request refused", path=request.path, status=error.status, why=error)
        if isinstance(error, Malformed):
            return refuse(request, error)
        return error_answer(request.path, error)
    except web.HTTPNotFound:
        return error_answer(request.path, errors.NotFound(f"there is no {request.path}"))
    except web.HTTPMethodNotAllowed as refused:
        allowed = ", ".join(sorted(refused.allowed_methods))
        text = f"{request.method} is not allowed on {request.path}; allowed: {allowed}"
        response = error_answer(request.path, errors.MethodNotAllowed(text))
        response.headers["Allow"] = allowed
        return response
    except web.HTTPRequestEntityTooLarge:
        limit = request.app[CONTEXT].settings.body_bytes_max
        return error_answer(request.path, errors.TooLarge(f"the body is larger than the limit of {limit} bytes"))
    except (ConnectionResetError, asyncio.CancelledError):
        raise
    except Exception:
        event(logging.ERROR, "request failed", trace=True, method=request.method, path=request.path)
        return error_answer(request.path, errors.Internal("an internal error; the coordinator's log has the reason"))
