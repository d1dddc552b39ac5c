"""Entries: which records were gathered together, in the order of their numbers.

What one gathering takes in of a segment is one row of the store: its groups with their batches, and of each record the
number and the key. Prefix scans read them, and the recovery after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.messages.log import Batch
from worker.logs import rows
from worker.storage.faces import Rows

Groups = list[tuple[int, tuple[Batch, ...]]]
"""(group, its batches), ascending."""


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """`sequences`: uint64[n], `codes`: uint32[n], the place of each record's key in `keys`; little-endian."""

    settled: int
    groups: Groups
    sequences: bytes
    codes: bytes
    keys: list[bytes]


_ENTRY = msgspec.msgpack.Decoder(_Entry)


@dataclass(frozen=True, slots=True)
class Entry:
    """Records uint64[n] `numbers`, ascending, with keys[codes[i]]; every batch below `settled` is whole and on the disk
    of every shard concerned."""

    settled: int
    groups: Groups
    numbers: NDArray[np.uint64]
    codes: NDArray[np.uint32]
    keys: Sequence[bytes]

    @property
    def above(self) -> int:
        """Above all numbers of its batches."""
        return max((batch.start + batch.count for _, batches in self.groups for batch in batches), default=0)

    def packed(self) -> bytes:
        numbers, codes = self.numbers.astype("<u8", copy=False), self.codes.astype("<u4", copy=False)
        entry = _Entry(self.settled, self.groups, numbers.tobytes(), codes.tobytes(), list(self.keys))
        return msgspec.msgpack.encode(entry)

    def of_rows(self, kept: NDArray[np.bool_], groups: Groups) -> Entry:
        """The entry of these records of it."""
        return Entry(self.settled, groups, self.numbers[kept], self.codes[kept], self.keys)


def unpacked(value: bytes) -> Entry:
    entry = _ENTRY.decode(value)
    numbers = np.frombuffer(entry.sequences, "<u8").astype(np.uint64, copy=False)
    return Entry(entry.settled, entry.groups, numbers, np.frombuffer(entry.codes, "<u4"), entry.keys)


def scan(store: Rows, segments: tuple[int, int], start: int, end: int) -> Iterator[tuple[bytes, Entry]]:
    """(row, entry) of those that may hold records with start ≤ number < end in first ≤ segment ≤ last, ascending."""
    first = rows.entry(segments[0], start)
    for row, _ in store.scan("log", rows.ENTRY, first, reverse=True):
        # The entry that begins before the range may reach into it.
        first = max(row, rows.entry(segments[0], 0))
        break
    for row, value in store.scan("log", first, rows.entry(segments[1], end)):
        yield row, unpacked(value)


def newest_first(store: Rows) -> Iterator[tuple[bytes, Entry]]:
    for row, value in store.scan("log", rows.ENTRY, rows.after(rows.ENTRY), reverse=True):
        yield row, unpacked(value)
