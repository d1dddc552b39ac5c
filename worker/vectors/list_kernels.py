"""Kernels of the inverted lists (`inverted_lists`): rows are coded into blocks of their list, and lists are searched.

A list is a chain of blocks, each with BLOCK_ROWS rows. A row's code has a byte for each component of what is left of
its vector without the centre of its list, in steps of its own. What is left is short, so a byte is precise enough even
where all vectors lie far from the origin.
"""

from __future__ import annotations

import math

import numpy as np

from shared import kernel_types as types
from shared.kernels import inlined, kernel
from worker.vectors.codes import CODE_MAX, PRODUCT_MAX, QUERY_MAX, product
from worker.vectors.similarity import L2, inner_product

BLOCK_ROWS = 64
SPARSE = 2
"""Rows of a block are compared one by one if a filter allows less than one of so many."""
GROUP = 64
"""Lists whose nearest one is known while a search takes one list after the other."""

_FLOATS = types.Array(types.float32, 2, "C", readonly=True)
_FLOATS_1 = types.Array(types.float32, 1, "C", readonly=True)
_DOUBLES = types.Array(types.float64, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int64, 1, "C", readonly=True)
_COUNTS = types.Array(types.int64, 1, "C", readonly=True)
_LINKS = types.Array(types.int32, 1, "C", readonly=True)
_ROWS = types.Array(types.int32, 2, "C", readonly=True)
_STEPS = types.Array(types.float32, 2, "C", readonly=True)
_CODES = types.Array(types.int8, 3, "C", readonly=True)
_BITS = types.Array(types.uint8, 1, "C", readonly=True)
_MASK = types.Array(types.boolean, 1, "C", readonly=True)


@inlined(allocates=False)
def _with_place(own, used, filled, first, last, following):  # type: ignore[no-untyped-def]
    """Give a list a block more if its last one is full; returns how many blocks are used then."""
    if filled[own] % BLOCK_ROWS == 0:
        following[used] = -1
        if filled[own] == 0:
            first[own] = used
        else:
            following[last[own]] = used
        last[own] = used
        used += 1
    return used


@kernel(
    types.int64(
        _FLOATS,
        _NUMBERS,
        _NUMBERS,
        _FLOATS,
        types.int64,
        types.int64[::1],
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int32[:, ::1],
        types.float32[:, ::1],
        types.int32[:, ::1],
        types.int8[:, :, ::1],
    ),
    fastmath={"reassoc", "contract"},
    error_model="numpy",
)
def append(  # type: ignore[no-untyped-def]
    vectors, numbers, lists, centres, used, filled, first, last, following, rows, steps, squares, codes
):
    """Code `vectors` float32[n, dimension] of the rows `numbers` int64[n] into the lists `lists` int64[n] and count
    them in `filled` int64[lists]; returns how many blocks are used then.

    `first` and `last` are the blocks of each list (−1: none), `following` the block after each one. Of each row, a
    block has its number in `rows`, the step of its code in `steps`, the square of the code's length in `squares`, and
    the code in `codes` int8[blocks, BLOCK_ROWS, dimension]. `used` blocks are in use; there must be n more.
    """
    for i in range(vectors.shape[0]):
        own = lists[i]
        used = _with_place(own, used, filled, first, last, following)
        block, place = last[own], filled[own] % BLOCK_ROWS
        filled[own] += 1
        vector, centre, code = vectors[i], centres[own], codes[block, place]
        longest = np.float32(0)
        for d in range(vector.shape[0]):
            longest = max(longest, abs(vector[d] - centre[d]))
        step = np.float64(longest) / CODE_MAX
        inverse = 1.0 / step if step > 0.0 else 0.0
        square = np.int32(0)
        for d in range(vector.shape[0]):
            part = np.int32(math.floor(np.float64(vector[d] - centre[d]) * inverse + 0.5))
            part = min(np.int32(CODE_MAX), max(np.int32(-CODE_MAX), part))
            code[d] = np.int8(part)
            square = np.int32(square + np.int32(part * part))
        rows[block, place] = np.int32(numbers[i])
        steps[block, place] = np.float32(step)
        squares[block, place] = square
    return used


@kernel(
    types.int64(
        _NUMBERS,
        types.int64,
        types.int64,
        _COUNTS,
        _LINKS,
        _LINKS,
        _ROWS,
        _STEPS,
        _ROWS,
        _CODES,
        types.int64,
        types.int64[::1],
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int32[:, ::1],
        types.float32[:, ::1],
        types.int32[:, ::1],
        types.int8[:, :, ::1],
    ),
    allocates=False,
)
def renumber(  # type: ignore[no-untyped-def]
    numbers,
    begin,
    end,
    counts,
    old_first,
    old_following,
    old_rows,
    old_steps,
    old_squares,
    old_codes,
    used,
    filled,
    first,
    last,
    following,
    rows,
    steps,
    squares,
    codes,
):
    """Copy the rows of the lists begin ≤ i < end to the same lists of another index, each under the number
    numbers[row], unless that is −1; returns how many blocks are used there then. The old arrays are as `search` gets
    them, the others as `append` does."""
    for own in range(begin, end):
        old, left = old_first[own], counts[own]
        while left > 0:
            for i in range(min(left, BLOCK_ROWS)):
                row = old_rows[old, i]
                number = numbers[row] if row < len(numbers) else -1
                if number < 0:
                    continue
                used = _with_place(own, used, filled, first, last, following)
                block, place = last[own], filled[own] % BLOCK_ROWS
                filled[own] += 1
                rows[block, place] = np.int32(number)
                steps[block, place] = old_steps[old, i]
                squares[block, place] = old_squares[old, i]
                code, old_code = codes[block, place], old_codes[old, i]
                for d in range(code.shape[0]):
                    code[d] = old_code[d]
            left -= BLOCK_ROWS
            old = old_following[old]
    return used


@kernel(
    types.float64(_FLOATS_1, _FLOATS_1, types.boolean, types.int16[::1]),
    fastmath={"reassoc", "contract"},
    allocates=False,
)
def _rounded(query, centre, is_l2, out):  # type: ignore[no-untyped-def]
    """Write the query, under l2 without `centre`, to `out` int16 in steps; returns the step."""
    longest = np.float32(0)
    for d in range(query.shape[0]):
        longest = max(longest, abs(query[d] - centre[d] if is_l2 else query[d]))
    most = min(QUERY_MAX, PRODUCT_MAX // (CODE_MAX * query.shape[0]))
    step = np.float64(longest) / most
    inverse = 1.0 / step if step > 0.0 else 0.0
    for d in range(query.shape[0]):
        value = np.float64(query[d] - centre[d] if is_l2 else query[d])
        out[d] = np.int16(math.floor(value * inverse + 0.5))
    return step


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


@kernel(types.float64(_FLOATS_1, _FLOATS_1), fastmath={"reassoc", "contract"}, allocates=False)
def _square(query, centre):  # type: ignore[no-untyped-def]
    """The squared distance of the query from the centre."""
    total = 0.0
    for d in range(query.shape[0]):
        difference = np.float64(query[d]) - np.float64(centre[d])
        total += difference * difference
    return total


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
        _DOUBLES,
        _DOUBLES,
        types.boolean,
        types.float64[::1],
        types.int64[::1],
    ),
    allocates=False,
)
def _rank(rounded, step, codes, steps, squares, is_l2, nearness, nearest):  # type: ignore[no-untyped-def]
    """Write how near the centre of each list is to `nearness` float64[lists], but for a number that is the same for
    all: the product, less half of the centre's square under l2; and the nearest list of each group to `nearest`
    int64[groups]. `_take_nearest` takes from these.

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
def _take_nearest(nearness, nearest):  # type: ignore[no-untyped-def]
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


@kernel(
    types.void(
        _FLOATS,
        _FLOATS,
        _FLOATS_1,
        types.Array(types.int8, 2, "C", readonly=True),
        _DOUBLES,
        _DOUBLES,
        _COUNTS,
        _LINKS,
        _LINKS,
        _ROWS,
        _STEPS,
        _ROWS,
        _CODES,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        _BITS,
        _MASK,
        _COUNTS,
        _NUMBERS,
        _LINKS,
        _LINKS,
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
        step = _rounded(query, middle, is_l2, rounded)
        _rank(rounded, step, centre_codes, centre_steps, centre_squares, is_l2, nearness, nearest)
        waiting = len(centres)
        while waiting > 0 and (seen < compared or (counted < counting and seen < most)):
            own = _take_nearest(nearness, nearest)
            waiting -= 1
            left = counts[own]
            seen += left
            base = 0.0
            if is_l2:
                base = -0.5 * _square(query, centres[own])
                step = _rounded(query, centres[own], True, rounded)
            else:
                base = inner_product(query, centres[own])
            block, begin = first[own] if left else -1, 0
            if len(known) > 0:
                for n in range(start[own], start[own + 1]):
                    row = placed_rows[n]
                    if _is_allowed(row, limit, bits[:0], alive):  # the bit is known to be set
                        counted += 1
                        block, i = places[n] // BLOCK_ROWS, places[n] % BLOCK_ROWS
                        code_product = product(codes[block, i], rounded)
                        value = _value(base, code_product, np.float64(steps[block, i]), step, squares[block, i], is_l2)
                        size = _offered(values, found, size, value, row)
                left -= known[own] - known[own] % BLOCK_ROWS
                begin = known[own] % BLOCK_ROWS
                block = first[own] if left > begin else -1
                for _ in range(known[own] // BLOCK_ROWS if left > begin else 0):
                    block = following[block]
            while left > begin:
                count = min(left, BLOCK_ROWS)
                chosen = 0
                for i in range(begin, count):
                    chosen_ones[chosen] = i
                    chosen += _is_allowed(rows[block, i], limit, bits, alive)
                counted += chosen
                if SPARSE * chosen < count:
                    for n in range(chosen):
                        products[chosen_ones[n]] = product(codes[block, chosen_ones[n]], rounded)
                else:
                    _products(codes[block], rounded, count, products)
                for n in range(chosen):
                    i = chosen_ones[n]
                    value = _value(base, products[i], np.float64(steps[block, i]), step, squares[block, i], is_l2)
                    size = _offered(values, found, size, value, rows[block, i])
                left -= count
                begin = 0
                block = following[block]
        for i in range(size, k):
            found[i] = -1


@kernel(
    types.int64(
        _COUNTS,
        _LINKS,
        _LINKS,
        _ROWS,
        _BITS,
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


@kernel(types.void(_FLOATS, _NUMBERS, types.float64[:, ::1], types.int64[::1]), allocates=False)
def add_up(vectors, lists, sums, counts):  # type: ignore[no-untyped-def]
    """Add `vectors` float32[n, dimension] to `sums` float64[lists, dimension] of their lists, and count them."""
    for i in range(vectors.shape[0]):
        own = lists[i]
        counts[own] += 1
        for d in range(vectors.shape[1]):
            sums[own, d] += vectors[i, d]
