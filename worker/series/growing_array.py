"""An array that grows at its end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shared.process.allocator import HUGE_BYTES_MIN, scratch

GROWTH = 2
CAPACITY_MIN = 1024
KERNEL_BYTES_MIN = 1 << 20
"""Arrays of at least this size are mapped by the kernel, which gets their memory back when they have been outgrown."""
REFILLED_GROWTH = 4
"""Growth of arrays that each new head fills again. With GROWTH, each sample would be copied once and the kernel would
supply twice the memory, which takes as long as appending the samples."""
REFILLED_BYTES = 128 << 20
"""The size of such an array once it is in huge pages: a full head does not copy its samples again. Pages that have not
been written to take no memory."""


class GrowingArray:
    """Rows of one type whose capacity grows geometrically: `data` is any[capacity, …], and the first `size` rows of it
    are used.

    Growing copies the rows to a new array and leaves the old one unchanged, so a reader may continue to use the
    `rows()` that it has. Pages after row `size` have never been touched and take no memory.
    """

    __slots__ = ("_is_refilled", "data", "size")

    def __init__(
        self,
        dtype: DTypeLike,
        width: tuple[int, ...] = (),
        *,
        capacity: int = CAPACITY_MIN,
        is_refilled: bool = False,
    ) -> None:
        """`is_refilled`: arrays like this one are filled and dropped again and again."""
        self.data: NDArray[Any] = np.empty((capacity, *width), dtype=dtype)
        self.size = 0
        self._is_refilled = is_refilled

    def __len__(self) -> int:
        return self.size

    @property
    def size_bytes(self) -> int:
        """Memory of the rows in use; the others take none."""
        return self.size * self.data.strides[0]

    def reserve(self, more: int) -> None:
        """Make room for `more` rows after the last one."""
        need = self.size + more
        if need > len(self.data):
            row_bytes = self.data.strides[0]
            capacity = max(need, len(self.data) * (REFILLED_GROWTH if self._is_refilled else GROWTH))
            if self._is_refilled and capacity * row_bytes >= HUGE_BYTES_MIN:
                capacity = max(capacity, REFILLED_BYTES // row_bytes)
            grown = scratch((capacity, *self.data.shape[1:]), self.data.dtype, KERNEL_BYTES_MIN)
            grown[: self.size] = self.data[: self.size]
            self.data = grown

    def room(self, more: int) -> NDArray[Any]:
        """`more` new rows, for the caller to fill."""
        self.reserve(more)
        self.size += more
        return self.data[self.size - more : self.size]

    def extend(self, rows: NDArray[Any]) -> None:
        """Append these rows: all of them, or none if they do not fit."""
        self.reserve(len(rows))
        self.data[self.size : self.size + len(rows)] = rows
        self.size += len(rows)

    def rows(self) -> NDArray[Any]:
        """The current rows; later growth does not change them."""
        return self.data[: self.size]
