"""Loads the vectors of a worker's shards into a collection's table when the shards are opened.

The first shard loads the snapshot of the index, if a usable one exists. Then a shard's vectors are loaded in one of two
ways. If the snapshot has the vectors, and the shard's records say which of them have changed since (`change_log`), only
those are read from the store; the others are taken from the snapshot, and the store's rows are compared with the table
later, in the background (`verification`). Otherwise all rows of the store are read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from threading import RLock
from typing import Protocol

import numpy as np

from shared.messages.vectors import Collection
from shared.telemetry import event
from worker.damage import DamageReport
from worker.storage.faces import Objects
from worker.storage.faces import Rows as Store
from worker.vectors import saved_vectors, snapshot, stored_rows
from worker.vectors.change_log import ChangeLog
from worker.vectors.recall_curve import RecallCurve
from worker.vectors.saved_vectors import Segment
from worker.vectors.similarity import Rows
from worker.vectors.snapshot import IndexSnapshot
from worker.vectors.stored_rows import FAMILY, READ_AT_ONCE, Columns, Row
from worker.vectors.table import Table
from worker.vectors.text import TextIndex

LOAD_ROWS, LOAD_BYTES = 1024, 4 << 20
"""Rows that are loaded at once, and about how many bytes of them."""
CHANGED_SHARE_MAX = 0.25
"""If more than this share of a shard's vectors in the snapshot has changed, reading all rows of the store takes about
as long."""
SETTLED_S = 10.0
"""If no shard was loaded for this time, the rows of a snapshot that no store has confirmed belong to shards of other
workers, and may be removed."""


def next_rows(entries: Iterator[tuple[bytes, bytes]], rows_max: int) -> list[Row]:
    """The next rows of a scan, at most `rows_max` and about `LOAD_BYTES`; none at its end."""
    rows: list[Row] = []
    bytes_left = LOAD_BYTES
    for key, value in islice(entries, rows_max):
        rows.append((key[4:], value))
        bytes_left -= len(value)
        if bytes_left <= 0:
            break
    return rows


class Loaded(Protocol):
    """What a `WorkerCollection` has for the loading of its shards."""

    collection: Collection
    lock: RLock
    table: Table
    text: TextIndex | None
    prefix: bytes
    end: bytes
    stores: dict[int, Store]
    highest: dict[int, int]
    curve: RecallCurve | None
    measured_rows: int
    saved_rows: int

    def admit(self, shard: int, store: Store, damage: DamageReport, highest: int, changes: ChangeLog) -> None: ...

    def add_count(self, shard: int, vectors: int) -> None: ...

    def report(self, shard: int, wrong: Mapping[bytes, str]) -> None: ...


class Loading:
    """The loading of one collection. The caller of `attach` loads one shard; other threads may load other shards at the
    same time. Every change of the collection is made with its lock held."""

    def __init__(self, collection: Loaded, snapshots: Objects) -> None:
        self._collection = collection
        self._snapshots = snapshots
        self.unverified: list[int] = []
        """Shards whose rows have not been compared with the table yet."""
        self._complete: set[int] = set()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the snapshot: the table is empty, or has been replaced."""
        self.snapshot_rows = 0
        """How many rows of the table are from the snapshot, while shards are loading."""
        self.segments: tuple[Segment, ...] = ()
        """The segments of the last snapshot, which have the table's first rows."""
        self._awaited: set[int] = set()  # shards whose vectors are in the snapshot and have not been loaded
        self._saved: IndexSnapshot | None = None
        self._trusted: set[int] = set()  # shards of which the snapshot has all vectors up to a known change
        self._attached_at = time.monotonic()

    def attach(self, shard: int, store: Store, damage: DamageReport) -> None:
        """See `WorkerCollection.attach`; if this raises, memory may have a part of the shard."""
        collection = self._collection
        highest = stored_rows.highest_version(store, collection.collection.id)
        changes = ChangeLog(store, collection.collection.id, highest)
        snapshot.discard_newer(self._snapshots, shard, highest)
        with collection.lock:
            is_first = not collection.stores
            collection.admit(shard, store, damage, highest, changes)
            if is_first:
                self._restore(shard)
        changed = self._changed(shard, changes)
        is_trusted = changed is not None and self._confirm(shard, changed)
        wrong = self._load_changed(shard, changed) if is_trusted and changed is not None else self._load_all(shard)
        with collection.lock:
            self._awaited.discard(shard)
            collection.report(shard, wrong)
            stored_rows.check_highest(store, collection.collection.id, highest, collection.highest[shard])
            self._complete.add(shard)
            if is_trusted:
                self.unverified.append(shard)

    def forget(self, shard: int) -> None:
        """Note that the shard has been removed from memory. The caller holds the collection's lock."""
        self._trusted.discard(shard)
        self._complete.discard(shard)
        if shard in self.unverified:
            self.unverified.remove(shard)

    def is_complete(self, shard: int) -> bool:
        """Whether all vectors of the shard are in the table."""
        return shard in self._complete

    def is_settled(self) -> bool:
        """Whether no store can confirm rows of the snapshot any more, so that dead rows may be removed."""
        with self._collection.lock:  # held while a slice of rows is loaded, which must not lose its snapshot half-way
            if self.snapshot_rows and (not self._awaited or time.monotonic() - self._attached_at >= SETTLED_S):
                self.snapshot_rows = 0
                self._saved = None
            return not self.snapshot_rows

    def _restore(self, shard: int) -> None:
        """Begin with the rows of the snapshot that has this shard, all dead until a store confirms them."""
        collection = self._collection
        saved = snapshot.read(self._snapshots, shard, collection.collection)
        if saved is None or not len(saved.versions):
            return
        collection.table.restore(saved.index, saved.joined, saved.lengths, saved.versions, saved.attributes)
        self.snapshot_rows = collection.saved_rows = len(saved.versions)
        collection.curve = saved.curve
        collection.measured_rows = collection.saved_rows if saved.curve is not None else 0
        self._saved, self._awaited = saved, set(saved.highest)
        self._attached_at = time.monotonic()
        if not saved.positions:
            return
        try:
            collection.table.restore_vectors(
                lambda vectors: saved_vectors.read(saved.saved, saved.segments, vectors), saved.norms
            )
        except (OSError, ValueError) as error:
            path = saved.saved.location()
            event(logging.WARNING, "vectors of a snapshot not usable, reading the stores", path=path, why=error)
            return
        self.segments, self._trusted = saved.segments, set(saved.positions)
        self._attached_at = time.monotonic()

    def _changed(self, shard: int, changes: ChangeLog) -> Sequence[bytes] | None:
        """The ids of the shard's vectors that have changed since the snapshot; None if that is not known, or if all
        rows are to be read anyway. Raises StoreDamaged, Unavailable."""
        saved = self._saved
        # The texts of the vectors are in the store only, so a collection with texts reads all rows.
        if saved is None or shard not in self._trusted or self._collection.text is not None:
            return None
        ids_max = int(CHANGED_SHARE_MAX * len(saved.rows_of(shard)))
        return changes.changed_since(saved.positions[shard], ids_max, saved.latest.get(shard))

    def _confirm(self, shard: int, changed: Sequence[bytes]) -> bool:
        """Make the shard's rows of the snapshot living, without the vectors in `changed`. False if the snapshot is not
        used any more."""
        collection = self._collection
        with collection.lock:
            saved = self._saved
            if saved is None or self.is_settled() or shard not in self._trusted:
                return False
            rows = saved.rows_of(shard)
            rows = np.setdiff1d(rows, collection.table.view.ids.latest(changed), assume_unique=True)
            collection.table.confirm(rows, shard)
            collection.add_count(shard, len(rows))
            self._attached_at = time.monotonic()
        return True

    def _load_all(self, shard: int) -> dict[bytes, str]:
        """Load all rows of a shard's store; id → what is wrong for each damaged one."""
        collection = self._collection
        entries = collection.stores[shard].scan(FAMILY, collection.prefix, collection.end)
        wrong: dict[bytes, str] = {}
        while rows := next_rows(entries, LOAD_ROWS):
            wrong.update(self._load(shard, rows))
        return wrong

    def _load_changed(self, shard: int, changed: Sequence[bytes]) -> dict[bytes, str]:
        """As `_load_all`, of the vectors with these ids."""
        collection = self._collection
        wrong: dict[bytes, str] = {}
        for start in range(0, len(changed), READ_AT_ONCE):
            ids = changed[start : start + READ_AT_ONCE]
            rows = stored_rows.of_ids(collection.stores[shard], collection.collection.id, ids)
            wrong.update(self._load(shard, rows))
        return wrong

    def _load(self, shard: int, rows: Sequence[Row]) -> Mapping[bytes, str]:
        undamaged, wrong = stored_rows.checked(rows, self._collection.collection.dimension)
        with self._collection.lock:
            self.load_batch(shard, undamaged)
            self._attached_at = time.monotonic()
        return wrong

    def load_batch(self, shard: int, batch: Columns) -> None:
        """Put undamaged rows of a store into the table: revive those that the snapshot has, append the others. The
        caller holds the collection's lock."""
        collection = self._collection
        if not batch.ids:
            return
        ids, numbers, vectors = batch.ids, batch.versions, batch.vectors
        snapshot_rows = self.snapshot_rows
        if self._saved is not None and self._saved.highest.get(shard, 0) > collection.highest[shard]:
            snapshot_rows = 0  # the snapshot names versions that this store never gave: it is of another store
        view = collection.table.view
        rows: Rows = view.ids.latest(ids)
        is_old = (rows >= 0) & (rows < snapshot_rows) & ~view.alive[rows] & (view.versions[rows] == numbers)
        if is_old.all():
            collection.table.revive(rows, vectors, shard)
        else:
            collection.table.revive(rows[is_old], vectors[is_old], shard)
            places = np.flatnonzero(~is_old)
            new = places.tolist()
            new_ids = [ids[place] for place in new]
            collection.table.append(new_ids, vectors[places], numbers[places], shard, batch.attributes(new), ())
            collection.highest[shard] = max(collection.highest[shard], int(numbers[places].max()))
        collection.add_count(shard, len(ids))
        if collection.text is not None:
            for vector_id, packed in zip(ids, batch.attributes(range(len(ids))), strict=True):
                collection.text.put(vector_id, packed)
