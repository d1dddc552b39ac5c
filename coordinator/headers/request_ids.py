"""The id of an HTTP request: chosen by the client, or new.

It is in the `X-Request-Id` of the response, in the header of every message to workers, and in every log line that is
written for the request (`shared.telemetry.REQUEST_ID`).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from functools import cache

from multidict import istr

HEADER = istr("X-Request-Id")
TRACE_PARENT = istr("traceparent")
"""The header of W3C Trace Context. Its trace id is the request's id if the client sends no `X-Request-Id`."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
"""The ids that a client may choose: no characters that would need quoting in a header, a path or a log line."""
_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.ASCII)
_IN_HEAD = re.compile(rb"\r\nx-request-id:[ \t]*([A-Za-z0-9._:-]{1,64})[ \t]*\r\n", re.IGNORECASE)
_PARENT_IN_HEAD = re.compile(rb"\r\ntraceparent:[ \t]*([!-~]+)[ \t]*\r\n", re.IGNORECASE)
_numbers = itertools.count(1)


@cache
def _prefix() -> str:
    """Identifies this process. Created at the first request, so that processes forked before that have different
    ones."""
    return os.urandom(4).hex()


def new_id() -> str:
    return f"{_prefix()}-{next(_numbers):x}"


def id_of(headers: Mapping[str, str]) -> str:
    """The id of a request with these headers (a multidict of aiohttp's)."""
    chosen_id = headers.get(HEADER)
    if chosen_id is not None and _ID.fullmatch(chosen_id):
        return chosen_id
    return _trace_of(headers.get(TRACE_PARENT, "")) or new_id()


def id_in(data: bytes) -> str:
    """As `id_of`, for a request that aiohttp has not read; `data` is its beginning. Only the head is searched, since
    refusals must be cheap."""
    head = head_of(data)
    chosen_id = chosen_id_in(head)
    if chosen_id:
        return chosen_id
    parent = _PARENT_IN_HEAD.search(head)
    return (parent and _trace_of(parent[1].decode("ascii"))) or new_id()


def head_of(data: bytes) -> bytes:
    """The head of the request that `data` begins with, including the line break of its last header. If the head is
    incomplete, the result contains no headers."""
    return data[: data.find(b"\r\n\r\n") + 2]


def chosen_id_in(head: bytes) -> str:
    """The id that the client has chosen in this head; "" if none."""
    match = _IN_HEAD.search(head)
    return "" if match is None else match[1].decode("ascii")


def _trace_of(parent: str) -> str:
    """The trace id in a `traceparent`; "" if there is none."""
    match = _PARENT.fullmatch(parent)
    return "" if match is None else match[1]
