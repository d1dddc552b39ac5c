"""Kernels that fill the inverted lists (`inverted_lists`): rows are coded into blocks of their list.

A list is a chain of blocks, each with BLOCK_ROWS rows. A row's code has a byte for each component of what is left of
its vector without the centre of its list, in steps of its own. What is left is short, so a byte is precise enough even
where all vectors lie far from the origin.
"""

from __future__ import annotations

import math

import numpy as np

from shared.kernels import inlined, kernel, types
from worker.vectors.codes import CODE_MAX

BLOCK_ROWS = 64
HALF = np.float32(0.5)

VECTORS = types.Array(types.float32, 2, "C", readonly=True)
NUMBERS = types.Array(types.int64, 1, "C", readonly=True)
LINKS = types.Array(types.int32, 1, "C", readonly=True)
ROWS = types.Array(types.int32, 2, "C", readonly=True)
STEPS = types.Array(types.float32, 2, "C", readonly=True)
CODES = types.Array(types.int8, 3, "C", readonly=True)


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
        VECTORS,
        NUMBERS,
        NUMBERS,
        VECTORS,
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
        longest = np.float32(0)  # of halves: float32 may not have the difference of two huge components
        for d in range(vector.shape[0]):
            longest = max(longest, abs(HALF * vector[d] - HALF * centre[d]))
        step = 2.0 * np.float64(longest) / CODE_MAX
        inverse = 2.0 / step if step > 0.0 else 0.0
        square = np.int32(0)
        for d in range(vector.shape[0]):
            part = np.int32(math.floor(np.float64(HALF * vector[d] - HALF * centre[d]) * inverse + 0.5))
            part = min(np.int32(CODE_MAX), max(np.int32(-CODE_MAX), part))
            code[d] = np.int8(part)
            square = np.int32(square + np.int32(part * part))
        rows[block, place] = np.int32(numbers[i])
        steps[block, place] = np.float32(step)
        squares[block, place] = square
    return used


@kernel(
    types.int64(
        NUMBERS,
        types.int64,
        types.int64,
        NUMBERS,
        LINKS,
        LINKS,
        ROWS,
        STEPS,
        ROWS,
        CODES,
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


@kernel(types.void(VECTORS, NUMBERS, types.float64[:, ::1], types.int64[::1]), allocates=False)
def add_up(vectors, lists, sums, counts):  # type: ignore[no-untyped-def]
    """Add `vectors` float32[n, dimension] to `sums` float64[lists, dimension] of their lists, and count them."""
    for i in range(vectors.shape[0]):
        own = lists[i]
        counts[own] += 1
        for d in range(vectors.shape[1]):
            sums[own, d] += vectors[i, d]
