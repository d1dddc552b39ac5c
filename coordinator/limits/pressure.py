"""How overloaded the service is, and what it therefore refuses: by available memory, and by how long work waits.

Work is given up in this order: background work of the workers, heavy queries, writes, and finally reads. Requests about
the state of the service are never refused.

**Memory.** When less than the reserve is available (TRIPTYCH_MEMORY_RESERVE_BYTES), writes are refused; heavy queries
and background work stop a little earlier. Deletions are not refused, since they may free memory.

**Waiting.** There are three measures: how long calls to workers wait behind other messages on both sides (the time from
call to reply without the worker's own time), how long light queries wait at the gate, and how late a timer of the event
loop fires. A burst raises them for a moment. If they stay above a target, there is a standing queue: as many requests
arrive as finish, and every request waits to no purpose (K. Nichols, V. Jacobson, "Controlling Queue Delay", 2012). The
number of requests at work is then bounded, and the bound shrinks until the wait is at its target: by Little's law, the
number of requests and their wait are proportional. Other requests wait for their turn
(coordinator/limits/waiting_room.py) and are refused if more arrive than finish. While their queue is long, reads and
writes have separate bounds (coordinator/limits/limiter.py), even if the waits of calls are short and only the number of
waiting requests grows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Protocol

from coordinator.fanout.calls import Waits
from coordinator.limits.available_memory import Memory
from coordinator.limits.limiter import AtWork
from coordinator.limits.request_kinds import WRITE_PATHS, is_state
from shared.errors import Overloaded
from shared.measurements import Latencies
from shared.settings import Settings
from shared.telemetry import event

TICK_S = 0.1
"""The interval between two measurements of memory and waits."""
STANDING_TICKS = 3
"""A wait above the target for this many consecutive ticks is a standing queue; a shorter one is a burst."""
CROWD = 48
"""With this many requests at work, a wait above the target bounds their number at once. Having them wait here costs
nothing, since they would otherwise wait for each other. None is refused before the queue is a standing one."""
LIMIT_MIN, LIMIT_MIN_A_WORKER = 8, 4
"""At least this many requests may be at work: enough to keep all processes busy and to share an fsync."""
READS_A_WORKER = 8
"""At most this many fresh reads may be at work at any time: enough to keep all processes busy. Even at the beginning of
a burst, other reads wait for their turn in the waiting room, where they can be refused cheaply. Writes have no such
bound, since they share an fsync."""
READS_IN_BURST_A_WORKER = 4
"""During a burst, reads have this many places, or as many as they would have in an overload if that is more."""
REFUSED_FROM = 48
"""A request that cannot wait in the waiting room is not refused while fewer requests than this are at work, even if the
bound is lower. A closed loop of a few dozen clients, such as a dashboard or a benchmark, is not an overload, however
slow the machine is."""
SHRINK_LEAST, SHRINK_MOST = 0.95, 0.6
"""The factors by which the bound shrinks in one tick, at least and at most. The first step may be larger."""
GROWTH = 1.06
"""The bound grows by this factor in each tick in which the wait is below half of the target. It disappears after some
seconds."""
WRITES_SHARE, HEAVY_SHARE = 0.75, 0.5
RESERVE_SHARE, RESERVE_BYTES_MAX = 0.05, 1 << 30
"""The default reserve: a share of the machine's memory, up to a maximum."""
HEAVY_RESERVES, BACKGROUND_RESERVES = 1.5, 2.0
"""Multiples of the reserve below which heavy queries are refused and background work stops."""
RECOVERED = 1.25
"""A level ends when this multiple of the memory at which it begins is available."""
PAUSE_TICKS = 10
"""Workers are told to pause background work once in this many ticks."""


class Level(IntEnum):
    """What is given up. Each level includes those before it."""

    NONE = 0
    BACKGROUND = 1
    HEAVY = 2
    WRITES = 3


class Queue(Enum):
    """The state of the queue in the waiting room."""

    SHORT = "a few dozen requests at most"
    BURST = "many requests, which began to wait a moment ago"
    LONG = "many requests for some time, but not a growing number: a closed loop of many clients"
    OVERFULL = "more requests arrive than finish"


COUNTED_HERE = ""
"""The reason of errors that `Pressure.refused` counts."""


class Work(Protocol):
    """Counts the requests that are served."""

    requests_max: int
    requests: int
    """Requests in flight, including heavy queries."""
    announced: int
    """Requests that are about to be in flight."""
    reads: AtWork
    writes: AtWork

    def at_work(self) -> int:
        """The number of requests that are in flight or about to be, without heavy queries."""

    def look(self, refused_share: float) -> None:
        """Adjust how many reads and writes should be at work."""


class Pressure:
    """Measures memory and waits at intervals. For the event loop's thread only."""

    def __init__(
        self,
        settings: Settings,
        work: Work,
        waits: Sequence[Waits],
        pause_background: Callable[[], None],
        memory: Memory | None = None,
    ) -> None:
        self._memory = memory or Memory()
        self._work = work
        self._waits = waits
        self._pause_background = pause_background
        self._target_s = settings.queue_wait_ms / 1000
        total = self._memory.total_bytes()
        self.reserve_bytes = settings.memory_reserve_bytes or min(int(total * RESERVE_SHARE), RESERVE_BYTES_MAX)
        self._limit: float | None = None  # None: there is no bound
        self._limit_min = max(LIMIT_MIN, LIMIT_MIN_A_WORKER * settings.worker_count())
        self._ticks_above = self._ticks_bounded = 0
        self._reads_max = READS_A_WORKER * settings.worker_count()
        self._reads_in_burst = READS_IN_BURST_A_WORKER * settings.worker_count()
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.loop_lag = Latencies()
        """The lateness of the event loop's timer, measured ten times a second."""
        self.wait_s = 0.0
        """The longest of the mean waits and of the event loop's lateness in the last tick."""
        self.available_bytes = self._memory.available_bytes()
        self.memory_level = Level.NONE
        self.is_on = False
        """Whether anything may be refused at the moment."""
        self.waiting: Callable[[], int] = lambda: 0
        """Returns the number of requests in the waiting room."""
        self.queue: Callable[[], Queue] = lambda: Queue.SHORT
        """Returns the state of the queue in the waiting room."""
        self.hardness: Callable[[], float] = lambda: 0.0
        """Returns the share of waiting requests that must be refused, as far as is known."""
        self.looked: Callable[[], None] = lambda: None
        """Called after each look."""
        self.refused: Counter[str] = Counter()
        """Requests refused, by reason."""
        self._refused_before = 0

    def start(self) -> None:
        """Start to measure at intervals, beginning now."""
        self.look(0.0)
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def limit(self) -> int | None:
        """The bound on requests at work; None if there is none."""
        return None if self._limit is None else int(self._limit)

    @property
    def level(self) -> Level:
        """What is given up at the moment."""
        if self._limit is None:
            by_queue = Level.BACKGROUND if self.queue() is Queue.OVERFULL else Level.NONE
            return max(self.memory_level, by_queue)
        used = self._wanted() / max(self._limit, REFUSED_FROM)
        by_wait = Level.WRITES if used >= WRITES_SHARE else Level.HEAVY if used >= HEAVY_SHARE else Level.BACKGROUND
        return max(self.memory_level, by_wait)

    @property
    def is_standing(self) -> bool:
        """Whether there has been a bound for so long that the queue is not a burst."""
        return self._ticks_bounded >= STANDING_TICKS

    def _wanted(self) -> int:
        """The number of requests that are at work or wait for it."""
        return self._work.at_work() + self.waiting()

    # What is refused

    def require(self, path: str) -> None:
        """Raises Overloaded if a request to this path is refused at the moment. Call this only while `is_on`."""
        why = self.refusal(path)
        if why:
            raise Overloaded(why).because(COUNTED_HERE)

    def refusal(self, path: str) -> str:
        """Why a request to this path is refused at the moment; "" if it is not. Call this only while `is_on`."""
        why = self.memory_refusal(path)
        if why or self._limit is None or is_state(path):
            return why
        is_write = path in WRITE_PATHS
        limit = max(self._limit, REFUSED_FROM) * (WRITES_SHARE if is_write else 1.0)
        if self._work.at_work() < limit:
            return ""
        what = "writes" if is_write else "reads"
        return self._refused(what, self._queue_stands(what, int(limit)))

    def memory_refusal(self, path: str) -> str:
        """Why a request to this path is refused for lack of memory; "" if it is not."""
        if self.memory_level >= Level.WRITES and path in WRITE_PATHS:
            return self._refused("memory", self._short_of_memory("writes", 1.0))
        return ""

    def has_to_wait(self, path: str) -> bool:
        """Whether a request to this path must wait for its turn."""
        has_place_by_kind = self.has_place_for_write if path in WRITE_PATHS else self.has_place_for_read
        return not is_state(path) and not (self.has_place() and has_place_by_kind())

    def has_place_for_read(self) -> bool:
        """Whether one more read may be at work, considering other reads."""
        return not self._work.reads.fill(min(self._reads_bound(), self._reads_max))

    def _reads_bound(self) -> int:
        """How many reads may be at work in the current state of the queue; `_reads_max` applies in addition."""
        if not self._is_bounded_by_kind():
            return self._reads_max
        limit = self._work.reads.limit
        return max(limit, self._reads_in_burst) if self.queue() is Queue.BURST else limit

    def has_place_for_write(self) -> bool:
        """Whether one more write may be at work, considering other writes."""
        return not self._is_bounded_by_kind() or len(self._work.writes) < self._work.writes.limit

    def _is_bounded_by_kind(self) -> bool:
        queue = self.queue()
        return queue in (Queue.BURST, Queue.OVERFULL) or (queue is Queue.LONG and self._limit is not None)

    def has_place(self) -> bool:
        """Whether one more request may be at work, considering all others. While the queue is long, only the bounds of
        reads and writes apply."""
        return self._limit is None or self.queue() is not Queue.SHORT or self._work.at_work() < self._limit

    def gave_up(self, what: str, waiting: int) -> str:
        """The error text for one of the `what` (reads, writes) whose turn did not come, while `waiting` requests wait.
        Counts the refusal."""
        return self._refused(
            what,
            f"{waiting} requests wait for their turn, the limit until work waits less than "
            f"{self._target_s * 1000:g} ms (TRIPTYCH_QUEUE_WAIT); try again later",
        )

    def allows_heavy(self) -> bool:
        """Whether a heavy query may begin at the moment."""
        if not self.is_on:
            return True
        by_wait = self._limit is None or self._wanted() < max(self._limit, REFUSED_FROM) * HEAVY_SHARE
        return by_wait and self.memory_level < Level.HEAVY

    def require_heavy(self) -> None:
        """Raises Overloaded unless a heavy query may begin at the moment."""
        if self.allows_heavy():
            return
        if self.memory_level >= Level.HEAVY or self._limit is None:
            raise Overloaded(self._refused("memory", self._short_of_memory("heavy queries", HEAVY_RESERVES))).because(
                COUNTED_HERE
            )
        limit = int(max(self._limit, REFUSED_FROM) * HEAVY_SHARE)
        raise Overloaded(self._refused("heavy", self._queue_stands("heavy queries", limit))).because(COUNTED_HERE)

    def _refused(self, reason: str, text: str) -> str:
        self.refused[reason] += 1
        return text

    def _short_of_memory(self, what: str, reserves: float) -> str:
        return (
            f"{self.available_bytes} bytes of memory are available; {what} are accepted from "
            f"{int(reserves * self.reserve_bytes * RECOVERED)} bytes on (TRIPTYCH_MEMORY_RESERVE_BYTES is "
            f"{self.reserve_bytes}); try again later"
        )

    def _queue_stands(self, what: str, limit: int) -> str:
        return (
            f"{limit} requests or more are at work or wait for that, the limit for {what} until work waits less than "
            f"{self._target_s * 1000:g} ms for its turn (TRIPTYCH_QUEUE_WAIT); try again later"
        )

    # Measuring

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + TICK_S
        self._timer = loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        try:
            self.look(asyncio.get_running_loop().time() - self._due)
        finally:
            self._schedule()

    def bounds_now(self) -> bool:
        """Whether a request that arrives now may have to wait or be refused."""
        if not self.is_on and self._work.requests + self._work.announced >= CROWD:
            self._look_at_crowd()
        return self.is_on or self.queue() is not Queue.SHORT or not self.has_place_for_read()

    def _look_at_crowd(self) -> None:
        """Bound the requests at work at once if they are a crowd and wait for each other."""
        at_work = self._work.at_work()
        if at_work < CROWD:
            return
        self.wait_s = max(waits.mean_s() for waits in self._waits)
        if self.wait_s > self._target_s:
            self._shrink(at_work)
            self.is_on = True

    def look(self, behind_s: float) -> None:
        """Measure, and set the bound and the level. `behind_s`: by how much the event loop is late."""
        self._work.look(self.hardness())
        self.loop_lag.add(behind_s)
        self.wait_s = max([behind_s, *(waits.taken() for waits in self._waits)])
        self._look_at_memory()
        self._look_at_waits()
        self._ticks_bounded = 0 if self._limit is None else self._ticks_bounded + 1
        is_overfull = self.queue() is Queue.OVERFULL
        self.is_on = is_overfull or self._limit is not None or self.memory_level > Level.NONE
        if self.is_on:
            if self._ticks % PAUSE_TICKS == 0:
                self._pause_background()
            self._ticks += 1
        else:
            self._ticks = 0
        self.looked()

    def _look_at_memory(self) -> None:
        self.available_bytes = available = self._memory.available_bytes()
        level = Level.NONE
        for candidate, reserves in (
            (Level.BACKGROUND, BACKGROUND_RESERVES),
            (Level.HEAVY, HEAVY_RESERVES),
            (Level.WRITES, 1.0),
        ):
            least = reserves * self.reserve_bytes * (RECOVERED if self.memory_level >= candidate else 1.0)
            if available < least:
                level = candidate
        if level != self.memory_level:
            event(
                logging.WARNING if level > self.memory_level else logging.INFO,
                "memory is short" if level else "memory is no longer short",
                stopped=_stopped(level),
                available=available,
                reserve=self.reserve_bytes,
            )
        self.memory_level = level

    def _look_at_waits(self) -> None:
        if self.wait_s > self._target_s:
            self._ticks_above += 1
            if self._limit is not None or self._ticks_above >= STANDING_TICKS:
                self._shrink(self._work.at_work())
            return
        self._ticks_above = 0
        if self._limit is None or self.wait_s > self._target_s / 2 or self.queue() is not Queue.SHORT:
            return
        self._limit *= GROWTH
        if self._limit >= self._work.requests_max:
            self._limit = None
            refused = self.refused.total() - self._refused_before
            event(logging.INFO, "overload has ended", wait_ms=_ms(self.wait_s), refused=refused)

    def _shrink(self, at_work: int) -> None:
        if self._limit is None:
            self._refused_before = self.refused.total()
            event(
                logging.WARNING,
                "overload: work has to wait for its turn",
                wait_ms=_ms(self.wait_s),
                target_ms=_ms(self._target_s),
                at_work=at_work,
            )
        used = at_work if self._limit is None else min(at_work, self._limit)
        most = 0.0 if self._limit is None else SHRINK_MOST
        factor = min(max(self._target_s / self.wait_s, most), SHRINK_LEAST)
        self._limit = max(used * factor, self._limit_min)


def _stopped(level: Level) -> str:
    names = {Level.BACKGROUND: "background work", Level.HEAVY: "heavy queries", Level.WRITES: "writes"}
    return ", ".join(name for stopped, name in names.items() if stopped <= level) or "nothing"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
