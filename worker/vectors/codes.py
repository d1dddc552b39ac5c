"""Codes of the rows that are not in the graph yet: their vectors with a byte for each component.

A search compares the query with all these rows. Of thousands of them it needs a few, and the codes tell which: they are
a quarter of the size of float32 components, and how far a code may be from its vector is known. So the similarity of a
row has bounds, and a row is left out only if its upper bound is below the lower bounds of k others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, kernel, types
from shared.messages.vectors import Floats
from worker.vectors.attribute_strings import Mask
from worker.vectors.similarity import Rows

CODE_MAX = 127
QUERY_MAX = 8191
"""Components of a query are rounded to integers of at most this size, which is far finer than the codes of rows."""
PRODUCT_MAX = 2**31 - 1
"""A 32-bit integer must hold the sum of the products of any code and query."""
CODES_BYTES_MAX = 16 << 20
"""Of a table's codes: 43,690 rows at 384 components. With more pending rows, the older ones are compared without."""
CAPACITY_MIN = 256
BOUNDS = 3
"""Numbers beside the code of a row: see `_encode`."""
ROUNDING = 4e-6
"""Of similarities, which are rounded to float32 in an answer: rows that become equal there are all kept."""
LEAST, MOST = 1.2e-38, 3.4e38
"""Of similarities: smaller ones are 0 in an answer, and greater ones the greatest that float32 has."""

_CODES = types.Array(types.int8, 2, "C", readonly=True)
_BOUNDS = types.Array(types.float64, 2, "C", readonly=True)
_QUERY = types.Array(types.int16, 1, "C", readonly=True)
_MASK = types.Array(types.boolean, 1, "C", readonly=True)


@kernel(
    types.void(
        types.Array(types.float32, 2, "C", readonly=True), types.int8[:, ::1], types.float64[:, ::1], types.int64
    ),
    fastmath={"reassoc", "contract"},
    error_model="numpy",
)
def _encode(vectors, codes, bounds, first):  # type: ignore[no-untyped-def]
    """Write the codes of `vectors` float32[n, dimension] to codes[first:], and to bounds[first:] (step, the distance of
    the code from the vector, the vector's length)."""
    for i in range(vectors.shape[0]):
        vector, code = vectors[i], codes[first + i]
        longest = np.float32(0)
        for d in range(vector.shape[0]):
            longest = max(longest, abs(vector[d]))
        step = np.float64(longest) / CODE_MAX
        inverse = 1.0 / step if step > 0.0 else 0.0
        square = rest = 0.0
        for d in range(vector.shape[0]):
            value = np.float64(vector[d])
            rounded = math.floor(value * inverse + 0.5)
            code[d] = np.int8(np.int32(rounded))
            difference = value - rounded * step
            rest += difference * difference
            square += value * value
        bounds[first + i, 0], bounds[first + i, 1], bounds[first + i, 2] = step, math.sqrt(rest), math.sqrt(square)


@kernel(types.void(types.float64[::1], types.int64, types.int64))
def _sink(heap, at, size):  # type: ignore[no-untyped-def]
    """Restore the order of a heap, least values first, whose entry at `at` may be too great."""
    value = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value


@inlined(allocates=False)
def product(code, query):  # type: ignore[no-untyped-def]
    """The product of a code and a rounded query, whose components `PRODUCT_MAX` bounds."""
    total = np.int32(0)
    for d in range(query.shape[0]):
        total = np.int32(total + np.int32(np.int32(code[d]) * np.int32(query[d])))
    return total


@kernel(types.void(_CODES, types.int64, _QUERY, types.float64[::1]))
def _products(codes, first, query, out):  # type: ignore[no-untyped-def]
    """The products of the rows codes[first : first + n] and the query to `out` float64[n]."""
    for i in range(len(out)):
        out[i] = product(codes[first + i], query)


@kernel(
    types.int64(
        _CODES,
        _BOUNDS,
        types.int64,
        types.int64,
        types.int64,
        _MASK,
        _QUERY,
        types.float64,
        types.float64,
        types.float64,
        types.boolean,
        types.int64,
        types.int64[::1],
    ),
    fastmath={"reassoc", "contract"},
)
def _select(codes, bounds, row, first, end, allowed, query, step, rest, length, is_l2, k, out):  # type: ignore[no-untyped-def]
    """The rows of codes[first:end] that may be among the `k` nearest of them to `out` int64[≥ end − first]; returns how
    many. codes[first] is of the row `row`; `allowed` bool[end − first] says which rows count, all if it is empty.
    `query` int16 times `step` is `rest` from the query, whose length is `length`."""
    count = end - first
    uppers, lowers = np.empty(count, np.float64), np.empty(count, np.float64)
    _products(codes, first, query, uppers)
    # Of all rows that are farther, the similarity is the same.
    farthest = 0.5 * length * length - 0.5 * MOST * MOST if is_l2 else -MOST
    for i in range(count):
        code_rest, norm = bounds[first + i, 1], bounds[first + i, 2]
        near = uppers[i] * (bounds[first + i, 0] * step)
        error = length * code_rest + rest * (norm + code_rest)
        if is_l2:  # half of what is left of the squared distance without the query's own length
            near -= 0.5 * norm * norm
            error += (ROUNDING * (length + norm) + LEAST) * (length + norm)
        else:
            error += ROUNDING * length * norm + LEAST
        lower = near - error
        uppers[i], lowers[i] = max(near + error, farthest), lower if is_l2 else min(lower, MOST)
    heap = np.empty(k, np.float64)
    size = 0
    for i in range(count):
        if len(allowed) and not allowed[i]:
            uppers[i] = -np.inf
        elif size < k:
            heap[size] = lowers[i]
            size += 1
            if size == k:
                for parent in range(k // 2 - 1, -1, -1):
                    _sink(heap, parent, k)
        elif lowers[i] > heap[0]:
            heap[0] = lowers[i]
            _sink(heap, 0, k)
    floor = heap[0] if size == k else -np.inf
    found = 0
    for i in range(count):
        if uppers[i] >= floor and uppers[i] != -np.inf:
            out[found] = row + i
            found += 1
    return found


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of the rows from `first` on: `codes` int8[≥ n, dimension], and `bounds` float64[≥ n, 3] as `_encode`
    writes them. They are only written behind the rows that a reader knows."""

    first: int
    codes: NDArray[np.int8]
    bounds: NDArray[np.float64]

    def nearest(self, query: Floats, first: int, end: int, k: int, metric: str, allowed: Mask | None) -> Rows:
        """Those of the rows from `first`, which must have a code, to `end` that may be among the `k` nearest of them,
        int64[n], ascending: `k` or more, if there are so many. `query` float32[dimension] is as `prepared`, `allowed`
        bool[end − first] says which of them count, None: all."""
        assert self.first <= first <= end <= self.first + len(self.codes)
        wide = query.astype(np.float64)
        most = min(QUERY_MAX, PRODUCT_MAX // (CODE_MAX * len(query)))
        step = float(np.abs(wide).max()) / most
        rounded = np.rint(wide / step) if step else np.zeros_like(wide)
        out = np.empty(end - first, np.int64)
        count = _select(
            self.codes,
            self.bounds,
            first,
            first - self.first,
            end - self.first,
            _ALL if allowed is None else allowed,
            rounded.astype(np.int16),
            step,
            float(np.linalg.norm(wide - rounded * step)),
            float(np.linalg.norm(wide)),
            metric == "l2",
            k,
            out,
        )
        return out[:count]


_ALL: Mask = np.zeros(0, np.bool_)


class PendingCodes:
    """The codes of a table's pending rows, or of the latest of them. For the table's writer; `view` is for readers."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._rows_max = max(1, CODES_BYTES_MAX // dimension)
        self._size = 0
        self.view = Codes(0, *self._arrays(0))

    def _arrays(self, capacity: int) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        return np.empty((capacity, self._dimension), np.int8), np.empty((capacity, BOUNDS), np.float64)

    @property
    def memory_bytes(self) -> int:
        """Without spare capacity, which is never touched."""
        return self._size * (self._dimension + 8 * BOUNDS)

    def append(self, first: int, vectors: Floats, indexed: int) -> None:
        """Add the rows from `first` on: `vectors` float32[n, dimension] as they are compared. Rows below `indexed` need
        no code any more."""
        surplus = max(0, len(vectors) - self._rows_max)
        if surplus:
            vectors, first = vectors[surplus:], first + surplus
            self.clear(first)
        assert self.view.first + self._size == first
        self._reserve(len(vectors), indexed)
        _encode(vectors, self.view.codes, self.view.bounds, self._size)
        self._size += len(vectors)

    def _reserve(self, count: int, indexed: int) -> None:
        """Make room for `count` more rows: without those that need no code any more, and without the oldest ones where
        there would be too many. Readers keep the arrays that they have."""
        view, end = self.view, self._size + count
        if end <= len(view.codes):
            return
        dropped = min(self._size, max(0, indexed - view.first))
        if end - dropped > self._rows_max:
            dropped = min(self._size, end - min(self._rows_max, max(count, self._rows_max // 2)))
        self._size -= dropped
        codes, bounds = self._arrays(min(self._rows_max, max(CAPACITY_MIN, 2 * (self._size + count))))
        codes[: self._size] = view.codes[dropped : dropped + self._size]
        bounds[: self._size] = view.bounds[dropped : dropped + self._size]
        self.view = Codes(view.first + dropped, codes, bounds)

    def clear(self, end: int) -> None:
        """Free the codes: all rows below `end` are in the index, and there are no more."""
        self._size, self.view = 0, Codes(end, *self._arrays(0))
