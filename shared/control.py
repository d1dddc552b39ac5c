"""The storage interface for small documents: the manifest and its copy, identities, the list of collections, the state
of the log's sequencer.

What is essential to the data of a cluster is in documents of a few kilobytes that are replaced as a whole. All code
that stores such a document does so through `Control`; `LocalControl` stores them as files. The other storage interfaces
are those of a worker: `worker.storage.faces`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from shared.durable import DAMAGED, FILE_MODE, damaged_name, make_directory, set_aside, write_atomically


class Locked(Exception):
    """Another process has the lock; `holder` is its process id, or "unknown"."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"the lock is held by {holder}")
        self.holder = holder


class Lease(Protocol):
    """A lock that this process holds. It is free once this process, and all children that share the lock, have closed
    it or ended, for whatever reason."""

    def close(self) -> None:
        """Stop holding the lock in this process. Processes that share it, such as a parent and its children, still hold
        it."""


class Control(Protocol):
    """Documents by name, in one place. Only one process or thread at a time may write a document; its owner must ensure
    that, with a lock if necessary."""

    def prepare(self) -> None:
        """Create the place unless it exists. When this returns, it survives a loss of power. Raises OSError."""

    def within(self, name: str) -> Control:
        """The place of that name inside this one. It may not exist yet: see `prepare`."""

    def location(self, name: str = "") -> str:
        """The path of the document, or of this place. Only for messages to operators."""

    def names(self) -> list[str]:
        """The names of all documents and places in this one, ascending; [] if this place does not exist. Raises
        OSError."""

    def exists(self, name: str) -> bool:
        """Whether a document or place of that name exists. Raises OSError if that cannot be determined."""

    def is_place(self, name: str) -> bool:
        """Whether a place of that name exists."""

    def read(self, name: str) -> bytes:
        """The whole document, as the last `replace` wrote it. It may be damaged, so a document has a checksum of its
        own. Raises FileNotFoundError, OSError."""

    def replace(self, name: str, content: bytes) -> None:
        """Write the document. When this returns, the new content is on disk under its name. If a crash or a loss of
        power interrupts this, the document has either the old or the new content, complete. If this raises OSError, it
        also has one of the two, and only another `replace` makes certain which one."""

    def set_aside(self, name: str) -> None:
        """Rename a damaged document to a name that no document has had, one of `set_aside_names`. When this returns,
        the new name survives a loss of power. Raises OSError; then the document has one of the two names."""

    def put_aside(self, name: str, content: bytes) -> None:
        """Write a document in place of the lost one of that name, under a new name of `set_aside_names`. It is as
        durable as after `replace`. Raises OSError."""

    def set_aside_names(self) -> list[str]:
        """The names of the documents that were set aside in this place and that no operator has removed, ascending.
        Raises OSError."""

    def lock(self, name: str) -> Lease:
        """Take a lock without waiting. Raises Locked if another process holds it, OSError."""

    def locked(self, name: str) -> AbstractContextManager[None]:
        """Hold a lock for the duration of a `with` block. Waits until the lock is free. Raises OSError."""


class LocalLease:
    """See `Lease`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        os.close(self._descriptor)


class LocalControl:
    """See `Control`. A place is a directory, a document is a file, and a lock is the kernel's lock on a file."""

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
        with suppress(OSError):  # a full disk: what is in the file is only for messages
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
