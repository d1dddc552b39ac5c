"""The vectors of one worker process: collections over all its shards, and the thread that indexes in the background."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator

from shared.errors import Unavailable
from shared.messages.vectors import Collection, CollectionStats
from shared.settings import Settings
from shared.telemetry import event
from worker.background import Background
from worker.damage import DamageReport
from worker.storage.faces import Objects, Rows
from worker.vectors.collection import WorkerCollection
from worker.vectors.indexing import Indexing

NICENESS = 5
"""Of the background thread, so that threads that answer requests go first."""
IDLE_S = 1.0
STOP_S = 3.0


class Engine:
    """The collections of a worker, and a background thread that indexes, rebuilds, measures and saves them. The thread
    starts when the first shard is loaded, and ends when the first shard closes, because the shards of a worker close
    together."""

    def __init__(self, settings: Settings, snapshots: Objects, background: Background | None = None) -> None:
        self._settings = settings
        self._background = background or Background()
        self._snapshots = snapshots
        self._collections: dict[int, WorkerCollection] = {}
        self._indexing: dict[int, Indexing] = {}
        self._stores: dict[int, Rows] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._work = threading.Event()
        self._thread: threading.Thread | None = None
        self.failures = 0
        """Failed attempts to index, and snapshots that could not be written."""

    def join(self, shard: int, store: Rows, damage: DamageReport, collections: list[Collection]) -> None:
        """Add a shard with its collections; returns when its vectors are loaded. Raises StoreDamaged, Unavailable."""
        with self._lock:
            self._stores[shard] = store
            joined = [self._find_or_make(collection) for collection in collections]
        for collection in joined:
            collection.attach(shard, store, damage)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="vector-index", daemon=True)
                self._thread.start()
        self.wake()

    def leave(self, shard: int) -> None:
        """Remove a shard whose loading failed; it may `join` again."""
        with self._lock:
            self._stores.pop(shard, None)
            collections = list(self._collections.values())
        for collection in collections:
            collection.detach(shard)

    def _find_or_make(self, collection: Collection) -> WorkerCollection:
        worker_collection = self._collections.get(collection.id)
        if worker_collection is None:
            snapshots = self._snapshots_of(collection.id)
            worker_collection = WorkerCollection(collection, snapshots, self._settings.data)
            self._indexing[collection.id] = Indexing(worker_collection, snapshots, self._settings)
            self._collections[collection.id] = worker_collection
        return worker_collection

    def _snapshots_of(self, collection_id: int) -> Objects:
        return self._snapshots.within(f"{collection_id:06d}")

    def find(self, collection_id: int) -> WorkerCollection | None:
        """The collection, None if no shard of this worker has it."""
        return self._collections.get(collection_id)

    def open(self, shard: int, damage: DamageReport, collection: Collection) -> WorkerCollection:
        """The collection, which is created if it is new in this worker, with this shard attached. Raises StoreDamaged,
        Unavailable."""
        with self._lock:
            opened = self._find_or_make(collection)
        opened.attach(shard, self._stores[shard], damage)
        return opened

    def remove_left(self, collection_id: int) -> None:
        """Remove the collection and its snapshots if all shards of this worker have left it."""
        with self._lock:
            worker_collection = self._collections.get(collection_id)
            if worker_collection is not None and not worker_collection.is_left:
                return
            self._collections.pop(collection_id, None)
            self._indexing.pop(collection_id, None)
        self.remove_index(collection_id)

    def remove_index(self, collection_id: int) -> None:
        """Remove the snapshots of a dropped collection. Each worker removes the snapshots of all workers, because no
        worker uses them any more. If another worker is just writing one, the next start removes the rest. Raises
        nothing."""
        self._snapshots_of(collection_id).remove()

    def stats(self) -> list[CollectionStats]:
        """The sizes of all collections in this worker."""
        recall = self._settings.vector_recall
        return [collection.stats(recall) for collection in list(self._collections.values())]

    def counts(self, shard: int) -> dict[str, int]:
        """The number of the shard's vectors, and of those that are not in an index yet, over all collections."""
        pairs = [collection.counts(shard) for collection in list(self._collections.values())]
        return {"vectors": sum(n for n, _ in pairs), "vectors_to_index": sum(n for _, n in pairs)}

    def written(self, shard: int) -> int:
        """The number of vectors that were ever written to the shard, over all collections."""
        return sum(collection.highest.get(shard, -1) + 1 for collection in list(self._collections.values()))

    def wake(self) -> None:
        """Wake the thread, because something new is to be indexed."""
        self._work.set()

    def stop(self) -> None:
        """End the thread and save the indexes; safe to call again."""
        self._stopping.set()
        self._work.set()
        with self._lock:
            if self._thread is None:
                return
            self._thread.join(STOP_S)
            if not self._thread.is_alive():  # otherwise it is writing a snapshot, which is not used if incomplete
                for indexing in self._indexing.values():
                    self._save(indexing)
            self._thread = None

    # The thread

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # a container may refuse this; indexing then has the usual priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while not self._stopping.is_set():
            busy = [self._try_step(indexing) for indexing in list(self._indexing.values())]
            if not any(busy):
                self._work.wait(IDLE_S)
                self._work.clear()

    def _try_step(self, indexing: Indexing) -> bool:
        """As `_step`, but after a failure, only this collection rests for a moment."""
        if time.monotonic() < indexing.resume_at:
            return False
        try:
            return self._step(indexing)
        except Exception:
            # The stores still have all vectors and searches compare those not indexed, so serving goes on.
            self.failures += 1
            event(logging.ERROR, "vector indexing failed", collection=indexing.collection.collection.name, trace=True)
            indexing.resume_at = time.monotonic() + IDLE_S
            return False

    def _step(self, indexing: Indexing) -> bool:
        """Do what is due for one collection; False if there is nothing to index."""
        is_paused = self._background.is_paused()
        if not is_paused and indexing.compact_due():
            for _ in self._until_stopped(indexing.compact()):
                pass
        if not is_paused and indexing.retrain_due():
            self._beside_indexing(indexing, indexing.retrain())
        if indexing.attributes_due():
            indexing.index_attributes()
        if not is_paused and indexing.measure_due():
            self._beside_indexing(indexing, indexing.measure())
        if not is_paused and indexing.pages_due():
            self._beside_indexing(indexing, indexing.collapse_pages())
        busy = indexing.index_step()
        if indexing.snapshot_due():
            self._save(indexing)
        return (not is_paused and indexing.verify_step()) or busy

    def _beside_indexing(self, indexing: Indexing, slices: Iterator[None]) -> None:
        """Run a long task. Beside searches, rows that come meanwhile are indexed."""
        for _ in self._until_stopped(slices):
            indexing.catch_up()

    def _until_stopped(self, slices: Iterator[None]) -> Iterator[None]:
        """The slices of a long task, up to the moment when the engine stops."""
        for _ in slices:
            if self._stopping.is_set():
                return
            yield

    def _save(self, indexing: Indexing) -> None:
        try:
            indexing.save()
        except (OSError, Unavailable) as error:
            self.failures += 1
            event(
                logging.WARNING,
                "vector index snapshot failed",
                collection=indexing.collection.collection.name,
                why=error,
            )
