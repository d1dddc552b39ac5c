"""Series that have histograms as JSON text: floats in `values`, histograms in `histograms`, each left out if empty.
Source: https://prometheus.io/docs/prometheus/latest/querying/api/#native-histograms.

The bucket boundaries of a layout are written once for each piece of text, and copied to each histogram of the layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from shared.histograms.batch import EDGES, LAYOUTS, ROWS, HistogramBatch
from shared.histograms.references import is_reference, refers, row_of, rows_of
from shared.histograms.text import CLOSED, OPEN_LEFT, OPEN_RIGHT
from shared.kernels import inlined, kernel, types
from shared.promql.model import Float, Grid, Int, Matrix, Samples
from shared.promql.rendering.floats import FLOAT_BYTES_MAX, POWERS, TIME_BYTES_MAX, write_float, write_time
from shared.promql.rendering.labels import OFFSETS, PIECES, POOL, Bytes, LabelTexts, copy, write_labels

ALL = np.iinfo(np.int64).max


def _text(text: str) -> Bytes:
    return np.frombuffer(text.encode(), dtype=np.uint8)


_VALUE, _VALUES = _text(',"value":'), _text(',"values":[')
_HISTOGRAM, _HISTOGRAMS = _text(',"histogram":'), _text(',"histograms":[')
_COUNT, _SUM, _BUCKETS = _text(',{"count":"'), _text('","sum":"'), _text('","buckets":[')
_QUOTES = _text('","')
_COMMA, _QUOTE, _OPEN, _CLOSE, _BRACE = (np.uint8(ord(c)) for c in ',"[]}')
_ZERO = np.uint8(ord("0"))

EDGE_BYTES_MAX = len(',[0,"","","') + 2 * FLOAT_BYTES_MAX
BUCKET_BYTES_MAX = EDGE_BYTES_MAX + FLOAT_BYTES_MAX + len('"]')
SAMPLE_BYTES_MAX = (
    len(",[") + TIME_BYTES_MAX + len(_COUNT) + len(_SUM) + len(_BUCKETS) + 2 * FLOAT_BYTES_MAX + len('"]}]')
)
"""The longest text of a float, or of a histogram without its buckets."""

_BITS = types.Array(types.int64, 1, "C", readonly=True)
_POWERS = types.Array(types.uint64, 2, "C", readonly=True)
_OUT, _ENDS = types.uint8[::1], types.int64[::1]


def present_samples(value: Matrix, grid: Grid) -> Samples:
    """The present values of a matrix as samples of its series."""
    offsets = np.concatenate(([0], np.cumsum(value.present.sum(axis=1, dtype=np.int64))))
    times_ms = np.broadcast_to(grid.times_ms(), value.present.shape)[value.present]
    return Samples(offsets, times_ms, value.values[value.present], histograms=value.histograms)


@dataclass(frozen=True, slots=True)
class _Edges:
    """The texts of the buckets of some layouts, each up to the count: that of bucket b of layout number[l] is
    pool[offsets[first[l] + b]:offsets[first[l] + b + 1]]."""

    number: Int
    first: Int
    pool: Bytes
    offsets: Int


class HistogramSeries:
    """Writes series of `samples`, whose histograms are in `batch`. `instant`: each series has one sample.

    `numbers`: int64[series], the number of samples of each series plus that of their buckets. `bytes_max`:
    int64[series], an upper bound of the length of its text without its labels.
    """

    def __init__(self, labels: LabelTexts, samples: Samples, batch: HistogramBatch, *, instant: bool) -> None:
        self._labels = labels
        self._instant = instant
        self._batch = batch
        self._firsts = np.ascontiguousarray(samples.offsets[:-1])
        self._lasts = np.ascontiguousarray(samples.offsets[1:])
        self._times_ms = np.ascontiguousarray(samples.timestamps_ms)
        self._values = np.ascontiguousarray(samples.values)
        self._buckets_before = _buckets_before(self._values, batch)
        counts = self._lasts - self._firsts
        buckets = self._buckets_before[self._lasts] - self._buckets_before[self._firsts]
        self.numbers = counts + buckets
        self.bytes_max = SAMPLE_BYTES_MAX * counts + BUCKET_BYTES_MAX * buckets

    def cuts(self, series: int, numbers: int) -> list[tuple[int, int]]:
        """(begin, end) of each part if the series is cut into parts of about `numbers` numbers, and of at least one
        sample: the part has the samples begin ≤ i < end."""
        samples = int(self._lasts[series] - self._firsts[series])
        buckets_before = self._buckets_before[self._firsts[series] : self._lasts[series] + 1]
        weight = buckets_before - buckets_before[0] + np.arange(samples + 1)
        cuts = np.searchsorted(weight, np.arange(numbers, weight[-1], numbers), side="right") - 1
        return list(pairwise([0, *(int(cut) for cut in np.unique(cuts) if 0 < cut < samples), samples]))

    def part_bytes_max(self, series: int, begin: int, end: int) -> int:
        """An upper bound of the length of a part's text. The first part has all floats."""
        first, last = int(self._firsts[series]), int(self._lasts[series])
        samples = last - first if begin == 0 else end - begin
        buckets = int(self._buckets_before[first + end] - self._buckets_before[first + begin])
        return SAMPLE_BYTES_MAX * samples + BUCKET_BYTES_MAX * buckets

    def write(self, rows: Int, out: Bytes, ends: Int, label_ends: Int, begin: int = 0, end: int = int(ALL)) -> int:
        """Write the series `rows`, or the samples begin ≤ i < end of a single one. The first part of a series begins
        with its labels and all floats; the last part closes it. Returns the number of bytes."""
        bits, batch, labels = self._values.view(np.int64), self._batch, self._labels
        edges = self._edges(rows, begin, end)
        return _write_series(
            labels.pool, labels.offsets, labels.pieces, self._firsts, self._lasts, self._times_ms, self._values, bits,
            rows, begin, end, self._instant, batch.columns, edges.number, edges.first, edges.pool, edges.offsets,
            POWERS, out, ends, label_ends,
        )  # fmt: skip

    def _edges(self, rows: Int, begin: int, end: int) -> _Edges:
        """The bucket texts of the layouts of the histograms in this part."""
        batch = self._batch
        is_used = np.zeros(len(batch.layouts), np.bool_)
        bits = self._values.view(np.int64)
        _find_layouts(bits, self._firsts, self._lasts, rows, begin, end, batch.columns, is_used)
        used = np.flatnonzero(is_used)
        table = batch.layouts.columns
        first = np.concatenate(([0], np.cumsum(table.start[used + 1] - table.start[used])))
        pool = np.empty(first[-1] * EDGE_BYTES_MAX, np.uint8)
        offsets = np.zeros(first[-1] + 1, np.int64)
        _write_edges(table, batch.layouts.edges, used, POWERS, pool, offsets)
        return _Edges(used, first, pool, offsets)


def _buckets_before(values: Float, batch: HistogramBatch) -> Int:
    """int64[samples + 1]: the number of buckets of all samples before each one."""
    buckets = np.zeros(len(values) + 1, np.int64)
    histogram_samples = np.flatnonzero(is_reference(values))
    buckets[histogram_samples + 1] = np.diff(batch.columns.start)[rows_of(values[histogram_samples])]
    return np.cumsum(buckets)


@kernel(types.void(_BITS, OFFSETS, OFFSETS, OFFSETS, types.int64, types.int64, ROWS, types.boolean[::1]))
def _find_layouts(
    bits: Any, firsts: Any, lasts: Any, rows: Any, begin: Any, end: Any, histograms: Any, is_used: Any
) -> None:
    """Set is_used[layout] for the layouts of these samples."""
    for series in rows:
        first, last = firsts[series], lasts[series]
        for i in range(first + begin, last if end > last - first else first + end):
            if refers(bits[i]):
                is_used[histograms.layout[row_of(bits[i])]] = True


@kernel(types.void(LAYOUTS, EDGES, OFFSETS, _POWERS, _OUT, _ENDS))
def _write_edges(layouts: Any, edges: Any, used: Any, powers: Any, pool: Any, offsets: Any) -> None:
    """Write `,[rule,"left","right","` for every bucket of the layouts `used`."""
    bits = edges.view(np.uint64)
    at = number = 0
    for layout in used:
        zero = layouts.start[layout] + layouts.zero_at[layout]
        for i in range(layouts.start[layout], layouts.start[layout + 1]):
            pool[at] = _COMMA
            pool[at + 1] = _OPEN
            rule = CLOSED if i == zero else (OPEN_LEFT if i > zero else OPEN_RIGHT)  # custom: no zero bucket
            pool[at + 2] = _ZERO + np.uint8(rule)
            pool[at + 3] = _COMMA
            pool[at + 4] = _QUOTE
            at = write_float(pool, at + 5, edges[i, 0], bits[i, 0], powers)
            at = copy(pool, at, _QUOTES, 0, len(_QUOTES))
            at = write_float(pool, at, edges[i, 1], bits[i, 1], powers)
            at = copy(pool, at, _QUOTES, 0, len(_QUOTES))
            number += 1
            offsets[number] = at


@inlined
def _write_histogram(
    out: Any, at: Any, histograms: Any, row: Any, first: Any, edge_pool: Any, edge_offsets: Any, powers: Any
) -> Any:
    """Write `,{"count":…}` for a row, the texts of whose buckets begin with number `first`. Returns the position after
    it."""
    observations, sums = histograms.observations, histograms.sum
    at = copy(out, at, _COUNT, 0, len(_COUNT))
    at = write_float(out, at, observations[row], observations.view(np.uint64)[row], powers)
    at = copy(out, at, _SUM, 0, len(_SUM))
    at = write_float(out, at, sums[row], sums.view(np.uint64)[row], powers)
    begun = False
    begin = histograms.start[row]
    for i in range(begin, histograms.start[row + 1]):
        count = histograms.counts[i]
        if count == 0:
            continue
        bucket = first + i - begin
        if begun:
            at = copy(out, at, edge_pool, edge_offsets[bucket], edge_offsets[bucket + 1])
        else:
            at = copy(out, at, _BUCKETS, 0, len(_BUCKETS))
            at = copy(out, at, edge_pool, edge_offsets[bucket] + 1, edge_offsets[bucket + 1])
            begun = True
        at = write_float(out, at, count, histograms.counts.view(np.uint64)[i], powers)
        out[at] = _QUOTE
        out[at + 1] = _CLOSE
        at += 2
    out[at] = _CLOSE if begun else _QUOTE
    out[at + 1] = _BRACE
    return at + 2


@inlined
def _write_floats(
    out: Any, at: Any, times: Any, values: Any, bits: Any, first: Any, last: Any, instant: Any, powers: Any
) -> Any:
    """Write the samples first ≤ i < last that are floats. Returns the position after them."""
    begun = False
    for i in range(first, last):
        if refers(bits[i]):
            continue
        if begun:
            out[at] = _COMMA
            at += 1
        else:
            at = copy(out, at, _VALUE, 0, len(_VALUE)) if instant else copy(out, at, _VALUES, 0, len(_VALUES))
            begun = True
        out[at] = _OPEN
        at = write_time(out, at + 1, times[i])
        out[at] = _COMMA
        out[at + 1] = _QUOTE
        at = write_float(out, at + 2, values[i], np.uint64(bits[i]), powers)
        out[at] = _QUOTE
        out[at + 1] = _CLOSE
        at += 2
    if begun and not instant:
        out[at] = _CLOSE
        at += 1
    return at


@kernel(
    types.int64(
        POOL, OFFSETS, PIECES, OFFSETS, OFFSETS, OFFSETS, types.Array(types.float64, 1, "C", readonly=True), _BITS,
        OFFSETS, types.int64, types.int64, types.boolean, ROWS, OFFSETS, OFFSETS, POOL, OFFSETS, _POWERS, _OUT, _ENDS,
        _ENDS,
    )
)  # fmt: skip
def _write_series(
    pool: Any, pool_offsets: Any, pieces: Any, firsts: Any, lasts: Any, times: Any, values: Any, bits: Any, rows: Any,
    begin: Any, end: Any, instant: Any, histograms: Any, layouts: Any, edge_firsts: Any, edge_pool: Any,
    edge_offsets: Any, powers: Any, out: Any, ends: Any, label_ends: Any,
) -> Any:  # fmt: skip
    """Write series as JSON objects into `out`, or the samples from `begin` up to `end` of a single one. Returns the
    number of bytes."""
    at = 0
    layout, edge_first = -1, 0
    for number in range(len(rows)):
        series = rows[number]
        first, last = firsts[series], lasts[series]
        stop = last if end > last - first else first + end
        if begin == 0:
            at = write_labels(out, at, pool, pool_offsets, pieces, series)
            label_ends[number] = at
            out[at] = _BRACE
            at = _write_floats(out, at + 1, times, values, bits, first, last, instant, powers)
        begun = False
        for i in range(first, first + begin):
            begun = begun or refers(bits[i])
        for i in range(first + begin, stop):
            if not refers(bits[i]):
                continue
            if begun:
                out[at] = _COMMA
                at += 1
            elif instant:
                at = copy(out, at, _HISTOGRAM, 0, len(_HISTOGRAM))
            else:
                at = copy(out, at, _HISTOGRAMS, 0, len(_HISTOGRAMS))
            begun = True
            row = row_of(bits[i])
            if histograms.layout[row] != layout:
                layout = histograms.layout[row]
                edge_first = edge_firsts[np.searchsorted(layouts, layout)]
            out[at] = _OPEN
            at = write_time(out, at + 1, times[i])
            at = _write_histogram(out, at, histograms, row, edge_first, edge_pool, edge_offsets, powers)
            out[at] = _CLOSE
            at += 1
        if stop == last:
            if begun and not instant:
                out[at] = _CLOSE
                at += 1
            out[at] = _BRACE
            at += 1
        ends[number] = at
    return at
