"""Metrics of a process about itself: CPU time, memory, open files."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import psutil

from shared.measurements import Values
from shared.process import array_memory

SUPERVISOR = "supervisor"
PAGES_INTERVAL_S = 60.0
"""How often to count shared pages. The kernel walks all pages of the process for that, about 10 ms for each
gigabyte."""


class ProcessMeasurements:
    """The metrics of this process. The program must be loaded when this is created: memory that is taken later counts
    as data. For one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = psutil.Process()
        self._started_at = self._process.create_time()
        self._pages: dict[str, int] = {}
        self._pages_due = 0.0
        self._program_bytes = anonymous_bytes()

    def put(self, values: Values) -> None:
        """Add the current numbers. Those of shared pages are up to PAGES_INTERVAL_S old."""
        process, name = self._process, self._name
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            threads = process.num_threads()
        now = time.monotonic()
        if now >= self._pages_due:
            self._pages_due = now + PAGES_INTERVAL_S
            self._pages = _fields(Path("/proc/self/smaps_rollup"))
        values.put("triptych_process_cpu_seconds_total", times.user + times.system, name)
        values.put("triptych_process_resident_bytes", memory.rss, name)
        values.put("triptych_process_virtual_bytes", memory.vms, name)
        values.put("triptych_process_anonymous_bytes", anonymous_bytes(), name)
        values.put("triptych_process_shared_bytes", sum(self._pages.get(each, 0) for each in _SHARED), name)
        values.put("triptych_process_pss_bytes", self._pages.get("Pss", 0), name)
        values.put("triptych_process_open_files", process.num_fds(), name)
        values.put("triptych_process_open_files_max", resource.getrlimit(resource.RLIMIT_NOFILE)[0], name)
        values.put("triptych_process_threads", threads, name)
        values.put("triptych_process_start_time_seconds", self._started_at, name)
        values.put("triptych_memory_bytes", self._program_bytes, name, "program")
        values.put("triptych_memory_bytes", array_memory.in_use_bytes(), name, "queries")


_SHARED = ("Shared_Clean", "Shared_Dirty")


def put_supervisor(values: Values, pid: int) -> None:
    """Add the memory of the supervisor, which serves no requests and so cannot report it."""
    pages = _fields(Path(f"/proc/{pid}/status"))
    if "VmRSS" in pages:
        values.put("triptych_process_resident_bytes", pages["VmRSS"], SUPERVISOR)
        values.put("triptych_process_anonymous_bytes", pages["RssAnon"], SUPERVISOR)


def anonymous_bytes() -> int:
    """The memory of this process that is not mapped from files, including pages shared with forked processes; 0 if the
    system does not report it."""
    return _fields(Path("/proc/self/status")).get("RssAnon", 0)


def _fields(path: Path) -> dict[str, int]:
    """Name → bytes, from the lines in kB of a /proc file; empty if it cannot be read, as in some containers."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    words = [line.replace(":", " ", 1).split() for line in lines if line.endswith(" kB")]
    return {name: int(number) << 10 for name, number, _ in words}
