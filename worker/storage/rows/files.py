"""What a store's files show before RocksDB reads them: whether some are missing, and whether its manifest ends where
it was cut off or where it is damaged."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from worker.storage.rows import manifest as store_manifest
from worker.storage.rows.damage import StoreDamaged
from worker.storage.rows.manifest import BLOCK_BYTES, damaged_length
from worker.storage.rows.marker import Claim


def torn_manifest(path: Path, claim: Claim | None) -> tuple[Path, int] | None:
    """The manifest whose end the loss of power has torn, and where to cut it off: what is behind was not synced, and
    nobody has relied on it. None when it was not torn, as far as can be told. Raises OSError."""
    if claim is None or not claim.after_power:
        return None
    try:
        number, _ = store_manifest.current(path)
    except (OSError, ValueError):
        return None  # which `verify` tells
    if number != claim.manifest:
        return None
    file = store_manifest.path_of(path, number)
    at = store_manifest.torn_at(file, claim.manifest_bytes)
    return None if at is None else (file, at)


def verify(path: Path, claim: Claim | None) -> None:
    """Raise StoreDamaged where the files are not all there, or the manifest does not end as a crash leaves it. What
    RocksDB itself finds is left to it."""
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
    """Whether a process has the store open. Not for the process that has it: the question lets go of its lock."""
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
    """A first start that was killed leaves a manifest without CURRENT, but no data."""
    with os.scandir(path) as files:
        return any(file.name.endswith((".sst", ".log")) and file.stat().st_size for file in files)
