"""The files of a write-ahead log: made ready before they are used, and used again.

A file is filled with zeros and synced in the background, so that an fsync of its records has data to write and no
change of the file itself (`python -m loadtest.bench.journal`). The first one is small, the next ones larger, so that a
log that is hardly written costs little.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread

from shared.durable import sync_directory
from shared.telemetry import event
from worker.ownership import when_free
from worker.wal import record

FILE_BYTES = 32 << 20
FIRST_BYTES = 1 << 20
GROWTH = 4
ZEROS_BYTES = 1 << 20
SPARES_MAX = 2
"""Files without records of use that are kept to be used again."""
_SUFFIX = ".wal"


@dataclass(slots=True)
class File:
    """`last`: stream → position of its last record here. `descriptor` is −1 for one that is not written any more."""

    number: int
    path: Path
    descriptor: int = -1
    size: int = 0
    last: dict[tuple[int, int], int] = field(default_factory=dict)


class Files:
    """Of one directory, which it locks. Files are numbered from 1 on; a number is never given twice."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        """Raises OSError, Unavailable when another process has the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._file_bytes = file_bytes
        self._lock = lock(directory)
        self._preparing = Lock()
        self._prepared: File | None = None
        self._wanted = Event()
        self._closing = False
        paths = paths_of(directory)
        self._number = int(paths[-1].stem) if paths else 0
        self._size = min(FIRST_BYTES, file_bytes) // GROWTH
        self._spares: deque[Path] = deque()
        self._thread = Thread(target=self._prepare_ahead, name="wal-files", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """The next file will be needed soon."""
        self._wanted.set()

    def is_ready(self) -> bool:
        return self._prepared is not None

    def next(self) -> File:
        """A file to be written; waits while it is made ready. Raises OSError."""
        with self._preparing:
            prepared, self._prepared = self._prepared or self._prepare(), None
            return prepared

    def give_back(self, path: Path) -> None:
        """What is in the file is not needed any more."""
        if len(self._spares) >= SPARES_MAX or path.stat().st_size < self._file_bytes:
            path.unlink(missing_ok=True)
            return
        # So that a restart does not read it; streams must bear it all the same when a crash undoes this.
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            file.write(bytes(record.FILE_HEADER_BYTES))
        self._spares.append(path)

    def close(self) -> None:
        self._closing = True
        self._wanted.set()
        self._thread.join()
        if self._prepared is not None:
            os.close(self._prepared.descriptor)
        os.close(self._lock)

    def _prepare_ahead(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._closing:
                return
            try:
                with self._preparing:
                    if self._prepared is None:
                        self._prepared = self._prepare()
            except OSError as error:
                # Whoever needs the file finds out for himself.
                event(logging.WARNING, "no room for a write-ahead log", reason=error.strerror)

    def _prepare(self) -> File:
        number = self._number + 1
        path = self._directory / f"{number:08d}{_SUFFIX}"
        with contextlib.suppress(IndexError):
            os.replace(self._spares.popleft(), path)
        wanted = min(self._file_bytes, self._size * GROWTH)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, record.file_header(number), 0)
            size = os.fstat(descriptor).st_size
            while size < wanted and not self._closing:
                size += os.pwrite(descriptor, bytes(min(ZEROS_BYTES, wanted - size)), size)
            os.fsync(descriptor)
            sync_directory(self._directory)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        self._number, self._size = number, wanted
        return File(number, path, descriptor, size)


def paths_of(directory: Path) -> list[Path]:
    """The files of a log, by number."""
    return sorted(directory.glob(f"*{_SUFFIX}"), key=lambda path: int(path.stem))


def read(path: Path) -> Iterator[tuple[record.Found, memoryview]]:
    """The whole records of a file and their payloads, views of its memory map. What is not whole is left out and
    logged: behind the last whole record it is a write that a crash has cut, elsewhere it is damage."""
    number = int(path.stem)
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < record.FILE_HEADER_BYTES:
            return
        data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    if not record.is_file_of(number, data):
        return
    torn: record.Found | None = None
    for found in record.scan(number, data):
        if isinstance(found, record.Damage):
            size = found.end - found.offset
            event(logging.ERROR, "write-ahead log damaged", file=str(path), at=found.offset, bytes=size)
            continue
        if torn is not None:
            event(logging.ERROR, "write-ahead log record damaged", file=str(path), at=torn.offset, bytes=torn.length)
        torn = None if found.whole else found
        if found.whole:
            yield found, data[found.start : found.start + found.length]
    if torn is not None:
        event(logging.WARNING, "write-ahead log cut", file=str(path), at=torn.offset, bytes=torn.length)


def lock(directory: Path) -> int:
    """Take the directory until the descriptor that is returned is closed. Raises Unavailable when its owner does not
    let go in time."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        when_free(directory, lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), BlockingIOError)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
