"""The measurements of workers and host, and all metrics together."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.fanout.links import Links
from coordinator.watching.host import Host
from coordinator.watching.telemetry import Telemetry, render
from coordinator.watching.workers import WorkerMeasurements

WAIT_S = 0.5
"""How long the metrics wait for workers and for the disk. After that, their last numbers are shown with their age."""


class Watch:
    """For the event loop's thread only."""

    def __init__(self, telemetry: Telemetry, links: Links, directory: Path) -> None:
        self.telemetry = telemetry
        self._host = Host(directory)
        self._workers = WorkerMeasurements(links)
        self._rendering = asyncio.Lock()  # so that whoever asks again and again has one processor at most
        telemetry.watch(self._host.put)
        telemetry.watch(self._workers.put)

    async def refresh(self) -> None:
        """Let the workers and the disk be measured. Returns after WAIT_S at the latest."""
        await asyncio.gather(self._host.refresh(WAIT_S), self._workers.refresh(WAIT_S))

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics as they are now, in the format that an Accept header asks for, and its content type."""
        await self.refresh()
        async with self._rendering:
            return await asyncio.to_thread(render, self.telemetry.values(), accept)
