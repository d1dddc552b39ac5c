"""The write-ahead log of one worker process: what its shards have acknowledged and not yet put into their stores.

One log for all shards and areas, because an fsync costs the same for one record and for hundreds: whatever arrives at
the same time is one write and one fsync.

Durability: when `write` returns, the records survive the death of the process; when `sync` returns, the loss of power.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import cast

import xxhash

from shared.durable import make_directory
from shared.errors import Unavailable
from shared.telemetry import event
from shared.wire import Frame
from worker.storage.faces import JournalStream
from worker.storage.group_sync import GroupSync
from worker.storage.wal import files, losses, reading, record, setting_aside
from worker.storage.wal.files import FILE_BYTES, File, Files
from worker.storage.wal.losses import Key, Loss
from worker.storage.wal.register import Listing, Register, this_boot

SERIES, LOG = 1, 2
"""Areas."""

BEHIND_FILES = 32
"""A stream with a record in a file that so many newer ones have followed, all in use, is `behind`."""
PIECES_MAX = 1000
"""Of one system call; the kernel takes 1,024."""
RECOVERY_FREE_BYTES = 2 * FILE_BYTES
"""Room there must be before a log that failed is opened again."""
ASIDE_BYTES_MAX = 64 << 20
"""Of records that are set aside at once, about: more are counted, and not kept."""
_OFFSET_BITS = 40


class WriteAheadLog:
    """Safe to use from many threads.

    A record's position is a number that rises with time; positions of one directory are never given twice.
    """

    def __init__(self, directory: Path, *, file_bytes: int = FILE_BYTES, former: Path | None = None) -> None:
        """`former` is where damage is remembered that was found while the logs were laid out anew."""
        self._directory = directory
        self._former = former
        self._file_bytes = file_bytes
        self._opening = Lock()
        self._lock = Lock()  # of everything below, held for one write at most
        self._leaving = Lock()  # of the file that is written: it is not closed while it is synced
        self._owned: int | None = None
        self._files: Files | None = None
        self._register: Register | None = None
        self._used: list[File] = []  # ascending; the last is the one that is written
        self._streams: dict[Key, Stream] = {}
        self._released: dict[Key, int] = {}
        self._losses: list[Loss] = []
        self._offset = 0
        self._synced = 0  # of the file that is written, below which everything is on the disk
        self._failed = ""
        self._syncs = GroupSync(self._fsync)

    def open(self) -> WriteAheadLog:
        """Read what is there; safe to call again. What was not known to be synced is written and synced anew: a sync
        that failed leaves pages in memory that read well and are not on the disk.

        Raises OSError, Unavailable when another process has it, ConfigError when a newer release has written it.
        """
        with self._opening:
            if self._files is None:
                make_directory(self._directory)
                self._owned = files.lock(self._directory)
                try:
                    self._open()
                except BaseException:
                    os.close(self._owned)
                    raise
        return self

    def _open(self) -> None:
        survey = reading.survey(self._directory)
        setting_aside.set_aside(survey, self._directory)
        directories = [self._directory, *([self._former] if self._former else [])]
        self._losses = [loss for each in directories for known in losses.known(each) for loss in known.losses]
        for loss in self._losses:
            event(logging.ERROR, "write-ahead log damaged", what=loss.text())
        survey.tell_cuts()
        highest, listing = survey.highest, survey.listing
        if listing is not None and not listing.is_whole:
            event(logging.WARNING, "write-ahead log list of files repaired", directory=str(self._directory))
        if listing is None:
            listing = Listing(highest, {content.number: 0 for content in survey.used})
        self._register = Register(self._directory, dataclasses.replace(listing, highest=highest))
        log_files = Files(self._directory, self._file_bytes, self._register, highest)
        try:
            self._take_over(survey, log_files)
        except BaseException:
            self._forget()
            log_files.close()
            self._register.close()
            raise
        self._files = log_files

    def _forget(self) -> None:
        """Be as before `open`, which failed and may be tried again."""
        for file in self._used:
            if file.descriptor >= 0:
                os.close(file.descriptor)
        self._used = []
        for stream in self._streams.values():
            stream.held = []

    def _take_over(self, survey: reading.Survey, log_files: Files) -> None:
        """Have the streams hold what was found, and begin a file."""
        assert self._register is not None
        read: list[File] = []
        for content in survey.used:
            read.append(File(content.number, content.path, was_read=True))
            for header, payload in content.records:
                if header.offset < content.synced:
                    self._hold(read[-1], header, payload, header.offset)
        self._begin(log_files.first())
        written = self._used[-1]
        for header, payload in (item for content in survey.used for item in content.tail):
            area = header.area
            pieces, size = record.frames(written.number, header.shard, area, [payload], self._synced)
            _write_all(written.descriptor, pieces, self._offset)
            self._hold(written, header, payload, self._offset)
            self._offset += size
        os.fdatasync(written.descriptor)
        self._synced = self._offset
        # From here on the new file counts, and what was written anew does not count in the old ones.
        empty = [file for file in read if not file.last]
        gone = (*survey.missing, *(file.number for file in empty))
        self._register.change(
            added=written.number,
            removed=gone,
            ends={content.number: content.synced for content in survey.used},
            boot=this_boot(),
        )
        self._used = [*(file for file in read if file.last), written]
        for file in empty:
            file.path.unlink(missing_ok=True)
        for path in survey.unused:
            log_files.keep_spare(path)

    def _hold(self, file: File, item: record.RecordHeader, payload: memoryview, offset: int) -> None:
        stream = self.stream(item.shard, item.area)
        file.last[stream.key] = _position(file.number, offset)
        stream.held.append((file.last[stream.key], payload))

    def losses_of(self, shard: int) -> list[tuple[int, str]]:
        """(area, what is missing) of one shard, as far as it is known and has not been accepted."""
        return [(area, loss.text()) for loss in self._losses for area in (SERIES, LOG) if loss.concerns(shard, area)]

    def set_aside(self, key: Key, payloads: Sequence[Frame], what: str) -> str:
        """Keep a copy of records that a stream's area could not use, so that each start says so until the copy is
        deleted, also when the records have been released. Returns the text that says it. A disk that refuses is
        logged."""
        # Named by the newest one's content: the older ones are released first, and positions change with the file.
        name = f"records-{xxhash.xxh3_64_hexdigest(payloads[-1])}"
        for known_loss in self._losses:
            if known_loss.file == name and key in (known_loss.streams or ()):
                return known_loss.text()
        loss = Loss(name, 0, sum(memoryview(payload).nbytes for payload in payloads), what, (key,))
        with self._lock:
            self._losses = [*self._losses, loss]
        try:
            losses.remember(self._directory / name, [loss], _first(payloads, ASIDE_BYTES_MAX))
        except OSError as error:
            event(logging.ERROR, "damage is not remembered", what=loss.text(), reason=error.strerror)
        return loss.text()

    def stream(self, shard: int, area: int) -> Stream:
        """The records of one area of one shard."""
        with self._lock:
            return self._streams.setdefault((shard, area), Stream(self, shard, area))

    def write(self, records: Sequence[tuple[JournalStream, Sequence[Frame]]]) -> list[int]:
        """Append records, each of some pieces that are its payload; their positions. Raises Unavailable, and then none
        of them is there, unless the process dies before the next write."""
        with self._lock:
            log_files = self._usable()
            try:
                return self._write(log_files, cast("Sequence[tuple[Stream, Sequence[Frame]]]", records))
            except OSError as error:
                raise Unavailable(f"the log {self._directory} cannot be written: {error.strerror}") from error

    def _cut(self) -> None:
        """Leave nothing of a write that failed. If this fails too, the log takes no more: a shorter write in its place
        would leave whole records behind itself that were refused."""
        file = self._used[-1]
        try:
            os.pwrite(file.descriptor, record.file_header(file.number), 0)  # which says no length any more
            os.ftruncate(file.descriptor, self._offset)
        except OSError as error:
            self._failed = f"a write that failed could not be taken back: {error.strerror}"

    def _write(self, log_files: Files, records: Sequence[tuple[Stream, Sequence[Frame]]]) -> list[int]:
        file = self._used[-1]
        pieces: list[Frame] = []
        sizes = []
        for stream, payload in records:
            more, size = record.frames(file.number, stream.shard, stream.area, payload, self._synced)
            pieces += more
            sizes.append(size)
        end = self._offset + sum(sizes)
        # A file that is full before the next one is ready may grow, at the price of slower syncs.
        full = end > file.size and (log_files.is_ready() or end > self._file_bytes)
        if full and self._offset > record.FILE_HEADER_BYTES:
            self._leave(log_files)
            return self._write(log_files, records)
        if 2 * end > file.size and not log_files.is_ready():
            log_files.want()
        try:
            _write_all(file.descriptor, pieces, self._offset)
        except OSError:
            self._cut()
            raise
        positions = []
        for (stream, _), size in zip(records, sizes, strict=True):
            file.last[stream.key] = _position(file.number, self._offset)
            positions.append(file.last[stream.key])
            self._offset += size
        assert self._offset == end
        return positions

    def _begin(self, file: File) -> None:
        assert file.descriptor >= 0
        assert not self._used or file.number > self._used[-1].number, "positions rise with time"
        self._used.append(file)
        self._offset = self._synced = record.FILE_HEADER_BYTES

    def _leave(self, log_files: Files) -> None:
        """Go on in the next file. What is in this one is durable then, so that `sync` concerns one file."""
        with self._leaving:
            self._usable()
            left = self._used[-1]
            self._fdatasync(left)
            end = self._offset
            self._begin(log_files.next())
            log_files.left(left, end)
            os.close(left.descriptor)
            left.descriptor = -1

    def _fdatasync(self, file: File) -> None:
        """For who has `_leaving`. After a failure nobody syncs again: the kernel would let that succeed."""
        try:
            os.fdatasync(file.descriptor)
        except OSError as error:
            self._failed = error.strerror or str(error)
            raise

    def sync(self) -> None:
        """Return when every record whose `write` returned before is on the disk; concurrent callers share an fsync.

        Raises Unavailable. What the disk has is not known then, and the log takes no more until it is opened anew.
        """
        self._usable()
        try:
            self._syncs.sync()
        except OSError as error:
            raise Unavailable(f"the log {self._directory} could not be synced: {self._failed}") from error

    def _fsync(self) -> None:
        with self._leaving:
            self._usable()
            upto = self._offset
            assert upto >= self._synced
            self._fdatasync(self._used[-1])
            self._synced = upto

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
            log_files = self._files
        if done and log_files is not None:
            log_files.give_back(done)

    def _is_done(self, file: File) -> bool:
        return all(position < self._released.get(key, 0) for key, position in file.last.items())

    def is_behind(self, stream: Stream) -> bool:
        with self._lock:
            released = self._released.get(stream.key, 0)
            return any(file.last.get(stream.key, -1) >= released for file in self._used[:-BEHIND_FILES])

    def close(self) -> None:
        """Sync and let go; the records stay for the next start."""
        with self._opening, self._lock, self._leaving:
            log_files, self._files = self._files, None
            if log_files is None:
                return
            log_files.close()
            assert self._register is not None and self._owned is not None
            file = self._used[-1]
            if not self._failed:
                try:
                    self._fdatasync(file)
                    self._register.change(ends={file.number: self._offset})
                except OSError as error:
                    event(logging.ERROR, "write-ahead log closed without a sync", reason=error.strerror)
            os.close(file.descriptor)
            self._register.close()
            os.close(self._owned)


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
        """`records` are not asked for again: the shard is loaded with all of its areas."""
        self.held = []

    def write(self, payload: Sequence[Frame]) -> int:
        """One record; see `WriteAheadLog.write`."""
        return self.log.write([(self, payload)])[0]

    def set_aside(self, payloads: Sequence[Frame], what: str) -> str:
        """Keep a copy of records that make no sense: see `WriteAheadLog.set_aside`."""
        return self.log.set_aside(self.key, payloads, what)

    def sync(self) -> None:
        self.log.sync()

    def release(self, position: int) -> None:
        """Records below `position` are not needed any more: what they say is durable elsewhere."""
        self.log.release(self, position)

    def is_behind(self) -> bool:
        """Whether its oldest record holds up too many files: what they say should be put elsewhere soon."""
        return self.log.is_behind(self)


def _first(payloads: Sequence[Frame], size_bytes: int) -> Iterator[Frame]:
    """As many from the beginning as have that size together, and one more."""
    for payload in payloads:
        yield payload
        size_bytes -= memoryview(payload).nbytes
        if size_bytes < 0:
            return


def _position(number: int, offset: int) -> int:
    assert 0 <= offset < 1 << _OFFSET_BITS
    return number << _OFFSET_BITS | offset


def _write_all(descriptor: int, pieces: list[Frame], offset: int) -> None:
    assert offset >= record.FILE_HEADER_BYTES and offset % record.ALIGNMENT == 0
    for first in range(0, len(pieces), PIECES_MAX):
        batch = pieces[first : first + PIECES_MAX]
        size = sum(memoryview(piece).nbytes for piece in batch)
        written = os.pwritev(descriptor, batch, offset)
        if written < size:  # the disk is nearly full, or the pieces are larger than one call takes
            rest = memoryview(b"".join(batch))[written:]
            while len(rest):
                offset += written
                written = os.pwrite(descriptor, rest, offset)
                rest = rest[written:]
        offset += written
