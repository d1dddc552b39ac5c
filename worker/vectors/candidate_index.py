"""What finds candidates for a search: an index of a table's rows, of the kind that a collection has."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Collection, Floats
from worker.vectors.graph import Graph
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.row_filter import Allowed
from worker.vectors.similarity import Rows


class CandidateIndex(Protocol):
    """An index of rows. One thread adds, saves and loads; searches are safe beside it, from many threads."""

    slice_rows: int
    """Rows to add at once."""
    slice_rows_searched: int
    """Rows to add at once while there are searches."""

    @property
    def memory_bytes(self) -> int: ...

    def renumbered(self, numbers: Rows, table: NDArray[np.floating]) -> Generator[None, None, CandidateIndex]:
        """Returns an index of some of these rows under new numbers: row i gets the number `numbers[i]`, int64[n], and
        is left out where that is −1; the other numbers ascend. `table` float32 or float16 [≥ m, dimension] has the
        vectors by the new numbers. Yields between slices."""
        ...

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add `rows` int64[n] with their vectors float32[n, dimension]."""
        ...

    def search(self, queries: Floats, k: int, fetch: int, expansion: int, limit: int, allowed: Allowed) -> Rows:
        """Candidates for the `k` nearest rows to each query, float32[q, dimension]: int64[q, c], −1 for none.

        Only rows count that are below `limit` and allowed; about `k` of the nearest `fetch` rows are expected to be. A
        greater `expansion` takes longer and finds more.
        """
        ...

    def exact_rows(self, k: int, fetch: int, expansion: int) -> float:
        """About how many rows could be compared exactly, for each query, in the time of such a `search`."""
        ...

    def save(self, path: Path) -> None:
        """Write the index to a file without syncing it: see `Objects.put_by_path`."""
        ...

    def load(self, path: Path, rows: int) -> None:
        """Replace the content by that of a file whose checksum the caller has verified. Raises RuntimeError or
        ValueError if it is not an index of this kind with at most `rows` rows."""
        ...


def new_index(collection: Collection) -> CandidateIndex:
    """An empty index for a collection's vectors."""
    if collection.kind_of_index == "graph":
        return Graph(collection.dimension, collection.metric, collection.storage)
    return InvertedLists(collection.dimension, collection.metric)
