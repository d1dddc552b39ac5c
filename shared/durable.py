"""Files that are there after the loss of power, once the call that wrote them has returned."""

from __future__ import annotations

import os
from pathlib import Path

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""What others may do with the data: nothing."""
FILE_UMASK = 0o077
DAMAGED = ".damaged"
"""Ends the name of what is set aside."""


def write_synced(path: Path, content: bytes) -> None:
    """Write the file and fsync it. Its name is not durable yet: see `sync_directory`. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """When this returns, the names of the files in it are on the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file: after a crash it holds the old content or the new, and when this returns the new is on disk.

    Raises OSError.
    """
    temporary = path.with_name(path.name + ".new")
    write_synced(temporary, content)
    os.replace(temporary, path)
    sync_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Have the directory there, and those it lies in; when this returns its name is on the disk, also when a crash
    came between the making of it and this. What is made belongs to this user alone. Raises OSError."""
    parent = directory.parent
    if not parent.exists():
        make_directory(parent)
    directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    # The data directory itself may lie where this user may only enter: then it was there before the first start.
    if os.access(parent, os.R_OK):
        sync_directory(parent)


def rename(source: Path, target: Path) -> None:
    """Rename within one directory, durably. Raises OSError."""
    os.rename(source, target)
    sync_directory(target.parent)


def set_aside(path: Path) -> Path:
    """Rename a damaged file, durably, to a name of its own that ends in `.damaged`; returns it. Raises OSError."""
    target = damaged_name(path)
    rename(path, target)
    return target


def damaged_name(path: Path) -> Path:
    """The first name that is free of `path` + `.damaged`, `.damaged-2`, …."""
    target = path.with_name(path.name + DAMAGED)
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}{DAMAGED}-{number}")
    return target
