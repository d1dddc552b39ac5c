"""Which rows of a table a search may find. A filter's flags are bits, since a search looks at some of them at random
places: those of half a million rows fit into a processor's cache, and bytes would not."""

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
    are set. `extends`: those of the first rows, that these were made from."""

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
        whole = self.size // 8
        rest = Bits.of(np.concatenate([self.mask(8 * whole, self.size), mask]))
        packed = np.concatenate([self.packed[:whole], rest.packed])
        packed.flags.writeable = False
        return Bits(packed, self.size + len(mask), self.count + int(np.count_nonzero(mask)), self.head)

    @property
    def memory_bytes(self) -> int:
        """With those that were extended."""
        return self.packed.nbytes + (0 if self.extends is None else self.extends.packed.nbytes)

    @property
    def head(self) -> Bits:
        """Those that were extended, which are kept for a filter's next search, or these."""
        return self if self.extends is None else self.extends

    def count_of_first(self, size: int) -> int:
        """How many of the first `size` flags are set."""
        if size == self.size:
            return self.count
        return self.count - int(np.count_nonzero(self.mask(size, self.size)))


@dataclass(frozen=True, slots=True)
class Allowed:
    """The rows whose flag is set, or all if there are no `bits`, without those that `alive`, if there is such, says are
    dead: bool, with an entry for each row."""

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
        """Which of `rows`, an array of any shape, are allowed, in an array of that shape; for −1, anything."""
        mask = np.ones(rows.shape, np.bool_)
        if self.bits is not None:
            mask &= (self.bits.packed[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).view(np.bool_)
        if self.alive is not None:
            mask &= self.alive[rows]
        return mask
