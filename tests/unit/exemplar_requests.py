"""Remote-write requests with exemplars, and what a shard has of them, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loadtest.harness.remote_write_bodies import Symbols
from proto import remote_write_pb2, remote_write_v2_pb2
from shared import labels
from shared.labels import Labels
from shared.promql.ast import Matcher
from shared.promql.regex import unchecked
from worker.series.exemplar_record import ExemplarRecord
from worker.series.part import SeriesPart

Pairs = Mapping[str, str] | Sequence[tuple[str, str]]
Exemplar = tuple[Pairs, float, int]
"""Labels, value, Unix ms."""
NO_MESSAGES = (b"\x0a", b"\x0a\x05ab", b"\x11\x00", b"\x18", b"\x00")
"""Bytes that are no exemplar in either version of remote write."""
ALL_TIME = (-(1 << 60), 1 << 60)


Series = tuple[Pairs, Sequence[tuple[int, float]], Sequence[Exemplar]]
"""Labels, samples, exemplars."""


def body(series: Iterable[Series]) -> bytes:
    """A request with these (labels, samples, exemplars); a mapping is sent sorted by name, pairs in their order."""
    request = remote_write_pb2.WriteRequest()
    for own_labels, samples, exemplars in series:
        entry = request.timeseries.add()
        _add(entry.labels, own_labels)
        for timestamp, value in samples:
            entry.samples.add(timestamp=timestamp, value=value)
        for exemplar_labels, value, timestamp in exemplars:
            _add(entry.exemplars.add(value=value, timestamp=timestamp).labels, exemplar_labels)
    return request.SerializeToString()


def _add(target, pairs: Pairs) -> None:  # type: ignore[no-untyped-def]
    for name, value in sorted(pairs.items()) if isinstance(pairs, Mapping) else pairs:
        target.add(name=name, value=value)


def request_v2(series: Iterable[Series]) -> remote_write_v2_pb2.Request:
    """What `body` sends by version 1.0, by version 2.0."""
    symbols, request = Symbols(), remote_write_v2_pb2.Request()
    for own_labels, samples, exemplars in series:
        entry = request.timeseries.add(labels_refs=_references(symbols, own_labels))
        for timestamp, value in samples:
            entry.samples.add(timestamp=timestamp, value=value)
        for exemplar_labels, value, timestamp in exemplars:
            references = _references(symbols, exemplar_labels)
            entry.exemplars.add(labels_refs=references, value=value, timestamp=timestamp)
    request.symbols.extend(symbols.places)
    return request


def body_v2(series: Iterable[Series]) -> bytes:
    return request_v2(series).SerializeToString()


def _references(symbols: Symbols, pairs: Pairs) -> list[int]:
    ordered = sorted(pairs.items()) if isinstance(pairs, Mapping) else pairs
    return [symbols.place(text) for pair in ordered for text in pair]


def listed(record: ExemplarRecord) -> list[tuple[int, Labels, float, int]]:
    """(series, labels, value, Unix ms) of each exemplar."""
    offsets = record.label_offsets.tolist()
    return [
        (int(series), labels.decode(record.labels[start:end].tobytes()), float(value), int(at_ms))
        for series, start, end, value, at_ms in zip(
            record.series, offsets[:-1], offsets[1:], record.values, record.times_ms, strict=True
        )
    ]


def held(part: SeriesPart, *matchers: Matcher, window: tuple[int, int] = ALL_TIME) -> dict[Labels, list]:
    """Label set → (labels, value, Unix ms) of each exemplar that a shard returns."""
    lookup, record = part.find_exemplars([matchers], *window, unchecked)
    found: dict[Labels, list] = {}
    for series, own_labels, value, at_ms in listed(record):
        row = lookup.frame(record.series[:1] * 0 + series, lookup.symbols).labels(0)
        found.setdefault(row, []).append((own_labels, value, at_ms))
    return found
