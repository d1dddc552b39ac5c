"""The faces of storage: what the areas of a worker may ask of whatever keeps their data, and what it promises.

Everything durable that the areas touch, they touch through these protocols. They say nothing of files, so that other
kinds of storage can stand behind them. The fourth face, of small documents, is needed by the coordinator as well:
`shared.control`.
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
from shared.wire import Frame

T = TypeVar("T")

# The journal: what was acknowledged and is not anywhere else yet


class JournalStream(Protocol):
    """The records of one area of one shard in a worker's journal, in the order they were written. A record is bytes
    that only its area understands. Any thread may call any method."""

    @property
    def log(self) -> WorkerJournal:
        """The journal that this is a stream of: records of several streams are written to it at once."""

    def records(self) -> Iterator[tuple[int, memoryview]]:
        """(position, payload) of each record that was there at the start and had not been released, until `replayed`.
        After a crash it may be one that had been released: the area tells those by its own sequence numbers."""

    def replayed(self) -> None:
        """`records` are not asked for again: the shard is loaded with all of its areas."""

    def write(self, payload: Sequence[Frame]) -> int:
        """One record; see `WorkerJournal.write`."""

    def set_aside(self, payloads: Sequence[Frame], what: str) -> str:
        """Keep a copy of records that make no sense, so that each start says so until the copy is deleted, also when
        the records have been released. Returns the text that says it. Raises nothing: storage that refuses is
        logged."""

    def sync(self) -> None:
        """See `WorkerJournal.sync`."""

    def release(self, position: int) -> None:
        """Records below `position` are not needed any more: what they say is durable elsewhere. That itself is not
        durable. Raises nothing."""

    def is_behind(self) -> bool:
        """Whether its oldest record holds up much storage: what it says should be put elsewhere soon."""


class WorkerJournal(Protocol):
    """The records that the shards of one worker process have acknowledged and not put into rows or objects yet. Any
    thread may call any method.

    A record's position is a number that rises with time; positions of one journal are never given twice. Two processes
    never have one journal open.
    """

    def open(self) -> WorkerJournal:
        """Read what is there; safe to call again, also after it has failed. What was not known to be on the disk is
        written and synced anew, before anybody sees it. Damage is no error but one of `losses_of`. Raises OSError,
        Unavailable."""

    def losses_of(self, shard: int) -> list[tuple[int, str]]:
        """(area, what is missing) of one shard, as far as it is known and nobody has accepted the loss."""

    def stream(self, shard: int, area: int) -> JournalStream:
        """The records of one area of one shard; the same stream each time."""

    def write(self, records: Sequence[tuple[JournalStream, Sequence[Frame]]]) -> list[int]:
        """Append records, each of some pieces that are its payload; their positions. When this returns, they survive
        the death of the process, and a loss of power only after `sync`: before, it takes any number of the last ones.
        Raises Unavailable, and then none of them is there, unless the process dies before the next write. Where a
        failed write cannot be taken back, the journal takes no more until it is opened anew."""

    def sync(self) -> None:
        """When this returns, every record whose `write` returned before survives a loss of power; concurrent callers
        share one sync. Raises Unavailable. What is on the disk is not known then, and the journal takes no more until
        it is opened anew."""

    def recoverable(self) -> bool:
        """Whether it failed, and may succeed when opened again."""

    def close(self) -> None:
        """Sync and let go; the records stay for the next start. A sync that fails is logged."""


# The rows: what is read by key


class RowBatch(Protocol):
    """Changes to rows that are applied together or not at all, in the order given. For one thread."""

    size_bytes: int
    """Of the keys and values so far, without those of `put_many`."""

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Have this row, in place of one with the same key."""

    def put_many(self, family: str, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """As many `put`s: the way for many small rows."""

    def delete(self, family: str, key: bytes) -> None:
        """Have no row with this key."""

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Have no row with start ≤ key < end; nothing changes if there is no key between."""


class Rows(Protocol):
    """The rows of one shard: in each family, values by key, ordered by the keys' bytes. Any thread may call any method;
    another owner is refused while this one has them open.

    Reading raises StoreDamaged where a row is not what was written, instead of giving less than there is, and
    Unavailable when storage fails. After any call that met damage, `damage` says so.
    """

    @property
    def path(self) -> Path:
        """Where they are: for messages to whoever runs the service, and for nothing else."""

    @property
    def damage(self) -> str | None:
        """What was found damaged since the rows were opened: the shard has to refuse."""

    def decoding(self, family: str, key: bytes) -> AbstractContextManager[None]:
        """Around the decoding of a row, or of many from this one on: raises StoreDamaged that names it for whatever
        the decoder raises."""

    def batch(self) -> RowBatch:
        """An empty one, for `write`."""

    def write(self, batch: RowBatch, *, durable: bool = False, logged: bool = True) -> None:
        """Apply a batch of this `batch()`. When this returns, readers see it, and it survives the death of the process
        and, if `durable`, a loss of power; concurrent callers share a sync. Otherwise a loss of power takes any number
        of the last batches, each whole. Without `logged` it survives nothing before the next `flush` of its families.
        Raises Unavailable; with `durable`, the batch may be there nevertheless."""

    def sync(self) -> None:
        """When this returns, every `logged` write that returned before survives a loss of power. Raises Unavailable,
        and then no further write is accepted until the rows are opened again."""

    def flush(self, family: str) -> None:
        """When this returns, every write to the family that returned before survives a loss of power, logged or
        not. Raises Unavailable."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value; None where there is no such row."""

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of these keys, in their order."""

    def scan(
        self, family: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) with start ≤ key < end (None: to the last key), ascending, or descending if `reverse`: the rows
        of the moment the scan begins."""

    def keys(self, family: str, start: bytes = b"", end: bytes | None = None) -> Iterator[bytes]:
        """The keys of `scan`, ascending, without reading the values."""

    def reclaim(self, family: str, start: bytes, end: bytes) -> None:
        """Give the space of a deleted range back now. Raises Unavailable."""

    def recoverable(self) -> bool:
        """Whether writes failed, and may succeed once the rows are opened again. Opening heals no damage."""

    def close(self) -> None:
        """Sync what is logged, write out the rest, and let go. Errors are logged."""


# The objects: immutable bytes by name

_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
"""Why an object may not open though there is nothing wrong with it."""


class NotOpened(OSError):
    """An object that cannot be opened, as another OSError says that an open one cannot be read."""

    @property
    def is_passing(self) -> bool:
        """Whether the reason is the state of this process or machine, not of the object: a later try may succeed."""
        return self.errno in _PASSING


class State(Enum):
    """Of what lies in a place of objects."""

    WHOLE = "whole"
    DRAFT = "draft"
    SET_ASIDE = "set aside"


@dataclass(frozen=True, slots=True)
class Listed:
    """A name and what bears it: an object (or a place within this one), what a crash left of a draft, or what was set
    aside. A draft is listed under a name of its own, which `delete` takes."""

    name: str
    state: State


class Draft(Protocol):
    """An object that is being written. No object has its name before `publish`. What a crash leaves of a draft is
    listed as `State.DRAFT` at the next start, and is not read by anybody."""

    def write(self, data: Frame) -> None:
        """Append. Raises OSError."""

    def finish(self) -> None:
        """The content is complete; when this returns, it is on the disk. Raises OSError."""

    def publish(self) -> None:
        """Give the object its name, after `finish`. Readers see all of it from now on. A loss of power before
        `Objects.sync_names` leaves the object under its name, or the draft, or nothing. Raises OSError."""

    def abandon(self) -> None:
        """Leave nothing behind, published or not; may be called at any point, and again. Raises OSError."""


class Objects(Protocol):
    """Immutable objects by name, in one place that one process writes to. Any thread may call any method.

    An object is written once, as a `draft` or by `put`, and then only read, deleted or set aside. The exception is the
    object that is written by `replace`: the list by which others count.
    """

    def prepare(self) -> None:
        """Have the place there; when this returns, it still is after a loss of power. Raises OSError."""

    def within(self, name: str) -> Objects:
        """The place of that name in this one. It may not be there yet: see `prepare`."""

    def location(self, name: str = "") -> str:
        """Where the object is, or this place: for messages to whoever runs the service, and for nothing else."""

    def list(self) -> list[Listed]:
        """All there is in this place, by ascending name; nothing if there is no such place. Raises OSError."""

    def exists(self, name: str) -> bool:
        """Raises OSError where that cannot be told."""

    def size(self, name: str) -> int:
        """Bytes. Raises FileNotFoundError, OSError."""

    def read(self, name: str, at: int, size: int) -> bytes:
        """`size` bytes from `at` on; fewer if the object ends before. They are not verified: whoever wrote them has
        their checksum. Raises NotOpened; OSError where an open object cannot be read."""

    def get(self, name: str) -> bytes:
        """All of the object, unverified. Raises FileNotFoundError, OSError."""

    def draft(self, name: str) -> Draft:
        """Begin an object of a name that was never used before. Raises OSError."""

    def put(self, name: str, content: bytes) -> None:
        """Write an object whole: when this returns, its content is on the disk, and its name after `sync_names` or
        the next `replace`. Until then a crash may leave any part of the content under the name, so that only a list
        with its checksum makes it count. Raises OSError, which leaves what a crash leaves."""

    def put_by_path(self, name: str, write: Callable[[Path], object]) -> None:
        """As `put`, for libraries that write files only: `write` fills the file of the path that it is lent for the
        time of the call. Raises OSError, or what `write` raises."""

    def get_by_path(self, name: str, read: Callable[[Path], T]) -> T:
        """What `read` makes of a file with the object's content, whose path it is lent for the time of the call; the
        file may not be changed. Raises OSError, or what `read` raises."""

    def replace(self, name: str, content: bytes) -> None:
        """Write the object whole, in place of the one there was. When this returns, the new content is on the disk
        under its name, and so is everything `put` or published in this place before. After a crash it has the old
        content or the new one. Raises OSError, and then it has either as well."""

    def sync_names(self) -> None:
        """When this returns, every `publish`, `put` and `delete` before it survives a loss of power. Raises OSError,
        and then any of them may come undone."""

    def delete(self, name: str) -> None:
        """There is no such object any more, or there was none. A loss of power before `sync_names` may bring it back
        whole. Raises OSError."""

    def remove(self) -> None:
        """Delete this place with everything in it, as far as that is possible; what is left, or comes back with a loss
        of power, is any part of it. Raises nothing."""

    def set_aside(self, name: str) -> str:
        """Give a damaged or unknown object a new name, listed as `State.SET_ASIDE`, which no object ever had; returns
        the location. When this returns, that survives a loss of power. Raises OSError, and it has one of both names."""


# All of it


class Storage(Protocol):
    """What a worker process keeps beside its journal, by shard."""

    @property
    def control(self) -> Control:
        """The documents of the cluster's data."""

    @property
    def snapshots(self) -> Objects:
        """Of vector indexes: a place for each collection."""

    def blocks(self, shard: int) -> Objects:
        """The blocks of samples of a shard; the place may not be there yet."""

    def rows(self, shard: int) -> Rows:
        """Open the rows of a shard, waiting until their last owner has let go of them. Raises StoreDamaged when they
        make no sense or lack something, OSError or Unavailable when storage fails or they keep having another owner;
        nothing is left open then."""
