"""An exponential histogram of OpenTelemetry as a native histogram of Prometheus.

Rules: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/#exponential-histograms. Both
have the same buckets; bucket i of the one is bucket i + 1 of the other. A scale above the highest schema is reduced by
adding neighbouring buckets, which is exact.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from shared.histograms import fields
from shared.histograms.batch import STALE_SUM_BITS
from shared.histograms.schemas import SCHEMA_MAX, SCHEMA_MIN
from shared.protobuf_fields import delimited_head, varint

ZERO_THRESHOLD = 1e-128
"""Of a histogram that does not say its own."""
SPAN_GAP_MAX = 2
"""Empty buckets up to which a span goes on: a count takes less room than the head of another span."""
GAUGE_HINT = 3
"""The reset hint of a histogram that is no sum of those before it."""
_DOUBLE = struct.Struct("<d")
_STALE = struct.pack("<q", STALE_SUM_BITS)


def message_of(point: Any, *, is_delta: bool) -> bytes:
    """The histogram message of remote write for an ExponentialHistogramDataPoint. Raises ValueError for what it cannot
    be."""
    time = _integer(fields.TIMESTAMP, point.time_unix_nano // 1_000_000)
    if point.flags & 1:
        return _tag(fields.SUM, 1) + _STALE + time
    if point.scale < SCHEMA_MIN:
        raise ValueError(f"its scale is {point.scale}; the least is {SCHEMA_MIN}")
    shift = max(0, point.scale - SCHEMA_MAX)
    threshold = point.zero_threshold or ZERO_THRESHOLD
    parts = [
        _integer(fields.OBSERVATIONS, point.count),
        _double(fields.SUM, point.sum) if point.HasField("sum") else b"",
        _integer(fields.SCHEMA, _zigzag(point.scale - shift)),
        _double(fields.ZERO_THRESHOLD, threshold),
        _integer(fields.ZERO_COUNT, point.zero_count),
        *_side(point.negative, shift, fields.NEGATIVE_SPANS, fields.NEGATIVE_DELTAS),
        *_side(point.positive, shift, fields.POSITIVE_SPANS, fields.POSITIVE_DELTAS),
        _integer(fields.RESET_HINT, GAUGE_HINT) if is_delta else b"",
        time,
    ]
    if point.start_time_unix_nano:
        parts.append(_integer(fields.START_TIMESTAMP, point.start_time_unix_nano // 1_000_000))
    return b"".join(parts)


def _side(buckets: Any, shift: int, spans_field: int, deltas_field: int) -> Iterable[bytes]:
    """The fields of the positive or the negative buckets."""
    counts = buckets.bucket_counts
    if len(counts) > fields.BUCKETS_MAX:
        raise ValueError(f"it has {len(counts)} buckets on one side; the limit is {fields.BUCKETS_MAX}")
    indexes, sums = _reduced(counts, buckets.offset, shift)
    spans: list[tuple[int, int]] = []
    filled: list[int] = []
    begin = end = 0
    for index, count in zip(indexes, sums, strict=True):
        gap = index - end
        if not spans or gap > SPAN_GAP_MAX:
            spans.append((gap if spans else index, 1))
            begin = index
        else:
            filled += [0] * gap
            spans[-1] = (spans[-1][0], index + 1 - begin)
        filled.append(count)
        end = index + 1
    for offset, length in spans:
        span = _integer(1, _zigzag(offset)) + _integer(2, length)
        yield delimited_head(spans_field, len(span)) + span
    deltas = b"".join(varint(_zigzag(count - before)) for before, count in zip([0, *filled], filled, strict=False))
    if deltas:
        yield delimited_head(deltas_field, len(deltas)) + deltas


def _reduced(counts: Sequence[int], offset: int, shift: int) -> tuple[list[int], list[int]]:
    """(index in Prometheus's counting, count) of the buckets that are not empty, with a scale that is lower by
    `shift`."""
    indexes: list[int] = []
    sums: list[int] = []
    for i, count in enumerate(counts):
        if count:
            index = ((offset + i) >> shift) + 1
            if indexes and indexes[-1] == index:
                sums[-1] += count
            else:
                indexes.append(index)
                sums.append(count)
    return indexes, sums


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def _integer(number: int, value: int) -> bytes:
    """A field; none for 0, which is what a reader takes for a field that is missing."""
    return _tag(number, 0) + varint(value) if value else b""


def _double(number: int, value: float) -> bytes:
    return _tag(number, 1) + _DOUBLE.pack(value) if value else b""
