"""The exact similarity of two vectors, which determines the order of an answer and is shown as the score.

A similarity is greater for nearer vectors: the cosine, the inner product, or minus the Euclidean distance.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, kernel, types
from shared.messages.vectors import Floats

Rows = NDArray[np.int64]
"""Numbers of rows of a table."""

_TABLE = types.Array(types.float32, 2, "C", readonly=True)
_ROWS = types.Array(types.int64, 2, "C", readonly=True)

NOTHING = np.float32(-np.inf)
"""The similarity where there is no candidate."""

_MOST = float(np.finfo(np.float32).max)
"""Similarities beyond it are shown as this: −inf is no candidate."""
COSINE, DOT, L2 = 0, 1, 2
METRICS = {"cosine": COSINE, "dot": DOT, "l2": L2}
"""The metrics as kernels know them."""


@kernel(types.void(types.float32[:, ::1]), first=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def _normalize(vectors):  # type: ignore[no-untyped-def]
    """Scale each row of `vectors` float32[n, dimension] to length 1, in place."""
    for i in range(vectors.shape[0]):
        vector = vectors[i]
        longest = np.float32(0)
        for d in range(vector.shape[0]):
            longest = max(longest, abs(vector[d]))
        # Scaled first, so that the square of a huge component does not overflow and that of a tiny one does not vanish.
        wide = np.float64(longest)
        total = 0.0
        for d in range(vector.shape[0]):
            scaled = np.float64(vector[d]) / wide
            total += scaled * scaled
        length = math.sqrt(total)
        for d in range(vector.shape[0]):
            vector[d] = np.float64(vector[d]) / wide / length


def prepared(vectors: Floats, metric: str) -> Floats:
    """A copy of the vectors as they are compared, float32[n, dimension]: of length 1 under cosine, else as given."""
    copies = np.array(vectors, dtype=np.float32, order="C")
    if metric == "cosine":
        _normalize(copies)
    return copies


def lengths(vectors: Floats) -> Floats:
    """Of vectors float32[n, dimension], summed in double precision: float32[n]. One that float32 does not have is
    infinite."""
    with np.errstate(over="ignore"):
        return np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)).astype(np.float32)


@inlined(allocates=False, fastmath={"reassoc", "contract"})
def inner_product(a, b):  # type: ignore[no-untyped-def]
    """Of two vectors float32[dimension], summed in double precision."""
    total = 0.0
    for d in range(a.shape[0]):
        total += np.float64(a[d]) * np.float64(b[d])
    return total


@kernel(types.void(_TABLE, _ROWS, _TABLE, types.int64, types.float32[:, ::1]), fastmath={"reassoc", "contract"})
def _similarities(table, index, queries, metric, out):  # type: ignore[no-untyped-def]
    """See `similarities`; the result is written to `out` float32[q, c], −inf where `index` is negative."""
    for q in range(index.shape[0]):
        query = queries[q]
        for c in range(index.shape[1]):
            row = index[q, c]
            if row < 0:
                out[q, c] = -np.inf
                continue
            vector = table[row]
            total = 0.0
            if metric == L2:
                for d in range(query.shape[0]):
                    difference = np.float64(vector[d]) - np.float64(query[d])
                    total += difference * difference
                out[q, c] = -min(_MOST, math.sqrt(total))
            else:
                for d in range(query.shape[0]):
                    total += np.float64(vector[d]) * np.float64(query[d])
                most = 1.0 if metric == COSINE else _MOST
                out[q, c] = min(most, max(-most, total))


def similarities(table: NDArray[np.floating], index: Rows, queries: Floats, metric: str) -> Floats:
    """The similarity of each query to its own candidates: `index` int64[q, c] are rows of `table`, negative for none;
    `queries` float32[q, dimension] are as `prepared`.

    Returns float32[q, c], −inf for no candidate. Sums are computed in double precision and in one order for every pair,
    so equal vectors have equal similarities in all shards.
    """
    if table.dtype != np.float32:
        flat = table[np.maximum(index, 0).ravel()].astype(np.float32)
        table = flat
        index = np.where(index >= 0, np.arange(index.size, dtype=np.int64).reshape(index.shape), -1)
    out = np.empty(index.shape, dtype=np.float32)
    _similarities(table, index, queries, METRICS[metric], out)
    return out
