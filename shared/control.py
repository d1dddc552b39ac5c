"""The face of storage for small documents: the manifest and its copy, identities, the list of collections, the state of
the log's sequencer.

What decides about the data of a cluster is in documents of some kilobytes that are replaced as a whole. Everything that
keeps such a document keeps it through `Control`; `LocalControl` has them as files. The other faces of storage are
those of a worker: `worker.storage.faces`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from shared.durable import DAMAGED, FILE_MODE, damaged_name, make_directory, set_aside, write_atomically


class Locked(Exception):
    """Another process has the lock; `holder` is its process id, or "unknown"."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"the lock is held by {holder}")
        self.holder = holder


class Lease(Protocol):
    """A lock that this process has. It is free when the process ends, however it does, and its children have ended or
    closed it as well."""

    def close(self) -> None:
        """This process has it no longer; another one that shares it, as a parent does with its children, still has."""


class Control(Protocol):
    """Documents by name, in one place. One process or thread at a time writes a document; who that is, its owner
    sees to, with a lock where it must."""

    def prepare(self) -> None:
        """Have the place there; when this returns, it still is after a loss of power. Raises OSError."""

    def within(self, name: str) -> Control:
        """The place of that name in this one. It may not be there yet: see `prepare`."""

    def location(self, name: str = "") -> str:
        """Where the document is, or this place: for messages to whoever runs the service, and for nothing else."""

    def names(self) -> list[str]:
        """Of all documents and places in this one, ascending; none if there is no such place. Raises OSError."""

    def exists(self, name: str) -> bool:
        """Whether there is a document or a place of that name. Raises OSError where that cannot be told."""

    def is_place(self, name: str) -> bool:
        """Whether there is a place of that name."""

    def read(self, name: str) -> bytes:
        """All of the document, as the last `replace` wrote it, or damaged: it carries a checksum of its own. Raises
        FileNotFoundError, OSError."""

    def replace(self, name: str, content: bytes) -> None:
        """Write the document: when this returns, the new content is on the disk under its name. After a crash or a loss
        of power on the way it has the old content or the new one, each whole. Raises OSError, and then it has either,
        and only a further `replace` makes sure which."""

    def set_aside(self, name: str) -> None:
        """Give a damaged document a name that none ever had, one of `set_aside_names`; when this returns, it keeps that
        after a loss of power. Raises OSError, and then it has one of both names."""

    def put_aside(self, name: str, content: bytes) -> None:
        """Write a document that stands for the lost one of that name, under a new name of `set_aside_names`; durable
        as `replace` is. Raises OSError."""

    def set_aside_names(self) -> list[str]:
        """Of what was set aside in this place, and is there until whoever runs the service removes it; ascending.
        Raises OSError."""

    def lock(self, name: str) -> Lease:
        """Take a lock, at once. Raises Locked while another process has it, OSError."""

    def locked(self, name: str) -> AbstractContextManager[None]:
        """Have a lock for the time of a `with` block, waiting until it is free. Raises OSError."""


class LocalLease:
    """See `Lease`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        os.close(self._descriptor)


class LocalControl:
    """See `Control`. A place is a directory, a document a file, and a lock one that the kernel has on a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def prepare(self) -> None:
        make_directory(self._directory)

    def within(self, name: str) -> LocalControl:
        return LocalControl(self._directory / name)

    def location(self, name: str = "") -> str:
        return str(self._directory / name)

    def names(self) -> list[str]:
        return sorted(path.name for path in self._directory.glob("*"))

    def exists(self, name: str) -> bool:
        return (self._directory / name).exists()

    def is_place(self, name: str) -> bool:
        return (self._directory / name).is_dir()

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def replace(self, name: str, content: bytes) -> None:
        write_atomically(self._directory / name, content)

    def set_aside(self, name: str) -> None:
        set_aside(self._directory / name)

    def put_aside(self, name: str, content: bytes) -> None:
        write_atomically(damaged_name(self._directory / name), content)

    def set_aside_names(self) -> list[str]:
        return sorted(path.name for path in self._directory.glob(f"*{DAMAGED}*"))

    def lock(self, name: str) -> LocalLease:
        descriptor = self._open_lock(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise Locked(holder) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        return LocalLease(descriptor)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        descriptor = self._open_lock(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _open_lock(self, name: str) -> int:
        return os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
