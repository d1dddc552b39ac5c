"""Reads request bodies within limits on size, memory and time, and checks the percent escapes of URLs and forms."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import unquote_to_bytes

from aiohttp import http_exceptions, web

from coordinator.context import CONTEXT
from coordinator.http.protocol import connection_of
from shared import errors

BODY_TIMEOUT_S = 30.0
BODY_BYTES_PER_S_MIN = 128 << 10
"""A body must arrive within BODY_TIMEOUT_S. The time is extended by 1 s for every BODY_BYTES_PER_S_MIN received (1
Mbit/s)."""
SLICE_CHARACTERS = 16 << 10
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_BEYOND_ASCII = re.compile(r"%[89A-Fa-f]")


class Malformed(errors.BadData):
    """The request violates the rules of HTTP or of URLs. It is logged, like requests that the parser refuses."""

    reason = "malformed"


def unquoted(text: str) -> bytes:
    """Replace the percent escapes of a text. The library function holds the interpreter lock, so it gets the text in
    slices."""
    pieces = []
    begin = 0
    while begin < len(text):
        end = begin + SLICE_CHARACTERS
        escape = text.rfind("%", end - 2, end)  # an escape that the end of the slice would split
        end = end if escape < 0 else escape
        pieces.append(unquote_to_bytes(text[begin:end]))
        begin = end
    return b"".join(pieces)


def check_escapes(text: str, where: str) -> None:
    """Raises Malformed unless every percent sign of a URL or a form begins an escape, and the result is UTF-8.

    A lenient reader would understand such text differently from what the client meant.
    """
    bad_escape = _BAD_ESCAPE.search(text)
    if bad_escape is not None:
        raise Malformed(f"{where} has {bad_escape[0]!r}; a percent sign must be followed by two hexadecimal digits")
    if _BEYOND_ASCII.search(text):
        try:
            unquoted(text).decode()
        except UnicodeDecodeError as error:
            invalid_bytes = "".join(f"%{byte:02X}" for byte in error.object[error.start : error.end])
            raise Malformed(f"{where} has {invalid_bytes}, which is not UTF-8") from None


async def read_body(request: web.Request, limit_bytes: int, *, encoding: str = "identity") -> bytes:
    """The request's body as it was sent.

    Raises TooLarge above the limit, Overloaded if other requests hold too many bytes, BadData if the body does not
    arrive in time, and Malformed if it is not encoded as expected.
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
    hold(request, len(body))
    return body


def hold(request: web.Request, more_bytes: int) -> None:
    """Count bytes, such as those of a decompressed body, as held for the request until it has been answered.

    Raises Overloaded if there is no room for them at the moment.
    """
    request.app[CONTEXT].admission.hold(connection_of(request).holder, more_bytes)


async def _arriving(request: web.Request, limit_bytes: int) -> bytes:
    """Read a body that has not arrived completely."""
    context, connection = request.app[CONTEXT], connection_of(request)
    chunks, size = [], 0
    started = asyncio.get_running_loop().time()
    try:
        with context.admission.arriving(connection.holder):
            context.connections.arriving(connection, 0)
            async with asyncio.timeout(BODY_TIMEOUT_S) as deadline:
                async for chunk in request.content.iter_any():
                    size += len(chunk)
                    if size > limit_bytes:
                        raise errors.TooLarge(f"the body has more than the limit of {limit_bytes} bytes")
                    context.admission.hold(connection.holder, len(chunk))
                    context.connections.arriving(connection, size)
                    deadline.reschedule(started + BODY_TIMEOUT_S + size / BODY_BYTES_PER_S_MIN)
                    chunks.append(chunk)
    except TimeoutError:
        raise errors.BadData(
            f"the body did not arrive within {BODY_TIMEOUT_S:g} s and 1 s for each {BODY_BYTES_PER_S_MIN} bytes; "
            f"{size} bytes of it did"
        ) from None
    except (web.RequestPayloadError, http_exceptions.HttpProcessingError) as error:
        raise Malformed(f"the body is not encoded as its head says, after {size} bytes of it") from error
    finally:
        context.connections.arrived(connection)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
