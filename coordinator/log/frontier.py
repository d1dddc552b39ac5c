"""How far the log may be read.

A group of batches is *open* from the moment its numbers are taken until every shard concerned has answered, or what
they have of it is marked as given up. Readers never pass the first open group, so that they see whole batches only, in
order, and never have to look back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.log.columns import Columns
from shared.messages.log import SEQUENCE_MAX

UNSEEN_MAX = 4096
"""Closed groups kept with their records until readers may see them; above this number, followers read them from the
store instead."""


@dataclass(slots=True, eq=False)
class Group:
    """Consecutive batches start ≤ number < end. `batches`: (first number, records) of those that were stored."""

    start: int
    end: int
    batches: list[tuple[int, Columns]] = field(default_factory=list)
    closed: bool = False
    when_closed: Callable[[], None] | None = None


class Frontier:
    """`readable`: every batch below is whole or hidden. `durable`: and on the disk of every shard concerned."""

    def __init__(self, visibility: str) -> None:
        self.readable = 0
        self.durable = 0
        self.in_doubt = SEQUENCE_MAX
        self.being_removed = SEQUENCE_MAX
        """The first group of which shards may still hold what was taken back."""
        self.publish: Callable[[Group], None] = lambda group: None
        """Called with each group that becomes visible, in order."""
        self.publish_gap: Callable[[], None] = lambda: None
        """Called when numbers have become visible that no published group told of: followers have to read the store."""
        self._visibility = visibility
        self._shown = 0
        """Followers have been told of every number below, one way or the other."""
        self._open: deque[Group] = deque()
        self._unseen: deque[Group] = deque()
        self._moved = asyncio.Event()

    def begin_at(self, readable: int, durable: int) -> None:
        self.readable, self.durable = readable, durable
        self.show()

    def skip_to(self, number: int) -> None:
        """No record will have a number below this that is not open now."""
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
        """Nothing below needs looking at after a crash, even one that takes the list of what is hidden."""
        return min(self.durable, self.in_doubt, self.being_removed)

    def open(self, group: Group) -> None:
        """Groups are opened in the order of their numbers."""
        self._open.append(group)

    def close(self, group: Group) -> None:
        """Nothing of the group is under way any more. Answers are given in order: a batch is acknowledged when
        everything before it is decided too."""
        group.closed = True
        while self._open and self._open[0].closed:
            first = self._open.popleft()
            self.readable = first.end
            self._unseen.append(first)
            if first.when_closed is not None:
                first.when_closed()
        self.show()

    def synced(self, upto: int) -> None:
        self.durable = max(self.durable, upto)
        self.show()

    def show(self) -> None:
        """Tell followers of all that has become visible. Every change of the frontier ends with this.

        Most of it are groups that were closed since the start. The rest (what a start found and has decided or synced
        since, what was forgotten) nobody has in memory. When `visible` falls, because a shard has reported what is in
        doubt, a follower may begin below what the others have been told of already, so it counts from there again.
        """
        visible = self.visible
        while self._unseen and self._unseen[0].end <= visible:
            group = self._unseen.popleft()
            if group.start > self._shown:
                self.publish_gap()
            self.publish(group)
            self._shown = group.end
        if self._shown < visible:
            self.publish_gap()
        self._shown = visible
        if len(self._unseen) > UNSEEN_MAX:
            self._unseen.popleft()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def wait_durable(self, upto: int) -> None:
        """Return when everything below `upto` is on disk; the caller sets the deadline."""
        while self.durable < upto:
            await self._moved.wait()
