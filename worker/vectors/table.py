"""The rows of a collection in one worker's memory: what searches read while writes go on.

A row holds one version of one vector and never changes; replacing or deleting a vector makes its row dead. Readers take
a `TableView` and need no lock: a view's arrays are only ever written past the view's size or at dead rows, or copied
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Collection, Floats
from worker.vectors.ann import AnnIndex, node_bytes
from worker.vectors.attributes import Attributes
from worker.vectors.similarity import Rows, prepared

CAPACITY_MIN = 64

Shards = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class TableView:
    """The rows at one moment. Rows < `indexed` are in `index`; those from there to `size` must be searched exactly.

    `vectors` float32 or float16 [≥ size, dimension] as they are compared, `norms` float32[≥ size] their lengths,
    `alive` bool[≥ size], `shards` uint16[≥ size] the shard each living row is of, `ids` those of the rows.
    """

    index: AnnIndex
    vectors: NDArray[np.floating]
    norms: Floats
    alive: NDArray[np.bool_]
    shards: Shards
    versions: NDArray[np.uint64]
    ids: list[bytes]
    attributes: Attributes
    size: int
    indexed: int
    dead: int

    def allowed(self) -> NDArray[np.bool_]:
        return self.alive[: self.size]


class Table:
    """Rows under one writer at a time; the owner holds its lock around every method that changes it."""

    def __init__(self, collection: Collection, capacity: int = 0) -> None:
        self.collection = collection
        capacity = max(CAPACITY_MIN, capacity)
        # i8 is only how the index holds components: an answer's order is decided by the halves kept here.
        kind = np.float32 if collection.storage == "f32" else np.float16
        self._vectors: NDArray[np.floating] = np.zeros((capacity, collection.dimension), dtype=kind)
        self._norms = np.zeros(capacity, dtype=np.float32)
        self._alive = np.ones(capacity, dtype=np.bool_)
        self._shards: Shards = np.zeros(capacity, dtype=np.uint16)
        self._versions = np.zeros(capacity, dtype=np.uint64)
        self._ids: list[bytes] = []
        self._attributes = Attributes()
        self._index = AnnIndex(collection.dimension, collection.metric, collection.storage)
        self._size = self._indexed = self._dead = 0
        self.view = self._publish()

    def _publish(self) -> TableView:
        self.view = TableView(
            self._index,
            self._vectors,
            self._norms,
            self._alive,
            self._shards,
            self._versions,
            self._ids,
            self._attributes,
            self._size,
            self._indexed,
            self._dead,
        )
        return self.view

    @property
    def memory_bytes(self) -> int:
        """What the rows take; room kept for growth is not touched, so it takes address space only."""
        a_row = self._vectors.itemsize * self._vectors.shape[1] + 4 + 1 + 2 + 8
        sample = self._ids[:1000]
        # A bytes object has 33 bytes beside its text; list and dict hold 8 and about 100 bytes an entry.
        an_id = sum(map(len, sample)) // max(1, len(sample)) + 141
        a_node = node_bytes(self.collection.dimension, self.collection.metric, self.collection.storage)
        return self._size * (a_row + an_id) + self._indexed * a_node + self._attributes.memory_bytes

    def append(
        self,
        ids: Sequence[bytes],
        vectors: Floats,
        versions: NDArray[np.uint64],
        shards: Shards | int,
        attributes: Sequence[bytes],
        replaced: Sequence[int],
    ) -> int:
        """Add rows and let `replaced` ones die, in one step for readers. Returns the first new row."""
        first, count = self._size, len(ids)
        self._reserve(first + count)
        ready = prepared(vectors, self.collection.metric)
        self._vectors[first : first + count] = ready
        self._norms[first : first + count] = np.sqrt(np.einsum("ij,ij->i", ready, ready))
        self._versions[first : first + count] = versions
        self._shards[first : first + count] = shards
        self._ids.extend(ids)
        self._attributes.append(first, attributes)
        self._size += count
        self._kill(replaced)
        self._publish()
        return first

    def kill(self, rows: Sequence[int]) -> None:
        self._kill(rows)
        self._publish()

    def _kill(self, rows: Sequence[int]) -> None:
        if len(rows):
            self._alive = self._alive.copy()
            self._alive[np.asarray(rows, dtype=np.int64)] = False
            self._dead += len(rows)

    def restore(self, index: AnnIndex, versions: NDArray[np.uint64], attributes: Attributes) -> None:
        """Begin with the rows of a snapshot, all dead until `revive`d; the table must be empty."""
        assert self._size == 0
        count = len(versions)
        self._reserve(count)
        self._index, self._attributes = index, attributes
        self._versions[:count] = versions
        self._alive[:count] = False
        self._ids = [b""] * count
        self._size = self._indexed = self._dead = count
        self._publish()

    def revive(self, rows: Rows, ids: Sequence[bytes], vectors: Floats, shard: int) -> None:
        """Fill dead rows that a snapshot has and the store confirms."""
        ready = prepared(vectors, self.collection.metric)
        self._vectors[rows] = ready
        self._norms[rows] = np.sqrt(np.einsum("ij,ij->i", ready, ready))
        self._shards[rows] = shard
        for row, vector_id in zip(rows.tolist(), ids, strict=True):
            self._ids[row] = vector_id
        self._alive = self._alive.copy()
        self._alive[rows] = True
        self._dead -= len(rows)
        self._publish()

    def index_slice(self, rows_max: int) -> tuple[Rows, Floats]:
        """The next rows to index, the dead left out; call `advance` when they are in the index."""
        end = min(self._size, self._indexed + rows_max)
        rows = self._indexed + np.flatnonzero(self._alive[self._indexed : end])
        return rows, self._vectors[rows].astype(np.float32, copy=False)

    def advance(self, rows_max: int) -> None:
        """The slice of `index_slice(rows_max)` is in the index."""
        self._indexed = min(self._size, self._indexed + rows_max)
        self._publish()

    def pending(self) -> int:
        return self._size - self._indexed

    def _reserve(self, size: int) -> None:
        capacity = len(self._alive)
        if size <= capacity:
            return
        grown = max(size, capacity + capacity // 2)
        self._vectors, self._norms = _larger(self._vectors, grown), _larger(self._norms, grown)
        self._shards, self._versions = _larger(self._shards, grown), _larger(self._versions, grown)
        alive = np.ones(grown, dtype=np.bool_)
        alive[:capacity] = self._alive
        self._alive = alive


def _larger(array: NDArray, rows: int) -> NDArray:
    new = np.zeros((rows, *array.shape[1:]), array.dtype)
    new[: len(array)] = array
    return new
