"""Samples as CSV (RFC 4180), written by a kernel: one sample in each row, after a header with the names of the columns.

The columns are the labels, `__timestamp__` in Unix milliseconds and `__value__`. A label that a series lacks is an
empty field. NaN and infinities are `NaN`, `+Inf` and `-Inf` as in PromQL, a staleness marker is `stale`, and a native
histogram is the JSON object of `coordinator.transfer.histograms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from coordinator.transfer.histograms import histograms_of
from coordinator.transfer.json_lines import SAMPLE_BYTES_MAX, float_samples
from coordinator.transfer.slices import Slice
from shared.errors import Unavailable
from shared.kernels import kernel, types
from shared.labels import LabelFrame
from shared.promql.model import STALE_NAN_BITS
from shared.promql.rendering.floats import POWERS, write_float, write_integer
from shared.promql.rendering.labels import OFFSETS, PIECES, POOL, LabelTexts, copy, label_pairs

TIMESTAMP, VALUE = "__timestamp__", "__value__"
STALE = "stale"
PIECE_BYTES = 4 << 20
"""Text that is written in one go, at most, or one row."""

_COMMA, _NEWLINE = (np.uint8(ord(c)) for c in ",\n")
_STALE = np.frombuffer(STALE.encode(), dtype=np.uint8)
_FLOATS, _BITS = (types.Array(kind, 1, "C", readonly=True) for kind in (types.float64, types.int64))
_POWERS = types.Array(types.uint64, 2, "C", readonly=True)


@kernel(types.int64(POOL, OFFSETS, PIECES, OFFSETS, _BITS, _FLOATS, _BITS, _POWERS, types.uint8[::1]))
def _write_rows(
    pool: Any,
    pool_offsets: Any,
    pieces: Any,
    series: Any,
    times: Any,
    values: Any,
    bits: Any,
    powers: Any,
    out: Any,
) -> int:
    """Write a row for each sample k, of the series series[k]. Returns how many bytes that is."""
    at: Any = 0
    for k in range(len(series)):
        for name in range(pieces.shape[0]):
            piece = pieces[name, series[k]]
            if piece >= 0:
                at = copy(out, at, pool, pool_offsets[piece], pool_offsets[piece + 1])
            out[at] = _COMMA
            at += 1
        at = write_integer(out, at, times[k])
        out[at] = _COMMA
        if bits[k] == STALE_NAN_BITS:
            at = copy(out, at + 1, _STALE, 0, len(_STALE))
        else:
            at = write_float(out, at + 1, values[k], np.uint64(bits[k]), powers)
        out[at] = _NEWLINE
        at += 1
    return int(at)


class CsvRows:
    """Writes slices as rows with these labels, all that any series has."""

    content_type = "text/csv; charset=utf-8; header=present"
    tail = b""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)
        self.head = ",".join(field(name) for name in [*self._names, TIMESTAMP, VALUE]).encode() + b"\n"

    def chunks(self, read: Slice) -> Iterator[bytes]:
        """The rows of a slice, PIECE_BYTES at a time. Work for a thread. Raises Unavailable when a series has a label
        that came after the header was written."""
        late = read.labels.columns.keys() - set(self._names)
        if late:
            raise Unavailable(
                f"a series with the label {min(late)!r} came while the export was sent, which has no column for it; "
                "try again"
            )
        texts = self._texts(read.labels)
        floats, _ = float_samples(read.samples)
        series = np.repeat(np.arange(read.labels.size), np.diff(floats.offsets))
        reach = np.cumsum((texts.row_bytes + SAMPLE_BYTES_MAX + len(self._names))[series])
        begin = 0
        while begin < len(series):
            before = int(reach[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(reach, before + PIECE_BYTES, side="right")))
            out = np.empty(int(reach[end - 1]) - before, dtype=np.uint8)
            own = slice(begin, end)
            values = floats.values[own]
            written = _write_rows(
                texts.pool, texts.offsets, texts.pieces, series[own], floats.timestamps_ms[own], values,
                values.view(np.int64), POWERS, out,
            )  # fmt: skip
            yield out[:written].tobytes()
            begin = end
        for row, time_ms, text in histograms_of(read):
            labels = dict(read.labels.labels(row))
            yield ",".join([*(field(labels.get(name, "")) for name in self._names), str(time_ms), field(text)]).encode()
            yield b"\n"

    def _texts(self, labels: LabelFrame) -> LabelTexts:
        """The fields of the labels of every series."""
        return label_pairs(labels, lambda _: lambda value: field(value).encode(), self._names)


def field(text: str) -> str:
    """The text as a field of CSV: quoted where it has to be."""
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\r\n') else text
