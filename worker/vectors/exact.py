"""Exact search over rows of the table: a matrix product finds the candidates, `similarity` orders them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Floats
from worker.vectors.similarity import NOTHING, Rows

BLOCK_CELLS_MAX = 4 << 20  # similarities held at once: 16 MB
TIE_SLACK = 16
SPAN_MAX = 2  # copying a row takes longer than comparing it: so many are compared for each that is wanted
# Relative error of a float32 product of unit vectors of 16,384 components, summed in blocks, with room to spare.
PRODUCT_ERROR = 4e-6


def candidates(
    table: NDArray[np.floating],
    norms: Floats,
    rows: Rows,
    queries: Floats,
    k: int,
    metric: str,
    check: Callable[[], None],
) -> Rows:
    """Rows that hold the `k` nearest of `rows` to each query, and perhaps some more: int64[q, c], −1 for none.

    `norms` float32[rows of the table] are the vectors' lengths. A candidate is left out only if its product falls
    short of the k-th by more than the product's error, so vectors equally near at the edge are all kept. `check` is
    called between blocks, and raises when the search is to be given up.
    """
    block_rows = max(1024, BLOCK_CELLS_MAX // max(1, len(queries)))
    kept_rows = np.empty((len(queries), 0), dtype=np.int64)
    values = np.empty((len(queries), 0), dtype=np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", queries, queries))
    for start in range(0, len(rows), block_rows):
        check()
        block = rows[start : start + block_rows]
        near = _products(table, norms, block, queries, metric)
        longest = float(norms[block].max())
        error = PRODUCT_ERROR * (lengths * longest + (longest * longest if metric == "l2" else 0.0))
        kept_rows = np.concatenate([kept_rows, np.broadcast_to(block, near.shape)], axis=1)
        values = np.concatenate([values, near], axis=1)
        kept_rows, values = _keep(kept_rows, values, k, error)
    return kept_rows


def _products(table: NDArray[np.floating], norms: Floats, rows: Rows, queries: Floats, metric: str) -> Floats:
    """float32[q, n], higher the nearer: inner products, less half the squared length under l2."""
    first, end = int(rows[0]), int(rows[-1]) + 1
    if end - first > SPAN_MAX * len(rows):
        near = queries @ table[rows].astype(np.float32, copy=False).T
    else:
        near = queries @ table[first:end].astype(np.float32, copy=False).T
        if len(rows) < end - first:
            near = near[:, rows - first]
    if metric == "l2":
        near -= 0.5 * np.square(norms[rows])
    return near


def _keep(rows: Rows, values: Floats, k: int, error: NDArray[np.float64]) -> tuple[Rows, Floats]:
    """The columns that may belong to the k best of each row."""
    width = values.shape[1]
    wanted = k + TIE_SLACK
    if width <= wanted:
        return rows, values
    part = np.argpartition(-values, wanted - 1, axis=1)[:, :wanted]
    best = np.take_along_axis(values, part, axis=1)
    kth = -np.partition(-best, k - 1, axis=1)[:, k - 1]
    floor = kth - 2 * error
    if not (best.min(axis=1) >= floor).any():
        return np.take_along_axis(rows, part, axis=1), best
    inside = values >= floor[:, None]
    widest = int(inside.sum(axis=1).max())
    order = np.argsort(~inside, axis=1, kind="stable")[:, :widest]
    kept = np.take_along_axis(inside, order, axis=1)
    return (
        np.where(kept, np.take_along_axis(rows, order, axis=1), -1),
        np.where(kept, np.take_along_axis(values, order, axis=1), NOTHING),
    )
