"""Deleting and trimming keys: their starts are raised.

Durability: when `trim` returns, no read ever returns a record of the key below its start, whatever crashes, including
a loss of power.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from shared.errors import DeadlineExceeded
from shared.messages.log import Range
from worker.logs import reading, starts
from worker.logs.part import LogPart
from worker.logs.view import LogView

FRESH_MAX = 1024
"""With more starts above the mark "gathered", a trim gathers first: reads of memory look at each of them."""

NO_MARKS: Mapping[bytes, bytes] = MappingProxyType({})


def trim(part: LogPart, span: Range, key: bytes, closed: int, check: Callable[[], None]) -> int | None:
    """Make the key's records below `span.end` invisible, durably. Returns how many of the range there were; None when
    there was no time to count them. `closed`: see `AppendBody`. `check` raises when the request's time is up.

    Raises Unavailable; the records may then be gone after a crash, or not.
    """
    with part.lock:
        part.closed_below(closed)
        is_full = len(part.starts.fresh) >= FRESH_MAX
    if is_full:
        part.gather()
    check()
    with _counting(part, key):
        view = put_starts(part, {key: span.end})
        try:
            # After the write: a key with many records must be deletable, too.
            return reading.count_view(part, view, span, key, check)
        except DeadlineExceeded:
            return None


@contextmanager
def _counting(part: LogPart, key: bytes) -> Iterator[None]:
    """A context in which the store keeps the key's gone records, so that they can be counted. Its end wakes the
    cleaner. Several threads may count the same key at once."""
    starts = part.starts
    with part.lock:
        starts.counting = (*starts.counting, key)
    try:
        yield
    finally:
        with part.lock:
            at = starts.counting.index(key)
            starts.counting = starts.counting[:at] + starts.counting[at + 1 :]
        part.keeper.cleaner.wake()


def put_starts(part: LogPart, wanted: Mapping[bytes, int], marks: Mapping[bytes, bytes] = NO_MARKS) -> LogView:
    """Raise the starts of these keys, durably; a start that is higher already stays. `marks`: rows that are written
    with them. Returns the log as it was before. Raises Unavailable."""
    with part.trim_lock:
        with part.lock:
            before = part.view_held()
            rising = part.starts.rising(wanted)
            part.starts.require_room([key for key in rising if key not in part.starts.all])
        old = {key: start for key in wanted if (start := before.starts.get(key, 0))}
        if rising or marks:
            changes = part.store.batch()
            starts.put(changes, rising)
            for row, value in marks.items():
                changes.put("log", row, value)
            part.store.write(changes, durable=True)
            with part.lock:
                part.starts.take_in(rising, part.gathered)
    return LogView(before.gathered, before.segments, old, before.fresh)
