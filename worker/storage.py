"""The store of one shard: an ordered, durable key-value map in column families.

The face is small on purpose (write a batch, get, ordered scan, delete range, sync, close), so that another store can
stand behind it. This one is RocksDB through rocksdict in raw mode.

Durability: when `write` returns, the batch survives the death of the process (it is in the operating system's page
cache); when `write(..., durable=True)` or `sync` returns, it survives the loss of power (fsync of the log).
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from rocksdict import AccessType, DBCompressionType, Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from shared.durable import make_directory
from shared.errors import Unavailable
from shared.telemetry import event
from worker.group_sync import GroupSync

FAMILIES = ("meta", "series", "journal", "blocks", "log", "vectors", "attributes")
WRITE_BUFFER_BYTES = 16 << 20
STREAM_BUFFER_BYTES = 4 << 20
"""Of the families that are written in the order of their keys and not read again until the next start: a larger buffer
would save them no work, and a worker has them for every shard."""
STREAMS = ("journal", "series")
LOG_FILES_BYTES_MAX = 256 << 20
OPEN_FILES_MAX = 256
WRITE_BUFFERS_MAX = 6
"""Full buffers that may wait to be written out before the store holds up a write."""
SLOWDOWN_FILES = 40
"""Files not compacted yet at which it does: twice RocksDB's own number."""
HOLD_UP_S, STOP_S = 1.0, 5.0
"""How long a write waits here for a store that slows writes down, before it goes on all the same, and for one that
stops them, before it is refused."""
HOLD_UP_POLL_S = 0.01
LOG_FILES_KEPT = 2
"""RocksDB's own information logs: this start's and the last one's."""
RECOVERY_FREE_BYTES = 16 << 20
"""Room there must be before a store that failed is opened again."""


T = TypeVar("T")


class Batch:
    """Changes that are applied together or not at all, in the order given."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batch = WriteBatch(raw_mode=True)
        self.size_bytes = 0

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self._batch.put(key, value, self._store.handle(family))
        self.size_bytes += len(key) + len(value)

    def put_many(self, family: str, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """As many `put`s: the way for many small rows. `size_bytes` does not count them."""
        put, handle = self._batch.put, self._store.handle(family)
        for key, value in zip(keys, values, strict=True):
            put(key, value, handle)

    def delete(self, family: str, key: bytes) -> None:
        self._batch.delete(key, self._store.handle(family))
        self.size_bytes += len(key)

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove start ≤ key < end."""
        self._batch.delete_range(start, end, self._store.handle(family))
        self.size_bytes += len(start) + len(end)


class StoreLocked(OSError):
    """The store's directory has another owner."""


class Store:
    """One shard's RocksDB. Safe to use from many threads.

    Opening raises StoreLocked when the directory has another owner, OSError when it is damaged; writing raises
    Unavailable when the disk is full or failing.
    """

    def __init__(self, path: Path) -> None:
        make_directory(path)
        self._path = path
        self._db = _open(path)
        self._families: dict[str, Any] = {name: self._db.get_column_family(name) for name in FAMILIES}
        self._handles: dict[str, Any] = {name: self._db.get_column_family_handle(name) for name in FAMILIES}
        self._group = GroupSync(lambda: self._db.flush_wal(True))
        self._failed = False

    def handle(self, family: str) -> Any:
        return self._handles[family]

    def batch(self) -> Batch:
        return Batch(self)

    def write(self, batch: Batch, *, durable: bool = False, logged: bool = True) -> None:
        """Apply the batch. `durable` waits for the fsync, which concurrent callers share. Without `logged` it survives
        nothing before the next `flush` of its families, and takes a tenth of the time."""
        self._wait_for_room()
        try:
            self._db.write(batch._batch, _BUFFERED if logged else _UNLOGGED)
        except Exception as error:  # the library raises plain Exception
            self._failed = True
            raise Unavailable(f"the store {self._path} refused a write: {error}") from error
        if durable:
            self.sync()

    def _wait_for_room(self) -> None:
        """Until the store would take a write without holding it up, in which it would hold the interpreter lock, and
        with it the worker's heartbeat. Raises Unavailable when it takes none."""
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
        """Return when every write that returned before this call is on the disk (group commit)."""
        try:
            self._group.sync()
        except Exception as error:  # the library raises plain Exception
            self._failed = True
            raise Unavailable(f"the store {self._path} could not sync: {error}") from error

    def flush(self, family: str) -> None:
        """Return when every write to the family that returned before this call is on the disk, logged or not."""
        try:
            self._families[family].flush(True)
        except Exception as error:  # the library raises plain Exception
            self._failed = True
            raise Unavailable(f"the store {self._path} could not write out {family!r}: {error}") from error

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._families[family].get(key)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._families[family].get(list(keys)) if keys else []

    def scan(
        self, family: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) with start ≤ key < end (None: to the last key), ascending, or descending if `reverse`.

        The rows are those of the moment the scan begins.
        """
        read = ReadOptions()
        if end is not None:
            read.set_iterate_upper_bound(end)
        rows = self._families[family].items(backwards=reverse, from_key=None if reverse else start, read_opt=read)
        # The library honours the upper bound only, so a descending scan finds its lower end here.
        return _holding(read, takewhile(lambda row: row[0] >= start, rows) if reverse else rows)

    def keys(self, family: str, start: bytes = b"", end: bytes | None = None) -> Iterator[bytes]:
        """The keys of `scan`, ascending, without reading the values."""
        read = ReadOptions()
        if end is not None:
            read.set_iterate_upper_bound(end)
        return _holding(read, self._families[family].keys(from_key=start, read_opt=read))

    def reclaim(self, family: str, start: bytes, end: bytes) -> None:
        """Give the space of a deleted range back now, not when a compaction next passes there."""
        self._families[family].compact_range(start, end)

    def recoverable(self) -> bool:
        """Whether writes failed, and may succeed once the store is opened again: after an error RocksDB refuses all
        writes for good, also when the disk has room again. Reads go on."""
        return self._failed and shutil.disk_usage(self._path).free >= RECOVERY_FREE_BYTES

    def close(self) -> None:
        """Flush the memtables and close; the directory's lock is released."""
        try:
            self._group.sync()
            for family in self._families.values():
                family.flush(True)
        except Exception as error:  # the library raises plain Exception
            # What was acknowledged is in the log on the disk, from which the next owner has it.
            event(logging.ERROR, "store closed without flushing", path=str(self._path), reason=str(error))
        self._families.clear()
        self._handles.clear()
        try:
            self._db.close()
        except Exception as error:  # the library raises plain Exception; it has let go of the directory
            event(logging.ERROR, "store closed with an error", path=str(self._path), reason=str(error))


def _holding(options: ReadOptions, rows: Iterable[T]) -> Iterator[T]:
    """The rows, with their options kept: the library's iterator reads its bound from the options' memory, which is
    freed with them."""
    yield from rows
    del options


def _open(path: Path) -> Rdict:
    existing = set(Rdict.list_cf(str(path))) if (path / "CURRENT").exists() else set()
    families = {name: _options(name) for name in existing - {"default"}}
    try:
        db = Rdict(str(path), _options(), column_families=families, access_type=AccessType.read_write())
    except Exception as error:  # the library raises plain Exception
        kind = StoreLocked if "lock" in str(error).lower() else OSError
        raise kind(str(error)) from error
    for name in FAMILIES:
        if name not in existing:
            db.create_column_family(name, _options(name))
    return db


def _options(family: str = "default") -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(STREAM_BUFFER_BYTES if family in STREAMS else WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(LOG_FILES_BYTES_MAX)
    options.set_keep_log_file_num(LOG_FILES_KEPT)
    # A write holds the interpreter lock: one that the store holds up would hold up the worker's heartbeat too.
    options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
    options.set_level_zero_slowdown_writes_trigger(SLOWDOWN_FILES)
    options.set_level_zero_stop_writes_trigger(2 * SLOWDOWN_FILES)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_compression_type(DBCompressionType.lz4())
    return options


_STOPPED, _DELAYED = "rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate"
_BUFFERED = WriteOptions()
_UNLOGGED = WriteOptions()
_UNLOGGED.disable_wal = True  # type: ignore[method-assign, assignment]  # the stub takes it for a method
