"""Chunks of native histograms of a Prometheus TSDB block, as the messages of remote write 1.0.

Format: "Histogram chunk data" and "Float histogram chunk data" of
https://github.com/prometheus/prometheus/blob/main/tsdb/docs/format/chunks.md. All histograms of a chunk have one
layout, and none but the first one follows a counter reset. What the document does not say, but blocks show: a stale
marker has a time, a number of observations, a zero bucket and a sum, and no buckets.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.bits import put_fixed64, put_number, put_varint, put_word, varint_size, zigzag
from coordinator.remote_read.histogram_chunks import BOUND_SCALE, POWER_BASE
from coordinator.transfer.bit_reading import BROKEN_AT, bits, followed, signed, unsigned
from coordinator.transfer.tsdb_chunks import BROKEN, FLOAT_HISTOGRAM, GOOD, OTHER
from shared.histograms import fields
from shared.histograms.batch import HINT_GAUGE, HINT_NOT_RESET, HINT_RESET, STALE_SUM_BITS
from shared.histograms.fields import BUCKETS_MAX
from shared.histograms.schemas import CUSTOM
from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import DELIMITED, FIXED_64, VARINT
from shared.xxh64 import copy_bytes

ROOM_BYTES = 8 << 20
"""For the messages of one request. One chunk may need as much."""
_LAYOUT_BYTES_MAX = 64 + (2 * 12 + 8) * BUCKETS_MAX
"""Spans of two sides, each of 12 bytes at most, and boundaries of 8."""
_MESSAGE_BYTES_MAX = 96
"""Of a message without its layout and its buckets."""
_TIME, _COUNT, _ZERO, _SUM, _FIELDS = range(5)
"""Numbers of a histogram before its buckets. The sum is kept as bits in both kinds."""

FULL = 5
"""What a chunk is for which there is no room."""

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS, _TABLE, _OUT = types.Array(types.int64, 1, "C", readonly=True), types.int64[:, ::1], types.uint8[::1]
_STALE, _FLAG_GAUGE, _FLAG_RESET = np.uint64(STALE_SUM_BITS), 0b11, 0b10
_0, _1 = np.uint64(0), np.uint64(1)


def _tag(field: int, wire_type: int) -> np.uint8:
    return np.uint8(field << 3 | wire_type)


_TAG_COUNT, _TAG_COUNT_FLOAT = _tag(fields.OBSERVATIONS, VARINT), _tag(fields.OBSERVATIONS_FLOAT, FIXED_64)
_TAG_ZERO, _TAG_ZERO_FLOAT = _tag(fields.ZERO_COUNT, VARINT), _tag(fields.ZERO_COUNT_FLOAT, FIXED_64)
_TAG_SUM, _TAG_SCHEMA = _tag(fields.SUM, FIXED_64), _tag(fields.SCHEMA, VARINT)
_TAG_THRESHOLD, _TAG_TIME = _tag(fields.ZERO_THRESHOLD, FIXED_64), _tag(fields.TIMESTAMP, VARINT)
_TAG_HINT = _tag(fields.RESET_HINT, VARINT)
_TAGS_SPANS = _tag(fields.POSITIVE_SPANS, DELIMITED), _tag(fields.NEGATIVE_SPANS, DELIMITED)
_TAGS_DELTAS = _tag(fields.POSITIVE_DELTAS, DELIMITED), _tag(fields.NEGATIVE_DELTAS, DELIMITED)
_TAGS_COUNTS = _tag(fields.POSITIVE_COUNTS, DELIMITED), _tag(fields.NEGATIVE_COUNTS, DELIMITED)
_TAG_BOUNDS = np.uint64(fields.CUSTOM_VALUES << 3 | DELIMITED)
_TAG_HISTOGRAM = np.uint8(0x22)


@inlined(allocates=False)
def _read_threshold(data: Any, bit: Any) -> Any:
    """(the bits of the zero threshold, where it ends)."""
    byte = np.int64(bits(data, bit, 8))
    if byte == 0:
        return _0, bit + 8
    if byte == 255:
        return bits(data, bit + 8, 64), bit + 72
    return np.float64(2.0 ** (byte - POWER_BASE)).view(np.uint64), bit + 8


@inlined(allocates=False)
def _read_spans(data: Any, bit: Any, tag: Any, out: Any, at: Any) -> Any:
    """Write the spans of one side. Returns (how many buckets they have, where they end in `out`, where in `data`)."""
    count, bit = unsigned(data, bit)
    if count > np.uint64(BUCKETS_MAX):
        return np.int64(0), at, BROKEN_AT
    buckets = np.int64(0)
    for _ in range(np.int64(count)):
        length, bit = unsigned(data, bit)
        offset, bit = signed(data, bit)
        if length > np.uint64(BUCKETS_MAX) or not -(1 << 31) <= offset < 1 << 31:
            return np.int64(0), at, BROKEN_AT
        buckets += np.int64(length)
        out[at] = tag
        out[at + 1] = np.uint8(2 + varint_size(zigzag(offset)) + varint_size(length))
        at = put_number(out, at + 2, np.uint8(1 << 3), zigzag(offset))
        at = put_number(out, at, np.uint8(2 << 3), length)
    return buckets, at, bit


@inlined(allocates=False)
def _read_bounds(data: Any, bit: Any, out: Any, at: Any) -> Any:
    """Write the boundaries of custom buckets. Returns (where they end in `out`, where in `data`)."""
    count, bit = unsigned(data, bit)
    if count > np.uint64(BUCKETS_MAX):
        return at, BROKEN_AT
    at = put_varint(out, put_varint(out, at, _TAG_BOUNDS), count * np.uint64(8))
    for _ in range(np.int64(count)):
        scaled, bit = unsigned(data, bit)
        if scaled == _0:
            put_word(out, at, bits(data, bit, 64))
            bit += 64
        else:
            put_word(out, at, np.float64(np.float64(scaled - _1) / BOUND_SCALE).view(np.uint64))
        at += 8
    return at, bit


@kernel(types.UniTuple(types.int64, 4)(_BYTES, types.int64, _OUT), allocates=False, error_model="numpy")
def _read_layout(data: np.ndarray, bit: int, out: np.ndarray) -> tuple[int, int, int, int]:
    """Write what all messages of a chunk have in common, whose zero threshold is at this bit. Returns (where that ends
    in `out`, where in `data`, the number of positive and of negative buckets)."""
    threshold, bit = _read_threshold(data, bit)
    schema, bit = signed(data, bit)
    if not -(1 << 31) <= schema < 1 << 31:
        return 0, BROKEN_AT, 0, 0
    at = put_fixed64(out, put_number(out, np.int64(0), _TAG_SCHEMA, zigzag(schema)), _TAG_THRESHOLD, threshold)
    positive, at, bit = _read_spans(data, bit, _TAGS_SPANS[0], out, at)
    if bit < BROKEN_AT:
        negative, at, bit = _read_spans(data, bit, _TAGS_SPANS[1], out, at)
        if schema == CUSTOM and bit < BROKEN_AT:
            at, bit = _read_bounds(data, bit, out, at)
        return at, bit, positive, negative
    return 0, bit, 0, 0


@inlined(allocates=False)
def _follow(data: Any, bit: Any, state: Any, place: Any, k: Any) -> Any:
    """Read number `place` of histogram k of integers: whole, then its change, then the change of that. Returns where it
    ends."""
    number, bit = signed(data, bit)
    if k == 0:
        state[0, place], state[1, place] = number, 0
    else:
        state[1, place] += number
        state[0, place] += state[1, place]
    return bit


@inlined(allocates=False)
def _follow_bits(data: Any, bit: Any, state: Any, place: Any, k: Any) -> Any:
    """Read the float `place` of histogram k: whole, then by the bits that differ. Returns where it ends."""
    if k == 0:
        state[0, place], state[1, place], state[2, place] = np.int64(bits(data, bit, 64)), 0, 0
        return bit + 64
    word, leading, trailing, bit = followed(data, bit, np.uint64(state[0, place]), state[1, place], state[2, place])
    state[0, place], state[1, place], state[2, place] = np.int64(word), leading, trailing
    return bit


@inlined(allocates=False)
def _read_numbers(data: Any, bit: Any, state: Any, buckets: Any, k: Any, is_float: Any) -> Any:
    """Read histogram k of a chunk. Returns where it ends."""
    bit = _follow(data, bit, state, _TIME, k)
    if is_float:
        bit = _follow_bits(data, bit, state, _COUNT, k)
        bit = _follow_bits(data, bit, state, _ZERO, k)
    elif k == 0:
        count, bit = unsigned(data, bit)
        zero, bit = unsigned(data, bit)
        state[0, _COUNT], state[1, _COUNT], state[0, _ZERO], state[1, _ZERO] = np.int64(count), 0, np.int64(zero), 0
    else:
        bit = _follow(data, bit, state, _COUNT, k)
        bit = _follow(data, bit, state, _ZERO, k)
    bit = _follow_bits(data, bit, state, _SUM, k)
    if np.uint64(state[0, _SUM]) == _STALE:
        return bit
    for place in range(_FIELDS, _FIELDS + buckets):
        bit = _follow_bits(data, bit, state, place, k) if is_float else _follow(data, bit, state, place, k)
    return bit


@inlined(allocates=False)
def _put_buckets(out: Any, at: Any, side: Any, state: Any, first: Any, last: Any, is_float: Any) -> Any:
    """Write the counts of one side: floats, or the differences of integers."""
    if first == last:
        return at
    size = 8 * (last - first)
    if not is_float:
        size = np.int64(0)
        for place in range(first, last):
            size += varint_size(zigzag(state[0, place]))
    out[at] = _TAGS_COUNTS[side] if is_float else _TAGS_DELTAS[side]
    at = put_varint(out, at + 1, np.uint64(size))
    for place in range(first, last):
        if is_float:
            put_word(out, at, np.uint64(state[0, place]))
            at += 8
        else:
            at = put_varint(out, at, zigzag(state[0, place]))
    return at


@inlined(allocates=False)
def _put_message(
    out: Any, at: Any, layout: Any, layout_end: Any, state: Any, positive: Any, negative: Any, is_float: Any
) -> Any:
    """Write a message but for its time and its hint; returns where it ends."""
    at = put_fixed64(out, at, _TAG_SUM, np.uint64(state[0, _SUM]))
    if np.uint64(state[0, _SUM]) == _STALE:
        return at
    if is_float:
        at = put_fixed64(out, at, _TAG_COUNT_FLOAT, np.uint64(state[0, _COUNT]))
        at = put_fixed64(out, at, _TAG_ZERO_FLOAT, np.uint64(state[0, _ZERO]))
    else:
        at = put_number(out, at, _TAG_COUNT, np.uint64(state[0, _COUNT]))
        at = put_number(out, at, _TAG_ZERO, np.uint64(state[0, _ZERO]))
    copy_bytes(out, at, layout, np.int64(0), layout_end)
    at += layout_end
    at = _put_buckets(out, at, 0, state, _FIELDS, _FIELDS + positive, is_float)
    return _put_buckets(out, at, 1, state, _FIELDS + positive, _FIELDS + positive + negative, is_float)


@kernel(
    types.UniTuple(types.int64, 2)(
        _BYTES, types.int64, types.int64, _TABLE, types.int64[:, ::1], _OUT, _OUT, _OUT, types.int64
    ),
    allocates=False,
    error_model="numpy",
)
def _chunk(
    data: np.ndarray,
    begin: int,
    end: int,
    deleted: np.ndarray,
    state: np.ndarray,
    layout: np.ndarray,
    message: np.ndarray,
    out: np.ndarray,
    at: int,
) -> tuple[int, int]:
    """Write the histograms of data[begin:end] from out[at] on, as fields of a TimeSeries. Returns (GOOD, BROKEN, OTHER
    for one with too many buckets, or FULL; where they end in `out`)."""
    if end - begin < 3:
        return BROKEN, at
    is_float, flags = data[begin - 1] == FLOAT_HISTOGRAM, np.int64(data[begin + 2]) >> 6
    layout_end, bit, positive, negative = _read_layout(data, (begin + 3) << 3, layout)
    if bit > end << 3:
        return BROKEN, at
    if positive + negative > BUCKETS_MAX:
        return OTHER, at
    count = np.int64(0)
    for k in range(np.int64(data[begin]) << 8 | np.int64(data[begin + 1])):
        bit = _read_numbers(data, bit, state, positive + negative, k, is_float)
        if bit > end << 3:
            return BROKEN, at
        time_ms = state[0, _TIME]
        is_kept = True
        for i in range(len(deleted)):
            is_kept &= not deleted[i, 0] <= time_ms <= deleted[i, 1]
        if not is_kept:
            continue
        # Whether a first histogram follows a reset depends on what comes before it, which may not be there.
        hint = np.int64(0)
        if flags == _FLAG_GAUGE:
            hint = HINT_GAUGE
        elif k == 0 and flags == _FLAG_RESET:
            hint = HINT_RESET
        elif count > 0:
            hint = HINT_NOT_RESET
        size = _put_message(message, np.int64(0), layout, layout_end, state, positive, negative, is_float)
        size = put_number(message, size, _TAG_TIME, np.uint64(time_ms))
        size = put_number(message, size, _TAG_HINT, np.uint64(hint))
        if at + 6 + size > len(out):
            return FULL, at
        out[at] = _TAG_HISTOGRAM
        at = put_varint(out, at + 1, np.uint64(size))
        copy_bytes(out, at, message, np.int64(0), size)
        at += size
        count += 1
    return GOOD, at


@kernel(
    types.int64(_BYTES, _TABLE, types.int64, _TABLE, _INTS, types.int64[:, ::1], _OUT, _OUT, _OUT, types.int64[:, ::1]),
    allocates=False,
)
def decode(
    data: np.ndarray,
    table: np.ndarray,
    first: int,
    deleted: np.ndarray,
    deleted_offsets: np.ndarray,
    state: np.ndarray,
    layout: np.ndarray,
    message: np.ndarray,
    out: np.ndarray,
    spans: np.ndarray,
) -> int:
    """Write the chunks of a table from row `first` on, as far as there is room. spans[i]: where the fields of chunk i
    begin and end in `out`. deleted[deleted_offsets[i]:deleted_offsets[i + 1]]: first and last
    times of its histograms that are left out. Chunks that cannot be read become BROKEN or OTHER in the table. Returns
    the first row that is not done."""
    at = np.int64(0)
    for i in range(first, len(table)):
        own = deleted[deleted_offsets[i] : deleted_offsets[i + 1]]
        status, end = _chunk(data, table[i, 1], table[i, 2], own, state, layout, message, out, at)
        if status == FULL and at > 0:
            return i
        if status != GOOD:
            table[i, 0], end = BROKEN if status == BROKEN else OTHER, at
        spans[i, 0], spans[i, 1] = at, end
        at = end
    return len(table)


class Decoder:
    """Reads chunks into buffers of its own, of some 9 MB."""

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._state = np.empty((3, _FIELDS + BUCKETS_MAX), dtype=np.int64)
        self._layout = np.empty(_LAYOUT_BYTES_MAX, dtype=np.uint8)
        self._message = np.empty(_MESSAGE_BYTES_MAX + _LAYOUT_BYTES_MAX + 10 * BUCKETS_MAX, dtype=np.uint8)
        self._out = np.empty(room_bytes, dtype=np.uint8)

    def read(
        self, data: NDArray[np.uint8], table: NDArray[np.int64], deleted: Sequence[Sequence[tuple[int, int]]]
    ) -> Iterator[list[tuple[int, bytes]]]:
        """[(number of the chunk, its histograms as fields of a TimeSeries)], of as many chunks at a time as there is
        room for. `table`: chunks of this file, all of them HISTOGRAMS; those that cannot be read become BROKEN or OTHER
        in it. `deleted`: of each chunk, the times (start ≤ t ≤ end) that are left out."""
        offsets = np.zeros(len(table) + 1, dtype=np.int64)
        np.cumsum([len(own) for own in deleted], out=offsets[1:])
        flat = np.array([span for own in deleted for span in own], dtype=np.int64).reshape(-1, 2)
        spans, done = np.empty((len(table), 2), dtype=np.int64), 0
        buffers = self._state, self._layout, self._message, self._out
        while done < len(table):
            first = done
            done = decode(data, table, first, flat, offsets, *buffers, spans)
            rows = enumerate(spans[first:done].tolist(), first)
            yield [(row, self._out[begin:end].tobytes()) for row, (begin, end) in rows if begin < end]
