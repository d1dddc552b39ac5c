"""What a scrape stores, as the body of a remote write 1.0, whose path it takes from there."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="return-value"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import types
from numpy.typing import NDArray

from coordinator.scraping.series_text import Exemplar
from proto import remote_write_pb2
from shared.kernels import kernel
from shared.protobuf_fields import delimited_head, put_length
from shared.xxh64 import Bytes, copy_bytes

SAMPLE_BYTES_MAX = 48
"""What one sample takes beside its labels."""

_TIMESERIES_FIELD = remote_write_pb2.RawWriteRequest.TIMESERIES_FIELD_NUMBER
_EXEMPLARS_FIELD = remote_write_pb2.RawTimeSeries.EXEMPLARS_FIELD_NUMBER
_HISTOGRAMS_FIELD = remote_write_pb2.RawTimeSeries.HISTOGRAMS_FIELD_NUMBER

_INTS = types.Array(types.int64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")
_BITS = types.Array(types.uint64, 1, "C")


@kernel(types.int64(types.uint64), allocates=False)
def _varint_bytes(value: np.uint64) -> int:
    count = np.int64(1)
    while value >= np.uint64(0x80):
        value >>= np.uint64(7)
        count += 1
    return count


@kernel(types.int64(_OUT, types.int64, types.uint64), allocates=False)
def _put_varint(out: np.ndarray, at: int, value: np.uint64) -> int:
    while value >= np.uint64(0x80):
        out[at] = np.uint8(value & np.uint64(0x7F) | np.uint64(0x80))
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@kernel(types.int64(Bytes, _INTS, _BITS, _INTS, _INTS, _OUT), allocates=False)
def _compose(
    labels: np.ndarray, sizes: np.ndarray, bits: np.ndarray, times: np.ndarray, starts: np.ndarray, out: np.ndarray
) -> int:
    """Write a `timeseries` field for each series; returns where they end."""
    at, begin = np.int64(0), np.int64(0)
    for i in range(len(sizes)):
        time, start = np.uint64(times[i]), np.uint64(starts[i])
        sample = 10 + _varint_bytes(time)
        if start != np.uint64(0):
            sample += 1 + _varint_bytes(start)
        out[at] = 0x0A
        at = put_length(out, at + 1, sizes[i] + 2 + sample)
        copy_bytes(out, at, labels, begin, sizes[i])
        at += sizes[i]
        begin += sizes[i]
        out[at], out[at + 1], out[at + 2] = 0x12, np.uint8(sample), 0x09
        at += 3
        value = bits[i]
        for byte in range(8):
            out[at + byte] = np.uint8(value >> np.uint64(8 * byte) & np.uint64(0xFF))
        out[at + 8] = 0x10
        at = _put_varint(out, at + 9, time)
        if start != np.uint64(0):
            out[at] = 0x18
            at = _put_varint(out, at + 1, start)
    return at


def samples(
    labels: Sequence[bytes],
    values: NDArray[np.float64],
    times_ms: NDArray[np.int64],
    starts_ms: NDArray[np.int64],
) -> bytes:
    """One sample of each series with these canonical labels; float64[n], int64[n], and start timestamps int64[n], of
    which 0 is none."""
    sizes = np.fromiter(map(len, labels), np.int64, len(labels))
    out = np.empty(int(sizes.sum()) + SAMPLE_BYTES_MAX * len(labels), np.uint8)
    label_data = np.frombuffer(b"".join(labels), np.uint8)
    end = _compose(label_data, sizes, np.ascontiguousarray(values).view(np.uint64), times_ms, starts_ms, out)
    return out[:end].tobytes()


def exemplar(label_bytes: bytes, found: Exemplar) -> bytes:
    """An exemplar of a series."""
    assert found.time_ms is not None
    pairs = [remote_write_pb2.Label(name=name, value=value) for name, value in found.labels]
    message = remote_write_pb2.Exemplar(labels=pairs, value=found.value, timestamp=found.time_ms)
    return _series(label_bytes, _EXEMPLARS_FIELD, message.SerializeToString())


def histogram(label_bytes: bytes, message: bytes) -> bytes:
    """A native histogram of a series."""
    return _series(label_bytes, _HISTOGRAMS_FIELD, message)


def _series(label_bytes: bytes, field: int, message: bytes) -> bytes:
    content = label_bytes + delimited_head(field, len(message)) + message
    return delimited_head(_TIMESERIES_FIELD, len(content)) + content
