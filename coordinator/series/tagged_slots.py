"""Hash tables with open addressing, for kernels: `slots` is int64[a power of two], and each slot has a number, counted
from 1, below the upper half of a key; 0 is free. Numbers are at most 2^32 - 2."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="return-value"

from __future__ import annotations

import numpy as np

from shared.kernels import inlined

_SHIFT = 32
_NUMBER = np.int64(0xFFFFFFFF)


@inlined(allocates=False)
def place_of(slots: np.ndarray, key: np.uint64, probe: int) -> int:
    """Where the slot is that is looked at for a key as number `probe`, from 0 on."""
    return (np.int64(key) + probe) & (len(slots) - 1)


@inlined(allocates=False)
def entry(key: np.uint64, number: int) -> int:
    """What the slot of a key contains that has this number."""
    return np.int64(key >> np.uint64(_SHIFT) << np.uint64(_SHIFT)) | (number + 1)


@inlined(allocates=False)
def is_tagged(slot: int, key: np.uint64) -> bool:
    """Whether a slot that is not free may be that of the key."""
    return np.uint64(slot) >> np.uint64(_SHIFT) == key >> np.uint64(_SHIFT)


@inlined(allocates=False)
def number_in(slot: int) -> int:
    """The number in a slot that is not free."""
    return (slot & _NUMBER) - 1
