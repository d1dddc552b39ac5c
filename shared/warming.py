"""Fills the cache of compiled kernels: ahead of the first start, or beside requests if nobody did so."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
import time

from shared import array_memory, kernel_cache
from shared.kernels import compile_all, ready_count
from shared.telemetry import event

LOWEST_PRIORITY = 19
POLL_S = 0.2
PROGRESS_S = 5.0

_fork = multiprocessing.get_context("fork")


def fill(role: str) -> None:
    """Compile every kernel of the modules imported so far into the cache on disk, with a process for each processor,
    and say how far they are. Exits the process if one of them fails. Call it before the process has threads."""
    started = said = time.monotonic()
    ready, count = ready_count()
    if ready == count:
        sys.stdout.write(f"{count} kernels of the {role} are compiled already\n")
        return
    sys.stdout.write(f"{count - ready} of {count} kernels of the {role} are compiled now, once for this version\n")
    sys.stdout.flush()  # the processes that are forked would write it again
    children = [_fork.Process(target=_compile) for _ in range(len(os.sched_getaffinity(0)))]
    for child in children:
        child.start()
    while any(child.is_alive() for child in children):
        time.sleep(POLL_S)
        if time.monotonic() - said > PROGRESS_S:
            said = time.monotonic()
            sys.stdout.write(f"{ready_count()[0]} of {count} kernels of the {role}\n")
            sys.stdout.flush()
    if any(child.exitcode != 0 for child in children):
        sys.exit(f"kernels of the {role} could not be compiled")
    sys.stdout.write(f"{count} kernels of the {role} are compiled, in {time.monotonic() - started:.1f} s\n")
    kernel_cache.tidy()


def _compile() -> None:
    array_memory.prepare()
    compile_all(shares_work=True)


def fill_beside_requests() -> None:
    """Compile every kernel into the cache on disk, one at a time and only while the processors have nothing else to do:
    a start is ready without those of queries and searches, and a request that needs one meanwhile compiles just that
    one."""
    with contextlib.suppress(OSError):  # a container may refuse it
        os.nice(LOWEST_PRIORITY)
        # The kernel of the system interrupts this process for any other at once, whatever the policy of that one.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    started = time.monotonic()
    _compile()
    event(logging.INFO, "kernels compiled", ms=round((time.monotonic() - started) * 1000))
    if removed := kernel_cache.tidy():
        event(
            logging.INFO, "kernels of other versions removed", files=removed, unused_for_days=kernel_cache.UNUSED_DAYS
        )
