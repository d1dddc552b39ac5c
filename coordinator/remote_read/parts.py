"""The samples of one query in the order of the response, cut into parts that a thread writes one at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shared.histograms.batch import HistogramBatch
from shared.histograms.references import is_reference, rows_of
from shared.kernels import inlined
from shared.labels import LabelFrame
from shared.promql.model import Bool, Float, Int, RangeVector
from shared.promql.rendering.labels import LabelTexts, copy, label_pairs
from shared.protobuf_fields import delimited_head

PIECE_NUMBERS = 1 << 16
"""Numbers written at a time: about 1 MB as samples, a millisecond of work. A float counts as one number. A histogram
counts as one for each bucket and boundary, plus NUMBERS_BESIDE + 1."""
NUMBERS_BESIDE = 8
"""A change from floats to histograms or back also counts as this many, since a chunk ends there."""
PART_NUMBERS_MAX = 1 << 20
"""A series with more numbers is cut into parts, which bounds a thread's output buffer to 20 to 30 MB. A million samples
are half a year at an interval of 15 s."""

_HEADS, _VALUE_HEADS = ([delimited_head(number, size) for size in range(128)] for number in (1, 2))
_SHORT_MAX = 127 - 2
"""Longest name and value of a label, together, for which both lengths take one byte."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Series in the order of their label sets, each in one part or in several consecutive ones.

    `rows`: int64[parts], the index of the part's series in `labels`; `firsts`, `lasts`: int64[parts], its samples are
    first ≤ i < last of `times_ms` (int64) and `values` (float64); `begins`: bool[parts], whether it is the first part
    of its series; `numbers`: int64[parts], its count of numbers (see PIECE_NUMBERS).
    """

    labels: LabelTexts
    label_bytes: Int
    rows: Int
    firsts: Int
    lasts: Int
    begins: Bool
    numbers: Int
    times_ms: Int
    values: Float
    histograms: HistogramBatch | None

    @property
    def bits(self) -> Int:
        """int64[samples]: the bits of the values."""
        return self.values.view(np.int64)

    def spans(self) -> list[tuple[int, int]]:
        """(first, last) of each piece: parts with some PIECE_NUMBERS in total, or a single part."""
        if not len(self.rows):
            return []
        weight = np.cumsum(self.numbers + 1)
        cuts = np.searchsorted(weight, np.arange(PIECE_NUMBERS, weight[-1], PIECE_NUMBERS), side="right")
        ends = [*(int(cut) for cut in np.unique(cuts) if 0 < cut < len(weight)), len(weight)]
        return list(zip([0, *ends], ends, strict=False))


def parts_of(vector: RangeVector, *, keeps_empty: bool) -> Parts:
    """The parts of a vector's series. `keeps_empty`: including series without samples."""
    samples = vector.samples
    order = vector.labels.sort_order()
    if not keeps_empty:
        order = order[np.diff(samples.offsets)[order] > 0]
    firsts, lasts = samples.offsets[:-1][order], samples.offsets[1:][order]
    values = np.ascontiguousarray(samples.values)
    number_offsets = _number_offsets(values, samples.histograms)
    series_of_parts = np.arange(len(order))
    is_long = number_offsets[lasts] - number_offsets[firsts] > PART_NUMBERS_MAX
    if is_long.any():
        series_of_parts, firsts, lasts = _cut(firsts, lasts, is_long, number_offsets)
    labels = _pairs(vector.labels)
    lengths = np.append(np.diff(labels.offsets), 0)  # piece -1 takes the appended 0
    return Parts(
        labels,
        lengths[labels.pieces].sum(axis=0, dtype=np.int64),
        order[series_of_parts],
        firsts,
        lasts,
        np.diff(series_of_parts, prepend=-1) > 0,
        number_offsets[lasts] - number_offsets[firsts],
        np.ascontiguousarray(samples.timestamps_ms),
        values,
        samples.histograms,
    )


def _cut(firsts: Int, lasts: Int, is_long: Bool, number_offsets: Int) -> tuple[Int, Int, Int]:
    """(series, first sample, end of the samples) of each part."""
    parts, next_row = [], 0
    for row in np.flatnonzero(is_long).tolist():
        parts.append((np.arange(next_row, row), firsts[next_row:row], lasts[next_row:row]))
        first, last = firsts[row], lasts[row]
        boundaries = np.arange(number_offsets[first], number_offsets[last], PART_NUMBERS_MAX)
        ends = np.unique([*(first + np.searchsorted(number_offsets[first : last + 1], boundaries)), last])
        parts.append((np.full(len(ends) - 1, row), ends[:-1], ends[1:]))
        next_row = row + 1
    parts.append((np.arange(next_row, len(firsts)), firsts[next_row:], lasts[next_row:]))
    rows, starts, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, starts, ends


def _number_offsets(values: Float, batch: HistogramBatch | None) -> Int:
    """int64[samples + 1]: the count of numbers before each sample."""
    offsets = np.arange(len(values) + 1)
    if batch is not None:
        is_histogram = is_reference(values)
        rows = rows_of(values[is_histogram])
        bounds = np.diff(batch.layouts.columns.bound_start)[batch.columns.layout]
        extra = np.zeros(len(values) + 1, np.int64)
        extra[1:][is_histogram] = NUMBERS_BESIDE + (np.diff(batch.columns.start) + bounds)[rows]
        extra[2:] += NUMBERS_BESIDE * (is_histogram[1:] != is_histogram[:-1])
        offsets += np.cumsum(extra)
    return offsets


def _pairs(labels: LabelFrame) -> LabelTexts:
    """Each label encoded as the field `labels` (1) of a series."""

    def pair_with(name: str):  # type: ignore[no-untyped-def]
        raw = name.encode()
        start = delimited_head(1, len(raw)) + raw
        short = _SHORT_MAX - len(start)

        def pair(value: str) -> bytes:
            text = value.encode()
            size = len(text)
            if size <= short:
                return _HEADS[len(start) + 2 + size] + start + _VALUE_HEADS[size] + text
            label = start + delimited_head(2, size) + text
            return delimited_head(1, len(label)) + label

        return pair

    return label_pairs(labels, pair_with)


@inlined(allocates=False)
def put_labels(out, at, pool, offsets, pieces, series):  # type: ignore[no-untyped-def]
    """Write the labels of a series. Returns their end."""
    for name in range(pieces.shape[0]):
        piece = pieces[name, series]
        if piece >= 0:
            at = copy(out, at, pool, offsets[piece], offsets[piece + 1])
    return at
