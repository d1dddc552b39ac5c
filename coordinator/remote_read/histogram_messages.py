"""Native histograms as messages `prometheus.Histogram` without timestamps, because every sample has its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from coordinator.bits import put_fixed64, put_number, put_varint, put_word, varint_size, zigzag
from shared.histograms.batch import HINT, IS_FLOAT, LAYOUTS, NO_ZERO, ROWS, HistogramBatch
from shared.kernels import inlined, kernel, types
from shared.promql.model import Int
from shared.promql.rendering.labels import Bytes

ROW_BYTES_MAX = 128
"""Most bytes of a message without its buckets and boundaries."""
BUCKET_BYTES_MAX = 14 + 10
"""Most bytes of a bucket: its own span, and a delta of ten bytes."""
BOUND_BYTES = 8

_COUNT, _COUNT_FLOAT, _SUM, _SCHEMA = np.uint8(0x08), np.uint8(0x11), np.uint8(0x19), np.uint8(0x20)
_ZERO_THRESHOLD, _ZERO_COUNT, _ZERO_COUNT_FLOAT = np.uint8(0x29), np.uint8(0x30), np.uint8(0x39)
_NEGATIVE, _POSITIVE = (
    (np.uint8(0x42), np.uint8(0x4A), np.uint8(0x52)),
    (np.uint8(0x5A), np.uint8(0x62), np.uint8(0x6A)),
)
"""Tags of spans, deltas and counts."""
_HINT, _BOUNDS = np.uint8(0x70), np.uint64(0x82)
_OFFSET, _LENGTH = np.uint8(0x08), np.uint8(0x10)


class Messages(NamedTuple):
    """The message of histogram i is pool[offsets[i]:offsets[i + 1]]."""

    pool: Bytes
    offsets: Int


def messages_of(batch: HistogramBatch | None) -> Messages:
    """One message for each row. Integer counts stay integers."""
    if batch is None:
        return Messages(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    table, rows = batch.layouts.columns, batch.columns
    bounds = int(np.diff(table.bound_start)[rows.layout].sum())
    capacity = ROW_BYTES_MAX * len(batch) + BUCKET_BYTES_MAX * batch.buckets + BOUND_BYTES * bounds
    out, offsets = np.empty(capacity, np.uint8), np.zeros(len(batch) + 1, np.int64)
    size = _write(table, rows, out, offsets)
    assert size <= capacity
    return Messages(out[:size].copy(), offsets)


@inlined(allocates=False)
def side_of(is_negative: Any, begin: Any, end: Any, zero_at: Any) -> Any:
    """(position of a layout's first bucket on this side, in index order; the step to the next one; their number).
    `begin`, `end`: of the layout's buckets; `zero_at`: the position of the zero bucket among them."""
    if zero_at == NO_ZERO:
        return begin, np.int64(1), np.int64(0) if is_negative else end - begin
    if is_negative:
        return begin + zero_at - 1, np.int64(-1), np.int64(zero_at)
    return begin + zero_at + 1, np.int64(1), end - begin - zero_at - 1


@inlined(allocates=False)
def span_end(indexes: Any, position: Any, step: Any, left: Any) -> Any:
    """How many of the `left` buckets from this position on have consecutive indexes."""
    count = np.int64(1)
    while count < left and indexes[position + count * step] == indexes[position + (count - 1) * step] + 1:
        count += 1
    return count


@inlined(allocates=False)
def _word(number: Any) -> Any:
    return np.float64(number).view(np.uint64)


@inlined(allocates=False)
def _put_spans(out: Any, at: Any, tag: Any, indexes: Any, position: Any, step: Any, buckets: Any) -> Any:
    done, next_index = np.int64(0), np.int64(0)
    while done < buckets:
        index = np.int64(indexes[position + done * step])
        count = span_end(indexes, position + done * step, step, buckets - done)
        offset = zigzag(index - next_index)
        out[at] = tag
        out[at + 1] = np.uint8(2 + varint_size(offset) + varint_size(np.uint64(count)))
        at = put_number(out, at + 2, _OFFSET, offset)
        at = put_number(out, at, _LENGTH, np.uint64(count))
        done += count
        next_index = index + count
    return at


@inlined(allocates=False)
def _put_counts(
    out: Any, at: Any, tags: Any, counts: Any, position: Any, step: Any, buckets: Any, is_float: Any
) -> Any:
    """Write the counts of one side: floats, or the differences of integers."""
    if buckets == 0:
        return at
    if is_float:
        out[at] = tags[2]
        at = put_varint(out, at + 1, np.uint64(8 * buckets))
        for i in range(buckets):
            put_word(out, at, _word(counts[position + i * step]))
            at += 8
        return at
    size, previous = np.int64(0), np.int64(0)
    for i in range(buckets):
        count = np.int64(counts[position + i * step])
        size += varint_size(zigzag(count - previous))
        previous = count
    out[at] = tags[1]
    at = put_varint(out, at + 1, np.uint64(size))
    previous = np.int64(0)
    for i in range(buckets):
        count = np.int64(counts[position + i * step])
        at = put_varint(out, at, zigzag(count - previous))
        previous = count
    return at


@kernel(types.int64(LAYOUTS, ROWS, types.uint8[::1], types.int64[::1]), allocates=False)
def _write(table: Any, rows: Any, out: Any, offsets: Any) -> Any:
    at = np.int64(0)
    for row in range(len(rows.layout)):
        layout, flags = rows.layout[row], rows.flags[row]
        begin, end, zero_at = table.start[layout], table.start[layout + 1], table.zero_at[layout]
        is_float = flags & IS_FLOAT != 0
        zero = rows.counts[rows.start[row] + zero_at] if zero_at != NO_ZERO else 0.0
        if is_float:
            at = put_fixed64(out, at, _COUNT_FLOAT, _word(rows.observations[row]))
            at = put_fixed64(out, at, _ZERO_COUNT_FLOAT, _word(zero))
        else:
            at = put_number(out, at, _COUNT, np.uint64(rows.observations[row]))
            at = put_number(out, at, _ZERO_COUNT, np.uint64(zero))
        at = put_fixed64(out, at, _SUM, _word(rows.sum[row]))
        at = put_number(out, at, _SCHEMA, zigzag(np.int64(table.schema[layout])))
        at = put_fixed64(out, at, _ZERO_THRESHOLD, _word(table.zero_threshold[layout]))
        for side in range(2):
            tags = _NEGATIVE if side == 0 else _POSITIVE
            position, step, buckets = side_of(side == 0, begin, end, zero_at)
            at = _put_spans(out, at, tags[0], table.indexes, position, step, buckets)
            at = _put_counts(out, at, tags, rows.counts, position - begin + rows.start[row], step, buckets, is_float)
        at = put_number(out, at, _HINT, np.uint64(flags & HINT))
        bound_begin, bounds = table.bound_start[layout], table.bound_start[layout + 1] - table.bound_start[layout]
        if bounds > 0:
            at = put_varint(out, at, _BOUNDS)
            at = put_varint(out, at, np.uint64(8 * bounds))
            for i in range(bounds):
                put_word(out, at, _word(table.bound[bound_begin + i]))
                at += 8
        offsets[row + 1] = at
    return at
