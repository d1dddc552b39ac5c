"""Background work on one collection of a worker: indexing, rebuilding, measuring, and snapshots."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from typing import TypeVar

import numpy as np

from shared.process import huge_pages
from shared.settings import Settings
from shared.telemetry import event
from worker.storage.faces import Objects
from worker.vectors import calibration, snapshot, verification
from worker.vectors.collection import WorkerCollection
from worker.vectors.compaction import COPY_ROWS, copy_rows, copy_table
from worker.vectors.inverted_lists import SLICE_ROWS_SEARCHED, InvertedLists
from worker.vectors.pace import Pace
from worker.vectors.table import Table

Result = TypeVar("Result")

DEAD_SHARE_MAX, DEAD_ROWS_MIN = 0.25, 1000
"""A table is rebuilt when it has at least this share, and at least this number, of dead rows."""
# A snapshot writes the whole index, and holds the interpreter lock for about 1 µs a vector. So it is due when many
# vectors are new, or after some time when a few are.
SNAPSHOT_ROWS = 20_000
SNAPSHOT_SHARE = 0.25
SNAPSHOT_SHARE_TIMED = 0.01
SNAPSHOT_RETRY_S = 10.0
"""Pause after a snapshot that could not be written: an attempt writes as much as the disk takes."""
SAVED_ROWS_MIN = 10_000
"""With this many rows or more, a snapshot has the vectors, too. A start reads fewer rows from the stores in a tenth of
a second."""
MEASURE_ROWS_MIN = 2000
"""In smaller tables, searches mostly compare all rows."""
MEASURE_PENDING_MAX = 10_000
"""With more pending rows, the rows are indexed first: the table is being filled."""
MEASURE_GROWTH = 1.4
"""Growth after which the expansion is measured again: it grows at most with the logarithm of the graph's size."""
MEASURE_AGAIN_S = 600.0
"""The shortest time between two measurements if only the queries have changed."""
PAGES_ROWS_MIN = 10_000
PAGES_GROWTH = 1.25
"""Growth after which memory is collapsed into huge pages again."""
PAUSE = 4.0
"""The pause after a slice in a collection that is searched, in multiples of the slice's time. A thread that never
sleeps would keep its processor for milliseconds after another one wakes up, and indexing is not urgent: searches
compare the pending rows."""
PAUSE_S_MAX = 0.01
PAGES_PAUSE, PAGES_PAUSE_S_MAX = 50.0, 0.5
"""The pause after each huge page in a collection that is searched, in multiples of its time: the kernel takes up to
6 ms for a page, in which the process maps no other memory."""
CATCH_UP_PENDING = 1000
"""With fewer pending rows, a longer task goes on without indexing: comparing so many takes a search some 0.05 ms."""
ADDED_SINCE_ROWS = 2 * SLICE_ROWS_SEARCHED
"""Rows that were indexed during a retraining, to add to the fresh index at once: more than are indexed meanwhile."""
WRITTEN_PAUSE_S = 0.002
"""Pause before indexing checks again whether the writes to a collection that is searched have ended."""
PAUSE_PENDING_MAX = 10_000
"""With this many pending rows or more, indexing does not pause; comparing so many takes some 0.2 ms at 128
components."""


class Indexing:
    """The background work on one collection. One thread calls all methods."""

    def __init__(self, collection: WorkerCollection, snapshots: Objects, settings: Settings) -> None:
        self.collection = collection
        self._description = collection.collection
        self._snapshots = snapshots
        self._shards_total = settings.shard_count()
        self._snapshot_s = settings.vector_snapshot_ms / 1000
        self._saved_at = time.monotonic()
        self._retry_at = 0.0
        """When a snapshot may be tried again after a failure."""
        self.resume_at = 0.0
        """When the work goes on after a failure, in seconds of `time.monotonic`."""
        self._measured_at = time.monotonic()
        self._collapsed_rows = 0
        self._verification: Iterator[None] | None = None
        self._measured_sample = False  # whether the last measurement had a full sample of real queries
        self._pace = Pace(collection.is_searched)

    def index_step(self) -> bool:
        """Index one slice of the pending rows; False if there are none."""
        collection = self.collection
        table = collection.table
        if collection.is_left or not table.pending():
            return False
        is_searched = collection.is_searched()
        if is_searched and collection.is_written() and table.pending() < PAUSE_PENDING_MAX:
            time.sleep(WRITTEN_PAUSE_S)
            return True
        index = table.view.index
        size = index.slice_rows_searched if is_searched else index.slice_rows
        rows, vectors, end = table.index_slice(size)
        began = time.perf_counter()
        if len(rows):
            index.add(rows, vectors)
        with collection.lock:
            table.advance(end)
        if is_searched and table.pending() < PAUSE_PENDING_MAX:
            time.sleep(min(PAUSE_S_MAX, PAUSE * (time.perf_counter() - began)))
        return True

    def catch_up(self) -> None:
        """Index some rows beside a longer task if searches have to compare many."""
        if self.collection.table.pending() >= CATCH_UP_PENDING and self.collection.is_searched():
            self.index_step()

    def verify_step(self) -> bool:
        """Compare some rows of a store with the table, if they were not read at the start; False if none are left.
        Raises Unavailable."""
        loading = self.collection.loading
        if self._verification is None:
            if not loading.unverified:
                return False
            slices = verification.verify(self.collection, loading.unverified[0])
            self._verification = self._half_of_the_time(slices)
        try:
            next(self._verification)
        except StopIteration:
            self._verification = None
        except BaseException:
            self._verification = None
            raise
        return True

    def attributes_due(self) -> bool:
        """Whether the attribute index should be built anew."""
        view = self.collection.view()
        return view.attributes.index_due(view.size)

    def index_attributes(self) -> None:
        """Build the attribute index of all present rows."""
        view = self.collection.view()
        view.attributes.build_index(view.size)

    def retrain_due(self) -> bool:
        """Whether the rows should be in more lists. Not before the snapshot's rows are settled: those that no store has
        confirmed yet are dead, and would be in none of the new lists."""
        collection, index = self.collection, self.collection.view().index
        is_due = isinstance(index, InvertedLists) and index.is_outgrown()
        return is_due and not collection.is_left and collection.loading.is_settled()

    def retrain(self) -> Iterator[None]:
        """Put the indexed rows into lists with new centres, and then serve these; yields between slices. It works half
        of the time only while the collection is searched."""
        collection = self.collection
        table, view = collection.table, collection.view()
        assert isinstance(view.index, InvertedLists)
        living = np.flatnonzero(view.alive[: view.indexed])
        if not len(living):
            return  # the table is rebuilt instead
        slices = view.index.retrained(view.vectors, living, self._pace)
        fresh = yield from self._half_of_the_time(slices)
        yield from self._half_of_the_time(_added_since(table, view.indexed, fresh))
        with collection.lock:
            if collection.table is not table or collection.is_left:
                return
            table.replace_index(fresh)
            # The curve and the snapshot belong to the old lists.
            collection.measured_rows = collection.saved_rows = 0
        event(
            logging.INFO,
            "vector index retrained",
            collection=self._description.name,
            rows=view.indexed,
            lists=fresh.lists,
        )

    def _half_of_the_time(self, slices: Generator[None, None, Result]) -> Generator[None, None, Result]:
        """Run the slices. While the collection is searched, rest after each slice for as long as it took."""
        while True:
            self._pace.resume()
            try:
                next(slices)
            except StopIteration as end:
                result: Result = end.value
                return result
            self._pace.rest()
            yield

    def measure_due(self) -> bool:
        """Whether the recall should be measured: for the first time, with many more rows, with the first real queries,
        or with new queries after some time."""
        collection = self.collection
        indexed, curve, sample = collection.view().indexed, collection.curve, collection.sample
        if collection.is_left or indexed < MEASURE_ROWS_MIN or collection.table.pending() >= MEASURE_PENDING_MAX:
            return False
        if curve is None or indexed >= MEASURE_GROWTH * collection.measured_rows:
            return True
        if not curve.queries and not self._measured_sample:
            return sample.is_full()
        return sample.is_renewed() and time.monotonic() - self._measured_at >= MEASURE_AGAIN_S

    def measure(self) -> Iterator[None]:
        """Measure the recall of searches with this data; yields between slices. It works half of the time only while
        the collection is searched."""
        collection = self.collection
        view, sample = collection.view(), collection.sample
        shards = len(collection.stores)
        self._measured_at, self._measured_sample = time.monotonic(), sample.is_full()
        queries = sample.queries() if sample.is_full() else np.zeros((0, self._description.dimension), np.float32)
        share = shards / max(shards, self._shards_total)
        slices = calibration.measure(view, self._description.metric, share, queries, self._pace)
        collection.curve = yield from self._half_of_the_time(slices)
        collection.measured_rows = view.indexed

    def pages_due(self) -> bool:
        """Whether memory should be collapsed into huge pages: for the first time, or after much growth."""
        indexed = self.collection.view().indexed
        return indexed >= max(PAGES_ROWS_MIN, PAGES_GROWTH * self._collapsed_rows) and not self.collection.is_left

    def collapse_pages(self) -> Iterator[None]:
        """Collapse this process's memory into huge pages; yields after each. Huge pages help where memory is read at
        random places: the index and the vectors, and the interpreter's objects after a search has evicted them from the
        caches. Ends early if the table is about to be rebuilt, in other memory."""
        self._collapsed_rows = self.collection.view().indexed
        if not huge_pages.is_wanted():
            return
        for span in huge_pages.mappings():
            began = time.perf_counter()
            for _ in huge_pages.collapse(span):
                if self.collection.is_searched():
                    time.sleep(min(PAGES_PAUSE_S_MAX, PAGES_PAUSE * (time.perf_counter() - began)))
                yield
                if self.compact_due():
                    return
                began = time.perf_counter()

    def compact_due(self) -> bool:
        """Whether the table has so many dead rows that it should be rebuilt."""
        view = self.collection.view()
        dead = view.dead >= max(DEAD_ROWS_MIN, DEAD_SHARE_MAX * view.size)
        loading = self.collection.loading
        return dead and not self.collection.is_left and loading.is_settled() and not loading.unverified

    def compact(self) -> Iterator[None]:
        """Copy the living rows to a fresh table and index, then serve these; yields between slices. It works half of
        the time only while the collection is searched.

        Meanwhile, writes go to the old table. The rows that they add are copied as well, the last few with the lock
        held, so that writes wait. The rows that they killed are killed in the fresh table.
        """
        collection = self.collection
        old = collection.table
        began = old.view
        living = began.size - began.dead
        # A quarter more is room for the rows that are written meanwhile.
        fresh = Table(self._description, living + living // 4, collection.directory)
        copied_rows = np.flatnonzero(began.alive[: began.size])
        yield from self._half_of_the_time(copy_table(began, fresh, copied_rows))
        end, gap = began.size, old.view.size
        while COPY_ROWS < old.view.size - end < gap:  # without progress, writes are as fast as this and have to wait
            now = old.view
            gap = now.size - end
            added_rows = end + np.flatnonzero(now.alive[end : now.size])
            yield from copy_rows(now, fresh, added_rows)
            copied_rows, end = np.concatenate([copied_rows, added_rows]), now.size
        with collection.lock:
            if collection.is_left or collection.table is not old:
                return
            now = old.view
            for _ in copy_rows(now, fresh, end + np.flatnonzero(now.alive[end : now.size])):
                pass
            dead_rows = np.flatnonzero(~now.alive[copied_rows])
            if len(dead_rows):
                fresh.kill(dead_rows.tolist())
            view = fresh.view
            collection.replace_table(fresh)
            self._collapsed_rows = 0
        event(
            logging.INFO,
            "vector index rebuilt",
            collection=self._description.name,
            rows=view.size,
            dead=began.dead,
        )

    def snapshot_due(self) -> bool:
        """Whether a snapshot should be written: many rows were indexed since the last one, or a few and enough time has
        passed."""
        collection = self.collection
        indexed = collection.view().indexed
        unsaved = indexed - collection.saved_rows
        if collection.is_left or unsaved <= SNAPSHOT_SHARE_TIMED * indexed or not collection.loading.is_settled():
            return False
        if time.monotonic() < self._retry_at:
            return False
        if time.monotonic() - self._saved_at >= self._snapshot_s:
            return True
        return unsaved >= max(SNAPSHOT_ROWS, SNAPSHOT_SHARE * indexed)

    def save(self) -> None:
        """Write a snapshot of the indexed rows, if there are more than in the last one. Raises OSError, Unavailable."""
        collection = self.collection
        with collection.lock:
            view, stores, highest = collection.view(), list(collection.stores.values()), dict(collection.highest)
            # A start reads all vectors of a collection with texts from the stores, because only they have the texts.
            has_vectors = view.indexed >= SAVED_ROWS_MIN and collection.text is None
            positions, latest = collection.positions(view) if has_vectors else {}, collection.latest_changes()
            trimmed = latest | positions  # a shard without a position needs no records
            table, earlier = collection.table, collection.loading.segments
        if view.indexed <= collection.saved_rows or collection.is_left:
            return
        self._retry_at = time.monotonic() + SNAPSHOT_RETRY_S
        for store in stores:
            # After a loss of power, no store may give a version again that the snapshot names.
            store.sync()
        saved_latest = {shard: latest[shard] for shard in positions}
        saving = snapshot.Saving(self._description, view, highest, collection.curve, positions, saved_latest, earlier)
        segments = snapshot.write(self._snapshots, saving)
        self._saved_at, self._retry_at = time.monotonic(), 0.0
        with collection.lock:
            if collection.table is table and not collection.is_left:
                collection.saved_rows = view.indexed
                collection.loading.segments = segments
                collection.trim_changes(trimmed)


def _added_since(table: Table, indexed: int, fresh: InvertedLists) -> Generator[None, None, None]:
    """Add the rows that a table has indexed since it had indexed the first `indexed` ones to a fresh index, too. More
    may be indexed whenever it yields; when it returns, the fresh index has all of them."""
    while indexed < table.view.indexed:
        view = table.view
        end = min(view.indexed, indexed + ADDED_SINCE_ROWS)
        rows = indexed + np.flatnonzero(view.alive[indexed:end])
        fresh.add(rows, view.vectors[rows].astype(np.float32, copy=False))
        indexed = end
        if indexed < view.indexed:
            yield
