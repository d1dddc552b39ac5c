"""Reads the records that a member of a group is to process: those of its slots, from all shards that have such slots.

The pages of the shards are not merged into one, because only the order within a key matters, and a key is on one shard.
The pages are only cut at the number up to which all of them are complete.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.fanout.links import Links
from coordinator.log.reads import Reader, Warnings
from coordinator.log.recovery import Recovery
from coordinator.log.turns import GROUP_PAGE, Turns
from shared.log.slots import NOT_OWNED, slots_per_shard
from shared.messages import log
from shared.messages.log_groups import LagBody, LagReply, SlotsBody, SlotsReply
from shared.messages.log_pages import Page, Records, check_progress
from shared.wire import pack, unpack

PAGE_BYTES_MAX = 4 << 20
"""Bytes of values in one answer, from all shards together, apart from one record of each shard."""
SHARD_BYTES_MIN = 64 << 10
AHEAD, AHEAD_RECORDS = 1.25, 16
"""A shard is asked for its share of the records times AHEAD, and AHEAD_RECORDS more, so that a shard with more records
than others does not end the page early."""


class GroupPage(NamedTuple):
    """Records by shard, complete up to `next`. `done`: there are no more that can be read now."""

    pages: list[Records]
    next: int
    done: bool

    @property
    def is_empty(self) -> bool:
        return not any(len(page) for page in self.pages)


class GroupReader:
    """Raises Unavailable when a shard that is needed is missing, like `Reader`."""

    def __init__(self, links: Links, turns: Turns, reader: Reader, recovery: Recovery, timeout_s: float) -> None:
        self._links = links
        self._turns = turns
        self._reader = reader
        self._recovery = recovery
        self._timeout_s = timeout_s

    async def page(
        self, prefix: bytes, starts: NDArray[np.uint64], start: int, end: int, limit: int, warnings: Warnings
    ) -> GroupPage:
        """Up to `limit` records with the prefix and start ≤ number < end, of each slot from its number in `starts` on
        (uint64[slots], NOT_OWNED for those that are not wanted)."""
        slot_counts = (starts != NOT_OWNED).reshape(-1, slots_per_shard(self._links.shards)).sum(axis=1)
        shards: list[int] = np.flatnonzero(slot_counts).tolist()
        await self._recovery.wait_for(shards)
        span = self._reader.readable(start, end)
        if span is None or not shards:
            # Not `end`: while this waited, a shard may have reported records in doubt below it.
            return GroupPage([], max(start, min(end, self._reader.visible)), True)
        shares = (
            np.minimum(limit, slot_counts * (limit * AHEAD / slot_counts.sum()) + AHEAD_RECORDS)
            .astype(np.int64)
            .tolist()
        )
        page_bytes = max(SHARD_BYTES_MIN, PAGE_BYTES_MAX // len(shards))
        limits = {shard: shares[shard] for shard in shards}
        body = SlotsBody(span, prefix, starts.astype("<u8").tobytes(), self._links.shards, limits, page_bytes)
        replies = await self._turns.call(GROUP_PAGE, shards=shards, body=pack(body), timeout_s=self._timeout_s)
        warnings.add(replies)
        pages = []
        for reply in replies:
            heads = unpack(reply.message.body, SlotsReply).pages
            each = len(reply.message.frames) // len(heads)
            for at, (following, done) in enumerate(heads):
                records = Records.from_frames(reply.message.frames[at * each : (at + 1) * each])
                pages.append(Page(records, following, done))
                check_progress(pages[-1], span.start, span.end)
        return _together(pages, limit)

    async def count(self, prefix: bytes, starts: NDArray[np.uint64], warnings: Warnings) -> int:
        """How many records with the prefix there are, of each slot from its number in `starts` on."""
        shards = list(range(self._links.shards))
        await self._recovery.wait_for(shards)
        span = self._reader.readable(int(starts.min()), log.SEQUENCE_MAX)
        if span is None:
            return 0
        body = pack(SlotsBody(span, prefix, starts.astype("<u8").tobytes(), self._links.shards))
        replies = await self._turns.call("log.group_count", shards=shards, body=body, timeout_s=self._timeout_s)
        warnings.add(replies)
        return sum(unpack(reply.message.body, log.CountReply).records for reply in replies)

    async def lag(
        self, prefix: bytes, starts: NDArray[np.uint64], after: bytes | None, limit: int, warnings: Warnings
    ) -> tuple[list[tuple[bytes, int]], bool]:
        """((key, records from its slot's start on) of each key that has records above the lowest start, ascending;
        whether there are more)."""
        shards = list(range(self._links.shards))
        await self._recovery.wait_for(shards)
        span = self._reader.readable(int(starts.min()), log.SEQUENCE_MAX)
        if span is None:
            return [], False
        body = LagBody(span, prefix, starts.astype("<u8").tobytes(), self._links.shards, after, limit + 1)
        replies = await self._turns.call("log.group_lag", shards=shards, body=pack(body), timeout_s=self._timeout_s)
        warnings.add(replies)
        keys = sorted(row for reply in replies for row in unpack(reply.message.body, LagReply).keys)
        return keys[:limit], len(keys) > limit


def _together(pages: list[Page], limit: int) -> GroupPage:
    """The pages, cut at the number up to which all are complete, and to `limit` records."""
    upto = min(page.next for page in pages)
    done = all(page.done for page in pages)
    counts = [int(np.searchsorted(page.records.sequences, np.uint64(upto))) for page in pages]
    if sum(counts) > limit:
        numbers = np.concatenate([page.records.sequences[:n] for page, n in zip(pages, counts, strict=True)])
        upto, done = int(np.partition(numbers, limit)[limit]), False
        counts = [int(np.searchsorted(page.records.sequences, np.uint64(upto))) for page in pages]
    return GroupPage([page.records.cut(0, n) for page, n in zip(pages, counts, strict=True) if n], upto, done)
