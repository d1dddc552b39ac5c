"""Parses the heads of requests that are served without aiohttp (coordinator/direct/requests.py).

Clients repeat the same header lines, so their parsed content is cached, and only the request line is parsed each time.
Those of POST requests, whose parameters are in the body, are cached as a whole. Heads that are not plain are left to
aiohttp.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from coordinator.headers.negotiation import ARROW, EVENTS, PROTOBUF, takes_gzip
from coordinator.headers.request_ids import chosen_id_in

HEAD_BYTES_MAX = 8 << 10
LINES_BYTES_MAX = 1024
LINES_CACHED = 1024
"""Bodies of different lengths have different header lines. Parsing lines that are not cached takes a few
microseconds."""

_REQUEST_LINE = re.compile(rb"(GET|POST) (/[\w/-]*)(?:\?([\w.~%&=+*()',:;!@$/-]*))? HTTP/1\.1\r\n", re.ASCII)
"""The query string may only have the characters that clients leave unescaped, and percent escapes."""
_PLAIN_HEADERS = frozenset(
    (
        b"host",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"accept",
        b"accept-encoding",
        b"connection",
        b"user-agent",
        b"x-request-id",
        b"x-prometheus-remote-write-version",
    )
)
"""A head with any other header is left to aiohttp."""
_TEXT = re.compile(rb"[\x20-\x7e]*")
_LENGTH = re.compile(rb"\d{1,9}")


class _Lines(NamedTuple):
    host: str
    media_type: str
    type_parameters: str
    encoding: str
    body_bytes: int
    takes_gzip: bool
    request_id: str


class PlainHead(NamedTuple):
    """The content of a plain head.

    `query`: the raw text after the question mark. `media_type`: the body's, without its parameters, which are in
    `type_parameters` unchanged. `encoding`: the body's. Media type and encoding are in lower case, and "" if not given.
    `request_id`: the client's own id, or "". The client accepts JSON as the response.
    """

    method: str
    path: str
    query: bytes
    host: str
    media_type: str
    type_parameters: str
    encoding: str
    body_bytes: int
    takes_gzip: bool
    request_id: str = ""


def plain_head(head: bytes) -> PlainHead | None:
    """Parse the head of a request, which ends with an empty line. None if it is left to aiohttp."""
    return _posted(head) if head.startswith(b"POST ") and len(head) <= LINES_BYTES_MAX else _parsed(head)


def _parsed(head: bytes) -> PlainHead | None:
    line = _REQUEST_LINE.match(head)
    if line is None or len(head) - line.end() > LINES_BYTES_MAX:
        return None
    lines = _lines(head[line.end() : -2])
    if lines is None:
        return None
    method, path, query = line.groups(b"")
    return PlainHead(method.decode(), path.decode(), query, *lines)


_posted = lru_cache(LINES_CACHED)(_parsed)


@lru_cache(LINES_CACHED)
def _lines(text: bytes) -> _Lines | None:
    """Parse the header lines, each of which ends with a line break. None if they are not plain."""
    fields: dict[bytes, bytes] = {}
    for line in text[:-2].split(b"\r\n"):
        name, _, value = line.partition(b":")
        name = name.lower()
        if name not in _PLAIN_HEADERS or name in fields or _TEXT.fullmatch(value.strip(b"\t")) is None:
            return None
        fields[name] = value.strip(b" \t")
    host, length = fields.get(b"host"), fields.get(b"content-length", b"0")
    accept = fields.get(b"accept", b"").decode().lower()
    is_plain = (
        host
        and _LENGTH.fullmatch(length)
        and not any(media_type in accept for media_type in (ARROW, EVENTS, PROTOBUF))
        and fields.get(b"connection", b"keep-alive").lower() == b"keep-alive"
    )
    if not host or not is_plain:
        return None
    media_type, _, parameters = fields.get(b"content-type", b"").decode().partition(";")
    encoding = fields.get(b"content-encoding", b"").lower().decode()
    gzip = takes_gzip(fields.get(b"accept-encoding", b"").decode())
    request_id = chosen_id_in(b"\r\n" + text)
    return _Lines(host.decode(), media_type.strip().lower(), parameters, encoding, int(length), gzip, request_id)
