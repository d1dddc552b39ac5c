"""Remote-write requests for tests, of version 1.0 and 2.0, made with the protobuf library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import snappy

from coordinator.series.remote_write import Limits
from proto import remote_write_pb2, remote_write_v2_pb2

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


class Symbols:
    """The table of symbols of a request of version 2.0."""

    def __init__(self) -> None:
        self.places = {"": 0}

    def place(self, text: str) -> int:
        """Where this text stands in the table."""
        return self.places.setdefault(text, len(self.places))


def request_v2(series: Iterable[Series]) -> remote_write_v2_pb2.Request:
    """What `body` sends by version 1.0, by version 2.0."""
    symbols, request = Symbols(), remote_write_v2_pb2.Request()
    for labels, samples in series:
        entry = request.timeseries.add()
        pairs = sorted(labels.items()) if isinstance(labels, Mapping) else labels
        entry.labels_refs.extend(symbols.place(text) for pair in pairs for text in pair)
        for timestamp, number in samples:
            entry.samples.add(timestamp=timestamp, value=number)
    request.symbols.extend(symbols.places)
    return request


def body_v2(series: Iterable[Series]) -> bytes:
    return request_v2(series).SerializeToString()


HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
HEADERS_V2 = {**HEADERS, "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}
