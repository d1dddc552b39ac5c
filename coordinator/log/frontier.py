"""How far the log may be read.

A group of batches is *open* from the moment its numbers are taken until every shard concerned has answered or its
failed batches are hidden. Readers never pass the first open group. So they see only whole batches, in order, and never
have to look back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

from coordinator.log.columns import BatchRecords
from shared.messages.log import SEQUENCE_MAX

UNSEEN_MAX, UNSEEN_BYTES_MAX = 4096, 64 << 20
"""Closed groups whose records stay in memory until readers may see them, and the bytes that these take. Above either,
followers read the oldest from the store instead."""
RECORD_BYTES = 100
"""About what a record takes in memory beside its key and its value."""


@dataclass(slots=True, eq=False)
class Group:
    """Consecutive batches with the numbers start ≤ number < end. `batches`: (first number, records) of each batch that
    was stored. `time_ms`: when they were appended (log.Batch). `size_bytes`: of their keys and values."""

    start: int
    end: int
    batches: list[tuple[int, BatchRecords]] = field(default_factory=list)
    closed: bool = False
    when_closed: Callable[[], None] | None = None
    time_ms: int = 0
    size_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        return self.size_bytes + RECORD_BYTES * (self.end - self.start)


class Frontier:
    """The numbers up to which the log is decided.

    Every batch below `readable` is whole or hidden; every batch below `durable` is also on the disk of every shard
    concerned. `in_doubt` is the first group with a batch that some shard may not hold, found after a start.
    """

    def __init__(self, visibility: str) -> None:
        self.readable = 0
        self.durable = 0
        self.in_doubt = SEQUENCE_MAX
        self.being_removed = SEQUENCE_MAX
        """The first group with revoked batches that shards may still hold."""
        self.publish: Callable[[Group], None] = lambda group: None
        """Called with each group that becomes visible, in order."""
        self.publish_gap: Callable[[], None] = lambda: None
        """Called when numbers have become visible that were in no published group: followers have to read the store."""
        self._visibility = visibility
        self._shown = 0
        """Every number below has been published, as a group or as a gap."""
        self._open: deque[Group] = deque()
        self._unseen: deque[Group] = deque()
        self._unseen_bytes = 0
        self._moved = asyncio.Event()

    def begin_at(self, readable: int, durable: int) -> None:
        self.readable, self.durable = readable, durable
        self.show()

    def skip_to(self, number: int) -> None:
        """Continue at `number`: only batches that are open now have numbers below it."""
        if not self._open:
            self.readable = max(self.readable, number)
        self.show()

    @property
    def visible(self) -> int:
        """Reads see numbers below this."""
        return min(self.durable if self._visibility == "durable" else self.readable, self.in_doubt)

    @property
    def on_disk(self) -> int:
        """Every batch below is whole or hidden, and on the disk of every shard concerned."""
        return min(self.durable, self.in_doubt)

    @property
    def settled(self) -> int:
        """Nothing below has to be examined after a crash, even one that destroys the list of hidden batches."""
        return min(self.durable, self.in_doubt, self.being_removed)

    def open(self, group: Group) -> None:
        """Open a group. The caller opens groups in the order of their numbers."""
        self._open.append(group)

    def close(self, group: Group) -> None:
        """Close a group, of which nothing is under way any more. Answers are given in order: a batch is acknowledged
        once everything before it is decided, too."""
        group.closed = True
        while self._open and self._open[0].closed:
            first = self._open.popleft()
            self.readable = first.end
            self._unseen.append(first)
            self._unseen_bytes += first.memory_bytes
            if first.when_closed is not None:
                first.when_closed()
                first.when_closed = None  # it would keep the batches in memory as they were sent
        self.show()

    def synced(self, upto: int) -> None:
        """Note that everything below `upto` is on disk."""
        self.durable = max(self.durable, upto)
        self.show()

    def show(self) -> None:
        """Publish everything that has become visible. Every change of the frontier ends with this.

        Most records are in groups that were closed since the start. Others are in no group in memory: records that a
        start found in the shards and that have been decided or synced since, and those of groups beyond UNSEEN_MAX or
        UNSEEN_BYTES_MAX. These are published as a gap. When `visible` falls, because a shard has reported batches in
        doubt, a new follower may begin below the numbers already published. So publishing then continues from the
        lower number.
        """
        visible = self.visible
        while self._unseen and self._unseen[0].end <= visible:
            group = self._forget_oldest()
            if group.start > self._shown:
                self.publish_gap()
            self.publish(group)
            self._shown = group.end
        if self._shown < visible:
            self.publish_gap()
        self._shown = visible
        while len(self._unseen) > UNSEEN_MAX or self._unseen_bytes > UNSEEN_BYTES_MAX:
            self._forget_oldest()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _forget_oldest(self) -> Group:
        group = self._unseen.popleft()
        self._unseen_bytes -= group.memory_bytes
        return group

    def end_before(self, time_ms: int) -> int:
        """The end of the last group in memory that was appended before this time; 0 if there is none. Times never
        decrease from one group to the next."""
        groups = chain(reversed(self._open), reversed(self._unseen))
        return next((group.end for group in groups if group.time_ms < time_ms), 0)

    async def wait_visible(self, upto: int) -> None:
        """Return when reads see everything below `upto`, or everything that is not in doubt; the caller sets the
        deadline."""
        while self.visible < min(upto, self.in_doubt):
            await self._moved.wait()

    async def wait_durable(self, upto: int) -> None:
        """Return when everything below `upto` is on disk; the caller sets the deadline."""
        while self.durable < upto:
            await self._moved.wait()
