"""The store of one shard: an ordered, durable key-value map with column families, which is RocksDB through rocksdict in
raw mode. It implements `worker.storage.faces.Rows`.

Durability: when `write` returns, the batch survives the death of the process (it is in the operating system's page
cache); when `write(..., durable=True)` or `sync` returns, it survives a loss of power (fsync of the log).

Damage: the checksum of every block is verified when it is read, and a read that cannot be completed raises. A store
that has lost acknowledged writes is not opened: see `marker` and `files`.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, cast

from rocksdict import (
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from shared.durable import make_directory
from shared.errors import Unavailable
from shared.telemetry import event
from worker.storage.faces import RowBatch, RowsState
from worker.storage.group_sync import GroupSync
from worker.storage.rows import damage as store_damage
from worker.storage.rows import image, known_damage, opening
from worker.storage.rows import iteration as store_rows
from worker.storage.rows import manifest as store_manifest
from worker.storage.rows.damage import DECODING_ERRORS, StoreDamaged, StoreLocked
from worker.storage.rows.marker import WRITES, Claim, Marker
from worker.storage.rows.opening import FAMILIES

__all__ = ["FAMILIES", "Store", "StoreBatch", "StoreDamaged", "StoreLocked"]

HOLD_UP_S, STOP_S = 1.0, 5.0
"""How long, in seconds, a write waits while RocksDB delays writes (after that it is done), and while RocksDB stops
writes (after that it is refused)."""
HOLD_UP_POLL_S = 0.01
RECOVERY_FREE_BYTES = 16 << 20
"""Free space on the disk that a failed store needs before it is opened again."""


class StoreBatch:
    """See `worker.storage.faces.RowBatch`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batch = WriteBatch(raw_mode=True)
        self.size_bytes = 0

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self._batch.put(key, value, self._store.handle(family))
        self.size_bytes += len(key) + len(value)

    def put_many(self, family: str, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Put a row for each key and its value: faster than `put` for many small rows. `size_bytes` does not count
        them."""
        put, handle = self._batch.put, self._store.handle(family)
        for key, value in zip(keys, values, strict=True):
            put(key, value, handle)

    def delete(self, family: str, key: bytes) -> None:
        self._batch.delete(key, self._store.handle(family))
        self.size_bytes += len(key)

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove the rows with start ≤ key < end; nothing if end ≤ start."""
        if start >= end:
            return  # RocksDB would count an empty range as a write, and not find that write when it is opened again
        self._batch.delete_range(start, end, self._store.handle(family))
        self.size_bytes += len(start) + len(end)


class Store:
    """One shard's RocksDB. Safe to use from many threads.

    Opening raises StoreLocked if the directory has another owner, StoreDamaged if its files are damaged or incomplete,
    OSError or Unavailable if the disk is full or failing. Reading raises StoreDamaged if a row is damaged, Unavailable
    if the disk is failing. Writing raises Unavailable if the disk is full or failing, or the store is damaged.
    """

    def __init__(self, path: Path) -> None:
        make_directory(path)
        self._path = path
        self._marker = Marker(path)
        claim = self._marker.read()
        opening.verify_files(path, claim)
        opening.cut_torn_manifest(path, claim)
        self._db = opening.open_database(path)
        self._families: dict[str, Any] = {}
        self._handles: dict[str, Any] = {}
        self._group = GroupSync(self._fsync)
        self._failed = False
        self._damage: str | None = None
        self._writing = Lock()
        self._flushing = Lock()  # taken before `_writing`
        self._synced = self._written = 0
        try:
            self._begin(claim)
        except BaseException:
            self._release()  # otherwise this process could not open the store again
            raise

    def _begin(self, claim: Claim | None) -> None:
        """Open the families, verify the number of writes, and begin to write the marker. Raises StoreDamaged,
        OSError."""
        self._families.update({name: self._db.get_column_family(name) for name in FAMILIES})
        self._handles.update({name: self._db.get_column_family_handle(name) for name in FAMILIES})
        try:
            self._synced = self._written = int.from_bytes(self._db.get(WRITES) or b"", "big")
        except Exception as error:  # the library raises plain Exception
            raise store_damage.of_reading(self._path, error) from error
        if claim is not None and self._written < claim.writes:
            raise StoreDamaged(
                f"the store {self._path} is damaged: its log ends at write {self._written}, but it had acknowledged "
                f"{claim.writes}; restore it from a copy, or delete {self._marker.path} to accept the loss"
            )
        self._marker.open(self._synced, store_manifest.synced(self._path, self._marker.manifest))

    @property
    def path(self) -> Path:
        return self._path

    @property
    def damage(self) -> str | None:
        """The damage that was found since the store was opened, None if there is none. A shard with damage refuses all
        requests."""
        return self._damage

    @contextmanager
    def decoding(self, family: str, key: bytes) -> Iterator[None]:
        """A context for decoding this row, or several rows starting with it: turns an exception of the decoder into
        StoreDamaged, which names the row."""
        try:
            yield
        except DECODING_ERRORS as error:
            text = f"the row {key!r} of {family!r} is invalid: {error}"
            raise self._recorded(StoreDamaged(f"the store {self._path} is damaged: {text}")) from error

    def _recorded(self, error: Unavailable) -> Unavailable:
        """The error. If it is the first StoreDamaged, it is recorded in `damage` and beside the store, and logged."""
        if isinstance(error, StoreDamaged) and self._damage is None:
            self._damage = str(error)
            known_damage.remember(self._path, str(error))
            event(logging.ERROR, "store damaged, its shard refuses", path=str(self._path), reason=str(error))
        return error

    def handle(self, family: str) -> Any:
        return self._handles[family]

    def batch(self) -> StoreBatch:
        return StoreBatch(self)

    def write(self, batch: RowBatch, *, durable: bool = False, logged: bool = True) -> None:
        """Apply the batch. `durable` waits for the fsync, which concurrent callers share. A batch that is not `logged`
        may be lost until the next `flush` of its families, and takes a tenth of the time. Raises Unavailable."""
        changes = cast(StoreBatch, batch)._batch
        self._require_usable()
        self._wait_for_room()
        try:
            with self._writing:
                if logged:
                    # A separate count, because flushed deletions may leave no trace in RocksDB's sequence numbers.
                    changes.put(WRITES, (self._written + 1).to_bytes(8, "big"))
                self._db.write(changes, _BUFFERED if logged else _UNLOGGED)
                if logged:
                    self._written += 1
                    self._mark()
        except Exception as error:  # the library raises plain Exception
            raise self._refused(error) from error
        if durable:
            self.sync()

    def _require_usable(self) -> None:
        """Raise Unavailable after a failed write or sync, or after damage: the content of the disk is then unknown, and
        another fsync would not change that."""
        if self._failed or self._damage is not None:
            raise Unavailable(f"the store {self._path} takes no writes: {self._damage or 'one of them failed'}")

    def _refused(self, error: Exception) -> Unavailable:
        """The exception to raise after the library has refused a write; no other write is accepted from now on."""
        self._failed = True
        return self._recorded(store_damage.of_writing(self._path, error))

    def _mark(self) -> None:
        """Write the marker; call this with `_writing` held. A failure is only logged, because the marker then merely
        demands fewer writes than it could."""
        try:
            self._marker.write(self._synced, self._written)
        except OSError as error:
            event(logging.WARNING, "store marker not written", path=str(self._marker.path), reason=error.strerror)

    def _mark_files(self) -> None:
        """Write the marker with the current size of the manifest, after the store may have written files."""
        with suppress(OSError, ValueError):  # RocksDB may be exchanging the manifest right now
            manifest = store_manifest.synced(self._path, self._marker.manifest)
            with self._writing:
                self._marker.manifest = manifest
                self._mark()

    def _fsync(self) -> None:
        """The fsync for all callers that wait in `sync`."""
        self._require_usable()
        written = self._written
        try:
            self._db.flush_wal(True)
        except Exception:
            self._failed = True  # before a waiting caller wakes up
            raise
        self._synced = max(self._synced, written)
        self._mark_files()

    def _wait_for_room(self) -> None:
        """Wait, for at most `HOLD_UP_S`, until RocksDB would accept a write without a delay. A delayed write would hold
        the interpreter lock and delay the worker's heartbeat. Raises Unavailable if RocksDB accepts no write for
        `STOP_S`."""
        started = time.monotonic()
        while self._db.property_int_value(_STOPPED) or self._db.property_int_value(_DELAYED):
            waited_s = time.monotonic() - started
            if waited_s > HOLD_UP_S:
                if not self._db.property_int_value(_STOPPED):
                    return
                if waited_s > STOP_S:
                    raise Unavailable(f"the store {self._path} is behind with its compaction; try again later")
            time.sleep(HOLD_UP_POLL_S)

    def sync(self) -> None:
        """Return when every logged write that returned before this call is on the disk; concurrent callers share an
        fsync (group commit). Raises Unavailable, and then no further write is accepted."""
        try:
            self._group.sync()
        except Unavailable:
            raise
        except Exception as error:  # the library raises plain Exception
            raise self._refused(error) from error

    def flush(self, family: str) -> None:
        """Return when every write to the family that returned before this call is on the disk, logged or not. Raises
        Unavailable."""
        self._flush([self._families[family]])

    def flush_all(self) -> None:
        """`flush` of every family, so that an image soon afterwards has little to copy. Raises Unavailable."""
        self._flush([self._db, *self._families.values()])

    def _flush(self, families: Iterable[Any]) -> None:
        self._require_usable()
        try:
            with self._flushing:
                for family in families:
                    family.flush(True)
        except Exception as error:  # the library raises plain Exception
            raise self._refused(error) from error
        self._mark_files()

    def make_image(self, target: Path) -> None:
        """See `image.make`; also raises Unavailable after damage or a failed write. Flushes wait for it."""
        self._require_usable()
        with self._flushing:
            image.make(self._path, target)

    def get(self, family: str, key: bytes) -> bytes | None:
        try:
            return self._families[family].get(key)
        except Exception as error:  # the library raises plain Exception
            raise self._recorded(store_damage.of_reading(self._path, error)) from error

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            return self._families[family].get(list(keys)) if keys else []
        except Exception as error:  # the library raises plain Exception
            raise self._recorded(store_damage.of_reading(self._path, error)) from error

    def scan(
        self, family: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) with start ≤ key < end (None: to the last key), ascending, or descending if `reverse`.

        The scan sees the rows as they were when it began. Raises StoreDamaged if a row is damaged, Unavailable if the
        scan cannot be continued.
        """
        options = _until(end)
        if not reverse:
            return store_rows.ascending(self._families[family].snapshot(), start, options, self._check_end)
        reader = self._families[family].iter(options)
        reader.seek_to_last()
        return store_rows.descending(reader, start, options, self._check_end)

    def keys(self, family: str, start: bytes = b"", end: bytes | None = None) -> Iterator[bytes]:
        """The keys of `scan`, ascending, without reading the values."""
        options = _until(end)
        reader = self._families[family].iter(options)
        reader.seek(start)
        return store_rows.keys(reader, options, self._check_end)

    def _check_end(self, reader: RdictIter) -> None:
        """`check_end` that records damage. Raises StoreDamaged, Unavailable."""
        try:
            store_rows.check_end(self._path, reader)
        except StoreDamaged as error:
            self._recorded(error)
            raise

    def reclaim(self, family: str, start: bytes, end: bytes) -> None:
        """Free the space of a deleted range now, instead of at its next compaction. Raises Unavailable."""
        self._families[family].compact_range(start, end)
        try:
            # The library does not report a failed compaction, but RocksDB refuses the write that follows it.
            self._db.write(WriteBatch(raw_mode=True), _BUFFERED)
        except Exception as error:  # the library raises plain Exception
            raise self._refused(error) from error

    def state(self) -> RowsState:
        """See `worker.storage.faces.RowsState`."""
        families = [self._db, *self._families.values()]
        memory, files, pending = (
            sum(family.property_int_value(name) or 0 for family in families) for name in (_MEMTABLES, _FILES, _PENDING)
        )
        is_stopped = bool(self._db.property_int_value(_STOPPED))
        return RowsState(memory, files, pending, is_stopped, self._failed, self._group.latencies)

    def recoverable(self) -> bool:
        """Whether a write has failed and writes may succeed once the store is reopened: after an error RocksDB refuses
        all writes until then, even if the disk has free space again. Reads continue. Reopening does not repair
        damage."""
        if not self._failed or self._damage is not None:
            return False
        return shutil.disk_usage(self._path).free >= RECOVERY_FREE_BYTES

    def close(self) -> None:
        """Flush the memtables, close the store and release the directory's lock. Errors are logged."""
        try:
            self._group.sync()
            for family in (self._db, *self._families.values()):
                family.flush(True)
            self._mark_files()
        except Exception as error:  # the library raises plain Exception
            # The acknowledged writes are in RocksDB's log, which the next owner replays.
            event(logging.ERROR, "store closed without flushing", path=str(self._path), reason=str(error))
        self._release()

    def _release(self) -> None:
        self._marker.close()
        self._families.clear()
        self._handles.clear()
        try:
            self._db.close()
        except Exception as error:  # the library raises plain Exception; it has released the directory's lock
            event(logging.ERROR, "store closed with an error", path=str(self._path), reason=str(error))


def _until(end: bytes | None) -> ReadOptions:
    """Options that verify checksums and end a scan before the key `end`."""
    options = ReadOptions()
    options.set_verify_checksums(True)
    if end is not None:
        options.set_iterate_upper_bound(end)
    return options


_STOPPED, _DELAYED = "rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate"
_MEMTABLES, _FILES = "rocksdb.cur-size-all-mem-tables", "rocksdb.total-sst-files-size"
_PENDING = "rocksdb.estimate-pending-compaction-bytes"
_BUFFERED = WriteOptions()
_UNLOGGED = WriteOptions()
_UNLOGGED.disable_wal = True  # type: ignore[method-assign, assignment]  # the stub declares it as a method
