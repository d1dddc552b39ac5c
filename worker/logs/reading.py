"""Reads of one shard's log: one key in order, keys with a prefix in the order of sequence numbers, keys, counts.

What has not been gathered is looked at first, then the store: what is gathered meanwhile is in both, and is taken from
the first. Records above the range's end are not looked at, and hidden ones are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import chain

import msgspec
import numpy as np

from shared.messages.log import Entry, Page, Range, Records
from worker.logs import rows
from worker.logs.part import LogPart
from worker.logs.recent import Column, within
from worker.logs.runs import Run, joined, unpacked

PAGE_BYTES_MAX = 4 << 20
"""A page ends with the record that takes it past this, so it may be larger by one record."""
ENTRY_RECORDS_MAX = 50_000
"""Records a merged page looks at before it answers with what it has, however few had the prefix."""

RECENT_RUN_RECORDS = 1024
"""Recent records are made into runs of this many, so that a read makes no more of them than it takes."""

_ENTRY = msgspec.msgpack.Decoder(Entry)

Check = Callable[[], None]
"""Raises when the request's time is over."""


def scan(part: LogPart, span: Range, key: bytes, limit: int, reverse: bool) -> Page:
    """Records of the key, at most `limit`."""
    taken: list[Run] = []
    records = size = 0
    for run in _key_runs(part, span, key, reverse):
        piece = run.reversed() if reverse else run
        piece = piece.fitting(limit - records, PAGE_BYTES_MAX - size)
        taken.append(piece)
        records += len(piece.sequences)
        size += int(piece.ends[-1])
        if records >= limit or size >= PAGE_BYTES_MAX:
            last = int(piece.sequences[-1])
            return Page(joined(taken), last if reverse else last + 1, False)
    return Page(joined(taken), span.start if reverse else span.end, True)


def _key_runs(part: LogPart, span: Range, key: bytes, reverse: bool = False) -> Iterator[Run]:
    """The key's records in the range, in ascending or descending runs, none of them empty."""
    segments = range(span.first_segment, span.last_segment + 1)
    for segment in reversed(segments) if reverse else segments:
        lowest, recent = part.recent(segment, key, span.start, span.end)
        # What is in memory now is above every run that is in the store now.
        end = span.end if lowest is None else min(span.end, lowest)
        stored = _stored_runs(part, segment, key, span.start, end, reverse)
        for run in chain(_recent_runs(recent, reverse), stored) if reverse else chain(stored, _recent_runs(recent)):
            cut = run.without(span.hidden) if span.hidden else run
            if len(cut.sequences):
                yield cut


def _recent_runs(recent: Column, reverse: bool = False) -> Iterator[Run]:
    starts = range(0, len(recent), RECENT_RUN_RECORDS)
    for start in reversed(starts) if reverse else starts:
        yield recent.cut(start, start + RECENT_RUN_RECORDS).run()


def _stored_runs(part: LogPart, segment: int, key: bytes, start: int, end: int, reverse: bool = False) -> Iterator[Run]:
    """The records with start ≤ number < end that are in runs."""
    if start >= end:
        return
    head = rows.runs_of(segment, key)
    low = head
    if start:
        # The run that begins below the range may reach into it.
        for row, _ in part.store.scan("log", head, head + rows.sequence_bytes(start), reverse=True):
            low = row
            break
    for _, packed in part.store.scan("log", low, head + rows.sequence_bytes(end), reverse=reverse):
        yield unpacked(packed).between(start, end)


def merge(part: LogPart, span: Range, prefix: bytes, limit: int, check: Check) -> Page:
    """As `scan`, for all keys with the prefix, ascending by sequence number."""
    found: list[tuple[int, int, bytes]] = []
    looked_at = 0
    upto, done = span.end, True
    for segment, group, entry in _entries(part, span):
        if len(found) >= limit or looked_at >= ENTRY_RECORDS_MAX:
            upto, done = group, False
            break
        check()
        looked_at += len(entry.keys)
        numbers = rows.sequences(entry.sequences).tolist()
        found += [
            (number, segment, key)
            for number, key in zip(numbers, entry.keys, strict=True)
            if key.startswith(prefix) and span.start <= number < span.end
        ]
    if span.hidden:
        found = [item for item in found if not within(item[0], span.hidden)]
    return _page(part, span, found, limit, upto, done)


def _page(part: LogPart, span: Range, found: list[tuple[int, int, bytes]], limit: int, upto: int, done: bool) -> Page:
    values = _Values(part, span.end)
    sequences: list[int] = []
    keys: list[bytes] = []
    taken: list[bytes] = []
    size = 0
    for number, segment, key in found:
        if len(taken) >= limit or size >= PAGE_BYTES_MAX:
            upto, done = number, False
            break
        value = values.get(segment, key, number)
        if value is not None:  # a segment may be dropped meanwhile
            sequences.append(number)
            keys.append(key)
            taken.append(value)
            size += len(value)
    return Page(Records.of(np.array(sequences, np.uint64), taken, keys), upto, done)


class _Values:
    """Values of single records, asked for in ascending order: of each key, the run they are in is kept."""

    def __init__(self, part: LogPart, end: int) -> None:
        self._part = part
        self._end = end
        self._places: dict[tuple[int, bytes], tuple[Run, Iterator[Run]]] = {}

    def get(self, segment: int, key: bytes, number: int) -> bytes | None:
        place = self._places.get((segment, key))
        if place is None:
            runs = _key_runs(self._part, Range(segment, segment, number, self._end), key)
            first = next(runs, None)
            if first is None:
                return None
            place = (first, runs)
        run, following = place
        while int(run.sequences[-1]) < number:
            further = next(following, None)
            if further is None:
                return None
            run = further
        self._places[segment, key] = (run, following)
        at = run.find(number)
        return None if at is None else run.value(at)


def _entries(part: LogPart, span: Range) -> Iterator[tuple[int, int, Entry]]:
    """(segment, group, entry) of the groups that may hold records of the range, ascending."""
    first = rows.entry(span.first_segment, span.start)
    for row, _ in part.store.scan("log", rows.ENTRY, first, reverse=True):
        # The group that begins before the range may reach into it.
        first = max(row, rows.entry(span.first_segment, 0))
        break
    last = rows.entry(span.last_segment, span.end)
    for row, frame in part.store.scan("log", first, last):
        yield rows.segment_of(row), rows.sequence_of(row), _ENTRY.decode(frame)


def keys(part: LogPart, span: Range, prefix: bytes, after: bytes | None, limit: int, check: Check) -> list[bytes]:
    """Distinct keys with records in the range, ascending, at most `limit`."""
    found: list[bytes] = []
    sources: list[Iterator[bytes]] = []
    for segment in range(span.first_segment, span.last_segment + 1):
        recent = (key for key in part.recent_keys(segment, prefix) if after is None or key > after)
        candidates = heapq.merge(recent, _stored_keys(part, segment, prefix, after))
        sources.append(_having(part, span, segment, candidates, check))
    for key in heapq.merge(*sources):
        if not found or found[-1] != key:
            if len(found) == limit:
                break
            found.append(key)
    return found


def _stored_keys(part: LogPart, segment: int, prefix: bytes, after: bytes | None) -> Iterator[bytes]:
    at, end = rows.prefix_range(segment, prefix)
    if after is not None:
        at = max(at, rows.past_key(segment, after))
    while (row := next(part.store.keys("log", at, end), None)) is not None:
        key = rows.key_of(row)
        yield key
        at = rows.past_key(segment, key)


def _having(part: LogPart, span: Range, segment: int, candidates: Iterator[bytes], check: Check) -> Iterator[bytes]:
    """Those of the keys that have a record in the range."""
    within_segment = Range(segment, segment, span.start, span.end, span.hidden)
    for key in candidates:
        check()
        if next(_key_runs(part, within_segment, key), None) is not None:
            yield key


def count_key(part: LogPart, span: Range, key: bytes, check: Check) -> int:
    """How many records of the key lie in the range, exactly."""
    total = 0
    for run in _key_runs(part, span, key):
        total += len(run.sequences)
        check()
    return total


def count_prefix(part: LogPart, span: Range, prefix: bytes, check: Check) -> int:
    """How many records of keys with the prefix lie in the range, exactly; read from the entries."""
    total = 0
    for _, _, entry in _entries(part, span):
        check()
        numbers = rows.sequences(entry.sequences)
        kept = (numbers >= np.uint64(span.start)) & (numbers < np.uint64(span.end))
        for start, end in span.hidden:
            kept &= (numbers < np.uint64(start)) | (numbers >= np.uint64(end))
        if prefix:
            kept &= np.fromiter((key.startswith(prefix) for key in entry.keys), np.bool_, len(entry.keys))
        total += int(np.count_nonzero(kept))
    return total
