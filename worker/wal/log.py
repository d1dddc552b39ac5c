"""The write-ahead log of one worker process: what its shards have acknowledged and not yet put into their stores.

One log for all shards and areas, because an fsync costs the same for one record and for hundreds: whatever arrives at
the same time is one write and one fsync.

Durability: when `write` returns, the records survive the death of the process; when `sync` returns, the loss of power.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from shared.errors import Unavailable
from shared.telemetry import event
from shared.wire import Frame
from worker.group_sync import GroupSync
from worker.wal import files, record
from worker.wal.files import FILE_BYTES, File, Files

SERIES, LOG = 1, 2
"""Areas."""

BEHIND_FILES = 32
"""A stream with a record in a file that so many newer ones have followed, all in use, is `behind`."""
PIECES_MAX = 1000
"""Of one system call; the kernel takes 1,024."""
RECOVERY_FREE_BYTES = 2 * FILE_BYTES
"""Room there must be before a log that failed is opened again."""
_OFFSET_BITS = 40

Key = tuple[int, int]
"""(shard, area)."""


class WriteAheadLog:
    """Safe to use from many threads.

    A record's position is a number that rises with time; positions of one directory are never given twice.
    """

    def __init__(self, directory: Path, *, file_bytes: int = FILE_BYTES) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._opening = Lock()
        self._lock = Lock()  # of everything below, held for one write at most
        self._leaving = Lock()  # of the file that is written: it is not closed while it is synced
        self._files: Files | None = None
        self._used: list[File] = []  # ascending; the last is the one that is written
        self._streams: dict[Key, Stream] = {}
        self._released: dict[Key, int] = {}
        self._offset = 0
        self._failed = ""
        self._syncs = GroupSync(self._fsync)

    def open(self) -> WriteAheadLog:
        """Read what is there; safe to call again. Raises OSError, Unavailable when another process has it."""
        with self._opening:
            if self._files is None:
                self._files = Files(self._directory, self._file_bytes)
                self._read(self._files)
                self._begin(self._files)
        return self

    def _read(self, own: Files) -> None:
        for path in files.paths_of(self._directory):
            file = File(int(path.stem), path)
            for found, payload in files.read(path):
                position = _position(file.number, found.offset)
                stream = self.stream(found.shard, found.area)
                stream.held.append((position, payload))
                file.last[stream.key] = position
            if file.last:
                # What a process that was killed had not synced; `sync` concerns the file that is written.
                with open(path, "rb+") as left:
                    os.fdatasync(left)
                self._used.append(file)
            else:
                own.give_back(path)

    def stream(self, shard: int, area: int) -> Stream:
        """The records of one area of one shard."""
        with self._lock:
            return self._streams.setdefault((shard, area), Stream(self, shard, area))

    def write(self, records: Sequence[tuple[Stream, Sequence[Frame]]]) -> list[int]:
        """Append records, each of some pieces that are its payload; their positions. Raises Unavailable, and then none
        of them is there, unless the process dies before the next write."""
        with self._lock:
            own = self._usable()
            try:
                return self._write(own, records)
            except OSError as error:
                self._cut()
                raise Unavailable(f"the log {self._directory} cannot be written: {error.strerror}") from error

    def _cut(self) -> None:
        """Leave nothing of a write that failed. If this fails too, its records may be there after a crash."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._used[-1].descriptor, self._offset)

    def _write(self, own: Files, records: Sequence[tuple[Stream, Sequence[Frame]]]) -> list[int]:
        file = self._used[-1]
        pieces: list[Frame] = []
        sizes = []
        for stream, payload in records:
            more, size = record.frames(file.number, stream.shard, stream.area, payload)
            pieces += more
            sizes.append(size)
        end = self._offset + sum(sizes)
        # A file that is full before the next one is ready may grow, at the price of slower syncs.
        full = end > file.size and (own.is_ready() or end > self._file_bytes)
        if full and self._offset > record.FILE_HEADER_BYTES:
            self._leave(own)
            return self._write(own, records)
        if 2 * end > file.size:
            own.want()
        _write_all(file.descriptor, pieces, self._offset)
        positions = []
        for (stream, _), size in zip(records, sizes, strict=True):
            file.last[stream.key] = _position(file.number, self._offset)
            positions.append(file.last[stream.key])
            self._offset += size
        return positions

    def _begin(self, own: Files) -> None:
        self._used.append(own.next())
        self._offset = record.FILE_HEADER_BYTES

    def _leave(self, own: Files) -> None:
        """Go on in the next file. What is in this one is durable then, so that `sync` concerns one file."""
        with self._leaving:
            left = self._used[-1]
            try:
                os.fdatasync(left.descriptor)
            except OSError as error:
                self._failed = error.strerror or str(error)
                raise
            self._begin(own)
            os.close(left.descriptor)
            left.descriptor = -1

    def sync(self) -> None:
        """Return when every record whose `write` returned before is on the disk; concurrent callers share an fsync.

        Raises Unavailable. What the disk has is not known then, and the log takes no more until it is opened anew.
        """
        try:
            self._syncs.sync()
        except OSError as error:
            self._failed = error.strerror or str(error)
            raise Unavailable(f"the log {self._directory} could not be synced: {self._failed}") from error

    def _fsync(self) -> None:
        self._usable()
        with self._leaving:
            os.fdatasync(self._used[-1].descriptor)

    def _usable(self) -> Files:
        if self._failed or self._files is None:
            raise Unavailable(f"the log {self._directory} takes no records: {self._failed or 'it is not open'}")
        return self._files

    def recoverable(self) -> bool:
        """Whether it failed, and may succeed when opened again."""
        if not self._failed:
            return False
        free = os.statvfs(self._directory)
        return free.f_bavail * free.f_frsize >= RECOVERY_FREE_BYTES

    def release(self, stream: Stream, position: int) -> None:
        """Records of the stream below `position` are not needed any more."""
        with self._lock:
            if position <= self._released.get(stream.key, 0):
                return
            self._released[stream.key] = position
            done = [file for file in self._used[:-1] if self._is_done(file)]
            self._used = [file for file in self._used if file not in done]
        for file in done:
            if self._files is not None:
                self._files.give_back(file.path)

    def _is_done(self, file: File) -> bool:
        return all(position < self._released.get(key, 0) for key, position in file.last.items())

    def is_behind(self, stream: Stream) -> bool:
        with self._lock:
            released = self._released.get(stream.key, 0)
            return any(file.last.get(stream.key, -1) >= released for file in self._used[:-BEHIND_FILES])

    def close(self) -> None:
        """Sync and let go; the records stay for the next start."""
        with self._opening, self._lock:
            own, self._files = self._files, None
            if own is None:
                return
            descriptor = self._used[-1].descriptor
            if not self._failed:
                try:
                    os.fdatasync(descriptor)
                except OSError as error:
                    event(logging.ERROR, "write-ahead log closed without a sync", reason=error.strerror)
            os.close(descriptor)
            own.close()


class Stream:
    """The records of one area of one shard, in the order they were written."""

    def __init__(self, log: WriteAheadLog, shard: int, area: int) -> None:
        self.log = log
        self.shard = shard
        self.area = area
        self.key: Key = shard, area
        self.held: list[tuple[int, memoryview]] = []

    def records(self) -> Iterator[tuple[int, memoryview]]:
        """(position, payload) of what was there at the start and was not released, until `replayed`. After a crash
        that may be a record that had been released."""
        return iter(self.held)

    def replayed(self) -> None:
        """`records` are not asked for again."""
        self.held = []

    def write(self, payload: Sequence[Frame]) -> int:
        """One record; see `WriteAheadLog.write`."""
        return self.log.write([(self, payload)])[0]

    def sync(self) -> None:
        self.log.sync()

    def release(self, position: int) -> None:
        """Records below `position` are not needed any more: what they say is durable elsewhere."""
        self.log.release(self, position)

    def is_behind(self) -> bool:
        """Whether its oldest record holds up too many files: what they say should be put elsewhere soon."""
        return self.log.is_behind(self)


def _position(number: int, offset: int) -> int:
    return number << _OFFSET_BITS | offset


def _write_all(descriptor: int, pieces: list[Frame], offset: int) -> None:
    for first in range(0, len(pieces), PIECES_MAX):
        own = pieces[first : first + PIECES_MAX]
        size = sum(memoryview(piece).nbytes for piece in own)
        written = os.pwritev(descriptor, own, offset)
        if written < size:  # the disk is nearly full, or the pieces are larger than one call takes
            rest = memoryview(b"".join(own))[written:]
            while len(rest):
                offset += written
                written = os.pwrite(descriptor, rest, offset)
                rest = rest[written:]
        offset += written
