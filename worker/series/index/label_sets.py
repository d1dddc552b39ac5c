"""Which series has a label set: canonical label bytes → dense numbers 0, 1, 2 …

The bytes of a set are kept only until the series has been registered and saved. From then on the index has its labels
as codes, and the bytes of a request are compared with the texts of these codes. Label sets of 145 bytes would be more
than a third of the memory of a series.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import checked_length
from shared.xxh64 import Bytes, copy_bytes, equal_bytes, equal_texts
from worker.series.growing_array import GrowingArray
from worker.series.index.bytemap import AHEAD, SLOTS_MIN, home_of, next_alike, number_in, prefetch, slot_of, with_room

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_CODES_IN = types.Array(types.int32, 1, "C", readonly=True)
_HASHES = types.Array(types.uint64, 1, "C")
_ARENA = types.Array(types.uint8, 1, "C")


class Registered(NamedTuple):
    """The labels of registered series: those of series i are label_offsets[i] ≤ label < label_offsets[i + 1]. The name
    of a label is name_codes[names[label]], its value values[label]; the text of a code is
    texts[text_offsets[code]:text_offsets[code + 1]]."""

    label_offsets: NDArray[np.int64]
    names: NDArray[np.int32]
    values: NDArray[np.int32]
    name_codes: NDArray[np.int32]
    text_offsets: NDArray[np.int64]
    texts: NDArray[np.uint8]


@inlined(allocates=False)
def _is_text(data: np.ndarray, at: int, size: int, code: int, text_offsets: np.ndarray, texts: np.ndarray) -> bool:
    """Whether data[at:at + size] is the text of a code."""
    start = text_offsets[code]
    return text_offsets[code + 1] - start == size and equal_texts(texts, start, data, at, size)


@inlined(allocates=False)
def _is_series(
    data: np.ndarray,
    at: int,
    end: int,
    label: int,
    label_end: int,
    names: np.ndarray,
    values: np.ndarray,
    name_codes: np.ndarray,
    text_offsets: np.ndarray,
    texts: np.ndarray,
) -> bool:
    """Whether data[at:end], canonical label bytes, has exactly the labels label ≤ l < label_end. A label set has one
    canonical form, so equal labels are equal bytes."""
    while at < end:
        if label == label_end:
            return False
        _, at = checked_length(data, at + 1)
        size, at = checked_length(data, at + 1)
        if not _is_text(data, at, size, name_codes[names[label]], text_offsets, texts):
            return False
        size, at = checked_length(data, at + size + 1)
        if not _is_text(data, at, size, values[label], text_offsets, texts):
            return False
        at += size
        label += 1
    return label == label_end


@kernel(
    types.int64(
        Bytes, _INTS_IN, _INTS_IN, _HASHES, _HASHES, _ARENA, _INTS, types.int64, types.int64, types.int64, _INTS_IN,
        _CODES_IN, _CODES_IN, _CODES_IN, _INTS_IN, Bytes, _INTS,
    ),
    first=True,
    allocates=False,
)  # fmt: skip
def _resolve(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, hashes: np.ndarray, slots: np.ndarray, kept: np.ndarray,
    offsets: np.ndarray, first_kept: int, count: int, count_max: int, label_offsets: np.ndarray, names: np.ndarray,
    values: np.ndarray, name_codes: np.ndarray, text_offsets: np.ndarray, texts: np.ndarray, out: np.ndarray,
) -> int:  # fmt: skip
    """Write the numbers of the label sets data[starts[i]:ends[i]], with these hashes, to `out`. New ones get the next
    numbers below `count_max`; when these are used up, -1. Returns the new count.

    Set `first_kept` + k is kept[offsets[k]:offsets[k + 1]]; those before are registered. `kept`, `offsets` and `slots`
    must have room for all sets, in case all are new.
    """
    for i in range(len(starts)):
        if i + AHEAD < len(starts):
            prefetch(slots, home_of(hashes[i + AHEAD], slots))
        start, end = starts[i], ends[i]
        slot = next_alike(slots, home_of(hashes[i], slots), hashes[i])
        number: Any = number_in(slots, slot)
        while number >= 0:
            position = number - first_kept
            if position >= 0:
                is_equal = offsets[position + 1] - offsets[position] == end - start and equal_bytes(
                    kept, offsets[position], data, start, end - start
                )
            else:
                is_equal = _is_series(
                    data, start, end, label_offsets[number], label_offsets[number + 1], names, values, name_codes,
                    text_offsets, texts,
                )  # fmt: skip
            if is_equal:
                break
            slot = next_alike(slots, (slot + 1) & len(slots) - 1, hashes[i])
            number = number_in(slots, slot)
        if number < 0 and count < count_max:
            number = count
            position = number - first_kept
            copy_bytes(kept, offsets[position], data, start, end - start)
            offsets[position + 1] = offsets[position] + end - start
            slots[slot] = slot_of(hashes[i], number)
            count += 1
        out[i] = number
    return count


class LabelSets:
    """The map, which only grows. Not safe for concurrent use; arrays taken from it stay valid."""

    def __init__(self) -> None:
        self._slots = np.zeros(SLOTS_MIN, dtype=np.uint64)
        self._keep(0, np.zeros(0, np.uint8), np.zeros(1, np.int64))

    def _keep(self, first: int, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        """Keep the bytes of the sets from number `first` on, and no others."""
        arena, arena_offsets = GrowingArray(np.uint8), GrowingArray(np.int64)
        arena.extend(data)
        arena_offsets.extend(offsets)
        # All at once, after everything that may fail.
        self._first_kept, self._kept, self._offsets = first, arena, arena_offsets

    def __len__(self) -> int:
        return self._first_kept + self._offsets.size - 1

    @property
    def size_bytes(self) -> int:
        """Memory of the bytes that are kept and of the lookup table."""
        return self._slots.nbytes + self._kept.size_bytes + self._offsets.size_bytes

    def resolve(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        registered: Registered,
        count_max: int,
    ) -> NDArray[np.int64]:
        """int64[n]: the number of each label set data[starts[i]:ends[i]], whose xxh64 is hashes[i]; new ones get the
        next numbers below `count_max` in order of appearance; when these are used up, -1. `registered`: of all sets
        whose bytes have been dropped, at least."""
        out = np.empty(len(starts), dtype=np.int64)
        self._kept.reserve(len(data))
        self._offsets.reserve(len(starts))
        self._slots = with_room(self._slots, len(self) + len(starts))
        count = _resolve(
            data, starts, ends, hashes, self._slots, self._kept.data, self._offsets.data, self._first_kept, len(self),
            count_max, *registered, out,
        )  # fmt: skip
        self._offsets.size = count - self._first_kept + 1
        self._kept.size = int(self._offsets.data[self._offsets.size - 1])
        return out

    def kept(self, first: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """(bytes of the sets from number `first` on, int64[n + 1] offsets of each into them). They must be kept."""
        assert first >= self._first_kept, (
            f"the bytes of set {first} were dropped, kept are those from {self._first_kept}"
        )
        offsets = self._offsets.rows()[first - self._first_kept :]
        return self._kept.rows()[offsets[0] :], offsets - offsets[0]

    def drop(self, upto: int) -> None:
        """Drop the bytes of the sets below `upto`."""
        if upto > self._first_kept:
            self._keep(upto, *self.kept(upto))
