"""The interface of a place of backups: a directory (`directory`), or a bucket (`buckets`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

LOCK = "lock"
"""The name of the lock that a backup or a prune holds in its place."""


class Place(Protocol):
    """Where backups are stored. All methods raise OSError, or BackupError if the user has to change something."""

    location: str

    def locked(self) -> AbstractContextManager[None]:
        """Lock the place for the duration of a `with` block. Raises BackupError if another process holds the lock."""

    def names(self, prefix: str) -> Mapping[str, int]:
        """Name → size of everything whose name begins with `prefix`, which ends in a slash."""

    def put(self, pieces: Iterable[bytes], present: Mapping[str, int]) -> tuple[str, int]:
        """Write an object unless it is `present`. Returns (digest, size). It is durable after `settle`."""

    def settle(self) -> None:
        """When this returns, all objects that were `put` are durable under their names."""

    def read(self, name: str) -> Iterator[bytes]:
        """The content of an object, from the disk. Raises FileNotFoundError."""

    def publish(self, name: str, content: bytes) -> None:
        """Write a small document atomically; it is durable when this returns."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete those of these objects that exist."""
