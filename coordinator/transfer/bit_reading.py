"""Streams of bits as kernels read them, the most significant bit of each byte first.

Bits behind the data are 0, so nothing is read beyond them; whoever reads checks afterwards where the stream has got to.
What writes such streams: `coordinator.bits`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coordinator.bits import leading_zeros
from coordinator.remote_read.histogram_chunks import WIDTHS
from shared.kernels import inlined

BROKEN_AT = np.int64(1) << np.int64(62)
"""Where a stream has got to that makes no sense."""
_WINDOW_BITS = 11
_0, _1 = np.uint64(0), np.uint64(1)


@inlined(allocates=False)
def bits(data: Any, bit: Any, count: Any) -> Any:
    """The `count` ≤ 64 bits from bit number `bit` on, as a uint64."""
    at, skipped = bit >> 3, np.uint64(bit & 7)
    word, more = _0, _0
    if at + 9 <= len(data):
        for i in range(8):
            word = word << np.uint64(8) | np.uint64(data[at + i])
        more = np.uint64(data[at + 8])
    else:
        for i in range(8):
            word <<= np.uint64(8)
            if at + i < len(data):
                word |= np.uint64(data[at + i])
    word = word << skipped | more >> (np.uint64(8) - skipped)
    return _0 if count == 0 else word >> np.uint64(64 - count)


@inlined(allocates=False)
def ones(data: Any, bit: Any, most: Any) -> Any:
    """How many ones come from this bit on, at most so many (≤ 8)."""
    return min(leading_zeros(~(bits(data, bit, 8) << np.uint64(56))), most)


@inlined(allocates=False)
def _width(data: Any, bit: Any) -> Any:
    """(How many bits the variable number has that begins at this bit, where they begin)."""
    count = ones(data, bit, 8)
    return (np.int64(0) if count == 0 else WIDTHS[count - 1]), bit + min(count + 1, 8)


@inlined(allocates=False)
def unsigned(data: Any, bit: Any) -> Any:
    """(the uint64 at this bit, a `varbit_uint`; where it ends)."""
    width, bit = _width(data, bit)
    return bits(data, bit, width), bit + width


@inlined(allocates=False)
def signed(data: Any, bit: Any) -> Any:
    """(the int64 at this bit, a `varbit_int`; where it ends)."""
    width, bit = _width(data, bit)
    number = np.int64(bits(data, bit, width))
    if 0 < width < 64 and number > np.int64(1) << (width - 1):
        number -= np.int64(1) << width
    return number, bit + width


@inlined(allocates=False)
def followed(data: Any, bit: Any, word: Any, leading: Any, trailing: Any) -> Any:
    """The value that follows the one with the bits `word`, by the bits in which they differ (`varbit_xor`). `leading`,
    `trailing`: zeros around the bits that were read last. Returns (its bits, leading, trailing, where it ends)."""
    if bits(data, bit, 1) == _0:
        return word, leading, trailing, bit + 1
    has_window = bits(data, bit + 1, 1) == _1
    bit += 2
    if has_window:
        window = np.int64(bits(data, bit, _WINDOW_BITS))
        size = window & 63
        leading, bit = window >> 6, bit + _WINDOW_BITS
        trailing = 64 - leading - (size if size > 0 else np.int64(64))
        if trailing < 0:
            return word, np.int64(0), np.int64(0), BROKEN_AT
    size = 64 - leading - trailing
    return word ^ bits(data, bit, size) << np.uint64(trailing), leading, trailing, bit + size
