"""Kernels that take the inverted lists in the order in which a query looks into them: the nearest centre first."""

from __future__ import annotations

import math

import numpy as np

from shared.kernels import inlined, kernel, types
from worker.vectors.codes import CODE_MAX, PRODUCT_MAX, QUERY_MAX, product
from worker.vectors.list_blocks import HALF

GROUP = 64
"""Lists whose nearest one is known while a search takes one list after the other."""

VECTOR = types.Array(types.float32, 1, "C", readonly=True)
DOUBLES = types.Array(types.float64, 1, "C", readonly=True)


@kernel(
    types.float64(VECTOR, VECTOR, types.boolean, types.int16[::1]),
    fastmath={"reassoc", "contract"},
    allocates=False,
)
def rounded_query(query, centre, is_l2, out):  # type: ignore[no-untyped-def]
    """Write the query, under l2 without `centre`, to `out` int16 in steps; returns the step."""
    longest = np.float32(0)  # of halves: float32 may not have the difference of two huge components
    for d in range(query.shape[0]):
        longest = max(longest, abs(HALF * query[d] - HALF * centre[d] if is_l2 else HALF * query[d]))
    most = min(QUERY_MAX, PRODUCT_MAX // (CODE_MAX * query.shape[0]))
    step = 2.0 * np.float64(longest) / most
    inverse = 2.0 / step if step > 0.0 else 0.0
    for d in range(query.shape[0]):
        value = np.float64(HALF * query[d] - HALF * centre[d] if is_l2 else HALF * query[d])
        out[d] = np.int16(math.floor(value * inverse + 0.5))
    return step


@inlined(allocates=False)
def _greatest(values, group):  # type: ignore[no-untyped-def]
    """The place of the greatest value of a group."""
    begin = group * GROUP
    place, greatest = begin, values[begin]
    for i in range(begin + 1, min(begin + GROUP, values.shape[0])):
        if values[i] > greatest:
            place, greatest = i, values[i]
    return place


@kernel(
    types.void(
        types.int16[::1],
        types.float64,
        types.Array(types.int8, 2, "C", readonly=True),
        DOUBLES,
        DOUBLES,
        types.boolean,
        types.float64[::1],
        types.int64[::1],
    ),
    allocates=False,
)
def rank(rounded, step, codes, steps, squares, is_l2, nearness, nearest):  # type: ignore[no-untyped-def]
    """Write how near the centre of each list is to `nearness` float64[lists], but for a number that is the same for
    all: the product, less half of the centre's square under l2; and the nearest list of each group to `nearest`
    int64[groups]. `take_nearest` takes from these.

    `rounded` int16 is the query in units of `step`, under l2 from the middle of the centres; the others are as
    `coded_centres` has them.
    """
    for c in range(codes.shape[0]):
        nearness[c] = product(codes[c], rounded) * (step * steps[c])
        if is_l2:
            nearness[c] -= 0.5 * squares[c]
    for group in range(nearest.shape[0]):
        nearest[group] = _greatest(nearness, group)


@kernel(types.int64(types.float64[::1], types.int64[::1]), allocates=False)
def take_nearest(nearness, nearest):  # type: ignore[no-untyped-def]
    """The nearest list of those that were not taken before; there must be one.

    A search takes some of thousands, and sorting as many would cost more than what it does with them.
    """
    own = 0
    for group in range(1, nearest.shape[0]):
        if nearness[nearest[group]] > nearness[nearest[own]]:
            own = group
    taken = nearest[own]
    nearness[taken] = -np.inf
    nearest[own] = _greatest(nearness, own)
    return taken
