"""Removes gathered records from the store: those of revoked batches and of dropped segments."""

from __future__ import annotations

from collections.abc import Sequence

from shared.messages.log import Span
from worker.logs import entries, rows
from worker.logs.entries import GatheringEntry
from worker.logs.recent import outside, within
from worker.logs.runs import unpacked
from worker.storage.faces import RowBatch, Rows

DROPPED = (rows.RUN, rows.ENTRY)


def put_revocation(changes: RowBatch, store: Rows, segment: int, group: int, spans: Sequence[Span]) -> tuple[int, int]:
    """Add to `changes` the removal of the group's batches within the spans. Returns (records, bytes of keys and values)
    that they had."""
    stored_entry = _entry_of(store, segment, group)
    if stored_entry is None:
        return 0, 0
    row, entry = stored_entry
    is_remaining = outside(entry.numbers, spans)
    removed_keys = [entry.keys[code] for code in entry.codes[~is_remaining].tolist()]
    size = sum(map(len, removed_keys)) + _put_rest_of_runs(changes, store, segment, set(removed_keys), spans)
    groups = []
    for number, batches in entry.groups:
        remaining = tuple(batch for batch in batches if not within(batch.start, spans))
        for batch in batches:
            if batch.producer and batch not in remaining:
                changes.delete("log", rows.producer(batch.producer, batch.start))
        if remaining:
            groups.append((number, remaining))
    if groups:
        changes.put("log", row, entry.of_rows(is_remaining, groups).packed())
    else:
        changes.delete("log", row)
    return len(removed_keys), size


def _entry_of(store: Rows, segment: int, group: int) -> tuple[bytes, GatheringEntry] | None:
    first, last = rows.entry(segment, 0), rows.entry(segment, group) + b"\0"
    for row, value in store.scan("log", first, last, reverse=True):
        entry = entries.unpacked(value)
        return (row, entry) if any(number == group for number, _ in entry.groups) else None
    return None


def _put_rest_of_runs(changes: RowBatch, store: Rows, segment: int, keys: set[bytes], spans: Sequence[Span]) -> int:
    """Rewrite the runs of these keys that hold records of the spans. Returns how many bytes of values are removed."""
    size = 0
    for key in keys:
        head = rows.runs_of(segment, key)
        end = rows.sequence_bytes(max(end for _, end in spans))
        for row, packed in store.scan("log", head, head + end, reverse=True):
            run = unpacked(packed)
            if int(run.sequences[-1]) < min(start for start, _ in spans):
                break
            rest = run.without(spans)
            if rest is run:
                continue
            changes.delete("log", row)
            size += int(run.ends[-1]) - (int(rest.ends[-1]) if len(rest.ends) else 0)
            if len(rest.sequences):
                changes.put("log", head + rows.sequence_bytes(int(rest.sequences[0])), rest.packed())
    return size


def put_drop(changes: RowBatch, store: Rows, first_segment: int, start: int) -> list[tuple[bytes, bytes]]:
    """Add to `changes` the removal of the segments below `first_segment`, and of the answers to producers about batches
    before `start`. Returns the ranges of rows of these segments."""
    ranges = [(head + rows.segment_bytes(0), head + rows.segment_bytes(first_segment)) for head in DROPPED]
    for begin, end in ranges:
        changes.delete_range("log", begin, end)
    for row, _ in store.scan("log", rows.PRODUCERS, rows.after(rows.PRODUCERS)):
        if rows.sequence_of(row) < start:
            changes.delete("log", row)
    return ranges
