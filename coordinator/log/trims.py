"""Deletion of a key's records: all present ones, or those below a number."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.fanout.links import Links
from coordinator.log.follow import Followers
from coordinator.log.frontier import Frontier
from coordinator.log.reads import KeySelection, Reader
from shared.hashing import shard_of
from shared.messages import log
from shared.settings import Settings
from shared.wire import pack, unpack


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Every record of the key below `start` is gone. `records`: how many were removed; None if they were too many to
    count."""

    start: int
    records: int | None


class Trims:
    """For the event loop's thread only."""

    def __init__(
        self, settings: Settings, links: Links, frontier: Frontier, reader: Reader, followers: Followers
    ) -> None:
        self._settings = settings
        self._links = links
        self._frontier = frontier
        self._reader = reader
        self._followers = followers

    async def trim(self, key: bytes, before: int = log.SEQUENCE_MAX) -> Trimmed:
        """Delete the key's records below `before` that have been appended by now. When this returns, no read that
        begins later sees them, whatever crashes, including a loss of power.

        Raises Unavailable, DeadlineExceeded; the records may then be gone already, or disappear a moment later.
        """
        selection = KeySelection(key)
        await self._reader.wait_for(selection)
        shard = shard_of(key, self._links.shards)
        self._links.require([shard])
        # All acknowledged records are below this number, and appends get higher ones: no record is added below it.
        closed = self._frontier.readable
        start = min(before, closed)
        span = self._reader.range(0, start)
        if span is None:
            return Trimmed(start, 0)
        timeout_s = self._settings.write_timeout_ms / 1000
        body = pack(log.TrimBody(span, key, closed))
        (reply,) = await self._links.call("log.trim", shards=[shard], body=body, timeout_s=timeout_s)
        self._followers.trim(key, start)
        return Trimmed(start, unpack(reply.message.body, log.TrimReply).records)
