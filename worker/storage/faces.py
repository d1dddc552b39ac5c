"""The interfaces of storage: the only protocols through which the areas of a worker read and write durable data.

The docstrings are the promises that every implementation keeps. The protocols do not mention files, so another kind of
storage can implement them. The interface for small documents is in `shared.control`, because the coordinator needs it
as well.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar

from shared.control import Control
from shared.measurements import Latencies
from shared.wire import Frame

T = TypeVar("T")

# The journal: acknowledged records that are not stored anywhere else yet


@dataclass(frozen=True, slots=True)
class JournalState:
    """For the metrics. `written_bytes`: of all records since the journal was opened. `files`, `file_bytes`: number and
    size of the files in use. `oldest_at`: the earliest Unix time at which the oldest record that a shard still needs
    may have been written; None if no record is needed. `has_failed`: no record is accepted until the journal is
    reopened."""

    written_bytes: int
    files: int
    file_bytes: int
    oldest_at: float | None
    has_failed: bool
    syncs: Latencies


class JournalStream(Protocol):
    """The records of one area of one shard in a worker's journal, in the order they were written. A record is bytes
    that only its area understands. Any thread may call any method."""

    @property
    def log(self) -> WorkerJournal:
        """The journal that contains this stream; its `write` takes records of several streams at once."""

    def records(self) -> Iterator[tuple[int, memoryview]]:
        """(position, payload) of each record that the journal held at the start and that had not been released; nothing
        after `replayed`. After a crash, records that had been released may be among them: the area recognises those by
        its own sequence numbers."""

    def replayed(self) -> None:
        """Free `records`: all areas of the shard are loaded, and nothing reads the records again."""

    def write(self, payload: Sequence[Frame]) -> int:
        """Append one record, whose payload is these pieces joined, and return its position; see
        `WorkerJournal.write`."""

    def set_aside(self, payloads: Sequence[Frame], what: str) -> str:
        """Keep a copy of records that cannot be decoded. Each start reports the loss until the copy is deleted, even
        after the records have been released. Returns the text of the report. Raises nothing: a failure to store the
        copy is logged."""

    def sync(self) -> None:
        """See `WorkerJournal.sync`."""

    def release(self, position: int) -> None:
        """Records below `position` are not needed any more, because their content is durable elsewhere. The release
        itself is not durable. Raises nothing."""

    def is_behind(self) -> bool:
        """Whether the stream's oldest record prevents much storage from being reused. If so, the area should soon store
        the content elsewhere."""


class WorkerJournal(Protocol):
    """The records that the shards of one worker process have acknowledged but not yet stored as rows or objects. Any
    thread may call any method.

    A record's position is a number that rises with time. A journal never gives a position twice. A journal is open in
    one process at a time.
    """

    def open(self) -> WorkerJournal:
        """Read the records; safe to call again, even after a call that failed. Records that may not be on the disk are
        written and synced again before anything reads them. Damage raises nothing: `losses_of` reports it. Raises
        OSError, Unavailable."""

    def losses_of(self, shard: int) -> list[tuple[int, str]]:
        """(area, what is missing) for each known loss of one shard that no operator has accepted yet."""

    def stream(self, shard: int, area: int) -> JournalStream:
        """The stream of one area of one shard; the same object each time."""

    def write(self, records: Sequence[tuple[JournalStream, Sequence[Frame]]]) -> list[int]:
        """Append records and return their positions. Each record is a stream and the pieces that make up the payload.
        When this returns, the records survive the death of the process. They survive a loss of power only after `sync`;
        until then, a loss of power may remove any number of the last records.

        Raises Unavailable. Then none of the records is in the journal, unless the process dies before the next write.
        If a failed write cannot be undone, the journal takes no more records until it is opened again."""

    def sync(self) -> None:
        """When this returns, every record whose `write` returned before survives a loss of power; concurrent callers
        share one sync. Raises Unavailable. Then the content of the disk is unknown, and the journal takes no more
        records until it is opened again."""

    def recoverable(self) -> bool:
        """Whether the journal has failed and may work again once it is reopened."""

    def state(self) -> JournalState:
        """What the metrics say about the journal."""

    def close(self) -> None:
        """Sync and release the journal; the records stay for the next start. A sync that fails is logged."""


# The rows: values by key


@dataclass(frozen=True, slots=True)
class RowsState:
    """For the metrics. `memory_bytes`: of rows in memory and in caches. `file_bytes`: of the rows' files.
    `pending_bytes`: what compaction still has to rewrite. `is_stopped`: writes wait for compaction. `has_failed`: no
    write is accepted."""

    memory_bytes: int
    file_bytes: int
    pending_bytes: int
    is_stopped: bool
    has_failed: bool
    syncs: Latencies


class RowBatch(Protocol):
    """Changes to rows, applied in order and atomically. For one thread."""

    size_bytes: int
    """Bytes of the keys and values so far, without those of `put_many`."""

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Write a row, in place of any row with the same key."""

    def put_many(self, family: str, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Write a row for each key and its value: faster than `put` for many small rows."""

    def delete(self, family: str, key: bytes) -> None:
        """Remove the row with this key, if it exists."""

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove all rows with start ≤ key < end; nothing if end ≤ start."""


class Rows(Protocol):
    """The rows of one shard: in each family, values by key, ordered by the keys' bytes. Any thread may call any method.
    A second owner is refused while the rows are open.

    Reading raises StoreDamaged if a row differs from what was written (it never returns fewer rows instead), and
    Unavailable if storage fails. After a call has found damage, `damage` describes it.
    """

    @property
    def path(self) -> Path:
        """The location of the rows, only for messages to the operator."""

    @property
    def damage(self) -> str | None:
        """The damage that was found since the rows were opened, None if there is none. A shard with damage refuses all
        requests."""

    def decoding(self, family: str, key: bytes) -> AbstractContextManager[None]:
        """A context for decoding this row, or several rows starting with it: turns an exception of the decoder into
        StoreDamaged, which names the row."""

    def batch(self) -> RowBatch:
        """An empty batch for `write`."""

    def write(self, batch: RowBatch, *, durable: bool = False, logged: bool = True) -> None:
        """Apply a batch that `batch()` of these rows has returned. When this returns, readers see the batch, and it
        survives the death of the process. If `durable`, it survives a loss of power too; concurrent callers share one
        sync. Otherwise a loss of power may remove any number of the last batches, each as a whole, and, if the rows are
        in several files at that moment, batches before ones that it keeps. A batch that is not `logged` survives
        neither before the next `flush` of its families. Raises Unavailable; a `durable` batch may have been applied
        nevertheless."""

    def sync(self) -> None:
        """When this returns, every `logged` write that returned before survives a loss of power. Raises Unavailable,
        and then no further write is accepted until the rows are opened again."""

    def flush(self, family: str) -> None:
        """When this returns, every write to the family that returned before survives a loss of power, logged or
        not. Raises Unavailable."""

    def flush_all(self) -> None:
        """`flush` of every family, so that `make_image` soon afterwards has little to do. Raises Unavailable."""

    def make_image(self, target: Path) -> None:
        """Copy the rows to the directory `target`, which must not exist: the state that the death of the process would
        leave at one moment during this call. The copy takes little space and does not change. Raises Unavailable,
        OSError."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value; None if there is no such row."""

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of these keys, in their order; None for a key without a row."""

    def scan(
        self, family: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) of the rows with start ≤ key < end (None: to the last key), ascending, or descending if
        `reverse`. The scan sees the rows as they were when it began."""

    def keys(self, family: str, start: bytes = b"", end: bytes | None = None) -> Iterator[bytes]:
        """The keys of `scan`, ascending, without reading the values."""

    def reclaim(self, family: str, start: bytes, end: bytes) -> None:
        """Free the space of a deleted range now. Raises Unavailable."""

    def state(self) -> RowsState:
        """What the metrics say about the rows."""

    def recoverable(self) -> bool:
        """Whether a write has failed and writes may succeed once the rows are reopened. Reopening does not repair
        damage."""

    def close(self) -> None:
        """Sync the logged writes, flush the others, and release the rows. Errors are logged."""


# The objects: immutable bytes by name

_TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
"""Errors with which an intact object may fail to open."""


class NotOpened(OSError):
    """An object cannot be opened. Any other OSError of `Objects.read` means that an open object cannot be read."""

    @property
    def is_passing(self) -> bool:
        """Whether the reason is the state of this process or machine, not of the object: a later try may succeed."""
        return self.errno in _TRANSIENT


class ObjectState(Enum):
    """The kind of item that a name in a place of objects denotes."""

    WHOLE = "whole"
    DRAFT = "draft"
    SET_ASIDE = "set aside"


@dataclass(frozen=True, slots=True)
class Listed:
    """A name and the kind of item it denotes: an object or a place within this one (WHOLE), the remains of a draft
    after a crash, or an object that was set aside. A draft has a name of its own, which `delete` accepts."""

    name: str
    state: ObjectState


class Draft(Protocol):
    """An object that is being written. Its name does not exist before `publish`. What a crash leaves of a draft is
    listed as `ObjectState.DRAFT` at the next start, and is never read."""

    def write(self, data: Frame) -> None:
        """Append. Raises OSError."""

    def finish(self) -> None:
        """Complete the content; when this returns, it is on the disk. Raises OSError."""

    def publish(self) -> None:
        """Give the object its name, after `finish`. Readers see the whole object from now on. A loss of power before
        `Objects.sync_names` leaves the object under its name, or the draft, or nothing. Raises OSError."""

    def abandon(self) -> None:
        """Remove the draft, or the object if it was published; may be called at any point, and again. Raises
        OSError."""


class Objects(Protocol):
    """Immutable objects by name, in one place that one process writes to. Any thread may call any method.

    An object is written once, as a `draft` or by `put`, and afterwards only read, deleted or set aside. The exception
    is an object that is written by `replace`: the list that says which other objects are valid.
    """

    def prepare(self) -> None:
        """Create the place if it does not exist. When this returns, the place survives a loss of power. Raises
        OSError."""

    def within(self, name: str) -> Objects:
        """The place of that name in this one. It may not exist yet: see `prepare`."""

    def location(self, name: str = "") -> str:
        """The location of the object, or of this place, only for messages to the operator."""

    def list(self) -> list[Listed]:
        """All names in this place, ascending; empty if the place does not exist. Raises OSError."""

    def exists(self, name: str) -> bool:
        """Whether the name exists. Raises OSError if that cannot be determined."""

    def size(self, name: str) -> int:
        """The object's size in bytes. Raises FileNotFoundError, OSError."""

    def read(self, name: str, at: int, size: int) -> bytes:
        """`size` bytes from offset `at` on; fewer if the object ends before. They are not verified: the writer of the
        object keeps a checksum. Raises NotOpened; OSError if an open object cannot be read."""

    def get(self, name: str) -> bytes:
        """The object's whole content, not verified. Raises FileNotFoundError, OSError."""

    def draft(self, name: str) -> Draft:
        """Begin an object under a name that was never used before. Raises OSError."""

    def put(self, name: str, content: bytes) -> None:
        """Write a whole object. When this returns, the content is on the disk; the name is durable after `sync_names`
        or the next `replace`. Until then a crash may leave any part of the content under the name, so the object is
        valid only if a list contains its checksum. Raises OSError, and then any part of the content may be left too."""

    def put_by_path(self, name: str, write: Callable[[Path], object]) -> None:
        """As `put`, for libraries that can only write to files: `write` is called with the path of a file and fills it.
        The path is valid during the call only. Raises OSError, or what `write` raises."""

    def get_by_path(self, name: str, read: Callable[[Path], T]) -> T:
        """The result of `read`, which is called with the path of a file that holds the object's content. The path is
        valid during the call only, and `read` must not change the file. Raises OSError, or what `read` raises."""

    def replace(self, name: str, content: bytes) -> None:
        """Write the whole object, in place of its predecessor. When this returns, the new content is on the disk under
        its name, and so is everything that was `put` or published in this place before. After a crash, and after an
        OSError, the object has either the old content or the new one. Raises OSError."""

    def sync_names(self) -> None:
        """When this returns, every earlier `publish`, `put` and `delete` survives a loss of power. Raises OSError, and
        then any of them may be undone."""

    def delete(self, name: str) -> None:
        """Delete the object, if it exists. A loss of power before `sync_names` may bring it back whole. Raises
        OSError."""

    def remove(self) -> None:
        """Delete this place and everything in it, as far as possible. Any part of it may remain, or come back after a
        loss of power. Raises nothing."""

    def set_aside(self, name: str) -> str:
        """Rename a damaged or unknown object to a name that no object ever had, which is listed as
        `ObjectState.SET_ASIDE`. Returns the new location. When this returns, the new name survives a loss of power.
        Raises OSError, and then the object has one of the two names."""


# All of it


class Storage(Protocol):
    """The durable data of a worker process, except its journal, by shard."""

    @property
    def control(self) -> Control:
        """The documents of the data directory."""

    @property
    def snapshots(self) -> Objects:
        """The snapshots of vector indexes: a place for each collection."""

    def blocks(self, shard: int) -> Objects:
        """The blocks of samples of a shard; the place may not exist yet."""

    def rows(self, shard: int) -> Rows:
        """Wait until the last owner has released the rows of a shard, then open them. Raises StoreDamaged if the rows
        are damaged or incomplete, OSError or Unavailable if storage fails or another owner does not release them;
        nothing is left open then."""
