"""One collection's vectors in one worker: the stores' word, the table searches read, and the work done behind them.

All shards of a worker share one table and one index: searching a graph costs nearly the same whatever its size, so a
graph for each shard would multiply the cost of a search by their number.

In a shard's store, family "vectors", the key is the collection's id (4 bytes, big endian) and the vector's id; the
value is the version (8 bytes, little endian), the components as given (float32) and the attributes (a msgpack map, or
nothing). A version is a number no other vector of the collection had in that shard.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shared.config import Settings
from shared.errors import NotFound
from shared.messages.vectors import Collection, CollectionStats, Floats
from shared.telemetry import event
from worker.storage import Store
from worker.vectors import calibration, snapshot
from worker.vectors.table import Table, View
from worker.vectors.text import TextIndex

FAMILY = "vectors"
VERSION_BYTES = 8
LOAD_ROWS = 4096
DEAD_SHARE_MAX = 0.25
DEAD_ROWS_LEAST = 1000
SETTLED_S = 10.0
"""With no shard loaded for so long, rows of a snapshot that none has claimed belong to shards of other workers. (When
all of its shards have been loaded, they belong to nobody.)"""
# A snapshot writes the whole index, and holds the interpreter for about 1 µs a vector: so by size only when much is
# new, and by time seldom.
SNAPSHOT_ROWS = 20_000
SNAPSHOT_SHARE = 0.25
SNAPSHOT_SHARE_TIMED = 0.01
MEASURE_ROWS_LEAST = 2000  # smaller tables are mostly compared row by row
MEASURE_GROWTH = 1.4  # what a graph needs grows with the logarithm of its size, if not slower
QUIET_S = 0.5
SLICE_ROWS = 64
SLICE_ROWS_SEARCHED = 1
"""Rows indexed at once while there are searches, which wait for the whole slice: half a millisecond at 384 dimensions
(two workers index 50,000 in 12 s), and several times that when the thread that indexes is interrupted in it."""
PAUSE = 4.0
"""While there are searches, so many times as long as a slice took nothing is indexed: a thread that never sleeps keeps
its processor for milliseconds when another wakes up, and searches can compare what waits."""
PAUSE_S_MAX = 0.01
PAUSE_PENDING_MAX = 10_000  # comparing so many takes 0.1 ms at 128 components; from there on nothing pauses
COMPACT_ROWS = 2048
COMPACT_SLICE_ROWS = 64  # no search waits for an index aside; this is how soon a stop is noticed


def prefix(collection_id: int) -> bytes:
    return collection_id.to_bytes(4, "big")


class WorkerCollection:
    """Safe to use from many threads: writers take turns, searches use `view()` and never wait for them."""

    def __init__(self, collection: Collection, directory: Path, settings: Settings) -> None:
        self.collection = collection
        self.expansion = 0
        """Candidates that found most of the nearest when last measured here; 0 before that."""
        self.searched_at = 0.0
        """On the clock of `time.monotonic`."""
        self._directory = directory
        self._shards_total = settings.shards
        self._snapshot_s = settings.vector_snapshot_ms / 1000
        self._measured_rows = 0
        self._prefix = prefix(collection.id)
        self._end = prefix(collection.id + 1)
        self._head = VERSION_BYTES + 4 * collection.dimension
        self._lock = Lock()
        self._stores: dict[int, Store] = {}
        self._vectors: dict[int, int] = {}
        self._rows: dict[bytes, int] = {}
        self._table = Table(collection)
        self._known: dict[bytes, int] | None = None
        self._awaited: set[int] = set()  # shards whose vectors are in the snapshot and have not been loaded
        self._next_version = 1
        self._dropped = False
        self._saved_rows = 0
        self._saved_at = self._attached_at = time.monotonic()
        self.text = TextIndex(collection.text) if collection.text else None

    def view(self) -> View:
        return self._table.view

    def foreign(self, view: View, shards: Iterable[int]) -> NDArray[np.bool_] | None:
        """Which rows are of `shards`, bool[size]; None when all are, which is so unless a shard is still loading."""
        asked = set(shards)
        if asked >= self._stores.keys():
            return None
        return np.isin(view.shards[: view.size], list(asked))

    def stats(self) -> CollectionStats:
        view = self._table.view
        return CollectionStats(
            self.collection.id, view.size - view.dead, view.indexed, view.dead, self._table.memory_bytes, self.expansion
        )

    def counts(self, shard: int) -> tuple[int, int]:
        """(vectors of a shard, its vectors that are not in the index yet)."""
        view = self._table.view
        pending = view.shards[view.indexed : view.size] == shard
        return self._vectors.get(shard, 0), int(np.count_nonzero(pending & view.alive[view.indexed : view.size]))

    # Loading

    def attach(self, shard: int, store: Store) -> None:
        """Read a shard's vectors from its store; the first shard brings the index's snapshot if there is a good one."""
        with self._lock:
            first = not self._stores
            self._stores[shard] = store
            self._vectors[shard] = 0
            if first:
                self._restore(shard)
        entries = store.scan(FAMILY, self._prefix, self._end)
        while batch := list(islice(entries, LOAD_ROWS)):
            with self._lock:
                self._load_batch(shard, batch)
                self._attached_at = time.monotonic()
        with self._lock:
            self._awaited.discard(shard)

    def _restore(self, shard: int) -> None:
        saved = snapshot.read(self._directory, shard, self.collection)
        if saved is not None and saved.names:
            self._table.restore(saved.index, saved.versions, saved.attributes)
            self.expansion, self._measured_rows = saved.expansion, len(saved.names)
            self._known = {name: row for row, name in enumerate(saved.names)}
            self._awaited = set(saved.shards)
            self._saved_rows = len(saved.names)
            self._next_version = int(saved.versions.max()) + 1

    def _load_batch(self, shard: int, batch: list[tuple[bytes, bytes]]) -> None:
        known, versions = self._known or {}, self._table.view.versions
        old: list[tuple[bytes, bytes, int]] = []
        new: list[tuple[bytes, bytes, int]] = []
        for key, value in batch:
            name, version = key[4:], int.from_bytes(value[:VERSION_BYTES], "little")
            row = known.get(name)
            if row is not None and int(versions[row]) == version:
                old.append((name, value, row))
            else:
                new.append((name, value, version))
        if old:
            names, vectors, _, rows = self._columns(old)
            self._table.revive(np.array(rows, dtype=np.int64), names, vectors, shard)
            self._rows.update(zip(names, rows, strict=True))
        if new:
            names, vectors, attributes, numbers = self._columns(new)
            first = self._table.append(names, vectors, np.array(numbers, dtype=np.uint64), shard, attributes, ())
            self._rows.update(zip(names, range(first, first + len(names)), strict=True))
            self._next_version = max(self._next_version, max(numbers) + 1)
        self._vectors[shard] += len(batch)
        if self.text is not None:
            for name, value, _ in (*old, *new):
                self.text.put(name, value[self._head :])

    def _columns(self, entries: list[tuple[bytes, bytes, int]]) -> tuple[list[bytes], Floats, list[bytes], list[int]]:
        names = [name for name, _, _ in entries]
        joined = b"".join([value[VERSION_BYTES : self._head] for _, value, _ in entries])
        vectors = np.frombuffer(joined, dtype=np.float32).reshape(len(entries), self.collection.dimension)
        return names, vectors, [value[self._head :] for _, value, _ in entries], [number for _, _, number in entries]

    # Writing

    def upsert(self, shard: int, names: Sequence[bytes], vectors: Floats, attributes: Sequence[bytes]) -> None:
        """Insert or replace; `names` are distinct, `vectors` float32[n, dimension]. Searches see it when this returns.

        It survives the process then; the store's `sync` makes it survive the loss of power. Raises NotFound when the
        collection was dropped, Unavailable when the store refuses, and then nothing has changed.
        """
        width = 4 * self.collection.dimension
        components = np.ascontiguousarray(vectors, dtype=np.float32).tobytes()
        with self._lock:
            store = self._store(shard)
            base = self._next_version
            self._next_version += len(names)
            batch = store.batch()
            for place, name in enumerate(names):
                version = (base + place).to_bytes(VERSION_BYTES, "little")
                value = version + components[place * width : place * width + width] + attributes[place]
                batch.put(FAMILY, self._prefix + name, value)
            store.write(batch)
            rows = self._rows
            replaced = [rows[name] for name in names if name in rows]
            versions = np.arange(base, base + len(names), dtype=np.uint64)
            first = self._table.append(names, vectors, versions, shard, attributes, replaced)
            rows.update(zip(names, range(first, first + len(names)), strict=True))
            self._vectors[shard] += len(names) - len(replaced)
            if self.text is not None:
                for name, packed in zip(names, attributes, strict=True):
                    self.text.put(name, packed)

    def delete(self, shard: int, names: Iterable[bytes]) -> int:
        """Remove those that exist, and say how many did. As durable as `upsert`, and raises as it does."""
        with self._lock:
            store = self._store(shard)
            gone = [name for name in dict.fromkeys(names) if name in self._rows]
            if not gone:
                return 0
            batch = store.batch()
            for name in gone:
                batch.delete(FAMILY, self._prefix + name)
            store.write(batch)
            self._table.kill([self._rows.pop(name) for name in gone])
            self._vectors[shard] -= len(gone)
            if self.text is not None:
                for name in gone:
                    self.text.remove(name)
            return len(gone)

    def drop(self) -> None:
        """Refuse writes from now on, and never index or save again."""
        with self._lock:
            self._dropped = True

    def _store(self, shard: int) -> Store:
        if self._dropped:
            raise NotFound(f"the collection {self.collection.name!r} has been deleted")
        return self._stores[shard]

    # Reading

    def contents(self, shard: int, names: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
        """(components float32, attributes) of each id as the store has them now, None for one that does not exist."""
        found = self._stores[shard].get_many(FAMILY, [self._prefix + name for name in names])
        return [None if value is None else (value[VERSION_BYTES : self._head], value[self._head :]) for value in found]

    def contents_of(self, names: Sequence[bytes], shards: Sequence[int]) -> list[tuple[bytes, bytes] | None]:
        """As `contents`, each id with its shard."""
        found: list[tuple[bytes, bytes] | None] = [None] * len(names)
        places: dict[int, list[int]] = {}
        for place, shard in enumerate(shards):
            places.setdefault(shard, []).append(place)
        for shard, own in places.items():
            for place, content in zip(own, self.contents(shard, [names[p] for p in own]), strict=True):
                found[place] = content
        return found

    def rows(self, names: Sequence[bytes]) -> list[int]:
        """The living row of each id, −1 for one that does not exist."""
        return [self._rows.get(name, -1) for name in names]

    # Work in the background: one thread calls these

    def index_step(self) -> bool:
        """Index one slice of what is not indexed yet; False when there is nothing."""
        table = self._table
        if self._dropped or not table.pending():
            return False
        searched = time.monotonic() - self.searched_at < QUIET_S
        size = SLICE_ROWS_SEARCHED if searched else SLICE_ROWS
        rows, vectors = table.index_slice(size)
        began = time.perf_counter()
        if len(rows):
            table.view.index.add(rows, vectors)
        with self._lock:
            table.advance(size)
        if searched and table.pending() < PAUSE_PENDING_MAX:
            time.sleep(min(PAUSE_S_MAX, PAUSE * (time.perf_counter() - began)))
        return True

    def attributes_due(self) -> bool:
        view = self._table.view
        return view.attributes.index_due(view.size)

    def index_attributes(self) -> None:
        view = self._table.view
        view.attributes.build_index(view.size)

    def measure_due(self) -> bool:
        indexed = self._table.view.indexed
        return not self._dropped and indexed >= max(MEASURE_ROWS_LEAST, MEASURE_GROWTH * self._measured_rows)

    def measure(self) -> Iterator[None]:
        """Find the expansion that searches need on this data; yields between queries."""
        view = self._table.view
        share = len(self._stores) / max(len(self._stores), self._shards_total)
        found = yield from calibration.measure(view, self.collection.metric, share)
        self.expansion, self._measured_rows = found, view.indexed

    def _settled(self) -> bool:
        if self._known is not None and (not self._awaited or time.monotonic() - self._attached_at >= SETTLED_S):
            self._known = None
        return self._known is None

    def compact_due(self) -> bool:
        view = self._table.view
        dead = view.dead >= max(DEAD_ROWS_LEAST, DEAD_SHARE_MAX * view.size)
        return dead and not self._dropped and self._settled()

    def compact(self) -> Iterator[None]:
        """Build the table and its index anew without dead rows, aside, then swap; yields between slices.

        What is written meanwhile goes to the old table, and is brought over under the lock at the end.
        """
        old = self._table
        began = old.view
        fresh = Table(self.collection, began.size - began.dead)
        moved = np.flatnonzero(began.alive[: began.size])
        for start in range(0, len(moved), COMPACT_ROWS):
            self._copy(old, fresh, moved[start : start + COMPACT_ROWS])
            while fresh.pending():
                rows, vectors = fresh.index_slice(COMPACT_SLICE_ROWS)
                fresh.view.index.add(rows, vectors)
                fresh.advance(COMPACT_SLICE_ROWS)
                yield
        with self._lock:
            if self._dropped:
                return
            now = old.view
            self._copy(old, fresh, began.size + np.flatnonzero(now.alive[began.size : now.size]))
            died = np.flatnonzero(~now.alive[moved])
            if len(died):
                fresh.kill(died.tolist())
            view = fresh.view
            self._rows = {view.names[row]: row for row in np.flatnonzero(view.alive[: view.size]).tolist()}
            self._table = fresh
            self._saved_rows = 0
        event(logging.INFO, "vector index rebuilt", collection=self.collection.name, rows=view.size, dead=began.dead)

    def _copy(self, old: Table, fresh: Table, rows: np.ndarray) -> None:
        """Bring rows over, with the stores' components and attributes.

        A row whose vector was replaced or deleted since is brought over with something else; it is dead in the old
        table, so it is killed at the swap.
        """
        if not len(rows):
            return
        view = old.view
        names = [view.names[row] for row in rows.tolist()]
        shards = view.shards[rows]
        contents = self.contents_of(names, shards.tolist())
        attributes = [b"" if content is None else content[1] for content in contents]
        vectors = view.vectors[rows].astype(np.float32)
        for place, content in enumerate(contents):
            if content is not None:
                vectors[place] = np.frombuffer(content[0], dtype=np.float32)
        fresh.append(names, vectors, view.versions[rows], shards, attributes, ())

    def snapshot_due(self) -> bool:
        indexed = self._table.view.indexed
        fresh = indexed - self._saved_rows
        if self._dropped or fresh <= SNAPSHOT_SHARE_TIMED * indexed or not self._settled():
            return False
        if time.monotonic() - self._saved_at >= self._snapshot_s:
            return True
        return fresh >= max(SNAPSHOT_ROWS, SNAPSHOT_SHARE * indexed)

    def save(self) -> None:
        """Write a snapshot of what is indexed, if there is more than in the last. Raises OSError."""
        view = self._table.view
        if view.indexed <= self._saved_rows or self._dropped:
            return
        snapshot.write(self._directory, list(self._stores), self.collection, view, self.expansion)
        self._saved_rows, self._saved_at = view.indexed, time.monotonic()
