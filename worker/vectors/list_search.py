"""Kernels that search the inverted lists (`inverted_lists`), and find where the rows of a filter are in them."""

from __future__ import annotations

import numpy as np

from shared.kernels import inlined, kernel, types
from worker.vectors.codes import product
from worker.vectors.list_blocks import BLOCK_ROWS, CODES, LINKS, NUMBERS, ROWS, STEPS, VECTORS
from worker.vectors.list_order import DOUBLES, GROUP, VECTOR, rank, rounded_query, take_nearest
from worker.vectors.similarity import L2, inner_product

SPARSE = 2
"""Rows of a block are compared one by one if a filter allows less than one of so many."""

BITS = types.Array(types.uint8, 1, "C", readonly=True)
MASK = types.Array(types.boolean, 1, "C", readonly=True)


@kernel(
    types.void(types.Array(types.int8, 2, "C", readonly=True), types.int16[::1], types.int64, types.int32[::1]),
    allocates=False,
)
def _products(codes, query, count, out):  # type: ignore[no-untyped-def]
    """The products of the first `count` codes of a block and the query to `out` int32."""
    for i in range(count):
        out[i] = product(codes[i], query)


@kernel(types.void(types.float64[::1], types.int64[::1], types.float64, types.int64, types.int64), allocates=False)
def _put(values, rows, value, row, size):  # type: ignore[no-untyped-def]
    """Put a row into a heap, the least value first: behind the `size` that there are, or, if that is as many as it can
    hold, in the place of the first."""
    if size < values.shape[0]:
        at = size
        while at > 0 and values[(at - 1) // 2] > value:
            values[at], rows[at] = values[(at - 1) // 2], rows[(at - 1) // 2]
            at = (at - 1) // 2
    else:
        at = 0
        while True:
            child = 2 * at + 1
            if child >= size:
                break
            if child + 1 < size and values[child + 1] < values[child]:
                child += 1
            if values[child] >= value:
                break
            values[at], rows[at] = values[child], rows[child]
            at = child
    values[at], rows[at] = value, row


@inlined(allocates=False)
def _value(base, code_product, scale, step, square, is_l2):  # type: ignore[no-untyped-def]
    """How near a row is: the product of its code, which is in steps of `scale`, and the query, beyond that of the
    centre; under l2 as half of what is left of the squared distance."""
    value = base + code_product * (scale * step)
    if is_l2:
        value -= 0.5 * scale * scale * square
    return value


@inlined(allocates=False)
def _offered(values, found, size, value, row):  # type: ignore[no-untyped-def]
    """Put a row into the heap of `size` rows if it belongs to the nearest ones; returns how many there are then."""
    if size == values.shape[0] and value <= values[0]:
        return size
    _put(values, found, value, row, size)
    return min(values.shape[0], size + 1)


@inlined(allocates=False)
def _is_allowed(row, limit, bits, alive):  # type: ignore[no-untyped-def]
    """Whether a row counts, as `search` says."""
    is_allowed = row < limit
    if len(bits) > 0 and is_allowed:
        is_allowed = (bits[row >> 3] >> (row & 7)) & 1 != 0
    if len(alive) > 0 and is_allowed:
        is_allowed = alive[row]
    return is_allowed


@kernel(types.float64(VECTOR, VECTOR), fastmath={"reassoc", "contract"}, allocates=False)
def _square(query, centre):  # type: ignore[no-untyped-def]
    """The squared distance of the query from the centre."""
    total = 0.0
    for d in range(query.shape[0]):
        difference = np.float64(query[d]) - np.float64(centre[d])
        total += difference * difference
    return total


@inlined(allocates=False)
def _of_places(  # type: ignore[no-untyped-def]
    begin, end, placed_rows, places, steps, squares, codes,
    query, query_step, base, is_l2, limit, alive, values, found, size,
):  # fmt: skip
    """Offer the rows at these places, whose bits are known to be set; returns how many of them count, and how many rows
    the heap has then."""
    counted = 0
    for n in range(begin, end):
        row = placed_rows[n]
        if row < limit and (len(alive) == 0 or alive[row]):
            counted += 1
            block, i = places[n] // BLOCK_ROWS, places[n] % BLOCK_ROWS
            code_product = product(codes[block, i], query)
            value = _value(base, code_product, np.float64(steps[block, i]), query_step, squares[block, i], is_l2)
            size = _offered(values, found, size, value, row)
    return counted, size


@inlined(allocates=False)
def _block_at(number, count, first, following):  # type: ignore[no-untyped-def]
    """The block that has row `number` of a list of `count` rows, −1 if there is none."""
    if number >= count:
        return np.int32(-1)
    block = first
    for _ in range(number // BLOCK_ROWS):
        block = following[block]
    return block


@inlined(allocates=False)
def _of_block(  # type: ignore[no-untyped-def]
    begin, end, rows, steps, squares, codes,
    query, query_step, base, is_l2, limit, bits, alive, chosen_ones, products, values, found, size,
):  # fmt: skip
    """As `_of_places`, of the rows begin ≤ i < end of a block. `chosen_ones` and `products` have room for a block."""
    chosen = 0
    for i in range(begin, end):
        chosen_ones[chosen] = i
        chosen += _is_allowed(rows[i], limit, bits, alive)
    if SPARSE * chosen < end:
        for n in range(chosen):
            products[chosen_ones[n]] = product(codes[chosen_ones[n]], query)
    else:
        _products(codes, query, end, products)
    for n in range(chosen):
        i = chosen_ones[n]
        value = _value(base, products[i], np.float64(steps[i]), query_step, squares[i], is_l2)
        size = _offered(values, found, size, value, rows[i])
    return chosen, size


@kernel(
    types.void(
        VECTORS,
        VECTORS,
        VECTOR,
        types.Array(types.int8, 2, "C", readonly=True),
        DOUBLES,
        DOUBLES,
        NUMBERS,
        LINKS,
        LINKS,
        ROWS,
        STEPS,
        ROWS,
        CODES,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        BITS,
        MASK,
        NUMBERS,
        NUMBERS,
        LINKS,
        LINKS,
        types.int64[:, ::1],
    )
)
def search(  # type: ignore[no-untyped-def]
    queries,
    centres,
    middle,
    centre_codes,
    centre_steps,
    centre_squares,
    counts,
    first,
    following,
    rows,
    steps,
    squares,
    codes,
    metric,
    compared,
    counting,
    most,
    limit,
    bits,
    alive,
    known,
    start,
    placed_rows,
    places,
    out,
):
    """Write the rows that are nearest to each query by their codes to `out` int64[q, k], in no order, −1 where there
    are fewer.

    `queries` float32[q, dimension]. A query looks into one list after the other, the nearest first, until it has seen
    `compared` rows, of which `counting` count, or `most` rows. Those count that are below `limit`, whose bit is set in
    `bits` uint8, and that are `alive` bool; either may be empty, and then leaves out none. `known`, `start`,
    `placed_rows` and `places` say where the rows are whose bit is set (`list_filters.Places`), or are empty. The other
    arrays are as `append` writes them; of each list, the first `counts` rows are complete.
    """
    k, is_l2 = out.shape[1], metric == L2
    values = np.empty(k, np.float64)
    rounded = np.empty(queries.shape[1], np.int16)
    products, chosen_ones = np.empty(BLOCK_ROWS, np.int32), np.empty(BLOCK_ROWS + 1, np.int64)
    nearness, nearest = np.empty(len(centres), np.float64), np.empty(-(-len(centres) // GROUP), np.int64)
    for q in range(queries.shape[0]):
        query, found = queries[q], out[q]
        size = seen = counted = 0
        step = rounded_query(query, middle, is_l2, rounded)
        rank(rounded, step, centre_codes, centre_steps, centre_squares, is_l2, nearness, nearest)
        waiting = len(centres)
        while waiting > 0 and (seen < compared or (counted < counting and seen < most)):
            own = take_nearest(nearness, nearest)
            waiting -= 1
            left = counts[own]
            seen += left
            base = 0.0
            if is_l2:
                base = -0.5 * _square(query, centres[own])
                step = rounded_query(query, centres[own], True, rounded)
            else:
                base = inner_product(query, centres[own])
            placed = 0
            if len(known) > 0:
                here, size = _of_places(
                    start[own], start[own + 1], placed_rows, places, steps, squares, codes,
                    rounded, step, base, is_l2, limit, alive, values, found, size,
                )  # fmt: skip
                counted += here
                placed = known[own]
            block, begin = _block_at(placed, left, first[own], following), placed % BLOCK_ROWS
            left -= placed - begin
            while left > begin:
                count = min(left, BLOCK_ROWS)
                here, size = _of_block(
                    begin, count, rows[block], steps[block], squares[block], codes[block],
                    rounded, step, base, is_l2, limit, bits, alive, chosen_ones, products, values, found, size,
                )  # fmt: skip
                counted += here
                left -= count
                begin = 0
                block = following[block]
        for i in range(size, k):
            found[i] = -1


@kernel(
    types.int64(
        NUMBERS,
        LINKS,
        LINKS,
        ROWS,
        BITS,
        types.int64,
        types.int64[::1],
        types.int64[::1],
        types.int32[::1],
        types.int32[::1],
    ),
    allocates=False,
)
def place(counts, first, following, rows, bits, size, known, start, placed_rows, places):  # type: ignore[no-untyped-def]
    """Write the rows below `size` whose bit is set in `bits` to `placed_rows` and `places`, as `list_filters.Places`
    has them, and the beginning of each list's to `start` int64[lists + 1]; count the rows of each list that are below
    `size` in `known`. Returns how many were written. The other arrays are as in `search`."""
    at = 0
    for own in range(counts.shape[0]):
        start[own] = at
        left = counts[own]
        block = first[own] if left else -1
        while left > 0:
            count = min(left, BLOCK_ROWS)
            for i in range(count):
                row = rows[block, i]
                if row >= size:
                    left = 0
                    break
                known[own] += 1
                if (bits[row >> 3] >> (row & 7)) & 1:
                    placed_rows[at] = row
                    places[at] = np.int32(block * BLOCK_ROWS + i)
                    at += 1
            left -= count
            block = following[block]
    start[counts.shape[0]] = at
    return at
