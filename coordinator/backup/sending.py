"""Copies a view to a place of backups: only objects that the place lacks, verified, and valid with the last step."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from coordinator.backup.inventory import (
    FORMAT,
    INVENTORIES,
    OBJECTS,
    SUFFIX,
    BackupError,
    Inventory,
    InventoryFile,
    UnusableInventory,
    is_object,
    number_in,
    object_name,
    size_of,
)
from coordinator.backup.place import Place
from coordinator.backup.sources import Api, Source, source_of
from coordinator.command_client import Away
from shared import manifest
from shared.manifest import Manifest

RENEW_EVERY_S = 2.0
"""Well below the duration from which a request counts as slow in the shipped alerts."""
TRIED_S = 25.0
"""How long requests to an unreachable cluster are retried: its lease of the view ends soon after (`views.LEASE_S`)."""
IDLE_CLASS = 3 << 13
"""`ioprio_set`: this process uses the disk only when no other process needs it."""
_IOPRIO_SET = 251

Report = Callable[[str, int, int], None]
"""Called with (what is being done, bytes done, bytes in total)."""


@dataclass(frozen=True, slots=True)
class FinishedBackup:
    """A finished backup. `copied`: bytes that were not in the place before."""

    inventory: Inventory
    copied: int
    held_back_ms: float


def backup(api: Api, place: Place, report: Report) -> FinishedBackup:
    """Make a backup of the cluster. Raises BackupError, OSError, and then the place has the same backups as before."""
    with place.locked():
        earlier, unusable = look_through(place)
        present = dict(place.names(OBJECTS))
        view_fields = api.call("POST", "/api/v1/admin/backup", {})["data"]
        with _kept(api, view_fields["view"]):
            source = source_of(api, view_fields["view"], Path(view_fields["path"]))
            files, copied = _copy(source, place, earlier[-1] if earlier else None, present, report)
            numbers = [entry.number for entry in earlier] + [entry.number for entry in unusable]
            inventory = _inventory(1 + max(numbers, default=0), source, view_fields, files)
        _verify(place, copied, report)
        place.publish(f"{INVENTORIES}{inventory.name}{SUFFIX}", inventory.encode())
    return FinishedBackup(inventory, sum(copied.values()), view_fields["heldBackMs"])


@contextmanager
def _kept(api: Api, view: str) -> Iterator[None]:
    """Keep the view for the duration of a `with` block, and have the cluster remove it at the end. Raises BackupError
    at the end if the cluster has lost the view."""
    done = threading.Event()
    lost: list[Exception] = []
    refused: list[Exception] = []
    """Failed attempts since the last renewal of the view."""

    def renew() -> None:
        renewing_api = api.again()
        renewed_at = time.monotonic()
        while True:
            requested_at = time.monotonic()
            try:
                # If this process is killed meanwhile, the cluster sees the end of the connection.
                renewing_api.call("POST", f"/api/v1/admin/backup/{view}", {}, hold=f"{RENEW_EVERY_S:g}s")
                renewed_at = requested_at
                refused.clear()
            except Exception as error:
                if done.is_set():
                    return
                # A cluster that is too busy for the request keeps the view until the lease ends.
                is_lost = not isinstance(error, Away) or time.monotonic() - renewed_at > TRIED_S
                (lost if is_lost else refused).append(error)
                if is_lost:
                    return
            # A server that does not hold requests responds at once.
            if done.wait(RENEW_EVERY_S - (time.monotonic() - requested_at)):
                return

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        try:
            api.again().call("DELETE", f"/api/v1/admin/backup/{view}")
        except Exception as error:
            # A cluster that has gone away removes the view at its next start, perhaps while it was being copied.
            lost.extend([error] if refused else [])
        thread.join()
    if lost:
        raise BackupError(f"the cluster has lost the view {view}: {lost[0]}") from lost[0]


def _copy(
    source: Source, place: Place, previous: Inventory | None, present: dict[str, int], report: Report
) -> tuple[list[InventoryFile], dict[str, int]]:
    """Returns (an entry for every file, new objects → their sizes)."""
    unchanged = {entry.path: entry for entry in previous.files} if previous is not None else {}
    rows = source.files()
    total, done = sum(size for _, size, _, _ in rows), 0
    entries: list[InventoryFile] = []
    copied: dict[str, int] = {}
    for path, size, changed_ns, inode in rows:
        entry = unchanged.get(path)
        is_known = entry is not None and (entry.size, entry.changed_ns, entry.inode) == (size, changed_ns, inode)
        if entry is None or not is_known or present.get(entry.object) != size:
            digest, read_size = place.put(source.read(path), present)
            if read_size != size:
                raise BackupError(f"{path} has changed while it was copied: {read_size} bytes instead of {size}")
            entry = InventoryFile(path, size, digest, changed_ns, inode)
            if entry.object not in present:
                copied[entry.object] = present[entry.object] = size
        entries.append(entry)
        done += size
        report("copied", done, total)
    place.settle()
    return entries, copied


def _inventory(number: int, source: Source, view_fields: dict[str, Any], files: list[InventoryFile]) -> Inventory:
    identity = Manifest.decode(b"".join(source.read(manifest.NAME)))
    return Inventory(
        FORMAT,
        number,
        view_fields["view"],
        view_fields["momentMs"],
        identity.cluster_id,
        identity.shards,
        identity.format,
        view_fields["warnings"],
        files,
    )


def _verify(place: Place, objects: dict[str, int], report: Report) -> None:
    """Read the objects back. Raises BackupError if one is not what was written."""
    total, done = sum(objects.values()), 0
    for name, size in objects.items():
        defect = defect_of(place, name)
        if defect:
            place.delete([name])
            raise BackupError(f"{place.location} does not keep what is written to it: {defect}")
        done += size
        report("verified", done, total)


def defect_of(place: Place, name: str) -> str:
    """The defect of an object; "" if its content matches its name. Raises OSError."""
    hashed, size = xxhash.xxh3_128(), 0
    try:
        for piece in place.read(name):
            hashed.update(piece)
            size += len(piece)
    except FileNotFoundError:
        return f"{name} is missing"
    if size != size_of(name):
        return f"{name} has {size} bytes, and had {size_of(name)}"
    digest = name.rpartition("/")[2].partition("-")[0]
    return "" if hashed.hexdigest() == digest else f"{name} is damaged: its checksum does not match"


def verify(place: Place, report: Report) -> list[str]:
    """A text for each defect of the backups in a place. A damaged object loses its name, so that the next backup copies
    it again if the cluster still has that content. Raises OSError, BackupError."""
    with place.locked():
        texts: list[str] = []
        needed: dict[str, list[str]] = {}
        for inventory in inventories(place, tolerate=texts):
            for entry in inventory.files:
                needed.setdefault(entry.object, []).append(f"{inventory.name}: {entry.path}")
        total, done = sum(map(size_of, needed)), 0
        for name, files in sorted(needed.items()):
            defect = defect_of(place, name)
            if defect:
                more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
                texts.append(f"{defect}; it is the content of {files[0]}{more}")
                _set_aside(place, name)
            done += size_of(name)
            report("verified", done, total)
        return texts


def _set_aside(place: Place, name: str) -> None:
    """Rename a damaged object to the name of its actual content, under which `prune` removes it. Nothing happens if the
    object is missing, or whole when it is read again."""
    with suppress(OSError, BackupError):
        if object_name(*place.put(place.read(name), {})) != name:
            place.settle()
            place.delete([name])


def prune(place: Place, keep: int) -> tuple[list[str], int]:
    """Remove all backups except the newest `keep`, and objects that no backup names. Returns (names of the removed
    backups, bytes freed). Raises OSError, BackupError."""
    with place.locked():
        earlier = inventories(place)
        removed, kept = earlier[: max(0, len(earlier) - keep)], earlier[max(0, len(earlier) - keep) :]
        place.delete([f"{INVENTORIES}{inventory.name}{SUFFIX}" for inventory in removed])
        needed = {entry.object for inventory in kept for entry in inventory.files}
        objects = {name: size for name, size in place.names(OBJECTS).items() if is_object(name)}
        garbage = {name: size for name, size in objects.items() if name not in needed}
        place.delete(garbage)
        return [inventory.name for inventory in removed], sum(garbage.values())


def inventories(place: Place, tolerate: list[str] | None = None) -> list[Inventory]:
    """The backups in a place, oldest first. Texts about unusable ones are added to `tolerate`; without this list, one
    raises BackupError. Raises OSError."""
    usable, unusable = look_through(place)
    if unusable and tolerate is None:
        raise BackupError(unusable[0].why)
    if tolerate is not None:
        tolerate += [inventory.why for inventory in unusable]
    return usable


def look_through(place: Place) -> tuple[list[Inventory], list[UnusableInventory]]:
    """(the backups in a place, oldest first; the unusable inventories, by name). Raises OSError."""
    usable: list[Inventory] = []
    unusable: list[UnusableInventory] = []
    for file in sorted(place.names(INVENTORIES)):
        if not file.endswith(SUFFIX):
            continue
        content = b"".join(place.read(file))
        try:
            usable.append(Inventory.decode(content))
        except ValueError as error:
            why = f"{place.location}: the inventory {file} cannot be used: {error}"
            unusable.append(
                UnusableInventory(file.removeprefix(INVENTORIES).removesuffix(SUFFIX), number_in(content), why)
            )
    return sorted(usable, key=lambda inventory: inventory.number), unusable


def yield_to_others() -> None:
    """Let this process use only spare CPU time and disk bandwidth. A cluster on the same machine goes first."""
    with suppress(OSError):  # a container may refuse either
        os.nice(19)
    with suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).syscall(_IOPRIO_SET, 1, 0, IDLE_CLASS)
