"""Which queries run now: a few heavy ones at a time, and light ones beside them.

Whether a query is heavy is seen when it runs. While a heavy place is free, a query takes it and may use all that one
query may use. When all are taken, it runs as a light one, with little processor time and memory. If these do not
suffice, it stops and waits for a heavy place. So a light query never waits for heavy ones. Clients that wait take
turns, however many requests each of them has.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import psutil

from coordinator.fanout.calls import Waits
from shared.errors import DeadlineExceeded, Overloaded, TooHeavy
from shared.process.array_memory import Account

T = TypeVar("T")

LIGHT_PLACES = 64
"""Light queries wait for their turn with all other reads, before they are read (coordinator/limits/waiting_room.py).
This bounds those that could not wait there, such as pipelined ones."""
TRIAL_PLACES = 2
"""For queries of which nobody knows whether they are light ones. They must not keep workers from those that are light,
and each that is heavy after all has had the time of a light one for nothing."""
HEAVY_PLACES_MAX = 2
"""Each worker has as many threads for heavy queries."""
LIGHT_PROCESSOR_S = 0.005
"""Processor time of a light query, in each worker and in the coordinator, on a machine of usual speed
(`coordinator.queries.calibration`)."""
WAITING_MAX = 512
"""Queries that may wait for a place."""
LIGHT_WAIT_MAX_S = 2.0
"""How long a query waits for a light place. A longer wait means that the machine cannot keep up, and a refusal at once
is worth more than a late answer."""
HEAVY_WAIT_MAX_S = 30.0
"""How long a query waits for a heavy place. Most clients, such as Grafana, have given up by then."""
SENT_BYTES_MAX = 128 << 20
"""What answers hold that are being sent: past it no further heavy query begins. What a client does not take goes to a
file and counts no more (coordinator/http/streaming.py)."""
KNOWN_MAX = 1024
"""Queries that are remembered as heavy, so that they need not be tried as light ones."""

KNOWN_RESTRAINED_S = 5.0
"""While heavy queries are refused, a query is tried as a light one again after this time: the first query after a
start, which loads kernels, must not be refused for good."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a query may use. `processor_s`: of each thread that works on it, 0 is no bound."""

    is_light: bool
    processor_s: float


LIGHT, HEAVY = Place(True, LIGHT_PROCESSOR_S), Place(False, 0.0)


def heavy_places(query_bytes_max: int, queries_bytes_max: int) -> int:
    """How many heavy queries may run at once, so that together they stay within `queries_bytes_max` (0: a quarter of
    the machine's memory)."""
    together = queries_bytes_max or psutil.virtual_memory().total // 4
    return max(1, min(HEAVY_PLACES_MAX, together // query_bytes_max))


class Places:
    """A number of places, given to clients in turn. For the event loop's thread only."""

    def __init__(self, count: int) -> None:
        self.free = count
        self.waiting = 0
        self._queues: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._since: dict[asyncio.Future[None], float] = {}  # when each of those that wait came, in this order

    @property
    def longest_wait_s(self) -> float:
        """How long the query that came first of those that wait has waited; 0 when none waits."""
        return time.monotonic() - next(iter(self._since.values())) if self._since else 0.0

    def take_now(self) -> bool:
        """Whether a place was free, and is taken now."""
        if not self.free:
            return False
        self.free -= 1
        return True

    async def take(self, client: Hashable, within_s: float) -> None:
        """Wait for a place. Raises Overloaded when too many wait, TimeoutError."""
        if self.take_now():
            return
        if self.waiting >= WAITING_MAX:
            text = f"{self.waiting} queries wait for others to end, the limit is {WAITING_MAX}"
            raise Overloaded(text).because("queries_waiting")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self.waiting += 1
        self._since[turn] = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give()  # it was given one at the same moment
            else:
                self._leave(client, turn)
            raise
        finally:
            del self._since[turn]

    def give(self) -> None:
        """Give a place back: to the client whose turn it is."""
        while self._queues:
            client, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._queues[client] = queue  # behind the others
            self.waiting -= 1
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1

    def _leave(self, client: Hashable, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(client)
        if queue is None or turn not in queue:
            return
        queue.remove(turn)
        self.waiting -= 1
        if not queue:
            del self._queues[client]


class Restraint(Protocol):
    """What keeps heavy queries from beginning while the service is overloaded (coordinator/limits/pressure.py)."""

    def allows_heavy(self) -> bool:
        """Whether a heavy query may begin now."""

    def require_heavy(self) -> None:
        """Raises Overloaded unless a heavy query may begin now."""


class Gate:
    """Runs queries when there is a place for them. For the event loop's thread only."""

    def __init__(self, heavy_places: int) -> None:
        self.light = Places(LIGHT_PLACES)
        self.trials = Places(TRIAL_PLACES)
        self.heavy = Places(heavy_places)
        self._heavy_places = heavy_places
        self._light = LIGHT
        self._known: OrderedDict[Hashable, float] = OrderedDict()  # when it was last seen to be heavy
        self.restraint: Restraint | None = None
        self.waits = Waits()
        """Of queries for a light place."""
        self._sending: set[Account] = set()
        self._sent = asyncio.Event()

    def calibrate(self, slowness: float) -> None:
        """Give light queries so many times the processor time, because the same work takes so much longer here."""
        self._light = replace(LIGHT, processor_s=LIGHT_PROCESSOR_S * slowness)

    @property
    def heavy_places(self) -> int:
        """How many heavy queries may run at once."""
        return self._heavy_places

    def heavy_queries(self) -> int:
        """Queries that run in a heavy place or wait for one, or wait to be tried: light requests do not wait for
        them."""
        return self._heavy_places - self.heavy.free + self.heavy.waiting + self.trials.waiting

    async def run(
        self,
        client: Hashable,
        query: Hashable,
        deadline: float,
        attempt: Callable[[Place], Awaitable[T]],
        *,
        is_light: bool = False,
        is_heavy: bool = False,
        is_slow: Callable[[], None] = lambda: None,
    ) -> T:
        """What `attempt` returns. It is called a second time when the first raises TooHeavy. `query` tells the same
        query from others, and is remembered; `deadline` is of `time.monotonic()`. `is_light`: it is expected to be a
        light one, and leaves the heavy places to others; `is_heavy`: it is not worth trying as a light one. `is_slow`
        is called when it has to wait for a heavy place, or to be tried.

        Raises what `attempt` raises, Overloaded when too many wait, DeadlineExceeded.
        """
        restraint = self.restraint
        is_restrained = restraint is not None and not restraint.allows_heavy()
        was_heavy = self._is_known(query, KNOWN_RESTRAINED_S if is_restrained else float("inf"))
        prefers_light = is_light and not was_heavy and self.light.free > 0
        if prefers_light or is_restrained or self._is_full() or not self.heavy.take_now():
            if not is_heavy and not was_heavy:
                places = self.light if is_light else self.trials
                if is_light:
                    await self._take_light(client, deadline)
                elif not places.take_now():
                    is_slow()
                    await self._wait(places, client, deadline, LIGHT_WAIT_MAX_S, "light")
                try:
                    return await attempt(self._light)
                except TooHeavy:
                    self._remember(query)
                finally:
                    places.give()
            if restraint is not None:
                restraint.require_heavy()
            is_slow()
            await self._wait(self.heavy, client, deadline, HEAVY_WAIT_MAX_S, "heavy")
        started_at = time.monotonic()
        try:
            if self._is_full():
                await self._room(deadline)
            return await attempt(HEAVY)
        finally:
            self.heavy.give()
            if time.monotonic() - started_at < self._light.processor_s:
                self._known.pop(query, None)

    async def _take_light(self, client: Hashable, deadline: float) -> None:
        """Take a light place. Raises Overloaded, or DeadlineExceeded when the query's own time ends first."""
        if self.light.take_now():
            self.waits.add(0.0)
            return
        waits_from = time.monotonic()
        try:
            await self._wait(self.light, client, deadline, LIGHT_WAIT_MAX_S, "light")
        finally:
            self.waits.add((time.monotonic() - waits_from) * 1000)

    async def _wait(self, places: Places, client: Hashable, deadline: float, wait_max_s: float, kind: str) -> None:
        """Take a place. Raises Overloaded, or DeadlineExceeded when the query's own time ends first."""
        within_s = deadline - time.monotonic()
        try:
            await places.take(client, max(0.0, min(wait_max_s, within_s)))
        except TimeoutError:
            if within_s > wait_max_s:
                raise Overloaded(
                    f"the query waited {wait_max_s:g} s for other {kind} ones to end, the limit, and "
                    f"{places.waiting} more wait; try again later"
                ).because("queries_waiting") from None
            raise _late(within_s, places) from None

    @contextmanager
    def sending(self, account: Account) -> Iterator[None]:
        """While the context lasts, an answer is sent that holds what is in the account."""
        self._sending.add(account)
        try:
            yield
        finally:
            self._sending.remove(account)
            self._sent.set()

    def _is_full(self) -> bool:
        sending = self._sending
        return bool(sending) and sum(account.used_bytes for account in sending) > SENT_BYTES_MAX

    async def _room(self, deadline: float) -> None:
        """Wait until the answers that are being sent hold little enough. Raises DeadlineExceeded."""
        within_s = max(0.0, deadline - time.monotonic())
        try:
            async with asyncio.timeout(within_s):
                while self._is_full():
                    self._sent.clear()
                    await self._sent.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the query waited {within_s:.3g} s for the answers of others, which hold more than {SENT_BYTES_MAX} "
                "bytes, to be read by their clients; try again later"
            ) from None

    def _is_known(self, query: Hashable, within_s: float) -> bool:
        """Whether the query was seen to be heavy within this time."""
        seen_at = self._known.get(query)
        return seen_at is not None and time.monotonic() - seen_at < within_s

    def _remember(self, query: Hashable) -> None:
        self._known[query] = time.monotonic()
        self._known.move_to_end(query)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)


def _late(within_s: float, places: Places) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the query waited {max(0.0, within_s):.3g} s for others to end, and {places.waiting} more wait; "
        "try again later"
    )
