"""Log records as columns, as they are sent to a shard: a *block* holds the records of one batch for one shard.

A block is little-endian and consists of whole words of 8 bytes: the number of records n, the number of bytes of all
keys, the number of bytes of all values, and 0 (uint32 each); n hashes of the keys (uint64, `shared.hashing`); n
ascending positions in the batch, n key lengths, n value lengths (uint32 each; the highest bit: the value begins with
headers, `shared.log.headers`); zeros up to a whole word; the keys; the values; zeros up to a whole word.

In memory, records are a *table* over some bytes: int64[n, 5], with the start and length of the key, the start and
length of the value, and 1 if the value begins with headers. A table whose records have no headers may lack the last
column.
"""

# In a kernel, a numpy integer and an int have the same type.
# mypy: disable-error-code="assignment, return-value, arg-type"

from __future__ import annotations

import struct
from collections.abc import Container, Iterable

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.log.headers import HEADED, LENGTH_MASK
from shared.xxh64 import Bytes, copy_bytes, xxh64

KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, HAS_HEADERS = range(5)
COLUMNS = 5
HEAD_WORDS = 2

Table = types.Array(types.int64, 2, "C", readonly=True)
TableOut = types.Array(types.int64, 2, "C")
Ints = types.Array(types.int64, 1, "C", readonly=True)
IntsOut = types.Array(types.int64, 1, "C")
Hashes = types.Array(types.uint64, 1, "C", readonly=True)
HashesOut = types.Array(types.uint64, 1, "C")
Words = types.Array(types.uint64, 1, "C")
Halves = types.Array(types.uint32, 1, "C")
Octets = types.Array(types.uint8, 1, "C")


@kernel(types.int64(types.int64, types.int64), first=True, allocates=False)
def _words(records: int, octets: int) -> int:
    """The number of words of a block with this many records, whose keys and values have this many bytes."""
    return HEAD_WORDS + records + (3 * records + 1) // 2 + (octets + 7) // 8


@kernel(types.void(Bytes, Table, HashesOut, TableOut, Words, Halves, Octets, IntsOut), first=True, allocates=False)
def _cut(
    data: np.ndarray,
    table: np.ndarray,
    hashes: np.ndarray,
    places: np.ndarray,
    words: np.ndarray,
    halves: np.ndarray,
    octets: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Write the shards' blocks one after another to `words`, of which `halves` and `octets` are views.

    `ends` int64[shards] gets the end of each shard's block, in words, and `hashes` uint64[n] the hashes of the keys.
    `places` int64[shards, 4], all zeros at first, is scratch space: the records, bytes of keys and bytes of values of
    each shard, and after that the positions of the next record's hash, position, key and value.
    """
    shards = np.uint64(len(ends))
    for i in range(len(table)):
        hashes[i] = xxh64(data, table[i, KEY], table[i, KEY] + table[i, KEY_LENGTH])
        place = places[np.int64(hashes[i] % shards)]
        place[0] += 1
        place[1] += table[i, KEY_LENGTH]
        place[2] += table[i, VALUE_LENGTH]
    at = 0
    for shard in range(len(ends)):
        place = places[shard]
        records, key_bytes, value_bytes = place[0], place[1], place[2]
        if records > 0:
            halves[2 * at], halves[2 * at + 1], halves[2 * at + 2], halves[2 * at + 3] = (
                np.uint32(records),
                np.uint32(key_bytes),
                np.uint32(value_bytes),
                np.uint32(0),
            )
            place[0] = at + HEAD_WORDS
            place[1] = 2 * (place[0] + records)
            octets_at = place[0] + records + (3 * records + 1) // 2
            place[2] = 8 * octets_at
            place[3] = place[2] + key_bytes
            at += _words(records, key_bytes + value_bytes)
            words[octets_at - 1] = np.uint64(0)
            words[at - 1] = np.uint64(0)
        ends[shard] = at
    for i in range(len(table)):
        shard = np.int64(hashes[i] % shards)
        place = places[shard]
        begin = 0 if shard == 0 else ends[shard - 1]
        records = np.int64(halves[2 * begin])
        words[place[0]] = hashes[i]
        halves[place[1]] = np.uint32(i)
        halves[place[1] + records] = np.uint32(table[i, KEY_LENGTH])
        has_headers = table.shape[1] > HAS_HEADERS and table[i, HAS_HEADERS] != 0
        halves[place[1] + 2 * records] = np.uint32(table[i, VALUE_LENGTH] | (HEADED if has_headers else 0))
        copy_bytes(octets, place[2], data, table[i, KEY], table[i, KEY_LENGTH])
        copy_bytes(octets, place[3], data, table[i, VALUE], table[i, VALUE_LENGTH])
        place[0] += 1
        place[1] += 1
        place[2] += table[i, KEY_LENGTH]
        place[3] += table[i, VALUE_LENGTH]


@kernel(types.UniTuple(types.int64, 3)(Table), allocates=False)
def sizes(table: np.ndarray) -> tuple[int, int, int]:
    """(bytes of all keys and values of the table, bytes of the longest key, bytes of the longest value)."""
    octets = longest_key = longest_value = 0
    for i in range(len(table)):
        octets += table[i, KEY_LENGTH] + table[i, VALUE_LENGTH]
        longest_key = max(longest_key, table[i, KEY_LENGTH])
        longest_value = max(longest_value, table[i, VALUE_LENGTH])
    return octets, longest_key, longest_value


def cut(
    data: NDArray[np.uint8], table: NDArray[np.int64], shards: int, size_bytes: int
) -> tuple[dict[int, memoryview], NDArray[np.uint64]]:
    """(the block of every shard that has records of the table, uint64[n] hashes of their keys). `size_bytes`: of all
    keys and values."""
    words = np.empty(3 * len(table) + size_bytes // 8 + (HEAD_WORDS + 2) * shards, np.uint64)
    hashes = np.empty(len(table), np.uint64)
    ends = np.empty(shards, np.int64)
    places = np.zeros((shards, 4), np.int64)
    _cut(data, table, hashes, places, words, words.view(np.uint32), words.view(np.uint8), ends)
    assert int(ends[-1]) <= len(words), "the kernel wrote past its buffer"
    view = words.view(np.uint8).data
    blocks = {}
    at = 0
    for shard, end in enumerate(ends.tolist()):
        if end > at:
            blocks[shard] = view[8 * at : 8 * end]
        at = end
    return blocks, hashes


_ONE_RECORD = struct.Struct("<4IQ3I4x")
"""A block of one record, up to its key."""


def block_of_one(digest: int, position: int, key: bytes, value: bytes, is_headed: bool) -> bytes:
    """As `block_of`, for one record."""
    length = len(value) | HEADED * is_headed
    head = _ONE_RECORD.pack(1, len(key), len(value), 0, digest, position, len(key), length)
    return b"".join((head, key, value, bytes(-(len(key) + len(value)) % 8)))


def block_of(records: Iterable[tuple[int, int, bytes, bytes]], headed: Container[int] = ()) -> bytes:
    """The block of a few records, given as (hash, position, key, value), in the form that `cut` writes. The values of
    the positions in `headed` begin with headers."""
    rows = list(records)
    n = len(rows)
    if n == 1:
        ((digest, position, key, value),) = rows
        return block_of_one(digest, position, key, value, position in headed)
    key_bytes, value_bytes = sum(len(row[2]) for row in rows), sum(len(row[3]) for row in rows)
    head = struct.pack(
        f"<4I{n}Q{3 * n}I",
        n,
        key_bytes,
        value_bytes,
        0,
        *(row[0] for row in rows),
        *(row[1] for row in rows),
        *(len(row[2]) for row in rows),
        *(len(row[3]) | HEADED * (row[1] in headed) for row in rows),
    )
    octets = b"".join([*(row[2] for row in rows), *(row[3] for row in rows)])
    return b"".join((head, bytes(-len(head) % 8), octets, bytes(-len(octets) % 8)))


EMPTY = block_of(())


@kernel(types.UniTuple(types.int64, 3)(Halves, types.int64, types.int64), first=True, allocates=False)
def measure(halves: np.ndarray, at: int, end: int) -> tuple[int, int, int]:
    """(blocks, records, bytes of keys and values) between these words; (−1, 0, 0) unless there are only complete and
    valid blocks."""
    blocks, records, octets = 0, 0, np.int64(0)
    while at < end:
        if at + HEAD_WORDS > end:
            return -1, 0, 0
        n, key_bytes = np.int64(halves[2 * at]), np.int64(halves[2 * at + 1])
        value_bytes = np.int64(halves[2 * at + 2])
        if at + _words(n, key_bytes + value_bytes) > end:
            return -1, 0, 0
        lengths = 2 * (at + HEAD_WORDS + n) + n
        keys, values = np.int64(0), np.int64(0)
        for i in range(lengths, lengths + n):
            keys += np.int64(halves[i])
            values += np.int64(halves[i + n]) & LENGTH_MASK
        if keys != key_bytes or values != value_bytes:
            return -1, 0, 0
        blocks += 1
        records += n
        octets += key_bytes + value_bytes
        at += _words(n, key_bytes + value_bytes)
    return blocks, records, octets


@kernel(
    types.boolean(
        Words, Halves, types.int64, types.int64, Hashes, Ints, TableOut, HashesOut, HashesOut, IntsOut, types.int64
    ),
    first=True,
    allocates=False,
)
def index(
    words: np.ndarray,
    halves: np.ndarray,
    at: int,
    end: int,
    starts: np.ndarray,
    batch_times: np.ndarray,
    table: np.ndarray,
    numbers: np.ndarray,
    hashes: np.ndarray,
    times: np.ndarray,
    row: int,
) -> bool:
    """Fill in the columns of the records in the blocks between these words, which `measure` has checked, from `row` on.
    Block i belongs to the batch that begins at sequence number starts[i] and was appended at batch_times[i] (ms).
    Returns whether the numbers ascend."""
    ascending = True
    block = 0
    last = numbers[row - 1] if row > 0 else np.uint64(0)
    while at < end:
        n, key_bytes = np.int64(halves[2 * at]), np.int64(halves[2 * at + 1])
        value_bytes = np.int64(halves[2 * at + 2])
        hashes_at = at + HEAD_WORDS
        positions = 2 * (hashes_at + n)
        key = 8 * (hashes_at + n + (3 * n + 1) // 2)
        value = key + key_bytes
        for i in range(n):
            number = starts[block] + np.uint64(halves[positions + i])
            ascending = ascending and (number > last or row == 0)
            last = number
            numbers[row] = number
            hashes[row] = words[hashes_at + i]
            times[row] = batch_times[block]
            key_length = np.int64(halves[positions + n + i])
            value_length = np.int64(halves[positions + 2 * n + i]) & LENGTH_MASK
            table[row, HAS_HEADERS] = np.int64(halves[positions + 2 * n + i]) >> 31
            table[row, KEY], table[row, KEY_LENGTH] = key, key_length
            table[row, VALUE], table[row, VALUE_LENGTH] = value, value_length
            key += key_length
            value += value_length
            row += 1
        at += _words(n, key_bytes + value_bytes)
        block += 1
    return ascending


@kernel(types.void(Bytes, Table, types.int64, Ints, Octets), first=True, allocates=False)
def take(data: np.ndarray, table: np.ndarray, column: int, rows: np.ndarray, out: np.ndarray) -> None:
    """Write the keys (column KEY) or values (column VALUE) of these rows to `out`, concatenated."""
    at = 0
    for i in range(len(rows)):
        length = table[rows[i], column + 1]
        copy_bytes(out, at, data, table[rows[i], column], length)
        at += length


def taken(data: NDArray[np.uint8], table: NDArray[np.int64], column: int, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """uint8[…]: the keys or values of these rows, concatenated; see `take`."""
    out = np.empty(int(table[rows, column + 1].sum()), np.uint8)
    take(data, table, column, rows, out)
    return out


@kernel(types.void(Bytes, Table, Bytes, types.Array(types.boolean, 1, "C")), first=True, allocates=False)
def begin_with(data: np.ndarray, table: np.ndarray, prefix: np.ndarray, out: np.ndarray) -> None:
    """`out` bool[n]: whether each key begins with the prefix."""
    for row in range(len(table)):
        at = table[row, KEY]
        out[row] = table[row, KEY_LENGTH] >= len(prefix)
        for i in range(len(prefix)):
            if not out[row]:
                break
            out[row] = data[at + i] == prefix[i]


def with_prefix(data: NDArray[np.uint8], table: NDArray[np.int64], prefix: bytes) -> NDArray[np.bool_]:
    """bool[n]: whether each key begins with the prefix."""
    out = np.ones(len(table), np.bool_)
    if prefix:
        begin_with(data, table, np.frombuffer(prefix, np.uint8), out)
    return out
