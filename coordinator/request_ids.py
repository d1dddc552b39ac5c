"""The id of an HTTP request: the client's own, or a new one.

It is in the answer's `X-Request-Id`, travels to the workers in the header of every message, and is in every line of
the log that is written for the request (`shared.telemetry.REQUEST_ID`).
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
"""Of W3C Trace Context; its trace id is the request's id if the client names no other."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
"""What a client may choose: nothing that a header, a path or a line of the log would have to quote."""
_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.ASCII)
_IN_HEAD = re.compile(rb"\r\nx-request-id:[ \t]*([A-Za-z0-9._:-]{1,64})[ \t]*\r\n", re.IGNORECASE)
_PARENT_IN_HEAD = re.compile(rb"\r\ntraceparent:[ \t]*([!-~]+)[ \t]*\r\n", re.IGNORECASE)
_numbers = itertools.count(1)


@cache
def _prefix() -> str:
    """Tells this process from others. Made at the first request: a process that is forked before that has its own."""
    return os.urandom(4).hex()


def new_id() -> str:
    return f"{_prefix()}-{next(_numbers):x}"


def id_of(headers: Mapping[str, str]) -> str:
    """The id of a request with these headers (a multidict of aiohttp's)."""
    given = headers.get(HEADER)
    if given is not None and _ID.fullmatch(given):
        return given
    return _trace_of(headers.get(TRACE_PARENT, "")) or new_id()


def id_in(data: bytes) -> str:
    """The same for a request that aiohttp has not read, of which `data` is the beginning. Its body names no id, and is
    not looked through: a refusal has to be cheap."""
    head = head_of(data)
    given = given_in(head)
    if given:
        return given
    parent = _PARENT_IN_HEAD.search(head)
    return (parent and _trace_of(parent[1].decode("ascii"))) or new_id()


def head_of(data: bytes) -> bytes:
    """The head of the request that `data` begins with, with the line break of its last header. Of a head without its
    end, nothing can be found in what this returns."""
    return data[: data.find(b"\r\n\r\n") + 2]


def given_in(head: bytes) -> str:
    """The id that the client has chosen in this head; empty if none."""
    match = _IN_HEAD.search(head)
    return "" if match is None else match[1].decode("ascii")


def _trace_of(parent: str) -> str:
    """The trace's id in a `traceparent`; empty if there is none."""
    match = _PARENT.fullmatch(parent)
    return "" if match is None else match[1]
