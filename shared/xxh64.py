"""xxh64 as a kernel, equal to `shared.hashing.hash64`. It hashes label sets in place, in a request's body.

Algorithm: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md (XXH64, seed 0).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, kernel, types
from shared.kernels.declarations import Intrinsic

Bytes = types.Array(types.uint8, 1, "C", readonly=True)
"""Kernel argument type of a body; writable arrays are accepted too."""

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_ZERO = np.uint64(0)
_LANE_1 = np.uint64(0x60EA27EEADC0B5D6)  # P1 + P2
_LANE_4 = np.uint64(0x61C8864E7A143579)  # -P1


@inlined(allocates=False)
def _rotate(x: np.uint64, bits: np.uint64) -> np.uint64:
    return (x << bits) | (x >> (np.uint64(64) - bits))


def _load64(typing_context, data, at):  # type: ignore[no-untyped-def]
    """Eight bytes of a uint8 array from `at`, as a little-endian uint64, in one unaligned and unchecked load.

    Kernels only; the caller has checked 0 ≤ at and at + 8 ≤ n. (Eight shifted bytes compile to eight loads.)
    """
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        word = ir.IntType(64)
        address = builder.gep(array.data, [arguments[1]])
        return builder.load(builder.bitcast(address, word.as_pointer()), align=1)

    return types.uint64(data, types.int64), generate


load64: Any = Intrinsic(_load64)


def _store_word(typing_context, out, at, word):  # type: ignore[no-untyped-def]
    """Write a uint64 or a uint32, little-endian, to a uint8 array from `at`, in one unaligned and unchecked store.

    Kernels only; the caller has checked that the word lies within the array.
    """
    from numba import types

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(array.data, [arguments[1]])
        builder.store(arguments[2], builder.bitcast(address, arguments[2].type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, word), generate


store_word: Any = Intrinsic(_store_word)


def _copy_16(typing_context, out, place, data, start):  # type: ignore[no-untyped-def]
    """out[place:place + 16] = data[start:start + 16] of uint8 arrays that do not overlap, as one unaligned and
    unchecked word: for texts that are seldom longer, without the function call of `copy_bytes`.

    Kernels only; the caller has checked that both ranges lie within their arrays.
    """
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        words = ir.VectorType(ir.IntType(64), 2).as_pointer()
        target = context.make_array(signature.args[0])(context, builder, arguments[0])
        source = context.make_array(signature.args[2])(context, builder, arguments[2])
        loaded = builder.load(builder.bitcast(builder.gep(source.data, [arguments[3]]), words), align=1)
        builder.store(loaded, builder.bitcast(builder.gep(target.data, [arguments[1]]), words), align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64), generate


copy_16: Any = Intrinsic(_copy_16)


def _copy_bytes(typing_context, out, place, data, start, size):  # type: ignore[no-untyped-def]
    """out[place:place + size] = data[start:start + size] of uint8 arrays that do not overlap, as one unchecked memcpy.

    Kernels only; the caller has checked that both ranges lie within their arrays.
    """
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        target = context.make_array(signature.args[0])(context, builder, arguments[0])
        source = context.make_array(signature.args[2])(context, builder, arguments[2])
        cgutils.raw_memcpy(
            builder,
            builder.gep(target.data, [arguments[1]]),
            builder.gep(source.data, [arguments[3]]),
            arguments[4],
            ir.Constant(arguments[4].type, 1),
            align=1,
        )
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), generate


copy_bytes: Any = Intrinsic(_copy_bytes)


@kernel(types.boolean(Bytes, types.int64, Bytes, types.int64, types.int64), first=True, allocates=False)
def equal_bytes(a: np.ndarray, i: int, b: np.ndarray, j: int, size: int) -> bool:
    """Whether a[i:i + size] and b[j:j + size] are equal."""
    at = 0
    if size >= 8:
        while at + 32 <= size:  # no branch per word, so that the compiler can vectorise
            different = load64(a, i + at) ^ load64(b, j + at)
            different |= load64(a, i + at + 8) ^ load64(b, j + at + 8)
            different |= load64(a, i + at + 16) ^ load64(b, j + at + 16)
            different |= load64(a, i + at + 24) ^ load64(b, j + at + 24)
            if different != _ZERO:
                return False
            at += 32
        while at + 8 <= size:
            if load64(a, i + at) != load64(b, j + at):
                return False
            at += 8
        return bool(load64(a, i + size - 8) == load64(b, j + size - 8))
    while at < size:
        if a[i + at] != b[j + at]:
            return False
        at += 1
    return True


@inlined(allocates=False)
def equal_texts(a: np.ndarray, i: int, b: np.ndarray, j: int, size: int) -> Any:
    """As `equal_bytes`, for texts of a few words, for which a call would take several times as long as the
    comparison."""
    place, other, end = np.uint64(i), np.uint64(j), np.uint64(i + size)  # signed indices would be checked for each byte
    different = _ZERO
    while place + np.uint64(8) <= end:
        different |= load64(a, place) ^ load64(b, other)
        place += np.uint64(8)
        other += np.uint64(8)
    while place < end:
        different |= np.uint64(a[place] ^ b[other])
        place += np.uint64(1)
        other += np.uint64(1)
    return different == _ZERO


@inlined(allocates=False)
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, np.uint64(31)) * _P1


@kernel(types.uint64(Bytes, types.int64, types.int64), first=True, allocates=False)
def xxh64(data: np.ndarray, start: int, end: int) -> np.uint64:
    """Hash of data[start:end] (uint8[n]). The caller ensures 0 ≤ start ≤ end ≤ n."""
    at = start
    if end - start >= 32:
        a, b, c, d = _LANE_1, _P2, _ZERO, _LANE_4
        while at + 32 <= end:
            a = _round(a, load64(data, at))
            b = _round(b, load64(data, at + 8))
            c = _round(c, load64(data, at + 16))
            d = _round(d, load64(data, at + 24))
            at += 32
        h = _rotate(a, np.uint64(1)) + _rotate(b, np.uint64(7)) + _rotate(c, np.uint64(12)) + _rotate(d, np.uint64(18))
        h = (h ^ _round(_ZERO, a)) * _P1 + _P4
        h = (h ^ _round(_ZERO, b)) * _P1 + _P4
        h = (h ^ _round(_ZERO, c)) * _P1 + _P4
        h = (h ^ _round(_ZERO, d)) * _P1 + _P4
    else:
        h = _P5
    h += np.uint64(end - start)
    while at + 8 <= end:
        h = _rotate(h ^ _round(_ZERO, load64(data, at)), np.uint64(27)) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        word = np.uint64(0)
        for i in range(4):
            word |= np.uint64(data[at + i]) << np.uint64(8 * i)
        h = _rotate(h ^ (word * _P1), np.uint64(23)) * _P2 + _P3
        at += 4
    while at < end:
        h = _rotate(h ^ (np.uint64(data[at]) * _P5), np.uint64(11)) * _P1
        at += 1
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@kernel(
    types.void(Bytes, types.Array(types.int64, 1, "C", readonly=True), types.Array(types.uint64, 1, "C")), first=True
)
def _hash_slices(data: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(out)):
        out[i] = xxh64(data, offsets[i], offsets[i + 1])


def hash_slices(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64[n]: the hash of each data[offsets[i]:offsets[i + 1]], given int64[n+1] ascending offsets within data."""
    assert len(offsets) and offsets[0] >= 0 and offsets[-1] <= len(data) and (np.diff(offsets) >= 0).all()
    out = np.empty(len(offsets) - 1, dtype=np.uint64)
    _hash_slices(data, offsets, out)
    return out
