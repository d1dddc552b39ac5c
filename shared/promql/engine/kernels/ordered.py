"""The values of a window in ascending order, while samples enter and leave it.

A few samples are put in or taken out one by one, each of which moves at most all values. More samples are first sorted
and then merged with the others in one pass. A step therefore costs at most a small multiple of the samples in its
window, plus the sorting of those that enter or leave.
"""

from __future__ import annotations

import numpy as np

from shared.kernels import inlined, kernel, types
from shared.promql.engine.kernels.windows import FLOATS
from shared.promql.model import Float

FEW = 4
"""Up to this many samples are put in or taken out one by one: moving the values for them costs about one pass."""
RUN = 16
"""Values that are sorted by insertion before runs of them are merged."""

NUMBERS = types.float64[::1]


@kernel(types.int64(FLOATS, types.int64, types.float64), error_model="numpy", allocates=False)
def position(ordered: Float, n: int, value: float) -> int:
    """The first index of the ascending `ordered[:n]` whose value is at least `value`; n if there is none."""
    lo, hi = 0, n
    while lo < hi:
        middle = (lo + hi) >> 1
        if ordered[middle] < value:
            lo = middle + 1
        else:
            hi = middle
    return lo


@inlined(error_model="numpy")
def numbers(values: Float, first: int, last: int, out: Float) -> int:
    """Copies the values of `values[first:last]` that are not NaN to `out`. Returns their number."""
    n = 0
    for i in range(first, last):
        if not np.isnan(values[i]):
            out[n] = values[i]
            n += 1
    return n


@kernel(types.void(NUMBERS, types.int64, NUMBERS), error_model="numpy", allocates=False)
def sort(values: Float, n: int, scratch: Float) -> None:
    """Sorts `values[:n]`, none of which is NaN, in at most n log n steps. `scratch`: float64[≥ n]."""
    for first in range(0, n, RUN):
        for i in range(first + 1, min(first + RUN, n)):
            value, at = values[i], i
            while at > first and values[at - 1] > value:
                values[at] = values[at - 1]
                at -= 1
            values[at] = value
    width = RUN
    while width < n:
        for first in range(0, n - width, 2 * width):
            right, last, at = first + width, min(first + 2 * width, n), first
            if values[right - 1] <= values[right]:
                continue
            for i in range(width):
                scratch[i] = values[first + i]
            left = 0
            while left < width:
                if right < last and values[right] < scratch[left]:
                    values[at] = values[right]
                    right += 1
                else:
                    values[at] = scratch[left]
                    left += 1
                at += 1
        width *= 2


@kernel(types.int64(NUMBERS, types.int64, NUMBERS, types.int64, NUMBERS), error_model="numpy", allocates=False)
def put_in(ordered: Float, n: int, entering: Float, count: int, scratch: Float) -> int:
    """Inserts `entering[:count]` into the ascending `ordered[:n]`, which has room for them. Returns the new n.

    `entering` and `scratch` (float64[≥ count]) are overwritten.
    """
    if count <= FEW:
        for i in range(count):
            at = position(ordered, n, entering[i])
            for j in range(n, at, -1):
                ordered[j] = ordered[j - 1]
            ordered[at] = entering[i]
            n += 1
        return n
    sort(entering, count, scratch)
    old, new = n - 1, count - 1
    while new >= 0:
        if old >= 0 and ordered[old] > entering[new]:
            ordered[old + new + 1] = ordered[old]
            old -= 1
        else:
            ordered[old + new + 1] = entering[new]
            new -= 1
    return n + count


@kernel(types.int64(NUMBERS, types.int64, NUMBERS, types.int64, NUMBERS), error_model="numpy", allocates=False)
def take_out(ordered: Float, n: int, leaving: Float, count: int, scratch: Float) -> int:
    """Removes `leaving[:count]`, all of which it contains, from the ascending `ordered[:n]`. Returns the new n.

    `leaving` and `scratch` (float64[≥ count]) are overwritten.
    """
    if count <= FEW:
        for i in range(count):
            at = position(ordered, n, leaving[i])
            n -= 1
            for j in range(at, n):
                ordered[j] = ordered[j + 1]
        return n
    sort(leaving, count, scratch)
    removed = 0
    for i in range(n):
        if removed < count and ordered[i] == leaving[removed]:
            removed += 1
        else:
            ordered[i - removed] = ordered[i]
    return n - removed
