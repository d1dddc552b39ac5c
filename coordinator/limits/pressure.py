"""How overloaded the service is, and what it therefore refuses: by memory, and by how long work waits for its turn.

Work is given up in this order: background work of the workers, heavy queries, writes, and reads last. What tells the
state of the service is never refused.

**Memory.** When less than the reserve is available (TRIPTYCH_MEMORY_RESERVE_BYTES), writes are refused; heavy queries
and background work stop a little earlier. Deletions are not refused, since they may be the way out.

**Waiting.** A call to a worker waits while messages before it are handled, on both sides: the time between call and
reply, less the time in which the worker worked on it. A light query may wait at the gate. A timer that fires late shows
how far the event loop is behind. A burst makes them grow for a moment. If they stay above a target, a queue stands: as
much comes as leaves, and every request waits in vain (K. Nichols, V. Jacobson, "Controlling Queue Delay", 2012). Then
the number of requests at work is bounded, and the bound shrinks until the wait is what it should be: by Little's law,
the number of requests and their wait are proportional. Others wait for their turn (coordinator/limits/waiting_room.py),
and are refused when more come than leave. While their queue is long, reads and writes have a bound each
(coordinator/limits/limiter.py); also when the waits of calls are short, if those who wait for their turn become more
and more.
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
from shared.config import Settings
from shared.errors import Overloaded
from shared.measurements import Latencies
from shared.telemetry import event

TICK_S = 0.1
"""How often the state is looked at."""
STANDING_TICKS = 3
"""A wait above the target for so many ticks in a row is a standing queue; a shorter one is a burst."""
CROWD = 48
"""With so many requests at work, a wait above the target bounds them at once: what they wait for each other they would
also wait if the queue turned out to stand. Nothing is refused before it has stood."""
LIMIT_MIN, LIMIT_MIN_A_WORKER = 8, 4
"""At least so many requests may be at work: enough to keep all processes busy and to share an fsync."""
READS_A_WORKER = 8
"""At most so many fresh reads may be at work at any time: enough to keep all processes busy. Others wait for their turn
where they can be refused cheaply, from the first request of a burst on. Writes are not bounded so: they share an
fsync."""
READS_IN_BURST_A_WORKER = 4
"""In a burst there are so many places for reads, or as many as there would be in an overload, if these are more."""
REFUSED_FROM = 48
"""A request that cannot wait in the waiting room is not refused while fewer are at work, also where the bound is lower.
A closed loop of some tens of clients, such as a dashboard or a benchmark, is no overload, however slow the machine."""
SHRINK_LEAST, SHRINK_MOST = 0.95, 0.6
"""The bound becomes so many times what it was in one tick, at least and at most. The first one has no such limit."""
GROWTH = 1.06
"""The bound grows by this factor in a tick in which the wait is below half of the target: it is gone after some
seconds."""
WRITES_SHARE, HEAVY_SHARE = 0.75, 0.5
RESERVE_SHARE, RESERVE_BYTES_MAX = 0.05, 1 << 30
"""The reserve unless it is set: a share of the machine's memory, but at most so much."""
HEAVY_RESERVES, BACKGROUND_RESERVES = 1.5, 2.0
"""Heavy queries are refused below so many times the reserve, and background work stops."""
RECOVERED = 1.25
"""A level ends when so many times the memory is available below which it begins."""
PAUSE_TICKS = 10
"""Workers are told again after so many ticks that background work is to pause."""


class Level(IntEnum):
    """What is given up, with all that comes before it."""

    NONE = 0
    BACKGROUND = 1
    HEAVY = 2
    WRITES = 3


class Queue(Enum):
    """Those who wait for their turn."""

    SHORT = "some tens at most"
    BURST = "more than a few, since a moment ago"
    LONG = "more than some tens for longer, but they do not become more: a closed loop of many clients"
    OVERFULL = "more come than leave"


COUNTED_HERE = ""
"""The reason of errors that `Pressure.refused` counts."""


class Work(Protocol):
    """The requests that are served."""

    requests_max: int
    requests: int
    """Requests in flight, with heavy queries."""
    announced: int
    """Requests that are about to be in flight."""
    reads: AtWork
    writes: AtWork

    def at_work(self) -> int:
        """All requests in flight or about to be, without heavy queries."""

    def look(self, refused_share: float) -> None:
        """See how many reads and writes should be at work."""


class Pressure:
    """Looks at memory and waits at intervals. For the event loop's thread only."""

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
        self._limit: float | None = None  # None: the wait bounds nothing
        self._limit_min = max(LIMIT_MIN, LIMIT_MIN_A_WORKER * settings.worker_count())
        self._ticks_above = self._ticks_bounded = 0
        self._reads_max = READS_A_WORKER * settings.worker_count()
        self._reads_in_burst = READS_IN_BURST_A_WORKER * settings.worker_count()
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.loop_lag = Latencies()
        """By how much the timer of the event loop was late, ten times a second."""
        self.wait_s = 0.0
        """The longest of the mean waits and the delay of the event loop, in the last tick."""
        self.available_bytes = self._memory.available_bytes()
        self.memory_level = Level.NONE
        self.is_on = False
        """Whether anything may be refused at the moment."""
        self.waiting: Callable[[], int] = lambda: 0
        """How many requests wait for their turn and are not at work yet."""
        self.queue: Callable[[], Queue] = lambda: Queue.SHORT
        """What those who wait for their turn are."""
        self.hardness: Callable[[], float] = lambda: 0.0
        """The share of the requests that wait for their turn that has to be refused, as far as is known."""
        self.looked: Callable[[], None] = lambda: None
        """Called after each look."""
        self.refused: Counter[str] = Counter()
        """Requests refused, by reason."""
        self._refused_before = 0

    def start(self) -> None:
        """Look now, and at intervals from now on."""
        self.look(0.0)
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def limit(self) -> int | None:
        """Requests that may be at work, if a queue stands."""
        return None if self._limit is None else int(self._limit)

    @property
    def level(self) -> Level:
        """What is given up now."""
        if self._limit is None:
            by_queue = Level.BACKGROUND if self.queue() is Queue.OVERFULL else Level.NONE
            return max(self.memory_level, by_queue)
        used = self._wanted() / max(self._limit, REFUSED_FROM)
        by_wait = Level.WRITES if used >= WRITES_SHARE else Level.HEAVY if used >= HEAVY_SHARE else Level.BACKGROUND
        return max(self.memory_level, by_wait)

    @property
    def is_standing(self) -> bool:
        """Whether there has been a bound for long enough for the queue to be no burst."""
        return self._ticks_bounded >= STANDING_TICKS

    def _wanted(self) -> int:
        """Requests that are at work or want to be."""
        return self._work.at_work() + self.waiting()

    # What is refused

    def require(self, path: str) -> None:
        """Raises Overloaded when a request to this path is refused now. To be asked while `is_on`."""
        why = self.refusal(path)
        if why:
            raise Overloaded(why).because(COUNTED_HERE)

    def refusal(self, path: str) -> str:
        """Why a request to this path is refused now, or an empty text. To be asked while `is_on`."""
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
        """Why a request to this path is refused by memory, or an empty text."""
        if self.memory_level >= Level.WRITES and path in WRITE_PATHS:
            return self._refused("memory", self._short_of_memory("writes", 1.0))
        return ""

    def has_to_wait(self, path: str) -> bool:
        """Whether a request to this path must wait for its turn."""
        has_place_by_kind = self.has_place_for_write if path in WRITE_PATHS else self.has_place_for_read
        return not is_state(path) and not (self.has_place() and has_place_by_kind())

    def has_place_for_read(self) -> bool:
        """Whether one read more may be at work beside other reads."""
        return not self._work.reads.fill(min(self._reads_bound(), self._reads_max))

    def _reads_bound(self) -> int:
        """How many reads may be at work, besides the bound at any time."""
        if not self._is_bounded_by_kind():
            return self._reads_max
        limit = self._work.reads.limit
        return max(limit, self._reads_in_burst) if self.queue() is Queue.BURST else limit

    def has_place_for_write(self) -> bool:
        """Whether one write more may be at work beside other writes."""
        return not self._is_bounded_by_kind() or len(self._work.writes) < self._work.writes.limit

    def _is_bounded_by_kind(self) -> bool:
        queue = self.queue()
        return queue in (Queue.BURST, Queue.OVERFULL) or (queue is Queue.LONG and self._limit is not None)

    def has_place(self) -> bool:
        """Whether one request more may be at work beside all others. While the queue is long, only its kind counts."""
        return self._limit is None or self.queue() is not Queue.SHORT or self._work.at_work() < self._limit

    def gave_up(self, what: str, waiting: int) -> str:
        """The text for a request of a kind (reads, writes) that has waited for its turn in vain, beside so many."""
        return self._refused(
            what,
            f"{waiting} requests wait for their turn, the limit until work waits less than "
            f"{self._target_s * 1000:g} ms (TRIPTYCH_QUEUE_WAIT); try again later",
        )

    def allows_heavy(self) -> bool:
        """Whether a heavy query may begin now."""
        if not self.is_on:
            return True
        by_wait = self._limit is None or self._wanted() < max(self._limit, REFUSED_FROM) * HEAVY_SHARE
        return by_wait and self.memory_level < Level.HEAVY

    def require_heavy(self) -> None:
        """Raises Overloaded unless a heavy query may begin now."""
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

    # Looking

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
        """Whether a request that comes now may have to wait or be refused."""
        if not self.is_on and self._work.requests + self._work.announced >= CROWD:
            self._look_at_crowd()
        return self.is_on or self.queue() is not Queue.SHORT or not self.has_place_for_read()

    def _look_at_crowd(self) -> None:
        """Bound the requests at work now if they are a crowd and wait for each other."""
        at_work = self._work.at_work()
        if at_work < CROWD:
            return
        self.wait_s = max(waits.mean_s() for waits in self._waits)
        if self.wait_s > self._target_s:
            self._shrink(at_work)
            self.is_on = True

    def look(self, behind_s: float) -> None:
        """See how things are. `behind_s`: by how much the event loop is late."""
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
