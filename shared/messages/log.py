"""Messages of the log methods.

A *group* is the batches that one message carries, with consecutive sequence numbers; its id is the first of them. A
group's part on a shard is one frame of blocks of records (shared.log_blocks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared import log_blocks, log_headers
from shared.errors import Internal
from shared.wire import Frame, size_of

SEQUENCE_BYTES = 8
SEQUENCE_MAX = (1 << 64) - 1
KEY_BYTES_MAX = 65_535
"""A key is copied into every row of its records, so it must be short."""
PRODUCER_ANSWERS_MAX = 8
"""Answers remembered for one producer, which may have this many batches under way."""

Span = tuple[int, int]
"""Sequence numbers start ≤ n < end."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """One append: `count` records from sequence number `start`, which become readable all together or not at all.

    `shards` are the shards that take part. `producer` and `producer_seq` make the append idempotent. `time_ms`: when it
    was appended, in Unix ms, never less than that of a batch with lower numbers; 0: unknown, as records that were
    appended before records kept their time.
    """

    start: int
    count: int
    shards: tuple[int, ...]
    producer: str = ""
    producer_seq: int = 0
    time_ms: int = 0


class AppendBody(msgspec.Struct):
    """Method log.append. Parts: for each shard [its blocks (shared.log_blocks)], one block for each batch in which the
    shard takes part, in the order of `batches`.

    `closed`: every group below this number is decided, so no more records below it will come. `settled`: every batch
    below this number is whole and on the disk of every shard concerned, so it need not be examined after a crash.
    `durable`: answer when the records are on disk. `life`: of the coordinator (RecoverBody).
    """

    segment: int
    group: int
    closed: int
    durable: bool
    settled: int
    batches: tuple[Batch, ...]
    life: int = SEQUENCE_MAX


class RevokeBody(msgspec.Struct):
    """Method log.revoke: remove the batches within `spans` from the group, and refuse the group if it arrives later.
    `life`: of the coordinator (RecoverBody)."""

    segment: int
    group: int
    spans: list[Span]
    life: int


class RecoverBody(msgspec.Struct):
    """Method log.recover: refuse groups below `epoch` from now on, and report the groups at or above `settled`. `life`
    increases with each start of a coordinator: messages with a lower one are refused from now on, even if both
    coordinators give the same numbers because the state was lost in between."""

    epoch: int
    settled: int
    first_segment: int
    life: int


class HeldGroup(msgspec.Struct, array_like=True):
    segment: int
    group: int
    batches: tuple[Batch, ...]


class HeldSegment(msgspec.Struct, array_like=True):
    """What a shard holds of one segment. `start`: the lowest group. `time_ms`: when it was appended; 0: unknown."""

    segment: int
    records: int
    bytes: int
    start: int
    time_ms: int = 0


class RecoverReply(msgspec.Struct):
    """Reply to log.recover: shard → what it holds. `next`: above every sequence number that the shard has seen.
    `dropped`: every segment below this one has been dropped there. `damaged`: shards that have lost unknown records.
    `times_ms`: of the newest record there (Batch)."""

    next: dict[int, int]
    settled: dict[int, int]
    groups: dict[int, list[HeldGroup]]
    segments: dict[int, list[HeldSegment]]
    dropped: dict[int, int] = {}
    damaged: list[int] = []
    times_ms: dict[int, int] = {}


class DropBody(msgspec.Struct):
    """Method log.drop: remove every segment below `first_segment`, whose first sequence number is `start`."""

    first_segment: int
    start: int


class Range(msgspec.Struct):
    """What a read covers: sequence numbers start ≤ n < end < 2^64 in these segments, except those in `hidden`."""

    first_segment: int
    last_segment: int
    start: int
    end: int
    hidden: list[Span] = []


class Search(msgspec.Struct, frozen=True):
    """What the values of records must have: a match of the pattern `grep`, none of `grep_not`, JSON that satisfies the
    condition `where` (shared.log_search)."""

    grep: str | None = None
    grep_not: str | None = None
    where: str | None = None


class ScanBody(msgspec.Struct):
    """Method log.scan (one shard): records of `key`. Method log.merge: of all keys with `prefix`, ascending. Method
    log.search is log.scan with a `search`."""

    range: Range
    limit: int
    key: bytes = b""
    prefix: bytes = b""
    reverse: bool = False
    search: Search | None = None


class ScanReply(msgspec.Struct):
    """Frames: see `Records`. The page is complete up to `next` (exclusive; in reverse: down to it, inclusive). `done`:
    there are no more records in the range."""

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
    search: Search | None = None


class CountReply(msgspec.Struct):
    records: int


class TrimBody(msgspec.Struct):
    """Method log.trim (one shard): remove the records of `key` below `range.end`, durably, and count those in the
    range. `closed`: as in AppendBody."""

    range: Range
    key: bytes
    closed: int


class TrimReply(msgspec.Struct):
    """`records`: how many of the range there were; None if there was no time to count them all."""

    records: int | None


class FirstAtBody(msgspec.Struct):
    """Method log.first_at: the first batch of this segment that was appended at or after `time_ms`."""

    segment: int
    time_ms: int


class FirstAtReply(msgspec.Struct):
    """`number`: where the batch begins; SEQUENCE_MAX if the shards have none."""

    number: int


class KeyPolicy(msgspec.Struct, frozen=True, array_like=True):
    """Of each key with `prefix`, and with no longer prefix of another policy, `keep_newest` records are kept (0: all),
    if they are not older than `max_age_ms` (0: however old)."""

    prefix: bytes
    keep_newest: int = 0
    max_age_ms: int = 0


class PoliciesBody(msgspec.Struct):
    """Method log.policies (one shard): apply the policies to the records below `upto`, which are settled, for a moment.
    `too_old`: for each policy the number below which records are older than it allows, at most `upto`. `is_new`: begin
    a pass; otherwise go on with the one that has begun. `closed`: as in AppendBody. `expired`: as `too_old`, of
    tombstones that are the newest records of their keys."""

    policies: list[KeyPolicy]
    too_old: list[int]
    upto: int
    closed: int
    is_new: bool
    expired: list[int]


class PoliciesReply(msgspec.Struct):
    """`more`: the pass is not complete."""

    more: bool


class CursorMove(msgspec.Struct, array_like=True):
    """A cursor's new position for one key. `expected`: the position it must have now; -1: it must have none; None: any
    position."""

    key: bytes
    sequence: int
    expected: int | None


class CursorBody(msgspec.Struct):
    """Methods log.cursor_get, log.cursor_put and log.cursor_delete, on the shard of the cursor's name."""

    name: str
    moves: list[CursorMove] = []
    key: bytes | None = None


class CursorReply(msgspec.Struct):
    positions: list[tuple[bytes, int]]


class ProducerBody(msgspec.Struct):
    """Method log.producer, on the shard of the producer's id: the answers that the shard remembers."""

    producer: str


class ProducerReply(msgspec.Struct):
    """(producer_seq, start, count) of each answer, ascending by `start`."""

    answers: list[tuple[int, int, int]]


class Records:
    """Records as columns: `sequences`, and `values` and `keys` as bytes one after the other with their lengths. `keys`
    is empty if all records have the requested key. `times`: when each was appended (Batch.time_ms); by default
    unknown. `headed`: whether each of `values` begins with headers (shared.log_headers); by default none does."""

    __slots__ = ("headed", "key_lengths", "keys", "sequences", "times", "value_lengths", "values")

    def __init__(
        self,
        sequences: NDArray[np.uint64],
        value_lengths: NDArray[np.uint32],
        values: Frame,
        key_lengths: NDArray[np.uint32],
        keys: Frame,
        times: NDArray[np.int64] | None = None,
        headed: NDArray[np.bool_] | None = None,
    ) -> None:
        self.headed = np.zeros(len(sequences), np.bool_) if headed is None else headed
        self.times = np.zeros(len(sequences), np.int64) if times is None else times
        assert len(value_lengths) == len(sequences) == len(self.times)
        assert len(key_lengths) in (0, len(sequences)), "each record has a key, or all have the requested one"
        self.sequences = sequences
        self.value_lengths = value_lengths
        self.values = values
        self.key_lengths = key_lengths
        self.keys = keys

    def __len__(self) -> int:
        return len(self.sequences)

    @classmethod
    def of(
        cls,
        sequences: NDArray[np.uint64],
        values: Sequence[bytes],
        keys: Sequence[bytes] = (),
        times: NDArray[np.int64] | None = None,
        headed: NDArray[np.bool_] | None = None,
    ) -> Records:
        return cls(sequences, _lengths(values), b"".join(values), _lengths(keys), b"".join(keys), times, headed)

    @classmethod
    def from_frames(cls, frames: Sequence[Frame]) -> Records:
        sequences, value_lengths, values, key_lengths, keys, times, headed = frames
        return cls(
            np.frombuffer(sequences, np.uint64),
            np.frombuffer(value_lengths, np.uint32),
            values,
            np.frombuffer(key_lengths, np.uint32),
            keys,
            np.frombuffer(times, np.int64),
            np.frombuffer(headed, np.bool_) if size_of(headed) else None,
        )

    def frames(self) -> list[Frame]:
        assert self.sequences.dtype == np.uint64 and self.value_lengths.dtype == self.key_lengths.dtype == np.uint32
        assert self.times.dtype == np.int64
        assert int(self.value_lengths.sum(dtype=np.int64)) == size_of(self.values)
        assert int(self.key_lengths.sum(dtype=np.int64)) == size_of(self.keys)
        return [
            self.sequences.tobytes(),
            self.value_lengths.tobytes(),
            self.values,
            self.key_lengths.tobytes(),
            self.keys,
            self.times.tobytes(),
            self.headed.tobytes() if self.headed.any() else b"",
        ]

    def cut(self, low: int, high: int) -> Records:
        """The records at positions low ≤ i < high."""
        if low <= 0 and high >= len(self):
            return self
        columns: list[Any] = []
        for lengths, octets in ((self.value_lengths, self.values), (self.key_lengths, self.keys)):
            begin, size = int(lengths[:low].sum()), int(lengths[low:high].sum())
            columns += [lengths[low:high], memoryview(octets)[begin : begin + size]]
        columns += [self.times[low:high], self.headed[low:high]]
        return Records(self.sequences[low:high], *columns)

    def taking(self, places: NDArray[np.int64]) -> Records:
        """The records at these positions, in this order."""
        if not len(places):
            return Records.of(NO_NUMBERS, ())
        values = _taken(self.values, self.value_lengths, places)
        keys = _taken(self.keys, self.key_lengths, places) if len(self.key_lengths) else (b"", self.key_lengths)
        flags = self.times[places], self.headed[places]
        return Records(self.sequences[places], values[1], values[0], keys[1], keys[0], *flags)

    def under(self, key: bytes) -> Records:
        """These records, which have no keys, with this key."""
        assert not len(self.key_lengths)
        lengths = np.full(len(self), len(key), np.uint32)
        keys = key * len(self)
        return Records(self.sequences, self.value_lengths, self.values, lengths, keys, self.times, self.headed)

    @classmethod
    def joined(cls, pieces: Sequence[Records]) -> Records:
        """The records of all pieces, one piece after another."""
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
            np.concatenate([piece.times for piece in pieces]),
            np.concatenate([piece.headed for piece in pieces]),
        )

    def value_list(self) -> list[bytes]:
        """The records' values; one that has headers is a HeadedValue."""
        values = self.stored_values()
        for at in np.flatnonzero(self.headed).tolist():
            values[at] = log_headers.split(values[at])
        return values

    def stored_values(self) -> list[bytes]:
        """The records' values with the headers in front of some."""
        return _cut(self.values, self.value_lengths)

    def key_list(self) -> list[bytes]:
        """The records' keys; [] when all records have the requested key."""
        return _cut(self.keys, self.key_lengths)


class Page(NamedTuple):
    """Records and how far they are complete; see `ScanReply`."""

    records: Records
    next: int
    done: bool


def check_progress(page: Page, start: int, end: int, reverse: bool = False) -> None:
    """Raises Internal unless the page of start ≤ number < end is the last one, or the range of the next page is smaller
    than this: so a reader that follows `next` comes to an end."""
    moves_on = start <= page.next < end if reverse else start < page.next <= end
    is_whole = page.done and page.next == (start if reverse else end)
    if not moves_on and not is_whole:
        right = f"from {start} to below {end}" if reverse else f"above {start} and at most {end}"
        raise Internal(f"a page of the log from {start} to {end} goes on at {page.next}; it must be {right}")


def merge_pages(pages: Sequence[Page], limit: int) -> Page:
    """Merge ascending pages of several shards into one page by sequence number, as far as all of them are complete."""
    upto = min(page.next for page in pages)
    done = all(page.done for page in pages)
    rows = [
        row
        for page in pages
        for row in zip(
            page.records.sequences.tolist(),
            page.records.key_list(),
            page.records.stored_values(),
            page.records.times.tolist(),
            page.records.headed.tolist(),
            strict=True,
        )
        if row[0] < upto
    ]
    rows.sort()
    if len(rows) > limit:
        upto, done = rows[limit][0], False
        del rows[limit:]
    numbers, keys, values, times, headed = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    columns = np.array(times, np.int64), np.array(headed, np.bool_)
    return Page(Records.of(np.array(numbers, np.uint64), values, keys, *columns), upto, done)


def _taken(octets: Frame, lengths: NDArray[np.uint32], places: NDArray[np.int64]) -> tuple[Frame, NDArray[np.uint32]]:
    """(the texts at these positions of texts that stand one after the other, their lengths)."""
    table = np.zeros((len(lengths), log_blocks.COLUMNS), np.int64)
    table[:, log_blocks.VALUE] = np.cumsum(lengths, dtype=np.int64) - lengths
    table[:, log_blocks.VALUE_LENGTH] = lengths
    return log_blocks.taken(np.frombuffer(octets, np.uint8), table, log_blocks.VALUE, places).data, lengths[places]


def _lengths(items: Sequence[bytes]) -> NDArray[np.uint32]:
    return np.fromiter(map(len, items), np.uint32, len(items))


def _cut(joined: Frame, lengths: NDArray[np.uint32]) -> list[bytes]:
    data = bytes(joined)
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    assert (ends[-1] if ends else 0) == len(data)
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


NO_NUMBERS = np.zeros(0, np.uint64)
