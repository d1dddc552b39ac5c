"""Policies by prefix of keys: of each key, only the newest records are kept, or those that are not too old.

A pass looks at the entries that were gathered since the last one, and raises the starts of keys that have more records
than their policy allows (worker.logs.trimming); the removal follows from that. It looks only at records that are
settled: a newer record that may still be revoked must not make an older one go. For each policy with an age, it then
looks at the entries that have become too old since the last pass.

Where the next pass begins is stored with the starts, in one write. A pass under other policies begins with the first
entry.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

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
"""With so many starts, and their bytes, whose records are not removed yet, a pass waits: deletions by users find room.
A slice adds less than what is left then."""


class Position(NamedTuple):
    """Every entry of earlier segments, and those of this one with no number from `number` on, have been looked at."""

    segment: int
    number: int


class Reached(NamedTuple):
    """How far a pass is: with those policies that keep the newest records (`policy` −1), or with the age of one."""

    policy: int
    position: Position


class _Stored(msgspec.Struct, array_like=True):
    """`newest`, and `ages` of each policy: the positions."""

    policies: list[KeyPolicy]
    newest: Position
    ages: list[Position]


_STORED = msgspec.msgpack.Decoder(_Stored)
_BEGIN = Position(0, 0)
Step = Reached | tuple[bytes, int] | None
"""How far the pass is; a key and its new start; or one key more that has nothing to remove."""


class PolicyPass:
    """A pass over one shard that has begun. Not safe for threads."""

    def __init__(self, part: LogPart, policies: Sequence[KeyPolicy], too_old: Sequence[int], upto: int) -> None:
        self._part = part
        self._policies = list(policies)
        self._has_moved = False
        value = part.store.get("log", rows.POLICIES)
        stored = _STORED.decode(value) if value is not None else None
        if stored is None or stored.policies != self._policies:
            stored = _Stored(self._policies, _BEGIN, [_BEGIN] * len(self._policies))
        self._stored = stored
        self._steps = _steps(part, _Prefixes(self._policies), stored, too_old, min(upto, part.gathered))

    def is_under(self, policies: Sequence[KeyPolicy]) -> bool:
        return self._policies == list(policies)

    def slice(self) -> bool:
        """Go on for about SLICE_S. Returns whether there is more to do. Raises Unavailable; the pass is over then."""
        starts = self._part.starts
        if len(starts) > WAITING_MAX or starts.bytes > WAITING_BYTES_MAX:
            return True
        wanted: dict[bytes, int] = {}
        size, give_up, more = 0, time.monotonic() + SLICE_S, False
        for step in self._steps:
            if isinstance(step, Reached):
                self._move(step)
            elif step is not None:
                wanted[step[0]] = step[1]
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
        if reached.policy < 0:
            self._stored.newest = reached.position
        else:
            self._stored.ages[reached.policy] = reached.position


class _Prefixes:
    """Finds the policy of a key."""

    def __init__(self, policies: Sequence[KeyPolicy]) -> None:
        self.policies = policies
        self._longest_first = sorted(range(len(policies)), key=lambda at: -len(policies[at].prefix))

    def policy_of(self, key: bytes) -> int:
        """The policy with the longest prefix of the key; −1 without one."""
        return next((at for at in self._longest_first if key.startswith(self.policies[at].prefix)), -1)


def _steps(
    part: LogPart, prefixes: _Prefixes, stored: _Stored, too_old: Sequence[int], gathered: int
) -> Iterator[Step]:
    """The steps of a pass over entries whose numbers are all below `gathered`, those that were looked at left out."""
    if any(policy.keep_newest for policy in prefixes.policies):
        for entry, following in _entries(part, stored.newest):
            if entry.above > gathered:
                break
            yield from _newest_of(part, prefixes, entry)
            yield Reached(-1, following)
    for at, policy in enumerate(prefixes.policies):
        if not policy.max_age_ms:
            continue
        for entry, following in _entries(part, stored.ages[at]):
            if len(entry.numbers) and int(entry.numbers[0]) >= too_old[at]:
                break
            yield from _aged_of(part, prefixes, at, entry, too_old[at])
            if entry.above > too_old[at]:
                break  # the rest of it is not too old yet
            yield Reached(at, following)


def _entries(part: LogPart, begin: Position) -> Iterator[tuple[GatheringEntry, Position]]:
    """The entries from `begin` on; each with the position behind it."""
    for segment in part.stored_segments():
        if segment < begin.segment:
            continue
        number = begin.number if segment == begin.segment else 0
        head = rows.ENTRY + rows.segment_bytes(segment)
        for row in list(part.store.keys("log", head, rows.after(head))):
            value = part.store.get("log", row)
            if value is not None and (entry := entries.unpacked(value)).above > number:
                yield entry, Position(segment, entry.above)


def _newest_of(part: LogPart, prefixes: _Prefixes, entry: GatheringEntry) -> Iterator[Step]:
    """The starts that the entry's records give to its keys, of which some newest ones are kept."""
    order = np.argsort(entry.codes, kind="stable")
    codes, firsts, counts = np.unique(entry.codes[order], return_index=True, return_counts=True)
    for code, first, count in zip(codes.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        key = entry.keys[code]
        policy = prefixes.policy_of(key)
        keep = prefixes.policies[policy].keep_newest if policy >= 0 else 0
        oldest = int(entry.numbers[order[first]])
        if not keep:
            yield None
        elif count > keep:
            yield key, int(entry.numbers[order[first + count - keep]])
        elif (start := _start_before(part, key, oldest, keep - count)) is not None:
            yield key, start
        else:
            yield None


def _aged_of(part: LogPart, prefixes: _Prefixes, policy: int, entry: GatheringEntry, too_old: int) -> Iterator[Step]:
    """The starts of the policy's keys that have records in the entry that are too old."""
    for code in np.unique(entry.codes[entry.numbers < np.uint64(too_old)]).tolist():
        key = entry.keys[code]
        if part.starts.all.get(key, 0) < too_old and prefixes.policy_of(key) == policy:
            yield key, too_old
        else:
            yield None


def _start_before(part: LogPart, key: bytes, before: int, keep: int) -> int | None:
    """The number from which on the newest `keep` of the key's stored records below `before` begin, if there are older
    ones; `before` itself for 0."""
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


def run(part: LogPart, body: PoliciesBody) -> bool:
    """A slice of a pass; see `PoliciesBody`. A new pass gathers what is in memory first. Returns whether there is more
    to do. Raises Unavailable."""
    with part.policy_lock:
        going_on = part.policy_pass
        if body.is_new or not isinstance(going_on, PolicyPass) or not going_on.is_under(body.policies):
            with part.lock:
                part.closed_below(body.closed)
            part.gather()
            going_on = PolicyPass(part, body.policies, body.too_old, body.upto)
        part.policy_pass = None  # so it stays if the slice fails: the next one begins again
        more = going_on.slice()
        if more:
            part.policy_pass = going_on
        return more
