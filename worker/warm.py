"""Compiles the kernels, or loads them from the disk cache, before requests need them."""

from __future__ import annotations

import logging
import os
import time

from shared.promql.engine import warm as engine
from shared.telemetry import event
from worker.vectors import ann, ranking, similarity

LOWEST_PRIORITY = 19


def fill_cache() -> None:
    """Compile the kernels of queries and searches into the cache on disk, in a process of its own at the lowest
    priority: a first start is ready without them, and a request that needs one meanwhile compiles just that one."""
    os.nice(LOWEST_PRIORITY)
    compile_kernels()


def compile_kernels() -> None:
    """Those of queries and searches; what the cache has is only loaded."""
    started = time.monotonic()
    engine.compile_kernels()
    ann.compile_kernels()
    similarity.compile_kernels()
    ranking.compile_kernels()
    event(logging.INFO, "kernels compiled", ms=round((time.monotonic() - started) * 1000))
