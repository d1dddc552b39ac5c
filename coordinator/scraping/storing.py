"""Stores scrapes, on the path of remote write from the decompressed body on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from coordinator.fanout.links import Links
from coordinator.limits.pressure import Level, Pressure
from coordinator.series import lessons, metadata, remote_write
from coordinator.series.groups import SampleWrites
from coordinator.series.remote_write import NO_REFERENCES, Limits
from coordinator.series.series_references import SeriesReferences
from coordinator.series.split_request import SplitRequest
from shared.errors import Unavailable
from shared.messages.series import FamilyMetadata
from shared.settings import Settings

THREADS = 2
"""Answers that are parsed at once: more would only take the interpreter from requests."""

T = TypeVar("T")


class ScrapeStore:
    """For the event loop's thread only."""

    def __init__(
        self,
        settings: Settings,
        links: Links,
        samples: SampleWrites,
        references: SeriesReferences,
        pressure: Pressure,
    ) -> None:
        self._settings = settings
        self._links = links
        self._samples = samples
        self._references = references
        self._pressure = pressure
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="scrape")

    @property
    def refuses(self) -> bool:
        """Whether writes are refused because of overload."""
        return self._pressure.level >= Level.WRITES

    async def work(self, function: Callable[[], T]) -> T:
        """`function()` in a thread of scrapes."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def split(self, body: bytes) -> SplitRequest:
        """A body of remote write 1.0, divided by shard. Work for a thread. Raises TooLarge."""
        return remote_write.split(body, self._settings.shard_count(), Limits.of(self._settings), self._references)

    async def store(self, body: bytes, split_request: SplitRequest) -> None:
        """Return when all of it is stored. Raises Unavailable or Overloaded; the parts for shards that are not missing
        may be stored nevertheless."""
        missing = self._links.unready(split_request.parts)
        parts = {shard: frames for shard, frames in split_request.parts.items() if shard not in missing}
        if parts:
            receipt = await self._samples.write(parts)
            if receipt.stale:
                stale = {shard for shard, _ in receipt.stale}
                again = partial(
                    remote_write.split, body, self._settings.shard_count(), Limits.of(self._settings), NO_REFERENCES
                )
                with_labels = await self.work(again)
                await self._samples.write(
                    {shard: frames for shard, frames in with_labels.parts.items() if shard in stale}
                )
            if receipt.epochs:
                await self.work(partial(lessons.learn, split_request.lessons, self._references, receipt))
        if missing:
            shard, why = next(iter(missing.items()))
            raise Unavailable(f"samples of {len(missing)} shards were not stored: shard {shard}: {why}")

    async def keep(self, families: Sequence[FamilyMetadata]) -> None:
        """Store metadata. Raises Unavailable."""
        for at in range(0, len(families), metadata.METADATA_MAX):
            entries = families[at : at + metadata.METADATA_MAX]
            await metadata.keep(self._links, entries, self._settings.write_timeout_ms / 1000)

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
