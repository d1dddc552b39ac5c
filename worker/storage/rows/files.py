"""Checks of a store's files before RocksDB reads them: whether files are missing, and whether the manifest ends at a
torn write or at damage."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from worker.storage.rows import manifest as store_manifest
from worker.storage.rows.damage import StoreDamaged
from worker.storage.rows.manifest import BLOCK_BYTES, damaged_length
from worker.storage.rows.marker import Claim


def torn_manifest(path: Path, claim: Claim | None) -> tuple[Path, int] | None:
    """(manifest, size in bytes to which to cut it) if a loss of power has torn its end; None if the manifest is not
    known to be torn. The bytes above that size were not synced, and nothing relies on them. Raises OSError."""
    if claim is None or not claim.after_power:
        return None
    try:
        number, _ = store_manifest.current(path)
    except (OSError, ValueError):
        return None  # `verify` reports this
    if number != claim.manifest:
        return None
    file = store_manifest.path_of(path, number)
    size = store_manifest.torn_at(file, claim.manifest_bytes)
    return None if size is None else (file, size)


def verify(path: Path, claim: Claim | None) -> None:
    """Raise StoreDamaged if files are missing, or if the end of the manifest is not one that a crash leaves. Does not
    look for damage that RocksDB detects itself. Raises OSError."""
    if not (path / "CURRENT").exists():
        if claim is not None or _has_data(path):
            raise StoreDamaged(f"the store {path} is damaged: its file CURRENT is missing")
        return
    try:
        number, size = store_manifest.current(path)
    except (OSError, ValueError) as error:
        raise StoreDamaged(f"the store {path} is damaged: {error}") from error
    file = store_manifest.path_of(path, number)
    if claim is not None and claim.manifest == number and size < claim.manifest_bytes:
        text = f"{file} has {size} bytes, and had {claim.manifest_bytes}"
        raise StoreDamaged(f"the store {path} is damaged: {text}")
    if torn_manifest(path, claim) is not None:
        return
    with open(file, "rb") as manifest:
        manifest.seek(size // BLOCK_BYTES * BLOCK_BYTES)
        damaged = damaged_length(manifest.read())
    if damaged is not None:
        text = f"{file} has a wrong length at {size // BLOCK_BYTES * BLOCK_BYTES + damaged}"
        raise StoreDamaged(f"the store {path} is damaged: {text}")


def is_locked(path: Path) -> bool:
    """Whether another process has the store open. A process must not call this for a store that it has open itself,
    because closing the lock file would release its lock. Raises OSError."""
    try:
        descriptor = os.open(path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _has_data(path: Path) -> bool:
    """Whether the store contains data. A process that dies during a first start leaves a manifest without CURRENT, and
    no data."""
    with os.scandir(path) as files:
        return any(file.name.endswith((".sst", ".log")) and file.stat().st_size for file in files)
