"""The samples in the chunk files of a Prometheus TSDB block, decoded by kernels.

Format: https://github.com/prometheus/prometheus/blob/main/tsdb/docs/format/chunks.md. A chunk is its length (a
varint), its encoding (a byte), its data, and the CRC-32C of both. XOR data, big-endian: the number of samples
(uint16); the first time (a zigzag varint) and value (64 bits); of the second sample the time since the first (a
varint); of all later ones the change of that time, in a variable number of bits; and of every value the XOR with the
one before it, likewise.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import struct
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.transfer.bit_reading import BROKEN_AT, bits, followed, ones
from shared.crc32c import CRC_TABLES, crc32c
from shared.kernels import inlined, kernel, types

MAGIC = 0x85BD40DD
HEAD_BYTES = 8
XOR, HISTOGRAM, FLOAT_HISTOGRAM = 1, 2, 3
"""Encodings."""
GOOD, BROKEN, BAD_SUM, OTHER, HISTOGRAMS = range(5)
"""What a chunk is: GOOD, with floats; or OTHER, of an encoding that is unknown, or with too much in it."""

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)


@inlined(allocates=False)
def _is_sound(data: Any, begin: Any, end: Any) -> Any:
    """Whether the four bytes behind data[begin:end] are its CRC-32C."""
    stored = np.uint64(0)
    for i in range(4):
        stored = stored << np.uint64(8) | np.uint64(data[end + i])
    return crc32c(CRC_TABLES, data, begin, end) == stored


@kernel(types.boolean(_BYTES, types.int64, types.int64), allocates=False)
def is_sound(data: np.ndarray, begin: int, end: int) -> bool:
    """Whether data[begin:end] is there, and behind it its CRC-32C (4 bytes)."""
    return begin >= 0 and begin <= end and end + 4 <= len(data) and _is_sound(data, begin, end)


@inlined(allocates=False)
def _varint(data: Any, at: Any, end: Any) -> Any:
    """(value: uint64, position after it), which is -1 if it is cut off."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < end and shift < np.uint64(64):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, at
        shift += np.uint64(7)
    return value, -1


@kernel(types.UniTuple(types.int64, 4)(_BYTES, types.int64, types.int64), allocates=False)
def _chunk(data: np.ndarray, at: int, end: int) -> tuple[int, int, int, int]:
    """The chunk at `at`: (what it is; where its data begin; where they end; how many floats it has)."""
    if at < 0 or at >= end:
        return BROKEN, at, at, 0
    size, begin = _varint(data, at, end)
    if begin < 0 or size > np.uint64(end) or begin + 1 + np.int64(size) + 4 > end:
        return BROKEN, at, at, 0
    last = begin + 1 + np.int64(size)
    if not _is_sound(data, begin, last):
        return BAD_SUM, at, at, 0
    if data[begin] == HISTOGRAM or data[begin] == FLOAT_HISTOGRAM:
        return HISTOGRAMS, begin + 1, last, 0
    if data[begin] != XOR:
        return OTHER, begin + 1, last, 0
    if size < np.uint64(2):
        return BROKEN, at, at, 0
    return GOOD, begin + 1, last, np.int64(data[begin + 1]) << 8 | np.int64(data[begin + 2])


@kernel(types.void(_BYTES, _INTS, types.int64[:, ::1]), allocates=False)
def find(data: np.ndarray, places: np.ndarray, table: np.ndarray) -> None:
    """table[i] (int64[n, 4]): what, begin, end and samples of the chunk at places[i], as `_chunk` says."""
    for i in range(len(places)):
        table[i, 0], table[i, 1], table[i, 2], table[i, 3] = _chunk(data, places[i], len(data))


@inlined(allocates=False)
def _unaligned_varint(data: Any, bit: Any) -> Any:
    """(value: int64, where it ends) of a varint that may begin within a byte."""
    value = np.uint64(0)
    for shift in range(0, 64, 7):
        byte = bits(data, bit, 8)
        bit += 8
        value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(0x80):
            return np.int64(value), bit
    return np.int64(value), BROKEN_AT


@inlined(allocates=False)
def _time_change(data: Any, bit: Any) -> Any:
    """(How much longer a step is than the one before, where that ends)."""
    if bits(data, bit, 1) == np.uint64(0):  # as nearly always
        return np.int64(0), bit + 1
    count = ones(data, bit, 4)
    width = 14 if count == 1 else 17 if count == 2 else 20 if count == 3 else 64
    bit += min(count + 1, 4)
    change = np.int64(bits(data, bit, width))
    if width < 64 and change > np.int64(1) << (width - 1):
        change -= np.int64(1) << width
    return change, bit + width


@kernel(
    types.int64(_BYTES, types.int64, types.int64, types.int64, types.int64[::1], types.uint64[::1], types.int64),
    allocates=False,
)
def _decode_one(
    data: np.ndarray, begin: int, end: int, samples: int, times: np.ndarray, words: np.ndarray, place: int
) -> int:
    """Decode the XOR data[begin:end] into times[place:] and words[place:]. Returns whether it is whole (1) or not."""
    at = begin + 2
    if samples == 0:
        return 1
    zigzag, at = _varint(data, at, end)
    if at < 0 or at + 8 > end:
        return 0
    time = np.int64(zigzag >> np.uint64(1)) ^ -np.int64(zigzag & np.uint64(1))
    bit, last = at << 3, end << 3
    word = bits(data, bit, 64)
    bit += 64
    times[place], words[place] = time, word
    step, leading, trailing = np.int64(0), np.int64(0), np.int64(0)
    for k in range(1, samples):
        if k == 1:
            step, bit = _unaligned_varint(data, bit)
        else:
            change, bit = _time_change(data, bit)
            step += change
        time += step
        word, leading, trailing, bit = followed(data, bit, word, leading, trailing)
        if bit > last:
            return 0
        times[place + k], words[place + k] = time, word
    return 1


@kernel(types.void(_BYTES, types.int64[:, ::1], _INTS, types.int64[::1], types.uint64[::1]), allocates=False)
def decode(data: np.ndarray, table: np.ndarray, places: np.ndarray, times: np.ndarray, words: np.ndarray) -> None:
    """Decode the chunks of a `table` that `find` has filled; the samples of chunk i go to places[i] and on. A chunk
    that is not whole becomes BROKEN in the table."""
    for i in range(len(table)):
        if table[i, 0] == GOOD:
            is_whole = _decode_one(data, table[i, 1], table[i, 2], table[i, 3], times, words, places[i])
            if is_whole == 0:
                table[i, 0] = BROKEN


class ChunkFiles:
    """The chunk files of a block, mapped into memory. Raises ValueError for a file that is none."""

    def __init__(self, directory: Path) -> None:
        self._files: dict[int, NDArray[np.uint8]] = {}
        for path in sorted(directory.iterdir()):
            if path.name.isdecimal():
                self._files[int(path.name) - 1] = _mapped(path)

    def read(self, references: NDArray[np.int64]) -> Chunks:
        """The chunks with these references (file << 32 | offset), in order. Raises ValueError if a file is missing."""
        table = np.zeros((len(references), 4), dtype=np.int64)
        files = references >> 32
        for number in np.unique(files).tolist():
            own = files == number
            part = np.zeros((int(own.sum()), 4), dtype=np.int64)
            find(self.file(number), np.ascontiguousarray(references[own] & 0xFFFFFFFF), part)
            table[own] = part
        counts = table[:, 3]
        places = np.cumsum(counts) - counts
        times = np.empty(int(counts.sum()), dtype=np.int64)
        words = np.empty(len(times), dtype=np.uint64)
        for number in np.unique(files).tolist():
            own = files == number
            part = np.ascontiguousarray(table[own])
            decode(self.file(number), part, np.ascontiguousarray(places[own]), times, words)
            table[own] = part
        return Chunks(table, places, np.where(table[:, 0] == GOOD, counts, 0), times, words.view(np.float64))

    def file(self, number: int) -> NDArray[np.uint8]:
        """uint8[n], counted from 0. Raises ValueError if it is missing."""
        if number not in self._files:
            raise ValueError(f"chunks/{number + 1:06d} is missing")
        return self._files[number]


def _mapped(path: Path) -> NDArray[np.uint8]:
    with open(path, "rb") as file:
        data = mmap(file.fileno(), 0, access=ACCESS_READ)
    if len(data) < HEAD_BYTES or struct.unpack_from(">IB", data) != (MAGIC, 1):
        raise ValueError(f"{path} is no chunk file of a TSDB block, version 1")
    return np.frombuffer(data, dtype=np.uint8)


class Chunks:
    """`table` int64[n, 4]: what each chunk is, and where its data begin and end in its file. Chunk i has the floats
    firsts[i] ≤ k < firsts[i] + counts[i] of `times_ms` and `values`."""

    def __init__(self, table: Any, firsts: Any, counts: Any, times_ms: Any, values: Any) -> None:
        self.table: NDArray[np.int64] = table
        self.firsts: NDArray[np.int64] = firsts
        self.counts: NDArray[np.int64] = counts
        self.times_ms: NDArray[np.int64] = times_ms
        self.values: NDArray[np.float64] = values

    @property
    def status(self) -> NDArray[np.int64]:
        """int64[n]: what each chunk is."""
        return self.table[:, 0]
