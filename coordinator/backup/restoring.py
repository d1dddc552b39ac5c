"""Restores a backup into a data directory: writes it beside the target, verifies it, and renames it at the end."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import msgspec
import xxhash

from coordinator.backup.directory import SYNC_BYTES
from coordinator.backup.inventory import BackupError, Inventory, InventoryFile
from coordinator.backup.place import Place
from coordinator.backup.sending import Report, look_through
from coordinator.log import sequencer
from shared import identity, manifest
from shared.control import LocalControl
from shared.data_files import files_below, numbered
from shared.durable import DIRECTORY_MODE, FILE_MODE, make_directory, sync_directory, sync_tree, write_synced
from shared.manifest import Manifest, copy_of

SUFFIX = ".restoring"
NOTE = "restoring"
"""The file that names the backup being restored, until the restore is complete."""
PIECE_BYTES = 1 << 20


def choose(place: Place, name: str | None) -> Inventory:
    """The backup of this name, or the newest one. Raises BackupError, also if an unusable one may be the newest, and
    OSError."""
    usable, unusable = look_through(place)
    if name is None:
        newest = usable[-1] if usable else None
        newer = [
            entry.why
            for entry in unusable
            if newest is None or entry.name > newest.name or entry.number > newest.number
        ]
        if newer:
            how = (
                "no other backup is there"
                if newest is None
                else f"`--name {newest.name}` restores the newest other one"
            )
            raise BackupError(f"{'; '.join(newer)}; {how}")
        if newest is None:
            raise BackupError(f"{place.location} has no backup")
        return newest
    for inventory in usable:
        if inventory.name == name:
            return inventory
    for entry in unusable:
        if entry.name == name:
            raise BackupError(entry.why)
    raise BackupError(f"{place.location} has no backup {name!r}; `triptych backup list {place.location}` names them")


def restore(place: Place, inventory: Inventory, data: Path, report: Report) -> Manifest:
    """Restore into `data`, which must not exist or must be empty. Returns the identity of the new cluster. Files that a
    killed restore of the same backup has left beside `data` are used. Raises BackupError, OSError."""
    if inventory.data_format > manifest.FORMAT:
        raise BackupError(
            f"{inventory.name} has data in format {inventory.data_format}, and this release reads format "
            f"{manifest.FORMAT}: restore it with the release that made it"
        )
    data = data.resolve()  # so that a symbolic link keeps its target
    if data.is_mount():
        raise BackupError(f"{data} is where a disk is mounted; restore into a directory on it, which need not exist")
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise BackupError(f"{data} exists and is not empty; restore into another directory, or move it away")
    beside = data.with_name(data.name + SUFFIX)
    _begin(beside, inventory)
    missing = [entry for entry in inventory.files if not _is_whole(beside / entry.path, entry)]
    _require_room(beside, sum(entry.size for entry in missing))
    total = inventory.size
    done = total - sum(entry.size for entry in missing)
    for entry in missing:
        _write(place, entry, beside / entry.path)
        done += entry.size
        report("restored", done, total)
    _remove_others(beside, inventory)
    _verify(beside, inventory, report)
    restored = _renew(beside, inventory)
    sync_tree(beside)
    if data.exists():
        data.rmdir()
    os.rename(beside, data)
    sync_directory(data.parent)
    (data / NOTE).unlink()
    return restored


def _begin(beside: Path, inventory: Inventory) -> None:
    """Make the directory, or continue in that of a killed restore. Raises BackupError if it belongs to another
    backup."""
    if not beside.exists():
        make_directory(beside)
        write_synced(beside / NOTE, inventory.name.encode())
    try:
        other = (beside / NOTE).read_text()
    except FileNotFoundError:
        if any(beside.iterdir()):
            raise BackupError(f"{beside} exists and is not of a restore; move it away") from None
        write_synced(beside / NOTE, inventory.name.encode())
        return
    if other != inventory.name:
        raise BackupError(
            f"{beside} is left over from a restore of {other!r}, which did not end; restore that one (--name {other}), "
            f"or remove the directory"
        )


def _is_whole(path: Path, entry: InventoryFile) -> bool:
    """Whether the file has the entry's content."""
    hashed, size = xxhash.xxh3_128(), 0
    try:
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                hashed.update(piece)
                size += len(piece)
    except FileNotFoundError:
        return False
    return size == entry.size and hashed.hexdigest() == entry.digest


def _require_room(beside: Path, size: int) -> None:
    free = shutil.disk_usage(beside).free
    if free < size:
        raise BackupError(f"{beside} needs {size} bytes, and its disk has {free} free")


def _write(place: Place, entry: InventoryFile, path: Path) -> None:
    os.makedirs(path.parent, mode=DIRECTORY_MODE, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with open(descriptor, "wb") as file:  # buffered, because an unbuffered write may write a part of a piece only
        unsynced = 0
        try:
            for piece in place.read(entry.object):
                file.write(piece)
                unsynced += len(piece)
                if unsynced >= SYNC_BYTES:
                    file.flush()
                    os.fdatasync(file.fileno())
                    unsynced = 0
        except FileNotFoundError:
            raise BackupError(f"{place.location} lacks {entry.object}, the content of {entry.path}") from None


def _remove_others(beside: Path, inventory: Inventory) -> None:
    """Remove files that are not in this backup: a killed restore may have left changed identity files."""
    inventory_paths = {entry.path for entry in inventory.files}
    for path in list(files_below(beside)):
        if path.relative_to(beside).as_posix() not in inventory_paths and path != beside / NOTE:
            path.unlink()


def _verify(beside: Path, inventory: Inventory, report: Report) -> None:
    """Read every file. Raises BackupError if one differs from the cluster's."""
    total, done = inventory.size, 0
    for entry in inventory.files:
        if not _is_whole(beside / entry.path, entry):
            (beside / entry.path).unlink(missing_ok=True)
            raise BackupError(
                f"{entry.path} is not as it was in the cluster: {entry.object} is damaged; restore an older backup "
                "(--name), and see `triptych backup DEST --verify`"
            )
        done += entry.size
        report("verified", done, total)


def _renew(beside: Path, inventory: Inventory) -> Manifest:
    """Make this the directory of a new cluster, with another identity and sequence numbers of the log that were never
    used. The format stays that of the backup: the first start upgrades it."""
    renewed = Manifest(uuid.uuid4().hex, inventory.shards, inventory.data_format)
    for path in (beside / manifest.NAME, copy_of(beside / manifest.NAME)):
        path.write_bytes(renewed.encode())
    for folder, kind in ((manifest.SHARDS, identity.SHARD), ("wal", identity.LOG)):
        for directory in numbered(beside / folder):
            if (directory / identity.NAME).exists():
                LocalControl(directory).replace(
                    identity.NAME, identity.encode(renewed.cluster_id, kind, int(directory.name))
                )
    _skip_numbers(beside / sequencer.DIRECTORY / sequencer.STATE)
    return renewed


def _skip_numbers(path: Path) -> None:
    """Continue far above all sequence numbers that the cluster assigned after the backup, because clients have seen
    them."""
    if not path.exists():
        return
    state = sequencer.decode(path.read_bytes())
    next_number = state.limit if state.next is None else state.next
    skipped = msgspec.structs.replace(state, limit=next_number + sequencer.LOST_AHEAD, next=None)
    path.write_bytes(sequencer.encode(skipped))
