"""Messages of the log methods.

Coordinator and workers speak of *groups*: the batches that one message carries, with consecutive sequence numbers from
`start`. A group's part on a shard is one frame, of blocks of records (shared.log_blocks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.wire import Frame

SEQUENCE_BYTES = 8
SEQUENCE_MAX = (1 << 64) - 1
KEY_BYTES_MAX = 65_535
"""A key is copied into every row: longer ones are values in disguise."""
PRODUCER_ANSWERS_MAX = 8
"""Answers remembered for one producer: it may have this many batches under way."""

Span = tuple[int, int]
"""Sequence numbers start ≤ n < end."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """One append: `count` records from sequence number `start`, all or none of which may be read.

    `shards` are those that take part. `producer` and `producer_seq` make it idempotent.
    """

    start: int
    count: int
    shards: tuple[int, ...]
    producer: str = ""
    producer_seq: int = 0


class AppendBody(msgspec.Struct):
    """Method log.append; parts: [the shard's blocks (shared.log_blocks)] a shard, one of each batch that it takes part
    in, in the order of `batches`.

    `closed`: every group below it is decided, so that no records below it will come any more. `settled`: every batch
    below it is whole and on the disk of every shard concerned, so it need not be looked at after a crash. `durable`:
    answer when they are on the disk. `life`: of the coordinator (RecoverBody).
    """

    segment: int
    group: int
    closed: int
    durable: bool
    settled: int
    batches: tuple[Batch, ...]
    life: int = SEQUENCE_MAX


class RevokeBody(msgspec.Struct):
    """Method log.revoke: remove the batches within `spans` from the group, and refuse the group if it comes later.
    `life`: of the coordinator (RecoverBody)."""

    segment: int
    group: int
    spans: list[Span]
    life: int


class RecoverBody(msgspec.Struct):
    """Method log.recover: refuse groups below `epoch` from now on, and report those at or above `settled`. `life` is
    higher for each start of a coordinator: messages of an earlier one are refused from now on, also where a lost state
    makes both give the same numbers."""

    epoch: int
    settled: int
    first_segment: int
    life: int


class HeldGroup(msgspec.Struct, array_like=True):
    segment: int
    group: int
    batches: tuple[Batch, ...]


class HeldSegment(msgspec.Struct, array_like=True):
    """`start`: the lowest sequence number of a group that the shard has in it."""

    segment: int
    records: int
    bytes: int
    start: int


class Recovered(msgspec.Struct):
    """Answer of log.recover: shard → what it holds. `next`: above every sequence number seen there; `dropped`: every
    segment below has been dropped there. `damaged`: shards that have lost records, nobody knows which."""

    next: dict[int, int]
    settled: dict[int, int]
    groups: dict[int, list[HeldGroup]]
    segments: dict[int, list[HeldSegment]]
    dropped: dict[int, int] = {}
    damaged: list[int] = []


class DropBody(msgspec.Struct):
    """Method log.drop: remove every segment below `first_segment`, whose first sequence number is `start`."""

    first_segment: int
    start: int


class Range(msgspec.Struct):
    """What a read covers: sequence numbers start ≤ n < end < 2^64 in these segments, without those in `hidden`."""

    first_segment: int
    last_segment: int
    start: int
    end: int
    hidden: list[Span] = []


class ScanBody(msgspec.Struct):
    """Method log.scan (one shard): records of `key`. Method log.merge: of all keys with `prefix`, ascending."""

    range: Range
    limit: int
    key: bytes = b""
    prefix: bytes = b""
    reverse: bool = False


class ScanReply(msgspec.Struct):
    """Frames: see `Records`. The read is complete up to `next` (exclusive; in reverse: down to it, inclusive); `done`
    when that is all there is in the range."""

    next: int
    done: bool


class KeysBody(msgspec.Struct):
    """Method log.keys: up to `limit` distinct keys with `prefix`, greater than `after`, ascending."""

    range: Range
    prefix: bytes
    after: bytes | None
    limit: int


class KeysReply(msgspec.Struct):
    keys: list[bytes]


class CountBody(msgspec.Struct):
    """Method log.count: records of `key`, or of the keys with `prefix`."""

    range: Range
    key: bytes | None
    prefix: bytes


class CountReply(msgspec.Struct):
    records: int


class CursorMove(msgspec.Struct, array_like=True):
    """`expected`: the position it must have now; -1: it must not exist; None: whatever it is."""

    key: bytes
    sequence: int
    expected: int | None


class CursorBody(msgspec.Struct):
    """Methods log.cursor_get, log.cursor_put, log.cursor_delete, on the shard of the name."""

    name: str
    moves: list[CursorMove] = []
    key: bytes | None = None


class CursorReply(msgspec.Struct):
    positions: list[tuple[bytes, int]]


class ProducerBody(msgspec.Struct):
    """Method log.producer, on the shard of the producer's id: the answers it remembers."""

    producer: str


class ProducerReply(msgspec.Struct):
    """(producer_seq, start, count), ascending."""

    answers: list[tuple[int, int, int]]


class Records:
    """Records as columns: `sequences`, and `values` and (where they differ) `keys` as bytes one after the other with
    their lengths."""

    __slots__ = ("key_lengths", "keys", "sequences", "value_lengths", "values")

    def __init__(
        self,
        sequences: NDArray[np.uint64],
        value_lengths: NDArray[np.uint32],
        values: Frame,
        key_lengths: NDArray[np.uint32],
        keys: Frame,
    ) -> None:
        self.sequences = sequences
        self.value_lengths = value_lengths
        self.values = values
        self.key_lengths = key_lengths
        self.keys = keys

    def __len__(self) -> int:
        return len(self.sequences)

    @classmethod
    def of(cls, sequences: NDArray[np.uint64], values: Sequence[bytes], keys: Sequence[bytes] = ()) -> Records:
        return cls(sequences, _lengths(values), b"".join(values), _lengths(keys), b"".join(keys))

    @classmethod
    def from_frames(cls, frames: Sequence[Frame]) -> Records:
        sequences, value_lengths, values, key_lengths, keys = frames
        return cls(
            np.frombuffer(sequences, np.uint64),
            np.frombuffer(value_lengths, np.uint32),
            values,
            np.frombuffer(key_lengths, np.uint32),
            keys,
        )

    def frames(self) -> list[Frame]:
        return [
            self.sequences.tobytes(),
            self.value_lengths.tobytes(),
            self.values,
            self.key_lengths.tobytes(),
            self.keys,
        ]

    def cut(self, low: int, high: int) -> Records:
        """The records at positions low ≤ i < high."""
        if low <= 0 and high >= len(self):
            return self
        columns = []
        for lengths, octets in ((self.value_lengths, self.values), (self.key_lengths, self.keys)):
            begin, size = int(lengths[:low].sum()), int(lengths[low:high].sum())
            columns += [lengths[low:high], memoryview(octets)[begin : begin + size]]
        return Records(self.sequences[low:high], *columns)  # type: ignore[arg-type]

    @classmethod
    def joined(cls, pieces: Sequence[Records]) -> Records:
        """One after another."""
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            return cls.of(NO_NUMBERS, ())
        return cls(
            np.concatenate([piece.sequences for piece in pieces]),
            np.concatenate([piece.value_lengths for piece in pieces]),
            b"".join(piece.values for piece in pieces),
            np.concatenate([piece.key_lengths for piece in pieces]),
            b"".join(piece.keys for piece in pieces),
        )

    def value_list(self) -> list[bytes]:
        return _cut(self.values, self.value_lengths)

    def key_list(self) -> list[bytes]:
        """The records' keys; [] when they are all the key that was asked for."""
        return _cut(self.keys, self.key_lengths)


class Page(NamedTuple):
    """Records and how far they are complete; see `ScanReply`."""

    records: Records
    next: int
    done: bool


def check_progress(page: Page, start: int, end: int, reverse: bool = False) -> None:
    """Raises Internal unless the page of start ≤ number < end is the last one, or the next one is smaller than it: a
    reader that follows `next` comes to an end."""
    moves_on = start <= page.next < end if reverse else start < page.next <= end
    is_whole = page.done and page.next == (start if reverse else end)
    if not moves_on and not is_whole:
        right = f"from {start} to below {end}" if reverse else f"above {start} and at most {end}"
        raise Internal(f"a page of the log from {start} to {end} goes on at {page.next}; it must be {right}")


def merge_pages(pages: Sequence[Page], limit: int) -> Page:
    """One page of several shards' ascending ones, by sequence number, as far as all of them are complete."""
    upto = min(page.next for page in pages)
    done = all(page.done for page in pages)
    rows = [
        row
        for page in pages
        for row in zip(page.records.sequences.tolist(), page.records.key_list(), page.records.value_list(), strict=True)
        if row[0] < upto
    ]
    rows.sort()
    if len(rows) > limit:
        upto, done = rows[limit][0], False
        del rows[limit:]
    numbers, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
    return Page(Records.of(np.array(numbers, np.uint64), values, keys), upto, done)


def _lengths(items: Sequence[bytes]) -> NDArray[np.uint32]:
    return np.fromiter(map(len, items), np.uint32, len(items))


def _cut(joined: Frame, lengths: NDArray[np.uint32]) -> list[bytes]:
    data = bytes(joined)
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


NO_NUMBERS = np.zeros(0, np.uint64)
