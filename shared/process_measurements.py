"""What a process says about itself: processor time, memory, open files."""

from __future__ import annotations

import resource
import time

import psutil

from shared import array_memory
from shared.measurements import Values

PSS_INTERVAL_S = 60.0
"""The kernel walks all pages of the process for its proportional share of memory: some 10 ms for each gigabyte."""


class ProcessMeasurements:
    """Of this process. For one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = psutil.Process()
        self._started_at = self._process.create_time()
        self._pss_bytes = 0
        self._pss_due = 0.0

    def put(self, values: Values) -> None:
        """Add the numbers of now; the proportional share of memory is up to PSS_INTERVAL_S old."""
        process, name = self._process, self._name
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            threads = process.num_threads()
        now = time.monotonic()
        if now >= self._pss_due:
            self._pss_due = now + PSS_INTERVAL_S
            self._pss_bytes = _pss_bytes()
        values.put("triptych_process_cpu_seconds_total", times.user + times.system, name)
        values.put("triptych_process_resident_bytes", memory.rss, name)
        values.put("triptych_process_virtual_bytes", memory.vms, name)
        values.put("triptych_process_pss_bytes", self._pss_bytes, name)
        values.put("triptych_process_open_files", process.num_fds(), name)
        values.put("triptych_process_open_files_max", resource.getrlimit(resource.RLIMIT_NOFILE)[0], name)
        values.put("triptych_process_threads", threads, name)
        values.put("triptych_process_start_time_seconds", self._started_at, name)
        values.put("triptych_memory_bytes", array_memory.in_use_bytes(), name, "queries")


def _pss_bytes() -> int:
    """The process's memory, where each shared page counts with the part that falls to it; 0 if nobody may know."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass  # a container may hide it
    return 0
