"""The principal axes of a sample of vectors: a worker's share of the calculation, in blocks of rows.

The axes are not calculated from a covariance matrix, which would have 2 GiB at 16,384 components. They are calculated
from products of the covariance with a few directions at a time, and these products need only the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Floats
from worker.vectors.selection import Selection
from worker.vectors.similarity import Rows
from worker.vectors.table import TableView

DRAWN_AT_ONCE = 1 << 20
"""Ids that are hashed between two checks: some 20 ms."""
BLOCK_BYTES = 1 << 20
"""Bytes of the rows that are copied at once: they stay in the processor's cache while they are multiplied."""

Check = Callable[[], None]
Sums = NDArray[np.float64]


def drawn(selection: Selection, limit: int) -> tuple[TableView, Rows, NDArray[np.uint64], int]:
    """(the view, the selected rows whose ids have the `limit` lowest draws, their draws in ascending order, how many
    rows are selected)."""
    view = selection.collection.view()
    rows = np.flatnonzero(selection.mask(view))
    best, best_draws = rows[:0], np.zeros(0, np.uint64)
    for start in range(0, len(rows), DRAWN_AT_ONCE):
        selection.check()
        some = rows[start : start + DRAWN_AT_ONCE]
        best, best_draws = np.append(best, some), np.append(best_draws, view.ids.draws(some))
        if len(best) > limit:
            lowest = np.argpartition(best_draws, limit - 1)[:limit]
            best, best_draws = best[lowest], best_draws[lowest]
    order = np.argsort(best_draws, kind="stable")
    return view, best[order], best_draws[order], len(rows)


def _blocks(view: TableView, rows: Rows, check: Check) -> Iterator[Floats]:
    """Copies of the rows as they are compared, float32[n, dimension], some at a time."""
    at_once = max(1, BLOCK_BYTES // (4 * view.vectors.shape[1]))
    for start in range(0, len(rows), at_once):
        check()
        yield view.vectors[rows[start : start + at_once]].astype(np.float32, copy=False)


def moments(view: TableView, rows: Rows, check: Check) -> tuple[Sums, float]:
    """(the sum of the rows, float64[dimension], the largest absolute value of a component)."""
    total, largest = np.zeros(view.vectors.shape[1]), 0.0
    for block in _blocks(view, rows, check):
        total += block.sum(axis=0, dtype=np.float64)
        largest = max(largest, float(np.abs(block).max()))
    return total, largest


def _centred(view: TableView, rows: Rows, scale: float, mean: Floats, check: Check) -> Iterator[Floats]:
    for block in _blocks(view, rows, check):
        block /= np.float32(scale)
        block -= mean
        yield block


def spread(view: TableView, rows: Rows, scale: float, mean: Floats, axes: Floats, check: Check) -> Sums:
    """The covariance of the rows, times their number, applied to each axis: float64[a, dimension]. `mean`
    float32[dimension] is that of the rows divided by `scale`, `axes` float32[a, dimension]."""
    products = np.zeros(axes.shape)
    for block in _centred(view, rows, scale, mean, check):
        products += (axes @ block.T) @ block
    return products


def coordinates(
    view: TableView, rows: Rows, scale: float, mean: Floats, axes: Floats, check: Check
) -> tuple[Floats, float]:
    """(the rows' places on the axes, float32[n, a]; the sum of their squared lengths). Both are those of the rows
    divided by `scale`, less `mean`."""
    places, squares = [np.zeros((0, len(axes)), np.float32)], 0.0
    for block in _centred(view, rows, scale, mean, check):
        places.append(block @ axes.T)
        squares += float(np.einsum("ij,ij->", block, block))
    return np.concatenate(places), squares
