"""Batches of histograms as bytes: the arrays one after another, on the wire between processes and in the journal.

The counts, which take most of the room, are written as the narrowest type that holds them exactly: most are whole
numbers below 2^16. Layouts that no row has are left out.
"""

from __future__ import annotations

import struct
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
from shared.histograms.frame_writing import BYTES, HEADER_BYTES, VERSION, Plan
from shared.histograms.schemas import CUSTOM, SCHEMA_MAX, SCHEMA_MIN

_HEADER = struct.Struct("<BBBBIIIIIQ")
assert _HEADER.size == HEADER_BYTES
INDEX_MAX = np.iinfo(np.int32).max - 1
"""Of a bucket; real ones are far smaller."""
Frame = bytes | bytearray | memoryview

_NUMBERS = ("<u1", "<u2", "<u4", "<f8")
"""The types of counts by their code."""


def encode(batch: HistogramBatch) -> Frame:
    """The batch as one frame, a multiple of 8 bytes long."""
    if not len(batch):
        return VERSION.to_bytes(HEADER_BYTES, "little")
    plan = Plan.of(batch, np.arange(len(batch)), np.array([len(batch)]))
    frame = np.empty(plan.table.item(0, BYTES), np.uint8)
    plan.write(frame, np.zeros(1, np.int64))
    return memoryview(frame.data)


def decode(frame: Frame) -> HistogramBatch:
    """The batch of a frame. Raises ValueError if `encode` did not write it."""
    data = memoryview(frame).cast("B")
    if data.nbytes < _HEADER.size:
        raise ValueError(f"{data.nbytes} bytes cannot hold histograms")
    version, observations_code, counts_code, _, _, rows, layouts, buckets, bounds, counts = _HEADER.unpack_from(data)
    if version != VERSION or max(observations_code, counts_code) >= len(_NUMBERS):
        raise ValueError(f"version {version} of histograms is not known to this release")
    types = (
        ("<f8", layouts), ("<f8", bounds), ("<f8", rows), (_NUMBERS[counts_code], counts),
        (_NUMBERS[observations_code], rows), ("<i4", layouts), ("<i4", layouts), ("<i4", layouts), ("<i4", buckets),
        ("<i4", rows), ("<i1", layouts), ("<u1", rows),
    )  # fmt: skip
    size = _HEADER.size + sum(_room(np.dtype(name).itemsize * items) for name, items in types)
    if data.nbytes != size:
        raise ValueError(f"{data.nbytes} bytes hold no {rows} histograms of {counts} counts, which take {size}")
    arrays, at = [], _HEADER.size
    for name, items in types:
        arrays.append(np.frombuffer(data, dtype=name, count=items, offset=at))
        at += _room(arrays[-1].nbytes)
    thresholds, bound, sums, numbers, observations, zero_at, sizes, bound_sizes, indexes, layout, schema, flags = arrays
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
    """Whether all of them have a known schema, a zero bucket if they are not custom, and if they are, indexes of their
    boundaries: kernels rely on that."""
    is_custom, sizes = table.schema == CUSTOM, np.diff(table.start)
    is_known = is_custom | ((table.schema >= SCHEMA_MIN) & (table.schema <= SCHEMA_MAX))
    has_zero = np.where(is_custom, table.zero_at == NO_ZERO, (table.zero_at >= 0) & (table.zero_at < sizes))
    last = np.repeat(np.where(is_custom, np.diff(table.bound_start), INDEX_MAX), sizes)
    first = np.repeat(np.where(is_custom, 0, -INDEX_MAX), sizes)
    return bool((is_known & has_zero).all() and ((table.indexes >= first) & (table.indexes <= last)).all())


def with_used_layouts(batch: HistogramBatch) -> HistogramBatch:
    """The same rows, with the layouts that some row has only, each in its old order."""
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
    """(where each taken part begins in the result, the place of each of its items before)."""
    starts = _starts(np.diff(start)[taken])
    return starts, np.arange(starts[-1]) + np.repeat(start[taken] - starts[:-1], np.diff(starts))


def _starts(sizes: NDArray[Any]) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))


def _owned(columns: Any) -> Any:
    """The columns as arrays that are aligned and do not keep the frame."""
    return type(columns)(*(np.array(array) for array in columns))


def _room(size: int) -> int:
    return -(-size // 8) * 8
