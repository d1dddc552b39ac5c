"""Where in a segment a time begins. Times never decrease from one batch to the next, so this is a binary search."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.messages.log import SEQUENCE_MAX, Batch
from worker.logs import entries
from worker.logs.part import LogPart


def first_at(part: LogPart, segment: int, time_ms: int, check: Callable[[], None]) -> int:
    """The first number of the shard's first batch in the segment that was appended at or after `time_ms` (Unix ms);
    SEQUENCE_MAX if there is none. Batches of unknown time count as earlier than any time. `check` raises when the
    request's time is up."""
    # Memory is read first: batches that are gathered after that are then found in the store.
    first = _first_of((batch for batches in part.recent_batches(segment) for batch in batches), time_ms)
    low, last = 0, entries.last_group(part.store, segment)
    high = 0 if last is None else last + 1
    while low < high:
        check()
        middle = (low + high) // 2
        following = entries.groups_from(part.store, segment, middle)
        if following is None:
            high = middle  # the segment has just been dropped, or a revocation has removed its last entry
            continue
        group, groups = following
        number = _first_of((batch for _, batches in groups for batch in batches), time_ms)
        if number == SEQUENCE_MAX:
            low = group + 1
        else:
            first, high = min(first, number), middle
            if number > groups[0][1][0].start:
                break  # the entry begins before the time, so no earlier one reaches it
    return first


def _first_of(batches: Iterable[Batch], time_ms: int) -> int:
    return min((batch.start for batch in batches if batch.time_ms >= time_ms), default=SEQUENCE_MAX)
