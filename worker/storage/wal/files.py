"""The files of a write-ahead log: made ready before they are used, and used again.

A file is filled with zeros and synced in the background, so that an fsync of its records has data to write and no
change of the file itself (`python -m loadtest.bench.journal`). The first one is small, the next ones larger, so that a
log that is hardly written costs little.

A file is in use from when it is listed (`register`), which is before it is handed out, until it is not
listed any more, which is before it is used again or removed. One that was read at the start is never used again:
replays have views of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread

from shared.durable import FILE_MODE, sync_directory
from shared.telemetry import event
from worker.ownership import when_free
from worker.storage.wal import record
from worker.storage.wal.reading import SUFFIX
from worker.storage.wal.register import Register

FILE_BYTES = 32 << 20
FIRST_BYTES = 1 << 20
GROWTH = 4
ZEROS_BYTES = 1 << 20
SPARES_MAX = 2
"""Files without records of use that are kept to be used again."""


@dataclass(slots=True)
class File:
    """`last`: stream → position of its last record here. `descriptor` is −1 for one that is not written any more.
    `was_read`: at this start, so that there may be views of it."""

    number: int
    path: Path
    descriptor: int = -1
    size: int = 0
    was_read: bool = False
    last: dict[tuple[int, int], int] = field(default_factory=dict)


class Files:
    """Of one directory, which its owner has locked. A number above `highest` is given once, and never again."""

    def __init__(self, directory: Path, file_bytes: int, register: Register, highest: int) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._register = register
        self._preparing = Lock()
        self._prepared: File | None = None
        self._work = Event()
        self._is_wanted = False
        self._closing = False
        self._number = highest
        self._size = min(FIRST_BYTES, file_bytes) // GROWTH
        self._spares: deque[Path] = deque()
        self._thread = Thread(target=self._prepare_ahead, name="wal-files", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """The next file will be needed soon."""
        self._is_wanted = True
        self._work.set()

    def is_ready(self) -> bool:
        return self._prepared is not None

    def next(self) -> File:
        """A file to be written; waits while it is made ready. Raises OSError."""
        with self._preparing:
            prepared, self._prepared = self._prepared or self._listed(self.first()), None
            self._is_wanted = False
            return prepared

    def first(self) -> File:
        """A file that is not listed yet: what is written to it is void until it is. Raises OSError."""
        number = self._number + 1
        path = self._directory / f"{number:08d}{SUFFIX}"
        with contextlib.suppress(IndexError):
            os.replace(self._spares.popleft(), path)
        wanted = min(self._file_bytes, self._size * GROWTH)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            size = os.fstat(descriptor).st_size
            while size < wanted and not self._closing:
                size += os.pwrite(descriptor, bytes(min(ZEROS_BYTES, wanted - size)), size)
            os.pwrite(descriptor, record.file_header(number, least_bytes=size), 0)
            os.fsync(descriptor)
            sync_directory(self._directory)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        self._number, self._size = number, wanted
        return File(number, path, descriptor, size)

    def _listed(self, file: File) -> File:
        try:
            self._register.change(added=file.number)
        except OSError:
            os.close(file.descriptor)
            file.path.unlink()
            raise
        return file

    def left(self, file: File, end: int) -> None:
        """The file's records end here, and all of them are on the disk."""
        assert end >= record.FILE_HEADER_BYTES and end % record.ALIGNMENT == 0
        self._register.note(file.number, end)
        self._work.set()

    def give_back(self, files: Iterable[File]) -> None:
        """What is in these files is not needed any more."""
        files = list(files)
        assert all(file.descriptor < 0 for file in files), "a file that is still written"
        try:
            self._register.change(removed=tuple(file.number for file in files))
        except OSError as error:
            # They stay listed, so their records come again at the next start, which the areas bear.
            event(logging.WARNING, "write-ahead log files not released", reason=error.strerror)
            return
        for file in files:
            if file.was_read:
                file.path.unlink(missing_ok=True)
            else:
                self.keep_spare(file.path)

    def keep_spare(self, path: Path) -> None:
        """This file, which is not listed, may be used again. Nobody has views of it."""
        if len(self._spares) >= SPARES_MAX or path.stat().st_size < self._file_bytes:
            path.unlink(missing_ok=True)
            return
        # So that it is known for what it is also when the list is lost.
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            file.write(bytes(record.FILE_HEADER_BYTES))
        self._spares.append(path)

    def close(self) -> None:
        self._closing = True
        self._work.set()
        self._thread.join()
        if self._prepared is not None:
            os.close(self._prepared.descriptor)

    def _prepare_ahead(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            if self._closing:
                return
            try:
                with self._preparing:
                    if self._prepared is None and self._is_wanted:
                        self._prepared = self._listed(self.first())
                    else:
                        self._register.catch_up()
            except OSError as error:
                # The next write that needs the file reports the failure.
                event(logging.WARNING, "no room for a write-ahead log", reason=error.strerror)


def lock(directory: Path) -> int:
    """Take the directory until the descriptor that is returned is closed. Raises Unavailable when its owner does not
    let go in time."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        when_free(directory, lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), BlockingIOError)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
