"""Every sync of the product left out, one at a time, to see whether a crash shows it.

The places are found in the source, so a new one is tried without anybody thinking of it: calls of fsync, fdatasync,
sync_directory, of `sync`, `flush` and `sync_names` methods, and writes that are asked to be durable.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from shared import durable
from worker.logs.keeper import Keeper
from worker.series.journal import Journal
from worker.storage.group_sync import GroupSync
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import Stream, WriteAheadLog
from worker.vectors.part import VectorPart

PACKAGES = ("shared", "worker", "coordinator")
FUNCTIONS = {"fsync": os, "fdatasync": os, "sync_directory": durable}
METHODS: dict[str, tuple[type, ...]] = {
    "sync": (GroupSync, Store, WriteAheadLog, Stream, Keeper, VectorPart),
    "flush": (Store,),
    "sync_names": (LocalObjects,),
}
DURABLE: tuple[type, ...] = (Store, Journal)
"""Their `write` takes `durable`."""

WORKLOADS_OF = {
    "shared.durable": ("sequencer", "catalogue", "upgrade", "wal-layout", "start", "backup"),
    "shared.manifest": ("manifest", "upgrade", "start"),
    "coordinator.backup": ("backup",),
    "coordinator.log": ("sequencer",),
    "coordinator.vectors": ("catalogue",),
    "worker.storage.wal": ("wal", "wal-threads", "wal-layout", "start"),
    "worker.storage.objects": ("series", "vectors"),
    "worker.storage": ("store", "start"),
    "worker.series": ("series", "series-buffered"),
    "worker.logs": ("log",),
    "worker.vectors": ("vectors",),
    "worker": ("start",),
}

ELSEWHERE = {
    "coordinator.doctor.disk:syncs:fsync": "measures the disk, and keeps nothing",
    "coordinator.commands.tokens:_append:fsync": "a file of the operator's, not of the data directory",
}
"""Syncs of what is no data of the service."""

UNNOTICED = {
    "coordinator.backup.directory:put:fdatasync": "the file is synced when it is whole, too",
    "coordinator.backup.restoring:_write:fdatasync": "all files are synced in the end, too",
    "worker.logs.part:load:sync": "what a start reads in the store was synced or written out before",
    "worker.logs.part:drop:durable": "the space is reclaimed next, which writes the store's memory out to the disk",
    "worker.series.loading:carry_out:durable": "the journal says it still; what releases that is a later write, synced",
    "worker.series.sealing:_seal:sync": "the next write is synced, too; until then, only a store that has just begun "
    "another log may lose earlier rows and keep that write",
    "worker.series.index.registry:sweep:durable": "a sweep that is undone leaves the rows as they were, and is done "
    "again",
    "worker.storage.rows.store:close:sync": "the families are flushed next, to files that the store syncs itself",
    "worker.storage.objects:put_by_path:fsync": "a snapshot that fails its checksum is built anew from the store",
    "worker.vectors.part:open:durable": "the vectors are synced, too; until then, only a store that has just begun "
    "another log may lose the description and keep vectors",
    "worker.vectors.indexing:save:sync": "a snapshot that names more than its store has given is discarded, or its "
    "vectors are not used",
    "worker.storage.rows.marker:open:fsync": "a marker asks for less, or nothing, after the loss of power: it tells "
    "damage",
    "worker.storage.rows.marker:open:sync_directory": "as above",
    "worker.storage.rows.manifest:synced:fsync": "the library has just synced what the marker tells of, or does so "
    "now: only what another thread is appending at that moment is not (tests/unit/test_store_files.py)",
    "worker.storage.rows.manifest:cut:fsync": "what comes back after another loss of power is cut off again",
    "worker.storage.wal.layout:_copy_records:sync": "closing the logs syncs them again",
}
"""Places that no crash shows when they are left out, and why that is right."""


def places() -> list[str]:
    """module:function:what, of everything that may be left out."""
    found: dict[str, None] = {}
    for package in PACKAGES:
        for path in sorted(Path(package).rglob("*.py")):
            module = ".".join(path.with_suffix("").parts)
            for function, call, is_statement in _calls(ast.parse(path.read_text())):
                what = _what(call)
                if what in METHODS and not is_statement:
                    continue  # a writer's own, which returns what it wrote
                # The coordinator's `sync` is a request; the store's `flush` of a family is the library's.
                is_library = f"{module}:{what}" == "worker.storage.rows.store:flush"
                is_ours = what not in METHODS or (package == "worker" and not is_library)
                if what and is_ours:
                    found[f"{module}:{function}:{what}"] = None
    return [place for place in found if place not in ELSEWHERE]


def _calls(node: ast.AST, function: str = "<module>") -> Iterator[tuple[str, ast.Call, bool]]:
    """(function, call, whether what it returns is not used)."""
    for child in ast.iter_child_nodes(node):
        inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(child, ast.Call):
            yield function, child, isinstance(node, ast.Expr)
        yield from _calls(child, inside)


def _what(call: ast.Call) -> str:
    if any(keyword.arg == "durable" and not _is_false(keyword.value) for keyword in call.keywords):
        return "durable" if isinstance(call.func, ast.Attribute) and call.func.attr == "write" else ""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "flush" and not call.args:
        return ""  # of a stream: no sync
    return name if name in FUNCTIONS or (name in METHODS and isinstance(call.func, ast.Attribute)) else ""


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def workloads_of(place: str) -> tuple[str, ...]:
    module = place.partition(":")[0]
    return next((names for prefix, names in WORKLOADS_OF.items() if module.startswith(prefix)), ())


@contextmanager
def omitting(place: str) -> Iterator[None]:
    """Without the syncs of that place; with all, if it is ""."""
    if not place:
        yield
        return
    module, function, what = place.split(":")

    def is_there() -> bool:
        frame = sys._getframe(2)
        while frame.f_code.co_name in ("<lambda>", "<listcomp>"):  # of the function
            assert frame.f_back is not None
            frame = frame.f_back
        return frame.f_globals["__name__"] == module and frame.f_code.co_name == function

    with ExitStack() as patches:
        if what in FUNCTIONS:
            _patch_function(patches, what, is_there)
        elif what in METHODS:
            for owner in METHODS[what]:
                if what in vars(owner):
                    patches.enter_context(mock.patch.object(owner, what, _skipping(vars(owner)[what], is_there)))
        else:
            for owner in DURABLE:
                patches.enter_context(mock.patch.object(owner, "write", _not_durable(vars(owner)["write"], is_there)))
        yield


def _patch_function(patches: ExitStack, name: str, is_there: Callable[[], bool]) -> None:
    original = getattr(FUNCTIONS[name], name)
    skipping = _skipping(original, is_there)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            patches.enter_context(mock.patch.object(module, name, skipping))


def _skipping(original: Callable, is_there: Callable[[], bool]) -> Callable:
    def call(*arguments: Any, **options: Any) -> Any:
        return None if is_there() else original(*arguments, **options)

    return call


def _not_durable(original: Callable, is_there: Callable[[], bool]) -> Callable:
    def call(*arguments: Any, **options: Any) -> Any:
        if is_there():
            options["durable"] = False
        return original(*arguments, **options)

    return call
