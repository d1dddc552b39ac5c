"""Runs of a block's chunk that are decoded directly into the arrays of a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.series.blocks.paged_chunk import PagedChunk
from worker.series.pieces import Piece


@dataclass(slots=True)
class StoredRuns:
    """Whole runs of a chunk; implements `pieces.Part`. Row rows[i] of the result has run runs[i] of the chunk, with
    counts[i] samples: int64[n] each, `runs` ascending. `corrupt` turns a decoding error into a CorruptBlock."""

    chunk: PagedChunk
    corrupt: Callable[[Exception], Exception]
    rows: NDArray[np.int64]
    runs: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        chunk: PagedChunk,
        corrupt: Callable[[Exception], Exception],
        rows: NDArray[np.int64],
        runs: NDArray[np.int64],
    ) -> StoredRuns:
        return cls(chunk, corrupt, rows, runs, chunk.counts(runs))

    def only(self, is_chosen: NDArray[np.bool_]) -> StoredRuns:
        """The runs where `is_chosen` (bool[n])."""
        return StoredRuns(self.chunk, self.corrupt, self.rows[is_chosen], self.runs[is_chosen], self.counts[is_chosen])

    def write(self, at: NDArray[np.int64], times_ms: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Write the samples of each run from at[i] on. Raises CorruptBlock."""
        try:
            self.chunk.read(self.runs, at, times_ms, values)
        except ValueError as error:
            raise self.corrupt(error) from error

    def decoded(self) -> Piece:
        """The samples of the runs. Raises CorruptBlock."""
        ends = np.cumsum(self.counts)
        starts = ends - self.counts
        times_ms, values = np.empty(int(ends[-1]), np.int64), np.empty(int(ends[-1]))
        self.write(starts, times_ms, values)
        return Piece(times_ms, values, self.rows, starts, ends)

    def without(self, is_deleted: NDArray[np.bool_], start_ms: int, end_ms: int) -> StoredRuns | Piece:
        """See `Piece.without`. Raises CorruptBlock."""
        return self.decoded().without(is_deleted, start_ms, end_ms) if is_deleted[self.rows].any() else self
