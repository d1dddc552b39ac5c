"""Lists of which each shard has a part: requested, merged, and answered with a warning for each missing shard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

import msgspec
from aiohttp import web
from multidict import MultiDict

from coordinator.api import parameters
from coordinator.api.listed import listed
from coordinator.context import CONTEXT, Context
from coordinator.fanout.calls import FanOut, require_whole
from coordinator.headers.negotiation import accepts_gzip
from coordinator.http.protocol import connection_of
from coordinator.http.responses import success, zipped
from coordinator.limits.admission import Holder
from coordinator.queries.evaluation import threads_of
from coordinator.queries.gate import Place
from coordinator.queries.running import RunningQuery
from shared.errors import TooHeavy
from shared.wire import pack, size_of

LIMIT_WARNING = "results truncated due to limit"
LIGHT_REPLY_BYTES_MAX = 64 << 10
"""Bytes of the workers' replies up to which a list is merged as a light request. Interpreted code merges it."""

INLINE_REPLY_BYTES_MAX = 4 << 10
"""Bytes of the workers' replies up to which a list is merged on the event loop, which takes less time than handing it
to a thread."""

Merge = Callable[[FanOut], tuple[object, bool]]
"""(The list as it is answered, whether it was cut at the limit.)"""


@dataclass(frozen=True, slots=True)
class Listing:
    """A request for a list. `body`: the packed body of the message to the workers; `answered`: makes the answer from
    their replies; `shards`: those that are asked, None for all; `is_partial`: whether an answer may lack some of them;
    `text`: shown in the list of running queries."""

    method: str
    body: bytes
    answered: Callable[[FanOut], web.Response]
    shards: Sequence[int] | None
    is_partial: bool
    text: str

    @classmethod
    def of(
        cls,
        method: str,
        fields: MultiDict[str],
        body: msgspec.Struct,
        answered: Callable[[FanOut], web.Response],
        shards: Sequence[int] | None = None,
        text: str | None = None,
    ) -> Listing:
        """The listing that a request with these parameters asks for. Without `text`, its selectors are shown."""
        is_partial = parameters.partial_response(fields)
        return cls(method, pack(body), answered, shards, is_partial, selectors_of(fields) if text is None else text)


def selectors_of(fields: MultiDict[str]) -> str:
    return " ".join(fields.getall("match[]", ()))


def merged(merge: Merge) -> Callable[[FanOut], web.Response]:
    """Makes the answer from the result of `merge`, with a warning if the list was cut at the limit."""
    return partial(_answered, merge=merge)


async def answer(request: web.Request, listing: Listing) -> web.Response:
    """The list. The request is listed among the running queries; see `made`."""
    context, holder = request.app[CONTEXT], connection_of(request).holder

    async def served(running: RunningQuery) -> web.Response:
        return await made(context, holder, listing, running, gzip=accepts_gzip(request))

    return await listed(request, listing.method, listing.text, served)


async def made(
    context: Context, holder: Holder, listing: Listing, running: RunningQuery, *, gzip: bool
) -> web.Response:
    """The answer to this holder's client from the replies of the shards, when there is a place for it. It is merged in
    a thread, unless the replies are short. Raises Unavailable when no shard answers, or when one does not and the
    answer may not be partial; Overloaded, DeadlineExceeded."""
    numbers = range(context.links.shards) if listing.shards is None else listing.shards
    if not listing.is_partial:
        context.links.require(numbers)
    deadline = time.monotonic() + context.settings.query_timeout_ms / 1000
    rendered = _zipped(listing.answered) if gzip else listing.answered

    async def attempt(place: Place) -> web.Response:
        left_s = max(0.0, deadline - time.monotonic())
        replies = await context.links.fan_out(
            listing.method, shards=numbers, body=listing.body, timeout_s=left_s, processor_s=place.processor_s
        )
        if not listing.is_partial:
            require_whole(replies.warnings())
        size = _size_of(replies)
        if place.is_light and size > LIGHT_REPLY_BYTES_MAX:
            raise TooHeavy(f"{listing.method} has a longer list than a light request")
        running.enter("merging")
        if size <= INLINE_REPLY_BYTES_MAX:
            return rendered(replies)
        run = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(threads_of(place), run, rendered, replies)

    identity = hash((listing.method, listing.body))
    is_slow = partial(context.admission.is_slow, holder)
    return await context.gate.run(holder.client.name, identity, deadline, running.waits(attempt), is_slow=is_slow)


def _answered(replies: FanOut, merge: Merge) -> web.Response:
    data, is_cut = merge(replies)
    return success(data, [*replies.warnings(), *([LIMIT_WARNING] if is_cut else [])])


def _zipped(answered: Callable[[FanOut], web.Response]) -> Callable[[FanOut], web.Response]:
    return lambda replies: zipped(answered(replies))


def _size_of(replies: FanOut) -> int:
    messages = [reply.message for reply in replies.replies]
    return sum(size_of(frame) for message in messages for frame in (message.body, *message.frames))
