"""The files of a write-ahead log: prepared before use, and reused afterwards.

The blocks of a file are allocated before it takes records, so that a full disk is noticed then. Until it is needed, it
is also filled with zeros in the background: an fsync of its records then writes data only and no metadata of the file
(`python -m loadtest.bench.journal`). Busy logs need files before these are full of zeros, and are better off without:
the zeros are as many bytes for the disk as the records. The first file is small and later ones are larger, so that a
log with few records needs little space.

A file is in use as long as it is listed (`register`). It is added to the list before it takes records, and removed from
the list before it is reused or deleted. A file that was read at the start is never reused, because replays hold views
of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread

from shared.durable import FILE_MODE, sync_directory
from shared.errors import Unavailable
from shared.telemetry import event
from shared.wire import Frame
from worker.ownership import when_free
from worker.storage.wal import record
from worker.storage.wal.losses import StreamKey
from worker.storage.wal.pauses import LOOK_EVERY_S
from worker.storage.wal.reading import SUFFIX
from worker.storage.wal.register import Register

FILE_BYTES = 32 << 20
FIRST_BYTES = 1 << 20
GROWTH = 4
ZEROS_BYTES, ZEROS_EVERY_S = 256 << 10, 0.064
"""Zeros written and synced at a time, and the pause between two such steps: at most 4 MB/s. An fsync of records waits
for other pending writes to the disk, which would be 15 ms for all zeros of a file."""
PIECES_MAX = 1000
"""Pieces in one system call; the kernel accepts 1,024."""
SPARES_MAX = 2
"""Files kept for reuse that no stream needs any more."""
OFFSET_BITS = 40


def position_of(number: int, offset: int) -> int:
    """The position of the record at this offset of the file with this number."""
    assert 0 <= offset < 1 << OFFSET_BITS
    return number << OFFSET_BITS | offset


@dataclass(slots=True)
class File:
    """A file in use. `size`: its bytes when it was prepared, which are allocated unless it `is_sparse`; `filled`: how
    many of them had been written then, with zeros or old records. `last`: stream → position of its last record in this
    file; `bytes_of`: stream → bytes of its records there. `descriptor` is −1 if
    the file takes no more records; they then end at `end`. `was_read`: the file was read at this start, so replays may
    hold views of it. `since`: Unix time when it was prepared, or last written if it was read. `held_up_since`:
    monotonic time since which only few of its records are needed."""

    number: int
    path: Path
    descriptor: int = -1
    size: int = 0
    was_read: bool = False
    last: dict[StreamKey, int] = field(default_factory=dict)
    since: float = field(default_factory=time.time)
    is_sparse: bool = False
    filled: int = 0
    bytes_of: dict[StreamKey, int] = field(default_factory=dict)
    end: int = 0
    held_up_since: float | None = None

    def add(self, stream: StreamKey, position: int, size: int) -> None:
        """Note a record of `size` bytes."""
        self.last[stream] = position
        self.bytes_of[stream] = self.bytes_of.get(stream, 0) + size


class Files:
    """Prepares, hands out and takes back the files of one directory, which the owner has locked. Files get numbers
    above `highest`, each number once. A thread prepares the next file in the background, and about every LOOK_EVERY_S
    calls `look`, which may raise OSError or Unavailable. While `is_sparing`, files are neither allocated nor filled,
    and none is kept for reuse."""

    def __init__(
        self, directory: Path, file_bytes: int, register: Register, highest: int, look: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._register = register
        self._preparing = Lock()
        self._prepared: File | None = None
        self._unlisted: File | None = None
        """A prepared file that the list on the disk may name although the list in memory does not. The file must exist
        until that is known."""
        self._work = Event()
        self._is_wanted = False
        self._closing = False
        self._look = look
        self.is_sparing = False
        self._number = highest
        self._size = min(FIRST_BYTES, file_bytes) // GROWTH
        self._spares: deque[Path] = deque()
        self._thread = Thread(target=self._prepare_ahead, name="wal-files", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """Prepare the next file in the background: it will be needed soon."""
        self._is_wanted = True
        self._work.set()

    def is_ready(self) -> bool:
        return self._prepared is not None

    def next(self) -> File:
        """A listed file for new records; waits while it is being prepared. Raises OSError."""
        with self._preparing:
            self._register.catch_up()  # the list on the disk may not name the prepared file
            prepared, self._prepared = self._prepared or self._prepare_listed(), None
            self._is_wanted = False
            return prepared

    def first(self) -> File:
        """Prepare a file without listing it: its records count only once it is listed. Raises OSError."""
        number = self._number + 1
        path = self._directory / f"{number:08d}{SUFFIX}"
        with contextlib.suppress(IndexError):
            os.replace(self._spares.popleft(), path)
        target_size = min(self._file_bytes, self._size * GROWTH)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            filled = os.fstat(descriptor).st_size
            is_sparse = self.is_sparing and filled < target_size
            if is_sparse:
                os.ftruncate(descriptor, target_size)
            elif filled < target_size:
                os.posix_fallocate(descriptor, filled, target_size - filled)
            size = max(filled, target_size)
            os.pwrite(descriptor, record.file_header(number, least_bytes=size), 0)
            os.fsync(descriptor)
            sync_directory(self._directory)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        self._number, self._size = number, target_size
        return File(number, path, descriptor, size, is_sparse=is_sparse, filled=max(filled, record.FILE_HEADER_BYTES))

    def _fill(self) -> None:
        """Fill the prepared file with zeros until it is full, in use or removed, or until there is other work. Raises
        OSError."""
        while not self._work.wait(ZEROS_EVERY_S):
            with self._preparing:  # a file that takes records must not be filled
                file = self._prepared
                if file is None or file.is_sparse or file.filled == file.size:
                    return
                size = min(ZEROS_BYTES, file.size - file.filled)
                file.filled += os.pwrite(file.descriptor, bytes(size), file.filled)
                os.fdatasync(file.descriptor)

    def _prepare_listed(self) -> File:
        """Prepare a file, unless there is still one that could not be listed, and list it. Raises OSError."""
        file = self._unlisted = self._unlisted or self.first()
        try:
            self._register.change(added=file.number)
        except OSError:
            with contextlib.suppress(OSError):
                self._remove_unlisted()
            raise
        self._unlisted = None
        return file

    def _remove_unlisted(self) -> None:
        if self._unlisted is not None:
            self._register.catch_up()  # first: a listed file must exist
            self._remove(self._unlisted)
            self._unlisted = None

    def prepare(self) -> None:
        """Prepare the next file now, unless it is ready. Raises OSError."""
        with self._preparing:
            if self._prepared is None:
                self._prepared = self._prepare_listed()

    def save_space(self) -> None:
        """Remove the files that are ready for records, and make the next files small and sparse until `is_sparing` is
        reset. Raises OSError."""
        with self._preparing:
            self.is_sparing = True
            self._is_wanted = False
            self._size = min(FIRST_BYTES, self._file_bytes) // GROWTH
            self._remove_unlisted()
            if self._prepared is not None:
                self._register.change(removed=(self._prepared.number,))  # first: a listed file must exist
                self._remove(self._prepared)
                self._prepared = None
            while self._spares:
                self._spares.popleft().unlink(missing_ok=True)

    def _remove(self, file: File) -> None:
        os.close(file.descriptor)
        file.path.unlink()

    def list_ends(self) -> None:
        """Write the ends that `note_end` has noted to the disk. Raises OSError."""
        self._register.catch_up()

    def shorten(self, file: File) -> None:
        """Truncate a closed file to the end of its records. That end must be listed, because a file without a known end
        must not be shorter than it was prepared. A file with a second name is in a snapshot that is being copied, and
        stays as it is. Raises OSError."""
        assert file.descriptor < 0 and file.end >= record.FILE_HEADER_BYTES
        with open(file.path, "r+b") as shortened:
            if os.fstat(shortened.fileno()).st_nlink == 1:
                os.ftruncate(shortened.fileno(), file.end)
                file.size = file.end

    def note_end(self, file: File) -> None:
        """The file takes no more records: they end at offset `file.end`, and all of them are on the disk."""
        assert file.end >= record.FILE_HEADER_BYTES and file.end % record.ALIGNMENT == 0
        self._register.note(file.number, file.end)
        self._work.set()

    def give_back(self, files: Iterable[File]) -> None:
        """Remove files whose records are not needed any more from the list, and reuse or delete them. If the list
        cannot be written, that is logged and the files stay in use."""
        files = list(files)
        assert all(file.descriptor < 0 for file in files), "a file that is still written"
        try:
            self._register.change(removed=tuple(file.number for file in files))
        except OSError as error:
            # The files stay listed, and the next start reads their records again; the areas recognise such records.
            event(logging.WARNING, "write-ahead log files not released", reason=error.strerror)
            return
        for file in files:
            if file.was_read or file.is_sparse:
                file.path.unlink(missing_ok=True)
            else:
                self.keep_spare(file.path)

    def keep_spare(self, path: Path) -> None:
        """Keep a file for reuse, or delete it if it is small or enough files are kept. The file must not be listed, and
        nothing may hold views of it. A file with a second name is in a snapshot of the data directory, and is not
        reused either. Raises OSError."""
        status = path.stat()
        is_kept = not self.is_sparing and len(self._spares) < SPARES_MAX
        if not is_kept or status.st_size < self._file_bytes or status.st_nlink > 1:
            path.unlink(missing_ok=True)
            return
        # An empty header says that the file is not in use, even if the list is lost.
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            file.write(bytes(record.FILE_HEADER_BYTES))
        self._spares.append(path)

    def close(self) -> None:
        """Stop the thread. The files do not change."""
        self._closing = True
        self._work.set()
        self._thread.join()
        for file in (self._prepared, self._unlisted):
            if file is not None:
                os.close(file.descriptor)

    def _prepare_ahead(self) -> None:
        while True:
            self._work.wait(LOOK_EVERY_S)
            self._work.clear()
            if self._closing:
                return
            try:
                self._look()
            except OSError as error:
                event(logging.WARNING, "write-ahead log gives nothing back", reason=error.strerror)
            except Unavailable:
                self._work.wait()  # the log has failed or is closed; only `close` has work for this thread
                continue
            try:
                with self._preparing:
                    if self._prepared is None and self._is_wanted:
                        self._prepared = self._prepare_listed()
                    else:
                        self._register.catch_up()
                self._fill()
            except OSError as error:
                # The next write that needs the file reports the failure.
                event(logging.WARNING, "no room for a write-ahead log", reason=error.strerror)


def lock(directory: Path) -> int:
    """Lock the directory until the returned descriptor is closed. Raises Unavailable if another process does not
    release it within `worker.ownership.LOCK_WAIT_S`, OSError."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        when_free(directory, lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), BlockingIOError)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_all(descriptor: int, pieces: list[Frame], offset: int) -> None:
    """Write the pieces one after the other from `offset` on. Raises OSError, and then some of them may be written."""
    assert offset >= record.FILE_HEADER_BYTES and offset % record.ALIGNMENT == 0
    for first in range(0, len(pieces), PIECES_MAX):
        batch = pieces[first : first + PIECES_MAX]
        size = sum(memoryview(piece).nbytes for piece in batch)
        written = os.pwritev(descriptor, batch, offset)
        if written < size:  # the disk is nearly full, or the pieces are larger than one call takes
            remaining = memoryview(b"".join(batch))[written:]
            while len(remaining):
                offset += written
                written = os.pwrite(descriptor, remaining, offset)
                remaining = remaining[written:]
        offset += written
