"""Requests of Prometheus remote write 1.0 (https://prometheus.io/docs/specs/prw/remote_write_spec/), from arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import cramjam
import numpy as np
from numpy.typing import NDArray

from triptych.protobuf import delimited, double, whole

SAMPLES_OF_REQUEST = 50_000
LABELS_BYTES_OF_REQUEST = 8 << 20
"""Series with many labels and few samples make a request large, too."""
HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_SIX_BYTES = (1 << 35, 1 << 42)
"""Timestamps (1971 to 2109) whose varint has six bytes: samples with them are of one length."""
_SAMPLE_BYTES = 18


@dataclass(frozen=True)
class Samples:
    """One series: `labels` as encoded fields, `values` float64[n], `times_ms` int64[n]."""

    labels: bytes
    values: NDArray[np.float64]
    times_ms: NDArray[np.int64]

    @classmethod
    def of(cls, labels: Mapping[str, str], values: Any, times_ms: NDArray[np.int64]) -> Samples:
        """Raises ValueError if there is not one time for each value, or the labels have no name or are not texts."""
        column = np.atleast_1d(np.asarray(values, np.float64))
        if column.ndim != 1 or len(column) != len(times_ms):
            raise ValueError(f"the series {dict(labels)} has {column.size} values and {len(times_ms)} times")
        if not labels.get("__name__"):
            raise ValueError(f"the labels {dict(labels)} have no `__name__`, which is the name of the metric")
        return cls(_labels(labels), column, times_ms)


def _labels(labels: Mapping[str, str]) -> bytes:
    """Sorted by name, as the protocol wants them."""
    encoded = []
    for name, value in sorted(labels.items()):
        if not isinstance(value, str):
            raise ValueError(f"the label {name!r} is {value!r}; it must be a text")
        encoded.append(delimited(1, delimited(1, name.encode()) + delimited(2, value.encode())))
    return b"".join(encoded)


def parts_of(series: Iterable[Samples], samples_max: int) -> Iterator[list[Samples]]:
    """The series in parts for requests; one with many samples is divided."""
    if samples_max < 1:
        raise ValueError(f"samples_per_request is {samples_max}; it must be at least 1")
    request_part: list[Samples] = []
    samples = size = 0
    for each in series:
        start = 0
        while start < len(each.values):
            end = min(len(each.values), start + samples_max - samples)
            request_part.append(replace(each, values=each.values[start:end], times_ms=each.times_ms[start:end]))
            samples += end - start
            size += len(each.labels)
            start = end
            if samples == samples_max or size >= LABELS_BYTES_OF_REQUEST:
                yield request_part
                request_part, samples, size = [], 0, 0
    if request_part:
        yield request_part


def request_of(part: Iterable[Samples]) -> tuple[bytes, dict[str, str]]:
    """The body of a request, and its headers."""
    message = b"".join(delimited(1, each.labels + _encoded(each)) for each in part)
    return bytes(cramjam.snappy.compress_raw(message)), dict(HEADERS)


def _encoded(series: Samples) -> bytes:
    times = series.times_ms
    if len(times) and times.min() >= _SIX_BYTES[0] and times.max() < _SIX_BYTES[1]:
        return _of_one_length(series.values, times)
    pairs = zip(series.values.tolist(), times.tolist())
    return b"".join(delimited(2, double(1, value) + whole(2, time_ms)) for value, time_ms in pairs)


def _of_one_length(values: NDArray[np.float64], times_ms: NDArray[np.int64]) -> bytes:
    """uint8[n, 18] at once: tag and length of the sample, tag and value, tag and timestamp."""
    rows = np.empty((len(values), _SAMPLE_BYTES), np.uint8)
    rows[:, :3] = (2 << 3 | 2, _SAMPLE_BYTES - 2, 1 << 3 | 1)
    rows[:, 3:11] = values.astype("<f8").view(np.uint8).reshape(-1, 8)
    rows[:, 11] = 2 << 3
    for place in range(6):
        more = 0x80 if place < 5 else 0
        rows[:, 12 + place] = (times_ms >> (7 * place)) & 0x7F | more
    return rows.tobytes()
