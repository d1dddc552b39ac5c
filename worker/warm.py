"""Compiles, or loads from the cache on disk, the kernels every worker needs before it can serve."""

from __future__ import annotations

import logging
import time

from shared.promql.engine import warm as engine
from shared.telemetry import event
from worker.methods import all_methods
from worker.vectors import similarity


def compile_kernels() -> None:
    """Done once in the supervisor, before it forks: the first start pays for the compiler once, not once a worker,
    and a restarted worker imports nothing."""
    started = time.monotonic()
    all_methods()  # kernels with a declared signature are compiled when their module is imported
    engine.compile_kernels()
    similarity.compile_kernels()
    event(logging.INFO, "kernels ready", ms=round((time.monotonic() - started) * 1000))
