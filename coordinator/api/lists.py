"""Lists that all shards have a part of: asked for, whole or in part, and answered with what is missing from them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from aiohttp import web
from multidict import MultiDict

from coordinator.api import parameters
from coordinator.calls import FanOut, require_whole
from coordinator.context import CONTEXT
from coordinator.queries.gate import Place
from coordinator.responses import success
from shared.wire import pack

LIMIT_WARNING = "results truncated due to limit"


async def ask(
    request: web.Request,
    fields: MultiDict[str],
    method: str,
    body: msgspec.Struct,
    shards: Iterable[int] | None = None,
) -> FanOut:
    """What these shards (default: all) have of a list, asked for when there is a place for it. Raises Unavailable when
    none of them answers, or when one does not and `partial_response` is false; Overloaded."""
    context = request.app[CONTEXT]
    numbers = range(context.links.shards) if shards is None else shards
    partial = parameters.partial_response(fields)
    if not partial:
        context.links.require(numbers)
    packed = pack(body)
    deadline = time.monotonic() + context.settings.query_timeout_ms / 1000

    async def attempt(place: Place) -> FanOut:
        left_s = max(0.0, deadline - time.monotonic())
        return await context.links.fan_out(
            method, shards=numbers, body=packed, timeout_s=left_s, processor_s=place.processor_s
        )

    result = await context.gate.run(request.remote, (method, packed), deadline, attempt)
    if not partial:
        require_whole(result.warnings())
    return result


def answered(data: Sequence[object] | Mapping[str, object], result: FanOut, cut: bool) -> web.Response:
    """`cut`: whether the limit left some of the list out."""
    return success(data, [*result.warnings(), *([LIMIT_WARNING] if cut else [])])
