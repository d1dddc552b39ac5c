"""Responses with streamed chunks: a frame for each series, which is its length (a varint), the CRC-32C of its message
(four bytes, big-endian) and the message, a `ChunkedReadResponse`.

Protocol: the comments of `proto/remote_read.proto` in Prometheus, and
https://prometheus.io/blog/2019/10/10/remote-read-meets-streaming/. Clients expect one series in a frame, and some take
a second frame of the same series for another series. So a series is in one frame unless it is longer than
`PART_NUMBERS_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from coordinator.bits import VARINT_BYTES_MAX, put_number, put_varint, varint_size
from coordinator.remote_read import histogram_chunks
from coordinator.remote_read.histogram_chunks import FLOAT_HISTOGRAM, NUMBER_BYTES_MAX, put_histogram_chunk
from coordinator.remote_read.parts import Parts, put_labels
from coordinator.remote_read.samples import PIECES_AHEAD, WRITING
from coordinator.remote_read.xor_chunks import CHUNK_SAMPLES, XOR, XOR_BITS_MAX, XOR_CHUNK_BYTES_MAX, put_xor_chunk
from shared.ahead import mapped
from shared.crc32c import CRC_TABLES, TABLES, crc32c
from shared.histograms.batch import LAYOUTS, ROWS, concatenated
from shared.histograms.references import refers
from shared.kernels import inlined, kernel, types
from shared.promql.rendering.labels import OFFSETS, PIECES, POOL, copy

HEAD_BYTES_MAX = 5 + 4 + 1 + 5
"""Most bytes of a frame before the labels of its series."""
TAIL_BYTES_MAX = 1 + VARINT_BYTES_MAX
CHUNK_HEAD_BYTES_MAX = 6 + 2 * (1 + VARINT_BYTES_MAX) + 2 + 6
XOR_BYTES_BESIDE = CHUNK_HEAD_BYTES_MAX + XOR_CHUNK_BYTES_MAX - XOR_BITS_MAX * CHUNK_SAMPLES // 8
"""Bytes of a chunk of floats that do not depend on their number."""

_SERIES, _CHUNK, _INDEX = np.uint8(0x0A), np.uint8(0x12), np.uint8(0x10)
_MIN_TIME, _MAX_TIME, _TYPE, _DATA = np.uint8(0x08), np.uint8(0x10), np.uint8(0x18), np.uint8(0x22)
_INTS = types.Array(types.int64, 1, "C", readonly=True)
_OUT = types.uint8[::1]

Write = Callable[[int, int], memoryview]


def chunks(results: Sequence[Parts]) -> Iterator[memoryview]:
    """The body of the response, which may be empty."""
    calls = [
        (writer, *span)
        for number, parts in enumerate(results)
        for writer in (_writer(parts, number),)
        for span in parts.spans()
    ]
    if len(calls) == 1:
        writer, first, last = calls[0]
        yield writer(first, last)
    else:
        yield from mapped(WRITING, lambda writer, first, last: writer(first, last), calls, PIECES_AHEAD)


def _writer(parts: Parts, query_index: int) -> Write:
    """A function that writes the frames of the parts first ≤ i < last."""
    batch = parts.histograms or concatenated([])
    sizes = np.diff(batch.columns.start)
    bounds = np.diff(batch.layouts.columns.bound_start)[batch.columns.layout]
    chunk_bytes = XOR_CHUNK_BYTES_MAX
    if len(batch):
        # The layout and the first histogram, and one more histogram when the chunk is nearly full.
        chunk_bytes += histogram_chunks.CHUNK_BYTES_BESIDE + 2 * NUMBER_BYTES_MAX * int((sizes + bounds).max())
    fields = histogram_chunks.FIELDS + int(sizes.max(initial=0))
    labels = parts.labels

    def write(first: int, last: int) -> memoryview:
        span = slice(first, last)
        rows, firsts, lasts = parts.rows[span], parts.firsts[span], parts.lasts[span]
        samples = int((lasts - firsts).sum())
        capacity = int(parts.label_bytes[rows].sum()) + (HEAD_BYTES_MAX + TAIL_BYTES_MAX) * len(rows)
        capacity += XOR_BITS_MAX * samples // 8 + XOR_BYTES_BESIDE * (samples // CHUNK_SAMPLES + len(rows))
        if len(batch):
            capacity += NUMBER_BYTES_MAX * int(parts.numbers[span].sum())
        out = np.empty(capacity, np.uint8)
        size = _write(
            labels.pool, labels.offsets, labels.pieces, rows, firsts, lasts, parts.times_ms, parts.bits, query_index,
            batch.layouts.columns, batch.columns, CRC_TABLES, np.empty(chunk_bytes, np.uint8),
            np.empty((2, fields), np.int64), out,
        )  # fmt: skip
        assert size <= capacity
        return out[:size].copy().data  # a copy, to free the memory reserved for the longest samples

    return write


@kernel(
    types.int64(
        POOL, OFFSETS, PIECES, _INTS, _INTS, _INTS, _INTS, _INTS, types.int64, LAYOUTS, ROWS, TABLES, _OUT,
        types.int64[:, ::1], _OUT,
    ),
    allocates=False,
)  # fmt: skip
def _write(
    pool: Any, pool_offsets: Any, pieces: Any, rows: Any, firsts: Any, lasts: Any, times: Any, values: Any,
    query_index: Any, table: Any, histograms: Any, tables: Any, chunk: Any, windows: Any, out: Any,
) -> Any:  # fmt: skip
    """Write a frame for each part. `chunk`: workspace for one chunk. Returns the number of bytes."""
    at = np.int64(0)
    for part in range(len(rows)):
        begin = at + HEAD_BYTES_MAX
        end = put_labels(out, begin, pool, pool_offsets, pieces, rows[part])
        first = firsts[part]
        while first < lasts[part]:
            if refers(values[first]):
                size, last = put_histogram_chunk(
                    chunk, times, values, first, lasts[part], table, histograms, windows
                )  # fmt: skip
                end = _put_chunk(out, end, times[first], times[last - 1], FLOAT_HISTOGRAM, chunk, size)
            else:
                last = _floats_end(values, first, min(first + CHUNK_SAMPLES, lasts[part]))
                size = put_xor_chunk(chunk, times, values, first, last)
                end = _put_chunk(out, end, times[first], times[last - 1], XOR, chunk, size)
            first = last
        at = _put_frame(out, at, begin, end, query_index, tables)
    return at


@inlined(allocates=False)
def _floats_end(values: Any, first: Any, last: Any) -> Any:
    """The end of the floats that begin at `first`."""
    at = first
    while at < last and not refers(values[at]):
        at += 1
    return at


@inlined(allocates=False)
def _put_chunk(out: Any, at: Any, first_ms: Any, last_ms: Any, encoding: Any, data: Any, size: Any) -> Any:
    """Write data[:size] as the field `chunks` of a series. Returns its end."""
    first, last, length = np.uint64(first_ms), np.uint64(last_ms), np.uint64(size)
    message = 5 + varint_size(first) + varint_size(last) + varint_size(length) + size
    at = put_number(out, at, _CHUNK, np.uint64(message))
    at = put_number(out, at, _MIN_TIME, first)
    at = put_number(out, at, _MAX_TIME, last)
    at = put_number(out, at, _TYPE, np.uint64(encoding))
    at = put_number(out, at, _DATA, length)
    return copy(out, at, data, 0, size)


@inlined(allocates=False)
def _put_frame(out: Any, at: Any, begin: Any, end: Any, query_index: Any, tables: Any) -> Any:
    """Write the frame of a series at `at`. Its content, out[begin:end], is moved into the frame. Returns the frame's
    end."""
    length, index = end - begin, np.uint64(query_index)
    tail = 1 + varint_size(index) if query_index > 0 else 0
    message = 1 + varint_size(np.uint64(length)) + length + tail
    checksum_at = put_varint(out, at, np.uint64(message))
    message_at = checksum_at + 4
    out[message_at] = _SERIES
    at = put_varint(out, message_at + 1, np.uint64(length))
    for i in range(length):
        out[at + i] = out[begin + i]
    at += length
    if query_index > 0:
        at = put_number(out, at, _INDEX, index)
    checksum = crc32c(tables, out, message_at, at)
    for i in range(4):
        out[checksum_at + i] = np.uint8(checksum >> np.uint64(24 - 8 * i) & np.uint64(0xFF))
    return at
