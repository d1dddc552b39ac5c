"""Sums of groups of histograms: the one kernel behind addition, subtraction, `sum`, `avg` and rates.

Rows of a group are brought to a common layout: the smallest schema, a zero threshold that suits all of them, and the
custom boundaries that all of them have. Sources: the specification's section "Compatibility between histograms", and
Prometheus's conformance scripts for custom boundaries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.histograms import alignment
from shared.histograms.alignment import WRITABLE_FLOATS, WRITABLE_INTS, map_buckets, width
from shared.histograms.batch import (
    EDGES,
    FLOATS,
    HINT,
    HINT_GAUGE,
    HINT_NOT_RESET,
    HINT_RESET,
    HINT_UNKNOWN,
    INTS,
    IS_FLOAT,
    LAYOUTS,
    NO_ZERO,
    ROWS,
    Floats,
    HistogramBatch,
    HistogramColumns,
    Ints,
    LayoutColumns,
    Layouts,
    joined_layouts,
    read_only,
    sealed,
)
from shared.histograms.interning import COLLECTION, LayoutCollection, collected, collection, intern, with_more_bounds
from shared.histograms.schemas import CUSTOM
from shared.kernels import inlined, kernel, types

MIXED, RECONCILED, CONFLICTING = 1, 2, 4
"""Notes on a group: it has both exponential and custom buckets, and its result is an empty histogram; its custom
boundaries differ; one row says that the counter was reset, and another that it was not."""

_BYTES = types.uint8[::1]
_TARGETS = types.int32[::1]


class Merged(NamedTuple):
    """A row for each group, and the notes on each (uint8[groups])."""

    batch: HistogramBatch
    notes: NDArray[np.uint8]


def summed(
    batch: HistogramBatch, members: Ints, group_start: Ints, weights: NDArray[np.float64] | None = None
) -> Merged:
    """The sum of the rows members[group_start[g]:group_start[g + 1]] of each group g, compensated as in `sum` over
    floats. Each row is multiplied by its weight (one for each of `members`; without `weights`, 1). Every group must
    have a row, and no row may be a stale marker.

    A result is a gauge if any row is one. Otherwise its reset hint is the one that all rows have, or unknown.
    """
    sums, _, notes = _summed(batch, members, group_start, weights, keeps_losses=False)
    return Merged(sums, notes)


def summed_in_parts(
    batch: HistogramBatch, members: Ints, group_start: Ints, weights: NDArray[np.float64] | None = None
) -> tuple[HistogramBatch, HistogramBatch, NDArray[np.uint8]]:
    """(sums, what rounding lost of them, notes): `summed` for sums that are to be added to others. Added up together
    with their losses, they are as exact as one sum of all rows. Sums and losses have a row of the same layout for each
    group."""
    return _summed(batch, members, group_start, weights, keeps_losses=True)


def _summed(
    batch: HistogramBatch,
    members: Ints,
    group_start: Ints,
    weights: NDArray[np.float64] | None,
    *,
    keeps_losses: bool,
) -> tuple[HistogramBatch, HistogramBatch, NDArray[np.uint8]]:
    """(sums, losses, notes). Without `keeps_losses`, the losses are added to the sums, and their rows are
    meaningless."""
    groups = len(group_start) - 1
    members, group_start = read_only(members, np.int64), read_only(group_start, np.int64)
    if groups and np.diff(group_start).min() < 1:
        raise ValueError("a group of histograms without a row has no sum")
    weights = read_only(np.ones(len(members)) if weights is None else weights, np.float64)
    layouts, targets, notes = _common_layouts(batch, members, group_start)
    sizes = np.diff(layouts.columns.start)[targets]
    rows = HistogramColumns(
        targets,
        np.empty(groups, np.uint8),
        np.zeros(groups),
        np.zeros(groups),
        np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))),
        np.zeros(int(sizes.sum())),
    )
    room = max(1, int(sizes.max(initial=0)), int(np.diff(batch.layouts.columns.start).max(initial=0)))
    lost = rows._replace(
        observations=np.zeros(groups), sum=np.zeros(groups), counts=np.zeros(len(rows.counts) if keeps_losses else room)
    )
    table = batch.layouts.columns
    places = np.empty(0 if layouts is batch.layouts else len(table.indexes), np.int32)
    _add_up(
        layouts.columns, layouts.edges, batch.columns, members, group_start, weights, read_only(targets, np.int32),
        notes, rows.flags, rows.observations, rows.sum, read_only(rows.start, np.int64), rows.counts, lost.observations,
        lost.sum, lost.counts, keeps_losses, np.empty(room, np.int64), np.empty(room, np.int64),
        places, np.full(len(table.schema), -1, np.int32),
    )  # fmt: skip
    return HistogramBatch(layouts, sealed(rows)), HistogramBatch(layouts, sealed(lost)), notes


def _common_layouts(batch: HistogramBatch, members: Ints, group_start: Ints) -> tuple[Layouts, Any, Any]:
    """(the batch's layouts followed by new ones, int32[groups]: the layout of each result, uint8[groups]: notes)."""
    columns, groups = batch.columns, len(group_start) - 1
    layout = columns.layout[members]
    changes = np.ones(len(members), np.bool_)  # where the layout is not that of the previous member of the group
    changes[1:] = layout[1:] != layout[:-1]
    changes[group_start[:-1]] = True
    mixes = np.add.reduceat(changes, group_start[:-1]) > 1 if groups else np.zeros(0, np.bool_)
    table = batch.layouts.columns
    sizes = np.where(changes & np.repeat(mixes, np.diff(group_start)), np.diff(table.start)[layout], 0)
    room = int(np.add.reduceat(sizes, group_start[:-1]).max(initial=0)) + 1 if groups else 1
    bounds = int(np.diff(table.bound_start).max(initial=0))
    new = collection(int(mixes.sum()) + 1, int(sizes.sum()) + 1, len(table.bound) + bounds)
    targets, notes = np.empty(groups, np.int32), np.zeros(groups, np.uint8)
    buffers = [np.empty(size, np.int64) for size in (room, room, int(np.diff(table.start).max(initial=0)) + 1)]
    g = 0
    while True:
        g = _plan(table, batch.layouts.edges, columns, members, group_start, g, new, targets, notes, *buffers)
        if g == groups:
            break
        new = with_more_bounds(new)
    if new.used[0] == 0:
        return batch.layouts, targets, notes
    return joined_layouts([batch.layouts, collected(new)]), targets, notes


@kernel(
    types.int64(
        LAYOUTS,
        EDGES,
        ROWS,
        INTS,
        INTS,
        types.int64,
        COLLECTION,
        _TARGETS,
        _BYTES,
        WRITABLE_INTS,
        WRITABLE_INTS,
        WRITABLE_INTS,
    ),
    error_model="numpy",
)
def _plan(
    layouts: LayoutColumns, edges: Floats, rows: HistogramColumns, members: Ints, group_start: Ints, next_group: int,
    new: LayoutCollection, targets: Any, notes: Any, keys: Ints, spare: Ints, mapped: Ints,
) -> int:  # fmt: skip
    """Determine the layout of each group's sum from `next_group` on. Those that are not the layout of all rows of the
    group are collected in `new`, and numbered after the existing layouts. Returns the number of groups, or that of a
    group for whose custom boundaries `new` lacks room. `keys`, `spare` and `mapped` are buffers."""
    for g in range(next_group, targets.size):
        begin, end = group_start[g], group_start[g + 1]
        first = rows.layout[members[begin]]
        is_uniform = True
        schema, threshold, customs, widens = 127, 0.0, 0, False
        for member in members[begin:end]:
            layout = rows.layout[member]
            is_uniform = is_uniform and layout == first
            schema = min(schema, layouts.schema[layout])
            threshold = max(threshold, layouts.zero_threshold[layout])
            widens = widens or layouts.zero_threshold[layout] != layouts.zero_threshold[first]
            customs += layouts.schema[layout] == CUSTOM
        if is_uniform:
            targets[g] = first
            continue
        if 0 < customs < end - begin:
            notes[g] |= MIXED
            new.indexes[new.start[new.used[0]]] = 0
            targets[g] = layouts.schema.size + intern(new, 0, 0.0, 0, 1, 0)
            continue
        if g > 0 and not widens and _has_layouts_of_previous(rows, members, group_start, g):
            targets[g], notes[g] = targets[g - 1], notes[g - 1]
            continue
        if widens:
            threshold = alignment.common_threshold(layouts, edges, rows, members, begin, end, threshold)
        bounds = 0
        tail = new.bound[new.bound_start[new.used[0]] :]
        if customs > 0:
            if tail.size < layouts.bound_start[first + 1] - layouts.bound_start[first]:
                return g
            bounds = _common_bounds(layouts, rows, members[begin:end], tail)
            for member in members[begin:end]:
                layout = rows.layout[member]
                if layouts.bound_start[layout + 1] - layouts.bound_start[layout] != bounds:
                    notes[g] |= RECONCILED
        size, previous = 0, -1
        for member in members[begin:end]:
            layout = rows.layout[member]
            if layout == previous:
                continue
            previous = layout
            map_buckets(layouts, edges, layout, schema, threshold, tail[:bounds], mapped)
            size = alignment.unite(keys, size, mapped, width(layouts, layout), spare)
            keys, spare = spare, keys
        index = new.indexes[new.start[new.used[0]] :]
        zero_at = NO_ZERO
        for i in range(size):
            index[i] = alignment.index_of(keys[i])
            if keys[i] == 0:
                zero_at = i
        targets[g] = layouts.schema.size + intern(new, schema, threshold, zero_at, size, bounds)
    return targets.size


@inlined
def _has_layouts_of_previous(rows: Any, members: Any, group_start: Any, g: Any) -> Any:
    """Whether the rows of group g have the same layouts as those of group g-1, in the same order."""
    begin, end = group_start[g], group_start[g + 1]
    before = group_start[g - 1]
    if end - begin != begin - before:
        return False
    are_same = True
    for i in range(end - begin):
        are_same &= rows.layout[members[begin + i]] == rows.layout[members[before + i]]
    return are_same


@inlined
def _common_bounds(layouts: Any, rows: Any, members: Any, common: Any) -> Any:
    """Fill `common` with the custom boundaries that all rows have. Returns their number."""
    kept, previous = 0, -1
    for i in range(members.size):
        layout = rows.layout[members[i]]
        bounds = layouts.bound[layouts.bound_start[layout] : layouts.bound_start[layout + 1]]
        if i == 0:
            common[: bounds.size] = bounds
            kept = bounds.size
        elif layout != previous:
            kept = alignment.keep_common(bounds, kept, common)
        previous = layout
    return kept


@inlined
def _find_places(keys: Any, mapped: Any, place: Any) -> None:
    """Fill place[i] with the place of mapped[i] among the ascending `keys`, which contain it."""
    at = 0
    for i in range(place.size):
        while keys[at] < mapped[i]:
            at += 1
        place[i] = at


@inlined
def _add(total: Any, compensation: Any, x: Any) -> Any:
    """A step of Neumaier's compensated sum: (the total with x, its compensation)."""
    new = total + x
    if np.isinf(new):
        return new, 0.0
    if abs(total) >= abs(x):
        return new, compensation + ((total - new) + x)
    return new, compensation + ((x - new) + total)


@kernel(
    types.void(
        LAYOUTS, EDGES, ROWS, INTS, INTS, FLOATS, types.Array(types.int32, 1, "C", readonly=True), _BYTES, _BYTES,
        WRITABLE_FLOATS, WRITABLE_FLOATS, INTS, WRITABLE_FLOATS, WRITABLE_FLOATS, WRITABLE_FLOATS, WRITABLE_FLOATS,
        types.boolean, WRITABLE_INTS, WRITABLE_INTS, _TARGETS, _TARGETS,
    ),
    error_model="numpy",
)  # fmt: skip
def _add_up(
    layouts: LayoutColumns, edges: Floats, rows: HistogramColumns, members: Ints, group_start: Ints, weights: Floats,
    targets: Any, notes: Any, flags: Any, observations: Floats, total: Floats, start: Ints, counts: Floats,
    lost_observations: Floats, lost_total: Floats, lost_counts: Floats, keeps_losses: bool, keys: Ints, mapped: Ints,
    places: Any, placed_in: Any,
) -> None:  # fmt: skip
    """Add up the rows of each group in its layout targets[g]. Sums and losses must be 0 at first. Without
    `keeps_losses`, the losses are added to the sums, and `lost_counts` is a buffer like `keys` and `mapped`.

    `places`: for each bucket of a layout, its place in the layout placed_in[layout] (-1 at first). It is reused while
    consecutive groups have the same result layout, as the steps of one series do."""
    keys_of = -1
    for g in range(targets.size):
        begin, end = group_start[g], group_start[g + 1]
        if notes[g] & MIXED:
            flags[g] = IS_FLOAT
            continue
        target = targets[g]
        sums, buckets = counts[start[g] : start[g + 1]], width(layouts, target)
        schema, threshold = layouts.schema[target], layouts.zero_threshold[target]
        bounds = layouts.bound[layouts.bound_start[target] : layouts.bound_start[target + 1]]
        lost = lost_counts[start[g] : start[g + 1]] if keeps_losses else lost_counts[:buckets]
        lost[:] = 0.0
        count_lost = total_lost = 0.0
        hints = 0
        for m in range(begin, end):
            row, weight = members[m], weights[m]
            layout, row_counts = rows.layout[row], rows.counts[rows.start[row] : rows.start[row + 1]]
            observations[g], count_lost = _add(observations[g], count_lost, weight * rows.observations[row])
            total[g], total_lost = _add(total[g], total_lost, weight * rows.sum[row])
            hints |= 1 << (rows.flags[row] & HINT)
            if layout == target:
                for i in range(buckets):
                    sums[i], lost[i] = _add(sums[i], lost[i], weight * row_counts[i])
                continue
            place = places[layouts.start[layout] : layouts.start[layout + 1]]
            if placed_in[layout] != target:
                if keys_of != target:
                    map_buckets(layouts, edges, target, schema, threshold, bounds, keys)
                    keys_of = target
                map_buckets(layouts, edges, layout, schema, threshold, bounds, mapped)
                _find_places(keys, mapped, place)
                placed_in[layout] = target
            for i in range(place.size):
                at = place[i]
                sums[at], lost[at] = _add(sums[at], lost[at], weight * row_counts[i])
        if keeps_losses:
            lost_observations[g], lost_total[g] = count_lost, total_lost
        else:
            for i in range(buckets):
                sums[i] += lost[i]
            observations[g] += count_lost
            total[g] += total_lost
        flags[g] = IS_FLOAT | _hint_of(hints)
        if hints & (1 << HINT_RESET) and hints & (1 << HINT_NOT_RESET):
            notes[g] |= CONFLICTING


@inlined
def _hint_of(hints: Any) -> Any:
    """The reset hint of a sum, from the set of the hints of its rows (bit h: hint h occurs)."""
    if hints & (1 << HINT_GAUGE):
        return HINT_GAUGE
    if hints == 1 << HINT_RESET:
        return HINT_RESET
    return HINT_NOT_RESET if hints == 1 << HINT_NOT_RESET else HINT_UNKNOWN
