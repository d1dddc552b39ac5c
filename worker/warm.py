"""Compiles the workers' kernels, or loads them from the disk cache: beside the workers, or ahead of their first start
with `python -m worker.warm`."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import time

from shared import array_memory, kernel_cache
from shared.kernels import compile_all
from shared.telemetry import event

LOWEST_PRIORITY = 19


def fill_cache() -> None:
    """Compile all kernels into the cache on disk, in a process of its own at the lowest priority: a first start is
    ready without those of queries and searches, and a request that needs one meanwhile compiles just that one. Then
    remove the kernels of other versions that are no longer used."""
    with contextlib.suppress(OSError):  # a container may refuse it
        os.nice(LOWEST_PRIORITY)
    started = time.monotonic()
    compile_all()
    event(logging.INFO, "kernels compiled", ms=round((time.monotonic() - started) * 1000))
    removed = kernel_cache.tidy()
    if removed:
        event(logging.INFO, "kernels of other versions removed", directories=removed, days=kernel_cache.UNUSED_DAYS)


def main() -> None:
    """Put every kernel of the workers into the cache on disk."""
    started = time.monotonic()
    importlib.import_module("worker.methods.table")  # imports all that declare kernels
    array_memory.prepare()
    count = compile_all()
    sys.stdout.write(f"{count} kernels of the workers compiled in {time.monotonic() - started:.1f} s\n")


if __name__ == "__main__":
    main()
