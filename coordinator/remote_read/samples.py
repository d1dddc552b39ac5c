"""Responses with samples: one `ReadResponse`, compressed as one snappy block, written and sent piece by piece.

A snappy block begins with the length of its content, and its elements may refer to earlier content. Elements of a piece
that was compressed on its own refer only to that piece. Therefore, the compressed pieces without their lengths,
concatenated, form one block (https://github.com/google/snappy/blob/main/format_description.txt).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import cramjam
import numpy as np

from coordinator.bits import put_number, varint_size, varint_sizes
from coordinator.remote_read.histogram_messages import Messages, messages_of
from coordinator.remote_read.parts import Parts, put_labels
from coordinator.series.time_series_fields import put_sample
from shared.ahead import mapped
from shared.errors import NotExecutable
from shared.histograms.references import refers, row_of
from shared.kernels import kernel, types
from shared.promql.model import Int
from shared.promql.rendering.labels import OFFSETS, PIECES, POOL, Bytes, copy
from shared.protobuf_fields import delimited_head, varint

WRITERS = 2
"""Threads that write responses of remote read, for all requests together. Kernels and compression run without the
interpreter lock."""
PIECES_AHEAD = 3
INLINE_PIECES = 2
"""Up to this many pieces are not worth another thread: the length of one query's result, and its samples."""
RESPONSE_BYTES_MAX = (1 << 32) - 1
"""The capacity of a snappy block."""
RESULTS, TIMESERIES = 1, 1
"""Fields of the messages ReadResponse and QueryResult."""

WRITING = ThreadPoolExecutor(WRITERS, thread_name_prefix="remote-read")

_SERIES, _HISTOGRAM, _HISTOGRAM_TIME = np.uint8(0x0A), np.uint8(0x22), np.uint8(0x78)
_INTS = types.Array(types.int64, 1, "C", readonly=True)
_BOOLS = types.Array(types.boolean, 1, "C", readonly=True)


@dataclass(frozen=True, slots=True)
class _Written:
    """One query's samples and the sizes of their encoding. `messages`: of the histograms, without their times; `sizes`:
    int64[parts], bytes of the part's samples; `lengths`: int64[parts], bytes of the whole series in its first part, 0
    in its other parts."""

    parts: Parts
    messages: Messages
    sizes: Int
    lengths: Int

    @classmethod
    def of(cls, parts: Parts) -> _Written:
        messages, sizes = messages_of(parts.histograms), np.empty(len(parts.rows), np.int64)
        _measure(parts.firsts, parts.lasts, parts.times_ms, parts.bits, messages.offsets, sizes)
        heads = np.flatnonzero(parts.begins)
        lengths = np.zeros(len(sizes), np.int64)
        if len(heads):
            lengths[heads] = np.add.reduceat(sizes, heads) + parts.label_bytes[parts.rows[heads]]
        return cls(parts, messages, sizes, lengths)

    def bytes_of(self, first: int, last: int) -> int:
        """The encoded size of these parts."""
        begins = self.parts.begins[first:last]
        lengths = self.lengths[first:last][begins]
        heads = 1 + varint_sizes(lengths) + self.parts.label_bytes[self.parts.rows[first:last][begins]]
        return int(self.sizes[first:last].sum() + heads.sum())

    def piece(self, first: int, last: int) -> Bytes:
        """These parts, encoded."""
        parts, labels, span = self.parts, self.parts.labels, slice(first, last)
        out = np.empty(self.bytes_of(first, last), np.uint8)
        written = _write(
            labels.pool, labels.offsets, labels.pieces, parts.rows[span], parts.firsts[span], parts.lasts[span],
            parts.begins[span], self.lengths[span], parts.times_ms, parts.bits, self.messages.pool,
            self.messages.offsets, out,
        )  # fmt: skip
        assert written == len(out), "lengths are sent before their content, so they must be right"
        return out


def chunks(results: Sequence[Parts]) -> Iterator[bytes | memoryview]:
    """The body of the response. Raises NotExecutable if it would be too large."""
    written = [_Written.of(parts) for parts in results]
    sizes = [result.bytes_of(0, len(result.sizes)) for result in written]
    heads = [delimited_head(RESULTS, size) for size in sizes]
    total = sum(sizes) + sum(map(len, heads))
    if total > RESPONSE_BYTES_MAX:
        raise NotExecutable(
            f"the answer would have {total} bytes, more than the {RESPONSE_BYTES_MAX} of one message; ask for a "
            "shorter range or fewer series, or accept STREAMED_XOR_CHUNKS"
        )
    yield varint(total)
    pieces = list(_pieces(written, heads))
    if len(pieces) <= INLINE_PIECES:
        yield from (_compressed(*piece) for piece in pieces)
    else:
        yield from mapped(WRITING, _compressed, pieces, PIECES_AHEAD)


def _pieces(written: Sequence[_Written], heads: Sequence[bytes]) -> Iterator[tuple[Callable[[], bytes | Bytes]]]:
    for result, head in zip(written, heads, strict=True):
        yield (partial(bytes, head),)
        for span in result.parts.spans():
            yield (partial(result.piece, *span),)


def _compressed(piece: Callable[[], bytes | Bytes]) -> memoryview:
    """The snappy elements of the piece, without the length."""
    data = piece()
    return memoryview(cramjam.snappy.compress_raw(data))[len(varint(len(data))) :]  # type: ignore[arg-type]


@kernel(types.void(_INTS, _INTS, _INTS, _INTS, OFFSETS, types.int64[::1]), allocates=False)
def _measure(firsts: Any, lasts: Any, times: Any, bits: Any, messages: Any, sizes: Any) -> None:
    """Set `sizes` to the bytes of each part's samples, as fields of their series."""
    for part in range(len(firsts)):
        total = np.int64(0)
        for i in range(firsts[part], lasts[part]):
            time_size = 1 + varint_size(np.uint64(times[i]))
            if refers(bits[i]):
                row = row_of(bits[i])
                size = messages[row + 1] - messages[row] + time_size
                total += 1 + varint_size(np.uint64(size)) + size
            else:
                total += 2 + 9 + time_size
        sizes[part] = total


@kernel(
    types.int64(
        POOL, OFFSETS, PIECES, _INTS, _INTS, _INTS, _BOOLS, _INTS, _INTS, _INTS, POOL, OFFSETS, types.uint8[::1]
    ),
    allocates=False,
)  # fmt: skip
def _write(
    pool: Any, pool_offsets: Any, pieces: Any, rows: Any, firsts: Any, lasts: Any, begins: Any, lengths: Any,
    times: Any, bits: Any, messages: Any, message_offsets: Any, out: Any,
) -> Any:  # fmt: skip
    """Write parts of series as fields `timeseries`. Returns the number of bytes."""
    at = np.int64(0)
    for part in range(len(rows)):
        if begins[part]:
            at = put_number(out, at, _SERIES, np.uint64(lengths[part]))
            at = put_labels(out, at, pool, pool_offsets, pieces, rows[part])
        for i in range(firsts[part], lasts[part]):
            if refers(bits[i]):
                row = row_of(bits[i])
                begin, end = message_offsets[row], message_offsets[row + 1]
                time = np.uint64(times[i])
                at = put_number(out, at, _HISTOGRAM, np.uint64(end - begin + 1 + varint_size(time)))
                at = copy(out, at, messages, begin, end)
                at = put_number(out, at, _HISTOGRAM_TIME, time)
            else:
                at = put_sample(out, at, bits[i], times[i], 0)
    return at
