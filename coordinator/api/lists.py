"""Lists that all shards have a part of: asked for, whole or in part, merged, and answered with what is missing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial

import msgspec
from aiohttp import web
from multidict import MultiDict

from coordinator.api import parameters
from coordinator.api.listed import listed
from coordinator.calls import FanOut, require_whole
from coordinator.context import CONTEXT
from coordinator.negotiation import accepts_gzip
from coordinator.protocol import client_of, connection_of
from coordinator.queries.evaluation import threads_of
from coordinator.queries.gate import Place
from coordinator.queries.running import RunningQuery
from coordinator.responses import success, zipped
from shared.errors import TooHeavy
from shared.wire import pack, size_of

LIMIT_WARNING = "results truncated due to limit"
LIGHT_REPLY_BYTES_MAX = 64 << 10
"""What workers send for a list that is merged as a light request: interpreted code merges it."""

INLINE_REPLY_BYTES_MAX = 4 << 10
"""What workers send for a list that is merged on the event loop: that takes less time than to hand it to a thread."""

Merge = Callable[[FanOut], tuple[object, bool]]
"""(The list as it is answered, whether the limit left some of it out.)"""


async def answer(
    request: web.Request,
    fields: MultiDict[str],
    method: str,
    body: msgspec.Struct,
    merge: Merge,
    shards: Iterable[int] | None = None,
    text: str | None = None,
) -> web.Response:
    """What these shards (default: all) have of a list, merged; see `gathered`."""
    return await gathered(request, fields, method, body, partial(_answered, merge=merge), shards, text)


async def gathered(
    request: web.Request,
    fields: MultiDict[str],
    method: str,
    body: msgspec.Struct,
    answered: Callable[[FanOut], web.Response],
    shards: Iterable[int] | None = None,
    text: str | None = None,
) -> web.Response:
    """What `answered` makes of the replies of these shards (default: all), when there is a place for it: in a thread,
    unless they are short. The running queries show it with `text`, by default its selectors. Raises Unavailable when
    none of the shards answers, or when one does not and `partial_response` is false; Overloaded."""
    context = request.app[CONTEXT]
    numbers = range(context.links.shards) if shards is None else tuple(shards)
    is_partial = parameters.partial_response(fields)
    if not is_partial:
        context.links.require(numbers)
    packed = pack(body)
    deadline = time.monotonic() + context.settings.query_timeout_ms / 1000
    client = client_of(request)
    made = _zipped(answered) if accepts_gzip(request) else answered

    async def attempt(running: RunningQuery, place: Place) -> web.Response:
        left_s = max(0.0, deadline - time.monotonic())
        replies = await context.links.fan_out(
            method, shards=numbers, body=packed, timeout_s=left_s, processor_s=place.processor_s
        )
        if not is_partial:
            require_whole(replies.warnings())
        size = _size_of(replies)
        if place.is_light and size > LIGHT_REPLY_BYTES_MAX:
            raise TooHeavy(f"{method} has a longer list than a light request")
        running.enter("merging")
        if size <= INLINE_REPLY_BYTES_MAX:
            return made(replies)
        run = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(threads_of(place), run, made, replies)

    async def served(running: RunningQuery) -> web.Response:
        work = running.waits(partial(attempt, running))
        is_slow = partial(context.admission.is_slow, connection_of(request).holder)
        return await context.gate.run(client, hash((method, packed)), deadline, work, is_slow=is_slow)

    shown = " ".join(fields.getall("match[]", ())) if text is None else text
    return await listed(request, method, shown, served)


def _answered(replies: FanOut, merge: Merge) -> web.Response:
    data, is_cut = merge(replies)
    return success(data, [*replies.warnings(), *([LIMIT_WARNING] if is_cut else [])])


def _zipped(answered: Callable[[FanOut], web.Response]) -> Callable[[FanOut], web.Response]:
    return lambda replies: zipped(answered(replies))


def _size_of(replies: FanOut) -> int:
    messages = [reply.message for reply in replies.replies]
    return sum(size_of(frame) for message in messages for frame in (message.body, *message.frames))
