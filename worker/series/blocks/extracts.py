"""Extracts of the directories of blocks, for a reader that reads many series, some at a time.

Each of its reads looks up series in every block. If the directories do not all fit in the cache, each is dropped for
the others before the next read needs it. So when a directory had to be decoded, the reader keeps the part about the
next series.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.series.blocks.block import Block
from worker.series.blocks.directory import Directory

Ids = NDArray[np.int64]

RUNS_MAX = 1 << 17
"""Runs in the extracts of all blocks together: 6 MB, which are charged to the query."""

READS_MIN = 4
"""An extract is first tried for this many reads. If the series of these are already scattered over too many chunks, no
more are looked up."""


@dataclass(frozen=True, slots=True)
class _Extract:
    """The runs of all series of the reader from `first` to `last`."""

    first: int
    last: int
    directory: Directory


class Extracts:
    """The extracts of one reader, which reads the series `ids` (int64[n], ascending) in this order, with
    start ≤ t ≤ end. `permanent_of` gives the permanent ids of series. Used by one thread at a time."""

    def __init__(self, ids: Ids, permanent_of: Callable[[Ids], Ids], start_ms: int, end_ms: int) -> None:
        self._ids = ids
        self._permanent_of = permanent_of
        self._start_ms = start_ms
        self._end_ms = end_ms
        self._kept: dict[str, _Extract] = {}

    def directory(self, block: Block, ids: Ids, blocks: int) -> Directory:
        """The directory of the block, or an extract that has the runs of `ids`: consecutive series of the reader.
        `blocks`: how many blocks share the room. Raises CorruptBlock, Unavailable."""
        extract = self._kept.get(block.row.name)
        if extract is not None and extract.first <= ids[0] and ids[-1] <= extract.last:
            return extract.directory
        directory = block.cached_directory()
        if directory is None:
            directory = block.read_directory()
            self._kept.pop(block.row.name, None)
            with suppress(MemoryError):
                self._keep(block.row.name, directory, ids, max(1, RUNS_MAX // blocks))
        return directory

    def _keep(self, name: str, directory: Directory, ids: Ids, runs_max: int) -> None:
        """Keep an extract for `ids` and the series after them, unless there is no room for more than these."""
        first, tried = int(np.searchsorted(self._ids, ids[0])), READS_MIN * len(ids)
        covered, runs, chunks = self._first_chunks(directory, first, tried, runs_max)
        if covered == tried:
            # If a block has few of the reader's series, the runs of more series fit.
            more_series = min(max(runs_max, covered * runs_max // max(1, runs)), RUNS_MAX)
            if more_series > covered:
                covered, _, chunks = self._first_chunks(directory, first, more_series, runs_max)
        if covered > len(ids):
            last = first + covered - 1
            self._kept[name] = _Extract(int(self._ids[first]), int(self._ids[last]), directory.extract(chunks))

    def _first_chunks(self, directory: Directory, first: int, series: int, runs_max: int) -> tuple[int, int, Ids]:
        """As `Directory.first_chunks`, for up to `series` of the reader's series, from self._ids[first] on."""
        permanent = self._permanent_of(self._ids[first : first + series])
        return directory.first_chunks(permanent, self._start_ms, self._end_ms, runs_max)
