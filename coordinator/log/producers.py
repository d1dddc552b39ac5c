"""Idempotent appends: a producer numbers its batches, and a batch that comes again gets the first answer again.

The answers are stored with the batch, on the shard of the producer's id, so that they survive what the batch survives.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from coordinator.links import Links
from coordinator.log.records import Append
from coordinator.log.recovery import Recovery
from shared.config import Settings
from shared.errors import BadData
from shared.hashing import shard_of
from shared.messages import log
from shared.wire import pack, unpack

PRODUCERS_CACHED_MAX = 100_000
"""Producers whose answers are kept in memory, at under 1 KB each; others cost one read of their shard."""

Answer = tuple[int, int, int]
"""(producer_seq, start, count)."""


class Producers:
    def __init__(self, settings: Settings, links: Links, recovery: Recovery) -> None:
        self._settings = settings
        self._links = links
        self._recovery = recovery
        self._answers: OrderedDict[str, list[Answer]] = OrderedDict()
        self._under_way: dict[str, dict[int, asyncio.Future[Answer]]] = {}

    async def append(self, append: Append, send: Callable[[Append], Awaitable[int]]) -> tuple[int, int, bool]:
        """(start, count, whether it is a repeat) of the batch, sent unless its answer is known or on its way.

        Raises BadData for a producer_seq below the producer's last whose answer is no longer remembered.
        """
        await self._load(append.producer)
        known = {answer[0]: answer for answer in self._answers[append.producer]}
        under_way = self._under_way.setdefault(append.producer, {})
        if append.producer_seq in known:
            _, start, count = known[append.producer_seq]
            return start, count, True
        if append.producer_seq in under_way:
            _, start, count = await asyncio.shield(under_way[append.producer_seq])
            return start, count, True
        last = max([*known, *under_way], default=-1)
        if append.producer_seq < last:
            raise BadData(
                f"`producerSeq` is {append.producer_seq}, and producer {append.producer!r} is at {last} already; "
                f"answers to its last {log.PRODUCER_ANSWERS_MAX} batches are remembered"
            )
        return *await self._send(append, under_way, send), False

    async def _send(
        self,
        append: Append,
        under_way: dict[int, asyncio.Future[Answer]],
        send: Callable[[Append], Awaitable[int]],
    ) -> tuple[int, int]:
        outcome: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody may be waiting
        under_way[append.producer_seq] = outcome
        try:
            start = await send(append)
        except BaseException as error:
            # What is stored decides from now on: the outcome may be unknown here.
            self._answers.pop(append.producer, None)
            outcome.set_exception(error) if isinstance(error, Exception) else outcome.cancel()
            raise
        finally:
            del under_way[append.producer_seq]
            if not under_way:
                self._under_way.pop(append.producer, None)
        answer = (append.producer_seq, start, append.count)
        outcome.set_result(answer)
        if append.producer in self._answers:
            kept = sorted([*self._answers[append.producer], answer], key=lambda a: a[1])
            self._answers[append.producer] = kept[-log.PRODUCER_ANSWERS_MAX :]
        return start, answer[2]

    async def _load(self, producer: str) -> None:
        if producer in self._answers:
            self._answers.move_to_end(producer)
            return
        shard = shard_of(producer.encode(), self._links.shards)
        await self._recovery.wait_for([shard])
        body = pack(log.ProducerBody(producer))
        timeout_s = self._settings.write_timeout_ms / 1000
        (reply,) = await self._links.call("log.producer", shards=[shard], body=body, timeout_s=timeout_s)
        stored = unpack(reply.reply.body, log.ProducerReply).answers
        if producer in self._answers:
            return  # another append of the producer was here first, and may have added to it
        # A batch still under way may be stored already: its answer counts when it has been given.
        under_way = self._under_way.get(producer, {})
        kept = [a for a in stored if a[0] not in under_way and not self._recovery.hidden(a[1], a[1] + 1)]
        self._answers[producer] = kept
        if len(self._answers) > PRODUCERS_CACHED_MAX:
            self._answers.popitem(last=False)
