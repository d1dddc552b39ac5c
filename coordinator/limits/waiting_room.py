"""The queue in which requests wait, unread, while the maximum number of requests is at work.

It is better to have few requests at work and a short wait for the newest ones than many requests at work that are all
late. But a closed loop of clients, such as a dashboard or a benchmark, is not an overload, and none of its requests
should be refused. Requests therefore wait here in order of arrival (first in, first out) as long as there is room.

If there is no room, or if the queue keeps growing, more requests arrive than finish: an overload. From then on the
order is last in, first out, since the client of the newest request is the most likely to be still waiting, and the
oldest requests are refused. Responses come at once or not at all (B. Maurer, "Fail at Scale", ACM Queue 13/8, 2015).

A burst may be over before it becomes an overload. For a moment many requests may wait; none is refused, and the newest
goes first. If their number has neither fallen nor grown after that moment, they are a closed loop, and each gets its
turn.

The client with the fewest requests at work has the next turn, and the client with the most requests in the queue is
refused first, so that a client that sends many requests does not keep others out.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from coordinator.limits.clients import Client
from coordinator.limits.pressure import Pressure, Queue
from coordinator.limits.request_kinds import WRITE_PATHS

ROOM_CALM, ROOM, ROOM_OVERFULL = 512, 64, 16
"""How many requests may wait for longer than a moment: ROOM_CALM while waits are short, ROOM under pressure,
ROOM_OVERFULL while more requests arrive than finish."""
ROOM_BURST = 4096
"""How many requests may wait for a moment: more than the followers of the log that reconnect at the same time after a
restart of the coordinator."""
BURST_LOOKS = 5
"""If more than ROOM_CALM requests wait in this many consecutive looks, which are 0.1 s apart, they are not a burst,
unless their number fell between the last two looks."""
COUNT_S = 0.05
"""The interval at which waiting requests are counted while requests arrive."""
GROWTH, GROWTH_COUNTS = 24, (3, 10)
"""More requests arrive than finish if more than ROOM wait and, for one of the spans in GROWTH_COUNTS (in counts), their
number grew by at least GROWTH in each of the last two spans. A burst or a closed loop grows only once."""
BURST_FROM = 24
"""More than this many requests that began to wait a moment ago are a burst."""
BURST_S = (2 * min(GROWTH_COUNTS) + 2) * COUNT_S
"""For this long after a burst began, the newest request has the next turn. By then it is known whether more requests
arrive than finish, even if counts are somewhat late. Otherwise an overload would have all its writes admitted at once,
the oldest first."""
OVERFULL_S = 1.0
"""For this long after a request found no room, an overload is assumed: more requests arrive than finish."""
WAIT_MAX_S, WAIT_OVERFULL_MAX_S = 2.0, 0.006
"""A request that has waited this long is refused. The second value applies while more requests arrive than finish."""
LATE_AT_ONCE, LATE_IN_A_LOOK = 4, 256
"""The most requests that are refused for waiting too long: LATE_AT_ONCE whenever a request arrives or has been
answered, LATE_IN_A_LOOK in each look. When a burst turns out to be an overload, several hundred requests are late.
Refusing them takes as long as answering a few dozen, and the requests at work would wait for that."""
SHARE_STEP_UP, SHARE_STEP_DOWN = 0.5, 0.2
"""Weights with which the refused share moves, in each look, towards its value since the last look. It moves up faster,
since mistaking a hard overload for a mild one is worse than the opposite."""
HARD_SHARE, UNKNOWN_S = 0.5, 0.2
"""In a burst, and for UNKNOWN_S after it has turned out to be an overload, it is unknown how hard the overload is.
HARD_SHARE is then assumed to be the share of requests that must be refused."""
SHARE_OVERFULL = 0.03
"""An overload is assumed to continue while more than this share is refused. During a stall, fewer are refused."""


class Visitor(Protocol):
    """A connection with one complete, unread request."""

    def go_on(self) -> None:
        """Begin with the request: it is its turn."""

    def turn_away(self, why: str) -> None:
        """Refuse the request."""


@dataclass(frozen=True, slots=True)
class _Stay:
    client: Client
    is_write: bool
    since: float


class _Line:
    """The waiting reads or the waiting writes, by client, in the order of arrival."""

    def __init__(self) -> None:
        self._by_client: dict[Client, dict[Visitor, float]] = {}  # client → visitor → when it arrived

    def join(self, visitor: Visitor, stay: _Stay) -> None:
        self._by_client.setdefault(stay.client, {})[visitor] = stay.since

    def leave(self, visitor: Visitor, stay: _Stay) -> None:
        visitors = self._by_client[stay.client]
        del visitors[visitor]
        if not visitors:
            del self._by_client[stay.client]

    def first(self, since_min: float, *, newest: bool) -> tuple[int, float, Visitor] | None:
        """The visitor that is next in turn, of those that arrived after `since_min`: (requests at work of its client,
        its rank by time, the visitor)."""
        best = None
        for client, visitors in self._by_client.items():
            visitor = next(reversed(visitors) if newest else iter(visitors))
            since = visitors[visitor]
            if since <= since_min:
                continue
            rank = client.requests, -since if newest else since
            if best is None or rank < best[:2]:
                best = *rank, visitor
        return best


class _Counts:
    """The number of waiting requests, at intervals, since requests have been arriving without a pause."""

    def __init__(self) -> None:
        self._counts: deque[int] = deque(maxlen=2 * max(GROWTH_COUNTS) + 1)
        self._counted = 0.0
        self._many_since = math.inf

    def add(self, now: float, count: int) -> None:
        """Note that `count` requests wait. Call this for each request that arrives."""
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
        """Whether many requests began to wait a moment ago."""
        return now - self._many_since < BURST_S

    def grow(self) -> bool:
        """Whether the number of waiting requests keeps growing."""
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
    """The queue of waiting requests. For the event loop's thread only."""

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
        """The share of refused requests among those that no longer wait, as a moving average over the last looks."""

    @property
    def is_overfull(self) -> bool:
        """Whether more requests arrive than finish, as far as is known."""
        return time.monotonic() < self._overfull_until

    def queue(self) -> Queue:
        """What the waiting requests are: a short or long queue, a burst, or an overload."""
        if self.is_overfull:
            return Queue.OVERFULL
        count = len(self._stays)
        if count > BURST_FROM and self._counts.is_burst(time.monotonic()):
            return Queue.BURST
        return Queue.LONG if count > ROOM else Queue.SHORT

    def hardness(self) -> float:
        """The share of waiting requests that must be refused, as far as is known."""
        is_unknown = self.queue() is Queue.BURST or time.monotonic() < self._unknown_until
        return max(HARD_SHARE, self.refused_share) if is_unknown else self.refused_share

    def __len__(self) -> int:
        return len(self._stays)

    def enter(self, visitor: Visitor, client: Client, path: str) -> None:
        """Have a visitor wait for its turn."""
        now = time.monotonic()
        self._stays[visitor] = stay = _Stay(client, path in WRITE_PATHS, now)
        self._line(stay).join(visitor, stay)
        self._counts.add(now, len(self._stays))
        room = ROOM if self._pressure.is_standing else ROOM_BURST
        room = ROOM_OVERFULL if self.is_overfull or self._counts.grow() else room
        if len(self._stays) > room:
            self._keep(room)

    def _keep(self, room: int) -> None:
        """More requests arrive than finish. Keep only `room` of them, and refuse those that are late first."""
        now = time.monotonic()
        if not self.is_overfull:
            self._unknown_until = now + UNKNOWN_S
        self._overfull_until = now + OVERFULL_S
        if self._refuse_late(LATE_AT_ONCE):
            self._refuse_least_wanted(len(self._stays) - room)

    def leave(self, visitor: Visitor) -> bool:
        """Remove a visitor. Returns whether it was waiting here."""
        return self._taken_out(visitor) is not None

    def _line(self, stay: _Stay) -> _Line:
        return self._writes if stay.is_write else self._reads

    def _taken_out(self, visitor: Visitor) -> _Stay | None:
        stay = self._stays.pop(visitor, None)
        if stay is not None:
            self._line(stay).leave(visitor, stay)
        return stay

    def look(self) -> None:
        """Find out whether the waiting requests are a burst, and give turns. Call this at intervals."""
        ended = self._admitted + self._refused
        change = (self._refused / ended if ended else 0.0) - self.refused_share
        self.refused_share += (SHARE_STEP_UP if change > 0 else SHARE_STEP_DOWN) * change
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
        """Give turns in the next iteration of the event loop. For requests that give up their place before they end."""
        if self._stays and not self._is_about_to_admit:
            self._is_about_to_admit = True
            asyncio.get_running_loop().call_soon(self.admit)

    def admit(self) -> None:
        """Give turns while there are places, and refuse requests that have waited too long. Call this when a request
        has been answered."""
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
        """Refuse at most `count` of the requests that have waited too long, the oldest first. Returns whether there are
        no more of them."""
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
        """Requests that arrived at this time or earlier have waited too long."""
        return time.monotonic() - (WAIT_OVERFULL_MAX_S if self.is_overfull else WAIT_MAX_S)

    def _next(self) -> Visitor | None:
        """The visitor whose turn it is; None if there is no place for any of those that wait."""
        newest = self.queue() in (Queue.BURST, Queue.OVERFULL)
        since_min = self._since_min() if newest else -math.inf
        read = self._reads.first(since_min, newest=newest) if self._pressure.has_place_for_read() else None
        write = self._writes.first(since_min, newest=newest) if self._pressure.has_place_for_write() else None
        candidates = [candidate for candidate in (read, write) if candidate is not None]
        return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None

    def _refuse_least_wanted(self, count: int) -> None:
        """Refuse `count` requests, each of the client that has the most requests here: first its writes, the oldest
        first, and then its reads."""
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
