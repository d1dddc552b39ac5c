"""The vectors of one shard: the collections in its store, and the shard's part in the worker's engine."""

from __future__ import annotations

import logging
from threading import Lock

import msgspec

from shared.errors import NotFound
from shared.messages.vectors import Collection, ShardCollections
from shared.telemetry import event
from worker.damage import DamageReport
from worker.storage.faces import Rows
from worker.vectors import stored_rows
from worker.vectors.collection import WorkerCollection
from worker.vectors.engine import Engine
from worker.vectors.stored_rows import META

KNOWN = b"vector/collection/"
"""Prefix of the rows that describe the collections of this shard: the collection's id → a `Collection` in msgpack."""
DROPPED = b"vector/dropped/"
"""Prefix of the rows that name dropped collections by their ids."""


def _key(collection: Collection) -> bytes:
    """The key of the row that describes the collection."""
    return KNOWN + str(collection.id).encode()


class VectorPart:
    """Safe to use from many threads once `load` has returned."""

    def __init__(self, store: Rows, engine: Engine, shard: int, damage: DamageReport) -> None:
        self._store = store
        self._damage = damage
        self.shard = shard
        self.engine = engine
        self._known: dict[int, Collection] = {}
        self._dropped: set[int] = set()
        self._undescribed: set[bytes] = set()
        """Keys of damaged descriptions."""
        self._lock = Lock()

    def load(self) -> None:
        """Read the shard's collections and their vectors from the store. Damaged rows are left out and reported. Raises
        StoreDamaged, Unavailable if the store cannot be read."""
        self._dropped = {
            int(key.removeprefix(DROPPED)) for key, _ in self._store.scan(META, DROPPED, DROPPED + b"\xff")
        }
        for key, value in self._store.scan(META, KNOWN, KNOWN + b"\xff"):
            try:
                collection = msgspec.msgpack.decode(value, type=Collection)
                if KNOWN + str(collection.id).encode() != key:
                    raise ValueError(f"it says collection {collection.id}")
            except (msgspec.MsgspecError, ValueError) as error:
                # The next change of the collection writes the description anew, and its vectors are loaded again.
                self._undescribed.add(key)
                text = f"the row {key.decode(errors='replace')!r} is damaged and its collection is missing: {error}"
                self._damage.add("vector", text)
                event(logging.ERROR, "collection is damaged", shard=self.shard, why=text)
            else:
                self._known[collection.id] = collection
        for collection_id in self._dropped:
            self.engine.remove_index(collection_id)
        self.engine.join(self.shard, self._store, self._damage, list(self._known.values()))

    def unload(self) -> None:
        """Undo a `load` that may have failed half-way: remove the shard from the worker's engine."""
        self.engine.leave(self.shard)

    def collections(self) -> ShardCollections:
        """The collections in the store, and the ids of the dropped ones, ascending."""
        with self._lock:
            return ShardCollections(self.shard, list(self._known.values()), sorted(self._dropped))

    def find(self, collection: Collection) -> WorkerCollection | None:
        """The collection, or None if this shard never got a vector of it."""
        return self.engine.find(collection.id) if collection.id in self._known else None

    def open(self, collection: Collection) -> WorkerCollection:
        """The collection; its description is first written to the store, durably, if it is new in this shard: after a
        loss of power, vectors without it would be left out of deletions, and come back with the next write. Raises
        NotFound if the collection was dropped, Unavailable if the store refuses the write."""
        opened = self.find(collection)
        if opened is not None:
            return opened
        with self._lock:
            if collection.id in self._dropped:
                raise NotFound(f"the collection {collection.name!r} has been deleted")
            opened = self.find(collection)
            if opened is None:
                batch = self._store.batch()
                batch.put(META, _key(collection), msgspec.msgpack.encode(collection))
                self._store.write(batch, durable=True)
                opened = self.engine.open(self.shard, self._damage, collection)
                self._known[collection.id] = collection
                self._undescribed.discard(_key(collection))
            return opened

    def find_to_change(self, collection: Collection) -> WorkerCollection | None:
        """As `find`, for a delete or an update. If the collection's description is damaged, its vectors are not loaded;
        then this opens the collection, which replaces the description. Raises what `open` raises."""
        return self.open(collection) if _key(collection) in self._undescribed else self.find(collection)

    def drop(self, collection: Collection) -> None:
        """Remove a collection and all its vectors, durably; dropping it again does nothing.

        Raises Unavailable, and then nothing has been removed. The rows on the disk are removed first, then those in
        memory, so that a collection that has disappeared does not come back.
        """
        with self._lock:
            if collection.id in self._dropped:
                return
            batch = self._store.batch()
            batch.delete(META, _key(collection))
            batch.put(META, DROPPED + str(collection.id).encode(), b"")
            stored_rows.forget(batch, collection.id)
            opened = self.find(collection)
            if opened is None:
                self._store.write(batch, durable=True)
            else:
                opened.leave(self.shard, batch)
            self._dropped.add(collection.id)
            self._known.pop(collection.id, None)
            self._undescribed.discard(_key(collection))
        self.engine.remove_left(collection.id)

    def sync(self) -> None:
        """When this returns, every write that returned before is on the disk. Raises Unavailable."""
        self._store.sync()

    def counts(self) -> dict[str, int]:
        """The shard's vectors, and its vectors that are not in an index yet, by name."""
        return self.engine.counts(self.shard)

    def close(self) -> None:
        """Stop the worker's engine, which all shards share; safe to call for each of them."""
        self.engine.stop()
