"""The distinct keys of one shard's log, in memory and in the store."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from shared.messages.log import Range
from worker.logs import rows
from worker.logs.part import LogPart
from worker.logs.reading import Check, recent_rows, stored_runs
from worker.logs.view import LogView


def keys(part: LogPart, span: Range, prefix: bytes, after: bytes | None, limit: int, check: Check) -> list[bytes]:
    """Distinct keys with records in the range, ascending, at most `limit`."""
    page_keys: list[bytes] = []
    view = part.view()
    sources = [
        _keys_of(part, view, span, segment, prefix, after, check)
        for segment in range(span.first_segment, span.last_segment + 1)
    ]
    for key in heapq.merge(*sources):
        if not page_keys or page_keys[-1] != key:
            if len(page_keys) == limit:
                break
            page_keys.append(key)
    return page_keys


def _keys_of(
    part: LogPart, view: LogView, span: Range, segment: int, prefix: bytes, after: bytes | None, check: Check
) -> Iterator[bytes]:
    """The keys that have a record of the segment in the range, ascending; a key may occur twice."""
    recent: set[bytes] = set()
    for snapshot in view.segments.get(segment, ()):
        check()
        recent.update(snapshot.keys(recent_rows(snapshot, view, span, prefix)))
    end = min(span.end, view.gathered)
    for key in heapq.merge(
        sorted(key for key in recent if after is None or key > after),
        _stored_keys(part, segment, prefix, after),
    ):
        check()
        if key in recent or any(
            len((run.without(span.hidden) if span.hidden else run).sequences)
            for run in stored_runs(part, segment, key, max(span.start, view.starts.get(key, 0)), end)
        ):
            yield key


def _stored_keys(part: LogPart, segment: int, prefix: bytes, after: bytes | None) -> Iterator[bytes]:
    at, end = rows.prefix_range(segment, prefix)
    if after is not None:
        at = max(at, rows.past_key(segment, after))
    while (row := next(part.store.keys("log", at, end), None)) is not None:
        key = rows.key_of(row)
        yield key
        at = rows.past_key(segment, key)
