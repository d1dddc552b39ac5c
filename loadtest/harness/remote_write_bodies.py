"""Remote-write requests for tests, made with the protobuf library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import snappy

from coordinator.series.remote_write import Limits
from proto import remote_write_pb2

Series = tuple[Mapping[str, str] | Sequence[tuple[str, str]], Sequence[tuple[int, float]]]
"""Labels (a sequence of pairs is sent in its order, a mapping sorted by name) and (Unix ms, value) pairs."""

UNLIMITED = Limits(1 << 62, 1 << 62, 1 << 62)


def body(series: Iterable[Series]) -> bytes:
    request = remote_write_pb2.WriteRequest()
    for labels, samples in series:
        entry = request.timeseries.add()
        pairs = sorted(labels.items()) if isinstance(labels, Mapping) else labels
        for name, value in pairs:
            entry.labels.add(name=name, value=value)
        for timestamp, number in samples:
            entry.samples.add(timestamp=timestamp, value=number)
    return request.SerializeToString()


def compressed(series: Iterable[Series]) -> bytes:
    return snappy.compress(body(series))


HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
