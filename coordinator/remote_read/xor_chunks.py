"""Floats as XOR chunks of Prometheus's storage, up to 120 samples each.

Format: "XOR chunk data" in the document Chunks Disk Format of Prometheus. Its variable widths in bits: the delta of
deltas of times takes 1 bit if it is 0, else a prefix and 14, 17, 20 or 64 bits; values are encoded as in Gorilla
(T. Pelkonen et al., VLDB 2015, section 4.1.2), with 5 bits for the count of leading zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coordinator.bits import (
    VARINT_BYTES_MAX,
    WORD_BYTES,
    leading_zeros,
    put_bits,
    put_rest,
    put_varint,
    put_word_reversed,
    trailing_zeros,
    zigzag,
)
from shared.kernels import inlined

XOR = 1
"""The number of this encoding in messages."""
CHUNK_SAMPLES = 120
"""As in Prometheus, whose clients may rely on it."""
XOR_BITS_MAX = 68 + 13 + 64
"""Most bits of a time and a value."""
XOR_CHUNK_BYTES_MAX = 2 + 2 * VARINT_BYTES_MAX + WORD_BYTES + (XOR_BITS_MAX * CHUNK_SAMPLES + 7) // 8 + WORD_BYTES
NO_WINDOW = 64
"""Initial value of `leading`: more leading zeros than any number has."""
LEADING_MAX = 31

_0, _1, _2, _3 = (np.uint64(number) for number in range(4))
_PREFIX_14, _PREFIX_17, _PREFIX_20, _PREFIX_64 = np.int64(0b10), np.int64(0b110), np.int64(0b1110), np.uint64(0b1111)


@inlined(allocates=False)
def put_time_change(out: Any, at: Any, pending: Any, used: Any, change: Any) -> Any:
    """Append by how much, in ms, this step is longer than the previous one. Not for 0, which is written as one zero
    bit. Returns (at, pending, used)."""
    if -8191 <= change <= 8192:
        return put_bits(out, at, pending, used, np.uint64(_PREFIX_14 << 14 | change & 0x3FFF), 16)
    if -65535 <= change <= 65536:
        return put_bits(out, at, pending, used, np.uint64(_PREFIX_17 << 17 | change & 0x1FFFF), 20)
    if -524287 <= change <= 524288:
        return put_bits(out, at, pending, used, np.uint64(_PREFIX_20 << 20 | change & 0xFFFFF), 24)
    at, pending, used = put_bits(out, at, pending, used, _PREFIX_64, 4)
    return put_bits(out, at, pending, used, np.uint64(change), 64)


@inlined(allocates=False)
def put_xor(
    out: Any, at: Any, pending: Any, used: Any, zeros: Any, difference: Any, leading: Any, trailing: Any
) -> Any:
    """Append `zeros` (0 or 1) zero bits, and a value as the bits (uint64) in which it differs from the previous one.
    `leading`, `trailing`: zeros around the bits that were written last. Returns (at, pending, used, leading,
    trailing)."""
    if difference == _0:
        at, pending, used = put_bits(out, at, pending, used, _0, zeros + 1)
        return at, pending, used, leading, trailing
    own_leading, own_trailing = min(leading_zeros(difference), LEADING_MAX), trailing_zeros(difference)
    if own_leading >= leading and own_trailing >= trailing:
        head, head_bits = _2, zeros + 2
    else:
        leading, trailing = own_leading, own_trailing
        head = np.uint64(_3 << np.uint64(11) | np.uint64(leading << 6) | np.uint64((64 - leading - trailing) & 63))
        head_bits = zeros + 13
    size = 64 - leading - trailing
    bits = difference >> np.uint64(trailing)
    if head_bits + size <= 64:  # nearly always: one write is faster than two
        at, pending, used = put_bits(out, at, pending, used, head << np.uint64(size) | bits, head_bits + size)
    else:
        at, pending, used = put_bits(out, at, pending, used, head, head_bits)
        at, pending, used = put_bits(out, at, pending, used, bits, size)
    return at, pending, used, leading, trailing


@inlined(allocates=False)
def put_xor_chunk(out: Any, times: Any, values: Any, first: Any, last: Any) -> Any:
    """Write the samples first ≤ i < last (at least one) from out[0] on. `times`: int64; `values`: their bits as int64.
    Returns the number of bytes."""
    count = last - first
    out[0], out[1] = np.uint8(count >> 8), np.uint8(count & 0xFF)
    at = put_varint(out, 2, zigzag(times[first]))
    put_word_reversed(out, at, np.uint64(values[first]))
    at += 8
    if count == 1:
        return at
    step = times[first + 1] - times[first]
    at = put_varint(out, at, np.uint64(step))
    pending, used, leading, trailing = _0, 0, NO_WINDOW, 0
    difference = np.uint64(values[first] ^ values[first + 1])
    at, pending, used, leading, trailing = put_xor(out, at, pending, used, 0, difference, leading, trailing)
    for i in range(first + 2, last):
        own_step = times[i] - times[i - 1]
        zeros = 1 if own_step == step else 0
        if zeros == 0:
            at, pending, used = put_time_change(out, at, pending, used, own_step - step)
        step = own_step
        difference = np.uint64(values[i - 1] ^ values[i])
        at, pending, used, leading, trailing = put_xor(out, at, pending, used, zeros, difference, leading, trailing)
    return put_rest(out, at, pending, used)
