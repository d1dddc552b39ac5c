"""Followers: readers that wait for new records, and get them directly from the append.

A follower that has read everything gets new records through a queue in memory. When its queue is full, it is *lagging*:
it reads from the store until it has caught up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from coordinator.log.columns import BatchRecords
from coordinator.log.frontier import Frontier, Group
from coordinator.log.reads import KeySelection, Reader, Warnings
from shared.errors import Overloaded
from shared.hashing import hash64
from shared.log.headers import size_of
from shared.messages.log_pages import Records

QUEUE_RECORDS_MAX = 1000
QUEUE_BYTES_MAX = 256 << 10
"""Records and bytes in one follower's queue; with more, the follower reads from the store."""
PAGE_BYTES_FIRST, PAGE_BYTES_MAX = 16 << 10, 256 << 10
"""About how many bytes are read from the store at once for a follower that lags: few at first, and twice as many for
each next page. So a follower whose client does not read holds a small page only."""
ROW_BYTES, VALUE_BYTES_USUAL = 128, 128
"""The memory of a row beside its value; and the assumed length of values until the first page."""
CATCHING_UP_MAX = 3
"""Pages read from the store at once for followers; other requests wait for no more than these."""

Row = tuple[int, bytes, bytes, int]
"""(sequence number, key, value, when it was appended in Unix ms or 0). A value that has headers is a HeadedValue."""


class Follower:
    """One reader and its position: every selected record below `position` has been given to it."""

    __slots__ = ("_bytes", "_queue", "lagging", "page_bytes", "position", "row_bytes", "selection", "wake", "warnings")

    def __init__(self, selection: KeySelection, position: int) -> None:
        self.selection = selection
        self.position = position
        self.lagging = True
        self.page_bytes = PAGE_BYTES_FIRST
        self.row_bytes = ROW_BYTES + VALUE_BYTES_USUAL
        self.warnings = Warnings()
        self.wake = asyncio.Event()
        self.wake.set()
        self._queue: list[Row] = []
        self._bytes = 0

    def lag(self) -> None:
        """Empty the queue: the follower reads the next records from the store."""
        self.lagging = True
        self.page_bytes = PAGE_BYTES_FIRST
        self._queue.clear()
        self._bytes = 0
        self.wake.set()

    def offer(self, row: Row) -> None:
        if self.lagging or row[0] < self.position:
            return
        # The workers search: an expression may take long for one value, and the event loop must not wait for it.
        if self.selection.search or len(self._queue) >= QUEUE_RECORDS_MAX or self._bytes >= QUEUE_BYTES_MAX:
            self.lag()
            return
        self._queue.append(row)
        self._bytes += self._size(row)
        self.wake.set()

    def trim(self, key: bytes, start: int) -> None:
        """Remove the key's records below `start`, which have been deleted, from the queue."""
        self._queue = [row for row in self._queue if row[1] != key or row[0] >= start]
        self._bytes = sum(map(self._size, self._queue))

    def _size(self, row: Row) -> int:
        """Bytes that the row takes. All rows of a follower of one key share the bytes of the key."""
        return size_of(row[2]) + (len(row[1]) if self.selection.key is None else 0)

    def take(self, limit: int) -> list[Row]:
        rows, self._queue = self._queue[:limit], self._queue[limit:]
        self._bytes = sum(map(self._size, self._queue))
        if rows:
            self.position = rows[-1][0] + 1
        return rows


class Followers:
    """All followers of the log."""

    def __init__(self, followers_max: int, frontier: Frontier, reader: Reader) -> None:
        self._max = followers_max
        self._frontier = frontier
        self._reader = reader
        self._count = 0
        self._trimmed_upto = 0
        self._turns = asyncio.Semaphore(CATCHING_UP_MAX)
        # In the order of arrival: the first follower is woken first.
        self._by_key: dict[bytes, dict[Follower, None]] = {}
        self._by_prefix: dict[Follower, None] = {}
        self._hashes: NDArray[np.uint64] | None = None  # of the keys that are followed, ascending; None: out of date

    @property
    def count(self) -> int:
        return self._count

    @contextmanager
    def following(self, selection: KeySelection, position: int) -> Iterator[Follower]:
        """A follower from `position` on, for as long as the context lasts. Raises Overloaded at the limit of
        followers."""
        if self._count >= self._max:
            raise Overloaded(
                f"{self._count} reads follow the log, the limit is {self._max} (TRIPTYCH_LOG_FOLLOWERS_MAX); "
                "try again later"
            ).because("followers")
        follower = Follower(selection, position)
        group = self._by_prefix if selection.key is None else self._by_key.setdefault(selection.key, {})
        if selection.key is not None and not group:
            self._hashes = None
        group[follower] = None
        self._count += 1
        try:
            yield follower
        finally:
            self._count -= 1
            group.pop(follower, None)
            if selection.key is not None and not group:
                self._by_key.pop(selection.key, None)
                self._hashes = None

    async def read(self, follower: Follower, limit: int) -> list[Row]:
        """The next records, about `limit` at most; waits for them if there are none yet. May be [] when the page that
        was read from the store holds none. The caller sets the deadline."""
        await follower.wake.wait()
        if follower.lagging:
            async with self._turns:
                return await self._catch_up(follower, limit)
        rows = follower.take(limit)
        if not follower._queue and not follower.lagging:
            follower.wake.clear()
        return rows

    async def _catch_up(self, follower: Follower, limit: int) -> list[Row]:
        """A page from the store. From the last page on, published records go to the follower's queue."""
        selection = follower.selection
        await self._reader.wait_for(selection)
        # Set in the same round of the event loop in which the frontier becomes the end of the page. Records that become
        # visible later are published to this follower, or make it lag again.
        follower.lagging = False
        upto = self._frontier.visible
        try:
            most = min(limit, 1 + follower.page_bytes // follower.row_bytes)
            page = await self._reader.page(selection, follower.position, upto, most, warnings=follower.warnings)
        except BaseException:
            follower.lag()
            raise
        page_bytes = follower.page_bytes
        if not page.done:
            follower.lag()
        rows = list(rows_of(page.records, selection))
        if rows:
            follower.row_bytes = ROW_BYTES + sum(size_of(row[2]) for row in rows) // len(rows)
        follower.page_bytes = min(PAGE_BYTES_MAX, 2 * page_bytes)
        follower.position = max(follower.position, page.next)
        if not follower._queue and not follower.lagging:
            follower.wake.clear()
        return rows

    def trim(self, key: bytes, start: int) -> None:
        """Note that the key's records below `start` have been deleted: no follower gets one of them any more."""
        for follower in (*self._by_prefix, *self._by_key.get(key, ())):
            follower.trim(key, start)
        if start > self._frontier.visible:
            self._trimmed_upto = max(self._trimmed_upto, start)

    def publish(self, group: Group) -> None:
        """Hand a group that has become visible to the followers of its keys."""
        if not self._count:
            return
        if group.start < self._trimmed_upto:
            # Some of its records may have been deleted before the group was visible. The store knows which.
            self.publish_gap()
            return
        for start, records in group.batches:
            if self._by_key:
                self._publish_by_key(start, records, group.time_ms)
            rows: dict[int, Row] = {}
            for follower in self._by_prefix:
                if not follower.lagging:
                    places = records.having(follower.selection.prefix)
                    _offer(follower, start, records, places, rows, group.time_ms)

    def publish_gap(self) -> None:
        """Have every follower read from the store: it holds visible records that were in no published group."""
        for follower in self._all():
            follower.lag()

    def _publish_by_key(self, start: int, records: BatchRecords, time_ms: int) -> None:
        if self._hashes is None:
            self._hashes = np.sort(np.fromiter(map(hash64, self._by_key), np.uint64, len(self._by_key)))
        for at in records.among(self._hashes):
            row: Row | None = None
            for follower in self._by_key.get(records.key(at), ()):
                if not follower.lagging:
                    row = row or (start + at, records.key(at), records.value(at), time_ms)
                    follower.offer(row)

    def _all(self) -> Iterable[Follower]:
        yield from self._by_prefix
        for followers in self._by_key.values():
            yield from followers


def _offer(
    follower: Follower,
    start: int,
    records: BatchRecords,
    places: Sequence[int],
    rows: dict[int, Row],
    time_ms: int,
) -> None:
    """Offer the records at these places. `rows` has those that another follower was offered: their bytes are shared."""
    if len(places) > QUEUE_RECORDS_MAX:
        follower.lag()
        return
    for at in places:
        row = rows.get(at)
        if row is None:
            row = rows[at] = (start + at, records.key(at), records.value(at), time_ms)
        follower.offer(row)


def rows_of(records: Records, selection: KeySelection) -> Iterator[Row]:
    numbers: list[int] = np.asarray(records.sequences).tolist()
    keys = records.key_list() if selection.key is None else [selection.key] * len(numbers)
    return zip(numbers, keys, records.value_list(), records.times.tolist(), strict=True)
