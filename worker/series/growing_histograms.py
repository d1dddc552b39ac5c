"""Histograms in memory that grow by appending, such as those of a head.

Counts stay as narrow as they arrived (`shared.histograms.frames`), mostly a byte or two each, and are widened when they
are read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import INTS, HistogramBatch, HistogramColumns, Ints, Layouts, sealed
from shared.histograms.frame_layout import get_numbers, number, sections, size_of
from shared.histograms.frames import with_used_layouts
from shared.histograms.interning import COLLECTION, LayoutCollection, collection, intern, views, with_room
from shared.histograms.packed import PackedHistograms
from shared.kernels import kernel, types
from worker.series.growing_array import GrowingArray

_LAYOUT_BYTES = 1 + 8 + 4 + 8 + 8
_ROOM_ROWS, _ROOM_WORDS = 1 << 14, 1 << 17
"""Capacity of empty columns, which takes no memory until it has rows."""

_ROW = np.dtype(
    [
        ("start", np.int64),
        ("observations", np.float64),
        ("sum", np.float64),
        ("layout", np.int32),
        ("flags", np.uint8),
        ("code", np.uint8),
    ],
    align=True,
)
"""A row. Its counts are numbers of the type `code`, from byte `start` of the words of counts on, as many as its layout
has buckets."""
_ROWS = types.Array(types.Record(_ROW), 1, "C")
_ROWS_IN = types.Array(types.Record(_ROW), 1, "C", readonly=True)
_TAKEN = types.NamedTuple(
    [
        types.Array(dtype, 1, "C")
        for dtype in (types.int32, types.uint8, types.float64, types.float64, types.int64, types.float64)
    ],
    HistogramColumns,
)


@kernel(
    types.void(INTS, COLLECTION, types.int32[::1], _ROWS, types.int64, types.int64[::1], types.int64),
    first=True,
    allocates=False,
    error_model="numpy",
)
def _append(
    frame: Ints, layouts: LayoutCollection, numbers: NDArray[np.int32], rows: Any, row: int, words: Ints, word: int
) -> None:
    """Append the rows of a frame from `row` on, and their counts from `word` on; numbers[i] becomes the number of the
    frame's layout i in the collection."""
    section = sections(frame)
    ints, octets, floats = frame.view(np.int32), frame.view(np.uint8), frame.view(np.float64)
    bucket, bound = 2 * section.indexes, section.bound_at
    for layout in range(section.layouts):
        buckets, bounds = ints[2 * section.layout_sizes + layout], ints[2 * section.bound_sizes + layout]
        at, bound_at = layouts.start[layouts.used[0]], layouts.bound_start[layouts.used[0]]
        for i in range(buckets):
            layouts.indexes[at + i] = ints[bucket + i]
        for i in range(bounds):
            layouts.bound[bound_at + i] = floats[bound + i]
        bucket += buckets
        bound += bounds
        schema = np.int8(octets[8 * section.schemas + layout])
        numbers[layout] = intern(
            layouts,
            schema,
            floats[section.zero_thresholds + layout],
            ints[2 * section.zero_places + layout],
            buckets,
            bounds,
        )
    size, start = size_of(section.count_code), 8 * word
    for i in range(section.rows):
        layout = ints[2 * section.layout + i]
        rows[row + i].layout = numbers[layout]
        rows[row + i].flags = octets[8 * section.flags + i]
        rows[row + i].code = section.count_code
        rows[row + i].start = start
        rows[row + i].sum = floats[section.sums + i]
        rows[row + i].observations = number(frame, section.observation_code, section.observations, i)
        start += size * ints[2 * section.layout_sizes + layout]
    for i in range(section.observations - section.counts_at):
        words[word + i] = frame[section.counts_at + i]


@kernel(types.void(INTS, INTS, _ROWS_IN, _TAKEN), first=True, allocates=False, error_model="numpy")
def _take(row_numbers: Ints, layout_start: Ints, rows: Any, columns: HistogramColumns) -> None:
    """Fill the columns of the wanted rows, except the counts."""
    count = np.int64(0)
    for i in range(row_numbers.size):
        row = rows[row_numbers[i]]
        columns.layout[i], columns.flags[i] = row.layout, row.flags
        columns.observations[i], columns.sum[i] = row.observations, row.sum
        columns.start[i] = count
        count += layout_start[row.layout + 1] - layout_start[row.layout]
    columns.start[row_numbers.size] = count


@kernel(types.void(INTS, _ROWS_IN, INTS, INTS, types.float64[::1]), first=True, allocates=False, error_model="numpy")
def _take_counts(row_numbers: Ints, rows: Any, words: Ints, start: Ints, counts: NDArray[np.float64]) -> None:
    for i in range(row_numbers.size):
        row = rows[row_numbers[i]]
        get_numbers(words, row.code, row.start, counts[start[i] : start[i + 1]])


class HistogramsSoFar(NamedTuple):
    """The rows at one moment. Later appends do not change them, so reading them needs no lock."""

    layouts: Layouts
    rows: NDArray[Any]
    words: Ints

    def take(self, row_numbers: Ints) -> HistogramBatch:
        """The rows with these numbers, in this order, with their layouts."""
        n = len(row_numbers)
        columns = HistogramColumns(
            np.empty(n, np.int32), np.empty(n, np.uint8), np.empty(n), np.empty(n), np.empty(n + 1, np.int64),
            np.empty(0),
        )  # fmt: skip
        _take(row_numbers, self.layouts.columns.start, self.rows, columns)
        columns = columns._replace(counts=np.empty(columns.start[-1]))
        _take_counts(row_numbers, self.rows, self.words, columns.start, columns.counts)
        return with_used_layouts(HistogramBatch(self.layouts, sealed(columns)))


class GrowingHistograms:
    """Histograms that are appended and never change. Equal layouts are kept once."""

    def __init__(self) -> None:
        self._rows = GrowingArray(_ROW, capacity=_ROOM_ROWS, is_refilled=True)
        self._words = GrowingArray(np.int64, capacity=_ROOM_WORDS, is_refilled=True)
        self._layouts = collection(1, 1, 1)
        self._layout_bytes = self._layouts.slots.nbytes
        """Memory of the layouts, computed when they change, because each write asks for it several times."""
        self._layouts_counted = 0
        self._counts = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Memory of the rows and layouts in use."""
        return self._nbytes(8 * len(self._words))

    @property
    def read_nbytes(self) -> int:
        """Memory that all rows take when they are read."""
        return self._nbytes(8 * self._counts)

    def _nbytes(self, count_bytes: int) -> int:
        return _ROW.itemsize * len(self) + count_bytes + self._layout_bytes

    def _count_layouts(self) -> None:
        layouts = self._layouts
        layout_count = layouts.used.item(0)
        array_bytes = (
            4 * layouts.start.item(layout_count) + 8 * layouts.bound_start.item(layout_count) + layouts.slots.nbytes
        )
        self._layout_bytes, self._layouts_counted = _LAYOUT_BYTES * layout_count + array_bytes, layout_count

    def append(self, histograms: PackedHistograms) -> int:
        """Append all rows. Returns the number of the first one."""
        first, layouts = len(self), self._layouts
        for words, section in histograms.frames:
            self._layouts = with_room(self._layouts, section.layouts, section.buckets, section.bounds)
            count_words = section.observations - section.counts_at
            self._rows.reserve(section.rows)
            self._words.reserve(count_words)
            numbers = np.empty(section.layouts, np.int32)
            _append(words, self._layouts, numbers, self._rows.data, len(self), self._words.data, len(self._words))
            self._rows.size += section.rows
            self._words.size += count_words
            self._counts += section.counts
        if self._layouts is not layouts or layouts.used.item(0) != self._layouts_counted:
            self._count_layouts()
        return first

    def so_far(self) -> HistogramsSoFar:
        """All rows appended so far."""
        return HistogramsSoFar(views(self._layouts), self._rows.rows(), self._words.rows())
