"""Records of one segment that are in the write-ahead log and not yet gathered into runs by key.

The blocks of messages are stored one after another, with a table of their records. A reader gets a snapshot: bytes and
rows that it contains do not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.hashing import hash64
from shared.log import blocks as log_blocks
from shared.log.blocks import HAS_HEADERS, KEY, KEY_LENGTH, VALUE, VALUE_LENGTH
from shared.log.headers import TOMBSTONE, TOMBSTONE_AT
from shared.messages.log import Batch, Span
from shared.messages.log_pages import Records
from shared.wire import Frame
from worker.logs import kernels
from worker.logs.runs import RecordRun
from worker.logs.totals import Totals

FIRST_WORDS = 1 << 10
FIRST_ROWS = 1 << 7
"""Initial capacity of a segment; it doubles when it is full."""
ROW_BYTES = 64
"""Memory of a record beside its block."""


Starts = Mapping[bytes, int]
"""Key → the number below which its records are gone (worker.logs.starts)."""


class Grouped(NamedTuple):
    """Rows grouped by key: the i-th row has the key codes[i]; the rows of key c are order[starts[c]:starts[c + 1]]."""

    codes: NDArray[np.int64]
    order: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecentSnapshot:
    """Records at one moment: a table over `data` (shared.log.blocks), their numbers, the hashes of their keys and when
    they were appended. `ascending`: whether the numbers ascend."""

    data: NDArray[np.uint8]
    table: NDArray[np.int64]
    numbers: NDArray[np.uint64]
    hashes: NDArray[np.uint64]
    times: NDArray[np.int64]
    ascending: bool

    def __len__(self) -> int:
        return len(self.numbers)

    def rows(self, start: int, end: int, hidden: Sequence[Span] = ()) -> NDArray[np.int64]:
        """The rows with start ≤ number < end that are not hidden, ascending by number."""
        return self.cut(self._in_order(np.arange(len(self), dtype=np.int64)), start, end, hidden)

    def rows_of(self, key: bytes) -> NDArray[np.int64]:
        """The rows of the key, ascending by number."""
        out = np.empty(len(self), np.int64)
        key_bytes = np.frombuffer(key, np.uint8)
        digest: Any = np.uint64(hash64(key))
        count = kernels.find_key(self.data, self.table, self.hashes, digest, key_bytes, out)
        return self._in_order(out[:count])

    def _in_order(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows if self.ascending else rows[np.argsort(self.numbers[rows], kind="stable")]

    def cut(self, rows: NDArray[np.int64], start: int, end: int, hidden: Sequence[Span] = ()) -> NDArray[np.int64]:
        """Those of `rows`, which ascend by number, with start ≤ number < end that are not hidden."""
        low, high = np.searchsorted(self.numbers[rows], np.array([start, end], np.uint64))
        rows = rows[low:high]
        return rows[outside(self.numbers[rows], hidden)] if hidden else rows

    def kept(self, rows: NDArray[np.int64], starts: Starts) -> NDArray[np.int64]:
        """Those of `rows` that are not below the start of their key."""
        if not starts or not len(rows):
            return rows
        # The hashes find the few rows that may have one of these keys; two keys can have one hash.
        is_suspect = np.isin(self.hashes[rows], np.fromiter(map(hash64, starts), np.uint64, len(starts)))
        suspects = rows[is_suspect]
        if not len(suspects):
            return rows
        grouped = self.grouped(suspects)
        firsts = [starts.get(self.key(row), 0) for row in grouped.order[grouped.starts[:-1]].tolist()]
        is_kept = np.ones(len(rows), np.bool_)
        is_kept[is_suspect] = self.numbers[suspects] >= np.array(firsts, np.uint64)[grouped.codes]
        return rows[is_kept]

    def key(self, row: int) -> bytes:
        start, length = self.table[row, KEY : KEY_LENGTH + 1].tolist()
        return self.data[start : start + length].tobytes()

    def run(self, rows: NDArray[np.int64]) -> RecordRun:
        """These rows, all of one key, as a run."""
        values = log_blocks.taken(self.data, self.table, VALUE, rows)
        ends, headed = np.cumsum(self.table[rows, VALUE_LENGTH]), self.table[rows, HAS_HEADERS] != 0
        return RecordRun(self.numbers[rows], ends, values.data, self.times[rows], headed)

    def records(self, rows: NDArray[np.int64]) -> Records:
        lengths = self.table[rows].astype(np.uint32)
        values = log_blocks.taken(self.data, self.table, VALUE, rows).data
        keys = log_blocks.taken(self.data, self.table, KEY, rows).data
        value_lengths, key_lengths = lengths[:, VALUE_LENGTH].copy(), lengths[:, KEY_LENGTH].copy()
        headed = lengths[:, HAS_HEADERS] != 0
        return Records(self.numbers[rows], value_lengths, values, key_lengths, keys, self.times[rows], headed)

    def tombstones(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the rows whose records are tombstones."""
        headed = rows[(self.table[rows, HAS_HEADERS] != 0) & (self.table[rows, VALUE_LENGTH] > TOMBSTONE_AT)]
        return headed[self.data[self.table[headed, VALUE] + TOMBSTONE_AT] == TOMBSTONE[0]]

    def with_prefix(self, rows: NDArray[np.int64], prefix: bytes) -> NDArray[np.int64]:
        if not prefix or not len(rows):
            return rows
        return rows[log_blocks.with_prefix(self.data, self.table[rows], prefix)]

    def grouped(self, rows: NDArray[np.int64]) -> Grouped:
        """These rows grouped by key; the keys in the order of their first rows."""
        size = len(rows)
        slots = np.full(1 << max(4, (2 * size).bit_length()), -1, np.int64)
        codes, order, starts = np.empty(size, np.int64), np.empty(size, np.int64), np.zeros(size + 1, np.int64)
        count = kernels.by_key(self.data, self.table, self.hashes, rows, slots, codes, order, starts)
        return Grouped(codes, order, starts[: count + 1])

    def keys(self, rows: NDArray[np.int64]) -> list[bytes]:
        """The distinct keys of these rows, in the order of their first rows."""
        grouped = self.grouped(rows)
        return [self.key(row) for row in grouped.order[grouped.starts[:-1]].tolist()]


@dataclass(slots=True)
class RecentGroup:
    """A group in memory, without its records. `position`: of its record in the write-ahead log."""

    group: int
    position: int
    settled: int
    batches: tuple[Batch, ...]


class Recent:
    """The groups of one segment and their records. Not safe for threads: its owner's lock guards it."""

    def __init__(self, words: int = FIRST_WORDS, rows: int = FIRST_ROWS) -> None:
        self.groups: list[RecentGroup] = []
        self._count = self._used = self._staged_end = self._staged_records = self._staged_octets = 0
        self._ascending = True
        self._take(np.empty(words, np.uint64))
        self._table = np.empty((rows, log_blocks.COLUMNS), np.int64)
        self._numbers, self._hashes = np.empty(rows, np.uint64), np.empty(rows, np.uint64)
        self._times = np.empty(rows, np.int64)

    def _take(self, words: NDArray[np.uint64]) -> None:
        self._words, self._halves, self._data = words, words.view(np.uint32), words.view(np.uint8)

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        return 8 * self._used + ROW_BYTES * self._count

    @property
    def room(self) -> tuple[int, int]:
        """Capacity: (words, rows)."""
        return len(self._words), len(self._table)

    def stage(self, frame: Frame, batches: int) -> None:
        """Copy a group's blocks behind those in use, for `add`. Raises Internal if they are not `batches` blocks."""
        octets = np.frombuffer(frame, np.uint8)
        begin, end = self._used, self._used + len(octets) // 8
        if end > len(self._words):
            self._take(_grown(self._words, begin, end))
        self._data[8 * begin : 8 * end] = octets[: 8 * (end - begin)]
        blocks, self._staged_records, self._staged_octets = log_blocks.measure(self._halves, begin, end)
        if blocks != batches or len(octets) % 8:
            raise Internal(f"a frame of {len(octets)} bytes for log.append is not {batches} blocks of records")
        self._staged_end = end

    def add(self, held: RecentGroup) -> tuple[int, int]:
        """Add the group whose blocks were staged last. Returns (records, bytes of keys and values)."""
        begin, end, first = self._used, self._staged_end, self._count
        last = first + self._staged_records
        if last > len(self._table):
            self._table = _grown(self._table, first, last)
            self._numbers, self._hashes = (_grown(array, first, last) for array in (self._numbers, self._hashes))
            self._times = _grown(self._times, first, last)
        starts = np.array([batch.start for batch in held.batches], np.uint64)
        batch_times = np.array([batch.time_ms for batch in held.batches], np.int64)
        arrays = self._table, self._numbers, self._hashes, self._times
        if not log_blocks.index(self._words, self._halves, begin, end, starts, batch_times, *arrays, first):
            self._ascending = False  # a message has overtaken another
        self._count, self._used = last, end
        self.groups.append(held)
        return last - first, self._staged_octets

    def snapshot(self) -> RecentSnapshot:
        count = self._count
        columns = self._table[:count], self._numbers[:count], self._hashes[:count], self._times[:count]
        return RecentSnapshot(self._data, *columns, self._ascending)

    def totals(self) -> Totals:
        """Of all records here. There is at least one group."""
        first = min(held.group for held in self.groups)
        times = [batch.time_ms for held in self.groups for batch in held.batches]
        return Totals(self._count, _octets(self._table[: self._count]), first, min(times, default=0))

    def remaining(self, starts: Starts) -> Recent:
        """The records that are not below the start of their key; this object itself if that is all of them."""
        snapshot = self.snapshot()
        every_row = np.arange(self._count, dtype=np.int64)
        rows = snapshot.kept(every_row, starts)
        if len(rows) == len(every_row):
            return self
        remaining = self.of_rows(rows)
        remaining.groups = self.groups
        return remaining

    def of_rows(self, rows: NDArray[np.int64], room_words: int = FIRST_WORDS, room_rows: int = FIRST_ROWS) -> Recent:
        """A copy of these records only, without groups, with at least this capacity."""
        words = (_octets(self._table[rows]) + 7) // 8
        copy = Recent(max(room_words, words), max(room_rows, len(rows)))
        at = 0
        for column in (KEY, VALUE):
            octets = log_blocks.taken(self._data, self._table, column, rows)
            lengths = self._table[rows, column + 1]
            copy._data[at : at + len(octets)] = octets
            copy._table[: len(rows), column] = at + np.cumsum(lengths) - lengths
            copy._table[: len(rows), column + 1] = lengths
            at += len(octets)
        copy._numbers[: len(rows)], copy._hashes[: len(rows)] = self._numbers[rows], self._hashes[rows]
        copy._times[: len(rows)] = self._times[rows]
        copy._table[: len(rows), HAS_HEADERS] = self._table[rows, HAS_HEADERS]
        copy._count, copy._used, copy._ascending = len(rows), words, self._ascending
        return copy

    def split(self, closed: int) -> tuple[Recent, Recent]:
        """(the groups below `closed`, which is a boundary between groups; the others). This object must not be used
        afterwards."""
        below = self._numbers[: self._count] < np.uint64(closed)
        closed_part = self
        if below.all():
            open_part = Recent(*self.room)
        else:
            open_part = self.of_rows(np.flatnonzero(~below), *self.room)
            if self._ascending:
                self._count = int(np.count_nonzero(below))
            else:
                closed_part = self.of_rows(np.flatnonzero(below))
        groups = self.groups
        closed_part.groups = [held for held in groups if held.group < closed]
        open_part.groups = [held for held in groups if held.group >= closed]
        return closed_part, open_part

    def without(self, group: int, spans: Sequence[Span]) -> tuple[Recent, int, int]:
        """(the records without the group's batches within the spans, how many records those had, bytes of their keys
        and values). This object must not be used afterwards."""
        is_remaining = outside(self._numbers[: self._count], spans)
        removed_rows = np.flatnonzero(~is_remaining)
        remaining = self.of_rows(np.flatnonzero(is_remaining)) if len(removed_rows) else self
        remaining.groups = self.groups
        for held in remaining.groups:
            if held.group == group:
                held.batches = tuple(batch for batch in held.batches if not within(batch.start, spans))
        return remaining, len(removed_rows), _octets(self._table[removed_rows])


def _grown(array: NDArray[Any], used: int, wanted: int) -> NDArray[Any]:
    """A copy of the used rows with capacity for at least `wanted` rows."""
    grown = np.empty((max(wanted, 2 * len(array)), *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown


def _octets(table: NDArray[np.int64]) -> int:
    """Total bytes of the keys and values."""
    return int(table[:, KEY_LENGTH].sum() + table[:, VALUE_LENGTH].sum())


def outside(numbers: NDArray[np.uint64], spans: Sequence[Span]) -> NDArray[np.bool_]:
    """bool[n]: whether each number is in none of the spans."""
    is_outside = np.ones(len(numbers), np.bool_)
    for start, end in spans:
        is_outside &= (numbers < np.uint64(start)) | (numbers >= np.uint64(end))
    return is_outside


def time_of(batches: Sequence[Batch]) -> int:
    """When the last of these batches of one group was appended, in ms; 0 for none."""
    return max([batch.time_ms for batch in batches], default=0)


def within(sequence: int, spans: Sequence[Span]) -> bool:
    return any(start <= sequence < end for start, end in spans)
