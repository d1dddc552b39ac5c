"""Files that are there after the loss of power, once the call that wrote them has returned."""

from __future__ import annotations

import os
from pathlib import Path


def write_synced(path: Path, content: bytes) -> None:
    """Write the file and fsync it. Its name is not durable yet: see `sync_directory`. Raises OSError."""
    with path.open("wb") as file:
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
