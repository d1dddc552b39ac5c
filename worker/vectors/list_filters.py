"""Where the rows of the latest filters are in the lists: a search for few rows goes from one to the next, and does not
pass all the others between them.

Lists only grow, and their rows are in ascending order. So what is known of a list remains true of its first rows; those
that come later are looked at one by one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from worker.vectors import list_search
from worker.vectors.row_filter import Bits

PLACED_SHARE = 8
"""A filter that leaves one row of so many at most gets places: its searches pass over many rows."""
GROWTH = 1.0625
"""Places are found anew when the lists have so many times as many rows."""
BYTES_PER_ROW_MAX = 4
"""Of all places, for each row that the lists have room for."""
BYTES_MIN = 1 << 20
"""Of all places, however few rows there are."""
SEEN_MAX = 64
"""Filters that are remembered after their first search: the second one finds their places, in some milliseconds."""


@dataclass(frozen=True, slots=True)
class Places:
    """`known` int64[lists]: of how many rows of each list the places are here. Those of list i are start[i] ≤ n <
    start[i + 1]: `rows` int32 are the rows, `places` int32 their block times BLOCK_ROWS and their place in it. `listed`
    rows were in the lists then."""

    listed: int
    known: NDArray[np.int64]
    start: NDArray[np.int64]
    rows: NDArray[np.int32]
    places: NDArray[np.int32]

    @property
    def memory_bytes(self) -> int:
        return self.known.nbytes + self.start.nbytes + self.rows.nbytes + self.places.nbytes


NOWHERE = Places(0, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32))


class ListFilters:
    """The places of the latest filters in the lists of one index, in which rows never move. Safe to use from many
    threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[ReferenceType[Bits], Places | None]] = OrderedDict()
        """By the identity of the bits, the latest last; without places after the first search."""
        self._lock = Lock()

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            return self._bytes()

    def _bytes(self) -> int:
        return sum(places.memory_bytes for _, places in self._kept.values() if places is not None)

    def places(
        self,
        bits: Bits,
        counts: NDArray[np.int64],
        first: NDArray[np.int32],
        following: NDArray[np.int32],
        rows: NDArray[np.int32],
    ) -> Places:
        """The places of a filter's rows in these lists, as `list_blocks.append` describes them, whose first `counts`
        rows are complete; NOWHERE if they are not worth it."""
        bits = bits.head
        if bits.count * PLACED_SHARE > bits.size:
            return NOWHERE
        with self._lock:
            kept = self._kept.get(id(bits))
            if kept is None or kept[0]() is not bits:
                self._keep(bits, None, rows.size)
                return NOWHERE
            self._kept.move_to_end(id(bits))
        listed = int(counts.sum())
        if kept[1] is not None and listed <= GROWTH * kept[1].listed:
            return kept[1]
        known, start = np.zeros_like(counts), np.zeros(len(counts) + 1, np.int64)
        placed, places = np.empty(bits.count, np.int32), np.empty(bits.count, np.int32)
        total = list_search.place(
            counts.copy(), first, following, rows, bits.packed, bits.size, known, start, placed, places
        )
        found = Places(listed, known, start, placed[:total].copy(), places[:total].copy())
        with self._lock:
            self._keep(bits, found, rows.size)
        return found

    def _keep(self, bits: Bits, places: Places | None, rows: int) -> None:
        """Keep it as the latest one, without those whose filter is no longer kept elsewhere."""
        self._kept = OrderedDict((key, kept) for key, kept in self._kept.items() if kept[0]() not in (None, bits))
        self._kept[id(bits)] = ref(bits), places
        while len(self._kept) > SEEN_MAX or self._bytes() > max(BYTES_PER_ROW_MAX * rows, BYTES_MIN):
            self._kept.popitem(last=False)
