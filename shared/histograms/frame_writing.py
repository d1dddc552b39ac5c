"""Writes rows of a batch as frames (`frames.py`), many at once.

A first kernel finds out what each frame takes, a second one writes all of them. Counts are written as the narrowest
type that holds them exactly, and layouts that no row of a frame has are left out.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from shared.histograms.batch import (
    INTS,
    LAYOUTS,
    ROWS,
    HistogramBatch,
    HistogramColumns,
    Ints,
    LayoutColumns,
    read_only,
)
from shared.kernels import inlined, kernel

VERSION = 1

U1, U2, U4, F8 = range(4)
"""The codes of the types of counts."""
HEADER_BYTES = 32
"""Version, the types of `observations` and `counts`, two zeros; uint32 numbers of rows, of layouts, of their buckets
and boundaries, and the uint64 number of the counts of all rows."""

# Columns of the table of frames: what they hold, the types of their numbers, and their bytes.
ROW_COUNT, LAYOUT_COUNT, BUCKETS, BOUNDS, COUNTS, OBSERVATIONS_TYPE, COUNTS_TYPE, BYTES = range(8)
COLUMNS = 8

_TABLE = types.Array(types.int64, 2, "C")
_INT32 = types.int32[::1]
_OUT = types.uint8[::1]
_TWO_52, _EXPONENT_52 = 2.0**52, 0x433
"""Added to 2^52, a whole number from 0 to below 2^52 is the lower 52 bits of the sum."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows of a batch as they will be written: frame i has the rows order[ends[i - 1]:ends[i]], and takes
    table[i, BYTES], a multiple of 8, or nothing where it has no rows."""

    batch: HistogramBatch
    order: Ints
    ends: Ints
    numbers: NDArray[np.int32]
    """int32[rows]: of each row in this order, the number of its layout in its frame."""
    layouts: NDArray[np.int32]
    """int32[rows]: those of frame i are from ends[i - 1] on, as they are numbered in the batch."""
    table: Ints

    @classmethod
    def of(cls, batch: HistogramBatch, order: Ints, ends: Ints) -> Plan:
        """Expects rows of the batch, and int64[frames] `ends` that ascend to their number."""
        assert not len(ends) or ends[-1] == len(order), "every row belongs to a frame"
        order, ends = read_only(order, np.int64), read_only(ends, np.int64)
        numbers, layouts = np.empty((2, len(order)), np.int32)
        table = np.zeros((len(ends), COLUMNS), np.int64)
        seen = np.zeros((2, len(batch.layouts)), np.int32)
        _measure(batch.columns, batch.layouts.columns, order, ends, *seen, numbers, layouts, table)
        return cls(batch, order, ends, numbers, layouts, table)

    def write(self, out: NDArray[np.uint8], places: Ints) -> None:
        """Write frame i into `out` from byte places[i] on, a multiple of 8."""
        columns, layouts = self.batch.columns, self.batch.layouts.columns
        places = read_only(places, np.int64)
        _write(columns, layouts, self.order, self.ends, self.numbers, self.layouts, self.table, places, out)


@inlined(allocates=False)
def _digits(values: Any) -> Any:
    """What tells the narrowest type of these numbers (`_type`), 0 if they are whole and from 0 to below 2^52."""
    digits, others = np.int64(0), np.int64(0)
    for i in range(values.size):  # without a way out, so that it is vectorized
        moved = values[i] + _TWO_52
        digits |= np.float64(moved).view(np.int64)
        # -0.0 too, which has to stay; NaN is not equal to itself.
        others |= np.int64(moved - _TWO_52 != values[i]) | np.float64(values[i]).view(np.int64) >> 63
    return np.int64(-1) if others != 0 else digits


@inlined(allocates=False)
def _type(digits: int) -> int:
    """The narrowest type of numbers, given the bitwise or of what `_digits` says of them, or 0 for no number."""
    digits ^= _EXPONENT_52 << 52 if digits != 0 else 0
    if digits >> 32 != 0:
        return F8
    return U1 if digits < 1 << 8 else U2 if digits < 1 << 16 else U4


@inlined(allocates=False)
def _room(size: int) -> int:
    return (size + 7) // 8 * 8


@inlined(allocates=False)
def _item_bytes(number_type: int) -> int:
    return 1 << number_type


@kernel(
    types.void(ROWS, LAYOUTS, INTS, INTS, _INT32, _INT32, _INT32, _INT32, _TABLE), first=True, error_model="numpy",
    allocates=False,
)  # fmt: skip
def _measure(
    rows: HistogramColumns,
    layouts: LayoutColumns,
    order: Ints,
    ends: Ints,
    frame_of: NDArray[np.int32],
    number_of: NDArray[np.int32],
    numbers: NDArray[np.int32],
    used: NDArray[np.int32],
    table: Ints,
) -> None:
    """Fill `numbers`, `used` (Plan.layouts) and `table` of a plan. frame_of[layout] (zeros before) and
    number_of[layout]: the last frame that has it, counted from 1, and its number there."""
    first = 0
    for frame in range(ends.size):
        own = table[frame]
        counts_digits, observations_digits = np.int64(0), np.int64(0)
        for i in range(first, ends[frame]):
            row = order[i]
            layout = rows.layout[row]
            if frame_of[layout] != frame + 1:
                frame_of[layout], number_of[layout] = np.int32(frame + 1), np.int32(own[LAYOUT_COUNT])
                used[first + own[LAYOUT_COUNT]] = layout
                own[LAYOUT_COUNT] += 1
                own[BUCKETS] += layouts.start[layout + 1] - layouts.start[layout]
                own[BOUNDS] += layouts.bound_start[layout + 1] - layouts.bound_start[layout]
            numbers[i] = number_of[layout]
            own[COUNTS] += rows.start[row + 1] - rows.start[row]
            counts_digits |= _digits(rows.counts[rows.start[row] : rows.start[row + 1]])
            observations_digits |= _digits(rows.observations[row : row + 1])
        own[ROW_COUNT] = ends[frame] - first
        own[COUNTS_TYPE], own[OBSERVATIONS_TYPE] = _type(counts_digits), _type(observations_digits)
        own[BYTES] = 0 if own[ROW_COUNT] == 0 else _end(own)
        first = ends[frame]


@inlined(allocates=False)
def _sections(own: Any) -> Any:
    """Where each of the twelve arrays of a frame with this row of the table begins, in bytes, and where the last one
    ends: zero thresholds, boundaries, sums, counts, observations; of each layout the place of the zero bucket, how many
    buckets and how many boundaries; indexes of buckets; the layout of each row; schemas; flags."""
    rows, layouts = own[ROW_COUNT], own[LAYOUT_COUNT]
    bounds = HEADER_BYTES + 8 * layouts
    sums = bounds + 8 * own[BOUNDS]
    counts = sums + 8 * rows
    observations = counts + _room(_item_bytes(own[COUNTS_TYPE]) * own[COUNTS])
    zeros = observations + _room(_item_bytes(own[OBSERVATIONS_TYPE]) * rows)
    sizes = zeros + _room(4 * layouts)
    bound_sizes = sizes + _room(4 * layouts)
    indexes = bound_sizes + _room(4 * layouts)
    numbers = indexes + _room(4 * own[BUCKETS])
    schemas = numbers + _room(4 * rows)
    flags = schemas + _room(layouts)
    end = flags + _room(rows)
    return bounds, sums, counts, observations, zeros, sizes, bound_sizes, indexes, numbers, schemas, flags, end


@inlined(allocates=False)
def _end(own: Any) -> Any:
    return _sections(own)[11]


@inlined(allocates=False)
def _write_layouts(layouts: Any, used: Any, own: Any, data: Any) -> None:
    """Write the header of a frame, which has these layouts in this order, and all that tells of layouts."""
    bounds, _, _, _, zeros, sizes, bound_sizes, indexes, _, schemas, _, _ = _sections(own)
    ints, floats = data.view(np.int32), data.view(np.float64)
    ints[0], ints[1] = VERSION | own[OBSERVATIONS_TYPE] << 8 | own[COUNTS_TYPE] << 16, 0
    for i in range(4):
        ints[2 + i] = own[ROW_COUNT + i]
    data.view(np.int64)[3] = own[COUNTS]
    index, bound = indexes // 4, bounds // 8
    for i in range(own[LAYOUT_COUNT]):
        layout = used[i]
        begin, bound_begin = layouts.start[layout], layouts.bound_start[layout]
        size, bound_size = layouts.start[layout + 1] - begin, layouts.bound_start[layout + 1] - bound_begin
        floats[HEADER_BYTES // 8 + i] = layouts.zero_threshold[layout]
        data[schemas + i] = np.uint8(layouts.schema[layout])
        ints[zeros // 4 + i], ints[sizes // 4 + i] = layouts.zero_at[layout], size
        ints[bound_sizes // 4 + i] = bound_size
        for k in range(size):
            ints[index + k] = layouts.indexes[begin + k]
        for k in range(bound_size):
            floats[bound + k] = layouts.bound[bound_begin + k]
        index += size
        bound += bound_size


@inlined(allocates=False)
def _write_rows(rows: Any, order: Any, numbers: Any, own: Any, data: Any) -> None:
    """Write all that tells of the rows of a frame, which are in this order and have layouts of these numbers."""
    _, sums, counts, observations, _, _, _, _, own_layouts, _, flags, _ = _sections(own)
    ints, floats = data.view(np.int32), data.view(np.float64)
    at = counts
    for i in range(own[ROW_COUNT]):
        row = order[i]
        floats[sums // 8 + i], ints[own_layouts // 4 + i], data[flags + i] = rows.sum[row], numbers[i], rows.flags[row]
        own_counts = rows.counts[rows.start[row] : rows.start[row + 1]]
        at = _put_numbers(own_counts, own[COUNTS_TYPE], data, at)
        observations = _put_numbers(rows.observations[row : row + 1], own[OBSERVATIONS_TYPE], data, observations)


@inlined(allocates=False)
def _put_numbers(values: Any, number_type: int, data: Any, at: int) -> Any:
    """Write the values as numbers of this type from byte `at` on. Returns where they end."""
    end = at + values.size * _item_bytes(number_type)
    if number_type == U1:
        octets = data[at:end]
        for i in range(values.size):
            octets[i] = np.uint8(values[i])
    elif number_type == U2:
        shorts = data[at:end].view(np.uint16)
        for i in range(values.size):
            shorts[i] = np.uint16(values[i])
    elif number_type == U4:
        words = data[at:end].view(np.uint32)
        for i in range(values.size):
            words[i] = np.uint32(values[i])
    else:
        floats = data[at:end].view(np.float64)
        for i in range(values.size):
            floats[i] = values[i]
    return end


@kernel(
    types.void(ROWS, LAYOUTS, INTS, INTS, _INT32, _INT32, _TABLE, INTS, _OUT), first=True, error_model="numpy",
    allocates=False,
)  # fmt: skip
def _write(
    rows: HistogramColumns,
    layouts: LayoutColumns,
    order: Ints,
    ends: Ints,
    numbers: NDArray[np.int32],
    used: NDArray[np.int32],
    table: Ints,
    places: Ints,
    out: NDArray[np.uint8],
) -> None:
    """Write the frames of a plan (`Plan.write`)."""
    first = 0
    for frame in range(ends.size):
        own = table[frame]
        if own[ROW_COUNT] > 0:
            data = out[places[frame] : places[frame] + own[BYTES]]
            words = data.view(np.int64)
            for end in _sections(own):
                words[end // 8 - 1] = 0  # the padding
            _write_layouts(layouts, used[first : ends[frame]], own, data)
            _write_rows(rows, order[first : ends[frame]], numbers[first : ends[frame]], own, data)
        first = ends[frame]
