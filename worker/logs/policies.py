"""Policies by prefix of keys: of each key, only the newest records are kept.

A pass looks at the entries that were gathered since the last one, and raises the starts of keys that have more records
than their policy allows (worker.logs.trimming); the removal follows from that. It looks only at records that are
settled: a newer record that may still be revoked must not make an older one go.

Where the next pass begins is stored with the starts, in one write. A pass under other policies begins with the first
entry.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from shared.messages.log import KeyPolicy
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


@dataclass(frozen=True, slots=True)
class Position:
    """Every entry of earlier segments, and those of this one with no number from `number` on, have been looked at."""

    segment: int
    number: int


class _Stored(msgspec.Struct, array_like=True):
    policies: list[KeyPolicy]
    segment: int
    number: int


_STORED = msgspec.msgpack.Decoder(_Stored)
Step = Position | tuple[bytes, int] | None
"""How far the pass is; a key and its new start; or one key more that has nothing to remove."""


class PolicyPass:
    """A pass over one shard that has begun. Not safe for threads."""

    def __init__(self, part: LogPart, policies: Sequence[KeyPolicy], upto: int) -> None:
        self._part = part
        self._policies = list(policies)
        self._reached: Position | None = None
        value = part.store.get("log", rows.POLICIES)
        stored = _STORED.decode(value) if value is not None else None
        begin = Position(0, 0)
        if stored is not None and stored.policies == self._policies:
            begin = Position(stored.segment, stored.number)
        self._steps = _steps(part, self._policies, begin, min(upto, part.gathered))

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
            if isinstance(step, Position):
                self._reached = step
            elif step is not None:
                wanted[step[0]] = step[1]
                size += len(step[0]) + START_BYTES
            if time.monotonic() > give_up or len(wanted) >= KEYS_A_SLICE or size >= KEY_BYTES_A_SLICE:
                more = True
                break
        if wanted or self._reached is not None:
            trimming.put_starts(self._part, wanted, self._marks())
            self._part.keeper.cleaner.wake()
        return more

    def _marks(self) -> dict[bytes, bytes]:
        reached, self._reached = self._reached, None
        if reached is None:
            return {}
        return {rows.POLICIES: msgspec.msgpack.encode(_Stored(self._policies, reached.segment, reached.number))}


def _steps(part: LogPart, policies: Sequence[KeyPolicy], begin: Position, end: int) -> Iterator[Step]:
    """The steps of a pass over the entries from `begin` on whose numbers are all below `end`."""
    prefixes = sorted(((policy.prefix, policy.keep_newest) for policy in policies), key=lambda one: -len(one[0]))
    for segment in part.stored_segments():
        if segment < begin.segment:
            continue
        head = rows.ENTRY + rows.segment_bytes(segment)
        for row in list(part.store.keys("log", head, rows.after(head))):
            value = part.store.get("log", row)
            if value is None:
                continue
            entry = entries.unpacked(value)
            if entry.above > end:
                return
            if len(entry.numbers) and int(entry.numbers[-1]) >= (begin.number if segment == begin.segment else 0):
                yield from _of_entry(part, prefixes, entry)
            yield Position(segment, entry.above)


def _of_entry(part: LogPart, prefixes: Sequence[tuple[bytes, int]], entry: GatheringEntry) -> Iterator[Step]:
    """The starts that the entry's records give to its keys. `prefixes`: the longest first, with how many to keep."""
    order = np.argsort(entry.codes, kind="stable")
    codes, firsts, counts = np.unique(entry.codes[order], return_index=True, return_counts=True)
    for code, first, count in zip(codes.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        key = entry.keys[code]
        keep = next((newest for prefix, newest in prefixes if key.startswith(prefix)), None)
        if keep is None:
            yield None
            continue
        oldest = int(entry.numbers[order[first]])
        if count > keep:
            yield key, int(entry.numbers[order[first + count - keep]])
        elif (start := _start_before(part, key, oldest, keep - count)) is not None:
            yield key, start
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


def run(part: LogPart, policies: Sequence[KeyPolicy], upto: int, closed: int, is_new: bool) -> bool:
    """A slice of a pass over the records below `upto`, which are settled. `is_new`: begin a pass, and gather what is in
    memory before. Returns whether there is more to do. `closed`: see `AppendBody`. Raises Unavailable."""
    with part.policy_lock:
        if is_new or not isinstance(part.policy_pass, PolicyPass) or not part.policy_pass.is_under(policies):
            with part.lock:
                part.closed_below(closed)
            part.gather()
            part.policy_pass = PolicyPass(part, policies, upto)
        try:
            more = part.policy_pass.slice()
        except BaseException:
            part.policy_pass = None
            raise
        if not more:
            part.policy_pass = None
        return more
