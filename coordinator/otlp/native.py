"""OpenTelemetry histograms as native histograms of Prometheus.

Rules: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/#exponential-histograms. An
exponential histogram has the same buckets as a native one; its bucket i is bucket i + 1 there. A scale above the
highest schema is reduced by adding neighbouring buckets, which is exact. Explicit bounds become custom boundaries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from shared.histograms import fields
from shared.histograms.batch import STALE_SUM_BITS
from shared.histograms.schemas import CUSTOM, SCHEMA_MAX, SCHEMA_MIN
from shared.protobuf_fields import delimited_head, varint

ZERO_THRESHOLD = 1e-128
"""The zero threshold of a histogram that does not have its own."""
INDEX_MAX = (1 << 31) - 1
"""A span stores its start as an int32."""
SPAN_GAP_MAX = 2
"""A span continues over at most this many empty buckets: a count takes less space than the head of another span."""
GAUGE_HINT = 3
"""The reset hint of a histogram that does not accumulate the previous ones."""
_DOUBLE = struct.Struct("<d")
_STALE = struct.pack("<q", STALE_SUM_BITS)


def exponential(point: Any, *, is_delta: bool) -> bytes:
    """The histogram message of remote write for an ExponentialHistogramDataPoint. Raises ValueError if it cannot be
    one."""
    if point.flags & 1:
        return _stale(point)
    if point.scale < SCHEMA_MIN:
        raise ValueError(f"its scale is {point.scale}; the least is {SCHEMA_MIN}")
    shift = max(0, point.scale - SCHEMA_MAX)
    threshold = point.zero_threshold or ZERO_THRESHOLD
    parts = [
        _integer(fields.SCHEMA, _zigzag(point.scale - shift)),
        _double(fields.ZERO_THRESHOLD, threshold),
        _integer(fields.ZERO_COUNT, point.zero_count),
        *_side(point.negative, shift, fields.NEGATIVE_SPANS, fields.NEGATIVE_DELTAS),
        *_side(point.positive, shift, fields.POSITIVE_SPANS, fields.POSITIVE_DELTAS),
    ]
    return _totals(point, is_delta) + b"".join(parts)


def custom(point: Any, *, is_delta: bool) -> bytes:
    """The same for a HistogramDataPoint. Its bounds are checked where the message is read."""
    if point.flags & 1:
        return _stale(point)
    bounds, counts = point.explicit_bounds, point.bucket_counts or [point.count]
    if len(counts) > fields.BUCKETS_MAX:
        raise ValueError(f"it has {len(counts)} buckets; the limit is {fields.BUCKETS_MAX}")
    span = _integer(2, len(counts))
    values = struct.pack(f"<{len(bounds)}d", *bounds)
    parts = [
        _integer(fields.SCHEMA, _zigzag(CUSTOM)),
        delimited_head(fields.POSITIVE_SPANS, len(span)) + span,
        _deltas(counts, fields.POSITIVE_DELTAS),
        delimited_head(fields.CUSTOM_VALUES, len(values)) + values if values else b"",
    ]
    return _totals(point, is_delta) + b"".join(parts)


def _stale(point: Any) -> bytes:
    return _tag(fields.SUM, 1) + _STALE + _integer(fields.TIMESTAMP, point.time_unix_nano // 1_000_000)


def _totals(point: Any, is_delta: bool) -> bytes:
    """The fields that both kinds have besides their buckets."""
    parts = [
        _integer(fields.OBSERVATIONS, point.count),
        _double(fields.SUM, point.sum) if point.HasField("sum") else b"",
        _integer(fields.RESET_HINT, GAUGE_HINT) if is_delta else b"",
        _integer(fields.TIMESTAMP, point.time_unix_nano // 1_000_000),
        _integer(fields.START_TIMESTAMP, point.start_time_unix_nano // 1_000_000),
    ]
    return b"".join(parts)


def _side(buckets: Any, shift: int, spans_field: int, deltas_field: int) -> Iterable[bytes]:
    """The fields of the positive or the negative buckets."""
    counts = buckets.bucket_counts
    if len(counts) > fields.BUCKETS_MAX:
        raise ValueError(f"it has {len(counts)} buckets on one side; the limit is {fields.BUCKETS_MAX}")
    indexes, sums = _reduced(counts, buckets.offset, shift)
    if indexes and indexes[-1] > INDEX_MAX:
        raise ValueError(f"it has a bucket with the index {indexes[-1]}; the largest is {INDEX_MAX}")
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
    if filled:
        yield _deltas(filled, deltas_field)


def _deltas(counts: Sequence[int], field: int) -> bytes:
    """Each count as its difference from the previous one."""
    encoded = b"".join(varint(_zigzag(count - previous)) for previous, count in zip([0, *counts], counts, strict=False))
    return delimited_head(field, len(encoded)) + encoded


def _reduced(counts: Sequence[int], offset: int, shift: int) -> tuple[list[int], list[int]]:
    """(Prometheus's indexes, counts) of the non-empty buckets, with a scale that is lower by `shift`."""
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
    """A field; empty for 0, which is what a reader assumes for a missing field."""
    return _tag(number, 0) + varint(value) if value else b""


def _double(number: int, value: float) -> bytes:
    return _tag(number, 1) + _DOUBLE.pack(value) if value else b""
