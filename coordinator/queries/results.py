"""The JSON of query results, written from arrays: nothing per sample in interpreted Python.

Shapes and number formats are those of the interface's "Query result" and of the Prometheus HTTP API.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numba import njit
from numpy.typing import NDArray

from coordinator.queries.floats import FLOAT_BYTES_MAX, POWERS, TIME_BYTES_MAX, write_float, write_time
from shared.labels import LabelFrame, Symbols, distinct
from shared.promql.model import Float, Grid, Int, Matrix, RangeVector, Samples, Scalar, String, Value

CHUNK_SAMPLES = 1 << 15
"""Samples written at a time: about 1 MB of text, some milliseconds of work."""
SAMPLE_BYTES_MAX = FLOAT_BYTES_MAX + TIME_BYTES_MAX + 6
ROW_BYTES = 64
"""The text of one series besides its labels and samples."""
GZIP_LEVEL = 1
"""Levels above 1 cost several times the CPU for a tenth of the size."""

WRITERS = 2
"""Threads that write chunks of long answers, for all queries together: the kernel runs outside the interpreter lock."""
CHUNKS_AHEAD = 4
"""Chunks of one answer that may be written before they are sent, so that both threads have work."""

_WRITERS = ThreadPoolExecutor(WRITERS, thread_name_prefix="json")

_METRIC = np.frombuffer(b'{"metric":{', dtype=np.uint8)
_VALUES = np.frombuffer(b'},"values":[', dtype=np.uint8)
_VALUE = np.frombuffer(b'},"value":', dtype=np.uint8)
_COMMA, _QUOTE, _OPEN, _CLOSE, _BRACE = (np.uint8(ord(c)) for c in ',"[]}')


@dataclass(frozen=True, slots=True)
class _LabelTexts:
    """`"name":"value"` of every series as references into one pool of bytes.

    `pool`: uint8[m]; piece i is pool[offsets[i]:offsets[i+1]]; `pieces`: int32[names, series], -1 where a series lacks
    the label, names in ascending order.
    """

    pool: NDArray[np.uint8]
    offsets: Int
    pieces: NDArray[np.int32]

    def row_bytes(self) -> Int:
        """int64[series]: how long each series' labels are at most."""
        lengths = np.append(np.diff(self.offsets), 0) + 1  # the appended 0 is what piece -1 finds
        return lengths[self.pieces].sum(axis=0, dtype=np.int64)


def _label_texts(labels: LabelFrame) -> _LabelTexts:
    texts: list[bytes] = []
    pieces = np.full((len(labels.columns), labels.size), -1, dtype=np.int32)
    for row, name in enumerate(sorted(labels.columns)):
        used, local = distinct(labels.columns[name])
        start = orjson.dumps(name) + b":"
        ids = np.arange(len(texts), len(texts) + len(used), dtype=np.int32)
        texts.extend(start + orjson.dumps(text) for text in labels.symbols.texts(used))
        ids[used == 0] = -1
        pieces[row] = ids[local]
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return _LabelTexts(np.frombuffer(b"".join(texts), dtype=np.uint8), offsets, pieces)


@njit(inline="always")
def _copy(out: Any, at: Any, source: Any, start: Any, end: Any) -> Any:
    for i in range(start, end):
        out[at] = source[i]
        at += 1
    return at


@njit(cache=True, nogil=True)
def _write_series(
    pool: Any, pool_offsets: Any, pieces: Any, offsets: Any, times: Any, values: Any, first: Any, instant: Any,
    powers: Any, out: Any,
) -> Any:  # fmt: skip
    """Series `first`… as JSON objects into `out`, a comma before each but series 0; returns how many bytes."""
    at = 0
    bits = values.view(np.uint64)
    for row in range(len(offsets) - 1):
        series = first + row
        if series:
            out[at] = _COMMA
            at += 1
        at = _copy(out, at, _METRIC, 0, len(_METRIC))
        begun = False
        for name in range(pieces.shape[0]):
            piece = pieces[name, series]
            if piece >= 0:
                if begun:
                    out[at] = _COMMA
                    at += 1
                begun = True
                at = _copy(out, at, pool, pool_offsets[piece], pool_offsets[piece + 1])
        at = _copy(out, at, _VALUE, 0, len(_VALUE)) if instant else _copy(out, at, _VALUES, 0, len(_VALUES))
        for i in range(offsets[row], offsets[row + 1]):
            if i > offsets[row]:
                out[at] = _COMMA
                at += 1
            out[at] = _OPEN
            at = write_time(out, at + 1, times[i])
            out[at] = _COMMA
            out[at + 1] = _QUOTE
            at = write_float(out, at + 2, values[i], bits[i], powers)
            out[at] = _QUOTE
            out[at + 1] = _CLOSE
            at += 2
        if not instant:
            out[at] = _CLOSE
            at += 1
        out[at] = _BRACE
        at += 1
    return at


def _ragged(values: Float, present: NDArray[np.bool_], times_ms: Int) -> Samples:
    """The present cells of some rows of a matrix."""
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.count_nonzero(present, axis=1), out=offsets[1:])
    times = np.broadcast_to(times_ms, present.shape)[present]
    return Samples(offsets, times, values[present])


def _chunk_ends(sample_counts: Int) -> list[int]:
    """Where to cut the series so that each chunk has about CHUNK_SAMPLES samples, at least one series."""
    weight = np.cumsum(sample_counts + 1)
    if not len(weight):
        return []
    cuts = np.searchsorted(weight, np.arange(CHUNK_SAMPLES, weight[-1], CHUNK_SAMPLES), side="right")
    return [*(int(cut) for cut in np.unique(cuts) if 0 < cut < len(weight)), len(weight)]


def _series_chunks(labels: LabelFrame, value: Matrix | RangeVector, grid: Grid, instant: bool) -> Iterator[bytes]:
    texts = _label_texts(labels)
    row_bytes = texts.row_bytes()
    if isinstance(value, Matrix):
        counts = np.full(labels.size, grid.steps, dtype=np.int64)
        times_ms = grid.times_ms()
    else:
        counts = np.diff(value.samples.offsets)

    def chunk(first: int, last: int) -> bytes:
        if isinstance(value, Matrix):
            part = _ragged(value.values[first:last], value.present[first:last], times_ms)
        else:
            offsets = value.samples.offsets[first : last + 1]
            held = slice(int(offsets[0]), int(offsets[-1]))
            part = Samples(offsets - offsets[0], value.samples.timestamps_ms[held], value.samples.values[held])
        bound = int(row_bytes[first:last].sum()) + ROW_BYTES * (last - first) + SAMPLE_BYTES_MAX * len(part.values)
        out = np.empty(bound, dtype=np.uint8)
        size = _write_series(
            texts.pool, texts.offsets, texts.pieces,
            np.ascontiguousarray(part.offsets), np.ascontiguousarray(part.timestamps_ms),
            np.ascontiguousarray(part.values), first, instant, POWERS, out,
        )  # fmt: skip
        assert size <= bound
        return out[:size].tobytes()

    ends = _chunk_ends(counts)
    spans = list(zip([0, *ends], ends, strict=False))
    if len(spans) < 2:
        yield from (chunk(*span) for span in spans)
        return
    waiting: deque[Future[bytes]] = deque()
    try:
        for span in spans:
            waiting.append(_WRITERS.submit(chunk, *span))
            if len(waiting) > CHUNKS_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _time_text(time_ms: int) -> str:
    """Unix seconds as a scalar's answer has them: no more decimals than it needs."""
    seconds, rest = divmod(abs(time_ms), 1000)
    return "-" * (time_ms < 0) + str(seconds) + (f".{rest:03d}".rstrip("0") if rest else "")


def positional(value: float) -> str:
    """A scalar's text: like a sample's, but never with an exponent, as the Prometheus API has it."""
    if value != value:
        return "NaN"
    if np.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return np.format_float_positional(value, unique=True, trim="-")


@dataclass(frozen=True, slots=True)
class Result:
    """A finished value, in the order its series are to be shown."""

    value: Value
    grid: Grid
    is_range: bool

    @property
    def type(self) -> str:
        if isinstance(self.value, Scalar):
            return "scalar"
        if isinstance(self.value, String):
            return "string"
        return "matrix" if self.is_range or isinstance(self.value, RangeVector) else "vector"

    def chunks(self) -> Iterator[bytes]:
        """The `result` member."""
        value = self.value
        if isinstance(value, Scalar):
            text = positional(float(value.values[0]))
            yield f'[{_time_text(self.grid.start_ms)},"{text}"]'.encode()
        elif isinstance(value, String):
            yield b"[%s,%s]" % (_time_text(self.grid.start_ms).encode(), orjson.dumps(value.value))
        else:
            yield b"["
            yield from _series_chunks(value.labels, value, self.grid, self.type == "vector")
            yield b"]"


def envelope(result: Result, data: dict[str, Any], remarks: dict[str, list[str]]) -> Iterator[bytes]:
    """The whole answer: `data` holds members beside the result (stats, explain), `remarks` members beside `data`."""
    yield b'{"status":"success","data":{"resultType":"%s","result":' % result.type.encode()
    yield from result.chunks()
    for name, member in data.items():
        yield b",%s:%s" % (orjson.dumps(name), orjson.dumps(member))
    yield b"}"
    for name, texts in remarks.items():
        if texts:
            yield b",%s:%s" % (orjson.dumps(name), orjson.dumps(texts))
    yield b"}"


def gathered(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of at least `size` bytes, the last one excepted."""
    held: list[bytes] = []
    length = 0
    for chunk in chunks:
        held.append(chunk)
        length += len(chunk)
        if length >= size:
            yield b"".join(held)
            held, length = [], 0
    if held:
        yield b"".join(held)


def compressed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes as one gzip member."""
    gzip = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for chunk in chunks:
        piece = gzip.compress(chunk)
        if piece:
            yield piece
    yield gzip.flush()


def ordered(value: Value) -> Value:
    """Series sorted by label set."""
    if not isinstance(value, Matrix | RangeVector) or value.labels.size < 2:
        return value
    return take(value, value.labels.sort_order())


def take(value: Matrix | RangeVector, rows: Int) -> Matrix | RangeVector:
    """Some series of a value, in the order given."""
    labels, drop_name = value.labels.take(rows), value.drop_name[rows]
    if isinstance(value, Matrix):
        return Matrix(labels, value.values[rows], value.present[rows], drop_name)
    starts, ends = value.samples.offsets[:-1][rows], value.samples.offsets[1:][rows]
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    picks = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)
    samples = Samples(offsets, value.samples.timestamps_ms[picks], value.samples.values[picks])
    return RangeVector(labels, samples, drop_name)


def as_range(value: Value, grid: Grid) -> Value:
    """A scalar of a range query is one series without labels."""
    if not isinstance(value, Scalar):
        return value
    values = value.values.reshape(1, grid.steps)
    labels = LabelFrame.of([{}], Symbols())
    return Matrix(labels, values, np.ones(values.shape, dtype=bool), np.zeros(1, dtype=bool))


def truncated(value: Value, limit: int) -> tuple[Value, bool]:
    """The first `limit` series (0: all of them), and whether any were left out."""
    if not limit or not isinstance(value, Matrix | RangeVector) or value.labels.size <= limit:
        return value, False
    return take(value, np.arange(limit)), True


def warm() -> None:
    """Compile the kernels of this module, or load them from the cache on disk."""
    labels = LabelFrame.of([{}], Symbols())
    half = Matrix(labels, np.full((1, 1), 0.5), np.ones((1, 1), dtype=bool), np.zeros(1, dtype=bool))
    for _ in Result(half, Grid(0, 0), is_range=False).chunks():
        pass
