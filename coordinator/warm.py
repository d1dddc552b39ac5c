"""Compiles the kernels of the coordinator, or loads them from the disk cache: in the background while it already serves
requests, or ahead of its first start with `python -m coordinator.warm`."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time

from shared import array_memory
from shared.kernels import compile_all
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
    started = time.monotonic()
    compile_all()
    event(logging.INFO, "kernels compiled", ms=round((time.monotonic() - started) * 1000))


def main() -> None:
    """Put every kernel of the coordinator into the cache on disk."""
    started = time.monotonic()
    importlib.import_module("coordinator.app")  # imports this module, and all that declare kernels
    array_memory.prepare()
    count = compile_all()
    sys.stdout.write(f"{count} kernels of the coordinator compiled in {time.monotonic() - started:.1f} s\n")


if __name__ == "__main__":
    main()
