"""Work behind the requests on one collection of a worker: indexing, rebuilding, measuring, and snapshots."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import numpy as np

from shared.config import Settings
from shared.telemetry import event
from worker.storage.faces import Objects
from worker.vectors import calibration, snapshot
from worker.vectors.collection import WorkerCollection
from worker.vectors.compaction import build_aside, copy_rows
from worker.vectors.table import Table

DEAD_SHARE_MAX, DEAD_ROWS_MIN = 0.25, 1000
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


class Indexing:
    """Of one collection. One thread calls all of it."""

    def __init__(self, collection: WorkerCollection, snapshots: Objects, settings: Settings) -> None:
        self.collection = collection
        self._description = collection.collection
        self._snapshots = snapshots
        self._shards_total = settings.shards
        self._snapshot_s = settings.vector_snapshot_ms / 1000
        self._saved_at = time.monotonic()

    def index_step(self) -> bool:
        """Index one slice of what is not indexed yet; False when there is nothing."""
        collection = self.collection
        table = collection.table
        if collection.is_left or not table.pending():
            return False
        searched = time.monotonic() - collection.searched_at < QUIET_S
        size = SLICE_ROWS_SEARCHED if searched else SLICE_ROWS
        rows, vectors = table.index_slice(size)
        began = time.perf_counter()
        if len(rows):
            table.view.index.add(rows, vectors)
        with collection.lock:
            table.advance(size)
        if searched and table.pending() < PAUSE_PENDING_MAX:
            time.sleep(min(PAUSE_S_MAX, PAUSE * (time.perf_counter() - began)))
        return True

    def attributes_due(self) -> bool:
        view = self.collection.view()
        return view.attributes.index_due(view.size)

    def index_attributes(self) -> None:
        view = self.collection.view()
        view.attributes.build_index(view.size)

    def measure_due(self) -> bool:
        collection = self.collection
        rows_due = max(MEASURE_ROWS_MIN, MEASURE_GROWTH * collection.measured_rows)
        return not collection.is_left and collection.view().indexed >= rows_due

    def measure(self) -> Iterator[None]:
        """Find the expansion that searches need on this data; yields between queries."""
        collection = self.collection
        view = collection.view()
        shards = len(collection.stores)
        expansion = yield from calibration.measure(
            view, self._description.metric, shards / max(shards, self._shards_total)
        )
        collection.expansion, collection.measured_rows = expansion, view.indexed

    def compact_due(self) -> bool:
        view = self.collection.view()
        dead = view.dead >= max(DEAD_ROWS_MIN, DEAD_SHARE_MAX * view.size)
        return dead and not self.collection.is_left and self.collection.is_settled()

    def compact(self) -> Iterator[None]:
        """Build the table and its index anew without dead rows, aside, then swap; yields between slices.

        What is written meanwhile goes to the old table, and is brought over under the lock at the end.
        """
        collection = self.collection
        old = collection.table
        began = old.view
        fresh = Table(self._description, began.size - began.dead)
        moved = np.flatnonzero(began.alive[: began.size])
        yield from build_aside(old, fresh, collection.contents_of, moved)
        with collection.lock:
            if collection.is_left or collection.table is not old:
                return
            now = old.view
            copy_rows(old, fresh, collection.contents_of, began.size + np.flatnonzero(now.alive[began.size : now.size]))
            died = np.flatnonzero(~now.alive[moved])
            if len(died):
                fresh.kill(died.tolist())
            view = fresh.view
            collection.replace_table(fresh)
        event(
            logging.INFO,
            "vector index rebuilt",
            collection=self._description.name,
            rows=view.size,
            dead=began.dead,
        )

    def snapshot_due(self) -> bool:
        collection = self.collection
        indexed = collection.view().indexed
        unsaved = indexed - collection.saved_rows
        if collection.is_left or unsaved <= SNAPSHOT_SHARE_TIMED * indexed or not collection.is_settled():
            return False
        if time.monotonic() - self._saved_at >= self._snapshot_s:
            return True
        return unsaved >= max(SNAPSHOT_ROWS, SNAPSHOT_SHARE * indexed)

    def save(self) -> None:
        """Write a snapshot of what is indexed, if there is more than in the last. Raises OSError, Unavailable."""
        collection = self.collection
        with collection.lock:
            view, stores, highest = collection.view(), list(collection.stores.values()), dict(collection.highest)
        if view.indexed <= collection.saved_rows or collection.is_left:
            return
        for store in stores:
            # After the loss of power no vector may have a version that the snapshot gives to another one.
            store.sync()
        snapshot.write(self._snapshots, highest, self._description, view, collection.expansion)
        collection.saved_rows, self._saved_at = view.indexed, time.monotonic()
