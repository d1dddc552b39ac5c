"""The vectors of one shard: which collections its store has, and its place in the worker's engine."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import msgspec

from shared.config import Settings
from shared.errors import NotFound
from shared.labels import Symbols
from shared.messages.vectors import Collection
from worker.storage import Store
from worker.vectors.collection import FAMILY, WorkerCollection, prefix
from worker.vectors.engine import engine_of

META = "meta"
KNOWN = b"vector/collection/"
DROPPED = b"vector/dropped/"


class VectorPart:
    """Safe to use from many threads once `load` has returned. The directory's name is the shard's number."""

    def __init__(self, store: Store, settings: Settings, symbols: Symbols, directory: Path) -> None:
        self._store = store
        self.shard = int(directory.name)
        self.engine = engine_of(symbols, settings)
        self._here: set[int] = set()
        self._dropped: set[int] = set()
        self._lock = Lock()

    def load(self) -> None:
        rows = self._store.scan(META, KNOWN, KNOWN + b"\xff")
        collections = [msgspec.msgpack.decode(value, type=Collection) for _, value in rows]
        self._dropped = {
            int(key.removeprefix(DROPPED)) for key, _ in self._store.scan(META, DROPPED, DROPPED + b"\xff")
        }
        self.engine.join(self.shard, self._store, collections)
        self._here = {collection.id for collection in collections}

    def find(self, collection: Collection) -> WorkerCollection | None:
        """The collection, or None if no vector of it ever came to this shard."""
        return self.engine.find(collection.id) if collection.id in self._here else None

    def open(self, collection: Collection) -> WorkerCollection:
        """The collection, made known to the store first if it is new here. Raises NotFound for one that was dropped."""
        found = self.find(collection)
        if found is not None:
            return found
        with self._lock:
            if collection.id in self._dropped:
                raise NotFound(f"the collection {collection.name!r} has been deleted")
            found = self.find(collection)
            if found is None:
                batch = self._store.batch()
                batch.put(META, KNOWN + str(collection.id).encode(), msgspec.msgpack.encode(collection))
                self._store.write(batch)
                found = self.engine.open(self.shard, collection)
                self._here.add(collection.id)
            return found

    def drop(self, collection: Collection) -> None:
        """Remove a collection and what it holds, durably; dropping it again does nothing."""
        self.engine.drop(collection)
        with self._lock:
            batch = self._store.batch()
            batch.delete(META, KNOWN + str(collection.id).encode())
            batch.put(META, DROPPED + str(collection.id).encode(), b"")
            batch.delete_range(FAMILY, prefix(collection.id), prefix(collection.id + 1))
            self._store.write(batch, durable=True)
            self._dropped.add(collection.id)
            self._here.discard(collection.id)

    def sync(self) -> None:
        """Every write before this call is on the disk when it returns."""
        self._store.sync()

    def counts(self) -> dict[str, int]:
        return self.engine.counts(self.shard)

    def close(self) -> None:
        self.engine.stop()
