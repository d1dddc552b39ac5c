"""Batches on their way into a group: in which order they go, when, and how long their answers may take."""

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
"""Less than SMALL waits while more than FEW batches of its kind are under way: a message costs each shard the same
however little is in it, so under load fewer and fuller ones are faster for all; without load, nobody waits."""

ORDER_WAIT_FACTOR = 3
"""An answer waits in the queue, for the shards, and for the groups before it: each at most the write timeout."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A batch and where its records go: `blocks` holds each shard's part of them (shared.log_blocks). `answer` has a
    result when the batch is kept for ever, and an error when nothing of it will ever be read (or nobody waits)."""

    append: Append
    blocks: Mapping[int, Frame]
    size_bytes: int
    answer: asyncio.Future[int]
    expires: float


@dataclass(slots=True)
class Queue:
    """Batches that wait, all durable or all not, in the order they came; how many groups are under way, and of how
    many batches."""

    batches: deque[Waiting] = field(default_factory=deque)
    records: int = 0
    bytes: int = 0
    in_flight: int = 0
    batches_in_flight: int = 0

    def push(self, waiting: Waiting) -> None:
        self.batches.append(waiting)
        self.records += waiting.append.count
        self.bytes += waiting.size_bytes

    def pop(self) -> Waiting:
        waiting = self.batches.popleft()
        self.records -= waiting.append.count
        self.bytes -= waiting.size_bytes
        return waiting

    def launched(self, batches: int) -> None:
        self.in_flight += 1
        self.batches_in_flight += batches

    def landed(self, batches: int) -> None:
        self.in_flight -= 1
        self.batches_in_flight -= batches

    @property
    def is_due(self) -> bool:
        if self.batches_in_flight <= FEW_BATCHES:
            return bool(self.batches)
        return self.records >= SMALL_RECORDS or self.bytes >= SMALL_BYTES


class Deadlines:
    """One timer for the answers of all appends, which have the same time to come and come mostly in order."""

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
