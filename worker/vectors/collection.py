"""One collection's vectors in one worker: the rows in the stores, and the table that searches read.

All shards of a worker share one table and one index: the cost of searching a graph hardly depends on its size, so a
graph for each shard would multiply the cost of a search by their number. `stored_rows` describes the stores' rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, RLock

import numpy as np
from numpy.typing import NDArray

from shared.errors import NotFound
from shared.messages.vectors import Collection, CollectionStats, Floats
from shared.telemetry import event
from worker.damage import DamageReport
from worker.storage.faces import Objects, RowBatch, Rows
from worker.vectors import stored_rows
from worker.vectors.change_log import ChangeLog, Position
from worker.vectors.loading import Loading
from worker.vectors.query_sample import QuerySample
from worker.vectors.recall_curve import RECALL, RecallCurve
from worker.vectors.stored_rows import FAMILY, VERSION_BYTES, prefix
from worker.vectors.table import Table, TableView
from worker.vectors.text import TextIndex

QUIET_S = 0.5
"""A collection counts as searched for this time after each search."""
GIVE_WAY_S = 0.0002
"""How long a write sleeps between its steps while the collection is searched. A thread that wakes up in a worker does
not preempt another one (`SCHED_BATCH`). So without the sleep, a search would wait until the write has ended or has used
up its time slice: some milliseconds, on each of the threads that handle its message."""


class WorkerCollection:
    """Safe to use from many threads: one writer at a time; searches use `view()` and never wait for a writer."""

    def __init__(self, collection: Collection, snapshots: Objects, directory: Path | None = None) -> None:
        """`directory`: see `Table`. Raises Unavailable."""
        self.collection = collection
        self.directory = directory
        self.curve: RecallCurve | None = None
        """The recall for each expansion as last measured (`calibration`); None before the first measurement."""
        self.sample = QuerySample(collection.dimension)
        self.searched_at = 0.0
        """Time of the last search, in seconds of `time.monotonic`."""
        self.measured_rows = self.saved_rows = 0
        """Rows of the index when `curve` was measured, and when the last snapshot was taken."""
        self.prefix = prefix(collection.id)
        self.end = prefix(collection.id + 1)
        self._head = VERSION_BYTES + 4 * collection.dimension
        self.lock = RLock()  # reentrant: a rebuild holds it while it reads contents, which takes it to report damage
        """Guards every change of the collection."""
        self.stores: dict[int, Rows] = {}
        self._damage: dict[int, DamageReport] = {}
        self._damaged: dict[bytes, int] = {}  # id of a vector whose stored row is damaged → its shard
        self._vector_counts: dict[int, int] = {}  # shard → number of its living vectors
        self.highest: dict[int, int] = {}
        """Shard → the highest version ever given in it."""
        self._changes: dict[int, ChangeLog] = {}
        self.table = Table(collection, directory=directory)
        self._dropped = False
        self._writes, self._writes_lock = 0, Lock()
        self.text = TextIndex(collection.text_fields()) if collection.text else None
        self.loading = Loading(self, snapshots)

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
        """Read a shard's vectors from its store. The first shard also loads the snapshot of the index, if a usable one
        exists.

        Damaged rows are left out and reported in `damage`. Raises StoreDamaged, Unavailable, and then removes the
        shard's rows from memory again: otherwise the next attempt would load the same rows a second time.
        """
        try:
            self.loading.attach(shard, store, damage)
        except Exception:
            self.detach(shard)
            raise

    def admit(self, shard: int, store: Rows, damage: DamageReport, highest: int, changes: ChangeLog) -> None:
        """Add a shard that is being loaded. `highest`: the highest version that it has given. The caller holds
        `lock`."""
        self.stores[shard], self._damage[shard] = store, damage
        self._vector_counts[shard], self.highest[shard], self._changes[shard] = 0, highest, changes

    def add_count(self, shard: int, vectors: int) -> None:
        """Count so many more vectors of a shard in the table. The caller holds `lock`."""
        self._vector_counts[shard] += vectors

    def report(self, shard: int, wrong: Mapping[bytes, str]) -> None:
        """Leave these vectors of a shard out of answers from now on, and report them in the shard's `DamageReport`.
        `wrong`: id → what is wrong. The caller holds `lock`."""
        wrong = {vector_id: why for vector_id, why in wrong.items() if vector_id not in self._damaged}
        if wrong:
            living = self.table.rows_of(list(wrong))
            living = living[living >= 0]
            self.table.kill(living.tolist())
            self._vector_counts[shard] -= len(living)
            self._damaged.update(dict.fromkeys(wrong, shard))
            vector_id, why = next(iter(wrong.items()))
            text = (
                f"vectors of the collection {self.collection.name!r} are damaged and missing: {len(wrong)} "
                f"such as {vector_id.decode(errors='replace')!r}: {why}"
            )
            self._damage[shard].add("vector", text)
            event(logging.ERROR, "vectors are damaged", shard=shard, why=text)

    # Writing

    def is_searched(self) -> bool:
        """Whether there was a search a moment ago."""
        return time.monotonic() - self.searched_at < QUIET_S

    def give_way(self) -> None:
        """Leave the processor to the threads of searches, if there may be any."""
        if self.is_searched():
            time.sleep(GIVE_WAY_S)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The context of a request that writes; see `is_written`."""
        with self._writes_lock:
            self._writes += 1
        try:
            yield
        finally:
            with self._writes_lock:
                self._writes -= 1

    def is_written(self) -> bool:
        """Whether a request is writing now. Indexing then pauses: the processor time that the write leaves to searches
        is not for indexing."""
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
            self.table.reserve(len(ids))  # before the write, so that the store gets nothing that memory cannot hold
            base = self.highest[shard] + 1
            last = self.highest[shard] + len(ids)
            batch = store.batch()
            for place, vector_id in enumerate(ids):
                version = (base + place).to_bytes(VERSION_BYTES, "little")
                value = version + components[place * width : place * width + width] + attributes[place]
                batch.put(FAMILY, self.prefix + vector_id, value)
            stored_rows.put_highest(batch, self.collection.id, last)
            self._changes[shard].add_versions(batch, last, ids)
            # Set before the write, because a store that refuses the batch may contain it nevertheless.
            self.highest[shard] = last
            self.give_way()
            self._write(shard, batch)
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
                batch.delete(FAMILY, self.prefix + vector_id)
            # The store may lack the highest version if it has refused a write.
            stored_rows.put_highest(batch, self.collection.id, self.highest[shard])
            self._changes[shard].add_deletion(batch, (*existing, *damaged))
            self._write(shard, batch)
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
                self.table, self.saved_rows = Table(self.collection, directory=self.directory), 0
                self.loading.begin_anew()

    def _forget(self, shard: int) -> None:
        """Remove a shard and its vectors from memory. The caller holds `lock`."""
        view = self.table.view
        shard_rows = np.flatnonzero(view.alive[: view.size] & (view.shards[: view.size] == shard))
        self.table.kill(shard_rows.tolist())
        if self.text is not None:
            for vector_id in view.ids.take(shard_rows):
                self.text.remove(vector_id)
        self._damaged = {vector_id: other for vector_id, other in self._damaged.items() if other != shard}
        self.loading.forget(shard)
        del self.stores[shard], self._vector_counts[shard], self.highest[shard], self._changes[shard]

    @property
    def is_left(self) -> bool:
        """Whether every shard of this worker has left the collection."""
        return self._dropped

    def replace_table(self, fresh: Table) -> None:
        """Serve the table `fresh`, which has the same living vectors, from now on. The caller holds `lock`."""
        self.table = fresh
        self.saved_rows = 0
        self.loading.begin_anew()

    def positions(self, view: TableView) -> dict[int, Position]:
        """Shard → the position up to which all of its changes are in the indexed rows of `view`, the present one. It
        has only the shards for which this is certain and whose later changes have records. The caller holds `lock`."""
        positions: dict[int, Position] = {}
        shards, versions = view.shards[view.indexed : view.size], view.versions[view.indexed : view.size]
        for shard, changes in self._changes.items():
            pending = versions[shards == shard]
            position = Position.before(int(pending.min())) if len(pending) else changes.position
            is_known = changes.is_certain and self.loading.is_complete(shard) and shard not in self._damaged.values()
            if is_known and position >= changes.kept_from:
                positions[shard] = position
        return positions

    def latest_changes(self) -> dict[int, Position]:
        """Shard → the position of its latest change. The caller holds `lock`."""
        return {shard: changes.position for shard, changes in self._changes.items()}

    def trim_changes(self, positions: Mapping[int, Position]) -> None:
        """Remove the records of changes up to these positions, which no snapshot needs. The caller holds `lock`. Raises
        Unavailable."""
        for shard, position in positions.items():
            if shard in self._changes:
                self._changes[shard].trim(position)

    def _write(self, shard: int, batch: RowBatch) -> None:
        try:
            self.stores[shard].write(batch)
        except BaseException:
            self._changes[shard].is_certain = False  # the store may have the batch nevertheless
            raise

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
        values = store.get_many(FAMILY, [self.prefix + vector_id for vector_id in ids])
        short = [
            vector_id for vector_id, value in zip(ids, values, strict=True) if value is not None and len(value) < head
        ]
        if short or self._damaged:
            with self.lock:
                self.report(shard, dict.fromkeys(short, f"its row has less than {head} bytes"))
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
