"""Opens the place of backups that a user names."""

from __future__ import annotations

from pathlib import Path

from coordinator.backup.directory import Directory
from coordinator.backup.inventory import BackupError
from coordinator.backup.place import Place


def open_place(location: str, *, create: bool = False) -> Place:
    """The place at a path, or at `s3://bucket/prefix`. Raises BackupError if there is none."""
    if "://" in location:
        from coordinator.backup.buckets import Bucket

        return Bucket(location)
    directory = Path(location)
    if not create and not directory.is_dir():
        raise BackupError(f"{location} has no backups: there is no such directory")
    return Directory(directory)
