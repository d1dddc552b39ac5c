"""The approximate index of one shard's collection: usearch's HNSW graph over row numbers.

usearch gives no promise for every mix of threads (concurrent adds can leave nodes no search reaches, and a thread's
scratch space is chosen by its number in the call, so two calls share it; even reading `memory_usage` during an add ends
the process), so one call runs on an index at a time here, and nothing is read from one outside a call.
Rows are only ever added: a replaced or deleted vector keeps its node until the index is built anew, and the caller
leaves it out of answers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Condition, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from usearch.index import Index, MetricKind

from shared.messages.vectors import Floats
from worker.vectors.similarity import Rows

CONNECTIVITY = 16
GRAPH_BYTES = 212  # a vector's share of the graph beside its components, measured
COMPONENT_BYTES = {"f32": 4, "f16": 2, "i8": 1}
EXPANSION_ADD = 128
YIELD_S_MAX = 0.02  # an add lets waiting searches go first, but not for ever
QUIET_S = 0.5
SLICE_ROWS = 64
SLICE_ROWS_SEARCHED = 4  # 1 ms of building at 100,000 × 128

# Vectors are unit length under cosine, where the inner product is the cosine and costs less. i8 scales components to
# the range of a byte, which usearch does for the cosine metric only.
_METRICS = {"cosine": MetricKind.IP, "dot": MetricKind.IP, "l2": MetricKind.L2sq}


class AnnIndex:
    """Safe to use from many threads. `add` gives way to waiting searches."""

    def __init__(self, dimension: int, metric: str, storage: str) -> None:
        # usearch's own annotations lack the setter and the batch form.
        self._index: Any = Index(
            ndim=dimension,
            metric=MetricKind.Cos if storage == "i8" else _METRICS[metric],
            dtype=storage,
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
        )
        self._lock = Lock()
        self._gate = Condition()
        self._waiting = 0
        self._searched_at = 0.0

    @property
    def slice_rows(self) -> int:
        """How many rows to add at once: few while there are searches, which wait for the whole slice."""
        return SLICE_ROWS if time.monotonic() - self._searched_at > QUIET_S else SLICE_ROWS_SEARCHED

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add a slice: `rows` int64[n], `vectors` float32[n, dimension]. A search waits for the whole slice."""
        with self._gate:
            self._gate.wait_for(lambda: not self._waiting, timeout=YIELD_S_MAX)
        with self._lock:
            self._index.add(rows.astype(np.uint64), vectors, threads=1, log=False)

    def search(self, queries: Floats, count: int, expansion: int) -> Rows:
        """Rows near each query, int64[q, count], −1 where fewer were found."""
        self._searched_at = time.monotonic()
        with self._gate:
            self._waiting += 1
        with self._lock:
            with self._gate:
                self._waiting -= 1
                self._gate.notify()
            self._index.expansion_search = max(expansion, count)
            found = self._index.search(queries, count, threads=1, log=False)
        if len(queries) > 1:
            return _rows(found.keys, found.counts)
        rows = np.full((1, count), -1, dtype=np.int64)  # one query is answered with its matches only
        rows[0, : len(found.keys)] = found.keys
        return rows

    def save(self, path: Path) -> None:
        """Write the index and fsync it; searches go on, adds wait."""
        with self._lock:
            self._index.save(str(path))
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def load(self, path: Path) -> None:
        """Replace the content by a file's. Raises RuntimeError or ValueError for a file that is not such an index."""
        with self._lock:
            self._index.load(str(path))


def _rows(keys: NDArray[np.uint64], counts: NDArray[np.integer]) -> Rows:
    rows = keys.astype(np.int64)
    width = rows.shape[1]
    if (counts != width).any():
        rows[np.arange(width) >= np.asarray(counts)[:, None]] = -1
    return rows
