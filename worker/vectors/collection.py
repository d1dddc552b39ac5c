"""One collection's vectors in one worker: the rows in the stores, and the table that searches read.

All shards of a worker share one table and one index: the cost of searching a graph hardly depends on its size, so a
graph for each shard would multiply the cost of a search by their number. `stored_rows` describes the stores' rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import Lock, RLock

import numpy as np
from numpy.typing import NDArray

from shared.errors import NotFound
from shared.messages.vectors import Collection, CollectionStats, Floats
from shared.telemetry import event
from worker.damage import DamageReport
from worker.storage.faces import Objects, RowBatch, Rows
from worker.vectors import snapshot, stored_rows
from worker.vectors.query_sample import QuerySample
from worker.vectors.recall_curve import RECALL, RecallCurve
from worker.vectors.stored_rows import FAMILY, VERSION_BYTES, Columns, prefix
from worker.vectors.table import Table, TableView
from worker.vectors.text import TextIndex

LOAD_ROWS, LOAD_BYTES = 1024, 4 << 20
"""Rows that are loaded at once, and about their bytes."""
READ_AT_ONCE = 32
"""Vectors to read from the stores before their bytes are counted: attributes may have a megabyte and more. Reading more
of them at once is hardly faster."""
QUIET_S = 0.5
"""A collection counts as searched for this time after each search."""
GIVE_WAY_S = 0.0002
"""How long a write sleeps between its steps while the collection is searched. A thread that wakes up in a worker
interrupts no other (`SCHED_BATCH`), so a search would else wait until the write has ended or has used up its turn:
some milliseconds, on each of the threads that its message passes."""
SETTLED_S = 10.0
"""If no shard was loaded for this time, rows of a snapshot that no store has confirmed belong to shards of other
workers, and may be removed."""


def _next_rows(entries: Iterator[tuple[bytes, bytes]]) -> list[stored_rows.Row]:
    """The next rows of a scan, as many as are loaded at once; none at its end."""
    rows: list[stored_rows.Row] = []
    bytes_left = LOAD_BYTES
    for key, value in islice(entries, LOAD_ROWS):
        rows.append((key[4:], value))
        bytes_left -= len(value)
        if bytes_left <= 0:
            break
    return rows


class WorkerCollection:
    """Safe to use from many threads: one writer at a time; searches use `view()` and never wait for a writer."""

    def __init__(self, collection: Collection, snapshots: Objects, directory: Path | None = None) -> None:
        """`directory`: see `Table`. Raises Unavailable."""
        self.collection = collection
        self.directory = directory
        self.curve: RecallCurve | None = None
        """The recall by the expansion, when it was last measured (`calibration`); None before that."""
        self.sample = QuerySample(collection.dimension)
        self.searched_at = 0.0
        """Time of the last search, in seconds of `time.monotonic`."""
        self._snapshots = snapshots
        self.measured_rows = self.saved_rows = 0
        """Rows of the index when `curve` was measured, and when the last snapshot was taken."""
        self._prefix = prefix(collection.id)
        self._end = prefix(collection.id + 1)
        self._head = VERSION_BYTES + 4 * collection.dimension
        self.lock = RLock()  # reentrant: a rebuild holds it while it reads contents, which takes it to report damage
        """Guards every change of the collection."""
        self.stores: dict[int, Rows] = {}
        self._damage: dict[int, DamageReport] = {}
        self._damaged: dict[bytes, int] = {}  # id of a vector whose stored row is damaged → its shard
        self._vector_counts: dict[int, int] = {}  # shard → number of its living vectors
        self.highest: dict[int, int] = {}
        """Shard → the highest version ever given in it."""
        self.table = Table(collection, directory=directory)
        self._snapshot_rows = 0  # so many rows of the table are the snapshot's, while shards are loading
        self._snapshot_highest: Mapping[int, int] = {}  # shard → the highest version that the snapshot names
        self._awaited: set[int] = set()  # shards whose vectors are in the snapshot and have not been loaded
        self._dropped = False
        self._writes, self._writes_lock = 0, Lock()
        self._attached_at = time.monotonic()
        self.text = TextIndex(collection.text_fields()) if collection.text else None

    def view(self) -> TableView:
        """The rows at this moment."""
        return self.table.view

    def foreign(self, view: TableView, shards: Iterable[int]) -> NDArray[np.bool_] | None:
        """Which rows belong to `shards`, bool[view.size]; None if all rows do, as when all shards are loaded."""
        wanted_shards = set(shards)
        if wanted_shards >= self.stores.keys():
            return None
        return np.isin(view.shards[: view.size], list(wanted_shards))

    def stats(self, recall: float = RECALL) -> CollectionStats:
        """The collection's sizes in this worker, and its expansion for this recall."""
        view, curve = self.table.view, self.curve
        return CollectionStats(
            self.collection.id,
            view.size - view.dead,
            view.indexed,
            view.dead,
            self.table.memory_bytes,
            0 if curve is None else curve.expansion(recall),
            0 if curve is None else curve.queries,
        )

    def counts(self, shard: int) -> tuple[int, int]:
        """(number of the shard's vectors, number of those that are not in the index yet)."""
        view = self.table.view
        pending = view.shards[view.indexed : view.size] == shard
        return self._vector_counts.get(shard, 0), int(np.count_nonzero(pending & view.alive[view.indexed : view.size]))

    # Loading

    def attach(self, shard: int, store: Rows, damage: DamageReport) -> None:
        """Read a shard's vectors from its store. The first shard also loads the index's snapshot, if a good one exists.

        Damaged rows are left out and reported in `damage`. Raises StoreDamaged, Unavailable, and then memory has
        nothing of the shard: a repetition would load the same rows again beside those of a load that ended half-way.
        """
        try:
            self._attach(shard, store, damage)
        except Exception:
            self.detach(shard)
            raise

    def _attach(self, shard: int, store: Rows, damage: DamageReport) -> None:
        highest = stored_rows.highest_version(store, self.collection.id)
        snapshot.discard_newer(self._snapshots, shard, highest)
        with self.lock:
            is_first = not self.stores
            self.stores[shard], self._damage[shard] = store, damage
            self._vector_counts[shard], self.highest[shard] = 0, highest
            if is_first:
                self._restore(shard)
        entries = store.scan(FAMILY, self._prefix, self._end)
        wrong: dict[bytes, str] = {}
        while batch := _next_rows(entries):
            whole_rows, damaged = stored_rows.checked(batch, self.collection.dimension)
            wrong.update(damaged)
            with self.lock:
                self._load_batch(shard, whole_rows)
                self._attached_at = time.monotonic()
        with self.lock:
            self._awaited.discard(shard)
            self._report(shard, wrong)
            stored_rows.check_highest(store, self.collection.id, highest, self.highest[shard])

    def _report(self, shard: int, wrong: Mapping[bytes, str]) -> None:
        """Leave these vectors of a shard out of answers from now on, and report them in the shard's `DamageReport`.
        `wrong`: id → what is wrong."""
        wrong = {vector_id: why for vector_id, why in wrong.items() if vector_id not in self._damaged}
        if wrong:
            self._damaged.update(dict.fromkeys(wrong, shard))
            vector_id, why = next(iter(wrong.items()))
            text = (
                f"vectors of the collection {self.collection.name!r} are damaged and missing: {len(wrong)} "
                f"such as {vector_id.decode(errors='replace')!r}: {why}"
            )
            self._damage[shard].add("vector", text)
            event(logging.ERROR, "vectors are damaged", shard=shard, why=text)

    def _restore(self, shard: int) -> None:
        """Begin with the rows of the snapshot that has this shard, all dead until a store confirms them."""
        saved = snapshot.read(self._snapshots, shard, self.collection)
        if saved is not None and len(saved.versions):
            self.table.restore(saved.index, saved.joined, saved.lengths, saved.versions, saved.attributes)
            self._snapshot_rows = self.saved_rows = len(saved.versions)
            self.curve, self.measured_rows = saved.curve, self.saved_rows if saved.curve is not None else 0
            self._snapshot_highest, self._awaited = saved.highest, set(saved.highest)

    def _load_batch(self, shard: int, batch: Columns) -> None:
        """Put whole rows of a store into the table: revive those that the snapshot has, append the others."""
        if not batch.ids:
            return
        ids, numbers, vectors = batch.ids, batch.versions, batch.vectors
        snapshot_rows = self._snapshot_rows
        if self._snapshot_highest.get(shard, 0) > self.highest[shard]:
            snapshot_rows = 0  # the snapshot names versions that this store never gave: it is of another store
        view = self.table.view
        rows = view.ids.latest(ids)
        is_old = (rows >= 0) & (rows < snapshot_rows) & ~view.alive[rows] & (view.versions[rows] == numbers)
        if is_old.all():
            self.table.revive(rows, vectors, shard)
        else:
            self.table.revive(rows[is_old], vectors[is_old], shard)
            places = np.flatnonzero(~is_old)
            new = places.tolist()
            new_ids = [ids[place] for place in new]
            self.table.append(new_ids, vectors[places], numbers[places], shard, batch.attributes(new), ())
            self.highest[shard] = max(self.highest[shard], int(numbers[places].max()))
        self._vector_counts[shard] += len(ids)
        if self.text is not None:
            for vector_id, packed in zip(ids, batch.attributes(range(len(ids))), strict=True):
                self.text.put(vector_id, packed)

    # Writing

    def is_searched(self) -> bool:
        """Whether there was a search a moment ago."""
        return time.monotonic() - self.searched_at < QUIET_S

    def give_way(self) -> None:
        """Let the threads of searches have the processor, if there may be any."""
        if self.is_searched():
            time.sleep(GIVE_WAY_S)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The time of a request that writes; see `is_written`."""
        with self._writes_lock:
            self._writes += 1
        try:
            yield
        finally:
            with self._writes_lock:
                self._writes -= 1

    def is_written(self) -> bool:
        """Whether a request is writing now. The processor's time that it gives to searches is not for indexing."""
        return self._writes > 0

    def upsert(self, shard: int, ids: Sequence[bytes], vectors: Floats, attributes: Sequence[bytes]) -> None:
        """Insert or replace vectors: `ids` are distinct, `vectors` float32[n, dimension], `attributes` msgpack maps or
        empty bytes. Searches see the vectors when this returns.

        They then survive the death of the process, and after the store's `sync` a loss of power. Raises NotFound if the
        collection was dropped, Unavailable if the store refuses the write, and then no search sees a change.
        """
        width = 4 * self.collection.dimension
        self.give_way()
        components = np.ascontiguousarray(vectors, dtype=np.float32).tobytes()
        with self.lock:
            store = self._store(shard)
            self.table.reserve(len(ids))  # before the store has what memory could not take
            base = self.highest[shard] + 1
            last = self.highest[shard] + len(ids)
            batch = store.batch()
            for place, vector_id in enumerate(ids):
                version = (base + place).to_bytes(VERSION_BYTES, "little")
                value = version + components[place * width : place * width + width] + attributes[place]
                batch.put(FAMILY, self._prefix + vector_id, value)
            stored_rows.put_highest(batch, self.collection.id, last)
            # Set before the write, because a store that refuses the batch may contain it nevertheless.
            self.highest[shard] = last
            self.give_way()
            store.write(batch)
            self.give_way()
            rows = self.table.rows_of(ids)
            replaced = rows[rows >= 0].tolist()
            versions = np.arange(base, base + len(ids), dtype=np.uint64)
            self.table.append(ids, vectors, versions, shard, attributes, replaced)
            self._vector_counts[shard] += len(ids) - len(replaced)
            if self._damaged:
                for vector_id in self._damaged.keys() & ids:
                    del self._damaged[vector_id]
            if self.text is not None:
                for vector_id, packed in zip(ids, attributes, strict=True):
                    self.text.put(vector_id, packed)

    def delete(self, shard: int, ids: Iterable[bytes]) -> int:
        """Remove the vectors with these ids, and return how many existed. As durable as `upsert`, and raises as it
        does."""
        with self.lock:
            store = self._store(shard)
            distinct_ids = list(dict.fromkeys(ids))
            rows = self.table.rows_of(distinct_ids)
            existing = [vector_id for vector_id, row in zip(distinct_ids, rows.tolist(), strict=True) if row >= 0]
            damaged = self._damaged.keys() & distinct_ids
            if not existing and not damaged:
                return 0
            batch = store.batch()
            for vector_id in (*existing, *damaged):
                batch.delete(FAMILY, self._prefix + vector_id)
            store.write(batch)
            self.table.kill(rows[rows >= 0].tolist())
            self._vector_counts[shard] -= len(existing)
            for vector_id in damaged:
                del self._damaged[vector_id]
            if self.text is not None:
                for vector_id in existing:
                    self.text.remove(vector_id)
            return len(existing) + len(damaged)

    def leave(self, shard: int, batch: RowBatch) -> None:
        """Write `batch`, which removes a shard's vectors from its store, durably, then remove the vectors from memory.
        After its last shard has left, the collection is not indexed or saved any more. Raises Unavailable, and then
        nothing has changed in memory."""
        with self.lock:
            store = self.stores.get(shard)
            if store is None:
                return
            store.write(batch, durable=True)
            self._forget(shard)
            self._dropped = not self.stores

    def detach(self, shard: int) -> None:
        """Undo an `attach`; the store keeps what it has. It may be attached again."""
        with self.lock:
            if shard not in self.stores:
                return
            self._forget(shard)
            if not self.stores:  # the next shard is the first again, and loads the snapshot
                self.table, self._snapshot_rows, self.saved_rows = (
                    Table(self.collection, directory=self.directory),
                    0,
                    0,
                )

    def _forget(self, shard: int) -> None:
        """Remove a shard and its vectors from memory; call it with `lock` held."""
        view = self.table.view
        shard_rows = np.flatnonzero(view.alive[: view.size] & (view.shards[: view.size] == shard))
        self.table.kill(shard_rows.tolist())
        if self.text is not None:
            for vector_id in view.ids.take(shard_rows):
                self.text.remove(vector_id)
        self._damaged = {vector_id: own for vector_id, own in self._damaged.items() if own != shard}
        del self.stores[shard], self._vector_counts[shard], self.highest[shard]

    @property
    def is_left(self) -> bool:
        """Whether every shard of this worker has left the collection."""
        return self._dropped

    def is_settled(self) -> bool:
        """Whether no store may still confirm rows of the snapshot: dead rows may then be removed."""
        if self._snapshot_rows and (not self._awaited or time.monotonic() - self._attached_at >= SETTLED_S):
            self._snapshot_rows = 0
        return not self._snapshot_rows

    def replace_table(self, fresh: Table) -> None:
        """Serve the table `fresh`, which has the same living vectors, from now on; call it with `lock` held."""
        self.table = fresh
        self.saved_rows = 0

    def _store(self, shard: int) -> Rows:
        """The shard's store. Raises NotFound if the shard has left the collection."""
        if shard not in self.stores:
            raise NotFound(f"the collection {self.collection.name!r} has been deleted")
        return self.stores[shard]

    # Reading

    def contents(self, shard: int, ids: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
        """(components float32, attributes) of each id as the store has them now, both as bytes; None for a vector that
        does not exist or is damaged. Raises StoreDamaged, Unavailable."""
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
        """As `contents`, for ids of several shards: `shards[i]` is the shard of `ids[i]`."""
        contents: list[tuple[bytes, bytes] | None] = [None] * len(ids)
        places: dict[int, list[int]] = {}
        for place, shard in enumerate(shards):
            places.setdefault(shard, []).append(place)
        for shard, shard_places in places.items():
            for place, content in zip(shard_places, self.contents(shard, [ids[p] for p in shard_places]), strict=True):
                contents[place] = content
        return contents

    def shards_of(self, ids: Sequence[bytes]) -> list[int]:
        """The shard of each id, −1 for one that does not exist."""
        with self.lock:
            view = self.table.view
            return [int(view.shards[row]) if row >= 0 else -1 for row in self.rows(ids)]

    def rows(self, ids: Sequence[bytes]) -> list[int]:
        """The living row of each id, −1 for one that does not exist."""
        return self.table.rows_of(ids).tolist()
