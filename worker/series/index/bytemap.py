"""A map from byte strings to dense numbers 0, 1, 2 …, in arrays: open addressing, with strings compared byte by byte.

Two such maps turn a request's bytes into columns of integers: one from label bytes to series, and one from label texts
to interned codes. With a million label sets of 200 bytes, an entry takes 20 bytes in addition to its string.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared import kernel_types as types
from shared.kernels import kernel
from shared.xxh64 import Bytes, copy_bytes, equal_bytes
from worker.series.growing_array import GrowingArray

SLOTS_MIN = 1024
LOAD_MAX = 0.6
"""Entries per slot: probes stay short, and a slot takes 4 bytes."""

_INTS = types.Array(types.int64, 1, "C")
_HASHES = types.Array(types.uint64, 1, "C")
_SLOTS = types.Array(types.int32, 1, "C")
_ARENA = types.Array(types.uint8, 1, "C")


@kernel(types.void(_HASHES, types.int64, types.int64, _SLOTS), first=True)
def _place(hashes: np.ndarray, first: int, last: int, slots: np.ndarray) -> None:
    """Enter the numbers first ≤ n < last, none of which is in `slots` yet (int32[2^k]: number + 1, or 0 if free)."""
    mask = len(slots) - 1
    shift = np.uint64(64) - np.uint64(np.log2(len(slots)))
    for number in range(first, last):
        # The high bits, because the low bits are alike in all series of a shard.
        slot = np.int64(hashes[number] >> shift)
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = number + 1


@kernel(
    types.int64(Bytes, _INTS, _INTS, _HASHES, _SLOTS, _ARENA, _INTS, _HASHES, types.int64, types.boolean, _INTS),
    first=True,
)
def _resolve(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    wanted: np.ndarray,
    slots: np.ndarray,
    arena: np.ndarray,
    offsets: np.ndarray,
    hashes: np.ndarray,
    count: int,
    enter: bool,
    out: np.ndarray,
) -> int:
    """Look up the strings data[starts[i]:ends[i]], whose hashes are `wanted`, and write their numbers to `out`. New
    strings are entered, or get the number −1 unless `enter`. Returns the new count.

    The arena, `offsets`, `hashes` and `slots` must have room for all strings, in case all are new.
    """
    mask = len(slots) - 1
    shift = np.uint64(64) - np.uint64(np.log2(len(slots)))
    for i in range(len(starts)):
        size = ends[i] - starts[i]
        slot = np.int64(wanted[i] >> shift)
        while True:
            number: Any = np.int64(slots[slot]) - 1
            if number < 0:
                if not enter:
                    break
                number = count
                copy_bytes(arena, offsets[number], data, starts[i], size)
                offsets[number + 1] = offsets[number] + size
                hashes[number] = wanted[i]
                slots[slot] = number + 1
                count += 1
                break
            if (
                hashes[number] == wanted[i]
                and offsets[number + 1] - offsets[number] == size
                and equal_bytes(arena, offsets[number], data, starts[i], size)
            ):
                break
            slot = (slot + 1) & mask
        out[i] = number
    return count


class ByteMap:
    """The map, which only grows. Not safe for concurrent use, save `bytes_of`; arrays taken from it stay valid."""

    def __init__(self) -> None:
        self._slots = np.zeros(SLOTS_MIN, dtype=np.int32)
        self._arena = GrowingArray(np.uint8)
        self._offsets = GrowingArray(np.int64)
        self._offsets.extend(np.zeros(1, dtype=np.int64))
        self._hashes = GrowingArray(np.uint64)

    def __len__(self) -> int:
        return self._hashes.size

    @property
    def size_bytes(self) -> int:
        """Memory of the strings and of what finds them."""
        return self._slots.nbytes + self._arena.size_bytes + self._offsets.size_bytes + self._hashes.size_bytes

    def resolve(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        hashes: NDArray[np.uint64],
    ) -> NDArray[np.int64]:
        """int64[n]: the number of each string data[starts[i]:ends[i]], whose xxh64 is hashes[i]; new strings get the
        next numbers in order of appearance."""
        n = len(starts)
        out = np.empty(n, dtype=np.int64)
        self._reserve(n, len(data))
        count = _resolve(
            data,
            starts,
            ends,
            hashes,
            self._slots,
            self._arena.data,
            self._offsets.data,
            self._hashes.data,
            len(self),
            True,
            out,
        )
        self._hashes.size = count
        self._offsets.size = count + 1
        self._arena.size = int(self._offsets.data[count])
        return out

    def find(self, data: NDArray[np.uint8], hash_: np.uint64) -> int:
        """The number of one string (uint8[n], with its xxh64), or −1 if it is not in the map."""
        out = np.empty(1, dtype=np.int64)
        _resolve(
            data,
            np.zeros(1, dtype=np.int64),
            np.array([len(data)]),
            np.array([hash_], dtype=np.uint64),
            self._slots,
            self._arena.data,
            self._offsets.data,
            self._hashes.data,
            len(self),
            False,
            out,
        )
        return int(out[0])

    def bytes_of(self, numbers: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
        """(the strings with these numbers one after another, int64[n + 1] offsets of each into them). Safe while
        another thread enters strings."""
        offsets = self._offsets.data  # read before the arena, which then has all the bytes that they point to
        arena = self._arena.data
        starts = offsets[numbers]
        sizes = offsets[numbers + 1] - starts
        bounds = np.concatenate(([0], np.cumsum(sizes)))
        places = np.repeat(starts - bounds[:-1], sizes) + np.arange(bounds[-1])
        return arena[places].tobytes(), bounds

    def sizes_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the bytes of the strings with these numbers. As safe as `bytes_of`."""
        offsets = self._offsets.data
        return offsets[numbers + 1] - offsets[numbers]

    def hashes_of(self, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """uint64[n]: the hashes of the strings with these numbers. As safe as `bytes_of`."""
        return self._hashes.data[numbers]

    def strings(self, first: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """(bytes of the strings from number `first` on, int64[n+1] offsets of each into them)."""
        offsets = self._offsets.rows()[first:]
        return self._arena.rows()[offsets[0] :], offsets - offsets[0]

    def _reserve(self, entries: int, size_bytes: int) -> None:
        """Make room for this many new strings with this many bytes in all."""
        self._arena.reserve(size_bytes)
        self._offsets.reserve(entries)
        self._hashes.reserve(entries)
        if len(self) + entries > LOAD_MAX * len(self._slots):
            slots = len(self._slots)
            while len(self) + entries > LOAD_MAX * slots:
                slots *= 2
            self._slots = np.zeros(slots, dtype=np.int32)
            _place(self._hashes.data, 0, len(self), self._slots)
