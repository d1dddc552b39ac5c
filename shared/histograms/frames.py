"""Batches of histograms as bytes: the arrays one after another, on the wire between processes and in the journal.

The counts, which take most of the space, are written as the narrowest type that holds them exactly: most are whole
numbers below 2^16. Layouts that no row has are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import (
    NO_ZERO,
    HistogramBatch,
    HistogramColumns,
    Ints,
    LayoutColumns,
    Layouts,
    sealed,
)
from shared.histograms.frame_layout import HEADER_WORDS, VERSION, sections_within
from shared.histograms.frame_writing import BYTES, Plan
from shared.histograms.schemas import CUSTOM, SCHEMA_MAX, SCHEMA_MIN

INDEX_MAX = np.iinfo(np.int32).max - 1
"""The largest index of a bucket; real ones are far smaller."""
Frame = bytes | bytearray | memoryview

_NUMBERS = ("<u1", "<u2", "<u4", "<f8")
"""The types of counts, by code."""


def encode(batch: HistogramBatch) -> Frame:
    """The batch as one frame, a multiple of 8 bytes long."""
    if not len(batch):
        return VERSION.to_bytes(8 * HEADER_WORDS, "little")
    plan = Plan.of(batch, np.arange(len(batch)), np.array([len(batch)]))
    frame = np.empty(plan.table.item(0, BYTES), np.uint8)
    plan.write(frame, np.zeros(1, np.int64))
    return memoryview(frame.data)


def decode(frame: Frame) -> HistogramBatch:
    """The batch of a frame. Raises ValueError if `encode` did not write it."""
    octets = np.frombuffer(frame, np.uint8)
    if len(octets) % 8:
        raise ValueError(f"{len(octets)} bytes are no histograms, which take a multiple of 8")
    words = np.require(octets.view(np.int64), requirements="A")
    sections = sections_within(words)
    if sections.end != len(words):
        raise ValueError(f"{len(octets)} bytes are no whole frame of histograms of version {VERSION}")
    rows, layouts, buckets, bounds, counts = sections[:5]

    def array(name: str, place: int, items: int) -> NDArray[Any]:
        return words[place:].view(name)[:items]

    numbers = array(_NUMBERS[sections.count_code], sections.counts_at, counts)
    observations = array(_NUMBERS[sections.observation_code], sections.observations, rows)
    sizes, bound_sizes = (array("<i4", place, layouts) for place in (sections.layout_sizes, sections.bound_sizes))
    layout, sums = array("<i4", sections.layout, rows), array("<f8", sections.sums, rows)
    schema, zero_at = array("<i1", sections.schemas, layouts), array("<i4", sections.zero_places, layouts)
    thresholds, bound = array("<f8", sections.zero_thresholds, layouts), array("<f8", sections.bound_at, bounds)
    indexes, flags = array("<i4", sections.indexes, buckets), array("<u1", sections.flags, rows)
    starts, bound_starts = _starts(sizes), _starts(bound_sizes)
    if min(sizes.min(initial=0), bound_sizes.min(initial=0), layout.min(initial=0)) < 0:
        raise ValueError("histograms have layouts of negative size")
    if starts[-1] != buckets or bound_starts[-1] != bounds or layout.max(initial=-1) >= layouts:
        raise ValueError(f"histograms have other layouts than {layouts} of {buckets} buckets")
    start = _starts(sizes[layout])
    if start[-1] != counts:
        raise ValueError(f"{rows} histograms have {start[-1]} buckets and {counts} counts")
    table = LayoutColumns(schema, thresholds, zero_at, starts, indexes, bound_starts, bound)
    if not _are_layouts(table):
        raise ValueError(f"{layouts} layouts of histograms have schemas, zero buckets or indexes that do not exist")
    floats = observations.astype(np.float64), numbers.astype(np.float64)
    return HistogramBatch(
        Layouts(sealed(_owned(table))),
        sealed(_owned(HistogramColumns(layout, flags, floats[0], sums, start, floats[1]))),
    )


def _are_layouts(table: LayoutColumns) -> bool:
    """Whether every layout has a known schema and, if it is custom, indexes within its boundaries, otherwise a zero
    bucket. Kernels rely on this."""
    is_custom, sizes = table.schema == CUSTOM, np.diff(table.start)
    is_known = is_custom | ((table.schema >= SCHEMA_MIN) & (table.schema <= SCHEMA_MAX))
    has_zero = np.where(is_custom, table.zero_at == NO_ZERO, (table.zero_at >= 0) & (table.zero_at < sizes))
    last = np.repeat(np.where(is_custom, np.diff(table.bound_start), INDEX_MAX), sizes)
    first = np.repeat(np.where(is_custom, 0, -INDEX_MAX), sizes)
    return bool((is_known & has_zero).all() and ((table.indexes >= first) & (table.indexes <= last)).all())


def with_used_layouts(batch: HistogramBatch) -> HistogramBatch:
    """The same rows with only the layouts that some row has, in their old order."""
    columns, table = batch.columns, batch.layouts.columns
    is_used = np.zeros(len(batch.layouts), np.bool_)
    is_used[columns.layout] = True
    if is_used.all():
        return batch
    taken = np.flatnonzero(is_used)
    number = (np.cumsum(is_used) - 1).astype(np.int32)
    start, places = _ragged(table.start, taken)
    bound_start, bound_places = _ragged(table.bound_start, taken)
    layouts = LayoutColumns(
        table.schema[taken], table.zero_threshold[taken], table.zero_at[taken], start, table.indexes[places],
        bound_start, table.bound[bound_places],
    )  # fmt: skip
    return HistogramBatch(Layouts(sealed(layouts)), sealed(columns._replace(layout=number[columns.layout])))


def _ragged(start: Ints, taken: Ints) -> tuple[Ints, Ints]:
    """(where each taken part begins in the result, the old place of each of its items)."""
    starts = _starts(np.diff(start)[taken])
    return starts, np.arange(starts[-1]) + np.repeat(start[taken] - starts[:-1], np.diff(starts))


def _starts(sizes: NDArray[Any]) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))


def _owned(columns: Any) -> Any:
    """Copies of the columns, which are aligned and do not keep the frame in memory."""
    return type(columns)(*(np.array(array) for array in columns))
