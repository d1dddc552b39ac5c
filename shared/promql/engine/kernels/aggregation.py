"""Passes over [series × steps] that reduce the series of each group, for which numpy would need a loop over groups or
series.

All kernels read rows in memory order, so that a pass streams once through the values while the groups' cells stay in
cache. `values`: float64[n, steps], `present`: bool[n, steps], `ids`: int64[n], the group of each series. The arrays
that they reduce into are [groups, steps]. Inputs may be read-only views of received frames, hence the explicit
signatures.
"""

from __future__ import annotations

import math

import numpy as np

from shared.kernels import inlined, kernel, types
from shared.promql.engine.kernels.order_statistics import interpolated
from shared.promql.model import Bool, Float, Int

_VALUES = types.Array(types.float64, 2, "C", readonly=True)
_PRESENT = types.Array(types.boolean, 2, "C", readonly=True)
_IDS = types.Array(types.int64, 1, "C", readonly=True)
_FLOATS = types.Array(types.float64, 1, "C", readonly=True)
_BUFFER = types.float64[::1]
_PLANE = types.float64[:, ::1]
_COUNTS = types.int64[:, ::1]
_MASK = types.boolean[:, ::1]
_PUT_IN_HEAP = types.void(types.int64[::1], _BUFFER, _IDS, types.int64, types.int64, types.float64, types.boolean)

STEP_BLOCK = 16
"""Steps gathered at a time where a kernel needs columns: two cache lines of each row."""

SCALE = 2.0**-512
"""At this scale, far more than 2^63 values as large as the largest float64 can be added up."""


@kernel(types.void(_PRESENT, _IDS, _COUNTS), error_model="numpy")
def count_groups(present: Bool, ids: Int, counts: Int) -> None:
    """Add to counts[g, t] the number of series of group g that are present at step t."""
    for i in range(present.shape[0]):
        g = ids[i]
        for t in range(present.shape[1]):
            counts[g, t] += present[i, t]


@kernel(types.boolean(_PRESENT, _IDS, _MASK), error_model="numpy")
def occupy(present: Bool, ids: Int, occupied: Bool) -> bool:
    """Mark in `occupied`, initially false, the steps at which a series of each group is present. Returns whether two
    series of a group are present at the same step; the marks are then incomplete."""
    for i in range(present.shape[0]):
        g = ids[i]
        for t in range(present.shape[1]):
            if present[i, t]:
                if occupied[g, t]:
                    return True
                occupied[g, t] = True
    return False


@kernel(types.void(_VALUES, _PRESENT, _IDS, _PLANE, _MASK), error_model="numpy")
def unite_groups(values: Float, present: Bool, ids: Int, united: Float, united_present: Bool) -> None:
    """Copy the present values of each series into the row of its group. `united_present` is initially false."""
    for i in range(values.shape[0]):
        g = ids[i]
        for t in range(values.shape[1]):
            if present[i, t]:
                united[g, t] = values[i, t]
                united_present[g, t] = True


@kernel(types.void(_IDS, types.int64[::1], types.int64[::1]), error_model="numpy")
def place_in_order(keys: Int, next_place: Int, order: Int) -> None:
    """A stable counting sort: fill `order` with the indices of `keys`, by ascending key. `next_place`: int64[keys],
    where the indices of each key begin in `order`; it is overwritten."""
    for i in range(keys.size):
        order[next_place[keys[i]]] = i
        next_place[keys[i]] += 1


@kernel(types.void(_VALUES, _PRESENT, _IDS, _PLANE, _PLANE, _COUNTS), error_model="numpy")
def sum_groups(values: Float, present: Bool, ids: Int, sums: Float, compensations: Float, counts: Int) -> None:
    """Neumaier's compensated sum: the total is sum + compensation."""
    for i in range(values.shape[0]):
        g = ids[i]
        for t in range(values.shape[1]):
            if present[i, t]:
                x, s = values[i, t], sums[g, t]
                total = s + x
                if math.isinf(total):
                    compensations[g, t] = 0.0
                elif abs(s) >= abs(x):
                    compensations[g, t] += (s - total) + x
                else:
                    compensations[g, t] += (x - total) + s
                sums[g, t] = total
                counts[g, t] += 1


@kernel(types.void(_VALUES, _PRESENT, _IDS, _PLANE, _PLANE, _PLANE, _PLANE), error_model="numpy")
def average_groups(
    values: Float, present: Bool, ids: Int, sums: Float, compensations: Float, counts: Float, scaled: Float
) -> None:
    """Compensated sums that change to a smaller scale where they would overflow.

    `scaled` is 1 where sum and compensation are multiplied by SCALE. Nothing is rounded by that, as it is a power of 2.
    """
    for i in range(values.shape[0]):
        g = ids[i]
        for t in range(values.shape[1]):
            if not present[i, t]:
                continue
            x, s, c = values[i, t], sums[g, t], compensations[g, t]
            counts[g, t] += 1.0
            if scaled[g, t] == 0.0 and math.isinf(s + x):
                scaled[g, t] = 1.0
                s *= SCALE
                c *= SCALE
            if scaled[g, t] != 0.0:
                x *= SCALE
            total = s + x
            if math.isinf(total):
                c = 0.0
            elif abs(s) >= abs(x):
                c += (s - total) + x
            else:
                c += (x - total) + s
            sums[g, t] = total
            compensations[g, t] = c


@kernel(types.void(_VALUES, _PRESENT, _IDS, _PLANE, _PLANE, _PLANE), error_model="numpy")
def moment_groups(values: Float, present: Bool, ids: Int, counts: Float, means: Float, squares: Float) -> None:
    """Welford's running mean and sum of squared deviations; a value that is not finite makes the sum NaN."""
    for i in range(values.shape[0]):
        g = ids[i]
        for t in range(values.shape[1]):
            if not present[i, t]:
                continue
            x = values[i, t]
            counts[g, t] += 1.0
            if counts[g, t] == 1.0:
                means[g, t] = x
                squares[g, t] = x - x
            else:
                delta = x - means[g, t]
                means[g, t] += delta / counts[g, t]
                squares[g, t] += delta * (x - means[g, t])


@kernel(types.void(_VALUES, _PRESENT, _IDS, types.boolean, _PLANE, _COUNTS), error_model="numpy")
def extreme_groups(values: Float, present: Bool, ids: Int, greatest: bool, extremes: Float, counts: Int) -> None:
    """Maxima if `greatest`, else minima. `extremes` starts as NaN, which any number replaces."""
    for i in range(values.shape[0]):
        g = ids[i]
        for t in range(values.shape[1]):
            if present[i, t]:
                x, extreme = values[i, t], extremes[g, t]
                if (x > extreme if greatest else x < extreme) or math.isnan(extreme):
                    extremes[g, t] = x
                counts[g, t] += 1


@kernel(types.void(_BUFFER, types.int64, types.int64, types.int64), error_model="numpy")
def _sift(buffer: Float, first: int, at: int, size: int) -> None:
    """Restore the order of the heap buffer[first:first + size], greatest value on top, below position `at` of it."""
    value = buffer[first + at]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and buffer[first + child + 1] > buffer[first + child]:
            child += 1
        if buffer[first + child] <= value:
            break
        buffer[first + at] = buffer[first + child]
        at = child
    buffer[first + at] = value


@kernel(types.void(_BUFFER, types.int64, types.int64), error_model="numpy")
def _heap_sort(buffer: Float, first: int, size: int) -> None:
    """Sort buffer[first:first + size], in which there is no NaN."""
    for at in range(size // 2 - 1, -1, -1):
        _sift(buffer, first, at, size)
    for last in range(size - 1, 0, -1):
        buffer[first], buffer[first + last] = buffer[first + last], buffer[first]
        _sift(buffer, first, 0, last)


@kernel(types.float64(_BUFFER, types.int64, types.int64), error_model="numpy")
def nth_smallest(buffer: Float, size: int, n: int) -> float:
    """Hoare's selection: afterwards buffer[n] is in its sorted place, with smaller values before and larger after.

    There are values for which it would take n² steps, and a client can write them. After 2 log n rounds, the rest is
    therefore sorted (introselect: Musser 1997).
    """
    low, high = 0, size - 1
    rounds_left = 2
    while size >> rounds_left // 2 > 0:
        rounds_left += 2
    while low < high:
        if rounds_left == 0:
            _heap_sort(buffer, low, high + 1 - low)
            break
        rounds_left -= 1
        middle = (low + high) // 2
        a, b, c = buffer[low], buffer[middle], buffer[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while buffer[i] < pivot:
                i += 1
            while pivot < buffer[j]:
                j -= 1
            if i <= j:
                buffer[i], buffer[j] = buffer[j], buffer[i]
                i += 1
                j -= 1
        if n <= j:
            high = j
        elif n >= i:
            low = i
        else:
            break
    return buffer[n]


@inlined(error_model="numpy")
def _quantile(buffer: Float, size: int, nans: int, q: float) -> float:
    """The quantile `q` of `buffer[:size]`, which it overwrites, and of `nans` NaNs, which sort below all values."""
    if 0.0 <= q <= 1.0:
        lower = math.floor(q * (nans + size - 1)) - nans
        if lower >= 0:
            nth_smallest(buffer, size, lower)
            # Of the ordered values, only the two nearest ranks are read.
            for p in range(lower + 2, size):
                buffer[lower + 1] = min(buffer[lower + 1], buffer[p])
    return interpolated(buffer, nans, size, q)


@kernel(
    types.void(_VALUES, _PRESENT, _IDS, _IDS, _FLOATS, types.int64, types.int64, _PLANE, _MASK), error_model="numpy"
)
def quantile_groups(
    values: Float,
    present: Bool,
    order: Int,
    offsets: Int,
    quantiles: Float,
    begin: int,
    end: int,
    out: Float,
    seen: Bool,
) -> None:
    """The quantile of each group at the steps begin ≤ t < end, interpolated between the two nearest ranks; NaN sorts
    below all.

    Group g has the rows order[offsets[g]:offsets[g + 1]]; `quantiles`: float64[steps].
    """
    largest = 0
    for g in range(len(offsets) - 1):
        largest = max(largest, offsets[g + 1] - offsets[g])
    columns = np.empty((STEP_BLOCK, largest))
    sizes = np.empty(STEP_BLOCK, dtype=np.int64)
    nans = np.empty(STEP_BLOCK, dtype=np.int64)
    for g in range(len(offsets) - 1):
        for first in range(begin, end, STEP_BLOCK):
            last = min(first + STEP_BLOCK, end)
            sizes[:] = 0
            nans[:] = 0
            for p in range(offsets[g], offsets[g + 1]):
                i = order[p]
                for t in range(first, last):
                    if present[i, t]:
                        if math.isnan(values[i, t]):
                            nans[t - first] += 1
                        else:
                            columns[t - first, sizes[t - first]] = values[i, t]
                            sizes[t - first] += 1
            for t in range(first, last):
                b = t - first
                if nans[b] + sizes[b] > 0:
                    seen[g, t] = True
                    out[g, t] = _quantile(columns[b], sizes[b], nans[b], quantiles[t])


@kernel(types.boolean(types.float64, types.int64, types.float64, types.int64, types.boolean), error_model="numpy")
def _worse(x: float, x_rank: int, y: float, y_rank: int, greatest: bool) -> bool:
    """Whether candidate x comes after y: NaN after numbers, then by value, then by rank."""
    if math.isnan(x) or math.isnan(y):
        if math.isnan(x) and math.isnan(y):
            return x_rank > y_rank
        return math.isnan(x)
    if x == y:
        return x_rank > y_rank
    return x < y if greatest else x > y


@kernel(types.boolean(types.float64, types.float64), error_model="numpy")
def _level(x: float, y: float) -> bool:
    """Whether the values are equal, where NaN equals NaN."""
    return x == y or (math.isnan(x) and math.isnan(y))


@kernel(_PUT_IN_HEAP, error_model="numpy")
def _rise(heap: Int, keys: Float, ranks: Int, size: int, i: int, x: float, greatest: bool) -> None:
    """Add row i, whose value is x, to a heap with the worst row on top."""
    k = size
    while k > 0:
        up = (k - 1) // 2
        if not _worse(x, ranks[i], keys[up], ranks[heap[up]], greatest):
            break
        heap[k], keys[k] = heap[up], keys[up]
        k = up
    heap[k], keys[k] = i, x


@kernel(_PUT_IN_HEAP, error_model="numpy")
def _sink(heap: Int, keys: Float, ranks: Int, size: int, i: int, x: float, greatest: bool) -> None:
    """Put row i, whose value is x, in the place of the worst row."""
    k = 0
    while 2 * k + 1 < size:
        child = 2 * k + 1
        other = child + 1
        if other < size and _worse(keys[other], ranks[heap[other]], keys[child], ranks[heap[child]], greatest):
            child = other
        if not _worse(keys[child], ranks[heap[child]], x, ranks[i], greatest):
            break
        heap[k], keys[k] = heap[child], keys[child]
        k = child
    heap[k], keys[k] = i, x


@kernel(types.boolean(_VALUES, _PRESENT, _IDS, _IDS, _IDS, _IDS, types.boolean, _MASK), error_model="numpy")
def select_groups(
    values: Float, present: Bool, ids: Int, ranks: Int, limits: Int, capacities: Int, greatest: bool, chosen: Bool
) -> bool:
    """Mark in `chosen` the `limits[t]` best series of each group at each step, or all of them where fewer are present.

    Every group has a heap for each step, with the worst row on top and room for `capacities[g]` rows (int64[groups], at
    least as many as the heap will ever hold). Equal values are ordered by `ranks` (int64[n]). Returns whether that
    order decided anything.
    """
    n, steps = values.shape
    bases = np.zeros(len(capacities) + 1, dtype=np.int64)
    for g in range(len(capacities)):
        bases[g + 1] = bases[g] + capacities[g]
    total = bases[-1]
    # There are heaps for only one block of steps, so that they stay in cache while the rows stream by.
    rows = np.empty((STEP_BLOCK, total), dtype=np.int64)
    keys = np.empty((STEP_BLOCK, total))
    sizes = np.empty((STEP_BLOCK, len(capacities)), dtype=np.int64)
    tied = False
    for first in range(0, steps, STEP_BLOCK):
        last = min(first + STEP_BLOCK, steps)
        sizes[:] = 0
        for i in range(n):
            g = ids[i]
            for t in range(first, last):
                if not present[i, t] or limits[t] < 1:
                    continue
                x, b, size = values[i, t], t - first, sizes[t - first, g]
                if size < limits[t]:
                    sizes[b, g] = size + 1
                    _rise(rows[b, bases[g] :], keys[b, bases[g] :], ranks, size, i, x, greatest)
                    continue
                top = keys[b, bases[g]]
                if (x < top) if greatest else (x > top):
                    continue
                if _level(x, top):
                    tied = True
                heap, key = rows[b, bases[g] :], keys[b, bases[g] :]
                if _worse(top, ranks[heap[0]], x, ranks[i], greatest):
                    _sink(heap, key, ranks, size, i, x, greatest)
                    if _level(key[0], top):
                        tied = True
        for b in range(last - first):
            for g in range(len(capacities)):
                for k in range(bases[g], bases[g] + sizes[b, g]):
                    chosen[rows[b, k], first + b] = True
    return tied
