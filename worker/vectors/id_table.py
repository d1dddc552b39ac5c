"""The ids of a table's rows, and the latest row of each id, in arrays: some 20 bytes a vector in addition to its id,
where a list, a dict and their objects would take more than 140.

An entry is never removed. An id whose latest row is dead does not exist; the ids go when the table is rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.messages.vectors import pack_blobs
from shared.wire import Frame
from shared.xxh64 import Bytes, equal_bytes, xxh64

Rows = NDArray[np.int64]
Octets = NDArray[np.uint8]

SLOTS_MIN = 64
LOAD_MAX = 0.7
"""Entries per slot of 4 bytes; the slots are doubled at this load."""
GROWTH = 1.25
NEWER = -2
"""Of an id that has to be looked up once more: a row that has come meanwhile is in its way."""

_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_OFFSETS = types.Array(types.int64, 1, "C", readonly=True)
_SLOTS = types.int32[::1]


@kernel(types.void(_SLOTS, Bytes, _OFFSETS, types.int64, types.int64), first=True)
def _enter(slots, arena, offsets, first, last):  # type: ignore[no-untyped-def]
    """Make the rows first ≤ row < last the latest of their ids. `slots` int32[2^k]: row + 1, or 0 if free. Rows without
    an id are left out."""
    mask = np.int64(len(slots) - 1)
    for row in range(first, last):
        size = offsets[row + 1] - offsets[row]
        if size == 0:
            continue
        slot = np.int64(xxh64(arena, offsets[row], offsets[row + 1])) & mask
        while slots[slot] != 0:
            other = np.int64(slots[slot]) - 1
            if offsets[other + 1] - offsets[other] == size and equal_bytes(
                arena, offsets[other], arena, offsets[row], size
            ):
                break
            slot = (slot + 1) & mask
        slots[slot] = row + 1


@kernel(
    types.int64(
        types.Array(types.int32, 1, "C", readonly=True),
        types.int64,
        Bytes,
        _OFFSETS,
        Bytes,
        _OFFSETS,
        types.int64[::1],
    )
)
def _find(slots, rows, arena, offsets, wanted, bounds, out):  # type: ignore[no-untyped-def]
    """The latest row of each id wanted[bounds[i]:bounds[i + 1]], −1 for none, to `out` int64[n] where that is NEWER; it
    stays so if a row from `rows` on is in the way, which the arrays may not have. Returns how many do."""
    mask = np.int64(len(slots) - 1)
    newer = 0
    for i in range(len(out)):
        if out[i] != NEWER:
            continue
        size = bounds[i + 1] - bounds[i]
        slot = np.int64(xxh64(wanted, bounds[i], bounds[i + 1])) & mask
        found = np.int64(-1)
        while slots[slot] != 0:
            row = np.int64(slots[slot]) - 1
            if row >= rows:
                found = np.int64(NEWER)
                break
            if offsets[row + 1] - offsets[row] == size and equal_bytes(arena, offsets[row], wanted, bounds[i], size):
                found = row
                break
            slot = (slot + 1) & mask
        out[i] = found
        newer += found == NEWER
    return newer


@kernel(types.void(Bytes, _OFFSETS, _OFFSETS, types.uint64[::1]))
def _draw(arena, offsets, rows, out):  # type: ignore[no-untyped-def]
    """A number of each row's id to `out` uint64[n]. Its bits are mixed once more (as in MurmurHash3), because the
    remainder of the hash itself names the id's shard."""
    for i in range(len(out)):
        row = rows[i]
        mixed = xxh64(arena, offsets[row], offsets[row + 1])
        mixed = (mixed ^ (mixed >> np.uint64(33))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(33))) * _MIX_2
        out[i] = mixed ^ (mixed >> np.uint64(33))


@kernel(types.int64(_OFFSETS, _OFFSETS, types.uint32[::1]))
def _sizes(offsets, rows, lengths):  # type: ignore[no-untyped-def]
    """The lengths of the rows' ids to `lengths` uint32[n]; returns their sum."""
    total = 0
    for i in range(len(rows)):
        size = offsets[rows[i] + 1] - offsets[rows[i]]
        lengths[i] = size
        total += size
    return total


@kernel(types.void(Bytes, _OFFSETS, _OFFSETS, types.uint8[::1]))
def _join(arena, offsets, rows, joined):  # type: ignore[no-untyped-def]
    """The rows' ids one after the other to `joined`."""
    at = 0
    for i in range(len(rows)):
        for place in range(offsets[rows[i]], offsets[rows[i] + 1]):
            joined[at] = arena[place]
            at += 1


class IdTable:
    """For one writer at a time, which holds the owner's lock; reading is safe meanwhile, of the rows and ids that were
    there before."""

    def __init__(self) -> None:
        self._size = 0
        self._arena: Octets = np.zeros(SLOTS_MIN, np.uint8)
        self._offsets: Rows = np.zeros(SLOTS_MIN, np.int64)
        self._slots = np.zeros(SLOTS_MIN, np.int32)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, row: int) -> bytes:
        """The id of a row; empty for one that has none."""
        offsets = self._offsets  # read before the arena, which then has all the bytes that they point to
        return self._arena[offsets[row] : offsets[row + 1]].tobytes()

    def take(self, rows: Rows) -> list[bytes]:
        """The ids of rows."""
        offsets = self._offsets
        arena = self._arena
        starts, ends = offsets[rows].tolist(), offsets[rows + 1].tolist()
        return [arena[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]

    def draws(self, rows: Rows) -> NDArray[np.uint64]:
        """A number for each of these rows that depends on its id alone, as if drawn by lot: uint64[n]."""
        offsets = self._offsets
        out = np.empty(len(rows), np.uint64)
        _draw(self._arena, offsets, rows, out)
        return out

    def pack(self, rows: Rows) -> tuple[bytes, bytes]:
        """The ids of rows as `pack_blobs` packs them, without an object for each."""
        offsets = self._offsets  # read before the arena, which then has all the bytes that they point to
        arena = self._arena
        lengths = np.empty(len(rows), np.uint32)
        joined = np.empty(_sizes(offsets, rows, lengths), np.uint8)
        _join(arena, offsets, rows, joined)
        return joined.tobytes(), lengths.tobytes()

    @property
    def memory_bytes(self) -> int:
        """Memory of the ids and of what finds them, spare capacity of the growing arrays left out."""
        return int(self._offsets[self._size]) + 8 * (self._size + 1) + self._slots.nbytes

    def packed(self, kept: NDArray[np.bool_]) -> tuple[bytes, bytes]:
        """The ids of the first rows as `pack_blobs` gives them, empty where `kept` bool[n] is false."""
        offsets = self._offsets[: len(kept) + 1]
        lengths = np.diff(offsets)
        if kept.all():
            return self._arena[: offsets[-1]].tobytes(), lengths.astype(np.uint32).tobytes()
        joined = self._arena[: offsets[-1]][np.repeat(kept, lengths)]
        return joined.tobytes(), np.where(kept, lengths, 0).astype(np.uint32).tobytes()

    def extend(self, ids: Sequence[bytes]) -> None:
        """Give the next rows these ids; they become the latest rows of them."""
        self.extend_packed(*pack_blobs(ids))

    def extend_packed(self, joined: Frame, lengths: Frame) -> None:
        """As `extend`, with ids as `pack_blobs` gives them."""
        sizes = np.frombuffer(lengths, np.uint32)
        first, last = self._size, self._size + len(sizes)
        begin = int(self._offsets[first])
        ends = begin + np.cumsum(sizes, dtype=np.int64)
        end = int(ends[-1]) if len(ends) else begin
        assert end - begin == len(joined)
        self._arena = _with_room(self._arena, begin, end)
        self._arena[begin:end] = np.frombuffer(joined, np.uint8)
        self._offsets = _with_room(self._offsets, first + 1, last + 1)
        self._offsets[first + 1 : last + 1] = ends
        self._size = last
        if last <= LOAD_MAX * len(self._slots):
            _enter(self._slots, self._arena, self._offsets, first, last)
            return
        size = len(self._slots)
        while last > LOAD_MAX * size:
            size *= 2
        slots = np.zeros(size, np.int32)
        _enter(slots, self._arena, self._offsets, 0, last)
        self._slots = slots

    def latest(self, ids: Sequence[bytes]) -> Rows:
        """The latest row of each id, dead or living, −1 for none: int64[n]."""
        joined, lengths = pack_blobs(ids)
        bounds = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(np.frombuffer(lengths, np.uint32), out=bounds[1:])
        wanted = np.frombuffer(joined, np.uint8)
        out = np.full(len(ids), NEWER)
        while True:
            # The writer enters rows into the slots that are read here, and may have put the arrays of these rows in the
            # place of the ones that are read: those have the rows that there were when they were taken.
            slots = self._slots
            rows = self._size
            offsets = self._offsets
            if not _find(slots, rows, self._arena, offsets, wanted, bounds, out):
                return out


def _with_room(array: NDArray, used: int, size: int) -> NDArray:
    """The array, or a larger copy if it has no room for `size` entries; `used` of them are taken."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, int(len(array) * GROWTH)), array.dtype)
    larger[:used] = array[:used]
    return larger
