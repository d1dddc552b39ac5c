"""Remote-write requests, encoded before anything is timed.

All series of one set have label bytes of one length, so that a request is rows of a byte matrix with values and times
put in: numpy writes it, snappy packs it. A connection owns some of the series and sends their samples in the order of
time, as the shards of Prometheus's remote-write queue do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import snappy
from numpy.typing import NDArray

from proto import remote_write_pb2

STEP_MS = 15_000
REQUEST_SERIES = 2_000
JOBS = 10
_TIME_BYTES = 6
"""Varint bytes of a present-day Unix time in milliseconds."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`series` series named `metric`, `samples` of each at start_ms + i · STEP_MS."""

    metric: str
    series: int
    samples: int
    start_ms: int

    @property
    def total(self) -> int:
        return self.series * self.samples

    @property
    def end_ms(self) -> int:
        return self.start_ms + (self.samples - 1) * STEP_MS


def requests(work: Workload, connections: int, seed: int = 1) -> list[list[bytes]]:
    """For each connection the bodies it sends, one after the other, REQUEST_SERIES samples in each."""
    random = np.random.default_rng(seed)
    per = work.series // connections
    if work.series % connections or per % 500:
        raise ValueError(f"{work.series} series do not divide evenly among {connections} connections")
    return [_stream(work, c * per, per, random) for c in range(connections)]


def _stream(work: Workload, first: int, count: int, random: np.random.Generator) -> list[bytes]:
    rows, value_at = _template(work.metric, first, count)
    values = _counters(count, work.samples, random)
    bodies = []
    for begin in range(0, count * work.samples, REQUEST_SERIES):
        index = np.arange(begin, min(begin + REQUEST_SERIES, count * work.samples))
        own, step = index % count, index // count
        body = rows[own]
        body[:, value_at : value_at + 8] = values[own, step].astype("<f8").view(np.uint8).reshape(-1, 8)
        _put_varint(body, value_at + 9, work.start_ms + step * STEP_MS)
        bodies.append(snappy.compress(body.tobytes()))
    return bodies


def _counters(series: int, samples: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Integer counters, each with a pace of its own and noise on it, started at different heights."""
    pace = random.integers(1, 1000, size=(series, 1))
    growth = random.poisson(np.broadcast_to(pace, (series, samples)))
    return (random.integers(0, 1_000_000, size=(series, 1)) + np.cumsum(growth, axis=1)).astype(np.float64)


def _template(metric: str, first: int, count: int) -> tuple[NDArray[np.uint8], int]:
    """(uint8[count, size]: a `timeseries` field for each series with one sample, where the sample's value lies)."""
    rows = [_field(metric, number) for number in range(first, first + count)]
    size = len(rows[0])
    matrix = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(count, size).copy()
    return matrix, size - 9 - _TIME_BYTES


def _field(metric: str, number: int) -> bytes:
    """Labels as an agent writes them: seven of them, about 150 bytes."""
    request = remote_write_pb2.WriteRequest()
    series = request.timeseries.add()
    labels = {
        "__name__": metric,
        "cluster": "eu-west-1",
        "half": str(number % 2),
        "instance": f"10.{number >> 16 & 0xFF:03d}.{number >> 8 & 0xFF:03d}.{number & 0xFF:03d}:9100",
        "job": f"job-{number % JOBS}",
        "pod": f"server-{number:07d}-x2k4q",
        "zone": f"zone-{number % 3}",
    }
    for name, value in labels.items():
        series.labels.add(name=name, value=value)
    series.samples.add(value=1.0, timestamp=1 << (7 * _TIME_BYTES - 1))
    return request.SerializeToString()


def _put_varint(body: NDArray[np.uint8], at: int, numbers: NDArray[np.int64]) -> None:
    body[:, at - 1] = 0x10
    for i in range(_TIME_BYTES):
        more = 0x80 if i < _TIME_BYTES - 1 else 0
        body[:, at + i] = (numbers >> (7 * i) & 0x7F) | more
