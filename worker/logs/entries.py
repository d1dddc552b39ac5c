"""Entries: which records were gathered together, in the order of their numbers.

Each gathering writes one entry per segment, a row of the store: the groups with their batches, and the number and the
key of each record. Scans of a prefix and the recovery after a crash read the entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.messages.log import Batch
from worker.logs import rows
from worker.logs.recent import time_of
from worker.storage.faces import Rows

NO_NUMBERS: NDArray[np.uint64] = np.zeros(0, np.uint64)

Groups = list[tuple[int, tuple[Batch, ...]]]
"""(group, its batches), ascending."""


class _PackedEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry as stored. `sequences`: uint64[n]; `codes`: uint32[n], the position of each record's key in `keys`;
    `tombstones`: the numbers of the records that are tombstones, uint64[…]; all little-endian."""

    settled: int
    groups: Groups
    sequences: bytes
    codes: bytes
    keys: list[bytes]
    tombstones: bytes = b""


class _PackedGroups(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of an entry as stored; the records are skipped, which is much faster than decoding them."""

    settled: int
    groups: Groups


_ENTRY = msgspec.msgpack.Decoder(_PackedEntry)
_GROUPS = msgspec.msgpack.Decoder(_PackedGroups)


@dataclass(frozen=True, slots=True)
class GatheringEntry:
    """Records with ascending `numbers` uint64[n]; record i has the key keys[codes[i]]. Every batch below `settled` is
    whole and on the disk of every shard concerned. `tombstones` uint64[…]: the numbers of the records that are
    tombstones, ascending."""

    settled: int
    groups: Groups
    numbers: NDArray[np.uint64]
    codes: NDArray[np.uint32]
    keys: Sequence[bytes]
    tombstones: NDArray[np.uint64] = field(default_factory=lambda: NO_NUMBERS)

    @property
    def above(self) -> int:
        """A number above all numbers of the entry's batches."""
        return _above(self.groups)

    def starts(self, starts: Mapping[bytes, int]) -> NDArray[np.uint64]:
        """uint64[n]: the start of each record's key, 0 without one."""
        of_keys = np.fromiter((starts.get(key, 0) for key in self.keys), np.uint64, len(self.keys))
        return of_keys[self.codes]

    def packed(self) -> bytes:
        assert len(self.numbers) == len(self.codes)
        assert (self.numbers[1:] > self.numbers[:-1]).all(), "numbers ascend"
        assert not len(self.codes) or int(self.codes.max()) < len(self.keys)
        numbers, codes = self.numbers.astype("<u8", copy=False), self.codes.astype("<u4", copy=False)
        tombstones = self.tombstones.astype("<u8", copy=False).tobytes()
        entry = _PackedEntry(self.settled, self.groups, numbers.tobytes(), codes.tobytes(), list(self.keys), tombstones)
        return msgspec.msgpack.encode(entry)

    def of_rows(self, selected: NDArray[np.bool_], groups: Groups) -> GatheringEntry:
        """The entry with only the `selected` records (bool[n]) and these groups."""
        numbers, codes = self.numbers[selected], self.codes[selected]
        return GatheringEntry(self.settled, groups, numbers, codes, self.keys, self.tombstones_of(numbers))

    def tombstones_of(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Those tombstones that have one of these numbers."""
        return self.tombstones[np.isin(self.tombstones, numbers)] if len(self.tombstones) else NO_NUMBERS

    def last_tombstones(self) -> dict[int, int]:
        """Code of a key → the number of its last tombstone."""
        codes = self.codes[np.searchsorted(self.numbers, self.tombstones)]
        return dict(zip(codes.tolist(), self.tombstones.tolist(), strict=True))


def unpacked(value: bytes) -> GatheringEntry:
    """The inverse of `GatheringEntry.packed`. Raises ValueError when the value is no entry, or when its lists do not
    fit together."""
    entry = _ENTRY.decode(value)
    numbers = np.frombuffer(entry.sequences, "<u8").astype(np.uint64, copy=False)
    codes = np.frombuffer(entry.codes, "<u4")
    if len(numbers) != len(codes):
        raise ValueError(f"it has {len(numbers)} numbers and {len(codes)} codes; each record needs one of both")
    if len(codes) and int(codes.max()) >= len(entry.keys):
        raise ValueError(f"it has the code {codes.max()} and {len(entry.keys)} keys; a code must be below their number")
    tombstones = np.frombuffer(entry.tombstones, "<u8").astype(np.uint64, copy=False)
    if len(tombstones) and not np.isin(tombstones, numbers).all():
        raise ValueError(f"it has {len(tombstones)} tombstones; each must be one of its records")
    return GatheringEntry(entry.settled, entry.groups, numbers, codes, entry.keys, tombstones)


def scan(store: Rows, segments: tuple[int, int], start: int, end: int) -> Iterator[tuple[bytes, GatheringEntry]]:
    """(row, entry) of the entries that may hold records with start ≤ number < end in first ≤ segment ≤ last,
    ascending."""
    first = rows.entry(segments[0], start)
    for row, _ in store.scan("log", rows.ENTRY, first, reverse=True):
        # The entry that begins before the range may reach into it.
        first = max(row, rows.entry(segments[0], 0))
        break
    for row, value in store.scan("log", first, rows.entry(segments[1], end)):
        yield row, unpacked(value)


def first_reaching(store: Rows, segment: int, number: int) -> bytes:
    """A row that is above the entries of the segment that end below `number`, and not above the others."""
    least = rows.entry(segment, number)
    for row, value in store.scan("log", rows.entry(segment, 0), least, reverse=True):
        return row if _above(_GROUPS.decode(value).groups) > number else least
    return least


def _above(groups: Groups) -> int:
    return max((batch.start + batch.count for _, batches in groups for batch in batches), default=0)


def groups_from(store: Rows, segment: int, number: int) -> tuple[int, Groups] | None:
    """(its first group, its groups) of the first entry of the segment whose first group is not below `number`."""
    for row, value in store.scan("log", rows.entry(segment, number), rows.entry(segment + 1, 0)):
        return rows.sequence_of(row), _GROUPS.decode(value).groups
    return None


def last_group(store: Rows, segment: int) -> int | None:
    """The first group of the last entry of the segment; None if it has no entry."""
    for row, _ in store.scan("log", rows.entry(segment, 0), rows.entry(segment + 1, 0), reverse=True):
        return rows.sequence_of(row)
    return None


def newest_time_ms(store: Rows) -> int:
    """When the newest batch of the entries was appended, in Unix ms; 0: unknown."""
    for _, value in store.scan("log", rows.ENTRY, rows.after(rows.ENTRY), reverse=True):
        return max((time_of(batches) for _, batches in _GROUPS.decode(value).groups), default=0)
    return 0


def newest_first(store: Rows) -> Iterator[tuple[bytes, GatheringEntry]]:
    for row, value in store.scan("log", rows.ENTRY, rows.after(rows.ENTRY), reverse=True):
        yield row, unpacked(value)
