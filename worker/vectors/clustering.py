"""Centres of lists: k-means over a sample of a table's vectors.

Source of the method: Lloyd, "Least squares quantization in PCM" (1982). The centres begin as vectors of the sample.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Floats
from worker.vectors import list_blocks
from worker.vectors.pace import Pace
from worker.vectors.similarity import Rows

SAMPLE_PER_LIST = 32
ITERATIONS = 6
PRODUCTS_MAX, COMPONENTS_MAX = 1 << 21, 1 << 20
"""Products of vectors and centres, and components of vectors, in memory at once: 8 and 4 MB."""
MULTIPLIED_BESIDE_SEARCHES = 1 << 24
"""Components to multiply between two yields while there are searches: some half of a millisecond."""
HUGE, TINY, LEAST = 1e15, 1e-15, 1e-37
"""Vectors are scaled before they are multiplied if their largest component is above HUGE or below TINY. Below LEAST
they are not: they have lost too many bits."""


class Centres:
    """Finds the nearest of `centres` float32[lists, dimension] by Euclidean distance.

    It first subtracts the mean of the centres from the vectors and the centres: far from the origin, the products of
    the vectors themselves would differ by less than their rounding. Huge and tiny components are scaled, because a
    float32 cannot represent their squares.
    """

    def __init__(self, centres: Floats) -> None:
        self._origin = centres.mean(axis=0, dtype=np.float64).astype(np.float32)
        centred = centres.astype(np.float64) - self._origin
        longest = float(np.abs(centred).max())
        self._scale = 1 / longest if longest > HUGE or LEAST < longest < TINY else None
        self._centres = (centred if self._scale is None else centred * self._scale).astype(np.float32)
        self._halves = 0.5 * np.einsum("ij,ij->i", self._centres, self._centres)

    def nearest(self, vectors: Floats) -> Rows:
        """The centre that is nearest to each of `vectors` float32[n, dimension], int64[n]."""
        nearest = np.empty(len(vectors), np.int64)
        at_once = max(1, PRODUCTS_MAX // len(self._centres))
        for start in range(0, len(vectors), at_once):
            centred = vectors[start : start + at_once]
            if self._scale is None:
                centred = centred - self._origin
            else:  # the difference of two huge components may overflow in float32
                centred = ((centred.astype(np.float64) - self._origin) * self._scale).astype(np.float32)
            products = centred @ self._centres.T
            products -= self._halves
            nearest[start : start + at_once] = products.argmax(axis=1)
        return nearest


def train(
    table: NDArray[np.floating], rows: Rows, lists: int, pace: Pace, *, is_normal: bool
) -> Generator[None, None, Floats]:
    """Returns `lists` centres, float32[lists, dimension], for `rows` int64[≥ lists] of `table`; yields between slices.

    `is_normal`: the vectors have unit length, and so have the centres.
    """
    random = np.random.default_rng(len(rows))
    sample = np.sort(random.choice(rows, min(len(rows), SAMPLE_PER_LIST * lists), replace=False))
    centres = table[random.choice(sample, lists, replace=False)].astype(np.float32)
    at_once = min(PRODUCTS_MAX // lists, COMPONENTS_MAX // table.shape[1])
    beside_searches = MULTIPLIED_BESIDE_SEARCHES // (lists * table.shape[1])
    for _ in range(ITERATIONS):
        present_centres = Centres(centres)
        sums, counts = np.zeros(centres.shape, np.float64), np.zeros(lists, np.int64)
        for part in pace.slices(len(sample), at_once, beside_searches):
            vectors = table[sample[part]].astype(np.float32, copy=False)
            list_blocks.add_up(vectors, present_centres.nearest(vectors), sums, counts)
            yield
        empty = np.flatnonzero(counts == 0)
        sums[empty] = table[random.choice(sample, len(empty))]
        centres = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        if is_normal:
            lengths = np.sqrt(np.einsum("ij,ij->i", centres, centres))
            centres /= np.where(lengths > 0, lengths, 1)[:, None]
    return centres
