"""One collection's vectors in one worker: the stores' word, the table searches read, and the work done behind them.

All shards of a worker share one table and one index: searching a graph costs nearly the same whatever its size, so a
graph for each shard would multiply the cost of a search by their number. The form of the stores' rows: `stored_rows`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shared.config import Settings
from shared.errors import NotFound
from shared.messages.vectors import Collection, CollectionStats, Floats
from shared.telemetry import event
from worker.damage import DamageReport
from worker.storage.rows.store import Batch, Store
from worker.vectors import calibration, snapshot, stored_rows
from worker.vectors.compaction import build_aside, copy_rows
from worker.vectors.stored_rows import FAMILY, VERSION_BYTES, Row, prefix, version_of
from worker.vectors.table import Table, View
from worker.vectors.text import TextIndex

LOAD_ROWS = 4096
DEAD_SHARE_MAX, DEAD_ROWS_MIN = 0.25, 1000
SETTLED_S = 10.0
"""With no shard loaded for so long, rows of a snapshot that none has claimed belong to shards of other workers. (When
all of its shards have been loaded, they belong to nobody.)"""
# A snapshot writes the whole index, and holds the interpreter for about 1 µs a vector: so by size only when much is
# new, and by time seldom.
SNAPSHOT_ROWS = 20_000
SNAPSHOT_SHARE = 0.25
SNAPSHOT_SHARE_TIMED = 0.01
MEASURE_ROWS_MIN = 2000  # smaller tables are mostly compared row by row
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
        self._damage: dict[int, DamageReport] = {}
        self._damaged: dict[bytes, str] = {}  # ids whose rows cannot be used, and why
        self._vectors: dict[int, int] = {}
        self._highest: dict[int, int] = {}  # the highest version ever given in each shard
        self._rows: dict[bytes, int] = {}
        self._table = Table(collection)
        self._known: dict[bytes, int] | None = None
        self._named: Mapping[int, int] = {}  # the highest version the snapshot names, for each of its shards
        self._awaited: set[int] = set()  # shards whose vectors are in the snapshot and have not been loaded
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

    def attach(self, shard: int, store: Store, damage: DamageReport) -> None:
        """Read a shard's vectors from its store; the first shard brings the index's snapshot if there is a good one.

        Rows that cannot be used are left out, and said in `damage`.
        """
        highest = stored_rows.highest_version(store, self.collection.id)
        snapshot.discard_newer(self._directory, shard, highest)
        with self._lock:
            first = not self._stores
            self._stores[shard], self._damage[shard] = store, damage
            self._vectors[shard], self._highest[shard] = 0, highest
            if first:
                self._restore(shard)
        entries = store.scan(FAMILY, self._prefix, self._end)
        wrong: dict[bytes, str] = {}
        while batch := [(key[4:], value) for key, value in islice(entries, LOAD_ROWS)]:
            whole, others = stored_rows.checked(batch, self.collection.dimension)
            wrong.update(others)
            with self._lock:
                self._load_batch(shard, whole)
                self._attached_at = time.monotonic()
        with self._lock:
            self._awaited.discard(shard)
            self._report(shard, wrong)
            stored_rows.check_highest(store, self.collection.id, highest, self._highest[shard])

    def _report(self, shard: int, wrong: Mapping[bytes, str]) -> None:
        """These vectors of a shard are left out of answers from now on, which say so."""
        wrong = {vector_id: why for vector_id, why in wrong.items() if vector_id not in self._damaged}
        if wrong:
            self._damaged.update(wrong)
            vector_id, why = next(iter(wrong.items()))
            text = (
                f"vectors of the collection {self.collection.name!r} are damaged and missing: {len(wrong)} "
                f"such as {vector_id.decode(errors='replace')!r}: {why}"
            )
            self._damage[shard].add("vector", text)
            event(logging.ERROR, "vectors are damaged", shard=shard, why=text)

    def _restore(self, shard: int) -> None:
        saved = snapshot.read(self._directory, shard, self.collection)
        if saved is not None and saved.ids:
            self._table.restore(saved.index, saved.versions, saved.attributes)
            self.expansion, self._measured_rows = saved.expansion, len(saved.ids)
            self._known = {vector_id: row for row, vector_id in enumerate(saved.ids)}
            self._named, self._awaited = saved.highest, set(saved.highest)
            self._saved_rows = len(saved.ids)

    def _load_batch(self, shard: int, batch: Sequence[Row]) -> None:
        known, versions = self._known or {}, self._table.view.versions
        if self._named.get(shard, 0) > self._highest[shard]:
            known = {}  # the snapshot has seen more of this shard than its store: it is of another one
        old: list[Row] = []
        revived: list[int] = []
        new: list[Row] = []
        for vector_id, value in batch:
            row = known.get(vector_id)
            if row is not None and int(versions[row]) == version_of(value):
                old.append((vector_id, value))
                revived.append(row)
            else:
                new.append((vector_id, value))
        if old:
            ids, vectors, _ = stored_rows.columns(old, self.collection.dimension)
            self._table.revive(np.array(revived, dtype=np.int64), ids, vectors, shard)
            self._rows.update(zip(ids, revived, strict=True))
        if new:
            ids, vectors, attributes = stored_rows.columns(new, self.collection.dimension)
            numbers = np.array([version_of(value) for _, value in new], dtype=np.uint64)
            first = self._table.append(ids, vectors, numbers, shard, attributes, ())
            self._rows.update(zip(ids, range(first, first + len(ids)), strict=True))
            self._highest[shard] = max(self._highest[shard], int(numbers.max()))
        self._vectors[shard] += len(batch)
        if self.text is not None:
            for vector_id, value in batch:
                self.text.put(vector_id, value[self._head :])

    # Writing

    def upsert(self, shard: int, ids: Sequence[bytes], vectors: Floats, attributes: Sequence[bytes]) -> None:
        """Insert or replace; `ids` are distinct, `vectors` float32[n, dimension]. Searches see it when this returns.

        It survives the process then; the store's `sync` makes it survive the loss of power. Raises NotFound when the
        collection was dropped, Unavailable when the store refuses, and then nothing has changed.
        """
        width = 4 * self.collection.dimension
        components = np.ascontiguousarray(vectors, dtype=np.float32).tobytes()
        with self._lock:
            store = self._store(shard)
            base = self._highest[shard] + 1
            last = self._highest[shard] + len(ids)
            batch = store.batch()
            for place, vector_id in enumerate(ids):
                version = (base + place).to_bytes(VERSION_BYTES, "little")
                value = version + components[place * width : place * width + width] + attributes[place]
                batch.put(FAMILY, self._prefix + vector_id, value)
            stored_rows.put_highest(batch, self.collection.id, last)
            # Also when the store refuses: what it has of the batch then is not known.
            self._highest[shard] = last
            store.write(batch)
            replaced = [self._rows[vector_id] for vector_id in ids if vector_id in self._rows]
            versions = np.arange(base, base + len(ids), dtype=np.uint64)
            first = self._table.append(ids, vectors, versions, shard, attributes, replaced)
            self._rows.update(zip(ids, range(first, first + len(ids)), strict=True))
            self._vectors[shard] += len(ids) - len(replaced)
            if self._damaged:
                for vector_id in self._damaged.keys() & ids:
                    del self._damaged[vector_id]
            if self.text is not None:
                for vector_id, packed in zip(ids, attributes, strict=True):
                    self.text.put(vector_id, packed)

    def delete(self, shard: int, ids: Iterable[bytes]) -> int:
        """Remove those that exist, and say how many did. As durable as `upsert`, and raises as it does."""
        with self._lock:
            store = self._store(shard)
            asked = dict.fromkeys(ids)
            gone = [vector_id for vector_id in asked if vector_id in self._rows]
            damaged = self._damaged.keys() & asked
            if not gone and not damaged:
                return 0
            batch = store.batch()
            for vector_id in (*gone, *damaged):
                batch.delete(FAMILY, self._prefix + vector_id)
            store.write(batch)
            self._table.kill([self._rows.pop(vector_id) for vector_id in gone])
            self._vectors[shard] -= len(gone)
            for vector_id in damaged:
                del self._damaged[vector_id]
            if self.text is not None:
                for vector_id in gone:
                    self.text.remove(vector_id)
            return len(gone) + len(damaged)

    def leave(self, shard: int, batch: Batch) -> None:
        """Give a shard's vectors up once `batch`, which removes them from its store, is on the disk. The collection is
        indexed and saved no more when its last shard has left. Raises Unavailable, and then nothing has changed."""
        with self._lock:
            store = self._stores.get(shard)
            if store is None:
                return
            store.write(batch, durable=True)
            self._forget(shard)
            self._dropped = not self._stores

    def detach(self, shard: int) -> None:
        """Undo an `attach` that may have failed half-way; the store keeps what it has. It may be attached again."""
        with self._lock:
            if shard not in self._stores:
                return
            self._forget(shard)
            if not self._stores:  # the next one is the first again, and brings the snapshot
                self._table, self._known, self._saved_rows = Table(self.collection), None, 0

    def _forget(self, shard: int) -> None:
        view = self._table.view
        gone = np.flatnonzero(view.alive[: view.size] & (view.shards[: view.size] == shard)).tolist()
        self._table.kill(gone)
        for row in gone:
            self._rows.pop(view.ids[row], None)
            if self.text is not None:
                self.text.remove(view.ids[row])
        del self._stores[shard], self._vectors[shard], self._highest[shard]

    @property
    def is_left(self) -> bool:
        """Whether every shard has given it up."""
        return self._dropped

    def _store(self, shard: int) -> Store:
        if shard not in self._stores:
            raise NotFound(f"the collection {self.collection.name!r} has been deleted")
        return self._stores[shard]

    # Reading

    def contents(self, shard: int, ids: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
        """(components float32, attributes) of each id as the store has them now, None for one that does not exist or
        is damaged."""
        store = self._stores.get(shard)
        if store is None:
            return [None] * len(ids)
        head = self._head
        found = store.get_many(FAMILY, [self._prefix + vector_id for vector_id in ids])
        short = [
            vector_id for vector_id, value in zip(ids, found, strict=True) if value is not None and len(value) < head
        ]
        if short or self._damaged:
            with self._lock:
                self._report(shard, dict.fromkeys(short, f"its row has less than {head} bytes"))
                found = [
                    None if vector_id in self._damaged else value for vector_id, value in zip(ids, found, strict=True)
                ]
        return [None if value is None else (value[VERSION_BYTES:head], value[head:]) for value in found]

    def contents_of(self, ids: Sequence[bytes], shards: Sequence[int]) -> list[tuple[bytes, bytes] | None]:
        """As `contents`, each id with its shard."""
        found: list[tuple[bytes, bytes] | None] = [None] * len(ids)
        places: dict[int, list[int]] = {}
        for place, shard in enumerate(shards):
            places.setdefault(shard, []).append(place)
        for shard, own in places.items():
            for place, content in zip(own, self.contents(shard, [ids[p] for p in own]), strict=True):
                found[place] = content
        return found

    def rows(self, ids: Sequence[bytes]) -> list[int]:
        """The living row of each id, −1 for one that does not exist."""
        return [self._rows.get(vector_id, -1) for vector_id in ids]

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
        return not self._dropped and indexed >= max(MEASURE_ROWS_MIN, MEASURE_GROWTH * self._measured_rows)

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
        dead = view.dead >= max(DEAD_ROWS_MIN, DEAD_SHARE_MAX * view.size)
        return dead and not self._dropped and self._settled()

    def compact(self) -> Iterator[None]:
        """Build the table and its index anew without dead rows, aside, then swap; yields between slices.

        What is written meanwhile goes to the old table, and is brought over under the lock at the end.
        """
        old = self._table
        began = old.view
        fresh = Table(self.collection, began.size - began.dead)
        moved = np.flatnonzero(began.alive[: began.size])
        yield from build_aside(old, fresh, self.contents_of, moved)
        with self._lock:
            if self._dropped or self._table is not old:
                return
            now = old.view
            copy_rows(old, fresh, self.contents_of, began.size + np.flatnonzero(now.alive[began.size : now.size]))
            died = np.flatnonzero(~now.alive[moved])
            if len(died):
                fresh.kill(died.tolist())
            view = fresh.view
            self._rows = {view.ids[row]: row for row in np.flatnonzero(view.alive[: view.size]).tolist()}
            self._table = fresh
            self._saved_rows = 0
        event(logging.INFO, "vector index rebuilt", collection=self.collection.name, rows=view.size, dead=began.dead)

    def snapshot_due(self) -> bool:
        indexed = self._table.view.indexed
        fresh = indexed - self._saved_rows
        if self._dropped or fresh <= SNAPSHOT_SHARE_TIMED * indexed or not self._settled():
            return False
        if time.monotonic() - self._saved_at >= self._snapshot_s:
            return True
        return fresh >= max(SNAPSHOT_ROWS, SNAPSHOT_SHARE * indexed)

    def save(self) -> None:
        """Write a snapshot of what is indexed, if there is more than in the last. Raises OSError, Unavailable."""
        with self._lock:
            view, stores, highest = self._table.view, list(self._stores.values()), dict(self._highest)
        if view.indexed <= self._saved_rows or self._dropped:
            return
        for store in stores:
            # After the loss of power no vector may have a version that the snapshot gives to another one.
            store.sync()
        snapshot.write(self._directory, highest, self.collection, view, self.expansion)
        self._saved_rows, self._saved_at = view.indexed, time.monotonic()
