"""What a place of backups can do: a directory (`directory`), or a bucket (`buckets`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

LOCK = "lock"
"""The name of what a backup or a prune holds in its place."""


class Place(Protocol):
    """Where backups are. All methods raise OSError, or BackupError for what the caller has to change."""

    location: str

    def locked(self) -> AbstractContextManager[None]:
        """Hold the place for the duration of a `with` block. Raises BackupError if somebody else does."""

    def names(self, prefix: str) -> Mapping[str, int]:
        """Name → size of everything whose name begins with `prefix`, which ends in a slash."""

    def put(self, pieces: Iterable[bytes], present: Mapping[str, int]) -> tuple[str, int]:
        """Write an object unless it is `present`. Returns its digest and its size. It is durable after `settle`."""

    def settle(self) -> None:
        """When this returns, all objects that were put are durable under their names."""

    def read(self, name: str) -> Iterator[bytes]:
        """The content of an object, from the disk. Raises FileNotFoundError."""

    def publish(self, name: str, content: bytes) -> None:
        """Write a small document, whole or not at all; it is durable when this returns."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete what exists of these."""
