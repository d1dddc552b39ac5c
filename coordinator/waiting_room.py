"""Where requests wait, unread, while as many are at work as may be.

Few at work at a time and a short wait for the newest is better than many at work, all of which are late. But a closed
loop of clients, such as a dashboard or a benchmark, is no overload, and none of its requests should be refused. So
requests wait here, the oldest first in turn, as long as there is room for them. When there is none, or when they become
more and more, more comes than leaves. From then on the newest is first in turn, since its client is the likeliest to be
still there, and the oldest is refused: answers come at once or not at all (B. Maurer, "Fail at Scale", ACM Queue 13/8,
2015). A burst may be over before it is a queue: for a moment many may wait, of whom nobody is refused, and the newest
goes first. If they are no fewer after that moment but no more either, they are a closed loop, and each has its turn.

The client with the fewest requests at work has the first turn, and the one with the most here is refused first, so that
one client that sends much does not keep the others out.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from coordinator.clients import Client
from coordinator.pressure import Pressure, Queue
from coordinator.request_kinds import WRITE_PATHS

ROOM_CALM, ROOM, ROOM_OVERFULL = 512, 64, 16
"""Requests that may wait for as long as it takes: while work waits no longer than it should, in an overload, and while
more comes than leaves."""
ROOM_BURST = 4096
"""Requests that may wait for a moment: more than the followers of the log that come back together when the coordinator
has started again."""
BURST_LOOKS = 5
"""More than `ROOM_CALM` requests in so many looks in a row, a tenth of a second apart, are no burst, unless they became
fewer from the last look but one to the last."""
COUNT_S = 0.05
"""How often those who wait are counted while requests come."""
GROWTH, GROWTH_COUNTS = 24, (3, 10)
"""More comes than leaves when more than `ROOM` wait, and so many more than so many counts ago, who were so many more
than as many counts before that: a burst and a closed loop grow once."""
BURST_FROM = 24
"""More than so many, who began to wait a moment ago, are a burst."""
BURST_S = (2 * min(GROWTH_COUNTS) + 2) * COUNT_S
"""So long after a burst began, the newest is first in turn: by then it is known whether more comes than leaves, also
when the counts are somewhat late. Otherwise all writes of an overload would be let in at once, the oldest first."""
OVERFULL_S = 1.0
"""So long after a request found no room, more comes than leaves, as far as is known."""
WAIT_MAX_S, WAIT_OVERFULL_MAX_S = 2.0, 0.006
"""A request is refused when it has waited so long; the second while more comes than leaves."""
LATE_AT_ONCE, LATE_IN_A_LOOK = 4, 256
"""Of those who have waited too long, so many at most are refused for each request that comes or has been answered, and
in a look. When a burst turns out to be an overload, several hundred are late: to refuse them takes as long as to answer
some tens, and those at work would wait for that."""
SHARE_STEP_UP, SHARE_STEP_DOWN = 0.5, 0.2
"""By this part of its way the share of the refused moves in a look towards what it was since the last one: up faster,
since a hard overload is worse when it is taken for a mild one."""
HARD_SHARE, UNKNOWN_S = 0.5, 0.2
"""In a burst, and so long after it has turned out to be an overload, nobody knows how hard it is. It is taken for one
in which this share has to be refused."""
SHARE_OVERFULL = 0.03
"""While more comes than leaves and more than this share is refused, this goes on. A stall refuses fewer."""


class Visitor(Protocol):
    """A connection with one whole request that nobody has read."""

    def go_on(self) -> None:
        """It is the request's turn."""

    def turn_away(self, why: str) -> None:
        """The request is refused."""


@dataclass(frozen=True, slots=True)
class _Stay:
    client: Client
    is_write: bool
    since: float


class _Line:
    """The reads or the writes that wait, by client, each in the order of arrival."""

    def __init__(self) -> None:
        self._by_client: dict[Client, dict[Visitor, float]] = {}  # when each came

    def join(self, visitor: Visitor, stay: _Stay) -> None:
        self._by_client.setdefault(stay.client, {})[visitor] = stay.since

    def leave(self, visitor: Visitor, stay: _Stay) -> None:
        own = self._by_client[stay.client]
        del own[visitor]
        if not own:
            del self._by_client[stay.client]

    def first(self, since_min: float, *, newest: bool) -> tuple[int, float, Visitor] | None:
        """(requests at work of its client, how late it is in turn, the visitor) of the first in turn, of those who came
        after `since_min`."""
        best = None
        for client, own in self._by_client.items():
            visitor = next(reversed(own) if newest else iter(own))
            since = own[visitor]
            if since <= since_min:
                continue
            rank = client.requests, -since if newest else since
            if best is None or rank < best[:2]:
                best = *rank, visitor
        return best


class _Counts:
    """How many waited, at intervals, since requests began to come without a pause."""

    def __init__(self) -> None:
        self._counts: deque[int] = deque(maxlen=2 * max(GROWTH_COUNTS) + 1)
        self._counted = 0.0
        self._many_since = math.inf

    def add(self, now: float, count: int) -> None:
        """Note that so many wait. To be called for each request that comes."""
        if count <= BURST_FROM // 2:
            self._many_since = math.inf
        elif count > BURST_FROM and self._many_since == math.inf:
            self._many_since = now
        if now - self._counted < COUNT_S:
            return
        if now - self._counted > 3 * COUNT_S:
            self._counts.clear()
        self._counted = now
        self._counts.append(count)

    def is_burst(self, now: float) -> bool:
        """Whether many began to wait a moment ago."""
        return now - self._many_since < BURST_S

    def grow(self) -> bool:
        """Whether those who wait become more and more."""
        counts = self._counts
        if not counts or counts[-1] <= ROOM:
            return False
        return any(
            len(counts) > 2 * span
            and counts[-1] - counts[-1 - span] >= GROWTH
            and counts[-1 - span] - counts[-1 - 2 * span] >= GROWTH
            for span in GROWTH_COUNTS
        )


class WaitingRoom:
    """For the event loop's thread only."""

    def __init__(self, pressure: Pressure) -> None:
        self._pressure = pressure
        self._stays: dict[Visitor, _Stay] = {}  # in the order of their arrival
        self._reads, self._writes = _Line(), _Line()
        self._overfull_until = self._unknown_until = 0.0
        self._is_about_to_admit = False
        self._looks_full = self._seen = 0
        self._counts = _Counts()
        self._admitted = self._refused = 0  # since the last look
        self.refused_share = 0.0
        """Of those whose wait is over, on average over the last looks."""

    @property
    def is_overfull(self) -> bool:
        """Whether more comes than leaves, as far as is known."""
        return time.monotonic() < self._overfull_until

    def queue(self) -> Queue:
        """What those who wait are, as far as is known."""
        if self.is_overfull:
            return Queue.OVERFULL
        count = len(self._stays)
        if count > BURST_FROM and self._counts.is_burst(time.monotonic()):
            return Queue.BURST
        return Queue.LONG if count > ROOM else Queue.SHORT

    def hardness(self) -> float:
        """The share of those who wait that has to be refused, as far as is known."""
        is_unknown = self.queue() is Queue.BURST or time.monotonic() < self._unknown_until
        return max(HARD_SHARE, self.refused_share) if is_unknown else self.refused_share

    def __len__(self) -> int:
        return len(self._stays)

    def enter(self, visitor: Visitor, client: Client, path: str) -> None:
        """Wait for a turn."""
        now = time.monotonic()
        self._stays[visitor] = stay = _Stay(client, path in WRITE_PATHS, now)
        self._line(stay).join(visitor, stay)
        self._counts.add(now, len(self._stays))
        room = ROOM if self._pressure.is_standing else ROOM_BURST
        room = ROOM_OVERFULL if self.is_overfull or self._counts.grow() else room
        if len(self._stays) > room:
            self._keep(room)

    def _keep(self, room: int) -> None:
        """More comes than leaves: so many may stay, and those who are late have to leave first."""
        now = time.monotonic()
        if not self.is_overfull:
            self._unknown_until = now + UNKNOWN_S
        self._overfull_until = now + OVERFULL_S
        if self._refuse_late(LATE_AT_ONCE):
            self._refuse_least_wanted(len(self._stays) - room)

    def leave(self, visitor: Visitor) -> bool:
        """Whether it has waited here, which it no longer does."""
        return self._taken_out(visitor) is not None

    def _line(self, stay: _Stay) -> _Line:
        return self._writes if stay.is_write else self._reads

    def _taken_out(self, visitor: Visitor) -> _Stay | None:
        stay = self._stays.pop(visitor, None)
        if stay is not None:
            self._line(stay).leave(visitor, stay)
        return stay

    def look(self) -> None:
        """See whether those who wait are a burst, and give turns. To be called at intervals."""
        over = self._admitted + self._refused
        more = (self._refused / over if over else 0.0) - self.refused_share
        self.refused_share += (SHARE_STEP_UP if more > 0 else SHARE_STEP_DOWN) * more
        self._admitted = self._refused = 0
        if self.is_overfull and self.refused_share > SHARE_OVERFULL:
            self._overfull_until = time.monotonic() + OVERFULL_S
        count, before = len(self._stays), self._seen
        self._looks_full = self._looks_full + 1 if count > ROOM_CALM else 0
        self._seen = count
        if self._looks_full >= BURST_LOOKS and count >= before:
            self._keep(ROOM_OVERFULL)
        self._refuse_late(LATE_IN_A_LOOK)
        self.admit()

    def admit_soon(self) -> None:
        """Give turns in the next turn of the event loop, when a request has given up its place in the middle of it."""
        if self._stays and not self._is_about_to_admit:
            self._is_about_to_admit = True
            asyncio.get_running_loop().call_soon(self.admit)

    def admit(self) -> None:
        """Give turns while there are places, and refuse those who have waited too long. To be called when a request has
        been answered."""
        self._is_about_to_admit = False
        stays = self._stays
        if not stays:
            return
        self._refuse_late(LATE_AT_ONCE)
        while stays and self._pressure.has_place():
            visitor = self._next()
            if visitor is None:
                return
            self._taken_out(visitor)
            self._admitted += 1
            visitor.go_on()

    def _refuse_late(self, count: int) -> bool:
        """Refuse so many at most of those who have waited too long, the oldest first. Whether there are no more."""
        since_min = self._since_min()
        while self._stays:
            visitor, stay = next(iter(self._stays.items()))  # the oldest
            if stay.since > since_min:
                return True
            if not count:
                return False
            count -= 1
            self._refuse(visitor)
        return True

    def _since_min(self) -> float:
        """Who came then or before has waited too long."""
        return time.monotonic() - (WAIT_OVERFULL_MAX_S if self.is_overfull else WAIT_MAX_S)

    def _next(self) -> Visitor | None:
        """Whose turn it is; None if there is no place for those that wait."""
        newest = self.queue() in (Queue.BURST, Queue.OVERFULL)
        since_min = self._since_min() if newest else -math.inf
        read = self._reads.first(since_min, newest=newest) if self._pressure.has_place_for_read() else None
        write = self._writes.first(since_min, newest=newest) if self._pressure.has_place_for_write() else None
        found = [one for one in (read, write) if one is not None]
        return min(found, key=lambda one: one[:2])[2] if found else None

    def _refuse_least_wanted(self, count: int) -> None:
        """Refuse so many, each of the client with the most requests here: its writes, the oldest first, then others."""
        by_client: dict[Client, list[Visitor]] = {}
        for is_write in (False, True):
            for visitor, stay in reversed(self._stays.items()):
                if stay.is_write == is_write:
                    by_client.setdefault(stay.client, []).append(visitor)
        for _ in range(count):
            self._refuse(max(by_client.values(), key=len).pop())

    def _refuse(self, visitor: Visitor) -> None:
        waiting = len(self._stays)
        stay = self._taken_out(visitor)
        assert stay is not None
        self._refused += 1
        visitor.turn_away(self._pressure.gave_up("writes" if stay.is_write else "reads", waiting))
