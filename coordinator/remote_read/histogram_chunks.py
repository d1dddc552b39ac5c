"""Native histograms as float-histogram chunks of Prometheus's storage.

Format: "Histogram chunk data" and "Float histogram chunk data" in the document Chunks Disk Format of Prometheus. All
histograms of a chunk have one layout, and only the first one may follow a counter reset: readers rely on that. Integer
counts are written as floats, which is what PromQL computes with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coordinator.bits import put_bits, put_rest
from coordinator.remote_read.histogram_messages import side_of, span_end
from coordinator.remote_read.xor_chunks import CHUNK_SAMPLES, NO_WINDOW, put_xor
from shared.histograms.batch import HINT, HINT_GAUGE, HINT_NOT_RESET, HINT_RESET, NO_ZERO
from shared.histograms.references import refers, row_of
from shared.histograms.schemas import CUSTOM
from shared.kernels import inlined

FLOAT_HISTOGRAM = 3
"""The number of this encoding in messages."""
FULL_BYTES = 16 << 10
"""A chunk with this many bytes takes no further histogram."""
CHUNK_BYTES_BESIDE = FULL_BYTES + 128
NUMBER_BYTES_MAX = 28
"""Most bytes of a bucket, 18 for its span and ten for its count; a boundary has at most nine."""
FIELDS = 3
"""Fields of a histogram before its buckets: number of observations, zero bucket, sum."""

_RESET, _NO_RESET, _GAUGE = np.uint8(0b10 << 6), np.uint8(0b01 << 6), np.uint8(0b11 << 6)
_0, _1 = np.uint64(0), np.uint64(1)
WIDTHS = np.array([3, 6, 9, 12, 18, 25, 56, 64], np.int64)
"""Widths in bits of variable-width numbers, by the number of ones in their prefix, less one."""
_POWER_MIN, _POWER_MAX, POWER_BASE = -243, 10, 244
BOUND_SCALE, _BOUND_MAX = 1000.0, 33554430.0


@inlined(allocates=False)
def _prefixed(out: Any, at: Any, pending: Any, used: Any, number: Any, width: Any) -> Any:
    """Append the prefix of a width in WIDTHS, then the bits of a number that fits into it."""
    ones = width + 1
    prefix = np.uint64(0xFF) if ones == 8 else np.uint64((1 << (ones + 1)) - 2)
    at, pending, used = put_bits(out, at, pending, used, prefix, min(ones + 1, 8))
    bits = WIDTHS[width]
    return put_bits(out, at, pending, used, number & (np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - bits)), bits)


@inlined(allocates=False)
def put_signed(out: Any, at: Any, pending: Any, used: Any, number: Any) -> Any:
    """Append an int64 (`varbit_int`). Returns (at, pending, used)."""
    if number == 0:
        return put_bits(out, at, pending, used, _0, 1)
    width = 0
    while width < 7 and not (
        -((np.int64(1) << (WIDTHS[width] - 1)) - 1) <= number <= np.int64(1) << (WIDTHS[width] - 1)
    ):
        width += 1
    return _prefixed(out, at, pending, used, np.uint64(number), width)


@inlined(allocates=False)
def put_unsigned(out: Any, at: Any, pending: Any, used: Any, number: Any) -> Any:
    """Append a uint64 (`varbit_uint`). Returns (at, pending, used)."""
    if number == _0:
        return put_bits(out, at, pending, used, _0, 1)
    width = 0
    while width < 7 and number >> np.uint64(WIDTHS[width]) != _0:
        width += 1
    return _prefixed(out, at, pending, used, number, width)


@inlined(allocates=False)
def _put_threshold(out: Any, at: Any, pending: Any, used: Any, threshold: Any) -> Any:
    if threshold == 0.0:
        return put_bits(out, at, pending, used, _0, 8)
    bits = np.float64(threshold).view(np.uint64)
    power = np.int64(bits >> np.uint64(52)) - 1023
    if bits & np.uint64((1 << 52) - 1) == _0 and _POWER_MIN <= power <= _POWER_MAX:
        return put_bits(out, at, pending, used, np.uint64(power + POWER_BASE), 8)
    at, pending, used = put_bits(out, at, pending, used, np.uint64(255), 8)
    return put_bits(out, at, pending, used, bits, 64)


@inlined(allocates=False)
def _put_spans(out: Any, at: Any, pending: Any, used: Any, indexes: Any, position: Any, step: Any, buckets: Any) -> Any:
    done, spans = np.int64(0), np.int64(0)
    while done < buckets:
        done += span_end(indexes, position + done * step, step, buckets - done)
        spans += 1
    at, pending, used = put_unsigned(out, at, pending, used, np.uint64(spans))
    done, next_index = np.int64(0), np.int64(0)
    while done < buckets:
        index = np.int64(indexes[position + done * step])
        count = span_end(indexes, position + done * step, step, buckets - done)
        at, pending, used = put_unsigned(out, at, pending, used, np.uint64(count))
        at, pending, used = put_signed(out, at, pending, used, index - next_index)
        done += count
        next_index = index + count
    return at, pending, used


@inlined(allocates=False)
def _put_bounds(out: Any, at: Any, pending: Any, used: Any, bounds: Any, begin: Any, end: Any) -> Any:
    at, pending, used = put_unsigned(out, at, pending, used, np.uint64(end - begin))
    for i in range(begin, end):
        scaled = bounds[i] * BOUND_SCALE
        if 0.0 <= scaled <= _BOUND_MAX and scaled == np.floor(scaled):
            at, pending, used = put_unsigned(out, at, pending, used, np.uint64(scaled) + _1)
        else:
            at, pending, used = put_bits(out, at, pending, used, _0, 1)
            at, pending, used = put_bits(out, at, pending, used, np.float64(bounds[i]).view(np.uint64), 64)
    return at, pending, used


@inlined(allocates=False)
def _field(rows: Any, row: Any, field: Any, zero_at: Any) -> Any:
    """The bits of a field (see FIELDS): number of observations, zero bucket's count, or sum."""
    number = rows.sum[row]
    if field == 0:
        number = rows.observations[row]
    if field == 1:
        number = rows.counts[rows.start[row] + zero_at] if zero_at != NO_ZERO else 0.0
    return np.float64(number).view(np.uint64)


@inlined(allocates=False)
def _follows(rows: Any, previous: Any, row: Any) -> Any:
    """Whether a chunk with the previous row may continue with this row, given what its readers rely on."""
    hint, previous_hint = rows.flags[row] & HINT, rows.flags[previous] & HINT
    if rows.layout[row] != rows.layout[previous] or (hint == HINT_GAUGE) != (previous_hint == HINT_GAUGE):
        return False
    if hint == HINT_GAUGE:
        return True
    if hint == HINT_RESET or rows.observations[row] < rows.observations[previous]:
        return False
    start, previous_start = rows.start[row], rows.start[previous]
    falls = False
    for i in range(rows.start[row + 1] - start):
        falls |= rows.counts[start + i] < rows.counts[previous_start + i]
    return not falls


@inlined(allocates=False)
def put_histogram_chunk(
    out: Any, times: Any, values: Any, first: Any, last: Any, table: Any, rows: Any, windows: Any
) -> Any:
    """Write as many histograms from `first` on, up to `last`, as a chunk may have. `values`: the bits of references as
    int64; `windows`: int64[2, …], workspace for the XOR states of all fields and buckets. Returns (number of bytes,
    first sample that is not in the chunk)."""
    row = row_of(values[first])
    layout = rows.layout[row]
    begin, end, zero_at = table.start[layout], table.start[layout + 1], table.zero_at[layout]
    hint = rows.flags[row] & HINT
    out[2] = (
        _GAUGE if hint == HINT_GAUGE else _RESET if hint == HINT_RESET else _NO_RESET if hint == HINT_NOT_RESET else 0
    )
    at, pending, used = _put_threshold(out, np.int64(3), _0, np.int64(0), table.zero_threshold[layout])
    at, pending, used = put_signed(out, at, pending, used, np.int64(table.schema[layout]))
    for side in range(1, -1, -1):
        position, step, buckets = side_of(side == 0, begin, end, zero_at)
        at, pending, used = _put_spans(out, at, pending, used, table.indexes, position, step, buckets)
    if table.schema[layout] == CUSTOM:
        at, pending, used = _put_bounds(
            out, at, pending, used, table.bound, table.bound_start[layout], table.bound_start[layout + 1]
        )
    for i in range(FIELDS + end - begin):
        windows[0, i], windows[1, i] = NO_WINDOW, 0
    i, previous, step_ms = first, row, np.int64(0)
    last = min(last, first + CHUNK_SAMPLES)
    while i < last and at < FULL_BYTES and refers(values[i]):
        row = row_of(values[i])
        if i > first and not _follows(rows, previous, row):
            break
        interval_ms = times[i] - times[i - 1] if i > first else times[i]
        at, pending, used = put_signed(out, at, pending, used, interval_ms - step_ms)
        step_ms = interval_ms if i > first else np.int64(0)
        for field in range(FIELDS):
            bits = _field(rows, row, field, zero_at)
            difference = bits if i == first else bits ^ _field(rows, previous, field, zero_at)
            at, pending, used = _put_number(out, at, pending, used, difference, windows, field, i == first)
        for side in range(1, -1, -1):
            position, step, buckets = side_of(side == 0, begin, end, zero_at)
            for bucket in range(buckets):
                bucket_index = position - begin + bucket * step
                bits = np.float64(rows.counts[rows.start[row] + bucket_index]).view(np.uint64)
                difference = (
                    bits
                    if i == first
                    else bits ^ np.float64(rows.counts[rows.start[previous] + bucket_index]).view(np.uint64)
                )
                at, pending, used = _put_number(
                    out, at, pending, used, difference, windows, FIELDS + bucket_index, i == first
                )
        previous = row
        i += 1
    count = i - first
    out[0], out[1] = np.uint8(count >> 8), np.uint8(count & 0xFF)
    return put_rest(out, at, pending, used), i


@inlined(allocates=False)
def _put_number(
    out: Any, at: Any, pending: Any, used: Any, difference: Any, windows: Any, index: Any, is_first: Any
) -> Any:
    """Append a number: whole in the first histogram of a chunk, else as its difference from the previous one."""
    if is_first:
        return put_bits(out, at, pending, used, difference, 64)
    at, pending, used, leading, trailing = put_xor(
        out, at, pending, used, 0, difference, windows[0, index], windows[1, index]
    )
    windows[0, index], windows[1, index] = leading, trailing
    return at, pending, used
