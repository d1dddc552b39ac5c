"""Writes files so that they survive a loss of power once the call has returned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""Other users have no access to the data."""
FILE_UMASK = 0o077
DAMAGED = ".damaged"
"""The suffix of a file that is set aside."""


def write_synced(path: Path, content: bytes) -> None:
    """Write the file and fsync it. Its name is not durable yet: see `sync_directory`. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Sync a directory: when this returns, the names of the files in it are on disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file. After a crash it has either the old or the new content; when this returns, the new content is
    on disk. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    write_synced(temporary, content)
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_tree(directory: Path) -> None:
    """Sync a directory and all files and directories below it. Raises OSError, also for a directory that cannot be
    listed, which `os.walk` would skip."""
    for folder, _, names in os.walk(directory, topdown=False, onerror=fail):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(folder))


def fail(error: OSError) -> NoReturn:
    """An error handler for `os.walk`."""
    raise error


def make_directory(directory: Path) -> None:
    """Create the directory and its parents unless they exist, accessible to this user only. When this returns, its name
    is on disk, even if it exists because a crash interrupted an earlier call. Raises OSError."""
    parent = directory.parent
    if not parent.exists():
        make_directory(parent)
    directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    # This user may be allowed only to enter the directory that contains the data directory. The data directory then
    # existed before the first start.
    if os.access(parent, os.R_OK):
        sync_directory(parent)


def rename(source: Path, target: Path) -> None:
    """Rename within one directory, durably. Raises OSError."""
    os.rename(source, target)
    sync_directory(target.parent)


def set_aside(path: Path) -> Path:
    """Rename a damaged file, durably, to a new name with the suffix `.damaged`. Returns the new path. Raises
    OSError."""
    target = damaged_name(path)
    rename(path, target)
    return target


def damaged_name(path: Path) -> Path:
    """The first unused name among `path` + `.damaged`, `.damaged-2`, …."""
    target = path.with_name(path.name + DAMAGED)
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}{DAMAGED}-{number}")
    return target
