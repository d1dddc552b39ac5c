"""The write-ahead log of one worker process: records that its shards have acknowledged but not yet put into their
stores.

All shards and areas share one log, because an fsync costs the same for one record as for hundreds: records that arrive
at the same time need one write and one fsync.

Durability: when `write` returns, the records survive the death of the process; when `sync` returns, they survive a loss
of power.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import cast

from shared.durable import make_directory
from shared.errors import Unavailable
from shared.telemetry import event
from shared.wire import Frame
from worker.storage.faces import JournalState, JournalStream
from worker.storage.group_sync import GroupSync
from worker.storage.wal import files, reading, record, setting_aside
from worker.storage.wal.files import FILE_BYTES, File, Files, position_of
from worker.storage.wal.losses import KnownLosses, StreamKey
from worker.storage.wal.pauses import Pauses
from worker.storage.wal.register import Listing, Register, this_boot
from worker.storage.wal.releases import Releases
from worker.storage.wal.stream import Stream

SERIES, LOG = 1, 2
"""The areas that write records. These numbers are stored in the files of the log."""

REST_BYTES = 64 << 10
"""When the log becomes idle, it begins a new file if the last one is larger than this."""
RECOVERY_FREE_BYTES = 2 * FILE_BYTES
"""Free space on the disk that a failed log needs before it is opened again."""


class WriteAheadLog:
    """See `worker.storage.faces.WorkerJournal`. Safe to use from many threads.

    A record's position is a number that rises with time: the number of its file and its offset there. A directory never
    gives a position twice.
    """

    def __init__(self, directory: Path, *, file_bytes: int = FILE_BYTES, former: Path | None = None) -> None:
        """`file_bytes`: the size of a full file. `former`: the directory with the records of damage that was found
        while the logs were laid out anew."""
        self._directory = directory
        self._file_bytes = file_bytes
        self._opening = Lock()
        self._lock = Lock()  # guards everything below; held for one write at most
        self._leaving = Lock()  # guards the last file: it must not be closed during a sync
        self._lock_descriptor: int | None = None
        self._files: Files | None = None
        self._register: Register | None = None
        self._used: list[File] = []  # ascending; records are appended to the last one
        self._streams: dict[StreamKey, Stream] = {}
        self._releases = Releases()
        self._losses = KnownLosses(directory, former)
        self._offset = 0
        self._synced = 0  # offset in the last file below which everything is on the disk
        self._failed = ""
        self._written_bytes = 0
        self._pauses = Pauses()
        self._syncs = GroupSync(self._fsync)

    def open(self) -> WriteAheadLog:
        """Read the records; safe to call again, even after a call that failed. Records that may not have been synced
        are written and synced again: after a failed sync, the page cache can return records that are not on the disk.

        Raises OSError, Unavailable if another process has the log open, ConfigError if a newer release has written it.
        """
        with self._opening:
            if self._files is None:
                make_directory(self._directory)
                self._lock_descriptor = files.lock(self._directory)
                try:
                    self._open()
                except BaseException:
                    os.close(self._lock_descriptor)
                    raise
        return self

    def _open(self) -> None:
        survey = reading.survey(self._directory)
        setting_aside.set_aside(survey, self._directory)
        self._losses.load()
        survey.log_cuts()
        highest, listing = survey.highest, survey.listing
        if listing is not None and not listing.is_whole:
            event(logging.WARNING, "write-ahead log list of files repaired", directory=str(self._directory))
        if listing is None:
            listing = Listing(highest, {content.number: 0 for content in survey.used})
        self._register = Register(self._directory, dataclasses.replace(listing, highest=highest))
        log_files = Files(self._directory, self._file_bytes, self._register, highest, self._look)
        try:
            self._take_over(survey, log_files)
        except BaseException:
            self._forget()
            log_files.close()
            self._register.close()
            raise
        self._files = log_files

    def _forget(self) -> None:
        """Restore the state before an `open` that has failed and may be tried again."""
        for file in self._used:
            if file.descriptor >= 0:
                os.close(file.descriptor)
        self._used = []
        for stream in self._streams.values():
            stream.held = []

    def _take_over(self, survey: reading.Survey, log_files: Files) -> None:
        """Hand the records of the survey to their streams, and begin a file."""
        assert self._register is not None
        old_files: list[File] = []
        for content in survey.used:
            status = content.path.stat()
            old_files.append(File(content.number, content.path, -1, status.st_size, True, since=status.st_mtime))
            old_files[-1].end = content.synced
            for header, payload in content.records:
                if header.offset < content.synced:
                    self._hold(old_files[-1], header, payload, header.offset)
        self._begin(log_files.first())
        new_file = self._used[-1]
        for header, payload in (item for content in survey.used for item in content.tail):
            area = header.area
            pieces, size = record.frames(new_file.number, header.shard, area, [payload], self._synced)
            files.write_all(new_file.descriptor, pieces, self._offset)
            self._hold(new_file, header, payload, self._offset)
            self._offset += size
        os.fdatasync(new_file.descriptor)
        self._synced = self._offset
        # This change makes the new file valid, and the copied records in the old files invalid.
        empty_files = [file for file in old_files if not file.last]
        removed_numbers = (*survey.missing, *(file.number for file in empty_files))
        self._register.change(
            added=new_file.number,
            removed=removed_numbers,
            ends={content.number: content.synced for content in survey.used},
            boot=this_boot(),
        )
        self._used = [*(file for file in old_files if file.last), new_file]
        for file in empty_files:
            file.path.unlink(missing_ok=True)
        for path in survey.unused:
            log_files.keep_spare(path)

    def _hold(self, file: File, header: record.RecordHeader, payload: memoryview, offset: int) -> None:
        stream = self.stream(header.shard, header.area)
        file.add(stream.key, position_of(file.number, offset), header.end - header.offset)
        stream.held.append((file.last[stream.key], payload))

    def losses_of(self, shard: int) -> list[tuple[int, str]]:
        """(area, what is missing) for each known loss of one shard that no operator has accepted yet."""
        return self._losses.of(shard, (SERIES, LOG))

    def set_aside(self, key: StreamKey, payloads: Sequence[Frame], what: str) -> str:
        """See `JournalStream.set_aside`."""
        return self._losses.set_aside(key, payloads, what)

    def stream(self, shard: int, area: int) -> Stream:
        """The records of one area of one shard."""
        with self._lock:
            return self._streams.setdefault((shard, area), Stream(self, shard, area))

    def write(self, records: Sequence[tuple[JournalStream, Sequence[Frame]]]) -> list[int]:
        """Append records, each with the pieces that make up its payload, and return their positions. When this returns,
        the records survive the death of the process. Raises Unavailable, and then none of them is in the log, unless
        the process dies before the next write."""
        with self._lock:
            log_files = self._require_usable()
            try:
                return self._write(log_files, cast("Sequence[tuple[Stream, Sequence[Frame]]]", records))
            except OSError as error:
                raise Unavailable(f"the log {self._directory} cannot be written: {error.strerror}") from error

    def _cut(self) -> None:
        """Remove what a failed write has left. If that fails too, the log takes no more records: otherwise whole
        records of the refused write would count if they followed a shorter write at the same offset."""
        file = self._used[-1]
        try:
            os.pwrite(file.descriptor, record.file_header(file.number), 0)  # a header without a least size
            os.ftruncate(file.descriptor, self._offset)
        except OSError as error:
            self._failed = f"a write that failed could not be taken back: {error.strerror}"

    def _write(self, log_files: Files, records: Sequence[tuple[Stream, Sequence[Frame]]]) -> list[int]:
        file = self._used[-1]
        pieces: list[Frame] = []
        sizes = []
        for stream, payload in records:
            record_pieces, size = record.frames(file.number, stream.shard, stream.area, payload, self._synced)
            pieces += record_pieces
            sizes.append(size)
        end = self._offset + sum(sizes)
        # If the next file is not ready yet, a file may grow beyond its prepared size, at the price of slower syncs.
        is_full = end > file.size and (log_files.is_ready() or end > self._file_bytes)
        if is_full and self._offset > record.FILE_HEADER_BYTES:
            self._leave(log_files)
            return self._write(log_files, records)
        if 2 * end > file.size and not log_files.is_ready():
            log_files.want()
        try:
            files.write_all(file.descriptor, pieces, self._offset)
        except OSError:
            self._cut()
            raise
        positions = []
        for (stream, _), size in zip(records, sizes, strict=True):
            positions.append(position_of(file.number, self._offset))
            file.add(stream.key, positions[-1], size)
            self._offset += size
        self._written_bytes += sum(sizes)
        assert self._offset == end
        return positions

    def _begin(self, file: File) -> None:
        assert file.descriptor >= 0
        assert not self._used or file.number > self._used[-1].number, "positions rise with time"
        self._used.append(file)
        self._offset = self._synced = record.FILE_HEADER_BYTES

    def _leave(self, log_files: Files) -> None:
        """Sync the last file and begin the next one, so that `sync` concerns one file only. Raises OSError,
        Unavailable."""
        with self._leaving:
            self._require_usable()
            full_file = self._used[-1]
            self._fdatasync(full_file)
            full_file.end = self._offset
            self._begin(log_files.next())
            log_files.note_end(full_file)
            os.close(full_file.descriptor)
            full_file.descriptor = -1

    def _fdatasync(self, file: File) -> None:
        """Call this with `_leaving` held. After a failure the log never syncs again, because the kernel would let the
        next fsync succeed. Raises OSError."""
        try:
            os.fdatasync(file.descriptor)
        except OSError as error:
            self._failed = error.strerror or str(error)
            raise

    def sync(self) -> None:
        """Return when every record whose `write` returned before is on the disk; concurrent callers share an fsync.

        Raises Unavailable. Then the content of the disk is unknown, and the log takes no more records until it is
        opened again.
        """
        self._require_usable()
        try:
            self._syncs.sync()
        except OSError as error:
            raise Unavailable(f"the log {self._directory} could not be synced: {self._failed}") from error

    def _fsync(self) -> None:
        with self._leaving:
            self._require_usable()
            end = self._offset
            assert end >= self._synced
            self._fdatasync(self._used[-1])
            self._synced = end

    def _require_usable(self) -> Files:
        """The files. Raises Unavailable if the log has failed or is not open."""
        if self._failed or self._files is None:
            raise Unavailable(f"the log {self._directory} takes no records: {self._failed or 'it is not open'}")
        return self._files

    def state(self) -> JournalState:
        """See `worker.storage.faces.JournalState`."""
        with self._lock:
            used = list(self._used)
            oldest_at = next((file.since for file in used if self._releases.is_needed(file)), None)
            size = sum(self._offset if file.is_sparse and file is used[-1] else file.size for file in used)
        return JournalState(self._written_bytes, len(used), size, oldest_at, bool(self._failed), self._syncs.latencies)

    def recoverable(self) -> bool:
        """Whether the log has failed and the disk has enough free space to open it again. Raises OSError."""
        if not self._failed:
            return False
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize >= RECOVERY_FREE_BYTES

    def release(self, stream: Stream, position: int) -> None:
        """Records of the stream below `position` are not needed any more."""
        with self._lock:
            if not self._releases.release(stream.key, position):
                return
            released_files = self._without_released()
            log_files = self._files
        if released_files and log_files is not None:
            log_files.give_back(released_files)

    def _without_released(self) -> list[File]:
        """Take the closed files that no stream needs any more out of use, and return them. The caller holds the lock
        now, and gives the files back after it has released the lock."""
        released_files = [file for file in self._used[:-1] if not self._releases.is_needed(file)]
        self._used = [file for file in self._used if file not in released_files]
        self._releases.note_held_up(self._used[:-1])
        return released_files

    def is_behind(self, stream: Stream) -> bool:
        """See `Releases.is_behind`."""
        with self._lock:
            return self._releases.is_behind(stream.key, self._used, self._file_bytes)

    def _look(self) -> None:
        """Call `rest` when the log becomes idle. The thread that prepares files calls this about every
        `pauses.LOOK_EVERY_S`. Raises OSError, Unavailable."""
        log_files = self._files
        if log_files is None:  # it is being opened or closed
            return
        if self._pauses.begins_rest(self._written_bytes):
            self.rest()
        elif not self._pauses.is_resting:
            log_files.is_sparing = False

    def rest(self) -> None:
        """Give back the space that is kept ready for records: prepared files, files kept for reuse, and the unused part
        of the last file. A small file takes the place of the last one, which can then be removed when its records are
        released. Call this when hardly anything is written. Raises OSError, Unavailable."""
        with self._lock:
            log_files = self._require_usable()
        log_files.save_space()
        with self._lock:
            last = self._used[-1]
            if last.is_sparse and self._offset <= min(REST_BYTES, self._file_bytes // 2):
                return
        log_files.prepare()  # without the lock, since writes wait for it
        with self._lock:
            full_file = self._used[-1]
            self._leave(log_files)
            released_files = self._without_released()
        log_files.give_back(released_files)
        log_files.list_ends()
        with self._lock:  # so that no `freeze` begins meanwhile
            if full_file in self._used:
                log_files.shorten(full_file)

    @property
    def directory(self) -> Path:
        return self._directory

    def freeze(self, keep: Callable[[Path], None]) -> bytes:
        """Call `keep` with the path of each file in use, and return the list of files (`register`) at this moment, with
        the end of the records of every file. `keep` makes a hard link: a file with two names is never written below
        that end again, nor reused. Raises OSError, Unavailable."""
        with self._lock:
            self._require_usable()
            assert self._register is not None
            for file in self._used:
                keep(file.path)
            # The list may also name the next file, which has no records yet and may be in preparation right now.
            numbers = {file.number for file in self._used}
            return self._register.frozen(numbers, {self._used[-1].number: self._offset})

    def close(self) -> None:
        """Sync, close the files and release the directory's lock; the records stay for the next start. A sync that
        fails is logged."""
        with self._opening:
            with self._lock:
                log_files, self._files = self._files, None
            if log_files is None:
                return
            log_files.close()  # without the lock, because the thread that this joins may be waiting for it
            self._close()

    def _close(self) -> None:
        with self._lock, self._leaving:
            assert self._register is not None and self._lock_descriptor is not None
            file = self._used[-1]
            if not self._failed:
                try:
                    self._fdatasync(file)
                    self._register.change(ends={file.number: self._offset})
                except OSError as error:
                    event(logging.ERROR, "write-ahead log closed without a sync", reason=error.strerror)
            os.close(file.descriptor)
            self._register.close()
            os.close(self._lock_descriptor)
