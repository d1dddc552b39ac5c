"""Exact search over rows of a table: a matrix product finds candidates, which `similarity` then puts in order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.messages.vectors import Floats
from worker.vectors.similarity import NOTHING, Rows, inner_product, lengths

_TABLE = types.Array(types.float32, 2, "C", readonly=True)
_ROWS = types.Array(types.int64, 1, "C", readonly=True)

BLOCK_CELLS_MAX = 4 << 20
"""Similarities in memory at once: 16 MB."""
BLOCK_ROWS_MIN = 1024
TIE_SLACK = 16
"""Candidates that are kept beyond `k`; more are kept if the last of these may still be one of the `k` nearest."""
SPAN_MAX = 2
"""Up to this many rows are compared for each wanted row, because copying a row takes longer than comparing it."""
COPIED_BYTES_MAX = 1 << 20
"""Of scattered rows, at once: they stay in the processor's cache until they have been compared."""
SCATTERED_QUERIES_MAX = 4
"""For so few queries, scattered rows are compared where they lie: copying them for a product of matrices takes five
times as long."""
PRODUCT_ERROR = 4e-6
"""An upper bound of the relative error of a float32 product of unit vectors of PRODUCT_COMPONENTS components, summed in
blocks. With more it grows as they do: where all components are equal, 16,384 had up to 8e-6."""
PRODUCT_COMPONENTS = 4096


def candidates(
    table: NDArray[np.floating],
    norms: Floats,
    rows: Rows,
    queries: Floats,
    k: int,
    metric: str,
    check: Callable[[], None],
    cells_max: int | None = None,
) -> Rows:
    """The `k` nearest of `rows` to each query, and perhaps some more rows: int64[q, c], −1 for none.

    `table` is float32 or float16 [n, dimension], `norms` float32[n] are the lengths of its vectors, `rows` int64[r] are
    ascending, and `queries` float32[q, dimension]. A row is left out only if its product is less than the k-th greatest
    by more than the product's error, so rows that are equally near at the edge are all kept. `check` is called between
    blocks of about `cells_max` products (None: BLOCK_CELLS_MAX), and raises to end the search early.
    """
    cells_max = BLOCK_CELLS_MAX if cells_max is None else cells_max
    block_rows = max(BLOCK_ROWS_MIN, cells_max // max(1, len(queries)))
    kept_rows = np.empty((len(queries), 0), dtype=np.int64)
    values = np.empty((len(queries), 0), dtype=np.float32)
    asked_lengths = lengths(queries)
    relative_error = PRODUCT_ERROR * max(1.0, queries.shape[1] / PRODUCT_COMPONENTS)
    # Where float32 has no such product, `_keep` keeps all rows.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(rows), block_rows):
            check()
            block = rows[start : start + block_rows]
            near = _products(table, norms, block, queries, metric)
            longest = float(norms[block].max())
            error = relative_error * (asked_lengths * longest + (longest * longest if metric == "l2" else 0.0))
            kept_rows = np.concatenate([kept_rows, np.broadcast_to(block, near.shape)], axis=1)
            values = np.concatenate([values, near], axis=1)
            kept_rows, values = _keep(kept_rows, values, k, error)
    return kept_rows


@kernel(types.void(_TABLE, _ROWS, _TABLE, types.float32[:, ::1]), allocates=False)
def _scattered(table, rows, queries, out):  # type: ignore[no-untyped-def]
    """The products of each query and `rows` of the table to `out` float32[q, r]."""
    for i in range(rows.shape[0]):
        vector = table[rows[i]]
        for q in range(queries.shape[0]):
            out[q, i] = inner_product(vector, queries[q])


def _products(table: NDArray[np.floating], norms: Floats, rows: Rows, queries: Floats, metric: str) -> Floats:
    """float32[q, r], greater for nearer rows: inner products; under l2, minus half the squared length of the row."""
    first, end = int(rows[0]), int(rows[-1]) + 1
    if end - first > SPAN_MAX * len(rows):
        near = np.empty((len(queries), len(rows)), dtype=np.float32)
        if table.dtype == np.float32 and len(queries) <= SCATTERED_QUERIES_MAX:
            _scattered(table, rows, queries, near)
        else:
            at_once = max(1, COPIED_BYTES_MAX // (table.itemsize * table.shape[1]))
            for start in range(0, len(rows), at_once):
                copied = table[rows[start : start + at_once]].astype(np.float32, copy=False)
                near[:, start : start + at_once] = queries @ copied.T
    else:
        near = queries @ table[first:end].astype(np.float32, copy=False).T
        if len(rows) < end - first:
            near = near[:, rows - first]
    if metric == "l2":
        near -= 0.5 * np.square(norms[rows])
    return near


def _keep(rows: Rows, values: Floats, k: int, error: NDArray[np.float64]) -> tuple[Rows, Floats]:
    """`rows` and `values` without the columns that cannot belong to the `k` best of any query. `error` float64[q]: the
    largest error of the values."""
    width = values.shape[1]
    wanted = k + TIE_SLACK
    if width <= wanted or not np.isfinite(error).all():  # products that float32 does not have tell nothing
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
    is_candidate = np.take_along_axis(inside, order, axis=1)
    return (
        np.where(is_candidate, np.take_along_axis(rows, order, axis=1), -1),
        np.where(is_candidate, np.take_along_axis(values, order, axis=1), NOTHING),
    )
