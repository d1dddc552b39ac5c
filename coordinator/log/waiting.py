"""Batches that wait for a group: their order, when they are due, and the deadlines of their answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.log.records import Append
from shared.errors import DeadlineExceeded
from shared.wire import Frame

SMALL_RECORDS = 500
SMALL_BYTES = 64 << 10
FEW_BATCHES = 8
LARGE_RECORDS = 4000
LARGE_BYTES = 512 << 10
"""While more than FEW_BATCHES batches of a queue are under way, or SMALL_RECORDS records, or SMALL_BYTES, the queue
waits until it holds as many records or bytes as are under way, at least SMALL_ and at most LARGE_ ones. A message costs
the processes together as much as some 500 records, however little it contains, so under load, fewer and larger messages
are faster for all requests. Without load, no request waits."""

HOLD_S = 0.001
"""Most clients that were answered together send their next append at once. So after a group of more than FEW_BATCHES
batches, the queue waits for as many batches as were in the group and waited behind it. It waits for at most this time,
and not if its records or bytes justify a message already (SMALL_RECORDS, SMALL_BYTES)."""

ORDER_WAIT_FACTOR = 3
"""An append waits in the queue, for the shards, and for the groups before it: each for at most the write timeout."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A batch in a queue or under way. `blocks`: each shard's part of the records (shared.log.blocks). `answer`: the
    batch's first number once it is stored for good; an error when nothing of it will ever be read, or after the
    deadline. `expires`: the time (time.monotonic) after which the batch is no longer sent."""

    append: Append
    blocks: Mapping[int, Frame]
    size_bytes: int
    answer: asyncio.Future[int]
    expires: float


@dataclass(slots=True)
class Queue:
    """Waiting batches, all durable or all not, in the order of arrival. `in_flight`: the groups of this queue that are
    under way; `…_in_flight`: what they contain. `expected`: how many batches the queue is held for (HOLD_S); 0: it is
    not held."""

    batches: deque[Waiting] = field(default_factory=deque)
    records: int = 0
    bytes: int = 0
    in_flight: int = 0
    batches_in_flight: int = 0
    records_in_flight: int = 0
    bytes_in_flight: int = 0
    expected: int = 0

    def push(self, waiting: Waiting) -> None:
        self.batches.append(waiting)
        self.records += waiting.append.count
        self.bytes += waiting.size_bytes

    def pop(self) -> Waiting:
        waiting = self.batches.popleft()
        self.records -= waiting.append.count
        self.bytes -= waiting.size_bytes
        return waiting

    def launched(self, batches: int, records: int, size_bytes: int) -> None:
        self.in_flight += 1
        self.batches_in_flight += batches
        self.records_in_flight += records
        self.bytes_in_flight += size_bytes
        self.end_hold()

    def landed(self, batches: int, records: int, size_bytes: int) -> None:
        self.in_flight -= 1
        self.batches_in_flight -= batches
        self.records_in_flight -= records
        self.bytes_in_flight -= size_bytes

    def hold(self, batches: int) -> bool:
        """Hold the queue for the next appends of the clients of so many batches, which are answered now. Returns
        whether the queue is held."""
        self.expected = batches + len(self.batches) if batches > FEW_BATCHES else 0
        return self.expected > 0

    def end_hold(self) -> None:
        self.expected = 0

    @property
    def is_due(self) -> bool:
        if (
            self.batches_in_flight > FEW_BATCHES
            or self.records_in_flight >= SMALL_RECORDS
            or self.bytes_in_flight >= SMALL_BYTES
        ):
            records_due = min(max(self.records_in_flight, SMALL_RECORDS), LARGE_RECORDS)
            bytes_due = min(max(self.bytes_in_flight, SMALL_BYTES), LARGE_BYTES)
            return self.records >= records_due or self.bytes >= bytes_due
        is_held = len(self.batches) < self.expected and self.records < SMALL_RECORDS and self.bytes < SMALL_BYTES
        return bool(self.batches) and not is_held


class Deadlines:
    """One timer for the answers of all appends: they all have the same timeout, and mostly come in order."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._answers: deque[tuple[float, asyncio.Future[int]]] = deque()
        self._armed = False

    def add(self, answer: asyncio.Future[int]) -> None:
        self._drop_answered()
        self._answers.append((time.monotonic() + self._timeout_s, answer))
        self._arm()

    def _drop_answered(self) -> None:
        while self._answers and self._answers[0][1].done():
            self._answers.popleft()

    def _arm(self) -> None:
        if self._answers and not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_later(max(0.0, self._answers[0][0] - time.monotonic()), self._expire)

    def _expire(self) -> None:
        self._armed = False
        now = time.monotonic()
        while self._answers and (self._answers[0][1].done() or self._answers[0][0] <= now):
            _, answer = self._answers.popleft()
            if not answer.done():
                text = "the records were not acknowledged in time; they may or may not have been appended"
                answer.set_exception(DeadlineExceeded(text))
        self._arm()
