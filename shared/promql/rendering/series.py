"""Series as JSON text, written from arrays by kernels: no interpreted Python runs for each sample.

The shape of a series is that of the Prometheus HTTP API's range and instant vectors. Every series begins with a comma,
so that the texts of several writers can be put into one array in any order; a response leaves out its first comma.
`histograms.py` in this package writes series that have histograms among their samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.ahead import mapped
from shared.kernels import kernel, types
from shared.promql.model import Grid, Int, Matrix, RangeVector
from shared.promql.rendering.floats import FLOAT_BYTES_MAX, POWERS, TIME_BYTES_MAX, write_float, write_time
from shared.promql.rendering.histograms import ALL, HistogramSeries, present_samples
from shared.promql.rendering.labels import OFFSETS, PIECES, POOL, Bytes, copy, label_texts, write_labels

TEXT_SAMPLES = 1 << 15
"""Samples, or numbers of histograms, written at a time: about 1 MB of text, a few milliseconds of work."""
SERIES_BYTES_MAX = 8 << 20
"""A series whose text may be longer than this is written in parts. Only series of histograms are that long: one of
10,000 buckets at 11,000 steps has 5 GB of text."""
SAMPLE_BYTES_MAX = FLOAT_BYTES_MAX + TIME_BYTES_MAX + 6
ROW_BYTES = 64
"""The most bytes that the text of a series has besides its labels and samples."""
WRITERS = 2
"""Threads that write long texts, shared by all queries of a process: kernels run without the interpreter lock."""
TEXTS_AHEAD = 4
"""Texts of one value that are written ahead of the consumer, so that both threads have work."""
SLOT_BYTES = 32
"""Space for `,[`, a time and `,"`."""

_WRITERS = ThreadPoolExecutor(WRITERS, thread_name_prefix="json")

_VALUES = np.frombuffer(b'},"values":[', dtype=np.uint8)
_VALUE = np.frombuffer(b'},"value":', dtype=np.uint8)
_COMMA, _QUOTE, _OPEN, _CLOSE, _BRACE = (np.uint8(ord(c)) for c in ',"[]}')

_INTS = types.Array(types.int64, 1, "C", readonly=True)
_POWERS = types.Array(types.uint64, 2, "C", readonly=True)
_OUT, _ENDS = types.uint8[::1], types.int64[::1]


@dataclass(frozen=True, slots=True)
class Text:
    """The texts of some series, one after another.

    `data`: uint8[m]; `ends`: int64[series], where the text of each series ends in `data`; `label_ends`: int64[series],
    where its labels end (before the brace that closes them). Equal label sets have equal texts up to there.
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


class SeriesWriter:
    """Writes the series `rows` (int64 indices) of a value in that order, some at a time. Several threads may use one
    writer.

    `instant`: each series has one sample, its `value`, instead of `values`. The labels of `value` must be final.
    """

    def __init__(self, value: Matrix | RangeVector, rows: Int, grid: Grid, *, instant: bool) -> None:
        self._size = value.labels.size
        self._rows = rows
        self._instant = instant
        self._labels = label_texts(value.labels)
        self._row_bytes = self._labels.row_bytes[rows] + ROW_BYTES
        self._histograms = self._histogram_series(value, grid)
        if self._histograms is not None:
            self._counts, sample_bytes = self._histograms.numbers[rows], self._histograms.bytes_max[rows]
            self._write: Callable[..., int] = self._histograms.write
        elif isinstance(value, Matrix):
            self._counts = np.full(len(rows), grid.steps, dtype=np.int64)
            sample_bytes = SAMPLE_BYTES_MAX * self._counts
            self._write = self._matrix_writer(value, grid)
        else:
            samples = value.samples
            self._counts = np.diff(samples.offsets)[rows]
            sample_bytes = SAMPLE_BYTES_MAX * self._counts
            self._write = self._samples_writer(
                np.ascontiguousarray(samples.offsets[:-1]),
                np.ascontiguousarray(samples.offsets[1:]),
                np.ascontiguousarray(samples.timestamps_ms),
                np.ascontiguousarray(samples.values),
            )
        self._bytes_max: Int = self._row_bytes + sample_bytes
        self.numbers = int(self._counts.sum())
        """An upper bound of the numbers in the whole text: one for each sample, and one more for each bucket."""
        self.bytes_max = int(self._bytes_max.sum())
        """An upper bound of the length of the whole text."""

    @property
    def series(self) -> int:
        return len(self._rows)

    @property
    def has_long_series(self) -> bool:
        """Whether the text of some series may be longer than SERIES_BYTES_MAX."""
        return self._histograms is not None and int(self._bytes_max.max(initial=0)) > SERIES_BYTES_MAX

    def spans(self, samples: int = TEXT_SAMPLES) -> list[tuple[int, int]]:
        """(first, last) of each part if the series are cut into parts of about `samples` samples, and of at least one
        series."""
        if not self.series:
            return []
        if self.numbers + self.series <= samples:
            return [(0, self.series)]
        weight = np.cumsum(self._counts + 1)
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

    def pieces(self) -> Iterator[Bytes]:
        """The bytes of `texts`, with long series in several pieces."""
        if not self.has_long_series:
            yield from (text.data for text in self.texts())
            return
        yield from mapped(_WRITERS, self._piece, self._cuts(), TEXTS_AHEAD)

    def _cuts(self) -> Iterator[tuple[int, int, int, int]]:
        """(first, last, begin, end) of each piece: the series first ≤ i < last. A long series has pieces of its own,
        each with the samples begin ≤ j < end."""
        assert self._histograms is not None
        is_long = self._bytes_max > SERIES_BYTES_MAX
        for first, last in self.spans():
            for series in np.flatnonzero(is_long[first:last]) + first:
                if first < series:
                    yield first, int(series), 0, int(ALL)
                for begin, end in self._histograms.cuts(self._rows[series], TEXT_SAMPLES):
                    yield int(series), int(series) + 1, begin, end
                first = int(series) + 1
            if first < last:
                yield first, last, 0, int(ALL)

    def _piece(self, first: int, last: int, begin: int, end: int) -> Bytes:
        if end == ALL:
            return self.write(first, last).data
        assert self._histograms is not None and last == first + 1
        bound = int(self._row_bytes[first]) + self._histograms.part_bytes_max(self._rows[first], begin, end)
        write = partial(self._histograms.write, begin=begin, end=end)
        return self._text(write, first, last, bound).data

    def write(self, first: int, last: int) -> Text:
        """The text of the series first ≤ i < last of `rows`."""
        is_all = last - first == self.series
        bound = self.bytes_max if is_all else int(self._bytes_max[first:last].sum())
        return self._text(self._write, first, last, bound)

    def heads(self) -> Text:
        """All series as if they had no samples."""
        zeros = np.zeros(self._size, dtype=np.int64)
        write_empty = self._samples_writer(zeros, zeros, zeros[:0], np.zeros(0))
        return self._text(write_empty, 0, self.series, int(self._row_bytes.sum()))

    def _text(self, write: Callable[..., int], first: int, last: int, bound: int) -> Text:
        out = np.empty(bound, dtype=np.uint8)
        ends = np.empty(last - first, dtype=np.int64)
        label_ends = np.empty(last - first, dtype=np.int64)
        size = write(self._rows[first:last], out, ends, label_ends)
        assert size <= bound
        # Copied, so that the memory reserved for the longest possible numbers is freed.
        return Text(out[:size].copy(), ends, label_ends)

    def _histogram_series(self, value: Matrix | RangeVector, grid: Grid) -> HistogramSeries | None:
        """None if all samples are floats."""
        batch = value.samples.histograms if isinstance(value, RangeVector) else value.histograms
        if batch is None:
            return None
        samples = value.samples if isinstance(value, RangeVector) else present_samples(value, grid)
        return HistogramSeries(self._labels, samples, batch, instant=self._instant)

    def _matrix_writer(self, value: Matrix, grid: Grid) -> Callable[..., int]:
        values = np.ascontiguousarray(value.values)
        present = np.ascontiguousarray(value.present)
        slots = np.zeros((grid.steps, SLOT_BYTES), dtype=np.uint8)
        lengths = np.zeros(grid.steps, dtype=np.int64)
        _write_times(grid.times_ms(), slots, lengths)
        # The closure must not refer to `self`, which holds it: only the garbage collector frees the arrays of a cycle.
        labels, instant = self._labels, self._instant

        def write(rows: Int, out: Bytes, ends: Int, label_ends: Int) -> int:
            return _write_matrix(
                labels.pool, labels.offsets, labels.pieces, values, values.view(np.uint64), present, slots, lengths,
                rows, instant, POWERS, out, ends, label_ends,
            )  # fmt: skip

        return write

    def _samples_writer(
        self, firsts: Int, lasts: Int, times_ms: Int, values: NDArray[np.float64]
    ) -> Callable[..., int]:
        labels = self._labels

        def write(rows: Int, out: Bytes, ends: Int, label_ends: Int) -> int:
            return _write_samples(
                labels.pool, labels.offsets, labels.pieces, firsts, lasts, times_ms, values, values.view(np.uint64),
                rows, POWERS, out, ends, label_ends,
            )  # fmt: skip

        return write


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
        POOL, OFFSETS, PIECES, types.Array(types.float64, 2, "C", readonly=True), _POWERS,
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
        at = write_labels(out, at, pool, pool_offsets, pieces, series)
        label_ends[number] = at
        at = copy(out, at, _VALUE, 0, len(_VALUE)) if instant else copy(out, at, _VALUES, 0, len(_VALUES))
        at -= 1
        begin, opening = at, out[at]  # the first sample's comma overwrites the bracket or colon, restored below
        for step in range(values.shape[1]):
            if present[series, step]:
                at = copy(out, at, slots[step], 0, lengths[step])
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
        POOL, OFFSETS, PIECES, _INTS, _INTS, _INTS, types.Array(types.float64, 1, "C", readonly=True),
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
        at = write_labels(out, at, pool, pool_offsets, pieces, series)
        label_ends[number] = at
        at = copy(out, at, _VALUES, 0, len(_VALUES))
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
