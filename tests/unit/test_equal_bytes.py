"""Label bytes are compared a few words at a time, and every byte of them counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shared import kernel_types as types
from shared.kernels import kernel
from shared.xxh64 import Bytes, equal_bytes, equal_texts


@kernel(types.boolean(Bytes, types.int64, Bytes, types.int64, types.int64))
def inlined_texts(a: np.ndarray, i: int, b: np.ndarray, j: int, size: int) -> bool:
    return bool(equal_texts(a, i, b, j, size))


@pytest.mark.parametrize("equal", [equal_bytes, inlined_texts])
@pytest.mark.parametrize("size", [*range(72), 153, 300])
@pytest.mark.parametrize(("i", "j"), [(0, 0), (3, 10)])
def test_a_difference_in_any_byte_is_seen_and_none_beside_them(
    equal: Callable[..., bool], size: int, i: int, j: int
) -> None:
    text = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    one, other = np.full(size + 20, 1, dtype=np.uint8), np.full(size + 20, 2, dtype=np.uint8)
    one[i : i + size] = other[j : j + size] = text
    assert equal(one, i, other, j, size)
    for at in range(size):
        other[j + at] ^= 1 << at % 8
        assert not equal(one, i, other, j, size)
        other[j + at] ^= 1 << at % 8
