"""The interface of a place of backups: a directory (`directory`), or a bucket (`buckets`)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Protocol

LOCK = "lock"
"""The name of the lock that a command holds in its place while it makes, verifies or removes backups."""
HOLDER_CHARS_MAX = 200


def this_holder() -> str:
    """A line that says which process holds a lock from now on."""
    return f"process {os.getpid()} on host {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def holder_in(content: bytes) -> str:
    """The holder according to the content of a lock, for a message."""
    line, has_end, _ = content.decode(errors="replace").partition("\n")
    if not has_end or not line.isprintable() or len(line) > HOLDER_CHARS_MAX:
        return "another backup or prune"  # the lock of an earlier release, or not written completely
    return line


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
