"""Refuses requests without aiohttp: reads the path from the request's bytes, and assembles the response from few
pieces.

At three times the load that the service can handle, two of three requests are refused, and the time for refusing them
is lost for the others.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache

from coordinator.http.responses import SERVER, area_of, error_answer, own_lines
from shared.errors import Overloaded

TEXTS_CACHED = 64
"""Responses differ by area, by text, which contains changing numbers, and by `Retry-After`."""
HEADS_CACHED, HEAD_CACHED_BYTES_MAX = 256, 1024
"""Clients repeat the same head."""

RETRY_AFTER_S = Overloaded.retry_after_s or (1, 3)
_FIRST_LINE = re.compile(rb"(?:GET|POST|PUT|DELETE) (/[A-Za-z0-9_/.-]*)(?:\?[^ \r\n#]*)? HTTP/1\.1\r\n")
_CONTENT_LENGTH = re.compile(rb"\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n")
_PARTICULAR = (b"transfer-encoding", b"expect", b"upgrade", b"close")
"""Headers with one of these are left to aiohttp."""


def path_of_whole(data: bytes) -> str | None:
    """The path of the request if `data` is exactly one usual request with its whole body; else None."""
    body_at = data.find(b"\r\n\r\n") + 4
    if body_at < 4:
        return None
    path, body_bytes = (_cached if body_at <= HEAD_CACHED_BYTES_MAX else _usual)(data[:body_at])
    return path if len(data) == body_at + body_bytes else None


def _usual(head: bytes) -> tuple[str | None, int]:
    """(path, bytes of the body) of a usual request; (None, 0) for any other."""
    first = _FIRST_LINE.match(head)
    if first is None:
        return None, 0
    lines = head[first.end() - 1 : -2].lower()
    if any(word in lines for word in _PARTICULAR):
        return None, 0
    lengths = _CONTENT_LENGTH.findall(lines)
    if len(lengths) != lines.count(b"content-length") or len(lengths) > 1:
        return None, 0
    return first[1].decode("ascii"), int(lengths[0]) if lengths else 0


_cached = lru_cache(HEADS_CACHED)(_usual)


def end_of_request(data: bytes, begin: int) -> int:
    """Where the request at `begin` ends if another one follows it; 0 if none follows or its end is unknown."""
    head_end = data.find(b"\r\n\r\n", begin) + 4
    if head_end < 4 or head_end == len(data):
        return 0
    head = data[begin : head_end - 2].lower()
    lengths = _CONTENT_LENGTH.findall(head)
    if b"transfer-encoding" in head or len(lengths) > 1:
        return 0
    end = head_end + (int(lengths[0]) if lengths else 0)
    return end if end < len(data) else 0


def refusal(path: str, why: str, request_id: str, header_lines: bytes) -> bytes:
    """The whole response to a request to this path. `header_lines`: header lines of every response, with line
    breaks."""
    # The delay is random, so that clients that were refused together do not retry together.
    head, body = _answer(area_of(path), why, random.randint(*RETRY_AFTER_S))
    return b"%b%b%b\r\n%b" % (head, header_lines, own_lines(request_id), body)


@lru_cache(TEXTS_CACHED)
def _answer(area: str, why: str, retry_after_s: int) -> tuple[bytes, bytes]:
    """(the head without the lines that differ in every response, the body)."""
    response = error_answer(area, Overloaded(why))
    assert isinstance(response.body, bytes)
    head = (
        f"HTTP/1.1 {response.status} {response.reason}\r\nContent-Type: {response.headers['Content-Type']}\r\n"
        f"Retry-After: {retry_after_s}\r\nContent-Length: {len(response.body)}\r\nServer: {SERVER}\r\n"
    )
    return head.encode(), response.body
