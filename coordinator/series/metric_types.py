"""The types of metric families as senders report them, for expositions, which name the types."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from coordinator.fanout.calls import FanOut
from coordinator.fanout.links import Links
from shared.errors import TriptychError
from shared.messages.series import MetadataBody, MetadataReply
from shared.wire import pack, unpack

FRESH_S = 60.0
"""How long the types are kept before they are asked for again: senders repeat their metadata about as often."""
FAMILIES_PER_SHARD_MAX = 5_000
"""Families whose types are kept here, at about 200 bytes each; further families have no type."""
TIMEOUT_S = 1.0
"""Short, because a type is only a hint: without it, a metric is untyped."""


class MetricTypes:
    """The known types. Asks the shards at most once every FRESH_S seconds. For the event loop's thread only."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._types: Mapping[str, str] = {}
        self._asked_at = -FRESH_S
        self._lock = asyncio.Lock()

    async def types(self) -> Mapping[str, str]:
        """Family → type, for all families whose type is known. If no shard replies, the types known before."""
        async with self._lock:
            if time.monotonic() - self._asked_at >= FRESH_S:
                self._asked_at = time.monotonic()
                await self._ask()
            return self._types

    async def _ask(self) -> None:
        body = pack(MetadataBody("", FAMILIES_PER_SHARD_MAX))
        try:
            replies = await self._links.fan_out("series.metadata", body=body, timeout_s=TIMEOUT_S)
        except TriptychError:
            return
        self._types = await asyncio.to_thread(_types_of, replies)


def _types_of(replies: FanOut) -> dict[str, str]:
    """Family → type. If a family has several entries, the latest one counts."""
    types: dict[str, str] = {}
    for reply in replies.replies:
        for entry in unpack(reply.message.body, MetadataReply).entries:
            types[entry.family] = entry.type
    return types
