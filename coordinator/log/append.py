"""Sends appends to the shards: batches that wait at the same time share one message per worker.

Durability: an append with `durable` is answered when its records are on the disk of every shard concerned (fsync). One
without it is answered when the shards hold the records: they then survive the death of every process, and are on disk
within 100 ms.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from coordinator.fanout.links import Links
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.log.frontier import Frontier, Group
from coordinator.log.records import Append
from coordinator.log.sequencer import Sequencer
from coordinator.log.state_writes import StateWrites
from coordinator.log.waiting import HOLD_S, ORDER_WAIT_FACTOR, Deadlines, Queue, Waiting
from shared.errors import DeadlineExceeded, Overloaded, TriptychError, Unavailable
from shared.hashing import shard_of
from shared.log.blocks import EMPTY
from shared.messages import log
from shared.settings import Settings
from shared.telemetry import event
from shared.wire import Frame, pack

GROUPS_IN_FLIGHT_MAX = 2
"""Groups under way at once: enough that the shards never wait for the next one, and few enough that small appends
gather meanwhile and share it."""
GROUP_RECORDS_MAX = 10_000
GROUP_BYTES_MAX = 32 << 20
"""A group that has reached either limit takes no further batch. A single batch may be larger."""
QUEUE_RECORDS_MAX = 1_000_000
QUEUE_BYTES_MAX = 256 << 20
SYNC_EVERY_S = 0.04
"""Half of the time promised for appends that are not durable, less the time of the fsync itself."""
STOP_GRACE_S = 1.0


class Revoker(Protocol):
    @property
    def refusal(self) -> str:
        """Why failed batches cannot be hidden for good at the moment; "" when they can."""

    async def revoke(self, segment: int, group: int, spans: Sequence[log.Span], shards: Sequence[int]) -> None:
        """Return when no reader will ever see the batches, whichever process crashes."""


@dataclass(slots=True, eq=False)
class _Numbered:
    start: int
    waiting: Waiting

    @property
    def span(self) -> log.Span:
        return self.start, self.start + self.waiting.append.count


class Appender:
    """Numbers batches, sends them in groups and closes each group at the frontier. For the event loop's thread only."""

    def __init__(
        self,
        settings: Settings,
        links: Links,
        sequencer: Sequencer,
        frontier: Frontier,
        revoker: Revoker,
        writes: StateWrites,
    ) -> None:
        self._settings = settings
        self._links = links
        self._sequencer = sequencer
        self._frontier = frontier
        self._revoker = revoker
        self._writes = writes
        self._queues = {True: Queue(), False: Queue()}
        self._deadlines = Deadlines(ORDER_WAIT_FACTOR * settings.write_timeout_ms / 1000)
        self._turn = True
        self._scheduled = False
        self._preparing = False
        self._hold_ends = False  # a timer that ends all holds is set
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsynced: set[int] = set(range(links.shards))
        self._syncing = False
        self._written = asyncio.Event()
        self._stopped = False

    @property
    def _timeout_s(self) -> float:
        return self._settings.write_timeout_ms / 1000

    def records_waiting(self) -> int:
        """Records that wait to be sent to workers."""
        return sum(queue.records for queue in self._queues.values())

    async def append(self, append: Append) -> int:
        """Append one batch and return its first sequence number.

        Raises Unavailable when a shard concerned is not ready (before anything is written) or fails (and then nothing
        of the batch will ever be read), Overloaded when too many records or bytes are queued already, DeadlineExceeded
        when the outcome is not known in time.
        """
        return await self.begin(append)

    def begin(self, append: Append) -> PromptFuture[int]:
        """As `append`, for a caller that does not wait: the future gets the answer or the error. Until the batch is
        sent, cancelling the future withdraws it. Raises the errors that are known at once."""
        answer = self._submit(append)
        self._deadlines.add(answer)
        return answer

    async def decided(self, append: Append) -> int:
        """As `append`, for a caller with its own deadline: returns or raises only when the outcome is known."""
        return await self._submit(append)

    def _submit(self, append: Append) -> PromptFuture[int]:
        if self._stopped:
            raise Unavailable("the coordinator is stopping")
        if self._revoker.refusal:
            raise Unavailable(f"records cannot be appended: {self._revoker.refusal}")
        blocks = append.take_blocks(self._links.shards)
        if append.producer:
            # The shard of the producer's id takes part even without records, because it remembers the answer.
            blocks.setdefault(shard_of(append.producer.encode(), self._links.shards), EMPTY)
        self._links.require(blocks)
        durable, buffered = self._queues[True], self._queues[False]
        records, queued_bytes = durable.records + buffered.records, durable.bytes + buffered.bytes
        if records >= QUEUE_RECORDS_MAX or queued_bytes >= QUEUE_BYTES_MAX:
            text = f"{records} records ({queued_bytes} bytes) wait to be appended; try again later"
            raise Overloaded(text).because("records_waiting")
        answer = PromptFuture[int]()
        self._queues[append.durable].push(
            Waiting(append, blocks, append.size_bytes, answer, time.monotonic() + self._timeout_s)
        )
        self._schedule()
        return answer

    def _schedule(self) -> None:
        """Dispatch at the end of this round of the event loop, so that batches that arrived together share a group."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        queues = self._queues.values()
        while sum(queue.in_flight for queue in queues) < GROUPS_IN_FLIGHT_MAX and not self._preparing:
            if not any(queue.is_due for queue in queues):
                return
            batches = self._take()
            if not batches:
                continue  # all of them were cancelled or have expired
            if not self._sequencer.ready_for(sum(w.append.count for w in batches)):
                self._preparing = True
                self._spawn(self._prepare(batches))
                return
            self._launch(batches)

    def _take(self) -> list[Waiting]:
        """The next group's batches, all durable or all not; the two queues take turns."""
        self._turn = not self._turn
        queue = self._queues[self._turn if self._queues[self._turn].is_due else not self._turn]
        batches: list[Waiting] = []
        records = size = 0
        now = time.monotonic()
        while queue.batches and records < GROUP_RECORDS_MAX and size < GROUP_BYTES_MAX:
            waiting = queue.pop()
            if waiting.answer.done():
                continue
            if waiting.expires < now:
                waiting.answer.set_exception(DeadlineExceeded("the records waited too long and were not appended"))
                continue
            batches.append(waiting)
            records += waiting.append.count
            size += waiting.size_bytes
        return batches

    async def _prepare(self, batches: list[Waiting]) -> None:
        """Let the sequencer write its state in a thread, then launch these batches."""
        try:
            await self._writes.run(partial(self._sequencer.prepare, sum(w.append.count for w in batches)))
        except Exception as error:
            if not isinstance(error, TriptychError):
                event(logging.ERROR, "sequence numbers could not be reserved", trace=True)
            for waiting in batches:
                _fail(waiting, Unavailable(str(error)))
            return
        finally:
            self._preparing = False
            self._schedule()
        self._launch(batches)

    async def end_segment(self) -> None:
        """Begin a segment if one is due; no append takes a number meanwhile. If the sequencer's state is being written
        already, the next append begins the segment. Raises Unavailable."""
        if self._preparing:
            return
        self._preparing = True
        try:
            await self._writes.run(partial(self._sequencer.prepare, 0))
        finally:
            self._preparing = False
            self._schedule()

    async def _extend(self) -> None:
        try:
            await self._writes.run(self._sequencer.extend)
        except Unavailable as error:
            event(logging.ERROR, "sequence numbers could not be reserved ahead", why=error)
        finally:
            self._preparing = False
            self._schedule()

    def _launch(self, batches: list[Waiting]) -> None:
        size = sum(w.size_bytes for w in batches)
        start = self._sequencer.take(sum(w.append.count for w in batches), size)
        numbered: list[_Numbered] = []
        end = start
        for waiting in batches:
            numbered.append(_Numbered(end, waiting))
            end += waiting.append.count
        group = Group(start, end, time_ms=self._sequencer.time_ms(), size_bytes=size)
        self._frontier.open(group)
        self._queues[batches[0].append.durable].launched(len(batches), end - start, size)
        self._spawn(self._send(group, numbered, size, self._sequencer.segments[-1].id))
        if self._sequencer.running_low() and not self._preparing:
            self._preparing = True
            self._spawn(self._extend())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, group: Group, numbered: list[_Numbered], size_bytes: int, segment: int) -> None:
        durable = numbered[0].waiting.append.durable
        parts = _parts(numbered)
        batches = tuple(_batch(item, group.time_ms) for item in numbered)
        frontier = self._frontier
        marks = frontier.readable, durable, frontier.settled
        body = pack(log.AppendBody(segment, group.start, *marks, batches, self._sequencer.life))
        missing = await self._ask(body, parts)
        failed = [item for item in numbered if not missing.keys().isdisjoint(item.waiting.blocks)]
        if failed:
            shards = sorted({shard for item in failed for shard in item.waiting.blocks})
            await self._revoker.revoke(segment, group.start, [item.span for item in failed], shards)
        if not durable:
            self._unsynced.update(parts)
            self._written.set()
        stored = [item for item in numbered if item not in failed]
        group.batches = [(item.start, item.waiting.append.records) for item in stored]
        group.when_closed = lambda: _answer(stored, failed, missing)
        self._landed(self._queues[durable], len(numbered), group.end - group.start, size_bytes)
        self._frontier.close(group)
        if not self._unsynced and not self._syncing:
            self._frontier.synced(self._frontier.readable)

    def _landed(self, queue: Queue, batches: int, records: int, size_bytes: int) -> None:
        """Dispatch the next group before the clients of the landed group are answered, so that the shards work on it
        meanwhile."""
        queue.landed(batches, records, size_bytes)
        if queue.hold(batches) and not self._hold_ends:
            self._hold_ends = True
            asyncio.get_running_loop().call_later(HOLD_S, self._end_holds)
        self._dispatch()

    def _end_holds(self) -> None:
        self._hold_ends = False
        for queue in self._queues.values():
            queue.end_hold()
        self._dispatch()

    async def _ask(self, body: bytes, parts: Mapping[int, Sequence[Frame]]) -> Mapping[int, str]:
        """Send each shard its part. Returns shard → why it may not hold its part."""
        try:
            result = await self._links.fan_out("log.append", body=body, parts=parts, timeout_s=self._timeout_s)
        except TriptychError as error:
            return dict.fromkeys(parts, str(error))
        except Exception as error:
            # The group must be closed after any error: readers never pass an open group.
            event(logging.ERROR, "append failed", trace=True)
            return dict.fromkeys(parts, f"an internal error ({type(error).__name__})")
        return result.missing

    async def stop(self) -> None:
        """Refuse the batches that wait, give the groups under way STOP_GRACE_S to be decided, then sync."""
        self._stopped = True
        for queue in self._queues.values():
            while queue.batches:
                _fail(queue.pop(), Unavailable("the coordinator is stopping; the records were not appended"))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_GRACE_S)
        for task in self._tasks:
            task.cancel()
        await self.sync()

    # Syncing appends that are not durable

    def must_sync(self, shards: Sequence[int]) -> None:
        """Include these shards in the next sync."""
        self._unsynced.update(shards)
        self._written.set()

    async def sync_forever(self) -> None:
        """While there are appends that are not durable, sync their shards every SYNC_EVERY_S."""
        while True:
            await self._written.wait()
            await asyncio.sleep(SYNC_EVERY_S)
            self._written.clear()
            await self.sync()
            if self._unsynced:
                self._written.set()

    async def sync(self) -> None:
        """Sync once. Shards that fail stay unsynced, and the durable frontier stays where it is."""
        if not self._unsynced:
            return
        shards, upto = sorted(self._unsynced), self._frontier.readable
        self._unsynced.clear()
        self._syncing = True
        unsynced: Collection[int] = shards  # until they have replied, and if this task is cancelled
        try:
            unsynced = (await self._links.fan_out("log.sync", shards=shards, timeout_s=self._timeout_s)).missing
        except TriptychError as error:
            event(logging.DEBUG, "shards could not be synced", why=error)
        finally:
            self._syncing = False
            self._unsynced.update(unsynced)
        if not unsynced:
            # If no shard has become unsynced since, every append since was durable: all readable records are on disk.
            self._frontier.synced(upto if self._unsynced else self._frontier.readable)


def _batch(item: _Numbered, time_ms: int) -> log.Batch:
    append, shards = item.waiting.append, tuple(item.waiting.blocks)
    return log.Batch(item.start, append.count, shards, append.producer, append.producer_seq, time_ms)


def _parts(numbered: list[_Numbered]) -> dict[int, list[Frame]]:
    """Each shard's frame: its blocks of the batches, in the order of the batches."""
    if len(numbered) == 1:
        return {shard: [block] for shard, block in numbered[0].waiting.blocks.items()}
    by_shard: dict[int, list[Frame]] = {}
    for item in numbered:
        for shard, block in item.waiting.blocks.items():
            by_shard.setdefault(shard, []).append(block)
    return {shard: [blocks[0] if len(blocks) == 1 else b"".join(blocks)] for shard, blocks in by_shard.items()}


def _answer(stored: list[_Numbered], failed: list[_Numbered], missing: Mapping[int, str]) -> None:
    for item in stored:
        if not item.waiting.answer.done():
            item.waiting.answer.set_result(item.start)
    for item in failed:
        whys = [f"shard {s}: {why}" for s, why in sorted(missing.items()) if s in item.waiting.blocks]
        _fail(item.waiting, Unavailable("the records were not appended: " + "; ".join(whys)))


def _fail(waiting: Waiting, error: TriptychError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
