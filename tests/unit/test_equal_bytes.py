"""Label bytes are compared a few words at a time, and every byte of them counts."""

from __future__ import annotations

import numpy as np
import pytest

from shared.xxh64 import equal_bytes


@pytest.mark.parametrize("size", [*range(72), 153, 300])
@pytest.mark.parametrize(("i", "j"), [(0, 0), (3, 10)])
def test_a_difference_in_any_byte_is_seen_and_none_beside_them(size: int, i: int, j: int) -> None:
    text = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    one, other = np.full(size + 20, 1, dtype=np.uint8), np.full(size + 20, 2, dtype=np.uint8)
    one[i : i + size] = other[j : j + size] = text
    assert equal_bytes(one, i, other, j, size)
    for at in range(size):
        other[j + at] ^= 1 << at % 8
        assert not equal_bytes(one, i, other, j, size)
        other[j + at] ^= 1 << at % 8
