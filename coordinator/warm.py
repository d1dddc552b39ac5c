"""Compiles the kernels, or loads them from the disk cache, in the background while the coordinator already serves
requests."""

from __future__ import annotations

import logging
import threading
import time

from coordinator.queries import evaluation
from coordinator.vectors import merging, numbers, walk
from shared.messages.settling import settle
from shared.promql import parser
from shared.telemetry import event


def build_grammar() -> None:
    """The parser's tables: a fraction of a second that would otherwise be taken from the event loop by a query."""
    parser.parse("1")


def start() -> None:
    """Compile in a thread that does not hold up a stop; a request that needs a kernel before that compiles it."""
    settle()
    threading.Thread(target=compile_kernels, name="warm", daemon=True).start()


def compile_kernels() -> None:
    """Those of the coordinator; what the cache has is only loaded."""
    started = time.monotonic()
    numbers.compile_kernels()
    walk.compile_kernels()
    merging.compile_kernels()
    evaluation.warm()
    event(logging.INFO, "kernels compiled", ms=round((time.monotonic() - started) * 1000))
