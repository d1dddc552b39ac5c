"""Histograms in memory that more are appended to, such as those of a head."""

from __future__ import annotations

import numpy as np

from shared.histograms.batch import HistogramBatch, HistogramColumns, Ints, sealed
from shared.histograms.frames import with_used_layouts
from shared.histograms.interning import collection, interned, views, with_room
from worker.series.growing_array import GrowingArray

_ROW_BYTES = 4 + 1 + 8 + 8 + 8
_LAYOUT_BYTES = 1 + 8 + 4 + 8 + 8


class GrowingHistograms:
    """Rows are appended and never change. Each layout is kept once for all of them."""

    def __init__(self) -> None:
        self._layout = GrowingArray(np.int32)
        self._flags = GrowingArray(np.uint8)
        self._observations = GrowingArray(np.float64)
        self._sum = GrowingArray(np.float64)
        self._start = GrowingArray(np.int64)
        self._start.extend(np.zeros(1, np.int64))
        self._counts = GrowingArray(np.float64)
        self._layouts = collection(1, 1, 1)

    def __len__(self) -> int:
        return len(self._layout)

    @property
    def nbytes(self) -> int:
        """The memory of rows and layouts that is used."""
        layouts = self._layouts
        used = int(layouts.used[0])
        in_layouts = 4 * int(layouts.start[used]) + 8 * int(layouts.bound_start[used]) + layouts.slots.nbytes
        return _ROW_BYTES * len(self) + 8 * len(self._counts) + _LAYOUT_BYTES * used + in_layouts

    def append(self, batch: HistogramBatch) -> int:
        """Append all rows. Returns the number that the first one has here."""
        first, rows = len(self), batch.columns
        self._layouts = with_room(self._layouts, batch.layouts.columns)
        self._layout.extend(interned(self._layouts, batch.layouts.columns)[rows.layout])
        self._flags.extend(rows.flags)
        self._observations.extend(rows.observations)
        self._sum.extend(rows.sum)
        self._start.extend(rows.start[1:] + len(self._counts))
        self._counts.extend(rows.counts)
        return first

    def take(self, rows: Ints) -> HistogramBatch:
        """The rows with these numbers, in this order."""
        columns = HistogramColumns(
            self._layout.rows(),
            self._flags.rows(),
            self._observations.rows(),
            self._sum.rows(),
            self._start.rows(),
            self._counts.rows(),
        )
        return with_used_layouts(HistogramBatch(views(self._layouts), sealed(columns)).take(rows))
