"""Idempotent appends: a producer numbers its batches, and a batch that is sent again gets the first answer again.

The answer is stored with the batch, on the shard of the producer's id, so that it survives whatever the batch survives.
A shard stores its part before the batch is decided. So an answer from the shard counts only if the batch's group is
closed and the batch was not revoked: the coordinator knows every batch that is under way, revoked or in doubt, and
ignores its answer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from coordinator.fanout.links import Links
from coordinator.log.records import Append
from coordinator.log.recovery import Recovery
from coordinator.log.waiting import ORDER_WAIT_FACTOR
from shared.errors import BadData, DeadlineExceeded, TriptychError, Unavailable
from shared.hashing import shard_of
from shared.messages import log
from shared.settings import Settings
from shared.wire import pack, unpack

PRODUCERS_CACHED_MAX = 100_000
"""Producers whose answers are kept in memory, at less than 1 KB each. An append of any other producer first reads its
answers from the shard."""

Answer = tuple[int, int, int]
"""(producer_seq, start, count)."""


@dataclass(slots=True)
class _Producer:
    """One producer's batches, by producer_seq.

    `answers`: those of stored batches. Once `is_loaded`, they are all answers that the shard remembers; before, only
    those given since this process started. `under_way`: batches whose outcome is not known. `refused`: numbers whose
    last attempt has failed since this process started, so that nothing of these batches will ever be read.
    """

    answers: dict[int, Answer] = field(default_factory=dict)
    under_way: dict[int, asyncio.Task[Answer]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    loading: asyncio.Task[set[int]] | None = None
    is_loaded: bool = False

    def remember(self, answer: Answer) -> None:
        self.answers[answer[0]] = answer
        self.refused.discard(answer[0])
        while len(self.answers) > log.PRODUCER_ANSWERS_MAX:
            del self.answers[min(self.answers)]

    def refuse(self, number: int) -> None:
        self.refused.add(number)
        if len(self.refused) > log.PRODUCER_ANSWERS_MAX:
            self.refused.remove(min(self.refused))

    def is_forgotten(self, number: int) -> bool:
        """Whether a batch of this number may have been stored and its answer forgotten. The remembered answers are
        those of the highest numbers: a number that is missing between them was never stored."""
        return number < min(self.answers, default=-1) and number not in self.refused

    def forget_below(self, log_start: int) -> None:
        """Forget the answers of batches that retention has dropped."""
        dropped = [number for number, start, _ in self.answers.values() if start < log_start]
        for number in dropped:
            del self.answers[number]

    @property
    def is_idle(self) -> bool:
        return not self.under_way and self.loading is None


class Producers:
    """The answers to all producers. An append continues after its client has disconnected, and a client that sends the
    same batch again gets its outcome. For the event loop's thread only."""

    def __init__(self, settings: Settings, links: Links, recovery: Recovery, log_start: Callable[[], int]) -> None:
        """`log_start`: records below it have been dropped by retention, and with them the answers about them."""
        self._settings = settings
        self._links = links
        self._recovery = recovery
        self._log_start = log_start
        self._producers: OrderedDict[str, _Producer] = OrderedDict()
        self._newest_start = -1  # the highest `start` of the answers in memory

    @property
    def _timeout_s(self) -> float:
        return self._settings.write_timeout_ms / 1000

    async def append(self, append: Append, send: Callable[[Append], Awaitable[int]]) -> tuple[int, int, bool]:
        """(start, count, whether it is a repeat) of the batch, which is sent unless it has an answer or is under way.
        `send` returns when the batch is stored for good, and raises when nothing of it will ever be read.

        Raises BadData for a producer_seq below all those whose answers are remembered, DeadlineExceeded when the
        outcome is not known in time, Unavailable while an earlier attempt is not decided, and what `send` raises.
        """
        try:
            async with asyncio.timeout(ORDER_WAIT_FACTOR * self._timeout_s):
                return await self._append(append, send)
        except TimeoutError:
            raise DeadlineExceeded(
                "the records were not acknowledged in time; they may or may not have been appended. "
                "Send the same `producerSeq` again to learn which"
            ) from None

    async def _append(self, append: Append, send: Callable[[Append], Awaitable[int]]) -> tuple[int, int, bool]:
        producer = self._producer(append.producer)
        number = append.producer_seq
        undecided = await self._load(append.producer, producer)
        if any(number <= other for other in undecided):
            await self._recovery.wait_for(range(self._links.shards))
            undecided = await self._load(append.producer, producer)
            if any(number <= other for other in undecided):
                raise Unavailable(f"batch {max(undecided)} of producer {append.producer!r} is not decided; try again")
        producer.forget_below(self._log_start())
        if number in producer.answers:
            _, start, count = producer.answers[number]
            return start, count, True
        if number in producer.under_way:
            _, start, count = await asyncio.shield(producer.under_way[number])
            return start, count, True
        if producer.is_forgotten(number):
            raise BadData(
                f"`producerSeq` is {number}, and producer {append.producer!r} is at {max(producer.answers)} already; "
                f"answers to its last {log.PRODUCER_ANSWERS_MAX} batches are remembered, "
                f"from {min(producer.answers)} on"
            )
        sending = asyncio.create_task(self._send(append, producer, send))
        sending.add_done_callback(_seen)
        producer.under_way[number] = sending
        _, start, count = await asyncio.shield(sending)
        return start, count, False

    async def _send(self, append: Append, producer: _Producer, send: Callable[[Append], Awaitable[int]]) -> Answer:
        try:
            answer = (append.producer_seq, await send(append), append.count)
            producer.remember(answer)
            self._newest_start = max(self._newest_start, answer[1])
            return answer
        except TriptychError:
            producer.refuse(append.producer_seq)
            raise
        finally:
            del producer.under_way[append.producer_seq]

    def _producer(self, name: str) -> _Producer:
        """The state of this producer. Above PRODUCERS_CACHED_MAX, the least recently used idle producer is dropped."""
        producer = self._producers.setdefault(name, _Producer())
        self._producers.move_to_end(name)
        if len(self._producers) > PRODUCERS_CACHED_MAX:
            oldest = next(iter(self._producers))
            if self._producers[oldest].is_idle and oldest != name:
                del self._producers[oldest]
            else:
                self._producers.move_to_end(oldest)
        return producer

    async def _load(self, name: str, producer: _Producer) -> set[int]:
        """Add the answers that the shard remembers to `answers`. Returns the producer_seqs that are not decided."""
        if producer.is_loaded:
            return set()
        if producer.loading is None:
            producer.loading = asyncio.create_task(self._read(name, producer))
            producer.loading.add_done_callback(_seen)
        return await asyncio.shield(producer.loading)

    async def _read(self, name: str, producer: _Producer) -> set[int]:
        try:
            shard = shard_of(name.encode(), self._links.shards)
            await self._recovery.wait_for([shard])
            # The shard may process this request before, between or after the messages that write and revoke a batch.
            # So its reply counts only for batches that were decided before the request was sent.
            decided_below = self._recovery.decided_below
            in_doubt = self._recovery.batches_in_doubt()
            revoked = self._recovery.hidden(0, log.SEQUENCE_MAX)
            body = pack(log.ProducerBody(name))
            (reply,) = await self._links.call("log.producer", shards=[shard], body=body, timeout_s=self._timeout_s)
            revoked += self._recovery.hidden(0, log.SEQUENCE_MAX)
            in_doubt |= self._recovery.batches_in_doubt()
            undecided: set[int] = set()
            decided: list[Answer] = []
            log_start = self._log_start()
            producer.forget_below(log_start)  # before `remember`, which keeps the answers with the highest numbers
            for answer in unpack(reply.message.body, log.ProducerReply).answers:
                if answer[1] < log_start or any(begin <= answer[1] < end for begin, end in revoked):
                    continue
                if answer[1] in in_doubt:
                    undecided.add(answer[0])
                elif answer[1] < decided_below:
                    decided.append(answer)
            for answer in [*decided, *producer.answers.values()]:
                producer.remember(answer)
                self._newest_start = max(self._newest_start, answer[1])
            producer.is_loaded = not undecided
            return undecided
        finally:
            producer.loading = None

    def forget(self, spans: Sequence[log.Span]) -> None:
        """Forget the answers of batches that are revoked."""
        if all(begin > self._newest_start for begin, _ in spans):
            return  # the usual case: the spans are newer than every answer
        for producer in self._producers.values():
            for number, start, _ in list(producer.answers.values()):
                if any(begin <= start < end for begin, end in spans):
                    del producer.answers[number]
                    producer.is_loaded = False

    def stop(self) -> None:
        """Cancel what is under way."""
        for producer in self._producers.values():
            for task in (*producer.under_way.values(), producer.loading):
                if task is not None:
                    task.cancel()


def _seen(task: asyncio.Task[Answer] | asyncio.Task[set[int]]) -> None:
    """Mark the task's error as retrieved: its waiters may all have disconnected."""
    if not task.cancelled():
        task.exception()
