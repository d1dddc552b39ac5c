"""The approximate index of a worker's collection: usearch's HNSW graph over row numbers.

usearch gives no promise for every mix of threads (concurrent adds can leave nodes no search reaches, and a thread's
scratch space is chosen by its number in the call, so two calls share it; even reading `memory_usage` during an add ends
the process), so one call runs on an index at a time here, and nothing is read from one outside a call.
Rows are only ever added: a replaced or deleted vector keeps its node until the index is built anew, and the caller
leaves it out of answers.

The graph's copy of the vectors is rounded (`_COMPONENTS`): it only leads to candidates, which the caller compares with
the vectors themselves.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numba import types
from usearch.index import Index, MetricKind

from shared.kernels import kernel
from shared.messages.vectors import Floats
from worker.vectors.similarity import Rows

_COUNTS = types.Array(types.int64, 1, "C", readonly=True)

CONNECTIVITY = 16
GRAPH_BYTES = 216  # a vector's share of the graph beside its components, measured
EXPANSION_ADD = 128

# bfloat16 has a float's range, and processors multiply it in half the time of a float. Not under l2, where vectors far
# from the origin and near each other would become one.
_COMPONENTS = {"f32": "bf16", "f16": "bf16", "i8": "i8"}
_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1}
# Vectors are unit length under cosine, where the inner product is the cosine and costs less. i8 scales components to
# the range of a byte, which usearch does for the cosine metric only.
_METRICS = {"cosine": MetricKind.IP, "dot": MetricKind.IP, "l2": MetricKind.L2sq}


def components(metric: str, storage: str) -> str:
    """The type of a component in the graph."""
    return storage if metric == "l2" else _COMPONENTS[storage]


def node_bytes(dimension: int, metric: str, storage: str) -> int:
    """What a vector takes in the graph."""
    return GRAPH_BYTES + _BYTES[components(metric, storage)] * dimension


@kernel(types.void(types.int64[:, ::1], _COUNTS, types.int64))
def _clear(rows, counts, limit):  # type: ignore[no-untyped-def]
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            if c >= counts[q] or rows[q, c] >= limit:
                rows[q, c] = -1


class AnnIndex:
    """Safe to use from many threads. A waiting search goes before the next `add`."""

    def __init__(self, dimension: int, metric: str, storage: str) -> None:
        index: Any = Index(
            ndim=dimension,
            metric=MetricKind.Cos if storage == "i8" else _METRICS[metric],
            dtype=components(metric, storage),
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
            enable_key_lookups=False,  # nobody asks for a row by its number
        )
        # The compiled object itself: what usearch wraps around each call costs a fifth of a search.
        self._index = index._compiled
        self._lock = Lock()
        # Held by who is next: an add that ends must queue behind a search that waits already, however quick it is.
        self._next = Lock()

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add a slice: `rows` int64[n], `vectors` float32[n, dimension]. A search waits for the whole slice."""
        with self._next:
            self._lock.acquire()
        try:
            self._index.add_many(rows.view(np.uint64), vectors, threads=1)
        finally:
            self._lock.release()

    def search(self, queries: Floats, count: int, limit: int) -> Rows:
        """Rows near each query, int64[q, count]: the candidates a walk of the graph ends with that keeps `count` of
        them. −1 where fewer were found, and for a row that is not below `limit`."""
        with self._next:
            self._lock.acquire()
        try:
            self._index.expansion_search = count
            keys, _, counts, _, _ = self._index.search_many(queries, count, False, 1)
        finally:
            self._lock.release()
        rows: Rows = keys.view(np.int64)
        _clear(rows, counts, limit)
        return rows

    def save(self, path: Path) -> None:
        """Write the index to a file, without a sync: see `Objects.put_by_path`."""
        with self._lock:
            self._index.save_index_to_path(str(path), None)

    def load(self, path: Path, rows: int) -> None:
        """Replace the content by a file's, whose checksum the caller has verified: a damaged one may end the process.

        Raises RuntimeError or ValueError for a file that is not such an index of at most `rows` rows.
        """
        with self._lock:
            kind = self._index.dtype
            dimension = self._index.ndim
            self._index.load_index_from_path(str(path), None)
            if self._index.ndim != dimension or self._index.dtype != kind or len(self._index) > rows:
                raise ValueError(
                    f"{path.name} has {len(self._index)} rows of {self._index.ndim} components ({self._index.dtype}); "
                    f"at most {rows} rows of {dimension} components ({kind}) are right"
                )
