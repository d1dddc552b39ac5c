"""The series that have been sent to the workers before, each with the number that its shard gave it.

A sender sends the same series again and again, and in nearly the same order. Of such a series a request to a worker has
the number instead of the labels (`shared.reference_frames`). `find_next` compares the labels in a request with those
behind the ones found last, and `find` asks a hash table. Both compare all bytes, so that no hash decides which series a
sample belongs to.

A number is valid for one opening of a shard, which has an epoch. The rows of a shard have its era here, which counts
its epochs: with another epoch, all of them are of an earlier era, and their labels are sent again.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value, call-overload"

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.series.tagged_slots import entry, is_tagged, number_in, place_of
from shared import kernel_types as types
from shared.kernels import inlined, kernel
from shared.xxh64 import Bytes, copy_bytes, equal_bytes

# Columns of a row: where its labels begin and end, their hash, the number of the series, the era of its shard when it
# gave the number, and the minute in which the row was used last.
BEGIN, END, HASH, NUMBER, ERA, USED_AT = range(6)
ROW_COLUMNS = 6

# What is in use: rows, bytes of labels; how many series found no room; the minute; and a number that changes when rows
# get other places, 0 for tables that have no room for any.
ROWS, LABEL_BYTES, LEFT_OUT, NOW, VERSION = range(5)
USES = 5

PROBES_MAX = 16
"""Slots that are looked at for one series, whatever labels a sender chooses: a few in a thousand find none that is
free."""
LABELS_BYTES_MAX = 4096
"""Of a series that is kept: a few long ones would take the room of many."""
UNUSED_MINUTES = 5
"""Rows that nobody has used for so long go first when there is no room; scrapes come every minute or more often."""

SLOTS_FIRST, SLOTS_GROWTH = 1 << 14, 4
"""Slots of tables in which little is kept: what is entered is anywhere in them, so all of their pages are in use."""

_MEAN_LABELS_BYTES = 176
_ROW_BYTES = 8 * ROW_COLUMNS + _MEAN_LABELS_BYTES + 3 * 8

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")


class Tables(NamedTuple):
    """`labels` uint8[] in canonical form, of `rows` int64[n, ROW_COLUMNS]. The slots, int64[a power of two], have a
    row, counted from 1, below the upper half of a hash. `eras` int64[shards]; `used` int64[USES]."""

    labels: np.ndarray
    rows: np.ndarray
    slots: np.ndarray
    eras: np.ndarray
    used: np.ndarray


TABLES = types.NamedTuple((_OUT, _TABLE, _INTS, _INTS, _INTS), Tables)


@inlined(allocates=False)
def _has_labels(tables: Tables, row: int, labels: np.ndarray, begin: int, end: int) -> bool:
    own = tables.rows[row, BEGIN]
    size = tables.rows[row, END] - own
    return size == end - begin and equal_bytes(tables.labels, own, labels, begin, size)


@inlined(allocates=False)
def find_next(body: np.ndarray, at: int, end: int, tables: Tables, row: int) -> bool:
    """Whether the series whose label fields begin at body[at], of a message that ends at `end`, is the one in `row`."""
    if row >= tables.used[ROWS]:
        return False
    labels_end = at + tables.rows[row, END] - tables.rows[row, BEGIN]
    if labels_end > end or (labels_end < end and body[labels_end] == 0x0A):
        return False
    return _has_labels(tables, row, body, at, labels_end)


@kernel(types.int64(Bytes, types.int64, types.int64, types.uint64, TABLES), first=True, allocates=False)
def find(labels: np.ndarray, begin: int, end: int, label_hash: np.uint64, tables: Tables) -> int:
    """The row of the series with the canonical labels labels[begin:end]; -1 if there is none."""
    for probe in range(PROBES_MAX):
        slot = tables.slots[place_of(tables.slots, label_hash, probe)]
        if slot == 0:
            break
        row = number_in(slot)
        if is_tagged(slot, label_hash) and _has_labels(tables, row, labels, begin, end):
            return row
    return np.int64(-1)


@inlined(allocates=False)
def find_near(labels: np.ndarray, begin: int, end: int, label_hash: np.uint64, tables: Tables, following: int) -> int:
    """As `find`; the row `following` is looked at first."""
    if following < tables.used[ROWS] and _has_labels(tables, following, labels, begin, end):
        return following
    return find(labels, begin, end, label_hash, tables)


@inlined(allocates=False)
def used(tables: Tables, row: int) -> int:
    """One more than the number of the series in this row; 0 if it is of an earlier era."""
    tables.rows[row, USED_AT] = tables.used[NOW]
    shard = np.int64(np.uint64(tables.rows[row, HASH]) % np.uint64(len(tables.eras)))
    return tables.rows[row, NUMBER] + 1 if tables.rows[row, ERA] == tables.eras[shard] else np.int64(0)


@inlined(allocates=False)
def _place(tables: Tables, row: int) -> bool:
    """Enter a row into the slots; False where there is no free one."""
    key = np.uint64(tables.rows[row, HASH])
    for probe in range(PROBES_MAX):
        place = place_of(tables.slots, key, probe)
        if tables.slots[place] == 0:
            tables.slots[place] = entry(key, row)
            return True
    return False


@kernel(types.void(Bytes, _INTS, _INTS, _HASHES, _INTS, TABLES), first=True, allocates=False)
def learn(
    labels: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    hashes: np.ndarray,
    numbers: np.ndarray,
    tables: Tables,
) -> None:
    """Keep the series with the canonical labels labels[begins[i]:ends[i]] and these hashes, whose numbers are
    numbers[i]; -1 for series that are not to be kept."""
    for i in range(len(numbers)):
        size = ends[i] - begins[i]
        if numbers[i] < 0 or size > LABELS_BYTES_MAX:
            continue
        row = find(labels, begins[i], ends[i], hashes[i], tables)
        if row < 0:
            row, begin = tables.used[ROWS], tables.used[LABEL_BYTES]
            if row == len(tables.rows) or size > len(tables.labels) - begin:
                tables.used[LEFT_OUT] += 1
                continue
            tables.rows[row, BEGIN], tables.rows[row, END] = begin, begin + size
            tables.rows[row, HASH] = np.int64(hashes[i])
            if not _place(tables, row):
                continue
            copy_bytes(tables.labels, begin, labels, begins[i], size)
            tables.used[ROWS], tables.used[LABEL_BYTES] = row + 1, begin + size
        shard = np.int64(hashes[i] % np.uint64(len(tables.eras)))
        tables.rows[row, NUMBER], tables.rows[row, ERA] = numbers[i], tables.eras[shard]
        tables.rows[row, USED_AT] = tables.used[NOW]


@kernel(types.void(TABLES), first=True, allocates=False)
def _place_all(tables: Tables) -> None:
    """Enter all rows into slots that have none."""
    for row in range(tables.used[ROWS]):
        _place(tables, np.int64(row))


@kernel(types.void(TABLES, types.int64), allocates=False)
def _keep_used(tables: Tables, since: int) -> None:
    """Drop the rows that were used last before the minute `since`; the others close up."""
    tables.slots[:] = 0
    kept, at = 0, 0
    for row in range(tables.used[ROWS]):
        if tables.rows[row, USED_AT] < since:
            continue
        begin, size = tables.rows[row, BEGIN], tables.rows[row, END] - tables.rows[row, BEGIN]
        for i in range(size):  # the ranges may overlap
            tables.labels[at + i] = tables.labels[begin + i]
        for column in range(ROW_COLUMNS):
            tables.rows[kept, column] = tables.rows[row, column]
        tables.rows[kept, BEGIN], tables.rows[kept, END] = at, at + size
        if _place(tables, np.int64(kept)):
            kept += 1
            at += size
    tables.used[ROWS], tables.used[LABEL_BYTES], tables.used[LEFT_OUT] = kept, at, 0
    tables.used[VERSION] += 1


class SeriesReferences:
    """The series that are kept, in `bytes_max` bytes at most: some 250 for one with seven labels.

    One thread at a time uses the tables; a request that finds them in use sends labels. When they are full, new series
    are left out, and at most once a minute those go that nobody has used for UNUSED_MINUTES. So a sender with more
    series than there is room for keeps the gain for those that are in the tables.
    """

    def __init__(self, bytes_max: int, shards: int) -> None:
        self.epochs = np.zeros(shards, dtype=np.int64)
        """Of each shard: of the numbers that rows of its era have. It is another array when one of them changes."""
        self._rows_max = bytes_max // _ROW_BYTES
        self._none = _tables(0, shards)
        self._tables = self._none
        self._lock = Lock()
        self._tidied_at = -1
        """The minute of the last `tidy`."""

    @property
    def bytes(self) -> int:
        """Memory that the tables have written to."""
        tables = self._tables
        rows, label_bytes = int(tables.used[ROWS]), int(tables.used[LABEL_BYTES])
        return tables.slots.nbytes + 8 * ROW_COLUMNS * rows + label_bytes

    @property
    def is_crowded(self) -> bool:
        """Whether `tidy` should be called, which takes some 0.1 µs a row."""
        return bool(self._tables.used[LEFT_OUT]) and _minute() > self._tidied_at

    @contextmanager
    def lent(self) -> Iterator[Tables]:
        """The tables, or empty ones while another thread has them: waiting would take longer than doing without."""
        if not self._rows_max or not self._lock.acquire(blocking=False):
            yield self._none
            return
        try:
            if self._tables is self._none:
                self._tables = _tables(self._rows_max, len(self.epochs))
            self._tables.used[NOW] = _minute()
            yield self._tables
        finally:
            self._lock.release()

    def tidy(self) -> None:
        """Drop rows that nobody has used for a while."""
        with self.lent() as tables:
            if tables is not self._none:
                self._tidied_at = _minute()
                _keep_used(tables, self._tidied_at - UNUSED_MINUTES)

    def begin_eras(self, epochs: Mapping[int, int]) -> None:
        """The numbers of these shards have these epochs (shard → epoch) now: earlier ones are not used any more."""
        with self.lent() as tables:
            if tables is not self._none:
                changed = [shard for shard, epoch in epochs.items() if self.epochs[shard] != epoch]
                if changed:
                    own = self.epochs.copy()
                    own[changed] = [epochs[shard] for shard in changed]
                    tables.eras[changed] += 1
                    self.epochs = own

    def learn(
        self,
        labels: NDArray[np.uint8],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        numbers: NDArray[np.int64],
        epochs: Mapping[int, int],
    ) -> None:
        """Keep the series with the canonical labels labels[begins[i]:ends[i]], their hashes and the numbers that their
        shards gave with these epochs (shard → epoch); -1 for series that are not to be kept. Nothing is kept if the
        numbers of any of these shards have another epoch by now."""
        with self.lent() as tables:
            if tables is not self._none and all(self.epochs[shard] == epoch for shard, epoch in epochs.items()):
                tables = self._tables = _with_slots(tables, len(numbers))
                learn(labels, begins, ends, hashes, numbers, tables)


def _minute() -> int:
    return int(time.monotonic()) // 60


def _tables(rows: int, shards: int) -> Tables:
    """Empty tables with room for so many rows. Memory that is never written to is not taken from the system."""
    in_use = np.zeros(USES, dtype=np.int64)
    in_use[VERSION] = min(rows, 1)
    return Tables(
        labels=np.empty(_MEAN_LABELS_BYTES * rows, dtype=np.uint8),
        rows=np.empty((rows, ROW_COLUMNS), dtype=np.int64),
        slots=np.zeros(min(SLOTS_FIRST, _slots_max(rows)), dtype=np.int64),
        eras=np.zeros(shards, dtype=np.int64),
        used=in_use,
    )


def _slots_max(rows: int) -> int:
    """Slots of tables with so many rows: at most three for each."""
    return 1 << (3 * rows // 2).bit_length()


def _with_slots(tables: Tables, more: int) -> Tables:
    """The tables, with three slots for each row also when so many rows are added, as far as they may have so many."""
    wanted, most, slots = 3 * (int(tables.used[ROWS]) + more), _slots_max(len(tables.rows)), len(tables.slots)
    while slots < min(wanted, most):
        slots = min(SLOTS_GROWTH * slots, most)
    if slots == len(tables.slots):
        return tables
    grown = tables._replace(slots=np.zeros(slots, dtype=np.int64))
    _place_all(grown)
    return grown
