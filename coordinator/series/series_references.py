"""The series that were sent to the workers before, with the number that the shard gave to each.

Senders repeat the same series in nearly the same order. A frame for a worker identifies such a series by its number
instead of its labels (`shared.frames.references`). `find_next` compares the labels in a request with those of the row
after the previous match; `find` looks them up in a hash table. Both compare all bytes, so that a hash alone never
decides which series a sample belongs to.

A number is valid until the shard is closed. Each opening of a shard has an epoch. Here, an era counts the epochs of a
shard, and each row has the era in which its number was given. When the epoch of a shard changes, all its rows belong to
an earlier era, and the labels of their series are sent again.
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
from shared.kernels import inlined, kernel, types
from shared.xxh64 import Bytes, copy_bytes, equal_bytes

# Columns of a row: where its labels begin and end, their hash, the number of the series, the era of the shard in which
# the shard gave the number, and the minute in which the row was last used.
BEGIN, END, HASH, NUMBER, ERA, USED_AT = range(6)
ROW_COLUMNS = 6

# Items of `used`: the rows and the bytes of labels in use, how many series found no room, the current minute, and the
# version of the tables, which changes when rows are moved, and is 0 for tables without room.
ROWS, LABEL_BYTES, LEFT_OUT, NOW, VERSION = range(5)
USES = 5

PROBES_MAX = 16
"""The most slots that a look-up of one series reads, whatever labels a sender chooses. A few series in a thousand find
no free slot."""
LABELS_BYTES_MAX = 4096
"""The most label bytes of a series that is kept: a few long label sets would take the room of many."""
UNUSED_MINUTES = 5
"""When there is no room, rows that were not used for this long are dropped. Scrapes come at least every minute."""

SLOTS_FIRST, SLOTS_GROWTH = 1 << 14, 4
"""The slots grow with the rows: used slots are scattered over all memory pages, so empty slots take memory too."""

_MEAN_LABELS_BYTES = 176
_ROW_BYTES = 8 * ROW_COLUMNS + _MEAN_LABELS_BYTES + 3 * 8

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")


class Tables(NamedTuple):
    """`labels`: uint8[], the canonical labels of the `rows`, int64[n, ROW_COLUMNS]. `slots`: int64[a power of two], a
    hash table of the rows (`coordinator.series.tagged_slots`). `eras`: int64[shards]. `used`: int64[USES]."""

    labels: np.ndarray
    rows: np.ndarray
    slots: np.ndarray
    eras: np.ndarray
    used: np.ndarray


TABLES = types.NamedTuple((_OUT, _TABLE, _INTS, _INTS, _INTS), Tables)


@inlined(allocates=False)
def _has_labels(tables: Tables, row: int, labels: np.ndarray, begin: int, end: int) -> bool:
    row_begin = tables.rows[row, BEGIN]
    size = tables.rows[row, END] - row_begin
    return size == end - begin and equal_bytes(tables.labels, row_begin, labels, begin, size)


@inlined(allocates=False)
def find_next(body: np.ndarray, at: int, end: int, tables: Tables, row: int) -> bool:
    """Whether the series in `row` has the labels that begin at body[at], in a message that ends at `end`."""
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
def find_near(labels: np.ndarray, begin: int, end: int, label_hash: np.uint64, tables: Tables, next_row: int) -> int:
    """As `find`, but tries the row `next_row` first."""
    if next_row < tables.used[ROWS] and _has_labels(tables, next_row, labels, begin, end):
        return next_row
    return find(labels, begin, end, label_hash, tables)


@inlined(allocates=False)
def used(tables: Tables, row: int) -> int:
    """The number of the series in this row plus one, or 0 if it is of an earlier era. The row counts as used."""
    tables.rows[row, USED_AT] = tables.used[NOW]
    shard = np.int64(np.uint64(tables.rows[row, HASH]) % np.uint64(len(tables.eras)))
    return tables.rows[row, NUMBER] + 1 if tables.rows[row, ERA] == tables.eras[shard] else np.int64(0)


@inlined(allocates=False)
def _place(tables: Tables, row: int) -> bool:
    """Enter a row into the slots. False if there is no free slot for it."""
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
    """Keep the series with the canonical labels labels[begins[i]:ends[i]], hash hashes[i] and number numbers[i]; -1 for
    series that are not to be kept."""
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
    """Enter all rows into empty slots."""
    for row in range(tables.used[ROWS]):
        _place(tables, np.int64(row))


@kernel(types.void(TABLES, types.int64), allocates=False)
def _keep_used(tables: Tables, since: int) -> None:
    """Drop the rows that were last used before the minute `since`, and close the gaps."""
    tables.slots[:] = 0
    kept_rows, kept_bytes = 0, 0
    for row in range(tables.used[ROWS]):
        if tables.rows[row, USED_AT] < since:
            continue
        begin, size = tables.rows[row, BEGIN], tables.rows[row, END] - tables.rows[row, BEGIN]
        for i in range(size):  # the ranges may overlap
            tables.labels[kept_bytes + i] = tables.labels[begin + i]
        for column in range(ROW_COLUMNS):
            tables.rows[kept_rows, column] = tables.rows[row, column]
        tables.rows[kept_rows, BEGIN], tables.rows[kept_rows, END] = kept_bytes, kept_bytes + size
        if _place(tables, np.int64(kept_rows)):
            kept_rows += 1
            kept_bytes += size
    tables.used[ROWS], tables.used[LABEL_BYTES], tables.used[LEFT_OUT] = kept_rows, kept_bytes, 0
    tables.used[VERSION] += 1


class SeriesReferences:
    """The kept series, in at most `bytes_max` bytes: about 250 for a series with seven labels.

    One thread at a time uses the tables; a request that finds them in use is sent with labels. When the tables are
    full, new series are left out, and at most once a minute the series are dropped that were not used for
    UNUSED_MINUTES. A sender with more series than there is room for therefore still gains for the series in the tables.
    """

    def __init__(self, bytes_max: int, shards: int) -> None:
        self.epochs = np.zeros(shards, dtype=np.int64)
        """int64[shards]: the epoch of the numbers in the rows of the current era. A change replaces the array."""
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
        """Whether `tidy` should be called. It takes about 0.1 µs for each row."""
        return bool(self._tables.used[LEFT_OUT]) and _minute() > self._tidied_at

    @contextmanager
    def lent(self, wait_s: float = 0.0) -> Iterator[Tables]:
        """The tables, or empty ones if another thread still uses them after `wait_s`. For a small request, waiting
        would take longer than working without them."""
        if not self._rows_max or not self._lock.acquire(timeout=wait_s):
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
        """Drop the rows that were not used for UNUSED_MINUTES."""
        with self.lent() as tables:
            if tables is not self._none:
                self._tidied_at = _minute()
                _keep_used(tables, self._tidied_at - UNUSED_MINUTES)

    def begin_eras(self, epochs: Mapping[int, int]) -> None:
        """Set the epochs of the numbers of these shards (shard → epoch). Numbers of other epochs are not used any
        more."""
        with self.lent() as tables:
            if tables is not self._none:
                changed = [shard for shard, epoch in epochs.items() if self.epochs[shard] != epoch]
                if changed:
                    new_epochs = self.epochs.copy()
                    new_epochs[changed] = [epochs[shard] for shard in changed]
                    tables.eras[changed] += 1
                    self.epochs = new_epochs

    def learn(
        self,
        labels: NDArray[np.uint8],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        numbers: NDArray[np.int64],
        epochs: Mapping[int, int],
    ) -> None:
        """Keep the series with the canonical labels labels[begins[i]:ends[i]], hash hashes[i] and number numbers[i]; -1
        for series that are not to be kept. `epochs`: shard → epoch of the numbers. Nothing is kept if the epoch of any
        of these shards has changed since."""
        with self.lent() as tables:
            if tables is not self._none and all(self.epochs[shard] == epoch for shard, epoch in epochs.items()):
                tables = self._tables = _with_slots(tables, len(numbers))
                learn(labels, begins, ends, hashes, numbers, tables)


def _minute() -> int:
    return int(time.monotonic()) // 60


def _tables(rows: int, shards: int) -> Tables:
    """Empty tables with room for this many rows. Memory that is never written to is not taken from the system."""
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
    """The slots of tables with room for this many rows: at most three for each row."""
    return 1 << (3 * rows // 2).bit_length()


def _with_slots(tables: Tables, more: int) -> Tables:
    """The tables, with enough slots for `more` further rows: three for each row, or the most that they may have."""
    slots, slots_max = len(tables.slots), _slots_max(len(tables.rows))
    slots_wanted = 3 * (int(tables.used[ROWS]) + more)
    while slots < min(slots_wanted, slots_max):
        slots = min(SLOTS_GROWTH * slots, slots_max)
    if slots == len(tables.slots):
        return tables
    grown = tables._replace(slots=np.zeros(slots, dtype=np.int64))
    _place_all(grown)
    return grown
