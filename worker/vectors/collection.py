"""One collection's vectors in one worker: what the stores have, and the table that searches read.

All shards of a worker share one table and one index: searching a graph costs nearly the same whatever its size, so a
graph for each shard would multiply the cost of a search by their number. The form of the stores' rows: `stored_rows`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from shared.errors import NotFound
from shared.messages.vectors import Collection, CollectionStats, Floats
from shared.telemetry import event
from worker.damage import DamageReport
from worker.storage.faces import Objects, RowBatch, Rows
from worker.vectors import snapshot, stored_rows
from worker.vectors.stored_rows import FAMILY, VERSION_BYTES, Row, prefix, version_of
from worker.vectors.table import Table, TableView
from worker.vectors.text import TextIndex

LOAD_ROWS = 4096
SETTLED_S = 10.0
"""With no shard loaded for so long, rows of a snapshot that none has claimed belong to shards of other workers. (When
all of its shards have been loaded, they belong to nobody.)"""


class WorkerCollection:
    """Safe to use from many threads: writers take turns, searches use `view()` and never wait for them."""

    def __init__(self, collection: Collection, snapshots: Objects) -> None:
        self.collection = collection
        self.expansion = 0
        """Candidates that found most of the nearest when last measured here; 0 before that."""
        self.searched_at = 0.0
        """On the clock of `time.monotonic`."""
        self._snapshots = snapshots
        self.measured_rows = self.saved_rows = 0
        """Rows that the index had when that was measured, and when its last snapshot was taken."""
        self._prefix = prefix(collection.id)
        self._end = prefix(collection.id + 1)
        self._head = VERSION_BYTES + 4 * collection.dimension
        self.lock = RLock()  # a rebuild reads contents under it, and these report damage under it
        """Held by who changes the collection."""
        self.stores: dict[int, Rows] = {}
        self._damage: dict[int, DamageReport] = {}
        self._damaged: dict[bytes, str] = {}  # ids whose rows cannot be used, and why
        self._vectors: dict[int, int] = {}
        self.highest: dict[int, int] = {}
        """Shard → the highest version ever given in it."""
        self._rows: dict[bytes, int] = {}
        self.table = Table(collection)
        self._known: dict[bytes, int] | None = None
        self._named: Mapping[int, int] = {}  # the highest version the snapshot names, for each of its shards
        self._awaited: set[int] = set()  # shards whose vectors are in the snapshot and have not been loaded
        self._dropped = False
        self._attached_at = time.monotonic()
        self.text = TextIndex(collection.text) if collection.text else None

    def view(self) -> TableView:
        return self.table.view

    def foreign(self, view: TableView, shards: Iterable[int]) -> NDArray[np.bool_] | None:
        """Which rows are of `shards`, bool[size]; None when all are, which is so unless a shard is still loading."""
        asked = set(shards)
        if asked >= self.stores.keys():
            return None
        return np.isin(view.shards[: view.size], list(asked))

    def stats(self) -> CollectionStats:
        view = self.table.view
        return CollectionStats(
            self.collection.id, view.size - view.dead, view.indexed, view.dead, self.table.memory_bytes, self.expansion
        )

    def counts(self, shard: int) -> tuple[int, int]:
        """(vectors of a shard, its vectors that are not in the index yet)."""
        view = self.table.view
        pending = view.shards[view.indexed : view.size] == shard
        return self._vectors.get(shard, 0), int(np.count_nonzero(pending & view.alive[view.indexed : view.size]))

    # Loading

    def attach(self, shard: int, store: Rows, damage: DamageReport) -> None:
        """Read a shard's vectors from its store; the first shard brings the index's snapshot if there is a good one.

        Rows that cannot be used are left out, and said in `damage`.
        """
        highest = stored_rows.highest_version(store, self.collection.id)
        snapshot.discard_newer(self._snapshots, shard, highest)
        with self.lock:
            first = not self.stores
            self.stores[shard], self._damage[shard] = store, damage
            self._vectors[shard], self.highest[shard] = 0, highest
            if first:
                self._restore(shard)
        entries = store.scan(FAMILY, self._prefix, self._end)
        wrong: dict[bytes, str] = {}
        while batch := [(key[4:], value) for key, value in islice(entries, LOAD_ROWS)]:
            whole, others = stored_rows.checked(batch, self.collection.dimension)
            wrong.update(others)
            with self.lock:
                self._load_batch(shard, whole)
                self._attached_at = time.monotonic()
        with self.lock:
            self._awaited.discard(shard)
            self._report(shard, wrong)
            stored_rows.check_highest(store, self.collection.id, highest, self.highest[shard])

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
        saved = snapshot.read(self._snapshots, shard, self.collection)
        if saved is not None and saved.ids:
            self.table.restore(saved.index, saved.versions, saved.attributes)
            self.expansion, self.measured_rows = saved.expansion, len(saved.ids)
            self._known = {vector_id: row for row, vector_id in enumerate(saved.ids)}
            self._named, self._awaited = saved.highest, set(saved.highest)
            self.saved_rows = len(saved.ids)

    def _load_batch(self, shard: int, batch: Sequence[Row]) -> None:
        known, versions = self._known or {}, self.table.view.versions
        if self._named.get(shard, 0) > self.highest[shard]:
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
            self.table.revive(np.array(revived, dtype=np.int64), ids, vectors, shard)
            self._rows.update(zip(ids, revived, strict=True))
        if new:
            ids, vectors, attributes = stored_rows.columns(new, self.collection.dimension)
            numbers = np.array([version_of(value) for _, value in new], dtype=np.uint64)
            first = self.table.append(ids, vectors, numbers, shard, attributes, ())
            self._rows.update(zip(ids, range(first, first + len(ids)), strict=True))
            self.highest[shard] = max(self.highest[shard], int(numbers.max()))
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
        with self.lock:
            store = self._store(shard)
            base = self.highest[shard] + 1
            last = self.highest[shard] + len(ids)
            batch = store.batch()
            for place, vector_id in enumerate(ids):
                version = (base + place).to_bytes(VERSION_BYTES, "little")
                value = version + components[place * width : place * width + width] + attributes[place]
                batch.put(FAMILY, self._prefix + vector_id, value)
            stored_rows.put_highest(batch, self.collection.id, last)
            # Also when the store refuses: what it has of the batch then is not known.
            self.highest[shard] = last
            store.write(batch)
            replaced = [self._rows[vector_id] for vector_id in ids if vector_id in self._rows]
            versions = np.arange(base, base + len(ids), dtype=np.uint64)
            first = self.table.append(ids, vectors, versions, shard, attributes, replaced)
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
        with self.lock:
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
            self.table.kill([self._rows.pop(vector_id) for vector_id in gone])
            self._vectors[shard] -= len(gone)
            for vector_id in damaged:
                del self._damaged[vector_id]
            if self.text is not None:
                for vector_id in gone:
                    self.text.remove(vector_id)
            return len(gone) + len(damaged)

    def leave(self, shard: int, batch: RowBatch) -> None:
        """Give a shard's vectors up once `batch`, which removes them from its store, is on the disk. The collection is
        indexed and saved no more when its last shard has left. Raises Unavailable, and then nothing has changed."""
        with self.lock:
            store = self.stores.get(shard)
            if store is None:
                return
            store.write(batch, durable=True)
            self._forget(shard)
            self._dropped = not self.stores

    def detach(self, shard: int) -> None:
        """Undo an `attach` that may have failed half-way; the store keeps what it has. It may be attached again."""
        with self.lock:
            if shard not in self.stores:
                return
            self._forget(shard)
            if not self.stores:  # the next one is the first again, and brings the snapshot
                self.table, self._known, self.saved_rows = Table(self.collection), None, 0

    def _forget(self, shard: int) -> None:
        view = self.table.view
        gone = np.flatnonzero(view.alive[: view.size] & (view.shards[: view.size] == shard)).tolist()
        self.table.kill(gone)
        for row in gone:
            self._rows.pop(view.ids[row], None)
            if self.text is not None:
                self.text.remove(view.ids[row])
        del self.stores[shard], self._vectors[shard], self.highest[shard]

    @property
    def is_left(self) -> bool:
        """Whether every shard has given it up."""
        return self._dropped

    def is_settled(self) -> bool:
        """Whether no rows of a snapshot are waited for any more: dead ones may go."""
        if self._known is not None and (not self._awaited or time.monotonic() - self._attached_at >= SETTLED_S):
            self._known = None
        return self._known is None

    def replace_table(self, fresh: Table) -> None:
        """Serve this table, which has the same vectors, from now on. Under `lock`."""
        view = fresh.view
        self._rows = {view.ids[row]: row for row in np.flatnonzero(view.alive[: view.size]).tolist()}
        self.table = fresh
        self.saved_rows = 0

    def _store(self, shard: int) -> Rows:
        if shard not in self.stores:
            raise NotFound(f"the collection {self.collection.name!r} has been deleted")
        return self.stores[shard]

    # Reading

    def contents(self, shard: int, ids: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
        """(components float32, attributes) of each id as the store has them now, None for one that does not exist or
        is damaged."""
        store = self.stores.get(shard)
        if store is None:
            return [None] * len(ids)
        head = self._head
        values = store.get_many(FAMILY, [self._prefix + vector_id for vector_id in ids])
        short = [
            vector_id for vector_id, value in zip(ids, values, strict=True) if value is not None and len(value) < head
        ]
        if short or self._damaged:
            with self.lock:
                self._report(shard, dict.fromkeys(short, f"its row has less than {head} bytes"))
                values = [
                    None if vector_id in self._damaged else value for vector_id, value in zip(ids, values, strict=True)
                ]
        return [None if value is None else (value[VERSION_BYTES:head], value[head:]) for value in values]

    def contents_of(self, ids: Sequence[bytes], shards: Sequence[int]) -> list[tuple[bytes, bytes] | None]:
        """As `contents`, each id with its shard."""
        contents: list[tuple[bytes, bytes] | None] = [None] * len(ids)
        places: dict[int, list[int]] = {}
        for place, shard in enumerate(shards):
            places.setdefault(shard, []).append(place)
        for shard, shard_places in places.items():
            for place, content in zip(shard_places, self.contents(shard, [ids[p] for p in shard_places]), strict=True):
                contents[place] = content
        return contents

    def rows(self, ids: Sequence[bytes]) -> list[int]:
        """The living row of each id, −1 for one that does not exist."""
        return [self._rows.get(vector_id, -1) for vector_id in ids]
