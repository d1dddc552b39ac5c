"""What happens to the cluster's processes meanwhile: their memory, and which of them end or count as down."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadtest.harness.cluster import Cluster
from loadtest.harness.processes import family, processor_s

SAMPLE_INTERVAL_S = 0.1
SAMPLES_A_LISTING = 10
"""The processes are listed anew after so many samples: to list them costs more than to read their memory."""
AVAILABLE_MB_MIN = 1500
"""The cluster is killed, and counts as restarted, before it takes the last memory of the machine from other work."""
QUIET_SHARE = 0.1
QUIET_WITHIN_S = 180.0
PAGE_BYTES = 4096
MB = 1 << 20


def becomes_quiet(cluster: Cluster) -> bool:
    """Return True when the cluster's processes have taken less than QUIET_SHARE of a processor for a second; False when
    they do not within QUIET_WITHIN_S."""
    give_up = time.monotonic() + QUIET_WITHIN_S
    while time.monotonic() < give_up:
        before = processor_s(family(cluster))
        time.sleep(1)
        if processor_s(family(cluster)) - before < QUIET_SHARE:
            return True
    return False


def resident_mb(processes: list[psutil.Process]) -> float:
    """Resident memory, from a file of counters that costs the process nothing."""
    pages = 0
    for process in processes:
        try:
            pages += int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue  # it ended
    return pages * PAGE_BYTES / MB


def proportional_mb(cluster: Cluster) -> float:
    """Memory with shared pages counted once."""
    total = 0
    for process in family(cluster):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / MB


@dataclass(frozen=True, slots=True)
class Memory:
    """In MB: resident at the beginning, at its highest, at the end; and at both ends with shared pages counted once."""

    before: float
    peak: float
    after: float
    proportional_before: float
    proportional_after: float

    @property
    def growth(self) -> float:
        return self.peak - self.before


@dataclass(frozen=True, slots=True)
class Faults:
    """`restarts` of processes, and what the coordinator's log says of workers that count as down."""

    restarts: int
    down: tuple[str, ...]


class Watch:
    """From the moment it is made until `end`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._log = cluster.directory / "coordinator.log"
        self._log_start = self._log.stat().st_size
        self._workers = set(self._worker_pids())
        self._proportional_before = proportional_mb(cluster)
        self._before = self._peak = resident_mb(family(cluster))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def end(self) -> tuple[Memory, Faults]:
        self._stop.set()
        self._thread.join()
        after = resident_mb(family(self._cluster))
        peak = max(self._peak, after)
        memory = Memory(self._before, peak, after, self._proportional_before, proportional_mb(self._cluster))
        lines = self._log.read_bytes()[self._log_start :].decode(errors="replace").splitlines()
        down = tuple(line for line in lines if "worker is gone" in line)
        ended = len(self._workers - set(self._worker_pids()))
        coordinator = self._cluster.coordinator
        return memory, Faults(ended + (coordinator is None or coordinator.poll() is not None), down)

    def _worker_pids(self) -> list[int]:
        """Children of the supervisor that are no compilers of kernels: those live as long as it does."""
        supervisor = self._cluster.supervisor
        if supervisor is None or supervisor.poll() is not None:
            return []
        return [child.pid for child in psutil.Process(supervisor.pid).children()]

    def _sample(self) -> None:
        processes: list[psutil.Process] = []
        number = 0
        while not self._stop.wait(SAMPLE_INTERVAL_S):
            if number % SAMPLES_A_LISTING == 0:
                try:
                    processes = family(self._cluster)
                except psutil.NoSuchProcess:
                    continue  # one ended meanwhile
            number += 1
            self._peak = max(self._peak, resident_mb(processes))
            if psutil.virtual_memory().available < AVAILABLE_MB_MIN * MB:
                for process in processes:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
