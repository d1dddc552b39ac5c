"""Facts from the operating system: about this process, about the space on the disk of the data directory, and the file
that the supervisor of the workers has left there.

A disk that does not answer must not stop the event loop. So a thread asks, and the last answer is shown with its age.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared.measurements import Values
from shared.process import supervision
from shared.process.measurements import ProcessMeasurements, put_supervisor

NAME = "coordinator"
_STANDARD = {
    "process_cpu_seconds_total": "triptych_process_cpu_seconds_total",
    "process_resident_memory_bytes": "triptych_process_resident_bytes",
    "process_virtual_memory_bytes": "triptych_process_virtual_bytes",
    "process_start_time_seconds": "triptych_process_start_time_seconds",
    "process_open_fds": "triptych_process_open_files",
    "process_max_fds": "triptych_process_open_files_max",
}
"""The names that Prometheus's client libraries use for the same metrics."""


class Host:
    """For the event loop's thread only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = ProcessMeasurements(NAME)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="measure")
        self._asked: asyncio.Future[Values] | None = None
        self._known = Values()
        self._known_at = 0.0

    async def refresh(self, within_s: float) -> None:
        """Ask the operating system. Returns when it has answered or the time is over."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().run_in_executor(self._pool, self._measure)
            self._asked.add_done_callback(self._answered)
        await asyncio.wait([self._asked], timeout=within_s)

    def _measure(self) -> Values:
        values = Values()
        self._process.put(values)
        for name, own in _STANDARD.items():
            value = values.get(own, NAME)
            assert isinstance(value, float)
            values.put(name, value)
        told = supervision.read(self._directory)
        if told is not None:
            _put_exits(values, told)
        status = os.statvfs(self._directory)
        values.put("triptych_disk_free_bytes", status.f_bavail * status.f_frsize)
        values.put("triptych_disk_size_bytes", status.f_blocks * status.f_frsize)
        return values

    def _answered(self, asked: asyncio.Future[Values]) -> None:
        self._asked = None
        if not asked.cancelled() and asked.exception() is None:
            self._known, self._known_at = asked.result(), time.monotonic()

    def put(self, values: Values) -> None:
        """Add the last answer and its age."""
        values.update(self._known)
        if self._known_at:
            values.put("triptych_disk_measured_seconds", time.monotonic() - self._known_at)


def _put_exits(values: Values, told: supervision.Supervision) -> None:
    values.put("triptych_supervisor_start_time_seconds", told.started_at)
    put_supervisor(values, told.pid)
    for worker, exits in told.workers.items():
        values.put("triptych_worker_exits_total", exits.count, worker)
        if exits.count:
            values.put("triptych_worker_last_exit_timestamp_seconds", exits.at, worker, exits.reason)
