"""Reads of one shard's log: one key in order, keys with a prefix in the order of sequence numbers, keys, counts.

Reads take no lock: rows above the range's end are not looked at, and hidden ones are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.messages.log import SEQUENCE_BYTES, Entry, Page, Range, Records, Span
from worker.logs import rows
from worker.storage import Store

PAGE_BYTES_MAX = 4 << 20
"""A page ends with the record that takes it past this, so it may be larger by one record."""
CHECK_EVERY = 4096
"""Rows between looks at the deadline."""
ENTRY_RECORDS_MAX = 50_000
"""Records a merged page looks at before it answers with what it has, however few had the prefix."""

_ENTRY = msgspec.msgpack.Decoder(Entry)

Check = Callable[[], None]
"""Raises when the request's time is over."""


def scan(store: Store, span: Range, key: bytes, limit: int, reverse: bool) -> Page:
    """Records of the key, at most `limit`."""
    sequences: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for row, value in _key_rows(store, span, key, reverse):
        if span.hidden and _hidden(rows.sequence_of(row), span.hidden):
            continue
        sequences.append(row[-SEQUENCE_BYTES:])
        values.append(value)
        size += len(value)
        if len(values) >= limit or size >= PAGE_BYTES_MAX:
            break
    else:
        all_records = Records.of(rows.sequences(b"".join(sequences)), values)
        return Page(all_records, span.start if reverse else span.end, True)
    last = int.from_bytes(sequences[-1], "big")
    return Page(Records.of(rows.sequences(b"".join(sequences)), values), last if reverse else last + 1, False)


def _key_rows(store: Store, span: Range, key: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
    segments = range(span.first_segment, span.last_segment + 1)
    start, end = rows.sequence_bytes(span.start), rows.sequence_bytes(span.end)
    for segment in reversed(segments) if reverse else segments:
        head = rows.records_of(segment, key)
        yield from store.scan("log", head + start, head + end, reverse=reverse)


def merge(store: Store, span: Range, prefix: bytes, limit: int, check: Check) -> Page:
    """As `scan`, for all keys with the prefix, ascending by sequence number."""
    found: list[tuple[int, int, bytes]] = []
    looked_at = 0
    upto, done = span.end, True
    for segment, group, entry in _entries(store, span):
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
        found = [item for item in found if not _hidden(item[0], span.hidden)]
    return _page(store, found, limit, upto, done)


def _page(store: Store, found: list[tuple[int, int, bytes]], limit: int, upto: int, done: bool) -> Page:
    sequences: list[int] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for number, segment, key in found:
        if len(values) >= limit or size >= PAGE_BYTES_MAX:
            upto, done = number, False
            break
        value = store.get("log", rows.records_of(segment, key) + rows.sequence_bytes(number))
        if value is not None:  # a segment may be dropped meanwhile
            sequences.append(number)
            keys.append(key)
            values.append(value)
            size += len(value)
    return Page(Records.of(np.array(sequences, np.uint64), values, keys), upto, done)


def _entries(store: Store, span: Range) -> Iterator[tuple[int, int, Entry]]:
    """(segment, group, entry) of the groups that may hold records of the range, ascending."""
    first = rows.entry(span.first_segment, span.start)
    for row, _ in store.scan("log", rows.ENTRY, first, reverse=True):
        # The group that begins before the range may reach into it.
        first = max(row, rows.entry(span.first_segment, 0))
        break
    last = rows.entry(span.last_segment, span.end)
    for row, frame in store.scan("log", first, last):
        yield rows.segment_of(row), rows.sequence_of(row), _ENTRY.decode(frame)


def keys(store: Store, span: Range, prefix: bytes, after: bytes | None, limit: int, check: Check) -> list[bytes]:
    """Distinct keys with records in the range, ascending, at most `limit`."""
    segments = range(span.first_segment, span.last_segment + 1)
    merged = heapq.merge(*(_segment_keys(store, span, segment, prefix, after, check) for segment in segments))
    found: list[bytes] = []
    for key in merged:
        if not found or found[-1] != key:
            if len(found) == limit:
                break
            found.append(key)
    return found


def _segment_keys(
    store: Store, span: Range, segment: int, prefix: bytes, after: bytes | None, check: Check
) -> Iterator[bytes]:
    at, end = rows.prefix_range(segment, prefix)
    if after is not None:
        at = max(at, rows.past_key(segment, after))
    while True:
        row = next(store.keys("log", at, end), None)
        if row is None:
            return
        check()
        key = rows.key_of(row)
        if _has_records(store, span, segment, key, row):
            yield key
        at = rows.past_key(segment, key)


def _has_records(store: Store, span: Range, segment: int, key: bytes, first: bytes) -> bool:
    number = rows.sequence_of(first)
    if span.start <= number < span.end and not span.hidden:
        return True
    head = rows.records_of(segment, key)
    within = store.keys("log", head + rows.sequence_bytes(span.start), head + rows.sequence_bytes(span.end))
    return any(not _hidden(rows.sequence_of(row), span.hidden) for row in within)


def count_key(store: Store, span: Range, key: bytes, check: Check) -> int:
    """How many records of the key lie in the range, exactly."""
    total = 0
    start, end = rows.sequence_bytes(span.start), rows.sequence_bytes(span.end)
    for segment in range(span.first_segment, span.last_segment + 1):
        head = rows.records_of(segment, key)
        chunk: list[bytes] = []
        for row in store.keys("log", head + start, head + end):
            chunk.append(row[-SEQUENCE_BYTES:])
            if len(chunk) == CHECK_EVERY:
                total += _count(rows.sequences(b"".join(chunk)), span)
                chunk.clear()
                check()
        total += _count(rows.sequences(b"".join(chunk)), span)
    return total


def count_prefix(store: Store, span: Range, prefix: bytes, check: Check) -> int:
    """How many records of keys with the prefix lie in the range, exactly; read from the entries."""
    total = 0
    for _, _, entry in _entries(store, span):
        check()
        numbers = rows.sequences(entry.sequences)
        if prefix:
            chosen = [key.startswith(prefix) for key in entry.keys]
            numbers = numbers[np.array(chosen, np.bool_)]
        total += _count(numbers, span)
    return total


def _count(numbers: NDArray[np.uint64], span: Range) -> int:
    kept = (numbers >= np.uint64(span.start)) & (numbers < np.uint64(span.end))
    for start, end in span.hidden:
        kept &= (numbers < np.uint64(start)) | (numbers >= np.uint64(end))
    return int(np.count_nonzero(kept))


def _hidden(number: int, hidden: list[Span]) -> bool:
    return any(start <= number < end for start, end in hidden)
