"""The JSON of query results, written from arrays: nothing per sample in interpreted Python.

Shapes and number formats are those of the interface's "Query result" and of the Prometheus HTTP API.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from coordinator.queries.joining import Joined
from shared.labels import LabelFrame, Symbols
from shared.promql.engine.numbers import plain
from shared.promql.model import Grid, Int, Matrix, RangeVector, Samples, Scalar, String, Value
from shared.promql.rendering.series import SeriesWriter

Chunk = bytes | memoryview


def _series_chunks(value: Matrix | RangeVector, grid: Grid, instant: bool) -> Iterator[memoryview]:
    """The elements of a JSON array, with the commas between them."""
    writer = SeriesWriter(value, np.arange(value.labels.size), grid, instant=instant)
    begun = False
    for piece in writer.pieces():
        yield piece.data if begun else piece.data[1:]
        begun = True


def _time_text(time_ms: int) -> str:
    """Unix seconds as they stand in a scalar's answer, with no more decimals than needed."""
    seconds, rest = divmod(abs(time_ms), 1000)
    return "-" * (time_ms < 0) + str(seconds) + (f".{rest:03d}".rstrip("0") if rest else "")


@dataclass(frozen=True, slots=True)
class Result:
    """A finished value, its series in answer order. Series that are already text can be written once only."""

    value: Value | Joined
    grid: Grid
    is_range: bool

    @property
    def type(self) -> str:
        if isinstance(self.value, Scalar):
            return "scalar"
        if isinstance(self.value, String):
            return "string"
        if isinstance(self.value, Joined):
            return "matrix" if self.value.form == "matrix" else "vector"
        return "matrix" if self.is_range or isinstance(self.value, RangeVector) else "vector"

    def chunks(self) -> Iterator[Chunk]:
        """The `result` member."""
        value = self.value
        if isinstance(value, Scalar):
            text = plain(float(value.values[0]))  # never with an exponent, as in the Prometheus API
            yield f'[{_time_text(self.grid.start_ms)},"{text}"]'.encode()
        elif isinstance(value, String):
            yield b"[%s,%s]" % (_time_text(self.grid.start_ms).encode(), orjson.dumps(value.value))
        else:
            yield b"["
            vector = self.type == "vector"
            yield from value.chunks() if isinstance(value, Joined) else _series_chunks(value, self.grid, vector)
            yield b"]"


def envelope(
    result: Result, members: Callable[[float], dict[str, Any]], remarks: dict[str, list[str]]
) -> Iterator[Chunk]:
    """The whole answer. `members` gives those beside the result (stats, explain), from the seconds that it took to
    render the result; `remarks` has members beside `data`."""
    yield b'{"status":"success","data":{"resultType":"%s","result":' % result.type.encode()
    render_s, started = 0.0, time.perf_counter()
    for chunk in result.chunks():
        render_s += time.perf_counter() - started
        yield chunk
        started = time.perf_counter()
    for name, member in members(render_s).items():
        yield b",%s:%s" % (orjson.dumps(name), orjson.dumps(member))
    yield b"}"
    for name, texts in remarks.items():
        if texts:
            yield b",%s:%s" % (orjson.dumps(name), orjson.dumps(texts))
    yield b"}"


def ordered(value: Value) -> Value:
    """Series sorted by label set."""
    if not isinstance(value, Matrix | RangeVector) or value.labels.size < 2:
        return value
    return _taken(value, *value.labels.in_order())


def take(value: Matrix | RangeVector, rows: Int) -> Matrix | RangeVector:
    """Some series of a value, in the order given."""
    return _taken(value, rows, value.labels.take(rows))


def _taken(value: Matrix | RangeVector, rows: Int, labels: LabelFrame) -> Matrix | RangeVector:
    """As `take`; `labels`: of these series."""
    drop_name = value.drop_name[rows]
    if isinstance(value, Matrix):
        return Matrix(labels, value.values[rows], value.present[rows], drop_name, value.histograms)
    starts, ends = value.samples.offsets[:-1][rows], value.samples.offsets[1:][rows]
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    picks = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)
    samples = Samples(
        offsets,
        value.samples.timestamps_ms[picks],
        value.samples.values[picks],
        histograms=value.samples.histograms,
    )
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
