"""What a machine's disk has: the store and the write-ahead log of the workers, the sequencer's file.

What was written survives the death of a process; what was synced survives the loss of power, and of the rest an
arbitrary part does. A disk can be full, and can fail to sync.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from shared.errors import Unavailable
from shared.wire import Frame
from tests.simulation.world import World
from worker.storage.wal.log import Stream

RECORDS_A_FILE = 2
"""Of the write-ahead log: a file is given back when none of its records is needed."""
FILES_BEHIND = 3
FLUSHES_OF_256 = 5
"""How often a store writes a family out by itself."""
STATE_REFUSED = "state refused"
"""The point at which the coordinator's full disk refuses a file."""
TORN_OF_256 = 128
"""How often a failed write leaves what it wrote, should the process die before the next one."""


@dataclass
class Disk:
    """Of one process. `full`: no write succeeds. `sync_fails`: nor does an fsync."""

    full: bool = False
    sync_fails: bool = False
    sync_s: float = 0.0
    """How much longer than usual an fsync takes."""


# Single files, replaced atomically


@dataclass
class Files(Disk):
    """The coordinator's. `unsure`: files of which a failed write left the old content or the new, until the next."""

    contents: dict[str, bytes] = field(default_factory=dict)
    unsure: dict[str, tuple[bytes | None, bytes]] = field(default_factory=dict)

    def replace(self, name: str, content: bytes) -> None:
        world = World.current
        world.pause()
        if self.full:
            world.reached(STATE_REFUSED)
            if world.choices.chance(TORN_OF_256):
                # The file was replaced, and its directory could not be synced.
                self.unsure[name] = self.contents.get(name), content
                self.contents[name] = content
            raise OSError(errno.ENOSPC, "No space left on device")
        world.pause()
        self.contents[name] = content
        self.unsure.pop(name, None)
        world.pause()

    def lose_power(self) -> None:
        for name, (old, new) in self.unsure.items():
            kept = World.current.choices.pick((new, old))
            if kept is None:
                self.contents.pop(name, None)
            else:
                self.contents[name] = kept
        self.unsure.clear()

    def lose(self) -> None:
        """Somebody deletes all of it."""
        self.contents.clear()
        self.unsure.clear()


class FilesControl:
    """Stands in for shared.control.LocalControl, as far as the coordinator's log asks of it."""

    def __init__(self, disk: Files, place: str) -> None:
        self._disk = disk
        self._place = place

    def prepare(self) -> None:
        pass

    def location(self, name: str = "") -> str:
        return f"{self._place}/{name}"

    def exists(self, name: str) -> bool:
        return self.location(name) in self._disk.contents

    def read(self, name: str) -> bytes:
        if not self.exists(name):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", self.location(name))
        return self._disk.contents[self.location(name)]

    def replace(self, name: str, content: bytes) -> None:
        self._disk.replace(self.location(name), content)


# The store

FAMILIES = ("log", "meta")
Change = tuple[str, str, bytes, bytes]
"""(what, family, key, value), or ("range", family, start, end)."""


@dataclass
class StoreDisk:
    """`flushed`: what each family was when it was last written out, and the number of its last batch; `logged`: the
    batches in the store's own log, with their numbers; those below `synced` are on the disk."""

    flushed: dict[str, dict[bytes, bytes]] = field(default_factory=lambda: {name: {} for name in FAMILIES})
    flushed_upto: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAMILIES, 0))
    logged: list[tuple[int, list[Change]]] = field(default_factory=list)
    synced: int = 0
    written: int = 0

    def content(self) -> dict[str, dict[bytes, bytes]]:
        families = {name: dict(rows) for name, rows in self.flushed.items()}
        for number, changes in self.logged:
            for change in changes:
                if number > self.flushed_upto[change[1]]:
                    _apply(families[change[1]], change)
        return families

    def lose_power(self) -> None:
        """The store's log is read up to the first batch that is not there."""
        unsynced = [number for number, _ in self.logged if number > self.synced]
        kept = World.current.choices.below(len(unsynced) + 1)
        gone = set(unsynced[kept:])
        self.logged = [item for item in self.logged if item[0] not in gone]
        self.synced = self.written


def _apply(rows: dict[bytes, bytes], change: Change) -> None:
    what, _, key, value = change
    if what == "put":
        rows[key] = value
    elif what == "delete":
        rows.pop(key, None)
    else:
        for row in [row for row in rows if key <= row < value]:
            del rows[row]


class StoreBatch:
    """Stands in for worker.storage.rows.store.StoreBatch."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.size_bytes = 0

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self.changes.append(("put", family, key, value))
        self.size_bytes += len(key) + len(value)

    def put_many(self, family: str, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        self.changes += [("put", family, key, value) for key, value in zip(keys, values, strict=True)]

    def delete(self, family: str, key: bytes) -> None:
        self.changes.append(("delete", family, key, b""))

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        self.changes.append(("range", family, start, end))


class Store:
    """Stands in for worker.storage.rows.store.Store, and behaves as it does towards crashes and full disks."""

    def __init__(self, disk: Disk, lasting: StoreDisk) -> None:
        self._disk = disk
        self._lasting = lasting
        self._families = lasting.content()
        self._sorted: dict[str, list[bytes] | None] = dict.fromkeys(FAMILIES)
        self.failed = False
        self.damage: str | None = None  # no history damages a store

    def batch(self) -> StoreBatch:
        return StoreBatch()

    def write(self, batch: StoreBatch, *, durable: bool = False, logged: bool = True) -> None:
        world = World.current
        world.pause()
        lasting = self._lasting
        if self.failed or (logged and self._disk.full):
            self.failed = True
            raise Unavailable("the store refused a write: no space left on device")
        lasting.written += 1
        for change in batch.changes:
            _apply(self._families[change[1]], change)
            self._sorted[change[1]] = None
        if logged:
            lasting.logged.append((lasting.written, list(batch.changes)))
        if world.choices.chance(FLUSHES_OF_256) and not self._disk.full:
            self._write_out("log", dict(self._families["log"]), lasting.written)
        world.pause()
        if durable:
            self.sync()

    def sync(self) -> None:
        upto = self._lasting.written
        _take_time(self._disk)
        if self.failed or self._disk.full or self._disk.sync_fails:
            self.failed = True
            raise Unavailable("the store could not sync")
        self._lasting.synced = max(self._lasting.synced, upto)

    def flush(self, family: str) -> None:
        rows, upto = dict(self._families[family]), self._lasting.written
        _take_time(self._disk)
        if self.failed or self._disk.full:
            self.failed = True
            raise Unavailable(f"the store could not write out {family!r}")
        self._write_out(family, rows, upto)

    def _write_out(self, family: str, rows: dict[bytes, bytes], upto: int) -> None:
        lasting = self._lasting
        if upto >= lasting.flushed_upto[family]:
            lasting.flushed[family], lasting.flushed_upto[family] = rows, upto
            done = min(lasting.flushed_upto.values())
            lasting.logged = [item for item in lasting.logged if item[0] > done]

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._families[family].get(key)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._families[family].get(key) for key in keys]

    def _between(self, family: str, start: bytes, end: bytes | None) -> list[bytes]:
        World.current.pause()
        rows = self._sorted[family]
        if rows is None:
            rows = self._sorted[family] = sorted(self._families[family])
        return rows[bisect_left(rows, start) : len(rows) if end is None else bisect_left(rows, end)]

    def scan(
        self, family: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        keys = self._between(family, start, end)
        rows = self._families[family]
        found = [(key, rows[key]) for key in keys]
        return iter(found[::-1] if reverse else found)

    def keys(self, family: str, start: bytes = b"", end: bytes | None = None) -> Iterator[bytes]:
        return iter(self._between(family, start, end))

    def reclaim(self, family: str, start: bytes, end: bytes) -> None:
        World.current.pause()

    def recoverable(self) -> bool:
        return self.failed and not self._disk.full

    def close(self) -> None:
        for family in FAMILIES:
            if not self.failed and not self._disk.full:
                self._write_out(family, dict(self._families[family]), self._lasting.written)


def _take_time(disk: Disk) -> None:
    """What an fsync takes, when it is done in a thread."""
    world = World.current
    if world.thread is not None:
        world.sleep(disk.sync_s + world.choices.delay_s())


# The write-ahead log


@dataclass
class Record:
    position: int
    shard: int
    area: int
    payload: bytes
    synced: bool = False


@dataclass
class WalDisk:
    """`torn`: what a failed write has left behind the last record, until the next write."""

    records: list[Record] = field(default_factory=list)
    torn: list[Record] = field(default_factory=list)
    position: int = RECORDS_A_FILE

    def lose_power(self) -> None:
        """Of what was not synced, any part is there: the pages of a file are written in any order."""
        choices = World.current.choices
        self.records = [record for record in (*self.records, *self.torn) if record.synced or choices.chance(96)]
        self.torn = []


class WriteAheadLog:
    """Stands in for worker.storage.wal.log.WriteAheadLog."""

    def __init__(self, disk: Disk, lasting: WalDisk) -> None:
        self._disk = disk
        self._lasting = lasting
        self._released: dict[tuple[int, int], int] = {}
        self._streams: dict[tuple[int, int], Stream] = {}
        self.failed = ""
        lasting.records += lasting.torn
        lasting.torn = []
        for record in lasting.records:
            record.synced = True
            self.stream(record.shard, record.area).held.append((record.position, memoryview(record.payload)))

    def open(self) -> WriteAheadLog:
        return self

    def stream(self, shard: int, area: int) -> Stream:
        key = shard, area
        if key not in self._streams:
            self._streams[key] = Stream(self, shard, area)  # type: ignore[arg-type]
        return self._streams[key]

    def write(self, records: Sequence[tuple[Stream, Sequence[Frame]]]) -> list[int]:
        world = World.current
        world.pause()
        lasting = self._lasting
        self._check()
        written = []
        for stream, pieces in records:
            written.append(Record(lasting.position, stream.shard, stream.area, b"".join(pieces)))
            lasting.position += 1
        if self._disk.full:
            lasting.torn = written if world.choices.chance(TORN_OF_256) else []
            raise Unavailable("the log cannot be written: No space left on device")
        lasting.torn = []
        lasting.records += written
        return [record.position for record in written]

    def sync(self) -> None:
        self._check()
        upto = self._lasting.position
        _take_time(self._disk)
        self._check()
        if self._disk.sync_fails:
            self.failed = "Input/output error"
            raise Unavailable(f"the log could not be synced: {self.failed}")
        for record in self._lasting.records:
            record.synced |= record.position < upto

    def _check(self) -> None:
        if self.failed:
            raise Unavailable(f"the log takes no records: {self.failed}")

    def recoverable(self) -> bool:
        return bool(self.failed) and not self._disk.full and not self._disk.sync_fails

    def release(self, stream: Stream, position: int) -> None:
        if position <= self._released.get(stream.key, 0):
            return
        self._released[stream.key] = position
        records = self._lasting.records
        needed = {self._lasting.position // RECORDS_A_FILE}
        needed |= {
            r.position // RECORDS_A_FILE for r in records if r.position >= self._released.get((r.shard, r.area), 0)
        }
        self._lasting.records = [record for record in records if record.position // RECORDS_A_FILE in needed]

    def is_behind(self, stream: Stream) -> bool:
        released = self._released.get(stream.key, 0)
        newest = self._lasting.position // RECORDS_A_FILE
        return any(
            record.position >= released and newest - record.position // RECORDS_A_FILE >= FILES_BEHIND
            for record in self._lasting.records
            if (record.shard, record.area) == stream.key
        )

    def close(self) -> None:
        if not self.failed and not self._disk.sync_fails:
            for record in self._lasting.records:
                record.synced = True
