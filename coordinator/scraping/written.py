"""What a scrape stores, as the body of a remote write 1.0, whose path it takes from there."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="return-value"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.scraping.series_text import Exemplar
from coordinator.series.time_series_fields import SERIES_BYTES_MAX, put_series
from proto import remote_write_pb2
from shared.kernels import kernel, types
from shared.protobuf_fields import delimited_head
from shared.xxh64 import Bytes

_TIMESERIES_FIELD = remote_write_pb2.RawWriteRequest.TIMESERIES_FIELD_NUMBER
_EXEMPLARS_FIELD = remote_write_pb2.RawTimeSeries.EXEMPLARS_FIELD_NUMBER
_HISTOGRAMS_FIELD = remote_write_pb2.RawTimeSeries.HISTOGRAMS_FIELD_NUMBER

_INTS = types.Array(types.int64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")
_BITS = types.Array(types.uint64, 1, "C")


@kernel(types.int64(Bytes, _INTS, _BITS, _INTS, _INTS, _OUT), allocates=False)
def _compose(
    labels: np.ndarray, sizes: np.ndarray, bits: np.ndarray, times: np.ndarray, starts: np.ndarray, out: np.ndarray
) -> int:
    """Write a `timeseries` field for each series; returns where they end."""
    at, begin = np.int64(0), np.int64(0)
    for i in range(len(sizes)):
        at = put_series(out, at, labels, begin, sizes[i], bits[i], times[i], starts[i])
        begin += sizes[i]
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
    out = np.empty(int(sizes.sum()) + SERIES_BYTES_MAX * len(labels), np.uint8)
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
