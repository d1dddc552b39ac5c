"""Messages of the log methods.

A *group* is the batches that one message carries, with consecutive sequence numbers; its id is the first number. A
group's part on a shard is one frame of blocks of records (shared.log.blocks).
"""

from __future__ import annotations

import msgspec

SEQUENCE_BYTES = 8
SEQUENCE_MAX = (1 << 64) - 1
KEY_BYTES_MAX = 65_535
"""A key is copied into every row of its records, so it must be short."""
PRODUCER_ANSWERS_MAX = 8
"""Replies remembered for one producer, which may have this many batches in flight."""

Span = tuple[int, int]
"""Sequence numbers start ≤ n < end."""


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One append: `count` records from sequence number `start`, which become readable all together or not at all.

    `shards` are the shards that take part. `producer` and `producer_seq` make the append idempotent. `time_ms`: when it
    was appended, in Unix ms, never less than that of a batch with lower numbers; 0: unknown, because the records were
    appended before records had times.
    """

    start: int
    count: int
    shards: tuple[int, ...]
    producer: str = ""
    producer_seq: int = 0
    time_ms: int = 0


class AppendBody(msgspec.Struct):
    """Method log.append. Parts: for each shard [its blocks (shared.log.blocks)], one block for each batch in which the
    shard takes part, in the order of `batches`.

    `closed`: every group below this number is decided, so no more records below it will arrive. `settled`: every batch
    below this number is complete and on the disk of every shard concerned, so it need not be examined after a crash.
    `durable`: reply once the records are on disk. `life`: that of the coordinator (RecoverBody).
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
    `life`: that of the coordinator (RecoverBody)."""

    segment: int
    group: int
    spans: list[Span]
    life: int


class RecoverBody(msgspec.Struct):
    """Method log.recover: refuse groups below `epoch` from now on, and report the groups at or above `settled`. `life`
    increases with each start of a coordinator. Messages with a lower one are refused from now on, even if both
    coordinators assign the same numbers because the state was lost in between."""

    epoch: int
    settled: int
    first_segment: int
    life: int


class HeldGroup(msgspec.Struct, array_like=True):
    segment: int
    group: int
    batches: tuple[Batch, ...]


class HeldSegment(msgspec.Struct, array_like=True):
    """What a shard holds of one segment. `start`: the lowest group. `time_ms`: when that was appended; 0: unknown."""

    segment: int
    records: int
    bytes: int
    start: int
    time_ms: int = 0


class RecoverReply(msgspec.Struct):
    """Reply to log.recover: shard → what it holds. `next`: above every sequence number that the shard has seen.
    `dropped`: every segment below this one has been dropped there. `damaged`: shards that have lost unknown records.
    `times_ms`: the time of the newest record there (Batch)."""

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
    """What the values of records must have: a match of the pattern `grep`, no match of `grep_not`, JSON that satisfies
    the condition `where` (shared.log_search)."""

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
    """`records`: how many records the range had; None if there was not enough time to count them all."""

    records: int | None


class FirstAtBody(msgspec.Struct):
    """Method log.first_at: the first batch of this segment that was appended at or after `time_ms`."""

    segment: int
    time_ms: int


class FirstAtReply(msgspec.Struct):
    """`number`: where the batch begins; SEQUENCE_MAX if the shards have none."""

    number: int


class KeyPolicy(msgspec.Struct, frozen=True, array_like=True):
    """For each key with `prefix`, unless it has a longer prefix of another policy, the `keep_newest` newest records are
    kept (0: all), unless they are older than `max_age_ms` (0: no limit)."""

    prefix: bytes
    keep_newest: int = 0
    max_age_ms: int = 0


class PoliciesBody(msgspec.Struct):
    """Method log.policies (one shard): apply the policies for a short time to the records below `upto`, which are
    settled. `too_old`: for each policy, the number below which records are older than it allows, at most `upto`.
    `is_new`: begin a pass; otherwise continue the current one. `closed`: as in AppendBody. `expired`: as `too_old`, for
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
    """Method log.producer, on the shard of the producer's id: the replies that the shard remembers."""

    producer: str


class ProducerReply(msgspec.Struct):
    """(producer_seq, start, count) of each remembered reply, ascending by `start`."""

    answers: list[tuple[int, int, int]]
