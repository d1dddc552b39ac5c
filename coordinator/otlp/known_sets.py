"""The label sets of known data points, by a hash of everything that determines them.

A data point recurs with the same resource, scope, metric and attributes. Its labels are encoded once, in the canonical
form of `shared.labels.encode`, and copied from here to the remote-write request that an OTLP request becomes. A
histogram has a label set for each of its series.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import time
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.otlp.keyed_hash import new_keys
from coordinator.otlp.point_walk import (
    BUCKETS,
    COUNT,
    ENTRY,
    HAS_SUM,
    KEY,
    METRIC,
    READY,
    SERIES,
    STALE,
    START_MS,
    STATE,
    TIME_MS,
    VALUE,
)
from coordinator.otlp.walk import HISTOGRAM, KIND, TARGET_INFO
from coordinator.series.tagged_slots import entry, is_tagged, number_in, place_of
from coordinator.series.time_series_fields import SERIES_BYTES_MAX, put_series
from shared.kernels import inlined, kernel, types
from shared.promql.model import STALE_NAN_BITS
from shared.xxh64 import Bytes, copy_bytes, load64

BEGIN, END, SIZES, SETS = range(4)
"""Columns of an entry: begin and end of its label sets, begin of their sizes, number of sets."""
ENTRY_COLUMNS = 4
LABEL_BYTES, SIZES_USED, ENTRIES = range(3)
"""Indexes of `_Tables.used`."""
PROBES_MAX = 16
"""Slots that are probed for one entry."""
FORGET_S = 600.0
"""How long full tables are kept."""
_BYTES_PER_ENTRY = 300
_SETS_PER_ENTRY = 4
_STALE = np.int64(STALE_NAN_BITS)

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_SIZES = types.Array(types.int32, 1, "C")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")


class Sets(NamedTuple):
    """`labels` uint8[], `entries` int64[n, ENTRY_COLUMNS], `sizes` int32[] of the label sets."""

    labels: np.ndarray
    entries: np.ndarray
    sizes: np.ndarray


SETS_TYPE = types.NamedTuple((_OUT, _TABLE, _SIZES), Sets)


class _Tables(NamedTuple):
    """The sets, the key of each entry (uint64), slots int64[a power of two], used int64[3]."""

    sets: Sets
    keys: np.ndarray
    slots: np.ndarray
    used: np.ndarray


@kernel(types.int64(_TABLE, types.int64, SETS_TYPE, _HASHES, _INTS, _INTS), first=True, allocates=False)
def _look_up(
    points: np.ndarray, count: int, sets: Sets, keys: np.ndarray, slots: np.ndarray, missing: np.ndarray
) -> int:
    """Set ENTRY of the points that are READY or STALE; `missing` gets the rows of those without an entry. Returns their
    number."""
    misses = np.int64(0)
    for row in range(count):
        if points[row, STATE] != READY and points[row, STATE] != STALE:
            continue
        key, matching = np.uint64(points[row, KEY]), np.int64(-1)
        for probe in range(PROBES_MAX):
            slot = slots[place_of(slots, key, probe)]
            if slot == 0:
                break
            number = number_in(slot)
            if is_tagged(slot, key) and keys[number] == key:
                is_whole = sets.entries[number, SETS] == points[row, SERIES] or points[row, METRIC] == TARGET_INFO
                matching = number if is_whole else matching
                break
        points[row, ENTRY] = matching
        if matching < 0:
            missing[misses] = row
            misses += 1
    return misses


@kernel(types.boolean(SETS_TYPE, _HASHES, _INTS, _INTS, SETS_TYPE, _HASHES), first=True, allocates=False)
def _add(
    sets: Sets, keys: np.ndarray, slots: np.ndarray, used: np.ndarray, added: Sets, added_keys: np.ndarray
) -> bool:
    """Add the sets of `added`. Returns False if there is no room for all of them."""
    for i in range(len(added_keys)):
        begin, end = added.entries[i, BEGIN], added.entries[i, END]
        size, count, first = end - begin, added.entries[i, SETS], added.entries[i, SIZES]
        number = used[ENTRIES]
        is_full = number == len(sets.entries) or size > len(sets.labels) - used[LABEL_BYTES]
        if is_full or count > len(sets.sizes) - used[SIZES_USED]:
            return False
        key = added_keys[i]
        for probe in range(PROBES_MAX):
            slot = place_of(slots, key, probe)
            if slots[slot] == 0:
                at = used[LABEL_BYTES]
                copy_bytes(sets.labels, at, added.labels, begin, size)
                sets.entries[number, BEGIN], sets.entries[number, END] = at, at + size
                sets.entries[number, SIZES], sets.entries[number, SETS] = used[SIZES_USED], count
                for k in range(count):
                    sets.sizes[used[SIZES_USED] + k] = added.sizes[first + k]
                keys[number] = key
                slots[slot] = entry(key, number)
                used[LABEL_BYTES], used[SIZES_USED], used[ENTRIES] = at + size, used[SIZES_USED] + count, number + 1
                break
            if keys[number_in(slots[slot])] == key:
                break
    return True


class KnownSets:
    """The label sets of one process, in at most `bytes_max` bytes. When the tables are full, further sets are not
    added, and their points take some 30 µs each time. So even with more points than there is room for, many are known.
    After FORGET_S all sets are dropped, and the points that still arrive fill the tables again."""

    def __init__(self, bytes_max: int) -> None:
        self.hash_keys = new_keys()
        self._entries_max = bytes_max // (_BYTES_PER_ENTRY + 8 * ENTRY_COLUMNS + 8 + 16 + 4 * _SETS_PER_ENTRY)
        self._tables = _empty(0)
        self._began = 0.0
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """The memory of the tables that was written to."""
        tables = self._tables
        labels, sizes, entries = tables.used.tolist()
        return tables.slots.nbytes + labels + 4 * sizes + 8 * (ENTRY_COLUMNS + 1) * entries

    def look_up(self, points: NDArray[np.int64]) -> tuple[Sets, NDArray[np.int64]]:
        """Set ENTRY of the points that are ready. Returns (the sets that the entries refer to, which only grow; the
        rows of the unknown points)."""
        missing = np.empty(len(points), np.int64)
        with self._lock:  # for some 20 ns a point
            tables = self._tables
            misses = _look_up(points, len(points), tables.sets, tables.keys, tables.slots, missing)
        return tables.sets, missing[:misses]

    def add(self, sets: Sets, keys: NDArray[np.uint64]) -> None:
        """Add these sets, whose entries have these keys."""
        if not self._entries_max:
            return
        with self._lock:
            if not len(self._tables.keys):
                self._begin()
            if not _add(*self._tables, sets, keys) and time.monotonic() - self._began >= FORGET_S:
                self._begin()  # the next request fills them

    def _begin(self) -> None:
        self._tables, self._began = _empty(self._entries_max), time.monotonic()


def _empty(entries: int) -> _Tables:
    """Tables with room for this many entries. Memory that is never written to is not allocated by the system."""
    sets = Sets(
        np.empty(_BYTES_PER_ENTRY * entries, np.uint8),
        np.empty((entries, ENTRY_COLUMNS), np.int64),
        np.empty(_SETS_PER_ENTRY * entries, np.int32),
    )
    slots = np.zeros(1 << (3 * entries // 2).bit_length(), np.int64)
    return _Tables(sets, np.empty(entries, np.uint64), slots, np.zeros(3, np.int64))


@inlined(allocates=False)
def _float_bits(count: int) -> int:
    return np.float64(np.uint64(count)).view(np.int64)


@kernel(types.int64(_TABLE, types.int64, SETS_TYPE, SETS_TYPE), first=True, allocates=False)
def measure(points: np.ndarray, count: int, known: Sets, new: Sets) -> int:
    """An upper bound of the bytes that `write` writes."""
    total = np.int64(0)
    for row in range(count):
        point_entry = points[row, ENTRY]
        if point_entry != -1:
            entries = known.entries if point_entry >= 0 else new.entries
            number = point_entry if point_entry >= 0 else -2 - point_entry
            total += entries[number, END] - entries[number, BEGIN] + SERIES_BYTES_MAX * entries[number, SETS]
    return total


@kernel(types.int64(Bytes, _TABLE, types.int64, _TABLE, SETS_TYPE, SETS_TYPE, _OUT), first=True, allocates=False)
def write(
    body: np.ndarray, points: np.ndarray, count: int, metrics: np.ndarray, known: Sets, new: Sets, out: np.ndarray
) -> int:
    """Write the points as a request of remote write 1.0, and return its size in bytes. ENTRY of a point is its row in
    `known`, -2 - its row in `new`, or -1 for a point that is not written."""
    at = np.int64(0)
    for row in range(count):
        point_entry = points[row, ENTRY]
        if point_entry == -1:
            continue
        labels = known.labels if point_entry >= 0 else new.labels
        entries = known.entries if point_entry >= 0 else new.entries
        sizes = known.sizes if point_entry >= 0 else new.sizes
        number = point_entry if point_entry >= 0 else -2 - point_entry
        begin, first, sets = entries[number, BEGIN], entries[number, SIZES], entries[number, SETS]
        time, start, is_stale = points[row, TIME_MS], points[row, START_MS], points[row, STATE] == STALE
        if points[row, METRIC] == TARGET_INFO or metrics[points[row, METRIC], KIND] != HISTOGRAM:
            if sets == 1:
                value = _STALE if is_stale else points[row, VALUE]
                at = put_series(out, at, labels, begin, np.int64(sizes[first]), value, time, start)
            continue
        has_sum = points[row, HAS_SUM]
        cumulative_count, buckets = np.uint64(0), sets - has_sum - 2
        for i in range(sets):
            bucket = i - has_sum - 1
            if 0 <= bucket < buckets and not is_stale:
                cumulative_count += load64(body, points[row, BUCKETS] + 8 * bucket)
            if is_stale:
                value = _STALE
            elif i < has_sum:
                value = points[row, VALUE]
            elif 0 <= bucket < buckets:
                value = _float_bits(np.int64(cumulative_count))
            else:
                value = _float_bits(points[row, COUNT])
            at = put_series(out, at, labels, begin, np.int64(sizes[first + i]), value, time, start)
            begin += sizes[first + i]
    return at
