"""Bodies of requests, read with bounds on size, memory and time; and what a URL or a form must not hold."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import unquote_to_bytes

from aiohttp import http_exceptions, web

from coordinator.context import CONTEXT
from shared import errors

BODY_TIMEOUT_S = 30.0
"""A body that has not arrived after this time is refused; even the largest body needs a sender of only 17 Mbit/s."""
BODIES_BYTES_MAX = 512 << 20
"""Bodies that are arriving take at most twice this together. One half is divided equally among all requests that may be
in flight (512 KiB each, more than agents send at once), so that there is always room for a small body; the other half
is for what larger bodies have beyond their share."""
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_BEYOND_ASCII = re.compile(r"%[89A-Fa-f]")


class Malformed(errors.BadData):
    """The request breaks the rules of HTTP or of URLs. It is logged, like requests that the parser refuses."""


def check_escapes(text: str, where: str) -> None:
    """Raises Malformed unless every percent sign of a URL or a form begins an escape, and the result is UTF-8.

    A lenient reader would take such text for something other than what the client meant.
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

    Raises TooLarge above the limit, Overloaded when too many large bodies are arriving, BadData when it does not arrive
    in time, Malformed when it is not encoded as expected.
    """
    sent_encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if (sent_encoding or "identity") != encoding:
        raise Malformed(f"Content-Encoding is {sent_encoding!r}; it must be {encoding!r}")
    if request.content_length is not None and request.content_length > limit_bytes:
        raise errors.TooLarge(f"the body has {request.content_length} bytes; the limit is {limit_bytes}")
    content = request.content
    if not content.is_eof():
        return await _arriving(request, limit_bytes)
    body = content.read_nowait()  # all of it has arrived
    if len(body) > limit_bytes:
        raise errors.TooLarge(f"the body has more than the limit of {limit_bytes} bytes")
    return body


async def _arriving(request: web.Request, limit_bytes: int) -> bytes:
    """The body, of which not everything has arrived yet."""
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
