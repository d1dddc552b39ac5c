"""Where requests wait, unread, while as many are at work as may be.

Few at work at a time and a short wait for the newest is better than many at work, all of which are late. But a closed
loop of some tens of clients, such as a dashboard or a benchmark, is no overload, and none of its requests should be
refused. So requests wait here, the oldest first in turn, as long as there is room for them. When there is none, more
comes than leaves. From then on the newest is first in turn, since its client is the likeliest to be still there, and
the oldest is refused: answers come at once or not at all (B. Maurer, "Fail at Scale", ACM Queue 13/8, 2015). A burst
may be over before it is a queue: for a moment many may wait, of whom nobody is refused.

The client with the fewest requests at work has the first turn, and the one with the most here is refused first, so that
one client that sends much does not keep the others out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from coordinator.clients import Client
from coordinator.pressure import WRITE_PATHS, Pressure

ROOM_BURST, ROOM, ROOM_OVERFULL = 512, 64, 16
"""Requests that may wait: for a moment, for as long as it takes, and while more comes than leaves. A turn looks at all
of them, which takes 10 µs for 64 and 0.2 ms for 512."""
OVERFULL_S = 1.0
"""So long after a request found no room, the newest is first in turn."""
WAIT_MAX_S, WAIT_OVERFULL_MAX_S = 2.0, 0.03
"""A request is refused when it has waited so long; the second while more comes than leaves."""
READ_WAIT_MAX_S = 0.1
"""A read waits no longer than this because of other reads alone. If there is an overload, all requests at work are
bounded by then, or soon after."""


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


class WaitingRoom:
    """For the event loop's thread only."""

    def __init__(self, pressure: Pressure) -> None:
        self._pressure = pressure
        self._stays: dict[Visitor, _Stay] = {}  # in the order of their arrival
        self._overfull_until = 0.0

    def __len__(self) -> int:
        return len(self._stays)

    def enter(self, visitor: Visitor, client: Client, path: str) -> None:
        """Wait for a turn."""
        now = time.monotonic()
        self._stays[visitor] = _Stay(client, path in WRITE_PATHS, now)
        room = ROOM if self._pressure.is_standing else ROOM_BURST
        room = ROOM_OVERFULL if now < self._overfull_until else room
        if len(self._stays) > room:
            self._overfull_until = now + OVERFULL_S
            self._refuse_least_wanted(len(self._stays) - room)

    def leave(self, visitor: Visitor) -> bool:
        """Whether it has waited here, which it no longer does."""
        return self._stays.pop(visitor, None) is not None

    def admit(self) -> None:
        """Give turns while there are places, and refuse those who have waited too long. To be called when a request has
        been answered, and at intervals."""
        stays = self._stays
        if not stays:
            return
        self._refuse_late()
        while stays and self._pressure.has_place():
            visitor = self._next()
            if visitor is None:
                return
            del stays[visitor]
            visitor.go_on()

    def _refuse_late(self) -> None:
        now = time.monotonic()
        since_max = now - (WAIT_OVERFULL_MAX_S if now < self._overfull_until else WAIT_MAX_S)
        while self._stays:
            visitor, stay = next(iter(self._stays.items()))  # the oldest
            if stay.since > since_max:
                break
            self._refuse(visitor)

    def _next(self) -> Visitor | None:
        """Whose turn it is; None if all that wait are reads, for which there is no place."""
        stays, now = self._stays, time.monotonic()
        newest_first = len(stays) > ROOM or now < self._overfull_until
        waiting: Iterable[Visitor] = reversed(stays) if newest_first else stays
        if not self._pressure.has_place_for_read():
            since_max = now - READ_WAIT_MAX_S
            waiting = [one for one in waiting if stays[one].is_write or stays[one].since <= since_max]
        return min(waiting, key=lambda visitor: stays[visitor].client.requests, default=None)

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
        stay = self._stays.pop(visitor)
        visitor.turn_away(self._pressure.gave_up("writes" if stay.is_write else "reads", waiting))
