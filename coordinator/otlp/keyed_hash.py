"""A hash of bytes in a body, with keys that no sender knows.

Its users treat equal hashes as equal bytes, so a sender must not be able to construct a collision. The function belongs
to the wyhash family (https://github.com/wangyi-fudan/wyhash): folded products of 128 bits, whose factors are words of
the text mixed with random keys of this process.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, kernel, types
from shared.kernels.declarations import Intrinsic
from shared.xxh64 import Bytes, load64

Keys = types.Array(types.uint64, 1, "C", readonly=True)
"""Kernel argument type of the keys."""
KEYS = 4


def new_keys() -> NDArray[np.uint64]:
    """uint64[KEYS], each odd: a key of 0 would lose the number that it is multiplied with."""
    return np.array([secrets.randbits(64) | 1 for _ in range(KEYS)], np.uint64)


def _folded(typing_context, a, b):  # type: ignore[no-untyped-def]
    """The exclusive or of the upper and the lower half of the product of two uint64."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        upper = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))
        return builder.xor(upper, builder.trunc(product, ir.IntType(64)))

    return types.uint64(types.uint64, types.uint64), generate


folded: Any = Intrinsic(_folded)


@inlined(allocates=False)
def mixed(a: np.uint64, b: np.uint64, keys: np.ndarray) -> np.uint64:
    """A combination of two numbers, whose order matters."""
    return folded(a ^ keys[0], b ^ keys[1])


@kernel(types.uint64(Bytes, types.int64, types.int64, types.uint64, Keys), first=True, allocates=False)
def keyed_hash(data: np.ndarray, begin: int, end: int, seed: np.uint64, keys: np.ndarray) -> np.uint64:
    """The hash of data[begin:end], mixed with `seed`. The caller ensures 0 ≤ begin ≤ end ≤ n."""
    h = folded(seed ^ keys[2], np.uint64(end - begin) ^ keys[3])
    at = begin
    while at + 16 <= end:
        h = folded(load64(data, at) ^ keys[0] ^ h, load64(data, at + 8) ^ keys[1])
        at += 16
    first, second = np.uint64(0), np.uint64(0)
    if at + 8 <= end:
        first = load64(data, at)
        at += 8
    for i in range(end - at):
        second |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return folded(first ^ keys[2] ^ h, second ^ keys[3])
