"""Series as JSON text, which kernels write from arrays: nothing per sample is interpreted Python.

The shape of a series is that of the Prometheus HTTP API's range and instant vectors. Every series begins with a comma,
so that the texts of several writers can be put into one array in any order; an answer leaves out its first comma.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numba import types
from numpy.typing import NDArray

from shared.ahead import mapped
from shared.kernels import inlined, kernel
from shared.labels import LabelFrame, distinct
from shared.promql.model import Grid, Int, Matrix, RangeVector
from shared.promql.rendering.floats import FLOAT_BYTES_MAX, POWERS, TIME_BYTES_MAX, write_float, write_time

TEXT_SAMPLES = 1 << 15
"""Samples that are written at a time: about 1 MB of text, a few milliseconds of work."""
SAMPLE_BYTES_MAX = FLOAT_BYTES_MAX + TIME_BYTES_MAX + 6
ROW_BYTES = 64
"""Bytes of the text of one series besides its labels and samples, at most."""
WRITERS = 2
"""Threads that write long texts, for all queries of a process together: kernels run outside the interpreter lock."""
TEXTS_AHEAD = 4
"""Texts of one value that may be written ahead of the consumer, so that both threads have work."""
SLOT_BYTES = 32
"""Room for `,[`, a time and `,"`."""

_WRITERS = ThreadPoolExecutor(WRITERS, thread_name_prefix="json")

_METRIC = np.frombuffer(b',{"metric":{', dtype=np.uint8)
_VALUES = np.frombuffer(b'},"values":[', dtype=np.uint8)
_VALUE = np.frombuffer(b'},"value":', dtype=np.uint8)
_COMMA, _QUOTE, _OPEN, _CLOSE, _BRACE = (np.uint8(ord(c)) for c in ',"[]}')

Bytes = NDArray[np.uint8]

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)
_PIECES = types.Array(types.int32, 2, "C", readonly=True)
_POWERS = types.Array(types.uint64, 2, "C", readonly=True)
_OUT, _ENDS = types.uint8[::1], types.int64[::1]


@dataclass(frozen=True, slots=True)
class Text:
    """Some series as text, one after another.

    `data`: uint8[m]; `ends`: int64[series], where each series' text ends in it; `label_ends`: int64[series], where its
    labels end (before the brace that closes them). Equal label sets have equal texts up to there.
    """

    data: Bytes
    ends: Int
    label_ends: Int

    @property
    def series(self) -> int:
        return len(self.ends)

    def starts(self) -> Int:
        """int64[series]: where each series' text begins in `data`."""
        return np.concatenate(([0], self.ends[:-1])) if self.series else self.ends


@dataclass(frozen=True, slots=True)
class _LabelTexts:
    """`"name":"value"` of every series as references into one pool of bytes.

    `pool`: uint8[m]; piece i is pool[offsets[i]:offsets[i+1]]; `pieces`: int32[names, series], -1 where a series lacks
    the label, names in ascending order.
    """

    pool: Bytes
    offsets: Int
    pieces: NDArray[np.int32]

    def row_bytes(self) -> Int:
        """int64[series]: an upper bound of the length of each series' labels."""
        lengths = np.append(np.diff(self.offsets), 0) + 1  # piece -1 takes the appended 0
        return lengths[self.pieces].sum(axis=0, dtype=np.int64)


def _label_texts(labels: LabelFrame) -> _LabelTexts:
    texts: list[bytes] = []
    pieces = np.full((len(labels.columns), labels.size), -1, dtype=np.int32)
    for row, name in enumerate(sorted(labels.columns)):
        used, local = distinct(labels.columns[name])
        start = orjson.dumps(name) + b":"
        ids = np.arange(len(texts), len(texts) + len(used), dtype=np.int32)
        texts.extend([start + orjson.dumps(text) for text in labels.symbols.texts(used)])
        ids[used == 0] = -1
        pieces[row] = ids[local]
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return _LabelTexts(np.frombuffer(b"".join(texts), dtype=np.uint8), offsets, pieces)


class SeriesWriter:
    """Writes the series `rows` (int64 indices) of a value, in that order, some at a time. Safe to use from several
    threads.

    `instant`: each series has one sample, its `value`, instead of `values`. The labels of `value` must be final.
    """

    def __init__(self, value: Matrix | RangeVector, rows: Int, grid: Grid, *, instant: bool) -> None:
        self._size = value.labels.size
        self._rows = rows
        self._instant = instant
        self._labels = _label_texts(value.labels)
        self._row_bytes = self._labels.row_bytes()[rows] + ROW_BYTES
        if isinstance(value, Matrix):
            self._counts = np.full(len(rows), grid.steps, dtype=np.int64)
            self._write = self._of_matrix(value, grid)
        else:
            samples = value.samples
            self._counts = np.diff(samples.offsets)[rows]
            self._write = self._of_samples(
                np.ascontiguousarray(samples.offsets[:-1]),
                np.ascontiguousarray(samples.offsets[1:]),
                np.ascontiguousarray(samples.timestamps_ms),
                np.ascontiguousarray(samples.values),
            )

    @property
    def series(self) -> int:
        return len(self._rows)

    @property
    def bytes_max(self) -> int:
        """An upper bound of the length of the whole text."""
        return int(self._row_bytes.sum()) + SAMPLE_BYTES_MAX * int(self._counts.sum())

    def spans(self, samples: int = TEXT_SAMPLES) -> list[tuple[int, int]]:
        """(first, last) of each part if the series are cut so that a part has about this many samples, and at least one
        series."""
        if not self.series:
            return []
        weight = np.cumsum(self._counts + 1)
        if weight[-1] <= samples:
            return [(0, self.series)]
        cuts = np.searchsorted(weight, np.arange(samples, weight[-1], samples), side="right")
        ends = [*(int(cut) for cut in np.unique(cuts) if 0 < cut < len(weight)), len(weight)]
        return list(zip([0, *ends], ends, strict=False))

    def texts(self) -> Iterator[Text]:
        """All series, about TEXT_SAMPLES samples at a time. If there is more than one text, threads write them ahead of
        the consumer."""
        spans = self.spans()
        if len(spans) < 2:
            yield from (self.write(*span) for span in spans)
            return
        yield from mapped(_WRITERS, self.write, spans, TEXTS_AHEAD)

    def write(self, first: int, last: int) -> Text:
        """The text of the series first ≤ i < last of `rows`."""
        bound = int(self._row_bytes[first:last].sum()) + SAMPLE_BYTES_MAX * int(self._counts[first:last].sum())
        return self._written(self._write, first, last, bound)

    def heads(self) -> Text:
        """All series as if they had no samples."""
        nothing = np.zeros(self._size, dtype=np.int64)
        empty = self._of_samples(nothing, nothing, nothing[:0], np.zeros(0))
        return self._written(empty, 0, self.series, int(self._row_bytes.sum()))

    def _written(self, write: Callable[..., int], first: int, last: int, bound: int) -> Text:
        out = np.empty(bound, dtype=np.uint8)
        ends = np.empty(last - first, dtype=np.int64)
        label_ends = np.empty(last - first, dtype=np.int64)
        size = write(self._rows[first:last], out, ends, label_ends)
        assert size <= bound
        # A copy, so that the memory that was reserved for the longest numbers is freed.
        return Text(out[:size].copy(), ends, label_ends)

    def _of_matrix(self, value: Matrix, grid: Grid) -> Callable[..., int]:
        values = np.ascontiguousarray(value.values)
        present = np.ascontiguousarray(value.present)
        slots = np.zeros((grid.steps, SLOT_BYTES), dtype=np.uint8)
        lengths = np.zeros(grid.steps, dtype=np.int64)
        _write_times(grid.times_ms(), slots, lengths)
        # Not `self`, which has this function: the arrays of a cycle are only freed by the collector.
        labels, instant = self._labels, self._instant

        def write(rows: Int, out: Bytes, ends: Int, label_ends: Int) -> int:
            return _write_matrix(
                labels.pool, labels.offsets, labels.pieces, values, values.view(np.uint64), present, slots, lengths,
                rows, instant, POWERS, out, ends, label_ends,
            )  # fmt: skip

        return write

    def _of_samples(self, firsts: Int, lasts: Int, times_ms: Int, values: NDArray[np.float64]) -> Callable[..., int]:
        labels = self._labels

        def write(rows: Int, out: Bytes, ends: Int, label_ends: Int) -> int:
            return _write_samples(
                labels.pool, labels.offsets, labels.pieces, firsts, lasts, times_ms, values, values.view(np.uint64),
                rows, POWERS, out, ends, label_ends,
            )  # fmt: skip

        return write


@inlined
def _copy(out: Any, at: Any, source: Any, start: Any, end: Any) -> Any:
    # Unsigned indices: with signed ones, every byte would be preceded by a check whether its index is negative.
    begin, to = np.uint64(start), np.uint64(at)
    for i in range(np.uint64(end - start)):
        out[to + i] = source[begin + i]
    return at + (end - start)


@inlined
def _write_labels(out: Any, at: Any, pool: Any, pool_offsets: Any, pieces: Any, series: Any) -> Any:
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
    return at


@kernel(types.void(_INTS, types.uint8[:, ::1], _ENDS))
def _write_times(times: Any, slots: Any, lengths: Any) -> None:
    """Write `,[time,"` of every step into a slot of its own, and its length into `lengths`."""
    for i in range(len(times)):
        slot = slots[i]
        slot[0] = _COMMA
        slot[1] = _OPEN
        at = write_time(slot, 2, times[i])
        slot[at] = _COMMA
        slot[at + 1] = _QUOTE
        lengths[i] = at + 2


@kernel(
    types.int64(
        _BYTES, _INTS, _PIECES, types.Array(types.float64, 2, "C", readonly=True), _POWERS,
        types.Array(types.boolean, 2, "C", readonly=True), types.Array(types.uint8, 2, "C", readonly=True), _INTS,
        _INTS, types.boolean, _POWERS, _OUT, _ENDS, _ENDS,
    )
)  # fmt: skip
def _write_matrix(
    pool: Any, pool_offsets: Any, pieces: Any, values: Any, bits: Any, present: Any, slots: Any, lengths: Any,
    rows: Any, instant: Any, powers: Any, out: Any, ends: Any, label_ends: Any,
) -> Any:  # fmt: skip
    """Write rows of a matrix as JSON objects into `out`. Returns the number of bytes."""
    at = 0
    for number in range(len(rows)):
        series = rows[number]
        at = _write_labels(out, at, pool, pool_offsets, pieces, series)
        label_ends[number] = at
        at = _copy(out, at, _VALUE, 0, len(_VALUE)) if instant else _copy(out, at, _VALUES, 0, len(_VALUES))
        at -= 1
        begin, opening = at, out[at]  # the first sample's comma overwrites the bracket or colon, restored below
        for step in range(values.shape[1]):
            if present[series, step]:
                at = _copy(out, at, slots[step], 0, lengths[step])
                at = write_float(out, at, values[series, step], bits[series, step], powers)
                out[at] = _QUOTE
                out[at + 1] = _CLOSE
                at += 2
        if at == begin:
            at += 1
        out[begin] = opening
        if not instant:
            out[at] = _CLOSE
            at += 1
        out[at] = _BRACE
        at += 1
        ends[number] = at
    return at


@kernel(
    types.int64(
        _BYTES, _INTS, _PIECES, _INTS, _INTS, _INTS, types.Array(types.float64, 1, "C", readonly=True),
        types.Array(types.uint64, 1, "C", readonly=True), _INTS, _POWERS, _OUT, _ENDS, _ENDS,
    )
)  # fmt: skip
def _write_samples(
    pool: Any, pool_offsets: Any, pieces: Any, firsts: Any, lasts: Any, times: Any, values: Any, bits: Any, rows: Any,
    powers: Any, out: Any, ends: Any, label_ends: Any,
) -> Any:  # fmt: skip
    """Write series with samples firsts[row] ≤ i < lasts[row] as JSON objects into `out`. Returns the number of
    bytes."""
    at = 0
    for number in range(len(rows)):
        series = rows[number]
        at = _write_labels(out, at, pool, pool_offsets, pieces, series)
        label_ends[number] = at
        at = _copy(out, at, _VALUES, 0, len(_VALUES))
        for i in range(firsts[series], lasts[series]):
            if i > firsts[series]:
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
        out[at] = _CLOSE
        out[at + 1] = _BRACE
        at += 2
        ends[number] = at
    return at
