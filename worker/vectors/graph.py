"""A usearch HNSW graph over row numbers: the index of collections that ask for one, and of those with storage `b1`.

A graph runs one call at a time here, and nothing is read from it outside of a call, because usearch is not safe for
every mix of threads. Concurrent adds can leave nodes that no search reaches; two calls share scratch space, which a
thread gets by its number in the call; even reading `memory_usage` during an add ends the process.

Nodes are only added: a replaced or deleted vector keeps its node until the index is built anew, and the caller leaves
it out of answers. The graph's copy of the vectors is rounded (`_COMPONENTS`): it only gives candidates, which the
caller compares by the exact vectors.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from usearch.index import Index, MetricKind

from shared.kernels import kernel, types
from shared.messages.vectors import Floats
from worker.vectors.row_filter import Allowed
from worker.vectors.similarity import Rows

_COUNTS = types.Array(types.int64, 1, "C", readonly=True)

ROWS_PER_CANDIDATE = 50
"""One more candidate costs about as much as comparing this many rows exactly: some 4 µs, for about twenty distances one
after the other at random places in memory, where a row of many that are compared takes 0.04 to 0.08 (128
components)."""
DEPTH_POWER = 0.25
"""The candidates grow with this power of the rows for each one that a filter allows."""
EXPANSION_SHARE = 1.5
"""A search for more than `k` candidates, because of dead or filtered rows, keeps at least this many times as many."""
SURPLUS = 1.2
"""A search for `k` candidates keeps at least this many times as many: the last candidates of a walk are found least
reliably, and the graph orders them by rounded components."""

CONNECTIVITY = 16
GRAPH_BYTES = 216
"""A node's size in the graph without the vector's components, in bytes, measured."""
EXPANSION_ADD = 128

# bfloat16 has the range of a float32, and processors multiply it in half the time. It is not used under l2, where
# vectors far from the origin and near each other would become equal.
_COMPONENTS = {"f32": "bf16", "f16": "bf16", "i8": "i8", "b1": "b1"}
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "i8": 8, "b1": 1}
# Under cosine, vectors have unit length, so the inner product is the cosine and costs less. usearch scales components
# to the range of a byte for the cosine metric only, so i8 needs that metric. Of b1, signs are compared: the share
# of those that differ grows with the angle.
_METRICS = {"cosine": MetricKind.IP, "dot": MetricKind.IP, "l2": MetricKind.L2sq}

_STORAGE_METRICS = {"i8": MetricKind.Cos, "b1": MetricKind.Hamming}


def components(metric: str, storage: str) -> str:
    """The type of a component in the graph."""
    return storage if metric == "l2" else _COMPONENTS[storage]


def node_bytes(dimension: int, metric: str, storage: str) -> int:
    """The size of a vector's node in the graph, in bytes."""
    return GRAPH_BYTES + (_BITS[components(metric, storage)] * dimension + 7) // 8


@kernel(types.void(types.int64[:, ::1], _COUNTS, types.int64))
def _clear(rows, counts, limit):  # type: ignore[no-untyped-def]
    """Set to −1, in place, the entries of `rows` int64[q, c] that usearch has not filled, from `counts[q]` on, and the
    rows that are not below `limit`."""
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            if c >= counts[q] or rows[q, c] >= limit:
                rows[q, c] = -1


class Graph:
    """Satisfies `CandidateIndex`; `expansion` is the candidates that a walk of the graph keeps. Safe to use from many
    threads. A waiting search goes before the next `add`."""

    slice_rows = 64
    slice_rows_searched = 1

    def __init__(self, dimension: int, metric: str, storage: str) -> None:
        self._kind = dimension, metric, storage
        self._count = 0
        self._is_binary = storage == "b1"
        index: Any = Index(
            ndim=-(-dimension // 8) * 8 if self._is_binary else dimension,
            metric=_STORAGE_METRICS.get(storage, _METRICS[metric]),
            dtype=components(metric, storage),
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
            enable_key_lookups=False,  # no caller looks up a vector by its row number
        )
        # The compiled object itself: usearch's Python code around each call costs a fifth of a search.
        self._index = index._compiled
        self._lock = Lock()
        # Held by the next caller in turn: after an add, the next add must queue behind a search that already waits.
        self._next = Lock()

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add a slice: `rows` int64[n], `vectors` float32[n, dimension]. A search waits for the whole slice."""
        with self._next:
            self._lock.acquire()
        try:
            self._index.add_many(rows.view(np.uint64), self._stored(vectors), threads=1)
            self._count += len(rows)
        finally:
            self._lock.release()

    def nodes(self, queries: Floats, count: int, limit: int) -> Rows:
        """Rows near each of the queries float32[q, dimension], int64[q, count]: the candidates at the end of a walk
        that keeps `count` of them. −1 where there are fewer, and for rows that are not below `limit`."""
        with self._next:
            self._lock.acquire()
        try:
            self._index.expansion_search = count
            keys, _, counts, _, _ = self._index.search_many(self._stored(queries), count, False, 1)
        finally:
            self._lock.release()
        rows: Rows = keys.view(np.int64)
        _clear(rows, counts, limit)
        return rows

    def exact_rows(self, k: int, fetch: int, expansion: int) -> float:
        """See `CandidateIndex`."""
        return self._width(k, fetch, expansion) * ROWS_PER_CANDIDATE

    def _width(self, k: int, fetch: int, expansion: int) -> int:
        """The candidates that a walk keeps so that `fetch` of them are good ones."""
        deeper = max(1.0, fetch / k) ** DEPTH_POWER
        return max(math.ceil(expansion * deeper), math.ceil(fetch * (EXPANSION_SHARE if fetch > k else SURPLUS)))

    def search(self, queries: Floats, k: int, fetch: int, expansion: int, limit: int, allowed: Allowed) -> Rows:
        """See `CandidateIndex`."""
        rows = self.nodes(queries, self._width(k, fetch, expansion), limit)
        rows[~allowed.of(rows)] = -1
        return rows

    def _stored(self, vectors: Floats) -> NDArray:
        """As the graph takes them; of b1, uint8[n, ⌈dimension / 8⌉]."""
        return np.packbits(vectors > 0, axis=1) if self._is_binary else vectors

    @property
    def memory_bytes(self) -> int:
        """By the number of nodes: the graph cannot be asked while something is added."""
        return self._count * node_bytes(*self._kind)

    def renumbered(self, numbers: Rows, table: NDArray[np.floating]) -> Generator[None, None, Graph]:
        """See `CandidateIndex`: another graph."""
        fresh, rows = Graph(*self._kind), numbers[numbers >= 0]
        for start in range(0, len(rows), self.slice_rows):
            chosen = rows[start : start + self.slice_rows]
            fresh.add(chosen, table[chosen].astype(np.float32, copy=False))
            yield
        return fresh

    def save(self, path: Path) -> None:
        """Write the index to a file without syncing it: see `Objects.put_by_path`."""
        with self._lock:
            self._index.save_index_to_path(str(path), None)

    def load(self, path: Path, rows: int) -> None:
        """Replace the content by that of a file. The caller has verified the file's checksum: a damaged file may end
        the process.

        Raises RuntimeError or ValueError if the file is not an index of this kind with at most `rows` rows.
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
            self._count = len(self._index)
