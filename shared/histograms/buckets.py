"""Removes buckets from the rows of a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import (
    LAYOUTS,
    NO_ZERO,
    ROWS,
    Floats,
    HistogramBatch,
    HistogramColumns,
    Ints,
    LayoutColumns,
    read_only,
    sealed,
)
from shared.histograms.interning import COLLECTION, LayoutCollection, collected, collection, intern, with_more_bounds
from shared.kernels import kernel, types

_FLAGS = types.Array(types.boolean, 1, "C", readonly=True)


def compacted(batch: HistogramBatch) -> HistogramBatch:
    """The batch without the buckets that have no observations."""
    return without_buckets(batch, batch.columns.counts == 0)


def without_buckets(batch: HistogramBatch, dropped: NDArray[np.bool_]) -> HistogramBatch:
    """The batch without the buckets that are true in `dropped` (bool[counts]); the zero bucket always stays."""
    columns = batch.columns
    rows, table = len(batch), batch.layouts.columns
    widest = int(np.diff(table.bound_start).max(initial=0))
    layouts = collection(rows + 1, len(columns.counts) + 1, len(table.bound) + widest)
    layout, start = np.empty(rows, np.int32), np.zeros(rows + 1, np.int64)
    counts = np.empty(len(columns.counts))
    row = 0
    while (row := _keep(table, columns, read_only(dropped, np.bool_), row, layouts, layout, start, counts)) < rows:
        layouts = with_more_bounds(layouts)
    kept = HistogramColumns(layout, columns.flags, columns.observations, columns.sum, start, counts[: start[-1]].copy())
    return HistogramBatch(collected(layouts), sealed(kept))


@kernel(
    types.int64(LAYOUTS, ROWS, _FLAGS, types.int64, COLLECTION, types.int32[::1], types.int64[::1], types.float64[::1]),
    error_model="numpy",
)
def _keep(
    layouts: LayoutColumns,
    rows: HistogramColumns,
    dropped: NDArray[np.bool_],
    row: int,
    new: LayoutCollection,
    layout_of: NDArray[np.int32],
    start: Ints,
    counts: Floats,
) -> int:
    """Fill the columns from `row` on, until all are done or `new` has no room for the boundaries of the next row.
    Returns the number of the next row."""
    while row < layout_of.size:
        layout = rows.layout[row]
        bounds = layouts.bound[layouts.bound_start[layout] : layouts.bound_start[layout + 1]]
        if new.bound_start[new.used[0]] + bounds.size > new.bound.size:
            break
        first, zero = layouts.start[layout], layouts.zero_at[layout]
        index_at, bound_at, at = new.start[new.used[0]], new.bound_start[new.used[0]], start[row]
        kept, zero_at = 0, NO_ZERO
        for i in range(rows.start[row + 1] - rows.start[row]):
            count = rows.start[row] + i
            if i == zero:
                zero_at = kept
            elif dropped[count]:
                continue
            new.indexes[index_at + kept] = layouts.indexes[first + i]
            counts[at + kept] = rows.counts[count]
            kept += 1
        new.bound[bound_at : bound_at + bounds.size] = bounds
        layout_of[row] = intern(new, layouts.schema[layout], layouts.zero_threshold[layout], zero_at, kept, bounds.size)
        start[row + 1] = at + kept
        row += 1
    return row
