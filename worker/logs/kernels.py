"""Kernels over records in memory: finding a key's, and packing all of them into runs by key.

Records are rows of a table over some bytes (shared.log.blocks).
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value, arg-type"

from __future__ import annotations

import numpy as np

from shared.kernels import kernel, types
from shared.log.blocks import HAS_HEADERS, KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, Hashes, Ints, IntsOut, Octets, Table
from shared.xxh64 import Bytes, copy_bytes, store_word
from worker.logs.runs import TIME_SPAN_MS_MAX, TIMED

RUN = ord("r")
SEGMENT_BYTES = 4
SEQUENCE_BYTES = 8
ROW_KEY_BYTES = 1 + SEGMENT_BYTES + 2 + SEQUENCE_BYTES
"""Of a run's row key, beside the escaped log key."""
RUN_HEAD_BYTES = 12
RUN_RECORD_BYTES = 16

_OWNER_BITS = np.uint64(20)  # the lowest bits of all hashes on a shard say little: they chose the shard


@kernel(types.boolean(Bytes, types.int64, Bytes, types.int64, types.int64), first=True, allocates=False)
def _equal(a: np.ndarray, a_at: int, b: np.ndarray, b_at: int, size: int) -> bool:
    at = 0
    while at < size and a[a_at + at] == b[b_at + at]:
        at += 1
    return at == size


@kernel(types.int64(Bytes, Table, Hashes, types.uint64, Bytes, IntsOut), first=True, allocates=False)
def find_key(
    data: np.ndarray, table: np.ndarray, hashes: np.ndarray, digest: int, key: np.ndarray, out: np.ndarray
) -> int:
    """Write the rows of this key to `out` (int64[n]), ascending; returns how many."""
    found = 0
    for row in range(len(table)):
        if hashes[row] != digest or table[row, KEY_LENGTH] != len(key):
            continue
        if _equal(data, table[row, KEY], key, 0, len(key)):
            out[found] = row
            found += 1
    return found


@kernel(types.int64(Bytes, Table, Hashes, Ints, IntsOut, IntsOut, IntsOut, IntsOut), first=True)
def by_key(
    data: np.ndarray,
    table: np.ndarray,
    hashes: np.ndarray,
    rows: np.ndarray,
    slots: np.ndarray,
    codes: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
) -> int:
    """Number the distinct keys of `rows` in the order they come; returns how many there are.

    `codes` int64[rows]: each row's key. `order` int64[rows]: the rows by key, in their order within each.
    `starts` int64[rows + 1], zeros: where each key's begin in `order`, and the end. `slots` int64[2^k > rows], −1.
    """
    mask = len(slots) - 1
    count = 0
    for i in range(len(rows)):
        row = rows[i]
        slot = np.int64(hashes[row] >> _OWNER_BITS) & mask
        while slots[slot] >= 0:
            other = rows[order[slots[slot]]]
            length = table[row, KEY_LENGTH]
            alike = hashes[other] == hashes[row] and table[other, KEY_LENGTH] == length
            if alike and _equal(data, table[other, KEY], data, table[row, KEY], length):
                break
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = count
            order[count] = i  # for now: where each key was seen first
            count += 1
        codes[i] = slots[slot]
        starts[codes[i] + 1] += 1
    for code in range(count):
        starts[code + 1] += starts[code]
    places = starts[:count].copy()
    for i in range(len(rows)):
        order[places[codes[i]]] = rows[i]
        places[codes[i]] += 1
    return count


@kernel(types.int64(Octets, types.int64, types.uint64, types.int64), first=True, allocates=False)
def _put_high_first(out: np.ndarray, at: int, value: int, size: int) -> int:
    for i in range(size):
        out[at + i] = np.uint8(np.uint64(value) >> np.uint64(8 * (size - 1 - i)) & np.uint64(255))
    return at + size


@kernel(
    types.int64(Bytes, types.int64, types.int64, types.int64, types.uint64, Octets, types.int64),
    first=True,
    allocates=False,
)
def _put_row_key(data: np.ndarray, key: int, length: int, segment: int, number: int, out: np.ndarray, at: int) -> int:
    """The key of a run's row, as `worker.logs.rows` describes it."""
    out[at] = np.uint8(RUN)
    at = _put_high_first(out, at + 1, np.uint64(segment), SEGMENT_BYTES)
    for i in range(key, key + length):
        out[at] = data[i]
        at += 1
        if data[i] == 0:
            out[at] = np.uint8(0xFF)
            at += 1
    at = _put_high_first(out, at, np.uint64(0), 2)
    return _put_high_first(out, at, number, SEQUENCE_BYTES)


@kernel(
    types.int64(
        Bytes, Table, Hashes, Ints, Ints, Ints, types.int64, types.int64, types.int64, Octets, IntsOut, Octets, IntsOut
    ),
    first=True,
    allocates=False,
)
def pack_runs(
    data: np.ndarray,
    table: np.ndarray,
    numbers: np.ndarray,
    times: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    segment: int,
    records_max: int,
    bytes_max: int,
    keys: np.ndarray,
    key_ends: np.ndarray,
    runs: np.ndarray,
    run_ends: np.ndarray,
) -> int:
    """Write what `by_key` ordered as rows of the store, their keys to `keys` and the runs (worker.logs.runs) to `runs`,
    one after another, and where each ends; returns how many. `starts` is cut to the number of keys, and one.

    A run ends with the record that makes it `records_max` long or takes its values to `bytes_max`, and before one whose
    time (`times` int64[n], Unix ms) is less than that of the run's first or too far above it.
    """
    count, key_at, run_at = 0, 0, 0
    for code in range(len(starts) - 1):
        first = starts[code]
        while first < starts[code + 1]:
            last, size = first, 0
            base = times[order[first]]
            while last < starts[code + 1] and last - first < records_max and size < bytes_max:
                if times[order[last]] < base or times[order[last]] - base > TIME_SPAN_MS_MAX:
                    break
                size += table[order[last], VALUE_LENGTH]
                last += 1
            row = order[first]
            key_at = _put_row_key(data, table[row, KEY], table[row, KEY_LENGTH], segment, numbers[row], keys, key_at)
            store_word(runs, run_at, np.uint32(last - first | TIMED))
            store_word(runs, run_at + 4, np.uint64(base))
            run_at += RUN_HEAD_BYTES
            lengths = run_at + (last - first) * SEQUENCE_BYTES
            delays = lengths + (last - first) * 4
            values = run_at + (last - first) * RUN_RECORD_BYTES
            for i in range(first, last):
                row = order[i]
                length = table[row, VALUE_LENGTH]
                store_word(runs, run_at, numbers[row])
                store_word(runs, lengths, np.uint32(length | table[row, HAS_HEADERS] << 31))
                store_word(runs, delays, np.uint32(times[row] - base))
                copy_bytes(runs, values, data, table[row, VALUE], length)
                run_at += SEQUENCE_BYTES
                lengths += 4
                delays += 4
                values += length
            run_at = values
            key_ends[count], run_ends[count] = key_at, run_at
            count += 1
            first = last
    return count
