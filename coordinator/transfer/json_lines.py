"""Samples as JSON lines, written by a kernel: one series a line, in the format of VictoriaMetrics's /api/v1/export
(https://docs.victoriametrics.com/victoriametrics/#how-to-export-data-in-json-line-format).

    {"metric":{"__name__":"up","job":"a"},"values":[1,0.5,null],"timestamps":[1700000000000,…]}

NaN is null and infinities are "Infinity" and "-Infinity", as there. A staleness marker, which is no ordinary NaN, is
"stale". Native histograms of a series have lines of their own, with `histograms` instead of `values`
(`coordinator.transfer.histograms`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from coordinator.transfer.histograms import histogram_lines
from coordinator.transfer.slices import Slice
from shared.histograms.references import is_reference
from shared.kernels import inlined, kernel, types
from shared.promql.model import STALE_NAN_BITS, Int, Samples
from shared.promql.rendering.floats import FLOAT_BYTES_MAX, POWERS, TIME_BYTES_MAX, write_float, write_integer
from shared.promql.rendering.labels import OFFSETS, PIECES, POOL, copy, label_texts, write_labels

LINE_SAMPLES_MAX = 50_000
"""Samples of one line: 2 MB at most. Programs that read lines bound their length; a series with more has several."""
PIECE_BYTES = 4 << 20
"""Text that is written in one go, at most, or one line."""
SAMPLE_BYTES_MAX = FLOAT_BYTES_MAX + TIME_BYTES_MAX + 2


def _text(text: str) -> Any:
    return np.frombuffer(text.encode(), dtype=np.uint8)


_VALUES, _TIMES, _END = _text('},"values":['), _text('],"timestamps":['), _text("]}")
_NULL, _STALE, _INFINITY = _text("null"), _text('"stale"'), _text('"Infinity"')
_LINE_BYTES = 128
_COMMA, _MINUS, _NEWLINE = (np.uint8(ord(c)) for c in ",-\n")

_FLOATS, _BITS = (types.Array(kind, 1, "C", readonly=True) for kind in (types.float64, types.int64))
_POWERS = types.Array(types.uint64, 2, "C", readonly=True)
_SPECIAL = np.int64(0x7FF)


@inlined
def _write_special(out: Any, at: Any, bits: Any) -> Any:
    """Write a value that is no finite number. Returns the position after it."""
    if bits == STALE_NAN_BITS:
        return copy(out, at, _STALE, 0, len(_STALE))
    if bits & 0xFFFFFFFFFFFFF != 0:
        return copy(out, at, _NULL, 0, len(_NULL))
    if bits >= 0:
        return copy(out, at, _INFINITY, 0, len(_INFINITY))
    out[at] = _INFINITY[0]
    out[at + 1] = _MINUS
    return copy(out, at + 2, _INFINITY, 1, len(_INFINITY))


@kernel(types.int64(POOL, OFFSETS, PIECES, OFFSETS, OFFSETS, OFFSETS, _BITS, _FLOATS, _BITS, _POWERS, types.uint8[::1]))
def _write_lines(
    pool: Any,
    pool_offsets: Any,
    pieces: Any,
    series: Any,
    firsts: Any,
    lasts: Any,
    times: Any,
    values: Any,
    bits: Any,
    powers: Any,
    out: Any,
) -> int:
    """Write a line break before, and a line for each i: series[i] with its samples firsts[i] ≤ k < lasts[i]. Returns
    how many bytes that is."""
    at: Any = 0
    for i in range(len(series)):
        begin = at
        at = write_labels(out, at, pool, pool_offsets, pieces, series[i])
        out[begin] = _NEWLINE  # instead of the comma that a list has there
        at = copy(out, at, _VALUES, 0, len(_VALUES))
        for k in range(firsts[i], lasts[i]):
            if k > firsts[i]:
                out[at] = _COMMA
                at += 1
            if (bits[k] >> 52) & _SPECIAL == _SPECIAL:
                at = _write_special(out, at, bits[k])
            else:
                at = write_float(out, at, values[k], np.uint64(bits[k]), powers)
        at = copy(out, at, _TIMES, 0, len(_TIMES))
        for k in range(firsts[i], lasts[i]):
            if k > firsts[i]:
                out[at] = _COMMA
                at += 1
            at = write_integer(out, at, times[k])
        at = copy(out, at, _END, 0, len(_END))
    return int(at)


class JsonLines:
    """Writes slices as JSON lines."""

    content_type = "application/x-ndjson; charset=utf-8"
    head = tail = b""

    def chunks(self, read: Slice) -> Iterator[bytes]:
        """The lines of a slice, PIECE_BYTES at a time. Work for a thread."""
        floats, rows = float_samples(read.samples)
        texts = label_texts(read.labels)
        series, firsts, lasts = _lines(floats.offsets, rows)
        line_bytes = texts.row_bytes[series] + _LINE_BYTES + SAMPLE_BYTES_MAX * (lasts - firsts)
        reach = np.cumsum(line_bytes)
        begin = 0
        while begin < len(series):
            before = int(reach[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(reach, before + PIECE_BYTES, side="right")))
            out = np.empty(int(reach[end - 1]) - before + 1, dtype=np.uint8)
            own = slice(begin, end)
            written = _write_lines(
                texts.pool, texts.offsets, texts.pieces, series[own], firsts[own], lasts[own], floats.timestamps_ms,
                floats.values, floats.values.view(np.int64), POWERS, out,
            )  # fmt: skip
            out[written] = _NEWLINE
            yield out[1 : written + 1].tobytes()
            begin = end
        yield from histogram_lines(read)


def float_samples(samples: Samples) -> tuple[Samples, Int]:
    """(The samples that are no histograms, the rows of the series that have some.) Offsets are of all series."""
    if samples.histograms is not None:
        is_float = ~is_reference(samples.values)
        offsets = np.concatenate([[0], np.cumsum(is_float)])[samples.offsets]
        samples = Samples(offsets, samples.timestamps_ms[is_float], samples.values[is_float])
    return samples, np.flatnonzero(np.diff(samples.offsets))


def _lines(offsets: Int, rows: Int) -> tuple[Int, Int, Int]:
    """(series, first sample, last sample + 1) of each line, of LINE_SAMPLES_MAX samples at most."""
    counts = (offsets[rows + 1] - offsets[rows] + LINE_SAMPLES_MAX - 1) // LINE_SAMPLES_MAX
    series = np.repeat(rows, counts)
    number = np.arange(len(series)) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = offsets[series] + number * LINE_SAMPLES_MAX
    return series, firsts, np.minimum(firsts + LINE_SAMPLES_MAX, offsets[series + 1])
