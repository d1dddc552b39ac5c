"""Hash tables with open addressing, for kernels.

`slots` is int64[a power of two]. The upper half of a slot is the upper half of a key; the lower half is the number of
the entry plus one. A free slot is 0. Numbers are at most 2^32 - 2.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="return-value"

from __future__ import annotations

import numpy as np

from shared.kernels import inlined

_SHIFT = 32
_NUMBER = np.int64(0xFFFFFFFF)


@inlined(allocates=False)
def place_of(slots: np.ndarray, key: np.uint64, probe: int) -> int:
    """The index of the slot that the probe number `probe`, counted from 0, of a key looks at."""
    return (np.int64(key) + probe) & (len(slots) - 1)


@inlined(allocates=False)
def entry(key: np.uint64, number: int) -> int:
    """The content of a slot for this key and number."""
    return np.int64(key >> np.uint64(_SHIFT) << np.uint64(_SHIFT)) | (number + 1)


@inlined(allocates=False)
def is_tagged(slot: int, key: np.uint64) -> bool:
    """Whether a used slot may belong to the key."""
    return np.uint64(slot) >> np.uint64(_SHIFT) == key >> np.uint64(_SHIFT)


@inlined(allocates=False)
def number_in(slot: int) -> int:
    """The number in a used slot."""
    return (slot & _NUMBER) - 1
