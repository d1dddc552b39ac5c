"""Gathers the histograms of a matrix whose series are evaluated some at a time."""

from __future__ import annotations

import numpy as np

from shared.histograms.batch import HistogramBatch, concatenated
from shared.histograms.references import references, shifted, used_only
from shared.promql.model import Bool, Float


class GatheredHistograms:
    """The histograms gathered so far, with consecutively numbered rows."""

    def __init__(self) -> None:
        self._batches: list[HistogramBatch] = []
        self._rows = 0
        self.buckets = 0

    def add(self, batch: HistogramBatch) -> Float:
        """float64[rows]: references to the rows of the batch."""
        first = self._rows
        self._batches.append(batch)
        self._rows += len(batch)
        self.buckets += len(batch.columns.counts)
        return references(np.arange(first, self._rows))

    def adopt(self, values: Float, present: Bool, batch: HistogramBatch) -> None:
        """Gather the rows that values refer to, and renumber the references in place. Absent values become NaN."""
        values[~present] = np.nan
        renumbered, used = used_only(values, batch)
        if used is not None:
            values[:] = shifted(renumbered, self._rows)
            self.add(used)

    def batch(self) -> HistogramBatch | None:
        """All gathered histograms; None if there are none."""
        return concatenated(self._batches) if self._rows else None
