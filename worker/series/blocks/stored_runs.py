"""Runs of a block's chunk that are decoded where their samples are wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.series.blocks.paged_chunk import PagedChunk
from worker.series.pieces import Piece


@dataclass(slots=True)
class StoredRuns:
    """Whole runs of a chunk; implements `pieces.Part`. rows[i] of the answer has run runs[i] of the chunk, with
    counts[i] samples: int64[n] each, `runs` ascending. `corrupt` makes the error that says why the chunk cannot be
    decoded."""

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

    def only(self, which: NDArray[np.bool_]) -> StoredRuns:
        """Those of the runs where `which`, bool[n]."""
        return StoredRuns(self.chunk, self.corrupt, self.rows[which], self.runs[which], self.counts[which])

    def write(self, at: NDArray[np.int64], times_ms: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Write the samples of each run from at[i] on. Raises CorruptBlock."""
        try:
            self.chunk.read(self.runs, at, times_ms, values)
        except ValueError as error:
            raise self.corrupt(error) from error

    def decoded(self) -> Piece:
        """Their samples. Raises CorruptBlock."""
        ends = np.cumsum(self.counts)
        starts = ends - self.counts
        times_ms, values = np.empty(int(ends[-1]), np.int64), np.empty(int(ends[-1]))
        self.write(starts, times_ms, values)
        return Piece(times_ms, values, self.rows, starts, ends)

    def without(self, is_deleted: NDArray[np.bool_], start_ms: int, end_ms: int) -> StoredRuns | Piece:
        """See `Piece.without`. Raises CorruptBlock."""
        return self.decoded().without(is_deleted, start_ms, end_ms) if is_deleted[self.rows].any() else self
