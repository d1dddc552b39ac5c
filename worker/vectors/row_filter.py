"""Which rows of a table a search may find. A filter's flags are bits, because a search reads some of them at random
places: the bits of half a million rows fit into a processor's cache, and bytes would not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.vectors.attribute_strings import Mask
from worker.vectors.similarity import Rows

PackedBits = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Bits:
    """`size` flags, for reading only: uint8[⌈size / 8⌉], the first flag of each byte in its lowest bit. `count` of them
    are set. `extends`: the flags of the first rows that these were made from."""

    packed: PackedBits
    size: int
    count: int
    extends: Bits | None = None

    @classmethod
    def of(cls, mask: Mask) -> Bits:
        packed = np.packbits(mask, bitorder="little")
        packed.flags.writeable = False
        return cls(packed, len(mask), int(np.count_nonzero(mask)))

    def mask(self, begin: int, end: int) -> Mask:
        """The flags begin ≤ i < end ≤ size, bool[end − begin]."""
        first = begin // 8
        flags = np.unpackbits(self.packed[first : -(-end // 8)], count=max(0, end - 8 * first), bitorder="little")
        return flags[begin - 8 * first :].view(np.bool_)

    def extended(self, mask: Mask) -> Bits:
        """These flags, and those of `mask` behind them."""
        if not len(mask):
            return self
        full_bytes = self.size // 8
        tail = Bits.of(np.concatenate([self.mask(8 * full_bytes, self.size), mask]))
        packed = np.concatenate([self.packed[:full_bytes], tail.packed])
        packed.flags.writeable = False
        return Bits(packed, self.size + len(mask), self.count + int(np.count_nonzero(mask)), self.head)

    @property
    def memory_bytes(self) -> int:
        """Bytes of these flags and of those that they extend."""
        return self.packed.nbytes + (0 if self.extends is None else self.extends.packed.nbytes)

    @property
    def head(self) -> Bits:
        """The flags that these extend, which are kept for a filter's next search; these flags if they extend none."""
        return self if self.extends is None else self.extends

    def count_of_first(self, size: int) -> int:
        """How many of the first `size` flags are set."""
        if size == self.size:
            return self.count
        return self.count - int(np.count_nonzero(self.mask(size, self.size)))


@dataclass(frozen=True, slots=True)
class Allowed:
    """The rows whose flag is set in `bits`, or all rows if that is None, without the dead ones. `alive`: bool, with an
    entry for each row; None if no row is dead."""

    bits: Bits | None = None
    alive: Mask | None = None

    @property
    def is_all(self) -> bool:
        """Whether all rows are allowed."""
        return self.bits is None and self.alive is None

    def mask(self, begin: int, end: int) -> Mask | None:
        """Which of the rows begin ≤ i < end are allowed, bool[end − begin]; None if all rows of the table are."""
        mask = None if self.bits is None else self.bits.mask(begin, end)
        if self.alive is None:
            return mask
        alive = self.alive[begin:end]
        return alive if mask is None else mask & alive

    def of(self, rows: Rows) -> Mask:
        """Which of `rows`, an array of any shape, are allowed, in an array of that shape; undefined for −1."""
        mask = np.ones(rows.shape, np.bool_)
        if self.bits is not None:
            mask &= (self.bits.packed[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).view(np.bool_)
        if self.alive is not None:
            mask &= self.alive[rows]
        return mask
