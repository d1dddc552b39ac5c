"""Writes numbers in kernels: varints, words, and bit streams with the most significant bit first.

For kernels only. The caller ensures that the output array has room. The last bits of a bit stream are in the `used`
highest bits of the word `pending` (`used` is below 64); the words before it have been written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shared.kernels import inlined
from shared.kernels.declarations import Intrinsic
from shared.promql.model import Int

VARINT_BYTES_MAX = 10
WORD_BYTES = 8
_SEVEN, _LOW, _MORE = np.uint64(7), np.uint64(0x7F), np.uint64(0x80)


def _leading_zeros(typing_context, number):  # type: ignore[no-untyped-def]
    """The number of leading zero bits of a uint64; 64 for 0."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _trailing_zeros(typing_context, number):  # type: ignore[no-untyped-def]
    """The number of trailing zero bits of a uint64; 64 for 0."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _put_word(typing_context, out, at, word):  # type: ignore[no-untyped-def]
    """Write a uint64 to out[at:at + 8] of a uint8 array, lowest byte first, as one unaligned word without bounds
    checks."""
    from numba import types

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _store(context, builder, signature, arguments, arguments[2])
        return context.get_dummy_value()

    return types.void(out, types.int64, types.uint64), generate


def _put_word_reversed(typing_context, out, at, word):  # type: ignore[no-untyped-def]
    """As `put_word`, but with the highest byte first."""
    from numba import types

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _store(context, builder, signature, arguments, builder.bswap(arguments[2]))
        return context.get_dummy_value()

    return types.void(out, types.int64, types.uint64), generate


def _store(context, builder, signature, arguments, word) -> None:  # type: ignore[no-untyped-def]
    from llvmlite import ir

    target = context.make_array(signature.args[0])(context, builder, arguments[0])
    address = builder.gep(target.data, [arguments[1]])
    builder.store(word, builder.bitcast(address, ir.IntType(64).as_pointer()), align=1)


leading_zeros: Any = Intrinsic(_leading_zeros)
trailing_zeros: Any = Intrinsic(_trailing_zeros)
put_word: Any = Intrinsic(_put_word)
put_word_reversed: Any = Intrinsic(_put_word_reversed)


@inlined(allocates=False)
def varint_size(number: Any) -> Any:
    """The number of bytes of the varint of a uint64."""
    return (70 - leading_zeros(number | np.uint64(1))) // 7


@inlined(allocates=False)
def put_varint(out: Any, at: Any, number: Any) -> Any:
    """Write a uint64 as a varint. Returns where it ends."""
    while number >= _MORE:
        out[at] = np.uint8(number & _LOW | _MORE)
        number >>= _SEVEN
        at += 1
    out[at] = np.uint8(number)
    return at + 1


@inlined(allocates=False)
def put_number(out: Any, at: Any, tag: Any, number: Any) -> Any:
    """Write a protobuf field that is a varint; its tag has one byte. Returns where it ends."""
    out[at] = tag
    return put_varint(out, at + 1, number)


@inlined(allocates=False)
def put_fixed64(out: Any, at: Any, tag: Any, word: Any) -> Any:
    """As `put_number`, for a field of 8 bytes, such as a double."""
    out[at] = tag
    put_word(out, at + 1, word)
    return at + 1 + WORD_BYTES


@inlined(allocates=False)
def zigzag(number: Any) -> Any:
    """The uint64 that encodes an int64 in a `sint` field."""
    return np.uint64(number << 1) ^ np.uint64(number >> 63)


@inlined(allocates=False)
def put_bits(out: Any, at: Any, pending: Any, used: Any, bits: Any, count: Any) -> Any:
    """Append the lowest `count` bits (1 to 64) of a uint64, whose other bits must be 0. Returns (at, pending, used)."""
    left = 64 - used
    if count < left:
        return at, pending | bits << np.uint64(left - count), used + count
    rest = count - left
    put_word_reversed(out, at, pending | bits >> np.uint64(rest))
    # A shift by 64 would be undefined.
    return at + 8, bits << np.uint64(64 - rest) if rest > 0 else np.uint64(0), rest


@inlined(allocates=False)
def put_rest(out: Any, at: Any, pending: Any, used: Any) -> Any:
    """Write the pending bits, padded with zeros to a whole byte. There must be room for a word. Returns where it
    ends."""
    put_word_reversed(out, at, pending)
    return at + (used + 7) // 8


def varint_sizes(numbers: Int) -> Int:
    """int64[n]: the number of bytes of the varint of each number, which must be ≥ 0."""
    return 1 + np.searchsorted(_LIMITS, numbers, side="right")


_LIMITS = np.int64(1) << np.arange(7, 63, 7, dtype=np.int64)
