"""Which vectors of a shard have changed since a snapshot of its index, so that a start need not read the others.

Each batch that changes vectors contains a record with their ids. Its key in the family "meta" has the position of the
change: the highest version that the shard has given by then (see `stored_rows`), and a number of the deletions since
that version was given. Its value is (the position before the batch, the ids), in msgpack. After a snapshot, the
records up to its position are removed, and `KEPT_FROM` names the position: later changes have records.

No two histories of a shard have the same positions: versions are given once, and half of a deletion's number is random.
So a store that is older than the snapshot, such as one from a backup, is recognised even after it has been changed
further.

The records only save time: if one is missing or damaged, all rows of the shard are read.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from worker.storage.faces import RowBatch, Rows

META = "meta"
RECORDS = b"vector/change/"
"""Prefix of the records' keys; the collection's id (4 bytes), the version (8) and the deletions (8) follow, big
endian."""
KEPT_FROM = b"vector/changes-from/"
"""Prefix of the rows that contain a position (16 bytes): every change behind it has a record."""
_RANDOM_BITS = 32
_DELETIONS_MAX = 2**64 - 1


class Position(NamedTuple):
    """A moment in the changes of a shard's vectors. `version`: the highest given. `deletions`: the number of batches of
    deletions since then in the upper 32 bits, and random bits of the last such batch in the lower ones."""

    version: int
    deletions: int

    def encode(self) -> bytes:
        return self.version.to_bytes(8, "big") + self.deletions.to_bytes(8, "big")

    @classmethod
    def decode(cls, data: bytes) -> Position:
        return cls(int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big"))

    @classmethod
    def before(cls, version: int) -> Position:
        """A position behind all changes that were made before `version` was given, whatever these were."""
        return cls(version - 1, _DELETIONS_MAX)

    @property
    def is_of_no_change(self) -> bool:
        return self.deletions == _DELETIONS_MAX

    def after_deletion(self) -> Position:
        number = (self.deletions >> _RANDOM_BITS) + 1
        return Position(self.version, number << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS))


START = Position(0, 0)
_SIZE = len(START.encode())


class _Record(msgspec.Struct, array_like=True):
    before: tuple[int, int]
    ids: list[bytes]


_RECORDS = msgspec.msgpack.Decoder(_Record)


def _prefix(collection_id: int) -> bytes:
    return RECORDS + collection_id.to_bytes(4, "big")


def _kept_from_key(collection_id: int) -> bytes:
    return KEPT_FROM + str(collection_id).encode()


def forget(batch: RowBatch, collection_id: int) -> None:
    """Add to the batch the removal of all records of a collection's changes."""
    batch.delete(META, _kept_from_key(collection_id))
    batch.delete_range(META, _prefix(collection_id), _prefix(collection_id + 1))


class ChangeLog:
    """The records of the changes of one collection's vectors in one shard. For one thread at a time."""

    def __init__(self, store: Rows, collection_id: int, highest: int) -> None:
        """`highest`: the highest version that the shard has given. Raises StoreDamaged, Unavailable."""
        self._store = store
        self._prefix = _prefix(collection_id)
        self._key = _kept_from_key(collection_id)
        kept_from = store.get(META, self._key)
        is_known = kept_from is not None and len(kept_from) == _SIZE
        first = Position.decode(kept_from) if kept_from is not None and is_known else START
        newest = max(first, self._newest_record())
        self.position = newest if newest.version == highest else Position(highest, 0)
        """The position of the latest change."""
        # Without a position, a collection that has versions may have been written by a release without records.
        self.kept_from = first if is_known or not highest else self.position
        """Each change behind this position has a record."""
        self._is_kept_from_stored = is_known
        self.is_certain = True
        """Whether the store has exactly the batches that it was given. It may not after it has refused one."""

    def _newest_record(self) -> Position:
        end = (int.from_bytes(self._prefix, "big") + 1).to_bytes(len(self._prefix), "big")
        for key, _ in self._store.scan(META, self._prefix, end, reverse=True):
            return Position.decode(key[len(self._prefix) :])
        return START

    def add_versions(self, batch: RowBatch, highest: int, ids: Iterable[bytes]) -> None:
        """Add to a batch the record of vectors that it writes; `highest`: the highest of their versions."""
        self._add(batch, Position(highest, 0), ids)

    def add_deletion(self, batch: RowBatch, ids: Iterable[bytes]) -> None:
        """Add to a batch the record of vectors that it deletes."""
        self._add(batch, self.position.after_deletion(), ids)

    def _add(self, batch: RowBatch, position: Position, ids: Iterable[bytes]) -> None:
        record = msgspec.msgpack.encode(_Record(self.position, list(ids)))
        batch.put(META, self._prefix + position.encode(), record)
        if not self._is_kept_from_stored:
            batch.put(META, self._key, self.kept_from.encode())
            self._is_kept_from_stored = True
        # Before the write, because a store that refuses the batch may contain it nevertheless.
        self.position = position

    def changed_since(self, position: Position, ids_max: int, latest: Position | None = None) -> list[bytes] | None:
        """The ids of the vectors that were written or deleted behind `position`, each once; None if that is not known,
        or if there are more than `ids_max`. `latest`: a change of the same history, as late as `position` or later;
        None if that is one itself. Raises StoreDamaged, Unavailable."""
        latest = position if latest is None else latest
        if not self.kept_from <= position <= latest <= self.position:
            return None
        changed: dict[bytes, None] = {}
        last = position
        has_latest = latest == position  # without it, this is another history, which may still have all versions
        for at, record in self._records_behind(position):
            # The record behind a missing one, or behind one of another history, names another position before it.
            if record is None or not (record.before == last or (last.is_of_no_change and record.before < last)):
                return None
            last = at
            has_latest = has_latest or at == latest
            changed.update(dict.fromkeys(record.ids))
            if len(changed) > ids_max:
                return None
        return list(changed) if has_latest and last == self.position else None

    def _records_behind(self, position: Position) -> Iterator[tuple[Position, _Record | None]]:
        """Each record behind `position`, None for one that is damaged."""
        start = self._prefix + position.encode() + b"\0"
        end = self._prefix + self.position.encode() + b"\0"
        for key, value in self._store.scan(META, start, end):
            at = Position.decode(key[len(self._prefix) :])
            try:
                yield at, _RECORDS.decode(value)
            except (msgspec.MsgspecError, RecursionError):
                yield at, None

    def trim(self, position: Position) -> None:
        """Remove the records up to `position`, which no snapshot needs any more; nothing if they are gone already.
        Raises Unavailable."""
        if position <= self.kept_from:
            return
        batch = self._store.batch()
        batch.put(META, self._key, position.encode())
        batch.delete_range(META, self._prefix, self._prefix + position.encode() + b"\0")
        self._store.write(batch)
        self.kept_from = position
