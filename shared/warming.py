"""Fills the cache of compiled kernels: before the first start or, if that was not done, while requests are served."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
import tempfile
import time

from shared.kernels import cache as kernel_cache
from shared.kernels import compile_all, ready_count
from shared.process import array_memory
from shared.telemetry import event

LOWEST_PRIORITY = 19
POLL_S = 0.2
PROGRESS_S = 5.0
TRIAL_BYTES = 1 << 20
"""Larger than the files of any kernel."""

_fork = multiprocessing.get_context("fork")


def fill(role: str) -> None:
    """Compile all kernels of the modules imported so far into the disk cache, with a process for each CPU, and print
    the progress. Exits the process with an error if one of them cannot be compiled or stored. Call this before the
    process has threads."""
    started = reported_at = time.monotonic()
    ready, count = ready_count()
    if ready == count:
        sys.stdout.write(f"{count} kernels of the {role} are compiled already\n")
        return
    _require_writable_cache(role)
    sys.stdout.write(f"{count - ready} of {count} kernels of the {role} are compiled now, once for this version\n")
    sys.stdout.flush()  # otherwise forked processes would write it again
    children = [_fork.Process(target=_compile) for _ in range(len(os.sched_getaffinity(0)))]
    for child in children:
        child.start()
    while any(child.is_alive() for child in children):
        time.sleep(POLL_S)
        if time.monotonic() - reported_at > PROGRESS_S:
            reported_at = time.monotonic()
            sys.stdout.write(f"{ready_count()[0]} of {count} kernels of the {role}\n")
            sys.stdout.flush()
    if any(child.exitcode != 0 for child in children):
        sys.exit(f"kernels of the {role} could not be compiled")
    stored, _ = ready_count()
    if stored < count:
        _require_writable_cache(role)
        sys.exit(
            f"{count - stored} of {count} kernels of the {role} are missing from {kernel_cache.directory()} although "
            "they were compiled; run this again"
        )
    sys.stdout.write(f"{count} kernels of the {role} are compiled, in {time.monotonic() - started:.1f} s\n")
    kernel_cache.tidy()


def _require_writable_cache(role: str) -> None:
    """Exit with an error if the cache cannot be written: a kernel that cannot be stored is compiled at each start."""
    directory = kernel_cache.directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(TRIAL_BYTES))
    except OSError as error:
        sys.exit(
            f"kernels of the {role} cannot be stored: the kernel cache {directory} cannot be written "
            f"({error.strerror}); correct this, or set {kernel_cache.VARIABLE} to another directory, here and for the "
            "service"
        )


def _compile() -> None:
    array_memory.prepare()
    compile_all(shares_work=True)


def fill_beside_requests() -> None:
    """Compile all kernels into the disk cache, one at a time and only while the CPUs are idle. A start does not wait
    for the kernels of queries and searches; a request that needs one meanwhile compiles only that one."""
    with contextlib.suppress(OSError):  # a container may refuse it
        os.nice(LOWEST_PRIORITY)
        # Linux preempts this process at once in favour of any other process, whatever the policy of that one.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    started = time.monotonic()
    _compile()
    event(logging.INFO, "kernels compiled", ms=round((time.monotonic() - started) * 1000))
    if removed := kernel_cache.tidy():
        event(
            logging.INFO, "kernels of other versions removed", files=removed, unused_for_days=kernel_cache.UNUSED_DAYS
        )
