"""Policies by prefix of keys: of each key, only the newest records are kept, or those that are not too old.

A pass looks at the entries that were gathered since the last one, and raises the starts of keys that have more records
than their policy allows (worker.logs.trimming); the removal follows from that. It looks only at records that are
settled, since a newer record that may still be revoked must not remove an older one. For each policy with an age, it
then looks at the entries that have become too old since the last pass.

Where the newest records are kept, a tombstone removes all older records of its key. An entry says which of its records
are tombstones, so no value is read to find them. The tombstone itself is removed when it is old enough, unless a newer
record of its key is settled: then the tombstone counts as any older record.

Where the next pass begins is stored with the starts, in one write. A pass under other policies begins with the first
entry.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.messages.log import KeyPolicy, PoliciesBody
from worker.logs import entries, rows, trimming
from worker.logs.entries import GatheringEntry
from worker.logs.part import LogPart
from worker.logs.runs import unpacked
from worker.logs.starts import START_BYTES

SLICE_S = 0.1
"""After this time a slice of a pass ends, so that the thread is free for queries."""
KEYS_A_SLICE = 4096
KEY_BYTES_A_SLICE = 4 << 20
WAITING_MAX = 50_000
WAITING_BYTES_MAX = 16 << 20
"""A pass waits while the shard has more starts than this, or more bytes of them, whose records are not removed yet.
This leaves room for deletions by users: a slice adds less than the rest of the limit."""


class Position(NamedTuple):
    """Every entry of earlier segments, and those of this one with no number from `number` on, have been looked at."""

    segment: int
    number: int


class Goal(Enum):
    """What a pass looks for in the entries: keys with more records than are kept, records that are too old, or
    tombstones that are too old."""

    NEWEST = 0
    AGE = 1
    TOMBSTONES = 2


class Reached(NamedTuple):
    """How far a pass is with a goal: for all policies with NEWEST, else for one."""

    goal: Goal
    policy: int
    position: Position


class _Stored(msgspec.Struct, array_like=True):
    """The positions: for all policies with `newest`, and of each with `ages` and `tombstones`."""

    policies: list[KeyPolicy]
    newest: Position
    ages: list[Position]
    tombstones: list[Position] = []


_STORED = msgspec.msgpack.Decoder(_Stored)
_BEGIN = Position(0, 0)
Step = Reached | tuple[bytes, int] | None
"""How far the pass is; or a key and its new start; or None: a key was examined that has nothing to remove."""


class PolicyPass:
    """A pass over one shard that has begun. Not safe for threads."""

    def __init__(self, part: LogPart, body: PoliciesBody) -> None:
        self._part = part
        self._policies = list(body.policies)
        self._has_moved = False
        value = part.store.get("log", rows.POLICIES)
        stored = _STORED.decode(value) if value is not None else None
        begins = [_BEGIN] * len(self._policies)
        if stored is None or stored.policies != self._policies or len(stored.tombstones) != len(begins):
            stored = _Stored(self._policies, _BEGIN, begins, list(begins))
        self._stored = stored
        self._steps = _steps(part, _Prefixes(self._policies), stored, body, min(body.upto, part.gathered))

    def is_under(self, policies: Sequence[KeyPolicy]) -> bool:
        return self._policies == list(policies)

    def slice(self) -> bool:
        """Continue for about SLICE_S. Returns whether there is more to do. Raises Unavailable, which ends the pass."""
        starts = self._part.starts
        if len(starts) > WAITING_MAX or starts.bytes > WAITING_BYTES_MAX:
            return True
        wanted: dict[bytes, int] = {}
        size, give_up, more = 0, time.monotonic() + SLICE_S, False
        for step in self._steps:
            if isinstance(step, Reached):
                self._move(step)
            elif step is not None:
                wanted[step[0]] = max(step[1], wanted.get(step[0], 0))
                size += len(step[0]) + START_BYTES
            if time.monotonic() > give_up or len(wanted) >= KEYS_A_SLICE or size >= KEY_BYTES_A_SLICE:
                more = True
                break
        if wanted or self._has_moved:
            trimming.put_starts(self._part, wanted, {rows.POLICIES: msgspec.msgpack.encode(self._stored)})
            self._has_moved = False
        if not more or len(starts) > WAITING_MAX // 2:
            # Many keys at once: the removal rewrites each entry that has records of any of them.
            self._part.keeper.cleaner.wake()
        return more

    def _move(self, reached: Reached) -> None:
        self._has_moved = True
        if reached.goal == Goal.NEWEST:
            self._stored.newest = reached.position
        else:
            positions = self._stored.ages if reached.goal == Goal.AGE else self._stored.tombstones
            positions[reached.policy] = reached.position


class _Prefixes:
    """Finds the policy of a key."""

    def __init__(self, policies: Sequence[KeyPolicy]) -> None:
        self.policies = policies
        self._longest_first = sorted(range(len(policies)), key=lambda at: -len(policies[at].prefix))

    def policy_of(self, key: bytes) -> int:
        """The policy with the longest prefix of the key; −1 without one."""
        return next((at for at in self._longest_first if key.startswith(self.policies[at].prefix)), -1)


def _steps(part: LogPart, prefixes: _Prefixes, stored: _Stored, body: PoliciesBody, gathered: int) -> Iterator[Step]:
    """The steps of a pass. It leaves out entries with numbers from `gathered` on, and those of earlier passes."""
    if any(policy.keep_newest for policy in prefixes.policies):
        for entry, following in _entries(part, stored.newest):
            if entry.above > gathered:
                break
            yield from _newest_of(part, prefixes, entry)
            yield Reached(Goal.NEWEST, -1, following)
    for at, policy in enumerate(prefixes.policies):
        if policy.max_age_ms:
            too_old = body.too_old[at]
            for entry, following in _entries_below(part, stored.ages[at], too_old):
                yield from _aged_of(part, prefixes, at, entry, too_old)
                if entry.above <= too_old:  # otherwise the rest of it is not too old yet
                    yield Reached(Goal.AGE, at, following)
    alike: dict[tuple[int, Position], set[int]] = {}  # policies with the same age usually share a position, and a walk
    for at, policy in enumerate(prefixes.policies):
        if policy.keep_newest:
            alike.setdefault((min(body.expired[at], gathered), stored.tombstones[at]), set()).add(at)
    for (expired, begin), policies in alike.items():
        for entry, following in _entries_below(part, begin, expired):
            yield from _tombstones_of(part, prefixes, policies, entry, expired, (following.segment, gathered))
            if entry.above <= expired:
                yield from (Reached(Goal.TOMBSTONES, at, following) for at in policies)


def _entries_below(part: LogPart, begin: Position, end: int) -> Iterator[tuple[GatheringEntry, Position]]:
    """The entries from `begin` on that have records below `end`. The last one may have later records, too."""
    for entry, following in _entries(part, begin):
        if len(entry.numbers) and int(entry.numbers[0]) >= end:
            break
        yield entry, following
        if entry.above > end:
            break


def _entries(part: LogPart, begin: Position) -> Iterator[tuple[GatheringEntry, Position]]:
    """The entries from `begin` on, each with the position behind it. Earlier entries are not read: the entries of a
    segment do not overlap, and the row of an entry has its first number. An entry may begin before the position and
    reach beyond it, since a crash may undo a gathering but not the position, and the next gathering has more
    records."""
    for segment in part.stored_segments():
        if segment < begin.segment:
            continue
        number = begin.number if segment == begin.segment else 0
        first = entries.first_reaching(part.store, segment, number)
        for row in list(part.store.keys("log", first, rows.entry(segment + 1, 0))):
            value = part.store.get("log", row)
            if value is not None and (entry := entries.unpacked(value)).above > number:
                yield entry, Position(segment, entry.above)


def _newest_of(part: LogPart, prefixes: _Prefixes, entry: GatheringEntry) -> Iterator[Step]:
    """The starts that the entry's records give to its keys, of which some newest ones are kept."""
    order = np.argsort(entry.codes, kind="stable")
    codes, firsts, counts = np.unique(entry.codes[order], return_index=True, return_counts=True)
    numbers, tombstones = entry.numbers[order], entry.last_tombstones()
    for code, first, count in zip(codes.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        key = entry.keys[code]
        policy = prefixes.policy_of(key)
        keep = prefixes.policies[policy].keep_newest if policy >= 0 else 0
        key_numbers = numbers[first : first + count]
        if not keep:
            yield None
        elif (start := _start_of(part, key, key_numbers, keep, tombstones.get(code))) is not None:
            yield key, start
        else:
            yield None


def _start_of(part: LogPart, key: bytes, numbers: NDArray[np.uint64], keep: int, tombstone: int | None) -> int | None:
    """The new start of a key; None if no record is to be removed. `numbers`: those of the key in an entry, among them
    the last `tombstone` if there is one."""
    if tombstone is not None:
        numbers = numbers[int(np.searchsorted(numbers, np.uint64(tombstone))) :]
    if len(numbers) > keep:
        return int(numbers[-keep])
    if tombstone is not None:
        keep = len(numbers)  # no record before the tombstone is kept
    return _start_before(part, key, int(numbers[0]), keep - len(numbers))


def _tombstones_of(
    part: LogPart,
    prefixes: _Prefixes,
    policies: set[int],
    entry: GatheringEntry,
    expired: int,
    later: tuple[int, int],
) -> Iterator[Step]:
    """The starts that remove the entry's tombstones that are below `expired` and the newest records of their keys. Only
    keys with one of these policies are examined. `later`: the first segment that newer records may be in, and the
    number up to which they count."""
    for code, number in entry.last_tombstones().items():
        key = entry.keys[code]
        is_due = number < expired and part.starts.all.get(key, 0) <= number and prefixes.policy_of(key) in policies
        yield (key, number + 1) if is_due and not _has_newer(part, key, number, *later) else None


def _aged_of(part: LogPart, prefixes: _Prefixes, policy: int, entry: GatheringEntry, too_old: int) -> Iterator[Step]:
    """The starts of the policy's keys that have records in the entry that are too old."""
    for code in np.unique(entry.codes[entry.numbers < np.uint64(too_old)]).tolist():
        key = entry.keys[code]
        if part.starts.all.get(key, 0) < too_old and prefixes.policy_of(key) == policy:
            yield key, too_old
        else:
            yield None


def _start_before(part: LogPart, key: bytes, before: int, keep: int) -> int | None:
    """The number of the first of the newest `keep` stored records of the key below `before`, or `before` itself if
    `keep` is 0; None if the key has no older records."""
    start, least = before, part.starts.all.get(key, 0)
    for segment in reversed(part.stored_segments()):
        head = rows.runs_of(segment, key)
        for _, packed in part.store.scan("log", head, head + rows.sequence_bytes(before), reverse=True):
            numbers = unpacked(packed).between(least, before).sequences
            if len(numbers) > keep:
                return int(numbers[-keep]) if keep else start
            if len(numbers):
                start, keep = int(numbers[0]), keep - len(numbers)
    return None


def _has_newer(part: LogPart, key: bytes, number: int, first_segment: int, end: int) -> bool:
    """Whether the key has a stored record with a higher number, below `end`, in this segment or a later one."""
    for segment in part.stored_segments():
        if segment < first_segment:
            continue
        head = rows.runs_of(segment, key)
        for _, packed in part.store.scan("log", head, head + rows.sequence_bytes(end), reverse=True):
            run = unpacked(packed)
            if len(run.between(number + 1, end).sequences):
                return True
            if int(run.sequences[0]) <= number:
                break  # earlier runs are below it
    return False


def run(part: LogPart, body: PoliciesBody) -> bool:
    """Run a slice of a pass; see `PoliciesBody`. A new pass gathers what is in memory first. Returns whether there is
    more to do. Raises Unavailable."""
    with part.policy_lock:
        policy_pass = part.policy_pass
        if body.is_new or not isinstance(policy_pass, PolicyPass) or not policy_pass.is_under(body.policies):
            with part.lock:
                part.closed_below(body.closed)
            part.gather()
            policy_pass = PolicyPass(part, body)
        part.policy_pass = None  # if the slice fails, the next one begins a new pass
        more = policy_pass.slice()
        if more:
            part.policy_pass = policy_pass
        return more
