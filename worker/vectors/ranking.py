"""Selects the best of each query's candidates, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.messages.vectors import Floats
from worker.vectors.id_table import IdTable
from worker.vectors.similarity import Rows

Ids = IdTable | Sequence[bytes]

_VALUES = types.Array(types.float32, 1, "C", readonly=True)
_TABLE = types.Array(types.float32, 2, "C", readonly=True)
_ROWS = types.Array(types.int64, 2, "C", readonly=True)


@dataclass(slots=True)
class Ranking:
    """The best rows of several queries, one query after the other, best first: `counts` int32[q] rows of each query,
    `rows` int64[n], and their similarities `near` float32[n]."""

    counts: NDArray[np.int32]
    rows: Rows
    near: Floats

    def parts(self) -> list[tuple[Rows, Floats]]:
        """(rows, near) of each query."""
        ends = np.cumsum(self.counts).tolist()
        starts = [0, *ends[:-1]]
        return [(self.rows[a:b], self.near[a:b]) for a, b in zip(starts, ends, strict=True)]


@kernel(types.void(_VALUES, types.int64[::1], types.int64, types.int64))
def _sink(values, heap, at, size):  # type: ignore[no-untyped-def]
    """Restore the order of a heap whose entry at `at` may be too great. The heap contains positions in `values`, those
    of lesser values first."""
    place = heap[at]
    value = values[place]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and values[heap[child + 1]] < values[heap[child]]:
            child += 1
        if values[heap[child]] >= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = place


@kernel(
    types.int64(_TABLE, _ROWS, types.int64, types.int32[::1], types.int64[::1], types.float32[::1], types.boolean[::1])
)
def _best(near, index, k, counts, rows, out, tied):  # type: ignore[no-untyped-def]
    """Write the `k` greatest values of each row of `near` (−inf: no candidate) to `out` and their rows to `rows`, one
    query after the other, and their numbers to `counts`; returns the total number.

    `tied[q]` becomes true if the result of query q contains equal values, or a value equal to one that is left out.
    """
    width = min(k + 1, near.shape[1])
    heap = np.empty(width, dtype=np.int64)
    at = 0
    for q in range(near.shape[0]):
        values = near[q]
        size = 0
        for c in range(values.shape[0]):
            if values[c] == -np.inf:
                continue
            if size < width:
                heap[size] = c
                size += 1
                if size == width:
                    for parent in range(size // 2 - 1, -1, -1):
                        _sink(values, heap, parent, size)
            elif values[c] > values[heap[0]]:
                heap[0] = c
                _sink(values, heap, 0, size)
        if size < width:
            for parent in range(size // 2 - 1, -1, -1):
                _sink(values, heap, parent, size)
        count = min(k, size)
        last = np.float32(np.nan)
        while size > 0:
            place = heap[0]
            size -= 1
            heap[0] = heap[size]
            _sink(values, heap, 0, size)
            tied[q] |= values[place] == last
            last = values[place]
            if size < count:
                rows[at + size] = index[q, place]
                out[at + size] = last
        counts[q] = count
        at += count
    return at


def best(near: Floats, index: Rows, k: int, ids: Ids) -> Ranking:
    """The `k` nearest of each query's candidates, equally near ones by id.

    `near` float32[q, c] are the similarities of the rows `index` int64[q, c], `ids` the ids of all rows of the table.
    """
    queries = len(near)
    rows_max = queries * min(k, near.shape[1])
    ranking = Ranking(np.empty(queries, np.int32), np.empty(rows_max, np.int64), np.empty(rows_max, np.float32))
    tied = np.zeros(queries, dtype=np.bool_)
    total = _best(near, index, k, ranking.counts, ranking.rows, ranking.near, tied)
    if total < rows_max:
        ranking.rows, ranking.near = ranking.rows[:total], ranking.near[:total]
    if tied.any():
        for place, (rows, values) in enumerate(ranking.parts()):
            if tied[place]:
                rows[:], values[:] = _by_id(near[place], index[place], len(rows), ids)
    return ranking


def _by_id(near: Floats, index: Rows, count: int, ids: Ids) -> tuple[Rows, Floats]:
    """The best `count` of one query's candidates, equally near ones by id: their rows int64[count] and similarities
    float32[count]."""
    least = np.partition(near, len(near) - count)[len(near) - count]
    places = np.flatnonzero(near >= least)
    keys = zip((-near[places]).tolist(), [ids[row] for row in index[places].tolist()], places.tolist(), strict=True)
    order = [place for _, _, place in sorted(keys)][:count]
    return index[order], near[order]
