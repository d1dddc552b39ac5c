"""Bodies of requests about vectors, by their Content-Type, and answers, by `Accept`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import orjson
from aiohttp import web

from coordinator.api.parameters import partial_response
from coordinator.context import CONTEXT, Context
from coordinator.headers.negotiation import JSON, PROTOBUF, PROTOBUF_JSON, content_type
from coordinator.http.bodies import read_body
from coordinator.vectors.answers import vector_json, vector_protobuf
from coordinator.vectors.stored import StoredVector
from shared.errors import BadData

JSON_TYPES = (JSON, PROTOBUF_JSON)
THREAD_BYTES_MIN = 64 << 10  # bodies of this size or more are decoded in a thread: 1 ms of the event loop

RENDERED = 250
"""Vectors that are rendered in one piece, which takes some milliseconds."""

T = TypeVar("T")


async def decoded_body(
    request: web.Request,
    from_json: Callable[[bytes], T],
    from_protobuf: Callable[[bytes], T],
    bytes_max: int | None = None,
) -> T:
    """The body by its Content-Type. Raises BadData for another type, TooLarge for more than `bytes_max` bytes, or than
    the setting allows if that is less."""
    kind = content_type(request)
    if kind not in (PROTOBUF, *JSON_TYPES):
        raise BadData(f"Content-Type is {kind!r}; it must be {PROTOBUF}, {' or '.join(reversed(JSON_TYPES))}")
    context = context_of(request)
    most = context.settings.body_bytes_max
    body = await read_body(request, most if bytes_max is None else min(most, bytes_max))
    decode = from_protobuf if kind == PROTOBUF else from_json
    if len(body) < THREAD_BYTES_MIN:
        return decode(body)
    return await context.decodings.run(len(body), partial(decode, body))


def json_answer(
    content: dict[str, Any], warnings: list[str] | None = None, infos: list[str] | None = None
) -> web.Response:
    """A successful answer; see `json_body`."""
    return web.Response(body=json_body(content, warnings, infos), content_type=JSON)


def json_body(content: dict[str, Any], warnings: list[str] | None = None, infos: list[str] | None = None) -> bytes:
    """The body of a successful answer. `warnings` say what is missing from it; `infos` are hints."""
    if warnings:
        content["warnings"] = warnings
    if infos:
        content["infos"] = infos
    return orjson.dumps({"status": "success", **content}, option=orjson.OPT_SERIALIZE_NUMPY)


def protobuf_answer(message: Any) -> web.Response:
    """A successful answer."""
    message.status = "success"
    return web.Response(body=message.SerializeToString(), content_type=PROTOBUF)


def context_of(request: web.Request) -> Context:
    """The context of the service."""
    return request.app[CONTEXT]


def is_partial(request: web.Request) -> bool:
    """Whether an answer may lack the vectors of missing shards."""
    return not request.query_string or partial_response(request.query)


async def vectors_json(vectors: Sequence[StoredVector]) -> bytes:
    """A JSON array of vectors; many are rendered in a thread, and in pieces."""
    if len(vectors) <= RENDERED:
        return _rendered(vectors)
    return await asyncio.to_thread(_rendered, vectors)


def _rendered(vectors: Sequence[StoredVector]) -> bytes:
    pieces = [
        orjson.dumps(
            [vector_json(vector) for vector in vectors[start : start + RENDERED]], option=orjson.OPT_SERIALIZE_NUMPY
        )[1:-1]
        for start in range(0, len(vectors), RENDERED)
    ]
    return b"[" + b",".join(pieces) + b"]"


async def fill_protobuf(vectors: Sequence[StoredVector], into: Any) -> None:
    """Add the vectors to `into`, a repeated field of Vector; many are added in a thread."""

    def fill() -> None:
        for vector in vectors:
            vector_protobuf(vector, into.add())

    if len(vectors) <= RENDERED:
        fill()
    else:
        await asyncio.to_thread(fill)
