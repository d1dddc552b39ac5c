"""The section of a chunk with its histograms: columns of similar numbers, compressed by pcodec.

The histograms are in the order of the samples that refer to them. Neighbours of one run with the same layout are a
**stretch**. A stretch is a table with a row for each histogram, and a **column** for each bucket, for the count of all
observations and for their sum. A column of whole numbers is stored as its first number, a slope, and residuals: the
differences of neighbours minus the slope. The residuals go to the stream of their **kind**, which depends on their mean
size: the busy buckets in the middle of a histogram and the idle ones at its ends have different statistics, and take
less space apart from each other. Columns that rise evenly, mostly not at all, have no residuals. All other columns are
stored as floating-point numbers. All numbers are exact to the last bit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shared.histograms.batch import (
    FLOATS,
    INTS,
    NO_ZERO,
    ROWS,
    Floats,
    HistogramBatch,
    HistogramColumns,
    Ints,
    LayoutColumns,
    Layouts,
    read_only,
    sealed,
)
from shared.histograms.interning import with_distinct_layouts
from shared.histograms.schemas import CUSTOM, SCHEMA_MAX, SCHEMA_MIN
from shared.kernels import inlined, kernel, types
from worker.series.blocks.compression import compressed, decompressed_into

CHUNK_NUMBERS = 1 << 18
"""A chunk is full when its histograms have this many numbers: 2 MiB, which take about a millisecond to decode."""
_NUMBERS_MAX = 2 * CHUNK_NUMBERS
"""No chunk has more counts, bucket indexes or boundaries than this: without its last histogram, a chunk is below
CHUNK_NUMBERS, and so is a single histogram."""

_HEADER = struct.Struct("<5I")
"""The numbers of layouts, of their buckets and of their boundaries, of stretches, and of streams."""
_SIZE = np.dtype("<u4")

_EVEN, _KINDS = 0, 65
"""Kinds of columns: `_EVEN` has no residuals; kind k ≥ 1 has residuals of a mean size m, where floor(16 m) has k - 1
binary digits."""
_FLOAT = _KINDS
_INT_MAX = 2.0**63
_SLOPE_MIN = 8.0
"""Differences that are smaller on average are stored without a slope: many of them are 0, and 0 is then the most
frequent residual of all columns of the kind."""

_INT32 = types.Array(types.int32, 1, "C", readonly=True)
_UINT8 = types.Array(types.uint8, 1, "C", readonly=True)


class _Columns(NamedTuple):
    """The columns of all stretches: their kinds (uint8), first numbers and slopes. Only columns of whole numbers have
    first numbers and slopes."""

    kind: NDArray[np.uint8]
    first: Ints
    slope: Ints


_COLUMNS = types.NamedTuple((types.uint8[::1], types.int64[::1], types.int64[::1]), _Columns)
_COLUMNS_IN = types.NamedTuple((_UINT8, INTS, INTS), _Columns)


def weights(batch: HistogramBatch, rows: Ints) -> Ints:
    """int64[n]: how much of CHUNK_NUMBERS each of these rows takes, including its layout if the row before has another
    one."""
    layout, table = batch.columns.layout[rows], batch.layouts.columns
    buckets, bounds = np.diff(table.start), np.diff(table.bound_start)
    is_new = np.diff(layout, prepend=-1) != 0
    return buckets[layout] + 2 + np.where(is_new, (buckets // 2 + bounds)[layout], 0)


def encode(batch: HistogramBatch, counts: Ints) -> bytes:
    """Encode the batch. Run r has the next counts[r] ≥ 0 rows."""
    assert int(counts.sum()) == len(batch) > 0
    batch = with_distinct_layouts(batch)
    rows, table = batch.columns, batch.layouts.columns
    begins = np.diff(rows.layout, prepend=-1) != 0
    begins[np.cumsum(counts)[counts > 0][:-1]] = True
    first_rows = np.append(np.flatnonzero(begins), len(batch))
    stretch_layouts = rows.layout[first_rows[:-1]]

    column_count = int((np.diff(table.start)[stretch_layouts] + 2).sum())
    columns = _Columns(
        np.empty(column_count, np.uint8), np.empty(column_count, np.int64), np.empty(column_count, np.int64)
    )
    sizes = np.zeros(_KINDS + 1, np.int64)
    integer_columns = _plan(rows, first_rows, columns, sizes)
    residuals, floats = np.empty(int(sizes[:_KINDS].sum()), np.int64), np.empty(sizes[_FLOAT])
    kind_ends = np.cumsum(sizes[:_KINDS])
    _split(rows, first_rows, columns, kind_ends - sizes[:_KINDS], residuals, floats)

    streams: list[NDArray[Any]] = [
        table.schema.astype(np.int16), table.zero_threshold, table.zero_at, np.diff(table.start).astype(np.int32),
        table.indexes, np.diff(table.bound_start).astype(np.int32), table.bound,
        stretch_layouts, np.diff(first_rows).astype(np.int32), rows.flags.astype(np.uint16),
        columns.kind.astype(np.uint16), columns.first[:integer_columns], columns.slope[:integer_columns], floats,
        *(residuals[end - size : end] for end, size in zip(kind_ends, sizes[:_KINDS], strict=True) if size),
    ]  # fmt: skip
    packed = [compressed(stream) for stream in streams]
    header = _HEADER.pack(len(batch.layouts), len(table.indexes), len(table.bound), len(stretch_layouts), len(packed))
    return b"".join((header, np.array([len(stream) for stream in packed], _SIZE).tobytes(), *packed))


def decode(data: bytes, row_count: int) -> HistogramBatch:
    """Decode a section with `row_count` histograms. Raises ValueError or struct.error if the bytes are not such a
    section. Takes memory for at most `_NUMBERS_MAX` counts, whatever the bytes say."""
    layout_count, bucket_count, bound_count, stretch_count, stream_count = _HEADER.unpack_from(data)
    if not 0 < max(layout_count, stretch_count) <= row_count or max(bucket_count, bound_count) > _NUMBERS_MAX:
        raise ValueError(
            f"{row_count} histograms have {layout_count} layouts with {bucket_count} buckets and {bound_count} "
            f"boundaries, in {stretch_count} stretches"
        )
    streams = _Streams(data, stream_count)
    table = _layouts(streams, layout_count, bucket_count, bound_count)
    stretch_layouts = streams.next(np.int32, stretch_count)
    lengths = streams.next(np.int32, stretch_count).astype(np.int64)
    if stretch_layouts.min() < 0 or stretch_layouts.max() >= layout_count or lengths.min() < 1:
        raise ValueError("a stretch of histograms is empty, or has a layout that is not there")
    if lengths.sum() != row_count:
        raise ValueError(f"there are {row_count} histograms, and stretches of {lengths.sum()}")
    buckets = np.diff(table.start)[stretch_layouts]
    if int((lengths * buckets).sum()) > _NUMBERS_MAX:
        raise ValueError(f"its histograms have {(lengths * buckets).sum()} counts; the limit is {_NUMBERS_MAX}")
    flags = streams.next(np.uint16, row_count).astype(np.uint8)

    kinds = streams.next(np.uint16, int((buckets + 2).sum()))
    if kinds.max() > _FLOAT:
        raise ValueError(f"it has a column of kind {kinds.max()}")
    integer_columns = int(np.count_nonzero(kinds != _FLOAT))
    columns = _Columns(
        kinds.astype(np.uint8), streams.next(np.int64, integer_columns), streams.next(np.int64, integer_columns)
    )
    column_lengths = np.repeat(lengths, buckets + 2)
    is_float = kinds == _FLOAT
    floats = streams.next(np.float64, int(column_lengths[is_float].sum()))
    sizes = np.bincount(kinds[~is_float], (column_lengths - 1)[~is_float], _KINDS).astype(np.int64)
    sizes[_EVEN] = 0
    residuals = np.empty(int(sizes.sum()), np.int64)
    kind_ends = np.cumsum(sizes)
    for end, size in zip(kind_ends.tolist(), sizes.tolist(), strict=True):
        if size:
            streams.fill(residuals[end - size : end])

    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.repeat(buckets, lengths))))
    rows = HistogramColumns(
        np.repeat(stretch_layouts, lengths), flags, np.empty(row_count), np.empty(row_count), start, np.empty(start[-1])
    )
    first_rows = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    _rebuild(
        _Columns(*(read_only(column, column.dtype) for column in columns)), first_rows, kind_ends - sizes, residuals,
        floats, start, rows.observations, rows.sum, rows.counts,
    )  # fmt: skip
    return HistogramBatch(Layouts(sealed(table)), sealed(rows))


def _layouts(streams: _Streams, layout_count: int, bucket_count: int, bound_count: int) -> LayoutColumns:
    """The layouts at the beginning of a section. Raises ValueError if kernels that use them would read outside of their
    arrays."""
    schema = streams.next(np.int16, layout_count)
    thresholds, zero_at = streams.next(np.float64, layout_count), streams.next(np.int32, layout_count)
    sizes, indexes = streams.next(np.int32, layout_count), streams.next(np.int32, bucket_count)
    bound_sizes, bound = streams.next(np.int32, layout_count), streams.next(np.float64, bound_count)
    is_custom = schema == CUSTOM
    if not (is_custom | (schema >= SCHEMA_MIN) & (schema <= SCHEMA_MAX)).all():
        raise ValueError(f"histograms have schemas {schema.min()} to {schema.max()}")
    if min(sizes.min(), bound_sizes.min()) < 0 or sizes.sum(dtype=np.int64) != bucket_count:
        raise ValueError(f"layouts of histograms do not share their {bucket_count} buckets")
    if bound_sizes.sum(dtype=np.int64) != bound_count or bound_sizes[~is_custom].any():
        raise ValueError(f"layouts of histograms do not share their {bound_count} boundaries")
    if (zero_at[is_custom] != NO_ZERO).any() or ((zero_at < 0) | (zero_at >= sizes))[~is_custom].any():
        raise ValueError("layouts of histograms have a zero bucket that is not there")
    of_custom, highest = np.repeat(is_custom, sizes), np.repeat(bound_sizes, sizes)
    if ((indexes < 0) | (indexes > highest))[of_custom].any():
        raise ValueError("custom buckets of histograms have no boundaries")
    return LayoutColumns(
        schema.astype(np.int8), thresholds, zero_at, _starts(sizes), indexes, _starts(bound_sizes), bound
    )


def _starts(sizes: NDArray[np.int32]) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))


class _Streams:
    """The compressed streams of a section, in order. Empty streams have no bytes."""

    def __init__(self, data: bytes, count: int) -> None:
        sizes = np.frombuffer(data, _SIZE, count, _HEADER.size)
        ends = np.cumsum([_HEADER.size + sizes.nbytes, *sizes.tolist()]).tolist()
        if ends[-1] != len(data):
            raise ValueError(f"its streams end at byte {ends[-1]} of {len(data)}")
        self._parts: Iterator[bytes] = (data[start:end] for start, end in pairwise(ends))

    def next(self, dtype: DTypeLike, count: int) -> NDArray[Any]:
        """The next stream, which has `count` numbers of this type."""
        out = np.empty(count, dtype)
        self.fill(out)
        return out

    def fill(self, out: NDArray[Any]) -> None:
        """Read the next stream, which has as many numbers as `out`."""
        part = next(self._parts, b"")
        count = decompressed_into(part, out) if part else 0
        if count != len(out):
            raise ValueError(f"a stream of histograms has {count} of {len(out)} numbers")


@inlined(allocates=False)
def _number(rows: Any, row: Any, column: Any, buckets: Any) -> Any:
    """The number of a row in a column of its stretch, which has this many buckets."""
    if column < buckets:
        return rows.counts[rows.start[row] + column]
    return rows.observations[row] if column == buckets else rows.sum[row]


@inlined(allocates=False)
def _is_whole(number: Any) -> Any:
    """Whether an int64 has the same value and, converted back, the same bits."""
    if not (-_INT_MAX < number < _INT_MAX):
        return False
    return np.float64(np.int64(number)) == number and (number != 0 or np.copysign(1.0, number) > 0)


@kernel(types.int64(ROWS, INTS, _COLUMNS, types.int64[::1]), allocates=False, error_model="numpy")
def _plan(rows: HistogramColumns, first_rows: Ints, columns: _Columns, sizes: Ints) -> int:
    """Fill `columns`, and add the numbers of residuals of each kind, and of floats, to sizes[kind]. Returns the number
    of columns of whole numbers."""
    at = integer_columns = 0
    for stretch in range(first_rows.size - 1):
        begin, end = first_rows[stretch], first_rows[stretch + 1]
        buckets = rows.start[begin + 1] - rows.start[begin]
        steps = end - begin - 1
        for column in range(buckets + 2):
            kind: Any = _EVEN
            for row in range(begin, end):
                if not _is_whole(_number(rows, row, column, buckets)):
                    kind = _FLOAT
                    break
            if kind != _FLOAT:
                first = last = np.int64(_number(rows, begin, column, buckets))
                slope = np.int64(0)
                if steps > 0:
                    slope = np.int64(_number(rows, begin + 1, column, buckets)) - first
                total, is_even = 0.0, True
                for row in range(begin + 1, end):
                    number = np.int64(_number(rows, row, column, buckets))
                    total += abs(np.float64(number - last))
                    is_even &= number - last == slope
                    last = number
                if not is_even:
                    slope = np.int64(0)
                    if total >= _SLOPE_MIN * steps:
                        slope = np.int64(np.rint((np.float64(last) - np.float64(first)) / steps))
                        total, last = 0.0, first
                        for row in range(begin + 1, end):
                            number = np.int64(_number(rows, row, column, buckets))
                            total += abs(np.float64(number - last - slope))
                            last = number
                    size, kind = 16 * total / steps, 1
                    while size >= 1 and kind < _KINDS - 1:
                        size /= 2
                        kind += 1
                    sizes[kind] += steps
                columns.first[integer_columns], columns.slope[integer_columns] = first, slope
                integer_columns += 1
            else:
                sizes[_FLOAT] += end - begin
            columns.kind[at] = kind
            at += 1
    return integer_columns


@kernel(
    types.void(ROWS, INTS, _COLUMNS, types.int64[::1], types.int64[::1], types.float64[::1]),
    allocates=False,
    error_model="numpy",
)
def _split(
    rows: HistogramColumns, first_rows: Ints, columns: _Columns, cursors: Ints, residuals: Ints, floats: Floats
) -> None:
    """Fill `residuals`, those of kind k from cursors[k] on, and `floats`, as `_plan` planned."""
    at = integer_column = float_at = 0
    for stretch in range(first_rows.size - 1):
        begin, end = first_rows[stretch], first_rows[stretch + 1]
        buckets = rows.start[begin + 1] - rows.start[begin]
        for column in range(buckets + 2):
            kind = columns.kind[at]
            at += 1
            if kind == _FLOAT:
                for row in range(begin, end):
                    floats[float_at] = _number(rows, row, column, buckets)
                    float_at += 1
                continue
            slope, last = columns.slope[integer_column], columns.first[integer_column]
            integer_column += 1
            if kind == _EVEN:
                continue
            out = cursors[kind]
            for row in range(begin + 1, end):
                number = np.int64(_number(rows, row, column, buckets))
                residuals[out] = number - last - slope
                last = number
                out += 1
            cursors[kind] = out


@kernel(
    types.void(
        _COLUMNS_IN, INTS, types.int64[::1], INTS, FLOATS, INTS, types.float64[::1], types.float64[::1],
        types.float64[::1],
    ),
    allocates=False,
    error_model="numpy",
)  # fmt: skip
def _rebuild(
    columns: _Columns,
    first_rows: Ints,
    cursors: Ints,
    residuals: Ints,
    floats: Floats,
    start: Ints,
    observations: Floats,
    sums: Floats,
    counts: Floats,
) -> None:
    """Inverse of `_plan` and `_split`: fills `observations`, `sums` and `counts`."""
    at = integer_column = float_at = 0
    for stretch in range(first_rows.size - 1):
        begin, end = first_rows[stretch], first_rows[stretch + 1]
        buckets = start[begin + 1] - start[begin]
        for column in range(buckets + 2):
            out, place, width = counts, start[begin] + column, buckets
            if column >= buckets:
                out, place, width = observations if column == buckets else sums, begin, np.int64(1)
            kind = columns.kind[at]
            at += 1
            if kind == _FLOAT:
                for i in range(end - begin):
                    out[place + i * width] = floats[float_at + i]
                float_at += end - begin
                continue
            number, slope = columns.first[integer_column], columns.slope[integer_column]
            integer_column += 1
            out[place] = np.float64(number)
            if kind == _EVEN:
                for i in range(1, end - begin):
                    number += slope
                    out[place + i * width] = np.float64(number)
                continue
            before_first = cursors[kind] - 1
            for i in range(1, end - begin):
                number += slope + residuals[before_first + i]
                out[place + i * width] = np.float64(number)
            cursors[kind] += end - begin - 1
