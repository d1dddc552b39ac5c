"""Exemplars as JSON text, written from arrays by a kernel.

The shape is that of https://prometheus.io/docs/prometheus/latest/querying/api/#querying-exemplars. Every exemplar
begins with a comma, so that the exemplars of one series can be taken out of the text of all.
"""

# The types of a kernel do not tell numpy integers from ints.
# mypy: disable-error-code="return-value"

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.promql.rendering.floats import FLOAT_BYTES_MAX, POWERS, TIME_BYTES_MAX, write_float, write_time
from shared.protobuf_fields import checked_length
from shared.xxh64 import Bytes

EXEMPLARS_AT_ONCE = 1024
ESCAPED_BYTES_MAX = 6
"""A control character is written as an escape of six bytes. The punctuation of a JSON pair is no longer than that: it
takes the place of at least six bytes that canonical labels have around each name and value."""

_LABELS = np.frombuffer(b',{"labels":{', dtype=np.uint8)
_VALUE = np.frombuffer(b'},"value":"', dtype=np.uint8)
_TIME = np.frombuffer(b'","timestamp":', dtype=np.uint8)
_END = np.uint8(ord("}"))
EXEMPLAR_BYTES = len(_LABELS) + len(_VALUE) + len(_TIME) + 1 + FLOAT_BYTES_MAX + TIME_BYTES_MAX

_COMMA, _COLON, _QUOTE, _BACKSLASH = (np.uint8(ord(c)) for c in ',:"\\')
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_CONTROL = np.frombuffer(b"\\u00", dtype=np.uint8)

_INTS = types.Array(types.int64, 1, "C", readonly=True)
_FLOATS = types.Array(types.float64, 1, "C", readonly=True)
_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_POWERS = types.Array(types.uint64, 2, "C", readonly=True)
_OUT, _ENDS = types.uint8[::1], types.int64[::1]


@kernel(types.int64(_OUT, types.int64, Bytes, types.int64, types.int64))
def _put_text(out: np.ndarray, at: int, data: np.ndarray, start: int, end: int) -> int:
    """Write the UTF-8 text data[start:end] as a JSON string. Returns where it ends."""
    out[at] = _QUOTE
    at += 1
    for i in range(start, end):
        byte = data[i]
        if byte < 0x20:
            out[at : at + 4] = _CONTROL
            out[at + 4], out[at + 5] = _HEX[byte >> 4], _HEX[byte & 15]
            at += 6
            continue
        if byte in (_QUOTE, _BACKSLASH):
            out[at] = _BACKSLASH
            at += 1
        out[at] = byte
        at += 1
    out[at] = _QUOTE
    return at + 1


@kernel(types.int64(_INTS, _FLOATS, _WORDS, _INTS, Bytes, _POWERS, _OUT, _ENDS))
def _write(
    times: np.ndarray,
    values: np.ndarray,
    bits: np.ndarray,
    offsets: np.ndarray,
    labels: np.ndarray,
    powers: np.ndarray,
    out: np.ndarray,
    ends: np.ndarray,
) -> int:
    """Write all exemplars to `out`, and to `ends` where each of them ends. Returns where the last one ends."""
    written = np.int64(0)
    for i in range(len(times)):
        out[written : written + len(_LABELS)] = _LABELS
        written += len(_LABELS)
        at, end = offsets[i], offsets[i + 1]
        while at < end:
            if at > offsets[i]:
                out[written] = _COMMA
                written += 1
            _, at = checked_length(labels, at + 1)
            size, at = checked_length(labels, at + 1)
            written = _put_text(out, written, labels, at, at + size)
            out[written] = _COLON
            size, at = checked_length(labels, at + size + 1)
            written = _put_text(out, written + 1, labels, at, at + size)
            at += size
        out[written : written + len(_VALUE)] = _VALUE
        written = np.int64(write_float(out, written + len(_VALUE), values[i], bits[i], powers))
        out[written : written + len(_TIME)] = _TIME
        written = np.int64(write_time(out, written + len(_TIME), times[i]))
        out[written] = _END
        written += 1
        ends[i] = written
    return written


def texts(
    times_ms: NDArray[np.int64], values: NDArray[np.float64], offsets: NDArray[np.int64], labels: NDArray[np.uint8]
) -> Iterator[bytes]:
    """The text of each exemplar i, beginning with a comma. Its canonical labels are
    labels[offsets[i]:offsets[i + 1]]."""
    for first in range(0, len(times_ms), EXEMPLARS_AT_ONCE):
        last = min(first + EXEMPLARS_AT_ONCE, len(times_ms))
        label_bytes = int(offsets[last] - offsets[first])
        out = np.empty(EXEMPLAR_BYTES * (last - first) + ESCAPED_BYTES_MAX * label_bytes, dtype=np.uint8)
        ends = np.empty(last - first, dtype=np.int64)
        part = values[first:last]
        _write(times_ms[first:last], part, part.view(np.uint64), offsets[first : last + 1], labels, POWERS, out, ends)
        start = 0
        for end in ends.tolist():
            yield out[start:end].tobytes()
            start = end
