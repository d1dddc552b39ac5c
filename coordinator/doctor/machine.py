"""Checks of the machine: limits of the process, processors, memory, the clock, the kernel and Python."""

from __future__ import annotations

import ctypes
import math
import platform
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from coordinator.doctor.finding import Finding, ok, problem, size, warning
from coordinator.limits import connections
from coordinator.limits.available_memory import Memory
from coordinator.plurals import counted
from shared.process import interpreter, open_files
from shared.process.processors import usable
from shared.settings import Settings

MACHINE = "machine"
PROCESSES_MIN = 1024
"""Processes and threads of this user: the service has some hundred."""
MEMORY_MIN_BYTES = 1 << 30
SWAPPED_SHARE_MAX = 0.1
KERNEL_OLDEST = (5, 4)
RELEASED_S = 1_735_689_600
"""A clock before 2025 is wrong."""
CLOCK_ERROR_MAX_S = 1.0
TIME_ERROR, STATUS_UNSYNCHRONISED = 5, 0x40
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


def look(settings: Settings) -> Iterator[Finding]:
    """Everything about the machine, for a cluster with these settings."""
    open_files.raise_limit()  # as the service does
    yield open_file_limit(open_files.limit(), settings)
    yield from limits()
    yield processors(usable(), settings.worker_count())
    memory = Memory()
    yield machine_memory(memory.total_bytes(), psutil.virtual_memory().total, memory.available_bytes())
    yield swap(psutil.swap_memory().used, memory.total_bytes())
    yield huge_pages(_read(_HUGE_PAGES))
    yield overcommit(_read(_OVERCOMMIT))
    yield clock(time.time(), *clock_state())
    yield kernel(platform.release())
    yield python(interpreter.is_optimised())


def open_file_limit(limit: int, settings: Settings) -> Finding:
    per_worker = open_files.needed_by_worker(settings.shard_count(), settings.worker_count())
    needed = max(per_worker, settings.connections_max + connections.OWN_FILES + connections.backlog())
    seen = f"a process may open {limit} files; {needed} are needed"
    if limit >= needed:
        return ok(MACHINE, "open files", seen)
    right = f"raise the hard limit to {needed} (ulimit -Hn, LimitNOFILE= of systemd) or lower TRIPTYCH_CONNECTIONS_MAX"
    say = problem if limit < per_worker else warning
    return say(MACHINE, "open files", seen, right)


def limits() -> Iterator[Finding]:
    """Limits of a process that must not be set."""
    for name, option, number in (
        ("address space", "ulimit -v", resource.RLIMIT_AS),
        ("file size", "ulimit -f", resource.RLIMIT_FSIZE),
    ):
        soft, _ = resource.getrlimit(number)
        if soft == resource.RLIM_INFINITY:
            yield ok(MACHINE, name, "unlimited")
        else:
            yield problem(MACHINE, name, f"limited to {size(soft)}", f"remove the limit: {option} unlimited")
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and soft < PROCESSES_MIN:
        yield warning(
            MACHINE, "processes and threads", f"limited to {soft}", f"raise the limit: ulimit -u {PROCESSES_MIN}"
        )


def processors(available: float, workers: int) -> Finding:
    seen = f"{available:g} processors for {counted(workers, 'workers')}"
    if workers <= max(1, math.ceil(available)):
        return ok(MACHINE, "processors", seen)
    right = f"use at most one worker per processor: TRIPTYCH_WORKERS={max(1, math.floor(available))}"
    return warning(MACHINE, "processors", seen, right)


def machine_memory(total: int, of_machine: int, available: int) -> Finding:
    seen = f"{size(total)}, {size(available)} of it available"
    if total < of_machine:
        seen += f"; the control group limits the machine's {size(of_machine)} to this"
    if total < MEMORY_MIN_BYTES:
        return problem(MACHINE, "memory", seen, f"use a machine or a limit of at least {size(MEMORY_MIN_BYTES)}")
    if available < total / 10:
        return warning(
            MACHINE, "memory", seen, "stop other processes until at least a tenth is available before the start"
        )
    return ok(MACHINE, "memory", seen)


def swap(used: int, total: int) -> Finding:
    seen = f"{size(used)} swapped out"
    if used <= SWAPPED_SHARE_MAX * total:
        return ok(MACHINE, "swap", seen)
    right = "add memory, lower the budgets or turn swap off: a query that reads swapped memory waits for the disk"
    return warning(MACHINE, "swap", seen, right)


def huge_pages(setting: str) -> Finding:
    match = re.search(r"\[(\w+)\]", setting)
    chosen = match[1] if match else "unknown"
    if chosen != "always":
        return ok(MACHINE, "transparent huge pages", chosen)
    right = "set it to madvise: with always, processes take more memory than they use, and pause while it is compacted"
    return warning(MACHINE, "transparent huge pages", chosen, right)


def overcommit(setting: str) -> Finding:
    if setting.strip() != "2":
        return ok(MACHINE, "memory overcommit", setting.strip() or "unknown")
    right = "set vm.overcommit_memory to 0 or 1: with 2, processes are refused memory although some is free"
    return warning(MACHINE, "memory overcommit", "2 (never)", right)


class _TimeX(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


def clock_state() -> tuple[bool | None, float]:
    """Whether something keeps the clock right, None if the kernel does not tell, and how wrong it may be, in
    seconds."""
    state = _TimeX()
    result = ctypes.CDLL(None).adjtimex(ctypes.byref(state))
    if result < 0:
        return None, 0.0
    return result != TIME_ERROR and not state.status & STATUS_UNSYNCHRONISED, state.maxerror / 1e6


def clock(now_s: float, is_synchronised: bool | None, error_max_s: float) -> Finding:
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < RELEASED_S:
        return problem(
            MACHINE, "clock", shown, "set it to the current time, by which samples and log segments are dated"
        )
    right = "synchronise it with chrony, ntpd or systemd-timesyncd; a clock that is set back makes retention wrong"
    if is_synchronised is False:
        return warning(MACHINE, "clock", f"{shown}, not synchronised", right)
    if error_max_s > CLOCK_ERROR_MAX_S:
        return warning(MACHINE, "clock", f"{shown}, with an error of up to {error_max_s:.1f} s", right)
    return ok(MACHINE, "clock", shown)


def kernel(release: str) -> Finding:
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if version >= KERNEL_OLDEST:
        return ok(MACHINE, "kernel", release)
    right = f"use {'.'.join(map(str, KERNEL_OLDEST))} or later; the service is not tested with older ones"
    return warning(MACHINE, "kernel", release, right)


def python(is_optimised: bool) -> Finding:
    seen = f"{platform.python_version()} in {sys.base_prefix}"
    if is_optimised:
        return ok(MACHINE, "Python", seen)
    seen += ", compiled without optimisations"
    right = "use the operating system's, or one compiled with --enable-optimizations: it needs a fifth less CPU time"
    return warning(MACHINE, "Python", seen, right)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
