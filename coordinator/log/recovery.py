"""What makes batches whole or nothing across crashes.

Every shard keeps, with its part of a group, which shards take part in each batch. After a start, each shard reports the
groups that were not settled; a batch is whole when every shard it names holds it, and is revoked when one does not.
Until all shards that it names have reported it is in doubt, and readers stop below it.

A revoked batch is hidden from readers at once, on disk, and then removed from the shards as they become available.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.links import FanOut, Links
from coordinator.log.frontier import Frontier
from coordinator.log.sequencer import Revoked, Segment, Sequencer
from shared.config import Settings
from shared.errors import TriptychError, Unavailable
from shared.messages import log
from shared.telemetry import event
from shared.wire import pack, unpack

POLL_S = 0.02
RETRY_S = 0.1


@dataclass(slots=True)
class _InDoubt:
    batch: log.Batch
    segment: int
    group: int
    holders: set[int] = field(default_factory=set)


class Recovery:
    """Runs once a start, and removes revoked batches for as long as the coordinator lives."""

    def __init__(self, settings: Settings, links: Links, sequencer: Sequencer, frontier: Frontier) -> None:
        self._settings = settings
        self._links = links
        self._sequencer = sequencer
        self._frontier = frontier
        self._recovered: set[int] = set()
        self._in_doubt: dict[int, _InDoubt] = {}
        self._held: dict[int, list[log.HeldSegment]] = {}
        self._epoch = 0
        self._progress = asyncio.Event()
        self._complete = asyncio.Event()
        self._to_remove = asyncio.Event()
        self.stale: set[int] = set()
        """Shards that hold segments which have been dropped."""

    @property
    def _timeout_s(self) -> float:
        return self._settings.write_timeout_ms / 1000

    @property
    def complete(self) -> asyncio.Event:
        return self._complete

    async def wait_for(self, shards: Sequence[int]) -> None:
        """Return when these shards have reported. Raises Unavailable when one is not there or does not in time."""
        if self._complete.is_set() or self._recovered.issuperset(shards):
            return
        self._links.require(shards)
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._recovered.issuperset(shards):
                    await self._progress.wait()
        except TimeoutError:
            raise Unavailable("the log is still being recovered after a start; try again later") from None

    async def run(self) -> None:
        """Ask every shard once, as it becomes ready."""
        self._epoch = self._sequencer.next
        while len(self._recovered) < self._links.shards:
            waiting = [n for n in range(self._links.shards) if n not in self._recovered]
            ready = [n for n in waiting if n not in self._links.unready(waiting)]
            if not ready:
                await asyncio.sleep(POLL_S)
                continue
            first = self._sequencer.segments[0].id if self._sequencer.segments else 0
            body = pack(log.RecoverBody(self._epoch, self._sequencer.settled, first))
            try:
                result = await self._links.fan_out("log.recover", shards=ready, body=body, timeout_s=self._timeout_s)
            except TriptychError as error:
                event(logging.WARNING, "log recovery will be tried again", why=error)
                await asyncio.sleep(RETRY_S)
                continue
            reported = self._take_in(result)
            await self._decide(self._recovered | reported)
            self._announce(reported)
        await self._finish()

    def _take_in(self, result: FanOut) -> set[int]:
        """The shards that have reported; they count as recovered when what is in doubt about them is known."""
        reported: set[int] = set()
        for answer in result.answers:
            found = unpack(answer.reply.body, log.Recovered)
            for shard in answer.shards:
                self._sequencer.skip_to(found.next[shard])
                self._sequencer.settled = max(self._sequencer.settled, found.settled[shard])
                self._held[shard] = found.segments[shard]
                for group in found.groups[shard]:
                    self._doubt(shard, group)
                reported.add(shard)
        self._frontier.skip_to(self._sequencer.next)
        return reported

    def _doubt(self, shard: int, group: log.HeldGroup) -> None:
        if group.group >= self._epoch:
            return  # appended since this start, perhaps after other shards had reported
        for batch in group.batches:
            if not self._is_revoked(batch.start):
                item = self._in_doubt.setdefault(batch.start, _InDoubt(batch, group.segment, group.group))
                item.holders.add(shard)

    def _is_revoked(self, number: int) -> bool:
        return any(start <= number < end for item in self._sequencer.revoked for start, end in item.spans)

    async def _decide(self, reported: set[int]) -> None:
        incomplete: dict[tuple[int, int], list[log.Batch]] = {}
        for start, item in list(self._in_doubt.items()):
            if start < self._sequencer.settled or item.holders.issuperset(item.batch.shards):
                del self._in_doubt[start]
            elif reported.issuperset(item.batch.shards):
                del self._in_doubt[start]
                incomplete.setdefault((item.segment, item.group), []).append(item.batch)
        for (segment, group), batches in incomplete.items():
            spans = [(batch.start, batch.start + batch.count) for batch in batches]
            event(logging.WARNING, "incomplete batches taken back after a crash", group=group, batches=len(batches))
            await self.revoke(segment, group, spans, sorted({s for batch in batches for s in batch.shards}))

    def _announce(self, reported: set[int]) -> None:
        self._recovered |= reported
        # The group, not the batch: shards report groups, so what is settled has to end between two of them.
        self._frontier.in_doubt = min((item.group for item in self._in_doubt.values()), default=log.SEQUENCE_MAX)
        self._frontier.show()
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    async def _finish(self) -> None:
        sizes: dict[int, Segment] = {}
        for held in self._held.values():
            for segment in held:
                known = sizes.setdefault(segment.segment, Segment(segment.segment, segment.start, 0))
                known.start_seq = min(known.start_seq, segment.start)
                known.bytes += segment.bytes
        own = {segment.id: segment for segment in self._sequencer.segments}
        for number, found in sizes.items():
            if number in own:
                own[number].bytes = max(own[number].bytes, found.bytes)
        if not own and sizes:
            # The state file was lost: the shards know which segments there are, if not since when.
            now = self._sequencer.wall_ms()
            lost = [Segment(s.id, s.start_seq, now, s.bytes) for s in sizes.values()]
            await asyncio.to_thread(self._sequencer.add_segments, lost)
        first = min(own, default=0)
        self.stale = {shard for shard, held in self._held.items() if any(s.segment < first for s in held)}
        self._held.clear()
        self._complete.set()

    # Batches given up

    async def revoke(self, segment: int, group: int, spans: Sequence[log.Span], shards: Sequence[int]) -> None:
        """Hide the batches from every reader, on disk, and have them removed from these shards."""
        self._sequencer.revoked.append(Revoked(segment, group, list(spans), list(shards)))
        self._to_remove.set()
        try:
            await asyncio.to_thread(self._sequencer.save)
        except Unavailable as error:
            event(logging.ERROR, "batches are hidden, but a crash now could show parts of them", why=error)

    def hidden(self, start: int, end: int) -> list[log.Span]:
        """Spans of revoked batches that reach into start ≤ number < end."""
        if not self._sequencer.revoked:
            return []
        return [span for item in self._sequencer.revoked for span in item.spans if span[0] < end and start < span[1]]

    async def remove_forever(self) -> None:
        if self._sequencer.revoked:
            self._to_remove.set()
        while True:
            await self._to_remove.wait()
            self._to_remove.clear()
            for item in list(self._sequencer.revoked):
                await self._remove(item)
            if self._sequencer.revoked:
                await asyncio.sleep(RETRY_S)
                self._to_remove.set()

    async def _remove(self, item: Revoked) -> None:
        ready = [shard for shard in item.shards if not self._links.unready([shard])]
        if ready:
            body = pack(log.RevokeBody(item.segment, item.group, item.spans))
            try:
                result = await self._links.fan_out("log.revoke", shards=ready, body=body, timeout_s=self._timeout_s)
            except TriptychError as error:
                event(logging.WARNING, "revoked batches will be removed later", why=error)
                return
            item.shards = [shard for shard in item.shards if shard not in ready or shard in result.missing]
        if not item.shards:
            self._sequencer.revoked.remove(item)
