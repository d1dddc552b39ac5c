"""The log's modules with the simulation's time, threads, disk and wire in place of the real ones; and small bounds, so
that a few records are enough to reach every one of them."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import shared.telemetry
import shared.wire
from tests.simulation.network import Wire
from tests.simulation.world import Clock, Event, Lock, Thread, World

PACKAGES = ("coordinator.log", "worker.logs")
MODULES = (
    "coordinator.fanout.links",
    "coordinator.fanout.membership",
    "coordinator.fanout.calls",
    "worker.process",
    "worker.serving",
    "shared.wire",
)
SUBSTITUTES: dict[int, Any] = {
    id(time): Clock,
    id(threading.Lock): Lock,
    id(threading.Event): Event,
    id(threading.Thread): Thread,
}
Bounds = dict[tuple[str, str], int]
WIDE: Bounds = {
    ("worker.logs.part", "GATHER_RECORDS"): 6,
    ("worker.logs.part", "GATHER_RECORDS_MIN"): 4,
    ("worker.logs.part", "GATHER_ROWS"): 8,
    ("worker.logs.part", "FLUSH_BYTES"): 4_000,
    ("worker.logs.reading", "LOOKED_AT_MAX"): 50_000,
    ("worker.logs.reading", "RECENT_RUN_RECORDS"): 1024,
    ("worker.logs.gathering", "RUN_RECORDS_MAX"): 4096,
    ("worker.logs.cleaner", "NICENESS"): 0,
    ("worker.logs.cleaning", "KEYS_AT_ONCE"): 256,
    ("worker.logs.cleaning", "ENTRIES_AT_ONCE"): 8,
    ("worker.logs.cleaning", "KEYS_A_WRITE"): 4096,
    ("worker.logs.recent", "FIRST_WORDS"): 16,
    ("worker.logs.recent", "FIRST_ROWS"): 2,
    ("coordinator.log.reads", "PAGE_RECORDS"): 8192,
    ("coordinator.log.sequencer", "RESERVE_AHEAD"): 1 << 20,
    ("coordinator.log.waiting", "FEW_BATCHES"): 2,
    ("coordinator.log.waiting", "SMALL_RECORDS"): 3,
    ("coordinator.log.waiting", "LARGE_RECORDS"): 4,
    ("coordinator.log.follow", "QUEUE_RECORDS_MAX"): 1000,
    ("coordinator.log.frontier", "UNSEEN_MAX"): 4096,
}
"""Ordinary pages and queues: a read is one message, so that many histories can be run."""
NARROW_READS: Bounds = {
    **WIDE,
    ("worker.logs.reading", "LOOKED_AT_MAX"): 3,
    ("worker.logs.reading", "RECENT_RUN_RECORDS"): 2,
    ("worker.logs.gathering", "RUN_RECORDS_MAX"): 3,
    ("coordinator.log.reads", "PAGE_RECORDS"): 5,
    ("coordinator.log.follow", "QUEUE_RECORDS_MAX"): 3,
    ("coordinator.log.frontier", "UNSEEN_MAX"): 2,
}
"""Many pages, followers that lag."""
NARROW_WRITES: Bounds = {
    **WIDE,
    ("worker.logs.part", "GATHER_RECORDS"): 2,
    ("worker.logs.part", "GATHER_RECORDS_MIN"): 1,
    ("worker.logs.part", "GATHER_ROWS"): 2,
    ("worker.logs.part", "FLUSH_BYTES"): 200,
    ("worker.logs.cleaning", "KEYS_AT_ONCE"): 1,
    ("worker.logs.cleaning", "ENTRIES_AT_ONCE"): 1,
    ("worker.logs.cleaning", "KEYS_A_WRITE"): 1,
    ("coordinator.log.sequencer", "RESERVE_AHEAD"): 8,
}
"""Everything is gathered at once, numbers are reserved a few at a time."""
BOUNDS = (WIDE, WIDE, NARROW_READS, NARROW_WRITES)


def set_bounds(bounds: Bounds) -> None:
    """For the next history."""
    for (module, name), value in bounds.items():
        setattr(sys.modules[module], name, value)


def _event(level: int, message: str, *, trace: Any = False, **fields: Any) -> None:
    """Stands in for shared.telemetry.event: an unexpected error is a violation."""
    world = World.current
    if world.tracing:
        world.trace(f"  log: {message} {fields}")
    if trace:
        world.fail(f"an internal error was logged: {message}: {sys.exc_info()[1]!r}")


def _modules() -> list[ModuleType]:
    found = [importlib.import_module(name) for name in MODULES]
    for package in map(importlib.import_module, PACKAGES):
        below = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        found += [importlib.import_module(module.name) for module in below]
    return found


@contextmanager
def simulated() -> Iterator[None]:
    """Histories can be run within."""
    changed: list[tuple[Any, str, Any]] = []

    def put(target: Any, name: str, value: Any) -> None:
        changed.append((target, name, getattr(target, name)))
        setattr(target, name, value)

    try:
        for module in _modules():
            for name, value in list(vars(module).items()):
                if id(value) in SUBSTITUTES:
                    put(module, name, SUBSTITUTES[id(value)])
                elif value is shared.telemetry.event:
                    put(module, name, _event)
                elif value is shared.wire and module is not shared.wire:
                    put(module, name, Wire)
        for (module_name, name), value in WIDE.items():
            put(sys.modules[module_name], name, value)
        yield
    finally:
        for target, name, value in reversed(changed):
            setattr(target, name, value)
