"""Backups in a directory."""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from coordinator.backup.inventory import BackupError, object_name
from coordinator.backup.place import HOLDER_CHARS_MAX, LOCK, holder_in, this_holder
from shared.data_files import files_below
from shared.durable import FILE_MODE, make_directory, sync_directory, write_atomically

LOCK_ATTEMPTS_MAX = 100
"""An attempt fails only if another process removes the file of the lock at the same moment."""
PIECE_BYTES = 1 << 20
SYNC_BYTES = 8 << 20
"""Bytes written between two syncs of a file. A sync of more would delay the syncs of the cluster's own log."""


class Directory:
    """See `Place`. Objects are written under a temporary name, synced and renamed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unsynced: set[Path] = set()
        self._unfinished = directory / "objects" / "unfinished"
        self.location = str(directory)

    @contextmanager
    def locked(self) -> Iterator[None]:
        self._make(self._directory)
        with self._take_lock():
            try:
                self._unfinished.unlink(missing_ok=True)  # left by a process that was killed
                yield
            finally:
                with suppress(OSError):
                    self._unfinished.unlink(missing_ok=True)
                    (self._directory / LOCK).unlink(missing_ok=True)

    def _take_lock(self) -> io.FileIO:
        """Take the kernel's lock on the file LOCK. Returns the open file, which holds the lock until it is closed, by
        the kernel if this process is killed."""
        for _ in range(LOCK_ATTEMPTS_MAX):
            descriptor = os.open(self._directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            file = io.FileIO(descriptor, "r+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_lock(file):
                    _name_holder(file)
                    return file
            except BlockingIOError:
                with file:
                    holder = holder_in(file.read(2 * HOLDER_CHARS_MAX))
                raise BackupError(f"{self.location} is in use by {holder}; try again when it has ended") from None
            except OSError as error:
                file.close()
                raise BackupError(f"{self.location} cannot be locked: {error.strerror or error}") from error
            file.close()
        raise BackupError(f"{self.location} is in use by other backups or prunes in turn; try again later")

    def _is_lock(self, file: io.FileIO) -> bool:
        """Whether the open file still has the name LOCK: its holder removes it at the end."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self._directory / LOCK))
        except FileNotFoundError:
            return False

    def names(self, prefix: str) -> Mapping[str, int]:
        try:
            os.stat(self._directory / prefix)
        except FileNotFoundError:
            return {}
        sizes = {
            path.relative_to(self._directory).as_posix(): path.stat().st_size
            for path in files_below(self._directory / prefix)
        }
        sizes.pop(self._unfinished.relative_to(self._directory).as_posix(), None)
        return sizes

    def put(self, pieces: Iterable[bytes], present: Mapping[str, int]) -> tuple[str, int]:
        self._make(self._unfinished.parent)
        hashed, size, synced = xxhash.xxh3_128(), 0, 0
        descriptor = os.open(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        with open(descriptor, "wb", buffering=0) as file:
            for piece in pieces:
                hashed.update(piece)
                with self._named():
                    size += _write_all(file.fileno(), piece)
                    if size - synced >= SYNC_BYTES:
                        os.fdatasync(file.fileno())
                        synced = size
            with self._named():
                os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        name = object_name(hashed.hexdigest(), size)
        if present.get(name) == size:
            self._unfinished.unlink()
        else:
            target = self._directory / name
            self._make(target.parent)
            os.rename(self._unfinished, target)
            self._unsynced.add(target.parent)
        return hashed.hexdigest(), size

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Adds the directory to an OSError, such as that of a full disk: one of a descriptor names no file."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.location) from error

    def settle(self) -> None:
        for directory in sorted(self._unsynced):
            sync_directory(directory)
        self._unsynced.clear()

    def read(self, name: str) -> Iterator[bytes]:
        with open(self._directory / name, "rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def publish(self, name: str, content: bytes) -> None:
        target = self._directory / name
        self._make(target.parent)
        write_atomically(target, content)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    def _make(self, directory: Path) -> None:
        if not directory.is_dir():
            make_directory(directory)


def _write_all(descriptor: int, piece: bytes) -> int:
    """Write the whole piece. Returns its length. Raises OSError."""
    unwritten = memoryview(piece)
    while len(unwritten):
        unwritten = unwritten[os.write(descriptor, unwritten) :]
    return len(piece)


def _name_holder(lock: io.FileIO) -> None:
    """Write who holds the lock into its file, for the messages of other processes."""
    with suppress(OSError):  # on a full disk, `prune` must still get the lock
        lock.truncate(0)
        lock.write(f"{this_holder()}\n".encode())
