"""Makes batches atomic across crashes: a batch is read completely or not at all.

Every shard stores, with its part of a group, which shards take part in each batch. After a start, each shard reports
the groups that were not settled. A batch is complete when every shard that it names holds it, and is revoked when one
does not. Until all shards that it names have reported, it is in doubt, and readers stop below it.

A revoked batch is hidden from readers at once, on disk, and then removed from the shards as they become available.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from coordinator.fanout.calls import FanOut
from coordinator.fanout.links import Links
from coordinator.log.frontier import Frontier
from coordinator.log.sequencer import LOST_AHEAD, Revoked, Segment, Sequencer
from coordinator.log.state_writes import StateWrites
from shared.errors import TriptychError, Unavailable
from shared.messages import log
from shared.settings import Settings
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

    def __init__(
        self, settings: Settings, links: Links, sequencer: Sequencer, frontier: Frontier, writes: StateWrites
    ) -> None:
        self._settings = settings
        self._links = links
        self._sequencer = sequencer
        self._frontier = frontier
        self._writes = writes
        self._recovered: set[int] = set()
        self._in_doubt: dict[int, _InDoubt] = {}
        self._held: dict[int, list[log.HeldSegment]] = {}
        self._dropped: dict[int, int] = {}
        self._damaged: set[int] = set()
        self._epoch = 0
        self._opened_bytes: dict[int, int] = {}
        """Segment → its bytes when this start began, according to the state file. After a crash this may be too low."""
        self._progress = asyncio.Event()
        self._complete = asyncio.Event()
        self._to_remove = asyncio.Event()
        self._unsaved: list[Revoked] = []
        self.stale: set[int] = set()
        """Shards that hold segments which have been dropped."""
        self._refusal = ""
        self.notices: list[str] = []
        """What an operator should know about this start."""
        self.when_revoked: Callable[[Sequence[log.Span]], None] = lambda spans: None

    @property
    def _timeout_s(self) -> float:
        return self._settings.write_timeout_ms / 1000

    @property
    def refusal(self) -> str:
        """Why revocations cannot be written at the moment: the disk refuses, or does not answer; "" when they can."""
        return self._refusal or self._writes.overdue

    @property
    def complete(self) -> asyncio.Event:
        return self._complete

    async def wait_for(self, shards: Sequence[int]) -> None:
        """Return when these shards have reported, so that their batches in doubt are known. Raises Unavailable when one
        is not ready or does not report in time. Without a state file, all shards have to report."""
        if self._has_reported(shards):
            return
        self._links.require(range(self._links.shards) if self._sequencer.is_new else shards)
        async with _in_time(self._timeout_s):
            while not self._has_reported(shards):
                await self._progress.wait()

    async def wait_for_state(self) -> None:
        """Return when the segments are known. With a state file this is at once; without one, all shards have to report
        first, however long that takes."""
        if self._sequencer.is_new:
            await self._complete.wait()

    async def wait_complete(self, timeout_s: float) -> None:
        """Return when the log has been recovered, which takes a moment after a start. Raises Unavailable when it is not
        in time."""
        async with _in_time(timeout_s):
            await self._complete.wait()

    def _has_reported(self, shards: Sequence[int]) -> bool:
        return self._complete.is_set() or (not self._sequencer.is_new and self._recovered.issuperset(shards))

    @property
    def _first_segment(self) -> int:
        """Every segment below has been dropped."""
        return self._sequencer.segments[0].id if self._sequencer.segments else 0

    @property
    def decided_below(self) -> int:
        """Every batch below that is not in doubt is kept for ever, or hidden until no shard has it any more."""
        return self._frontier.readable

    def batches_in_doubt(self) -> set[int]:
        """The first numbers of batches of an earlier life that may be incomplete."""
        return set(self._in_doubt)

    async def run(self) -> None:
        """Ask every shard once, as it becomes ready; without a state file, twice."""
        self._hold_settled()
        self._opened_bytes = {segment.id: segment.bytes for segment in self._sequencer.segments}
        if self._sequencer.is_new:
            await self._find_numbers()
        self._epoch = self._sequencer.next
        await self._ask_all(self._recover)
        await self._finish()

    async def _ask_all(self, take_in: Callable[[FanOut], Awaitable[set[int]]]) -> None:
        """Ask every shard what it holds, until `take_in` has had a reply from each of them."""
        reported: set[int] = set()
        while len(reported) < self._links.shards:
            waiting = [n for n in range(self._links.shards) if n not in reported]
            ready = [n for n in waiting if n not in self._links.unready(waiting)]
            if not ready:
                await asyncio.sleep(POLL_S)
                continue
            body = pack(
                log.RecoverBody(self._epoch, self._sequencer.settled, self._first_segment, self._sequencer.life)
            )
            try:
                result = await self._links.fan_out("log.recover", shards=ready, body=body, timeout_s=self._timeout_s)
            except TriptychError as error:
                event(logging.WARNING, "log recovery will be tried again", why=error)
                await asyncio.sleep(RETRY_S)
                continue
            reported |= await take_in(result)

    async def _find_numbers(self) -> None:
        """Set the sequencer above everything that any shard holds. Only then can batches of an earlier life be told
        apart, and late messages with them be refused."""
        highest, is_lost = 0, False

        async def look(result: FanOut) -> set[int]:
            nonlocal highest, is_lost
            for reply in result.replies:
                report = unpack(reply.message.body, log.RecoverReply)
                highest = max(highest, *report.next.values())
                is_lost = is_lost or highest > 0 or any(report.dropped.values())
            if is_lost and not self.notices:
                self._say_lost()
            return {shard for reply in result.replies for shard in reply.shards}

        await self._ask_all(look)
        if is_lost:
            self._sequencer.skip_to(highest + LOST_AHEAD)
            self._frontier.skip_to(self._sequencer.next)

    def _say_lost(self) -> None:
        text = (
            f"the log's state file {self._sequencer.location} was missing at the start and is made anew from what the "
            f"shards hold: sequence numbers go on {LOST_AHEAD} above the highest of them, and records whose append "
            "failed shortly before may be there"
        )
        self.notices.append(text)
        event(logging.ERROR, text)

    async def _recover(self, result: FanOut) -> set[int]:
        """Take in the reports of shards. They count as recovered when their batches in doubt are known."""
        reported: set[int] = set()
        for reply in result.replies:
            report = unpack(reply.message.body, log.RecoverReply)
            self._damaged.update(report.damaged)
            for shard in reply.shards:
                self._sequencer.skip_to(report.next[shard])
                self._sequencer.not_before(report.times_ms.get(shard, 0))
                self._sequencer.settled = max(self._sequencer.settled, report.settled[shard])
                self._held[shard] = report.segments[shard]
                self._dropped[shard] = report.dropped.get(shard, 0)
                for group in report.groups[shard]:
                    self._doubt(shard, group)
                reported.add(shard)
        self._frontier.skip_to(self._sequencer.next)
        await self._decide(self._recovered | reported)
        self._announce(reported)
        return reported

    def _doubt(self, shard: int, group: log.HeldGroup) -> None:
        if group.group >= self._epoch:
            return  # appended since this start, perhaps after other shards had reported
        if group.segment < self._first_segment:
            return  # retention has dropped it since the shard was asked
        for batch in group.batches:
            if not self._is_revoked(batch.start):
                item = self._in_doubt.setdefault(batch.start, _InDoubt(batch, group.segment, group.group))
                item.holders.add(shard)

    def _is_revoked(self, number: int) -> bool:
        return any(start <= number < end for item in self._sequencer.revoked for start, end in item.spans)

    async def _decide(self, reported: set[int]) -> None:
        incomplete: dict[tuple[int, int], list[log.Batch]] = {}
        for start, item in list(self._in_doubt.items()):
            lacking = set(item.batch.shards) - item.holders
            if start < self._sequencer.settled or not lacking:
                del self._in_doubt[start]
            elif reported.issuperset(item.batch.shards):
                if lacking <= self._damaged:
                    # The batch may have been acknowledged, so it stays. Reads of the damaged shards warn of what lacks.
                    event(logging.ERROR, "a batch lacks what a damaged shard had of it", start=start, shards=lacking)
                    del self._in_doubt[start]
                else:
                    incomplete.setdefault((item.segment, item.group), []).append(item.batch)
        for (segment, group), batches in incomplete.items():
            spans = [(batch.start, batch.start + batch.count) for batch in batches]
            event(logging.WARNING, "incomplete batches taken back after a crash", group=group, batches=len(batches))
            await self.revoke(segment, group, spans, sorted({s for batch in batches for s in batch.shards}))
            for batch in batches:
                self._in_doubt.pop(batch.start, None)  # retention may have dropped it since

    def segments_dropped(self) -> None:
        """Note that retention has dropped segments from the log, so that no shard has to report what it holds of
        them."""
        self._in_doubt = {start: item for start, item in self._in_doubt.items() if item.segment >= self._first_segment}
        self.stale.update(range(self._links.shards))
        self._announce(set())

    def _announce(self, reported: set[int]) -> None:
        self._recovered |= reported
        # The number of the group, not of the batch: shards report groups, so the settled mark is between two groups.
        self._frontier.in_doubt = min((item.group for item in self._in_doubt.values()), default=log.SEQUENCE_MAX)
        self._frontier.show()
        self._tell_progress()

    def _tell_progress(self) -> None:
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    async def _finish(self) -> None:
        sizes: dict[int, Segment] = {}
        for held in self._held.values():
            for segment in held:
                total = sizes.setdefault(segment.segment, Segment(segment.segment, segment.start, segment.time_ms))
                total.start_seq = min(total.start_seq, segment.start)
                total.start_time_ms = min(total.start_time_ms, segment.time_ms)
                total.bytes += segment.bytes
        segments = self._sequencer.segments
        for listed in segments:
            if listed.id in sizes and listed.id in self._opened_bytes:
                # Bytes appended since the start are counted already, and nearly all reports came before them.
                listed.bytes += max(sizes[listed.id].bytes - self._opened_bytes[listed.id], 0)
        if self._sequencer.is_new:
            await self._write_state([] if segments else list(sizes.values()))
        first = self._first_segment
        self.stale |= {shard for shard, held in self._held.items() if any(s.segment < first for s in held)}
        self._held.clear()
        self._complete.set()
        self._tell_progress()

    async def _write_state(self, sizes: list[Segment]) -> None:
        """Create the state that did not exist or was lost. The shards know the segments, and when they began unless
        that was before records had times. Returns when the state is on the disk."""
        now, dropped = self._sequencer.time_ms(), max(self._dropped.values(), default=0)
        segments = _with_times([s for s in sizes if s.id >= dropped], now)
        if dropped and not segments and not self._sequencer.segments:
            segments = [
                Segment(dropped, self._sequencer.next, now)
            ]  # so that the new segment is above all dropped ones
        while True:
            try:
                if segments:
                    await self._writes.run(partial(self._sequencer.add_segments, segments))
                segments = []
                return await self._writes.run(self._sequencer.confirm)
            except Unavailable as error:
                event(logging.ERROR, "the log waits for its state to be written", why=error)
                await asyncio.sleep(RETRY_S)

    # Batches given up

    async def revoke(self, segment: int, group: int, spans: Sequence[log.Span], shards: Sequence[int]) -> None:
        """Hide the batches from every reader, and return when that is on disk: until then, the caller lets no reader
        pass them. After that, the batches are removed from these shards.

        No shard is asked to remove anything before that. Otherwise a crash might lose the revocation, and a shard might
        then carry out a late message and remove a batch that the next coordinator has found complete.
        """
        item = Revoked(segment, group, list(spans), list(shards))
        self._sequencer.revoked.append(item)
        self._unsaved.append(item)
        self._hold_settled()
        self.when_revoked(spans)
        while True:
            try:
                await self._writes.run(self._sequencer.save)
                break
            except Unavailable as error:
                if not self._refusal:
                    event(logging.ERROR, "batches taken back cannot be written down; appends and reads wait", why=error)
                self._refusal = str(error)
                await asyncio.sleep(RETRY_S)
        self._refusal = ""
        self._unsaved.remove(item)
        self._to_remove.set()

    def _hold_settled(self) -> None:
        self._frontier.being_removed = min((item.group for item in self._sequencer.revoked), default=log.SEQUENCE_MAX)

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
                if item not in self._unsaved:
                    await self._remove(item)
            if self._sequencer.revoked:
                await asyncio.sleep(RETRY_S)
                self._to_remove.set()

    async def _remove(self, item: Revoked) -> None:
        ready = [shard for shard in item.shards if not self._links.unready([shard])]
        if ready:
            body = pack(log.RevokeBody(item.segment, item.group, item.spans, self._sequencer.life))
            try:
                result = await self._links.fan_out("log.revoke", shards=ready, body=body, timeout_s=self._timeout_s)
            except TriptychError as error:
                event(logging.WARNING, "revoked batches will be removed later", why=error)
                return
            item.shards = [shard for shard in item.shards if shard not in ready or shard in result.missing]
        if not item.shards:
            self._sequencer.revoked.remove(item)
            self._hold_settled()


def _with_times(held: Sequence[Segment], now_ms: int) -> list[Segment]:
    """The segments, ascending. One whose start time is unknown (0) gets that of the next one, or `now_ms`: none of its
    records was appended later."""
    segments: list[Segment] = []
    for segment in sorted(held, key=lambda s: s.id, reverse=True):
        now_ms = min(segment.start_time_ms or now_ms, now_ms)
        segments.append(Segment(segment.id, segment.start_seq, now_ms, segment.bytes))
    return segments[::-1]


@asynccontextmanager
async def _in_time(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise Unavailable("the log is still being recovered after a start; try again later") from None
