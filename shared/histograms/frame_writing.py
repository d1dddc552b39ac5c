"""Writes rows of a batch as frames (`frames.py`), many at once.

A first kernel measures each frame, a second one writes all of them. Counts are written as the narrowest type that holds
them exactly, and layouts that no row of a frame has are left out.
"""

# The types of a kernel do not tell numpy integers from ints.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
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
from shared.histograms.frame_layout import EXPONENT_52, F8, U1, U2, U4, arranged, digits_of, put_header, put_numbers
from shared.kernels import inlined, kernel, types

# Columns of the table of frames: what they hold, the codes of their types, and their bytes.
ROW_COUNT, LAYOUT_COUNT, BUCKETS, BOUNDS, COUNTS, COUNTS_CODE, OBSERVATIONS_CODE, BYTES = range(8)
COLUMNS = 8

_TABLE = types.Array(types.int64, 2, "C")
_INT32 = types.int32[::1]
_WORDS = types.int64[::1]


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows of a batch as they will be written: frame i has the rows order[ends[i - 1]:ends[i]], and takes
    table[i, BYTES] bytes, a multiple of 8, or none if it has no rows."""

    batch: HistogramBatch
    order: Ints
    ends: Ints
    numbers: NDArray[np.int32]
    """int32[rows]: for each row in this order, the number of its layout in its frame."""
    layouts: NDArray[np.int32]
    """int32[rows]: the layouts of frame i, as numbered in the batch, begin at ends[i - 1]."""
    table: Ints

    @classmethod
    def of(cls, batch: HistogramBatch, order: Ints, ends: Ints, digits: Ints | None = None) -> Plan:
        """`order`: rows of the batch; `ends`: int64[frames], ascending to their number. `digits`: int64[len(batch)],
        `frame_layout.digits_of` of the counts of each row, if known."""
        assert not len(ends) or ends[-1] == len(order), "every row belongs to a frame"
        order, ends = read_only(order, np.int64), read_only(ends, np.int64)
        numbers, layouts = np.empty((2, len(order)), np.int32)
        table = np.zeros((len(ends), COLUMNS), np.int64)
        latest = np.zeros((2, len(batch.layouts)), np.int32)
        if digits is None:
            digits = np.empty(len(batch), np.int64)
            _find_digits(batch.columns, digits)
        _measure(batch.columns, batch.layouts.columns, order, ends, digits, *latest, numbers, layouts, table)
        return cls(batch, order, ends, numbers, layouts, table)

    def write(self, out: NDArray[np.uint8], places: Ints) -> None:
        """Write frame i into `out` from byte places[i] on, a multiple of 8."""
        columns, layouts = self.batch.columns, self.batch.layouts.columns
        places = read_only(places, np.int64)
        words = out.view(np.int64)
        _write(columns, layouts, self.order, self.ends, self.numbers, self.layouts, self.table, places // 8, words)


@inlined(allocates=False)
def _code(digits: int) -> int:
    """The code of the narrowest type of numbers. `digits`: the bitwise or of their `digits_of`, or 0."""
    digits ^= EXPONENT_52 << 52 if digits != 0 else 0
    if digits >> 32 != 0:
        return F8
    return U1 if digits < 1 << 8 else U2 if digits < 1 << 16 else U4


@kernel(types.void(ROWS, _WORDS), first=True, error_model="numpy", allocates=False)
def _find_digits(rows: HistogramColumns, digits: Ints) -> None:
    """Fill in `digits_of` of the counts of each row."""
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
    """Fill `numbers`, `used` (Plan.layouts) and `table` of a plan. frame_of[layout] (zeros at first) and
    number_of[layout]: the latest frame that has the layout, counted from 1, and the layout's number there."""
    first = 0
    for frame in range(ends.size):
        entry = table[frame]
        counts_digits, observations_digits = np.int64(0), np.int64(0)
        for i in range(first, ends[frame]):
            row = order[i]
            layout = rows.layout[row]
            if frame_of[layout] != frame + 1:
                frame_of[layout], number_of[layout] = np.int32(frame + 1), np.int32(entry[LAYOUT_COUNT])
                used[first + entry[LAYOUT_COUNT]] = layout
                entry[LAYOUT_COUNT] += 1
                entry[BUCKETS] += layouts.start[layout + 1] - layouts.start[layout]
                entry[BOUNDS] += layouts.bound_start[layout + 1] - layouts.bound_start[layout]
            numbers[i] = number_of[layout]
            entry[COUNTS] += rows.start[row + 1] - rows.start[row]
            counts_digits |= digits[row]
            observations_digits |= digits_of(rows.observations[row : row + 1])
        entry[ROW_COUNT] = ends[frame] - first
        entry[COUNTS_CODE], entry[OBSERVATIONS_CODE] = _code(counts_digits), _code(observations_digits)
        entry[BYTES] = 0 if entry[ROW_COUNT] == 0 else 8 * _sections(entry).end
        first = ends[frame]


@inlined(allocates=False)
def _sections(entry: Any) -> Any:
    """The sections of the frame with this entry of the table."""
    return arranged(
        entry[ROW_COUNT], entry[LAYOUT_COUNT], entry[BUCKETS], entry[BOUNDS], entry[COUNTS], entry[COUNTS_CODE],
        entry[OBSERVATIONS_CODE],
    )  # fmt: skip


@inlined(allocates=False)
def _write_layouts(layouts: Any, used: Any, sections: Any, words: Any) -> None:
    """Write the arrays about the layouts of a frame with these sections. `used`: its layouts, in order."""
    ints, floats, octets = words.view(np.int32), words.view(np.float64), words.view(np.uint8)
    index, bound = 2 * sections.indexes, sections.bound_at
    for i in range(sections.layouts):
        layout = used[i]
        begin, bound_begin = layouts.start[layout], layouts.bound_start[layout]
        size, bound_size = layouts.start[layout + 1] - begin, layouts.bound_start[layout + 1] - bound_begin
        floats[sections.zero_thresholds + i] = layouts.zero_threshold[layout]
        octets[8 * sections.schemas + i] = np.uint8(layouts.schema[layout])
        ints[2 * sections.zero_places + i], ints[2 * sections.layout_sizes + i] = layouts.zero_at[layout], size
        ints[2 * sections.bound_sizes + i] = bound_size
        for k in range(size):
            ints[index + k] = layouts.indexes[begin + k]
        for k in range(bound_size):
            floats[bound + k] = layouts.bound[bound_begin + k]
        index += size
        bound += bound_size


@inlined(allocates=False)
def _write_rows(rows: Any, order: Any, numbers: Any, sections: Any, words: Any) -> None:
    """Write the arrays about the rows of a frame, which are in this order and have layouts with these numbers."""
    ints, floats, octets = words.view(np.int32), words.view(np.float64), words.view(np.uint8)
    counts, observations = 8 * sections.counts_at, 8 * sections.observations
    for i in range(sections.rows):
        row = order[i]
        floats[sections.sums + i], ints[2 * sections.layout + i] = rows.sum[row], numbers[i]
        octets[8 * sections.flags + i] = rows.flags[row]
        counts = put_numbers(rows.counts[rows.start[row] : rows.start[row + 1]], sections.count_code, words, counts)
        observations = put_numbers(rows.observations[row : row + 1], sections.observation_code, words, observations)


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
    """Write the frames of a plan (`Plan.write`), each of which begins at a word of `out`."""
    first = 0
    for frame in range(ends.size):
        sections = _sections(table[frame])
        if sections.rows > 0:
            words = out[places[frame] : places[frame] + sections.end]
            put_header(words, sections)
            _write_layouts(layouts, used[first : ends[frame]], sections, words)
            _write_rows(rows, order[first : ends[frame]], numbers[first : ends[frame]], sections, words)
        first = ends[frame]
