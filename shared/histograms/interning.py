"""Collects distinct layouts: a kernel writes a candidate after the layouts collected so far, and interns it.

The hash table uses open addressing with linear probing, and is at most half full. After PROBES_MAX unsuccessful probes,
a layout is kept without a slot, so that layouts chosen to collide cost no more than others. It may then be kept twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import LAYOUTS, Floats, HistogramBatch, Ints, LayoutColumns, Layouts, sealed
from shared.kernels import inlined, kernel, types


class LayoutCollection(NamedTuple):
    """Writable columns of layouts, with room for more; see LayoutColumns. used[0]: the number of layouts."""

    schema: NDArray[np.int8]
    zero_threshold: Floats
    zero_at: NDArray[np.int32]
    start: Ints
    indexes: NDArray[np.int32]
    bound_start: Ints
    bound: Floats
    slots: NDArray[np.int32]
    """The hash table: layout + 1, or 0."""
    used: Ints


COLLECTION = types.NamedTuple(
    (
        types.int8[::1], types.float64[::1], types.int32[::1], types.int64[::1], types.int32[::1], types.int64[::1],
        types.float64[::1], types.int32[::1], types.int64[::1],
    ),
    LayoutCollection,
)  # fmt: skip

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
PROBES_MAX = 32


def collection(layouts: int, buckets: int, bounds: int) -> LayoutCollection:
    """An empty collection with room for so many layouts, and for so many buckets and custom boundaries in total, the
    last candidate included."""
    return LayoutCollection(
        np.empty(layouts, np.int8),
        np.empty(layouts),
        np.empty(layouts, np.int32),
        np.zeros(layouts + 1, np.int64),
        np.empty(buckets, np.int32),
        np.zeros(layouts + 1, np.int64),
        np.empty(bounds),
        np.zeros(1 << (2 * max(layouts, 1) - 1).bit_length(), np.int32),
        np.zeros(1, np.int64),
    )


def with_more_bounds(layouts: LayoutCollection) -> LayoutCollection:
    """The same collection, with room for twice as many custom boundaries."""
    return layouts._replace(bound=np.concatenate((layouts.bound, np.empty(len(layouts.bound) + 1))))


def with_room(layouts: LayoutCollection, more: int, buckets: int, bounds: int) -> LayoutCollection:
    """The same collection, or a larger copy, that has room for so many more layouts with so many buckets and custom
    boundaries in total, and for one more layout without buckets."""
    used = layouts.used.item(0)
    rooms = (
        (len(layouts.schema), used + more + 1),
        (len(layouts.indexes), layouts.start.item(used) + buckets + 1),
        (len(layouts.bound), layouts.bound_start.item(used) + bounds + 1),
    )
    if all(capacity >= needed for capacity, needed in rooms):
        return layouts
    larger = collection(*(max(capacity, needed + needed // 2) for capacity, needed in rooms))
    columns: Any = zip(larger, views(layouts).columns, strict=False)
    for new, old in columns:
        new[: len(old)] = old
    larger.used[0] = used
    _fill_slots(larger)
    return larger


def views(layouts: LayoutCollection) -> Layouts:
    """The layouts collected so far, as views. Layouts added later do not change them."""
    return Layouts(sealed(_columns(layouts)))


def _columns(layouts: LayoutCollection) -> LayoutColumns:
    used = layouts.used.item(0)
    return LayoutColumns(
        layouts.schema[:used],
        layouts.zero_threshold[:used],
        layouts.zero_at[:used],
        layouts.start[: used + 1],
        layouts.indexes[: layouts.start.item(used)],
        layouts.bound_start[: used + 1],
        layouts.bound[: layouts.bound_start.item(used)],
    )


def collected(layouts: LayoutCollection) -> Layouts:
    """The distinct layouts, copied to arrays of exactly their size."""
    columns: Any = (column.copy() for column in _columns(layouts))
    return Layouts(sealed(LayoutColumns(*columns)))


@inlined
def _digest(
    layouts: Any, begin: Any, buckets: Any, bound_begin: Any, bounds: Any, schema: Any, threshold: Any, zero_at: Any
) -> Any:
    """The hash of the layout whose bucket indexes and custom boundaries begin at these places."""
    digest = (
        (np.uint64(np.int64(schema)) ^ np.uint64(buckets) << _HALF) * _FACTOR
        ^ np.uint64(np.float64(threshold).view(np.int64))
        ^ np.uint64(np.int64(zero_at))
    )
    # Consecutive indexes, by far the most common, are determined by the first of them.
    expected = np.int64(0)
    indexes = layouts.indexes[begin : begin + buckets]
    for i in range(buckets):
        index = np.int64(indexes[i])
        if index != expected:
            digest = (digest ^ np.uint64(index) ^ np.uint64(i) << _HALF) * _FACTOR
            digest ^= digest >> _HALF
        expected = index + 1
    for i in range(bound_begin, bound_begin + bounds):
        digest = (digest ^ np.uint64(layouts.bound[i : i + 1].view(np.int64)[0])) * _FACTOR
        digest ^= digest >> _HALF
    return digest


@kernel(
    types.int64(COLLECTION, types.int64, types.float64, types.int64, types.int64, types.int64),
    first=True,
    forceinline=True,
    allocates=False,
    error_model="numpy",
)
def intern(
    layouts: LayoutCollection, schema: int, zero_threshold: float, zero_at: int, buckets: int, bounds: int
) -> int:
    """The number of the layout whose bucket indexes and custom boundaries have been written after the last layout, at
    indexes[start[used]:] and bound[bound_start[used]:]: a new number, or that of an equal layout."""
    used = layouts.used[0]
    begin, bound_begin = layouts.start[used], layouts.bound_start[used]
    threshold = np.float64(zero_threshold) + 0.0  # -0.0 becomes 0.0
    mask = layouts.slots.size - 1
    slot = np.int64(_digest(layouts, begin, buckets, bound_begin, bounds, schema, threshold, zero_at) & np.uint64(mask))
    for _ in range(PROBES_MAX):
        other = layouts.slots[slot] - 1
        if other < 0:
            layouts.slots[slot] = used + 1
            break
        if _is_candidate(layouts, other, schema, threshold, zero_at, buckets, bounds):
            return other
        slot = (slot + 1) & mask
    layouts.schema[used], layouts.zero_threshold[used], layouts.zero_at[used] = schema, threshold, zero_at
    layouts.start[used + 1] = begin + buckets
    layouts.bound_start[used + 1] = bound_begin + bounds
    layouts.used[0] = used + 1
    return used


@kernel(
    types.boolean(COLLECTION, types.int64, types.int64, types.float64, types.int64, types.int64, types.int64),
    first=True,
    forceinline=True,
    allocates=False,
    error_model="numpy",
)
def _is_candidate(
    layouts: LayoutCollection, other: int, schema: int, threshold: float, zero_at: int, buckets: int, bounds: int
) -> bool:
    """Whether a collected layout equals the candidate."""
    begin, bound_begin = layouts.start[layouts.used[0]], layouts.bound_start[layouts.used[0]]
    other_begin, other_bound = layouts.start[other], layouts.bound_start[other]
    if (
        layouts.schema[other] != schema
        or layouts.zero_threshold[other] != threshold
        or layouts.zero_at[other] != zero_at
        or layouts.start[other + 1] - other_begin != buckets
        or layouts.bound_start[other + 1] - other_bound != bounds
    ):
        return False
    differences = 0
    indexes, other_indexes = layouts.indexes[begin : begin + buckets], layouts.indexes[other_begin:]
    for i in range(buckets):  # without an early exit, so that it is vectorised
        differences |= indexes[i] ^ other_indexes[i]
    for i in range(bounds):
        differences |= layouts.bound[other_bound + i] != layouts.bound[bound_begin + i]
    return differences == 0


@kernel(types.void(COLLECTION), first=True, allocates=False, error_model="numpy")
def _fill_slots(layouts: LayoutCollection) -> None:
    """Fill the hash table, empty before, of a collection whose layouts are all distinct."""
    mask = layouts.slots.size - 1
    for layout in range(layouts.used[0]):
        begin, bound_begin = layouts.start[layout], layouts.bound_start[layout]
        buckets, bounds = layouts.start[layout + 1] - begin, layouts.bound_start[layout + 1] - bound_begin
        schema, threshold, zero_at = layouts.schema[layout], layouts.zero_threshold[layout], layouts.zero_at[layout]
        digest = _digest(layouts, begin, buckets, bound_begin, bounds, schema, threshold, zero_at)
        slot = np.int64(digest & np.uint64(mask))
        for _ in range(PROBES_MAX):
            if layouts.slots[slot] == 0:
                layouts.slots[slot] = layout + 1
                break
            slot = (slot + 1) & mask


def with_distinct_layouts(batch: HistogramBatch) -> HistogramBatch:
    """The same rows, with each layout that some row has only once, in their old order."""
    columns, table = batch.columns, batch.layouts.columns
    is_used = np.zeros(len(batch.layouts), np.bool_)
    is_used[columns.layout] = True
    if len(batch.layouts) == 1 == np.count_nonzero(is_used):
        return batch
    layouts = int(np.count_nonzero(is_used))
    distinct = collection(
        layouts + 1,
        int(np.diff(table.start)[is_used].sum()) + 1,
        int(np.diff(table.bound_start)[is_used].sum()) + 1,
    )
    numbers = np.zeros(len(batch.layouts), np.int32)
    _intern_used(table, is_used, distinct, numbers)
    return HistogramBatch(collected(distinct), sealed(columns._replace(layout=numbers[columns.layout])))


@kernel(
    types.void(LAYOUTS, types.boolean[::1], COLLECTION, types.int32[::1]),
    first=True,
    allocates=False,
    error_model="numpy",
)
def _intern_used(
    table: LayoutColumns, is_used: NDArray[np.bool_], distinct: LayoutCollection, numbers: NDArray[np.int32]
) -> None:
    """Collect the layouts that are used; numbers[layout] becomes the new number of each."""
    for layout in range(is_used.size):
        if not is_used[layout]:
            continue
        begin, bound_begin = table.start[layout], table.bound_start[layout]
        buckets, bounds = table.start[layout + 1] - begin, table.bound_start[layout + 1] - bound_begin
        at, bound_at = distinct.start[distinct.used[0]], distinct.bound_start[distinct.used[0]]
        for i in range(buckets):
            distinct.indexes[at + i] = table.indexes[begin + i]
        for i in range(bounds):
            distinct.bound[bound_at + i] = table.bound[bound_begin + i]
        numbers[layout] = intern(
            distinct, table.schema[layout], table.zero_threshold[layout], table.zero_at[layout], buckets, bounds
        )
