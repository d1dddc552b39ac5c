"""Metadata of metric families, as senders report it: type, help and unit. A family is on the shard of its name."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import msgspec

from shared.messages.series import FamilyMetadata
from worker.storage.faces import Rows

FAMILIES_MAX = 20_000
"""Families of one shard: many times what a large installation exports. The bound is for senders that invent names."""
BYTES_MAX = 16 << 20
"""Size of the texts of one shard."""
ENTRIES_PER_FAMILY_MAX = 10
"""Targets of different versions report different metadata for one family. The latest entries are stored."""

PREFIX = b"series/metadata/"
END = b"series/metadata0"


def decode(key: bytes, value: bytes) -> tuple[str, tuple[FamilyMetadata, ...]]:
    """(the family, its entries) of a row. Raises UnicodeDecodeError, msgspec.MsgspecError."""
    return key.removeprefix(PREFIX).decode(), msgspec.msgpack.decode(value, type=tuple[FamilyMetadata, ...])


class Metadata:
    """Rows `series/metadata/<family>` of the store, all of them also in memory. Safe to use from many threads.

    When `put` returns, a change survives the death of the process; a little later it also survives a loss of power.
    That is enough, because senders repeat their metadata every minute.
    """

    def __init__(self, store: Rows) -> None:
        self._store = store
        self._lock = Lock()
        self._families: dict[str, tuple[FamilyMetadata, ...]] = {}
        self._bytes = 0

    def load(self) -> None:
        """Read all entries from the store. Raises StoreDamaged."""
        for key, value in self._store.scan("meta", PREFIX, END):
            with self._store.decoding("meta", key):
                self._keep(*decode(key, value))

    def put(self, entries: Sequence[FamilyMetadata]) -> int:
        """Store these entries. Returns the number of entries that were left out for lack of room. Raises Unavailable if
        the store refuses them."""
        with self._lock:
            changed: dict[str, tuple[FamilyMetadata, ...]] = {}
            added = 0
            size, left_out = self._bytes, 0
            for entry in entries:
                stored_entries = changed.get(entry.family) or self._families.get(entry.family, ())
                if entry in stored_entries:
                    continue
                updated = (*stored_entries, entry)[-ENTRIES_PER_FAMILY_MAX:]
                size_after = size + _size(updated) - _size(stored_entries)
                has_room = stored_entries or len(self._families) + added < FAMILIES_MAX
                if not has_room or size_after > max(BYTES_MAX, size):
                    left_out += 1
                    continue
                added += not stored_entries
                changed[entry.family], size = updated, size_after
            if changed:
                batch = self._store.batch()
                for family, updated in changed.items():
                    batch.put("meta", PREFIX + family.encode(), msgspec.msgpack.encode(updated))
                self._store.write(batch)
                for family, updated in changed.items():
                    self._keep(family, updated)
            return left_out

    def find(self, family: str, limit: int) -> tuple[list[FamilyMetadata], bool]:
        """(entries of this family, or of the first `limit` families by name; whether the limit left some out). No
        family and a limit of 0: all."""
        with self._lock:
            if family:
                return list(self._families.get(family, ())), False
            names = sorted(self._families)
            is_cut = 0 < limit < len(names)
            return [entry for name in (names[:limit] if is_cut else names) for entry in self._families[name]], is_cut

    def _keep(self, family: str, entries: tuple[FamilyMetadata, ...]) -> None:
        self._bytes += _size(entries) - _size(self._families.get(family, ()))
        self._families[family] = entries


def _size(entries: Sequence[FamilyMetadata]) -> int:
    """The approximate size of the texts in bytes: every character counts as one."""
    return sum(len(entry.family) + len(entry.help) + len(entry.unit) for entry in entries)
