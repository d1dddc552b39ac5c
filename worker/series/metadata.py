"""What senders say of metric families: type, help and unit of those whose names hash to this shard."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import msgspec

from shared.messages.series import FamilyMetadata
from worker.storage.faces import Rows

FAMILIES_MAX = 20_000
"""Of one shard: many times what a large installation exports; a sender that makes names up gets no further."""
BYTES_MAX = 16 << 20
"""Texts of one shard."""
ENTRIES_PER_FAMILY_MAX = 10
"""Targets of different versions say different things of one family; of more than these the last said are kept."""

_PREFIX = b"series/metadata/"
_END = b"series/metadata0"


class Metadata:
    """Rows `series/metadata/<family>` of the store, all of them in memory. Safe to use from many threads.

    A change survives the death of the process when `put` returns, and the loss of power a little later: senders repeat
    what they know every minute.
    """

    def __init__(self, store: Rows) -> None:
        self._store = store
        self._lock = Lock()
        self._families: dict[str, tuple[FamilyMetadata, ...]] = {}
        self._bytes = 0

    def load(self) -> None:
        """Raises StoreDamaged."""
        for key, value in self._store.scan("meta", _PREFIX, _END):
            with self._store.decoding("meta", key):
                entries = msgspec.msgpack.decode(value, type=tuple[FamilyMetadata, ...])
                self._keep(key.removeprefix(_PREFIX).decode(), entries)

    def put(self, entries: Sequence[FamilyMetadata]) -> int:
        """Keep these; returns how many there was no room for. Raises Unavailable when the store refuses them."""
        with self._lock:
            changed: dict[str, tuple[FamilyMetadata, ...]] = {}
            added = 0
            size, left_out = self._bytes, 0
            for entry in entries:
                known = changed.get(entry.family) or self._families.get(entry.family, ())
                if entry in known:
                    continue
                kept = (*known, entry)[-ENTRIES_PER_FAMILY_MAX:]
                grown = size + _size(kept) - _size(known)
                room = known or len(self._families) + added < FAMILIES_MAX
                if not room or grown > max(BYTES_MAX, size):
                    left_out += 1
                    continue
                added += not known
                changed[entry.family], size = kept, grown
            if changed:
                batch = self._store.batch()
                for family, kept in changed.items():
                    batch.put("meta", _PREFIX + family.encode(), msgspec.msgpack.encode(kept))
                self._store.write(batch)
                for family, kept in changed.items():
                    self._keep(family, kept)
            return left_out

    def find(self, family: str, limit: int) -> tuple[list[FamilyMetadata], bool]:
        """(entries of this family, or of the first `limit` families by name; whether the limit left some out). No
        family and a limit of 0: all."""
        with self._lock:
            if family:
                return list(self._families.get(family, ())), False
            names = sorted(self._families)
            cut = 0 < limit < len(names)
            return [entry for name in (names[:limit] if cut else names) for entry in self._families[name]], cut

    def _keep(self, family: str, entries: tuple[FamilyMetadata, ...]) -> None:
        self._bytes += _size(entries) - _size(self._families.get(family, ()))
        self._families[family] = entries


def _size(entries: Sequence[FamilyMetadata]) -> int:
    """Bytes of the texts, near enough: characters beyond ASCII count as one."""
    return sum(len(entry.family) + len(entry.help) + len(entry.unit) for entry in entries)
