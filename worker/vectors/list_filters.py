"""Where the rows of the latest filters are in the lists, so that a search for few rows goes from one of them to the
next without reading the others in between.

Lists only grow, and their rows are in ascending order. So the places that were found in a list stay valid for its first
rows; the rows that came later are tested one by one.
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
"""The places of a filter are found anew when the lists have grown by this factor."""
BYTES_PER_ROW_MAX = 4
"""Limit on the bytes of all places, for each row that the lists have room for."""
BYTES_MIN = 1 << 20
"""The least such limit, however few rows there are."""
SEEN_MAX = 64
"""Filters that are remembered after their first search: the second search finds their places, in some milliseconds."""


@dataclass(frozen=True, slots=True)
class Places:
    """`known` int64[lists]: how many rows of each list, from its first on, the places cover. List i has the places
    start[i] ≤ n < start[i + 1]: `rows` int32 are the rows, `places` int32 their block times BLOCK_ROWS plus their place
    in it. `listed`: how many rows the lists had when the places were found."""

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
        self._latest: OrderedDict[int, tuple[ReferenceType[Bits], Places | None]] = OrderedDict()
        """By the identity of the bits, the latest last; without places after the first search."""
        self._lock = Lock()

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            return self._bytes()

    def _bytes(self) -> int:
        return sum(places.memory_bytes for _, places in self._latest.values() if places is not None)

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
            reference, earlier = self._latest.get(id(bits), (None, None))
            if reference is None or reference() is not bits:
                self._keep(bits, None, rows.size)
                return NOWHERE
            self._latest.move_to_end(id(bits))
        listed = int(counts.sum())
        if earlier is not None and listed <= GROWTH * earlier.listed:
            return earlier
        known, start = np.zeros_like(counts), np.zeros(len(counts) + 1, np.int64)
        placed, places = np.empty(bits.count, np.int32), np.empty(bits.count, np.int32)
        total = list_search.place(
            counts.copy(), first, following, rows, bits.packed, bits.size, known, start, placed, places
        )
        complete = Places(listed, known, start, placed[:total].copy(), places[:total].copy())
        with self._lock:
            self._keep(bits, complete, rows.size)
        return complete

    def _keep(self, bits: Bits, places: Places | None, rows: int) -> None:
        """Keep this filter as the latest one, and drop those whose bits nothing else holds any more."""
        self._latest = OrderedDict((key, pair) for key, pair in self._latest.items() if pair[0]() not in (None, bits))
        self._latest[id(bits)] = ref(bits), places
        while len(self._latest) > SEEN_MAX or self._bytes() > max(BYTES_PER_ROW_MAX * rows, BYTES_MIN):
            self._latest.popitem(last=False)
