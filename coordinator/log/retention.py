"""Retention: whole segments leave the log when they are too old or the log is too large."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from coordinator.fanout.links import Links
from coordinator.log.recovery import Recovery
from coordinator.log.sequencer import Sequencer
from coordinator.log.state_writes import StateWrites
from shared.errors import TriptychError
from shared.messages import log
from shared.settings import Settings
from shared.telemetry import event
from shared.wall_clock import Ages
from shared.wire import pack

CHECK_EVERY_S = 1.0


class Retention:
    """Drops segments from the log, then from the shards."""

    def __init__(
        self,
        settings: Settings,
        links: Links,
        sequencer: Sequencer,
        recovery: Recovery,
        writes: StateWrites,
        end_segment: Callable[[], Awaitable[None]],
        ages: Ages,
    ) -> None:
        """`end_segment` begins a new segment while no append takes a number."""
        self._settings = settings
        self._links = links
        self._sequencer = sequencer
        self._recovery = recovery
        self._writes = writes
        self._end_segment = end_segment
        self._ages = ages

    async def run(self) -> None:
        """Every CHECK_EVERY_S, once the segments are known: drop the segments that are due, then have the shards remove
        their records. A missing shard does so when it is back, and the others do not wait for it: they would fill the
        disk."""
        await self._recovery.wait_for_state()
        while True:
            try:
                await self._check()
            except TriptychError as error:
                event(logging.WARNING, "log retention will be tried again", why=error)
            await asyncio.sleep(CHECK_EVERY_S)

    async def _check(self) -> None:
        if self._settings.log_retention_ms and self._sequencer.segment_is_due():
            # Appends end segments too, but a log that is no longer written gets no further append.
            await self._end_segment()
        count = self._due()
        if count:
            await self._writes.run(partial(self._sequencer.drop_segments, count))
            event(logging.INFO, "log segments dropped", segments=count, log_start=self._sequencer.log_start)
            self._recovery.segments_dropped()
        shards = [shard for shard in self._recovery.stale if not self._links.unready([shard])]
        if shards:
            body = pack(log.DropBody(self._sequencer.segments[0].id, self._sequencer.log_start))
            timeout_s = self._settings.query_timeout_ms / 1000
            result = await self._links.fan_out("log.drop", shards=shards, body=body, timeout_s=timeout_s)
            self._recovery.stale.difference_update(shard for shard in shards if shard not in result.missing)

    def _due(self) -> int:
        """How many segments, from the oldest, are to be dropped: those that ended before the retention time, if the
        clock can be trusted, and those above the retention size. The last segment still grows and stays."""
        segments = self._sequencer.segments
        count = 0
        oldest_ms = self._ages.before_ms(self._settings.log_retention_ms) if self._settings.log_retention_ms else None
        if oldest_ms is not None:
            while count < len(segments) - 1 and segments[count + 1].start_time_ms < oldest_ms:
                count += 1
        if self._settings.log_retention_bytes:
            total = sum(segment.bytes for segment in segments[count:])
            while count < len(segments) - 1 and total > self._settings.log_retention_bytes:
                total -= segments[count].bytes
                count += 1
        return count
