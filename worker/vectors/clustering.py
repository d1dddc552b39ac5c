"""Centres of lists: k-means over a sample of a table's vectors.

Source of the method: Lloyd, "Least squares quantization in PCM" (1982). The centres begin as vectors of the sample.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Floats
from worker.vectors import list_kernels
from worker.vectors.similarity import Rows

SAMPLE_PER_LIST = 32
ITERATIONS = 6
PRODUCTS_MAX, COMPONENTS_MAX = 1 << 21, 1 << 20
"""Products of vectors and centres, and components of vectors, in memory at once: 8 and 4 MB."""


def nearest(vectors: Floats, centres: Floats, halves: Floats) -> Rows:
    """The centre that is nearest to each of `vectors` float32[n, dimension] by Euclidean distance, int64[n]. `halves`:
    `half_squares(centres)`."""
    found = np.empty(len(vectors), np.int64)
    at_once = max(1, PRODUCTS_MAX // len(centres))
    for start in range(0, len(vectors), at_once):
        products = vectors[start : start + at_once] @ centres.T
        products -= halves
        found[start : start + at_once] = products.argmax(axis=1)
    return found


def half_squares(centres: Floats) -> Floats:
    """Half of the squared length of each centre, float32[lists]."""
    halves: Floats = 0.5 * np.einsum("ij,ij->i", centres, centres)
    return halves


def train(table: NDArray[np.floating], rows: Rows, lists: int, *, is_normal: bool) -> Generator[None, None, Floats]:
    """Returns `lists` centres, float32[lists, dimension], for `rows` int64[≥ lists] of `table`; yields between slices.

    `is_normal`: the vectors have unit length, and so have the centres.
    """
    random = np.random.default_rng(len(rows))
    chosen = np.sort(random.choice(rows, min(len(rows), SAMPLE_PER_LIST * lists), replace=False))
    centres = table[random.choice(chosen, lists, replace=False)].astype(np.float32)
    at_once = max(1, min(PRODUCTS_MAX // lists, COMPONENTS_MAX // table.shape[1]))
    for _ in range(ITERATIONS):
        halves = half_squares(centres)
        sums, counts = np.zeros(centres.shape, np.float64), np.zeros(lists, np.int64)
        for start in range(0, len(chosen), at_once):
            vectors = table[chosen[start : start + at_once]].astype(np.float32, copy=False)
            list_kernels.add_up(vectors, nearest(vectors, centres, halves), sums, counts)
            yield
        empty = np.flatnonzero(counts == 0)
        sums[empty] = table[random.choice(chosen, len(empty))]
        centres = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        if is_normal:
            lengths = np.sqrt(np.einsum("ij,ij->i", centres, centres))
            centres /= np.where(lengths > 0, lengths, 1)[:, None]
    return centres
