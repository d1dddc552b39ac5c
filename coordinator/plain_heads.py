"""Heads of requests that are plain enough to be read without aiohttp (coordinator/direct_requests.py).

A client sends the same header lines again and again, so what they say is remembered; only the request line is read
anew. What is not read here, aiohttp reads.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from coordinator.negotiation import ARROW, EVENTS, PROTOBUF, takes_gzip
from coordinator.request_ids import given_in

HEAD_BYTES_MAX = 8 << 10
LINES_BYTES_MAX = 1024
LINES_CACHED = 1024
"""Bodies of different lengths have different header lines. Those that are not cached are read in some microseconds."""

_REQUEST_LINE = re.compile(rb"(GET|POST) (/[\w/-]*)(?:\?([\w.~%&=+*()',:;!@$/-]*))? HTTP/1\.1\r\n", re.ASCII)
"""The characters that clients leave as they are in the query string of a URL."""
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
    """What a head says of its request. `query`: what follows the question mark, as it came. `media_type`: of the body,
    without its parameters, which are `type_parameters`, as they came; `encoding`: of the body. Media type and encoding
    are in lower case, and empty if not given. If the answer has a body, it is JSON. `request_id`: the client's own, or
    empty."""

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
    """The head of a request, which ends with an empty line; None if it is left to aiohttp."""
    line = _REQUEST_LINE.match(head)
    if line is None or len(head) - line.end() > LINES_BYTES_MAX:
        return None
    lines = _lines(head[line.end() : -2])
    if lines is None:
        return None
    method, path, query = line.groups(b"")
    return PlainHead(method.decode(), path.decode(), query, *lines)


@lru_cache(LINES_CACHED)
def _lines(text: bytes) -> _Lines | None:
    """What the header lines say, each of which ends with a line break; None if they are not plain."""
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
    request_id = given_in(b"\r\n" + text)
    return _Lines(host.decode(), media_type.strip().lower(), parameters, encoding, int(length), gzip, request_id)
