"""A map from byte strings to dense numbers 0, 1, 2 …, in arrays: open addressing, with strings compared byte by byte.

The symbol table of a worker is such a map, and `label_sets` finds series in slots of the same form. An entry takes 20
bytes in addition to its string.

A slot has half of the hash next to the number. So a new string is told apart from the strings on its probe path without
reading them, which are elsewhere in memory, and the table grows without reading any.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, kernel, types
from shared.kernels.declarations import Intrinsic
from shared.xxh64 import Bytes, copy_bytes, equal_bytes, xxh64
from worker.series.growing_array import GrowingArray

SLOTS_MIN = 1024
LOAD_MAX = 0.7
"""Entries per slot: probes stay short, and a slot takes 8 bytes."""
AHEAD = 8
"""The slot of a string is prefetched into the CPU cache this many strings ahead."""

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_HASHES = types.Array(types.uint64, 1, "C")
_ARENA = types.Array(types.uint8, 1, "C")

_NUMBER = np.uint64(0xFFFFFFFF)
_TAG = ~_NUMBER
"""The two parts of a slot: the number of a string + 1, and the high half of its hash; a free slot is 0."""


def _prefetch(typing_context, slots, slot):  # type: ignore[no-untyped-def]
    """Prefetch slots[slot] of a uint64 array into the CPU cache. For kernels only."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, number, number, number]), "llvm.prefetch.p0i8"
        )
        address = builder.bitcast(builder.gep(array.data, [arguments[1]]), byte)
        builder.call(function, [address, number(1), number(3), number(1)])  # to write; keep it in all caches; data
        return context.get_dummy_value()

    return types.void(slots, types.int64), generate


prefetch: Any = Intrinsic(_prefetch)


@inlined(allocates=False)
def home_of(hash_: Any, slots: np.ndarray) -> Any:
    """The first slot in which a string with this hash may be."""
    # The high bits of the hash, because the low bits are the same for all series of a shard.
    return np.int64(hash_ >> np.uint64(64) - np.uint64(np.log2(len(slots))))


@inlined(allocates=False)
def next_alike(slots: np.ndarray, slot: int, hash_: Any) -> int:
    """The first slot, from `slot` on, that is free or has a string whose hash has the same high half."""
    while slots[slot] != 0 and slots[slot] & _TAG != hash_ & _TAG:
        slot = (slot + 1) & len(slots) - 1
    return slot


@inlined(allocates=False)
def number_in(slots: np.ndarray, slot: int) -> Any:
    """The number of the string in a slot; −1 in a free one."""
    return np.int64(slots[slot] & _NUMBER) - 1


@inlined(allocates=False)
def slot_of(hash_: Any, number: int) -> Any:
    """The content of the slot of a string."""
    return hash_ & _TAG | np.uint64(number + 1)


@kernel(types.void(_HASHES, _HASHES), first=True, allocates=False)
def _move(smaller: np.ndarray, slots: np.ndarray) -> None:
    """Copy the entries of `smaller`, the slots so far, to `slots`, uint64[2^k] of zeros. Both are traversed in
    order."""
    mask = len(slots) - 1
    for i in range(len(smaller)):
        if smaller[i] != 0:
            slot = home_of(smaller[i], slots)
            while slots[slot] != 0:
                slot = (slot + 1) & mask
            slots[slot] = smaller[i]


def with_room(slots: NDArray[np.uint64], entries: int) -> NDArray[np.uint64]:
    """The slots, or a larger copy of them, with room for `entries` entries in all."""
    length = len(slots)
    while entries > LOAD_MAX * length:
        length *= 2
    if length == len(slots):
        return slots
    larger = np.zeros(length, dtype=np.uint64)
    _move(slots, larger)
    return larger


@kernel(
    types.int64(Bytes, _INTS_IN, _INTS_IN, _HASHES, _HASHES, _ARENA, _INTS, types.int64, types.boolean, _INTS),
    first=True,
    allocates=False,
)
def _resolve(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    hashes: np.ndarray,
    slots: np.ndarray,
    arena: np.ndarray,
    offsets: np.ndarray,
    count: int,
    enter: bool,
    out: np.ndarray,
) -> int:
    """Look up the strings data[starts[i]:ends[i]] with these hashes, and write their numbers to `out`. New strings are
    entered, or get the number −1 unless `enter`. Returns the new count.

    The arena, `offsets` and `slots` must have room for all strings, in case all are new.
    """
    for i in range(len(starts)):
        if i + AHEAD < len(starts):
            prefetch(slots, home_of(hashes[i + AHEAD], slots))
        size = ends[i] - starts[i]
        slot = next_alike(slots, home_of(hashes[i], slots), hashes[i])
        number: Any = number_in(slots, slot)
        while number >= 0 and not (
            offsets[number + 1] - offsets[number] == size and equal_bytes(arena, offsets[number], data, starts[i], size)
        ):
            slot = next_alike(slots, (slot + 1) & len(slots) - 1, hashes[i])
            number = number_in(slots, slot)
        if number < 0 and enter:
            number = count
            copy_bytes(arena, offsets[number], data, starts[i], size)
            offsets[number + 1] = offsets[number] + size
            slots[slot] = slot_of(hashes[i], number)
            count += 1
        out[i] = number
    return count


@kernel(types.void(_ARENA, _INTS, _INTS_IN, _HASHES), allocates=False)
def _hashes_of(arena: np.ndarray, offsets: np.ndarray, numbers: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(numbers)):
        out[i] = xxh64(arena, offsets[numbers[i]], offsets[numbers[i] + 1])


class ByteMap:
    """The map, which only grows. Not safe for concurrent use, except for `bytes_of`; arrays taken from it stay
    valid."""

    def __init__(self) -> None:
        self._slots = np.zeros(SLOTS_MIN, dtype=np.uint64)
        self._arena = GrowingArray(np.uint8)
        self._offsets = GrowingArray(np.int64)
        self._offsets.extend(np.zeros(1, dtype=np.int64))

    def __len__(self) -> int:
        return self._offsets.size - 1

    @property
    def size_bytes(self) -> int:
        """Memory of the strings and of their lookup table."""
        return self._slots.nbytes + self._arena.size_bytes + self._offsets.size_bytes

    def resolve(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        hashes: NDArray[np.uint64],
    ) -> NDArray[np.int64]:
        """int64[n]: the number of each string data[starts[i]:ends[i]], whose xxh64 is hashes[i]; new strings get the
        next numbers in order of appearance."""
        out = np.empty(len(starts), dtype=np.int64)
        self._reserve(len(starts), len(data))
        count = self._resolve(data, starts, ends, hashes, True, out)
        self._offsets.size = count + 1
        self._arena.size = int(self._offsets.data[count])
        return out

    def find(self, data: NDArray[np.uint8], hash_: np.uint64) -> int:
        """The number of one string (uint8[n], with its xxh64), or −1 if it is not in the map."""
        out = np.empty(1, dtype=np.int64)
        start, end = np.zeros(1, dtype=np.int64), np.array([len(data)])
        self._resolve(data, start, end, np.array([hash_], dtype=np.uint64), False, out)
        return int(out[0])

    def _resolve(
        self, data: NDArray, starts: NDArray, ends: NDArray, hashes: NDArray, enter: bool, out: NDArray
    ) -> int:
        arena, offsets = self._arena.data, self._offsets.data
        return _resolve(data, starts, ends, hashes, self._slots, arena, offsets, len(self), enter, out)

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
        """int64[n]: the sizes in bytes of the strings with these numbers. As safe as `bytes_of`."""
        offsets = self._offsets.data
        return offsets[numbers + 1] - offsets[numbers]

    def hashes_of(self, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """uint64[n]: the xxh64 of the strings with these numbers. As safe as `bytes_of`."""
        out = np.empty(len(numbers), dtype=np.uint64)
        offsets = self._offsets.data  # as in `bytes_of`
        _hashes_of(self._arena.data, offsets, numbers, out)
        return out

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """(offsets int64[], bytes uint8[]) of at least the strings so far."""
        offsets = self._offsets.data  # as in `bytes_of`
        return offsets, self._arena.data

    def _reserve(self, entries: int, size_bytes: int) -> None:
        """Make room for this many new strings with this many bytes in all."""
        self._arena.reserve(size_bytes)
        self._offsets.reserve(entries)
        self._slots = with_room(self._slots, len(self) + entries)
