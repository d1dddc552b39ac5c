"""The log area of the coordinator: creates, starts and stops the objects that the log consists of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from coordinator.fanout.links import Links
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.log.append import Appender
from coordinator.log.follow import Followers
from coordinator.log.frontier import Frontier, Group
from coordinator.log.groups.area import Groups
from coordinator.log.policies import Policies, PolicyPasses
from coordinator.log.producers import Producers
from coordinator.log.reads import Reader
from coordinator.log.records import Append
from coordinator.log.recovery import Recovery
from coordinator.log.retention import Retention
from coordinator.log.sequencer import Sequencer
from coordinator.log.state_writes import StateWrites
from coordinator.log.trims import Trims
from coordinator.log.turns import Turns
from coordinator.queries.gate import Gate
from shared.control import Control
from shared.errors import DeadlineExceeded, TriptychError, Unavailable
from shared.settings import Settings
from shared.telemetry import event
from shared.wall_clock import Ages

STOP_WRITE_S = 5.0
"""How long a stop waits for the write of the log's state. Without this write, the next start leaves a gap in the
numbers."""


class LogArea:
    """`start` before the first request, `stop` after the last one."""

    def __init__(self, settings: Settings, links: Links, control: Control, gate: Gate) -> None:
        self._settings = settings
        self._links = links
        self.sequencer = Sequencer(control, settings)
        self.frontier = Frontier(settings.log_visibility)
        self._writes = StateWrites(settings.write_timeout_ms / 1000)
        self.recovery = Recovery(settings, links, self.sequencer, self.frontier, self._writes)
        turns = Turns(links, gate)
        self.reader = Reader(settings, links, turns, self.sequencer, self.frontier, self.recovery)
        self.followers = Followers(settings.log_followers_max, self.frontier, self.reader)
        self.trims = Trims(settings, links, self.frontier, self.reader, self.followers)
        self._appender = Appender(settings, links, self.sequencer, self.frontier, self.recovery, self._writes)
        self._producers = Producers(settings, links, self.recovery, lambda: self.sequencer.log_start)
        self.policies = Policies(control, self._writes)
        ages = Ages(lambda: self.sequencer.wall_ms())
        self.policy_passes = PolicyPasses(
            settings, links, self.frontier, self.recovery, self.reader, ages, self.policies
        )
        self._retention = Retention(
            settings, links, self.sequencer, self.recovery, self._writes, self._appender.end_segment, ages
        )
        self.records_waiting = self._appender.records_waiting
        """How many records wait to be appended."""
        self.groups = Groups(settings, links, turns, self.reader, self.recovery, lambda: self.frontier.visible)
        self.frontier.publish, self.frontier.publish_gap = self._publish, self._publish_gap
        self.recovery.when_revoked = self._producers.forget
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Raises ConfigError when the sequencer's state or the policies cannot be used."""
        self.sequencer.open()
        self.policies.load()
        self.frontier.begin_at(self.sequencer.next, self.sequencer.settled)
        background = self.recovery.remove_forever, self._retention.run, self.policy_passes.run, self.groups.run
        for work in (self._recover, *background):
            self._tasks.append(asyncio.create_task(_logged(work)))

    def _publish(self, group: Group) -> None:
        self.followers.publish(group)
        self.groups.waiters.publish(group)

    def _publish_gap(self) -> None:
        self.followers.publish_gap()
        self.groups.waiters.publish_gap()

    async def _recover(self) -> None:
        await self.recovery.run()
        # The shards may have undamaged records of an earlier life that are not on disk yet.
        self._appender.must_sync(range(self._links.shards))
        await self._appender.sync_forever()

    async def stop(self) -> None:
        """Sync all shards, and write the state so that the next start leaves no gap in the numbers."""
        for task in self._tasks:
            task.cancel()
        await self._appender.stop()
        self._producers.stop()
        if self.recovery.complete.is_set():
            self.sequencer.settled = self.frontier.settled
        try:
            async with asyncio.timeout(STOP_WRITE_S):
                await self._writes.run(self.sequencer.close)
        except (TriptychError, TimeoutError) as error:
            event(logging.ERROR, "the log's state could not be written", why=error or "the disk does not answer")

    async def append(self, append: Append) -> tuple[int, int]:
        """(first sequence number, number of records) of the batch; see `Appender` for durability and errors."""
        await self.wait_for_state()
        if not append.producer:
            return await self._appender.append(append), append.count
        start, count, repeated = await self._producers.append(append, self._appender.decided)
        if repeated and append.durable:
            await self._wait_durable(start + count)
            if self.recovery.hidden(start, start + count):
                raise Unavailable("the records were taken back meanwhile; send them again")
        return start, count

    def begin(self, append: Append) -> PromptFuture[int]:
        """As `append`, for a batch of no producer while `knows_state`; see `Appender.begin`."""
        assert not append.producer and self.knows_state
        return self._appender.begin(append)

    @property
    def knows_state(self) -> bool:
        """Whether the log's numbers and segments are known."""
        return not self.sequencer.is_new

    async def wait_for_state(self) -> None:
        """Return when the log's numbers and segments are known. A lost state file is rebuilt from what all shards hold:
        raises Unavailable while one of them has not reported."""
        if not self.knows_state:
            await self.recovery.wait_for(range(self._links.shards))

    @asynccontextmanager
    async def state_held(self) -> AsyncIterator[None]:
        """A context in which the state file does not change."""
        async with self._writes.held():
            yield

    @property
    def readable(self) -> int:
        """Records below this number can be read now and at any later time. Until all shards have reported after a
        start, it is the number below which everything was settled before the start: a shard may lack its part of a
        batch above it, and such a batch is never read."""
        visible = self.frontier.visible
        return visible if self.recovery.complete.is_set() else min(visible, self.sequencer.settled)

    def warnings(self) -> list[str]:
        """What an operator should know about the log as a whole."""
        refusal = self.recovery.refusal
        return [*([f"appends are refused: {refusal}"] if refusal else []), *self.recovery.notices]

    async def _wait_durable(self, upto: int) -> None:
        try:
            async with asyncio.timeout(self._settings.write_timeout_ms / 1000):
                await self.frontier.wait_durable(upto)
        except TimeoutError:
            raise DeadlineExceeded("the records are stored, but not all of the log before them is on disk") from None


async def _logged(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except Exception:
        event(logging.ERROR, "a background task of the log ended", trace=True)
        raise
