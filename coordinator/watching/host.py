"""What has to be asked of the operating system: this process, and the space on the disk of the data directory.

A disk that does not answer must not stop the event loop, so a thread asks, and the last answer is shown with its age.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared.measurements import Values
from shared.process_measurements import ProcessMeasurements

NAME = "coordinator"
_STANDARD = {
    "process_cpu_seconds_total": "triptych_process_cpu_seconds_total",
    "process_resident_memory_bytes": "triptych_process_resident_bytes",
    "process_virtual_memory_bytes": "triptych_process_virtual_bytes",
    "process_start_time_seconds": "triptych_process_start_time_seconds",
    "process_open_fds": "triptych_process_open_files",
    "process_max_fds": "triptych_process_open_files_max",
}
"""The names that Prometheus's client libraries have for the same."""


class Host:
    """For the event loop's thread only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = ProcessMeasurements(NAME)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="measure")
        self._asked: asyncio.Future[tuple[int, int]] | None = None
        self._space: tuple[int, int] | None = None
        self._space_at = 0.0

    async def refresh(self, within_s: float) -> None:
        """Ask for the space on the disk; returns when it is known or the time is over."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().run_in_executor(self._pool, self._measure)
            self._asked.add_done_callback(self._known)
        await asyncio.wait([self._asked], timeout=within_s)

    def _measure(self) -> tuple[int, int]:
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def _known(self, asked: asyncio.Future[tuple[int, int]]) -> None:
        self._asked = None
        if not asked.cancelled() and asked.exception() is None:
            self._space, self._space_at = asked.result(), time.monotonic()

    def put(self, values: Values) -> None:
        """Add the numbers of now."""
        self._process.put(values)
        for name, own in _STANDARD.items():
            value = values.get(own, NAME)
            assert isinstance(value, float)
            values.put(name, value)
        if self._space is not None:
            free, size = self._space
            values.put("triptych_disk_free_bytes", free)
            values.put("triptych_disk_size_bytes", size)
            values.put("triptych_disk_measured_seconds", time.monotonic() - self._space_at)
