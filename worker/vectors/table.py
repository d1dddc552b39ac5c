"""The rows of a collection in one worker's memory, which searches read while writes go on.

A row contains one version of one vector and never changes; replacing or deleting a vector makes its row dead. Readers
take a `TableView` and need no lock: a view's arrays are only written behind the view's size or at dead rows; for any
other change they are copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import HALF_MOST, Collection, Floats
from shared.process import huge_pages
from worker.vectors.attributes import Attributes
from worker.vectors.candidate_index import CandidateIndex, new_index
from worker.vectors.codes import Codes, PendingCodes
from worker.vectors.id_table import IdTable
from worker.vectors.mapped_rows import MappedRows
from worker.vectors.similarity import Rows, lengths, prepared

CAPACITY_MIN = 64
MAPPED_STORAGES = ("i8", "b1")
"""Storages whose exact components lie in a file; memory has what the graph needs."""

Shards = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class TableView:
    """The rows at one moment. Living rows below `indexed` are in `index`; those from there to `size` must be compared
    exactly.

    `vectors` float32 or float16 [≥ size, dimension] are as they are compared, `norms` float32[≥ size] their lengths,
    `alive` bool[≥ size], `shards` uint16[≥ size] the shard of each living row, `versions` uint64[≥ size], `ids` those
    of the rows. `dead` is the number of dead rows below `size`. `codes` has the rows from `codes.first` on.
    """

    index: CandidateIndex
    vectors: NDArray[np.floating]
    norms: Floats
    alive: NDArray[np.bool_]
    shards: Shards
    versions: NDArray[np.uint64]
    ids: IdTable
    attributes: Attributes
    codes: Codes
    size: int
    indexed: int
    dead: int

    def allowed(self) -> NDArray[np.bool_]:
        """Which rows are living, bool[size]."""
        return self.alive[: self.size]


class Table:
    """The rows, for one writer at a time: the owner holds its lock around every method that changes the table. `view`
    is the present state for readers."""

    def __init__(
        self,
        collection: Collection,
        capacity: int = 0,
        directory: Path | None = None,
        index: CandidateIndex | None = None,
    ) -> None:
        """`directory`: where a file with the components is created, for the storages that keep them on disk; None: they
        are in memory. `index`: an empty index to use. Raises Unavailable if the components have no room."""
        self.collection = collection
        capacity = max(CAPACITY_MIN, capacity)
        # Only the index has components of the types i8 and b1; results are ordered by the float16 components here.
        is_mapped = directory is not None and collection.storage in MAPPED_STORAGES
        self._mapped = MappedRows(directory, collection.dimension) if directory is not None and is_mapped else None
        kind = np.float32 if collection.storage == "f32" else np.float16
        self._vectors: NDArray[np.floating] = (
            np.zeros((capacity, collection.dimension), dtype=kind)
            if self._mapped is None
            else self._mapped.array(capacity)
        )
        self._norms = np.zeros(capacity, dtype=np.float32)
        self._alive = np.ones(capacity, dtype=np.bool_)
        self._shards: Shards = np.zeros(capacity, dtype=np.uint16)
        self._versions = np.zeros(capacity, dtype=np.uint64)
        self._ids = IdTable()
        self._attributes = Attributes()
        self._codes = PendingCodes(collection.dimension)
        self._index = new_index(collection) if index is None else index
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
            self._codes.view,
            self._size,
            self._indexed,
            self._dead,
        )
        return self.view

    @property
    def memory_bytes(self) -> int:
        """An estimate of the rows' size in memory. Spare capacity is not counted: it is never touched, so it takes
        address space only."""
        component_bytes = 0 if self._mapped is not None else self._vectors.itemsize
        row_bytes = component_bytes * self._vectors.shape[1] + 4 + 1 + 2 + 8
        return (
            self._size * row_bytes
            + self._ids.memory_bytes
            + self._index.memory_bytes
            + self._attributes.memory_bytes
            + self._codes.memory_bytes
        )

    def append(
        self,
        ids: Sequence[bytes],
        vectors: Floats,
        versions: NDArray[np.uint64],
        shards: Shards | int,
        attributes: Sequence[bytes],
        replaced: Sequence[int],
    ) -> int:
        """Add rows and make the `replaced` ones dead, in one step for readers. `vectors` float32[n, dimension] as
        given, `versions` uint64[n], `shards` uint16[n] or one for all. Returns the first new row."""
        first, count = self._size, len(ids)
        self._reserve(first + count)
        ready = self._prepared(vectors)
        self._vectors[first : first + count] = ready
        self._norms[first : first + count] = lengths(ready)
        self._versions[first : first + count] = versions
        self._shards[first : first + count] = shards
        # As they are stored, which may be rounded.
        self._codes.append(first, self._vectors[first : first + count].astype(np.float32, copy=False), self._indexed)
        self._ids.extend(ids)
        self._attributes.append(first, attributes)
        self._size += count
        self._kill(replaced)
        self._publish()
        return first

    def _prepared(self, vectors: Floats) -> Floats:
        """A copy as it is compared. Components that float16 does not have, which earlier releases took, become the
        greatest that it has."""
        ready = prepared(vectors, self.collection.metric)
        if self._vectors.dtype == np.float16:
            np.clip(ready, -HALF_MOST, HALF_MOST, out=ready)
        return ready

    def append_copies(self, view: TableView, rows: Rows) -> None:
        """Add copies of `rows` int64[n ≥ 1], ascending, of another table of the same collection. Rows that are indexed
        there get no codes as pending rows, because the caller will index them."""
        first, last = self._size, self._size + len(rows)
        self._reserve(last)
        self._vectors[first:last] = view.vectors[rows]
        self._norms[first:last] = view.norms[rows]
        self._versions[first:last] = view.versions[rows]
        self._shards[first:last] = view.shards[rows]
        if rows[-1] < view.indexed:
            self._codes.clear(last)
        else:
            self._codes.append(first, self._vectors[first:last].astype(np.float32, copy=False), self._indexed)
        self._ids.extend_packed(*view.ids.pack(rows))
        self._attributes.append_copies(first, view.attributes, rows)
        self._size = last
        self._publish()

    def kill(self, rows: Sequence[int]) -> None:
        """Make these living rows dead."""
        self._kill(rows)
        self._publish()

    def _kill(self, rows: Sequence[int]) -> None:
        if len(rows):
            self._alive = self._alive.copy()
            self._alive[np.asarray(rows, dtype=np.int64)] = False
            self._dead += len(rows)

    def restore(
        self, index: CandidateIndex, joined: bytes, lengths: bytes, versions: NDArray[np.uint64], attributes: Attributes
    ) -> None:
        """Begin with the rows of a snapshot, all dead until `revive` or `confirm`; the table must be empty. `joined`
        and `lengths` are their ids (`pack_blobs`), `versions` uint64[n]."""
        assert self._size == 0
        count = len(versions)
        # With spare room in memory, the first write does not copy all vectors. In a file, it would take disk space.
        self._reserve(count + (count // 4 if self._mapped is None else 0))
        self._index, self._attributes = index, attributes
        self._versions[:count] = versions
        self._alive[:count] = False
        self._ids.extend_packed(joined, lengths)
        self._size = self._indexed = self._dead = count
        self._codes.clear(count)
        self._publish()

    def restore_vectors(self, fill: Callable[[NDArray[np.floating]], object], norms: Floats) -> None:
        """Fill the vectors of the rows of a snapshot, as they are compared. `fill` gets those of all rows, zeros of
        float32 or float16 [n, dimension]; `norms` float32[n]. Raises what `fill` raises."""
        vectors = self._vectors[: self._size]
        huge_pages.expect(vectors)
        fill(vectors)
        self._norms[: self._size] = norms

    def confirm(self, rows: Rows, shard: int) -> None:
        """Make dead rows of a snapshot living, `rows` int64[n], whose vectors `restore_vectors` has filled."""
        self._shards[rows] = shard
        self._alive = self._alive.copy()
        self._alive[rows] = True
        self._dead -= len(rows)
        self._publish()

    def revive(self, rows: Rows, vectors: Floats, shard: int) -> None:
        """Make dead rows of a snapshot living, with the content of the store: `rows` int64[n], `vectors`
        float32[n, dimension] as given."""
        ready = self._prepared(vectors)
        self._vectors[rows] = ready
        self._norms[rows] = lengths(ready)
        self.confirm(rows, shard)

    def rows_of(self, ids: Sequence[bytes]) -> Rows:
        """The living row of each id, −1 for one that does not exist: int64[n]."""
        rows = self._ids.latest(ids)
        rows[~self._alive[rows]] = -1
        return rows

    def index_slice(self, rows_max: int) -> tuple[Rows, Floats, int]:
        """(the living ones of the next `rows_max` rows to index, int64[n]; their vectors float32[n, dimension]; the end
        of the slice, with which the caller calls `advance` when the rows are in the index)."""
        end = min(self._size, self._indexed + rows_max)
        rows = self._indexed + np.flatnonzero(self._alive[self._indexed : end])
        return rows, self._vectors[rows].astype(np.float32, copy=False), end

    def advance(self, end: int) -> None:
        """Count the rows below `end` as indexed. Rows that were appended since the `index_slice` are not among them."""
        assert self._indexed <= end <= self._size
        self._indexed = end
        if not self.pending():
            self._codes.clear(self._size)
        self._publish()

    def replace_index(self, index: CandidateIndex) -> None:
        """Use another index, which has the same rows."""
        self._index = index
        self._publish()

    def pending(self) -> int:
        """The number of rows that are not indexed yet, dead ones included."""
        return self._size - self._indexed

    def reserve(self, count: int) -> None:
        """Make room for `count` more rows. Raises Unavailable if the disk has none."""
        self._reserve(self._size + count)

    def _reserve(self, size: int) -> None:
        capacity = len(self._alive)
        if size <= capacity:
            return
        new_capacity = max(size, capacity + capacity // 2)
        if self._mapped is None:
            self._vectors = _larger(self._vectors, new_capacity)
        else:
            self._vectors = self._mapped.array(new_capacity)
        self._norms = _larger(self._norms, new_capacity)
        self._shards, self._versions = _larger(self._shards, new_capacity), _larger(self._versions, new_capacity)
        alive = np.ones(new_capacity, dtype=np.bool_)
        alive[:capacity] = self._alive
        self._alive = alive


def _larger(array: NDArray, rows: int) -> NDArray:
    """A copy of the array with this many rows, the new ones zero."""
    larger = np.zeros((rows, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
