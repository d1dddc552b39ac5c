"""Reads of one shard's log: the records of one key in order, those of a prefix by sequence number, keys, and counts.

A read takes a view of memory first, and then reads the store. Records that are gathered meanwhile are in both, and are
read from the view. Records outside of the range are not read; hidden ones, and those below the start of their key, are
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from shared.log.slots import SlotFilter
from shared.messages.log import Range
from shared.messages.log_pages import NO_NUMBERS, Page, Records
from shared.process.processor_time import UNBOUNDED, ProcessorTime
from worker.logs import entries, rows
from worker.logs.entries import GatheringEntry
from worker.logs.examination import Examination
from worker.logs.part import LogPart
from worker.logs.recent import RecentSnapshot, outside
from worker.logs.runs import RecordRun, joined, unpacked
from worker.logs.view import LogView

PAGE_BYTES_MAX = 4 << 20
"""A page ends with the record that reaches this size, so it may be larger by one record."""
LOOKED_AT_MAX = 50_000
"""A merged page ends after examining this many records, however few of them had the prefix."""
RECENT_RUN_RECORDS = 1024
"""Recent records are read in runs of this size, so that a read copies few records that it does not return."""
LIGHT_PIECE_RECORDS = 32
"""A page whose CPU time is bounded is read in pieces of this size at first, each twice as large as the one before it,
so that it exceeds the bound by little: a record of a key of its own takes up to 0.4 ms."""

Check = Callable[[], None]
"""Raises when the request's time is up."""
Runs = Iterator[RecordRun]


def scan(part: LogPart, span: Range, key: bytes, limit: int, reverse: bool) -> Page:
    """Records of the key, ascending or in reverse, at most `limit`."""
    page_runs: list[RecordRun] = []
    records = size = 0
    for run in _key_runs(part, part.view(), span, key, reverse):
        piece = run.reversed() if reverse else run
        piece = piece.fitting(limit - records, PAGE_BYTES_MAX - size)
        page_runs.append(piece)
        records += len(piece.sequences)
        size += int(piece.ends[-1])
        if records >= limit or size >= PAGE_BYTES_MAX:
            last = int(piece.sequences[-1])
            return Page(joined(page_runs), last if reverse else last + 1, False)
    return Page(joined(page_runs), span.start if reverse else span.end, True)


def _key_runs(part: LogPart, view: LogView, span: Range, key: bytes, reverse: bool = False) -> Runs:
    """The key's records in the range as runs in ascending or (`reverse`) descending order, none of them empty. The
    records of each run ascend."""
    segments = range(span.first_segment, span.last_segment + 1)
    span_start = max(span.start, view.starts.get(key, 0))
    for segment in reversed(segments) if reverse else segments:
        recent = view.segments.get(segment, ())
        older = stored_runs(part, segment, key, span_start, min(span.end, view.gathered), reverse)
        snapshots = reversed(recent) if reverse else recent
        newer = (run for recent in snapshots for run in _recent_runs(recent, span_start, span.end, key, reverse))
        for run in chain(newer, older) if reverse else chain(older, newer):
            cut = run.without(span.hidden) if span.hidden else run
            if len(cut.sequences):
                yield cut


def _recent_runs(recent: RecentSnapshot, start: int, end: int, key: bytes, reverse: bool) -> Runs:
    record_rows = recent.cut(recent.rows_of(key), start, end)
    starts = range(0, len(record_rows), RECENT_RUN_RECORDS)
    for start in reversed(starts) if reverse else starts:
        yield recent.run(record_rows[start : start + RECENT_RUN_RECORDS])


def stored_runs(part: LogPart, segment: int, key: bytes, start: int, end: int, reverse: bool = False) -> Runs:
    """The key's runs in the store, cut to start ≤ number < end; a run may be empty."""
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


def search_key(
    part: LogPart,
    span: Range,
    key: bytes,
    limit: int,
    reverse: bool,
    search: Examination,
    processor: ProcessorTime = UNBOUNDED,
) -> Page:
    """As `scan`, but only the records that the search finds. The page may end early, and says how far it has come; it
    does when the time of `processor` is used up."""
    page_records: list[Records] = []
    records = size = 0
    runs = _key_runs(part, part.view(), span, key, reverse)
    for examined in _pieces(runs, reverse, LIGHT_PIECE_RECORDS if processor.is_bounded else 0):
        matching = search.matching(examined)
        fitting = _fitting(matching, limit - records, PAGE_BYTES_MAX - size)
        page_records.append(matching.cut(0, fitting))
        records += fitting
        size += int(page_records[-1].value_lengths.sum())
        if records >= limit or size >= PAGE_BYTES_MAX:
            last = int(matching.sequences[fitting - 1])
        elif search.is_over or processor.is_over():
            last = int(examined.sequences[-1])
        else:
            continue
        return Page(Records.joined(page_records), last if reverse else last + 1, False)
    return Page(Records.joined(page_records), span.start if reverse else span.end, True)


def _pieces(runs: Runs, reverse: bool, size: int) -> Iterator[Records]:
    """The records of the runs, in reverse if they descend: run by run, or in pieces of `size` records at first, each
    twice as large as the one before it (0: whole runs)."""
    for run in runs:
        records, low = joined([run.reversed() if reverse else run]), 0
        while low < len(records):
            high = low + size if size else len(records)
            yield records.cut(low, high)
            low, size = high, 2 * size


def merge(
    part: LogPart,
    span: Range,
    prefix: bytes,
    limit: int,
    check: Check,
    search: Examination | None = None,
    slots: SlotFilter | None = None,
    page_bytes: int = PAGE_BYTES_MAX,
    processor: ProcessorTime = UNBOUNDED,
) -> Page:
    """As `scan`, for all keys with the prefix, ascending by sequence number. With `search`, only what it finds; with
    `slots`, only what they let through. The page ends early when the time of `processor` is used up."""
    view = part.view()
    page_records: list[Records] = []
    records = size = looked_at = 0
    piece_records = RECENT_RUN_RECORDS if search else limit
    if processor.is_bounded:
        piece_records = min(piece_records, LIGHT_PIECE_RECORDS)
    for piece, upto, seen in _merged(part, view, span, prefix, check, search, slots, piece_records):
        looked_at += seen
        fitting = _fitting(piece, limit - records, page_bytes - size)
        page_records.append(piece.cut(0, fitting))
        records += fitting
        size += int(page_records[-1].value_lengths.sum())
        if fitting < len(piece):
            return Page(Records.joined(page_records), int(piece.sequences[fitting]), False)
        is_over = search.is_over if search else looked_at >= LOOKED_AT_MAX
        if records >= limit or size >= page_bytes or is_over or processor.is_over():
            return Page(Records.joined(page_records), upto, False)
    return Page(Records.joined(page_records), span.end, True)


def _fitting(piece: Records, records: int, size_bytes: int) -> int:
    """How many records from the beginning of `piece` fit into both limits; the first always fits the limit of bytes."""
    return min(records, len(piece), 1 + int(np.searchsorted(np.cumsum(piece.value_lengths), size_bytes)))


def _merged(
    part: LogPart,
    view: LogView,
    span: Range,
    prefix: bytes,
    check: Check,
    search: Examination | None = None,
    slots: SlotFilter | None = None,
    size: int = RECENT_RUN_RECORDS,
) -> Iterator[tuple[Records, int, int]]:
    """(records with the prefix, the number below which they are complete, how many records were examined), ascending.
    Each number is above the one before it and within the range. With `search`, only the records that it finds; with
    `slots`, only what they let through. `size`: how many records are read at once, at first."""
    stored = _stored(view, span)
    segments = span.first_segment, span.last_segment
    for row, entry in entries.scan(part.store, segments, stored.start, stored.end):
        pieces = _of_entry(part, view, stored, row, entry, prefix, slots, size)
        if search is not None:
            pieces = _matching_of_entry(part, view, stored, row, entry, prefix, search, size)
        for page_records, upto, seen in pieces:
            check()
            yield page_records, upto, seen
    for segment in range(span.first_segment, span.last_segment + 1):
        for recent in view.segments.get(segment, ()):
            check()
            chosen = recent_rows(recent, view, span, prefix, slots)
            for first in range(0, len(chosen), size):
                piece = chosen[first : first + size]
                page_records = recent.records(piece)
                page_records = search.matching(page_records) if search else page_records
                yield page_records, int(recent.numbers[piece[-1]]) + 1, len(piece)


def recent_rows(
    recent: RecentSnapshot, view: LogView, span: Range, prefix: bytes, slots: SlotFilter | None = None
) -> NDArray[np.int64]:
    """The rows of the range whose keys have the prefix and which `slots` let through, without those that are hidden or
    gone, ascending by number."""
    chosen = recent.with_prefix(recent.rows(span.start, span.end, span.hidden), prefix)
    if slots is not None:
        chosen = chosen[recent.numbers[chosen] >= slots.first_of(recent.hashes[chosen])]
    return recent.kept(chosen, view.fresh)


def _stored(view: LogView, span: Range) -> Range:
    """The part of the range that is read from the store. Records that were gathered after the view was taken may be in
    the store too, also in entries of earlier segments; they are read from the view's snapshots."""
    return Range(span.first_segment, span.last_segment, span.start, min(span.end, view.gathered), span.hidden)


def _of_entry(
    part: LogPart,
    view: LogView,
    span: Range,
    row: bytes,
    entry: GatheringEntry,
    prefix: bytes,
    slots: SlotFilter | None = None,
    size: int = RECENT_RUN_RECORDS,
) -> Iterator[tuple[Records, int, int]]:
    """As `_merged`, for one entry, in pieces of `size` records at first, each twice as large as the one before it;
    nothing if the entry is outside of the range."""
    low, high = np.searchsorted(entry.numbers, np.array([span.start, span.end], np.uint64)).tolist()
    if low >= high:
        return
    chosen = _chosen(entry, view, span, prefix, slots)
    first = 0
    while first < len(chosen):
        piece = chosen[first : first + size]
        records, examined = _in_runs(part, rows.segment_of(row), entry, piece)
        if examined < len(piece):
            _note_lost(part, row, np.setdiff1d(entry.numbers[piece], records.sequences))
        yield records, int(entry.numbers[piece[-1]]) + 1, len(piece)
        first, size = first + size, 2 * size
    # Records without the prefix count too: otherwise a rare prefix would make a page read the whole log.
    yield Records.of(NO_NUMBERS, ()), int(entry.numbers[high - 1]) + 1, high - low - len(chosen)


def _matching_of_entry(
    part: LogPart,
    view: LogView,
    span: Range,
    row: bytes,
    entry: GatheringEntry,
    prefix: bytes,
    search: Examination,
    size: int,
) -> Iterator[tuple[Records, int, int]]:
    """As `_of_entry`, but only the records that the search finds. A piece is twice as large as the last one, the first
    of which has `size` records, if the search found little there."""
    low, high = np.searchsorted(entry.numbers, np.array([span.start, span.end], np.uint64)).tolist()
    if low >= high:
        return
    chosen = _chosen(entry, view, span, prefix)
    segment = rows.segment_of(row)
    first = 0
    while first < len(chosen):
        piece = chosen[first : first + size]
        matching, examined = _in_runs(part, segment, entry, piece, search)
        upto = int(entry.numbers[piece[-1]]) + 1
        if examined == len(piece):
            yield matching, upto, len(piece)
        else:  # some have no value in the store: looking up each of them says which
            within = Range(segment, segment, int(entry.numbers[piece[0]]), upto, span.hidden)
            for page_records, upto, seen in _of_entry(part, view, within, row, entry, prefix):
                yield search.matching(page_records), upto, seen
        first += size
        size *= 2 if 4 * len(matching) < len(piece) else 1
    yield Records.of(NO_NUMBERS, ()), int(entry.numbers[high - 1]) + 1, high - low - len(chosen)


def _in_runs(
    part: LogPart,
    segment: int,
    entry: GatheringEntry,
    piece: NDArray[np.int64],
    search: Examination | None = None,
) -> tuple[Records, int]:
    """(the entry's records at these positions, or those that the search finds among them, ascending; how many of the
    positions have a record in the store). Reading whole runs is far faster than looking up each record."""
    by_key: list[Records] = []
    examined = 0
    numbers = entry.numbers[piece]
    for code in np.unique(entry.codes[piece]).tolist():
        for run in stored_runs(part, segment, entry.keys[code], int(numbers[0]), int(numbers[-1]) + 1):
            is_chosen = numbers[np.searchsorted(numbers, run.sequences)] == run.sequences
            records = joined([run])
            records = records if is_chosen.all() else records.taking(np.flatnonzero(is_chosen))
            examined += len(records)
            by_key.append((search.matching(records) if search else records).under(entry.keys[code]))
    records = Records.joined(by_key)
    return records.taking(np.argsort(records.sequences, kind="stable")), examined


def _note_lost(part: LogPart, row: bytes, lost: NDArray[np.uint64]) -> None:
    """Report records without a value as damage, unless they have been removed since the entry was read: with their
    segment, or from this entry as well."""
    if part.has_dropped(rows.segment_of(row)):
        return
    value = part.store.get("log", row)
    named = NO_NUMBERS if value is None else entries.unpacked(value).numbers
    lost = lost[np.isin(lost, named)]
    if len(lost):
        part.damage.add("log", f"{len(lost)} records from sequence number {lost[0]} on have no values in the store")


def _chosen(
    entry: GatheringEntry, view: LogView, span: Range, prefix: bytes, slots: SlotFilter | None = None
) -> NDArray[np.int64]:
    """Positions of the entry's records that are in the range, not hidden or gone, have the prefix, and which `slots`
    let through: int64[m]."""
    matching = (entry.numbers >= np.uint64(span.start)) & (entry.numbers < np.uint64(span.end))
    if span.hidden:
        matching &= outside(entry.numbers, span.hidden)
    if prefix:
        having = np.fromiter((key.startswith(prefix) for key in entry.keys), np.bool_, len(entry.keys))
        matching &= having[entry.codes]
    if slots is not None:
        matching &= entry.numbers >= slots.first_of_keys(entry.keys)[entry.codes]
    if view.starts and matching.any():
        matching &= entry.numbers >= entry.starts(view.starts)
    return np.flatnonzero(matching)


def count_key(part: LogPart, span: Range, key: bytes, check: Check) -> int:
    """How many records of the key lie in the range, exactly."""
    return count_view(part, part.view(), span, key, check)


def count_view(part: LogPart, view: LogView, span: Range, key: bytes, check: Check) -> int:
    """As `count_key`, of the log as it was in the view."""
    total = 0
    for run in _key_runs(part, view, span, key):
        total += len(run.sequences)
        check()
    return total


def count_prefix(part: LogPart, span: Range, prefix: bytes, check: Check, slots: SlotFilter | None = None) -> int:
    """How many records of keys with the prefix lie in the range and pass `slots`, exactly; read from the entries."""
    total = 0
    view = part.view()
    stored, segments = _stored(view, span), (span.first_segment, span.last_segment)
    for _, entry in entries.scan(part.store, segments, stored.start, stored.end):
        check()
        total += len(_chosen(entry, view, stored, prefix, slots))
    for segment in range(span.first_segment, span.last_segment + 1):
        for recent in view.segments.get(segment, ()):
            check()
            total += len(recent_rows(recent, view, span, prefix, slots))
    return total


def count_found(part: LogPart, span: Range, key: bytes | None, prefix: bytes, search: Examination, check: Check) -> int:
    """How many records of the key, or of the keys with the prefix, the search finds in the range, exactly."""
    if key is not None:
        return sum(len(search.matching(joined([run]))) for run in _key_runs(part, part.view(), span, key))
    return sum(len(records) for records, _, _ in _merged(part, part.view(), span, prefix, check, search))
