"""Samples that are histograms: in place of a float, they have a reference to a row of a batch.

A reference is a NaN with the row in its lower 48 bits. No other sample has such bits: see `without_references`. Code
that moves, sorts, selects or merges samples can therefore treat histograms as numbers; only code that computes with
values has to distinguish them. The result of arithmetic with a reference is meaningless and unspecified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import INTS, HistogramBatch, Ints, concatenated
from shared.histograms.frames import with_used_layouts
from shared.histograms.interning import with_distinct_layouts
from shared.kernels import inlined, kernel, types

_ROW_BITS = 48
_ROW_MASK = (1 << _ROW_BITS) - 1
_TAG = 0x7FFD
"""The upper bits of a quiet NaN, which no load or store changes."""


def references(rows: Ints) -> NDArray[np.float64]:
    """float64[n]: references to rows ≥ 0."""
    return (np.asarray(rows, np.int64) | _TAG << _ROW_BITS).view(np.float64)


def is_reference(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which values are references: bool of the same shape."""
    return np.asarray(values.view(np.int64) >> _ROW_BITS == _TAG)


def rows_of(values: NDArray[np.float64]) -> Ints:
    """int64 of the same shape: the rows that these references refer to; meaningless for other values."""
    return values.view(np.int64) & _ROW_MASK


@inlined
def reference_bits(row: Any) -> Any:
    """The bits (int64) of a reference to this row."""
    return row | _TAG << _ROW_BITS


@inlined
def refers(bits: Any) -> Any:
    """Whether the value with these bits (int64) is a reference."""
    return bits >> _ROW_BITS == _TAG


@inlined
def row_of(bits: Any) -> Any:
    """The row that the reference with these bits (int64) refers to."""
    return bits & _ROW_MASK


def without_references(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values received from outside, with each NaN that has the bits of a reference replaced by an ordinary one. Copies
    only if there are any."""
    return np.where(is_reference(values), np.nan, values) if _any_reference(values.view(np.int64)) else values


@kernel(types.boolean(INTS), allocates=False)
def _any_reference(bits: Ints) -> bool:
    """Whether any of the values with these bits is a reference."""
    any_refers = False
    for i in range(bits.size):
        any_refers |= bits[i] >> _ROW_BITS == _TAG
    return any_refers


def refer_into(values: NDArray[np.float64], rows: int) -> bool:
    """Whether every reference among the values refers to one of the first `rows` rows."""
    return bool(_last_row(values.view(np.int64)) < rows)


@kernel(types.int64(INTS), first=True, allocates=False)
def _last_row(bits: Ints) -> int:
    """The highest row that a value with these bits refers to, or -1."""
    last: Any = np.int64(-1)
    for i in range(bits.size):
        last = max(last, bits[i] & _ROW_MASK if bits[i] >> _ROW_BITS == _TAG else -1)
    return int(last)


def shifted(values: NDArray[np.float64], by: int) -> NDArray[np.float64]:
    """The values, or a copy, with each reference moved `by` rows further down."""
    if not by:
        return values
    renumbered = np.array(values, order="C")
    _shift(renumbered.view(np.int64).reshape(-1), by)
    return renumbered


@kernel(types.void(types.int64[::1], types.int64), first=True, allocates=False)
def _shift(bits: Ints, by: int) -> None:
    for i in range(bits.size):
        bits[i] += by if bits[i] >> _ROW_BITS == _TAG else 0


def used_only(
    values: NDArray[np.float64], histograms: HistogramBatch | None
) -> tuple[NDArray[np.float64], HistogramBatch | None]:
    """(the values, the histograms that they refer to: each once, in the order of the rows; None if there are none).
    Values without references, and values that refer to all rows, are returned unchanged."""
    return (values, None) if histograms is None else used_of(values, [histograms])


def used_of(
    values: NDArray[np.float64], batches: Sequence[HistogramBatch]
) -> tuple[NDArray[np.float64], HistogramBatch | None]:
    """As `used_only`, for values that refer to the rows of all batches, numbered from one batch to the next. If rows of
    a batch are left out, so are layouts that no row has; equal layouts of several batches become one."""
    is_histogram = is_reference(values)
    rows = rows_of(values[is_histogram])
    firsts = np.cumsum([0, *(len(batch) for batch in batches)])
    is_used = np.zeros(firsts[-1], np.bool_)
    is_used[rows] = True
    if not is_used.any():
        return values, None
    taken = [
        batch if used.all() else with_used_layouts(batch.take(np.flatnonzero(used)))
        for batch, used in zip(batches, np.split(is_used, firsts[1:-1]), strict=True)
        if used.any()
    ]
    if not is_used.all():
        values = values.copy()
        values[is_histogram] = references((np.cumsum(is_used) - 1)[rows])
    return values, taken[0] if len(taken) == 1 else with_distinct_layouts(concatenated(taken))


def stacked(
    parts: list[tuple[NDArray[np.float64], HistogramBatch | None]],
) -> tuple[list[NDArray[np.float64]], HistogramBatch | None]:
    """(the values of each part, changed to refer to the second result; the histograms of all parts in one batch). A
    batch that several parts share occurs once."""
    batches = list({id(batch): batch for _, batch in parts if batch is not None}.values())
    if len(batches) <= 1:
        return [values for values, _ in parts], batches[0] if batches else None
    firsts = np.cumsum([0, *(len(batch) for batch in batches)]).tolist()
    first_of = {id(batch): first for batch, first in zip(batches, firsts, strict=False)}
    renumbered = [values if batch is None else shifted(values, first_of[id(batch)]) for values, batch in parts]
    return renumbered, concatenated(batches)
