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
from numpy.typing import NDArray

from shared import kernel_types as types
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
from shared.histograms.frame_layout import EXPONENT_52, F8, U1, U2, U4, arranged, digits_of, put_header, put_numbers
from shared.kernels import inlined, kernel

# Columns of the table of frames: what they hold, the codes of their types, and their bytes.
ROW_COUNT, LAYOUT_COUNT, BUCKETS, BOUNDS, COUNTS, COUNTS_CODE, OBSERVATIONS_CODE, BYTES = range(8)
COLUMNS = 8

_TABLE = types.Array(types.int64, 2, "C")
_INT32 = types.int32[::1]
_WORDS = types.int64[::1]


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
    def of(cls, batch: HistogramBatch, order: Ints, ends: Ints, digits: Ints | None = None) -> Plan:
        """Expects rows of the batch, and int64[frames] `ends` that ascend to their number. `digits` int64[len(batch)]:
        what `frame_layout.digits_of` says of the counts of each row, if that is known."""
        assert not len(ends) or ends[-1] == len(order), "every row belongs to a frame"
        order, ends = read_only(order, np.int64), read_only(ends, np.int64)
        numbers, layouts = np.empty((2, len(order)), np.int32)
        table = np.zeros((len(ends), COLUMNS), np.int64)
        seen = np.zeros((2, len(batch.layouts)), np.int32)
        if digits is None:
            digits = np.empty(len(batch), np.int64)
            _find_digits(batch.columns, digits)
        _measure(batch.columns, batch.layouts.columns, order, ends, digits, *seen, numbers, layouts, table)
        return cls(batch, order, ends, numbers, layouts, table)

    def write(self, out: NDArray[np.uint8], places: Ints) -> None:
        """Write frame i into `out` from byte places[i] on, a multiple of 8."""
        columns, layouts = self.batch.columns, self.batch.layouts.columns
        places = read_only(places, np.int64)
        words = out.view(np.int64)
        _write(columns, layouts, self.order, self.ends, self.numbers, self.layouts, self.table, places // 8, words)


@inlined(allocates=False)
def _code(digits: int) -> int:
    """The code of the narrowest type of numbers, of which this is the bitwise or of what `digits_of` says, or 0."""
    digits ^= EXPONENT_52 << 52 if digits != 0 else 0
    if digits >> 32 != 0:
        return F8
    return U1 if digits < 1 << 8 else U2 if digits < 1 << 16 else U4


@kernel(types.void(ROWS, _WORDS), first=True, error_model="numpy", allocates=False)
def _find_digits(rows: HistogramColumns, digits: Ints) -> None:
    """Fill in what `digits_of` says of the counts of each row."""
    for row in range(digits.size):
        digits[row] = digits_of(rows.counts[rows.start[row] : rows.start[row + 1]])


@kernel(
    types.void(ROWS, LAYOUTS, INTS, INTS, INTS, _INT32, _INT32, _INT32, _INT32, _TABLE), first=True, allocates=False,
    error_model="numpy",
)  # fmt: skip
def _measure(
    rows: HistogramColumns,
    layouts: LayoutColumns,
    order: Ints,
    ends: Ints,
    digits: Ints,
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
            counts_digits |= digits[row]
            observations_digits |= digits_of(rows.observations[row : row + 1])
        own[ROW_COUNT] = ends[frame] - first
        own[COUNTS_CODE], own[OBSERVATIONS_CODE] = _code(counts_digits), _code(observations_digits)
        own[BYTES] = 0 if own[ROW_COUNT] == 0 else 8 * _sections(own).end
        first = ends[frame]


@inlined(allocates=False)
def _sections(own: Any) -> Any:
    """Of the frame with this row of the table."""
    return arranged(
        own[ROW_COUNT], own[LAYOUT_COUNT], own[BUCKETS], own[BOUNDS], own[COUNTS], own[COUNTS_CODE],
        own[OBSERVATIONS_CODE],
    )  # fmt: skip


@inlined(allocates=False)
def _write_layouts(layouts: Any, used: Any, own: Any, words: Any) -> None:
    """Write all that tells of the layouts of a frame with these sections, which has these in this order."""
    ints, floats, octets = words.view(np.int32), words.view(np.float64), words.view(np.uint8)
    index, bound = 2 * own.indexes, own.bound_at
    for i in range(own.layouts):
        layout = used[i]
        begin, bound_begin = layouts.start[layout], layouts.bound_start[layout]
        size, bound_size = layouts.start[layout + 1] - begin, layouts.bound_start[layout + 1] - bound_begin
        floats[own.zero_thresholds + i] = layouts.zero_threshold[layout]
        octets[8 * own.schemas + i] = np.uint8(layouts.schema[layout])
        ints[2 * own.zero_places + i], ints[2 * own.layout_sizes + i] = layouts.zero_at[layout], size
        ints[2 * own.bound_sizes + i] = bound_size
        for k in range(size):
            ints[index + k] = layouts.indexes[begin + k]
        for k in range(bound_size):
            floats[bound + k] = layouts.bound[bound_begin + k]
        index += size
        bound += bound_size


@inlined(allocates=False)
def _write_rows(rows: Any, order: Any, numbers: Any, own: Any, words: Any) -> None:
    """Write all that tells of the rows of a frame, which are in this order and have layouts of these numbers."""
    ints, floats, octets = words.view(np.int32), words.view(np.float64), words.view(np.uint8)
    counts, observations = 8 * own.counts_at, 8 * own.observations
    for i in range(own.rows):
        row = order[i]
        floats[own.sums + i], ints[2 * own.layout + i] = rows.sum[row], numbers[i]
        octets[8 * own.flags + i] = rows.flags[row]
        counts = put_numbers(rows.counts[rows.start[row] : rows.start[row + 1]], own.count_code, words, counts)
        observations = put_numbers(rows.observations[row : row + 1], own.observation_code, words, observations)


@kernel(
    types.void(ROWS, LAYOUTS, INTS, INTS, _INT32, _INT32, _TABLE, INTS, _WORDS), first=True, error_model="numpy",
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
    out: Ints,
) -> None:
    """Write the frames of a plan (`Plan.write`), of which each begins at a word of `out`."""
    first = 0
    for frame in range(ends.size):
        own = _sections(table[frame])
        if own.rows > 0:
            words = out[places[frame] : places[frame] + own.end]
            put_header(words, own)
            _write_layouts(layouts, used[first : ends[frame]], own, words)
            _write_rows(rows, order[first : ends[frame]], numbers[first : ends[frame]], own, words)
        first = ends[frame]
