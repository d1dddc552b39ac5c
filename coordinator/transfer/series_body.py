"""Series in arrays as the body of a remote write 1.0, written by a kernel.

Imports go the way of remote write, with its checks and its limits. Specification:
https://prometheus.io/docs/specs/prw/remote_write_spec/.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from shared.kernels import inlined, kernel
from shared.protobuf_fields import delimited_head, put_length

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)
_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_OUT = types.uint8[::1]

SERIES_TAG, SAMPLE_TAG, HISTOGRAM_TAG, VALUE_TAG, TIME_TAG = 0x0A, 0x12, 0x22, 0x09, 0x10


@inlined(allocates=False)
def _varint_bytes(number: Any) -> Any:
    size = 1
    while number >= np.uint64(0x80):
        number >>= np.uint64(7)
        size += 1
    return size


@inlined(allocates=False)
def _length_bytes(length: Any) -> Any:
    size = 1
    while length >= 0x80:
        length >>= 7
        size += 1
    return size


@kernel(types.int64(_INTS, _INTS, _INTS, _INTS, types.int64[::1]), allocates=False)
def _measure(label_offsets: Any, firsts: Any, counts: Any, times: Any, sizes: Any) -> int:
    """sizes[i]: bytes of the message of series i; returns the bytes of all of them as fields."""
    total = 0
    for i in range(len(firsts)):
        size = label_offsets[i + 1] - label_offsets[i]
        for k in range(firsts[i], firsts[i] + counts[i]):
            size += 12 + _varint_bytes(np.uint64(times[k]))
        sizes[i] = size
        total += 1 + _length_bytes(size) + size
    return total


@kernel(types.int64(_BYTES, _INTS, _INTS, _INTS, _INTS, _WORDS, types.int64[::1], _OUT), allocates=False)
def _write(
    labels: Any, label_offsets: Any, firsts: Any, counts: Any, times: Any, bits: Any, sizes: Any, out: Any
) -> int:
    """Write every series as a field; returns how many bytes that is."""
    at = 0
    for i in range(len(firsts)):
        out[at] = SERIES_TAG
        at = put_length(out, at + 1, sizes[i])
        for k in range(label_offsets[i], label_offsets[i + 1]):
            out[at] = labels[k]
            at += 1
        for k in range(firsts[i], firsts[i] + counts[i]):
            time = np.uint64(times[k])
            out[at] = SAMPLE_TAG
            out[at + 1] = 10 + _varint_bytes(time)
            out[at + 2] = VALUE_TAG
            word = bits[k]
            for b in range(8):
                out[at + 3 + b] = np.uint8(word & np.uint64(0xFF))
                word >>= np.uint64(8)
            out[at + 11] = TIME_TAG
            at += 12
            while time >= np.uint64(0x80):
                out[at] = np.uint8(time & np.uint64(0x7F) | np.uint64(0x80))
                time >>= np.uint64(7)
                at += 1
            out[at] = np.uint8(time)
            at += 1
    return at


@dataclass(slots=True)
class SeriesArrays:
    """Series to be written: series i has the canonical label bytes labels[i], and the samples first ≤ k < first + count
    of `times_ms` (int64[m]) and `values` (float64[m]); a series may be there more than once. `histograms`: further
    series with messages of native histograms."""

    labels: Sequence[bytes]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    histograms: list[tuple[bytes, list[bytes]]] = field(default_factory=list)

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    def body(self) -> bytes | memoryview:
        """The message WriteRequest."""
        assert len(self.labels) == len(self.firsts) == len(self.counts)
        assert not len(self.firsts) or int((self.firsts + self.counts).max()) <= len(self.times_ms) <= len(self.values)
        pool = np.frombuffer(b"".join(self.labels), dtype=np.uint8)
        offsets = np.zeros(len(self.labels) + 1, dtype=np.int64)
        np.cumsum([len(label_bytes) for label_bytes in self.labels], out=offsets[1:])
        sizes = np.empty(len(self.firsts), dtype=np.int64)
        total = _measure(offsets, self.firsts, self.counts, self.times_ms, sizes)
        out = np.empty(total, dtype=np.uint8)
        bits = self.values.view(np.uint64)
        written = _write(pool, offsets, self.firsts, self.counts, self.times_ms, bits, sizes, out)
        assert written == total
        if not self.histograms:
            return out.data
        return out.tobytes() + b"".join(_histogram_series(*series) for series in self.histograms)


def _histogram_series(labels: bytes, messages: Sequence[bytes]) -> bytes:
    content = labels + b"".join(delimited_head(HISTOGRAM_TAG >> 3, len(message)) + message for message in messages)
    return delimited_head(SERIES_TAG >> 3, len(content)) + content
