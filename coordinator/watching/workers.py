"""The measurements of the workers, which are requested when the metrics are read, at most once a second."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from coordinator.fanout.links import Links
from shared.measurements import Values

INTERVAL_S = 1.0
"""Measurements are not requested again within this time, however many clients read the metrics."""


class WorkerMeasurements:
    """The last measurements of each connected worker. For the event loop's thread only."""

    def __init__(self, links: Links) -> None:
        self._links = links
        links.measured = self._came
        self._by_worker: dict[str, tuple[Values, float]] = {}
        self._awaited: set[str] = set()
        self._all_came = asyncio.Event()
        self._asked_at = float("-inf")

    async def refresh(self, within_s: float) -> None:
        """Ask all workers. Returns when they have answered or the time is over."""
        now = time.monotonic()
        if now - self._asked_at >= INTERVAL_S:
            self._asked_at = now
            self._all_came.clear()
            self._awaited = self._links.ask_measurements()
        if self._awaited:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._all_came.wait()

    def _came(self, worker: str, values: Values) -> None:
        self._by_worker[worker] = values, time.monotonic()
        self._awaited.discard(worker)
        if not self._awaited:
            self._all_came.set()

    def put(self, values: Values) -> None:
        """Add the last measurements of the workers that are connected."""
        connected = {name for name, *_ in self._links.workers()}
        self._by_worker = {name: entry for name, entry in self._by_worker.items() if name in connected}
        for name, (measured, at) in sorted(self._by_worker.items()):
            values.update(measured)
            values.put("triptych_worker_measured_seconds", time.monotonic() - at, name)
