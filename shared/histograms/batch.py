"""Batches of native histograms: columns with a row for each histogram, and the layouts that rows share.

A **layout** says what the counts of a row mean: the schema, the zero threshold, the indexes of the buckets and the
boundaries of custom ones. The histograms of a series, and often those of many series, have the same layout, so it is
kept once. The buckets of a layout are in the order of the values they hold: negative buckets (from the largest index
down), the zero bucket, positive buckets. Sums, quantiles and trimming are therefore plain walks along the counts of a
row. A custom layout has no zero bucket.

Counts are float64, as everywhere in PromQL; integers above 2^53 are rounded. All arrays are read-only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.histograms.schemas import CUSTOM, bucket_bound
from shared.kernels import kernel, types

STALE_SUM_BITS = 0x7FF0000000000002
"""The bits of the sum of a stale marker. Nothing else marks one; the other fields of the row are meaningless."""

HINT, HINT_UNKNOWN, HINT_RESET, HINT_NOT_RESET, HINT_GAUGE = 3, 0, 1, 2, 3
"""In the flags of a row: the mask of the counter reset hint, and its values, as in remote write."""
IS_FLOAT = 4
"""In the flags of a row: its counts were sent as floating-point numbers."""

NO_ZERO = -1

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class LayoutColumns(NamedTuple):
    """Layouts in columns; the buckets of layout l are start[l] to start[l + 1] of `indexes`."""

    schema: NDArray[np.int8]
    zero_threshold: Floats
    zero_at: NDArray[np.int32]
    """The place of the zero bucket, which equals the number of negative buckets; NO_ZERO in custom layouts."""
    start: Ints
    indexes: NDArray[np.int32]
    """The index of each bucket according to the specification, so a negative and a positive bucket may have the same
    one; 0 for the zero bucket."""
    bound_start: Ints
    bound: Floats
    """The boundaries of custom layout l, ascending, from bound_start[l] to bound_start[l + 1]."""


class HistogramColumns(NamedTuple):
    """Rows in columns; the counts of row r are start[r] to start[r + 1] of `counts`: one for each bucket of its
    layout. `observations` is the count of all observations, including NaN observations."""

    layout: NDArray[np.int32]
    flags: NDArray[np.uint8]
    observations: Floats
    sum: Floats
    start: Ints
    counts: Floats


def _readonly(dtype: Any) -> Any:
    return types.Array(dtype, 1, "C", readonly=True)


INTS, FLOATS = _readonly(types.int64), _readonly(types.float64)
_INT32 = _readonly(types.int32)
LAYOUTS = types.NamedTuple(
    (_readonly(types.int8), FLOATS, _INT32, INTS, _INT32, INTS, FLOATS), LayoutColumns
)  # fmt: skip
ROWS = types.NamedTuple((_INT32, _readonly(types.uint8), FLOATS, FLOATS, INTS, FLOATS), HistogramColumns)
_EDGES = types.float64[:, ::1]
EDGES = types.Array(types.float64, 2, "C", readonly=True)


def read_only(array: Any, dtype: Any) -> Any:
    """A read-only view of the array, or of a copy with this type."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


_Columns = TypeVar("_Columns", bound=tuple[NDArray[Any], ...])


def sealed(columns: _Columns) -> _Columns:
    """The columns, made read-only: kernels are compiled only for such arrays."""
    for array in columns:
        array.flags.writeable = False
    return columns


@dataclass(frozen=True, eq=False)
class Layouts:
    """The layouts of a batch. Two of them may be equal."""

    columns: LayoutColumns

    def __len__(self) -> int:
        return len(self.columns.schema)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.columns) + (self.edges.nbytes if "edges" in self.__dict__ else 0)

    @cached_property
    def edges(self) -> Floats:
        """float64[buckets, 2]: the left and the right boundary of each bucket."""
        edges = np.empty((len(self.columns.indexes), 2))
        bucket_edges(self.columns, edges)
        edges.flags.writeable = False
        return edges


@dataclass(frozen=True, slots=True, eq=False)
class HistogramBatch:
    """Native histograms, a row each. Immutable; parts of a batch share its memory where they can."""

    layouts: Layouts
    columns: HistogramColumns

    def __len__(self) -> int:
        return len(self.columns.layout)

    @property
    def buckets(self) -> int:
        """The total number of buckets of all rows."""
        return len(self.columns.counts)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays, including those of the layouts."""
        return self.layouts.nbytes + sum(array.nbytes for array in self.columns)

    @property
    def hints(self) -> NDArray[np.uint8]:
        return self.columns.flags & np.uint8(HINT)

    @property
    def is_stale(self) -> NDArray[np.bool_]:
        return np.asarray(self.columns.sum.view(np.int64) == STALE_SUM_BITS)

    @property
    def is_custom(self) -> NDArray[np.bool_]:
        return (self.layouts.columns.schema == CUSTOM)[self.columns.layout]

    def take(self, rows: Ints) -> HistogramBatch:
        """The rows with these numbers, in this order; a number may occur several times."""
        columns = self.columns
        sizes = np.diff(columns.start)[rows]
        start = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        counts = np.empty(start[-1])
        copy_counts(columns, read_only(rows, np.int64), start, counts)
        return HistogramBatch(
            self.layouts,
            sealed(
                HistogramColumns(
                    columns.layout[rows],
                    columns.flags[rows],
                    columns.observations[rows],
                    columns.sum[rows],
                    start,
                    counts,
                )
            ),
        )

    def rows(self, first: int, last: int) -> HistogramBatch:
        """The rows from `first` up to `last`, without a copy of their counts. Expects 0 ≤ first ≤ last ≤ len(self)."""
        columns = self.columns
        begin, end = columns.start[first], columns.start[last]
        return HistogramBatch(
            self.layouts,
            sealed(
                HistogramColumns(
                    columns.layout[first:last],
                    columns.flags[first:last],
                    columns.observations[first:last],
                    columns.sum[first:last],
                    columns.start[first : last + 1] - begin,
                    columns.counts[begin:end],
                )
            ),
        )


def concatenated(batches: list[HistogramBatch]) -> HistogramBatch:
    """All rows, in order. Equal layouts are not merged, but batches that share a `Layouts` still do."""
    tables = list({id(batch.layouts): batch.layouts for batch in batches}.values())
    firsts = np.cumsum([0, *(len(table) for table in tables)])
    first_of = {id(table): first for table, first in zip(tables, firsts[:-1].astype(np.int32), strict=True)}
    rows = [batch.columns for batch in batches]
    return HistogramBatch(
        joined_layouts(tables),
        sealed(
            HistogramColumns(
                _joined_arrays([batch.columns.layout + first_of[id(batch.layouts)] for batch in batches], np.int32),
                _joined_arrays([columns.flags for columns in rows], np.uint8),
                _joined_arrays([columns.observations for columns in rows], np.float64),
                _joined_arrays([columns.sum for columns in rows], np.float64),
                _joined_starts([columns.start for columns in rows]),
                _joined_arrays([columns.counts for columns in rows], np.float64),
            )
        ),
    )


def joined_layouts(layouts: list[Layouts]) -> Layouts:
    """The layouts of all tables, one table after another."""
    if len(layouts) == 1:
        return layouts[0]
    tables = [part.columns for part in layouts]
    return Layouts(
        sealed(
            LayoutColumns(
                _joined_arrays([table.schema for table in tables], np.int8),
                _joined_arrays([table.zero_threshold for table in tables], np.float64),
                _joined_arrays([table.zero_at for table in tables], np.int32),
                _joined_starts([table.start for table in tables]),
                _joined_arrays([table.indexes for table in tables], np.int32),
                _joined_starts([table.bound_start for table in tables]),
                _joined_arrays([table.bound for table in tables], np.float64),
            )
        )
    )


def _joined_arrays(arrays: list[Any], dtype: Any) -> Any:
    return np.concatenate([np.empty(0, dtype), *arrays])


def _joined_starts(starts: list[Ints]) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(_joined_arrays([np.diff(s) for s in starts], np.int64))))


@kernel(types.void(LAYOUTS, _EDGES), error_model="numpy")
def bucket_edges(layouts: LayoutColumns, edges: Floats) -> None:
    """Fill edges[bucket] with the left and the right boundary of every bucket. A bucket that the zero threshold cuts
    ends at the threshold, since observations nearer to zero are in the zero bucket."""
    for layout in range(layouts.schema.size):
        begin, end = layouts.start[layout], layouts.start[layout + 1]
        schema, zero = layouts.schema[layout], begin + layouts.zero_at[layout]
        if schema == CUSTOM:
            bounds = layouts.bound[layouts.bound_start[layout] : layouts.bound_start[layout + 1]]
            for i in range(begin, end):
                index = layouts.indexes[i]
                edges[i, 0] = bounds[index - 1] if index > 0 else -np.inf
                edges[i, 1] = bounds[index] if index < bounds.size else np.inf
            continue
        threshold = layouts.zero_threshold[layout]
        for i in range(begin, end):
            if i == zero:
                edges[i, 0], edges[i, 1] = -threshold, threshold
                continue
            near, far = bucket_bound(schema, layouts.indexes[i] - 1), bucket_bound(schema, layouts.indexes[i])
            if near < threshold < far:
                near = threshold
            edges[i, 0], edges[i, 1] = (near, far) if i > zero else (-far, -near)


@kernel(types.void(ROWS, INTS, INTS, types.float64[::1]), error_model="numpy")
def copy_counts(rows: HistogramColumns, taken: Ints, start: Ints, counts: Floats) -> None:
    """Copy the counts of row taken[i] to counts[start[i]:start[i + 1]]."""
    for i in range(taken.size):
        begin = rows.start[taken[i]]
        for j in range(start[i + 1] - start[i]):
            counts[start[i] + j] = rows.counts[begin + j]
