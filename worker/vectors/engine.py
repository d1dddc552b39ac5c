"""The vectors of one worker process: collections over all its shards, and the thread that works behind the requests."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

from shared.config import Settings
from shared.errors import Unavailable
from shared.messages.vectors import Collection, CollectionStats
from shared.telemetry import event
from worker.damage import DamageReport
from worker.storage.faces import Objects, Rows
from worker.vectors.collection import WorkerCollection
from worker.vectors.indexing import Indexing

NICENESS = 5  # behind the threads that answer requests
IDLE_S = 1.0
STOP_S = 3.0


class Engine:
    """Its thread begins with the first shard that is loaded and ends with the first that closes: the shards of a worker
    close together."""

    def __init__(self, settings: Settings, snapshots: Objects) -> None:
        self._settings = settings
        self._snapshots = snapshots
        self._collections: dict[int, WorkerCollection] = {}
        self._indexing: dict[int, Indexing] = {}
        self._stores: dict[int, Rows] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._work = threading.Event()
        self._thread: threading.Thread | None = None

    def join(self, shard: int, store: Rows, damage: DamageReport, collections: list[Collection]) -> None:
        """A shard and the collections it has; returns when its vectors are loaded."""
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
        """Forget a shard whose loading failed; it may `join` again."""
        with self._lock:
            self._stores.pop(shard, None)
            collections = list(self._collections.values())
        for collection in collections:
            collection.detach(shard)

    def _find_or_make(self, collection: Collection) -> WorkerCollection:
        known = self._collections.get(collection.id)
        if known is None:
            snapshots = self._snapshots_of(collection.id)
            known = WorkerCollection(collection, snapshots)
            self._indexing[collection.id] = Indexing(known, snapshots, self._settings)
            self._collections[collection.id] = known
        return known

    def _snapshots_of(self, collection_id: int) -> Objects:
        return self._snapshots.within(f"{collection_id:06d}")

    def find(self, collection_id: int) -> WorkerCollection | None:
        return self._collections.get(collection_id)

    def open(self, shard: int, damage: DamageReport, collection: Collection) -> WorkerCollection:
        """The collection, with this shard attached."""
        with self._lock:
            opened = self._find_or_make(collection)
        opened.attach(shard, self._stores[shard], damage)
        return opened

    def remove_left(self, collection_id: int) -> None:
        """Forget the collection if all its shards have given it up."""
        with self._lock:
            known = self._collections.get(collection_id)
            if known is not None and not known.is_left:
                return
            self._collections.pop(collection_id, None)
            self._indexing.pop(collection_id, None)
        self.remove_index(collection_id)

    def remove_index(self, collection_id: int) -> None:
        """Remove the snapshots of a collection that was dropped. Every worker does; what another is just writing there
        it will not use either, and what is left over goes at the next start."""
        self._snapshots_of(collection_id).remove()

    def stats(self) -> list[CollectionStats]:
        return [collection.stats() for collection in list(self._collections.values())]

    def counts(self, shard: int) -> dict[str, int]:
        pairs = [collection.counts(shard) for collection in list(self._collections.values())]
        return {"vectors": sum(n for n, _ in pairs), "vectors_to_index": sum(n for _, n in pairs)}

    def wake(self) -> None:
        """There is something new to index."""
        self._work.set()

    def stop(self) -> None:
        """End the thread and save the indexes; safe to call again."""
        self._stopping.set()
        self._work.set()
        with self._lock:
            if self._thread is None:
                return
            self._thread.join(STOP_S)
            if not self._thread.is_alive():  # else an index being written is left without its list, and not used
                for indexing in self._indexing.values():
                    self._save(indexing)
            self._thread = None

    # The thread

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # a container may refuse it; indexing then competes on equal terms
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while not self._stopping.is_set():
            try:
                busy = [self._step(indexing) for indexing in list(self._indexing.values())]
            except Exception:
                # The stores still have everything and searches compare what is not indexed, so serving goes on.
                event(logging.ERROR, "vector indexing failed", trace=True)
                busy = []
            if not any(busy):
                self._work.wait(IDLE_S)
                self._work.clear()

    def _step(self, indexing: Indexing) -> bool:
        if indexing.compact_due():
            for _ in self._until_stopped(indexing.compact()):
                pass
        if indexing.attributes_due():
            indexing.index_attributes()
        if indexing.measure_due():
            for _ in self._until_stopped(indexing.measure()):
                pass
        busy = indexing.index_step()
        if indexing.snapshot_due():
            self._save(indexing)
        return busy

    def _until_stopped(self, slices: Iterator[None]) -> Iterator[None]:
        for _ in slices:
            if self._stopping.is_set():
                return
            yield

    def _save(self, indexing: Indexing) -> None:
        try:
            indexing.save()
        except (OSError, Unavailable) as error:
            event(
                logging.WARNING,
                "vector index snapshot failed",
                collection=indexing.collection.collection.name,
                why=error,
            )
