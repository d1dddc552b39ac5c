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
from numpy.typing import NDArray

from coordinator.bits import varint_size
from coordinator.series.time_series_fields import HISTOGRAM_TAG, SERIES_TAG, put_sample, sample_size
from shared.kernels import kernel, types
from shared.protobuf_fields import delimited_head, put_length
from shared.xxh64 import copy_bytes

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)
_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_OUT = types.uint8[::1]


@kernel(types.int64(_INTS, _INTS, _INTS, _INTS, types.int64[::1]), allocates=False)
def _measure(label_offsets: Any, firsts: Any, counts: Any, times: Any, sizes: Any) -> int:
    """sizes[i]: bytes of the message of series i; returns the bytes of all of them as fields."""
    total = 0
    for i in range(len(firsts)):
        size = label_offsets[i + 1] - label_offsets[i]
        for k in range(firsts[i], firsts[i] + counts[i]):
            size += sample_size(times[k], 0)
        sizes[i] = size
        total += 1 + varint_size(np.uint64(size)) + size
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
        size = label_offsets[i + 1] - label_offsets[i]
        copy_bytes(out, at, labels, label_offsets[i], size)
        at += size
        for k in range(firsts[i], firsts[i] + counts[i]):
            at = put_sample(out, at, bits[k], times[k], 0)
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
    fields = b"".join(delimited_head(HISTOGRAM_TAG >> 3, len(message)) + message for message in messages)
    return series_field(labels, fields)


def series_field(labels: bytes, samples: bytes) -> bytes:
    """A series with these canonical label bytes, and samples or histograms as fields of a TimeSeries."""
    return delimited_head(SERIES_TAG >> 3, len(labels) + len(samples)) + labels + samples
