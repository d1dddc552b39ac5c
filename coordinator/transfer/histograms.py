"""Native histograms as JSON objects, which keep all that is stored of them, and back as messages of remote write.

    {"schema":3,"count":12,"sum":34.5,"zeroThreshold":1e-128,"zeroCount":2,"negative":{"5":1},"positive":{"-2":3,"7":6}}

`negative` and `positive` have the count of each bucket by its index. Schema -53 has `bounds`, its boundaries, instead
of a zero bucket and negative ones. `counterResetHint` is there unless it is unknown, and `"float":true` where the
counts were sent as floating-point numbers. A number that JSON does not have is the text "NaN", "Infinity" or
"-Infinity".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np
import orjson

from coordinator.transfer.slices import Slice
from shared.errors import BadData
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.histograms.batch import HINT, IS_FLOAT, NO_ZERO, HistogramBatch
from shared.histograms.fields import (
    BUCKETS_MAX,
    CUSTOM_VALUES,
    NEGATIVE_COUNTS,
    NEGATIVE_DELTAS,
    NEGATIVE_SPANS,
    OBSERVATIONS,
    OBSERVATIONS_FLOAT,
    POSITIVE_COUNTS,
    POSITIVE_DELTAS,
    POSITIVE_SPANS,
    RESET_HINT,
    SCHEMA,
    SUM,
    TIMESTAMP,
    ZERO_COUNT,
    ZERO_COUNT_FLOAT,
    ZERO_THRESHOLD,
)
from shared.histograms.references import is_reference, rows_of
from shared.histograms.schemas import CUSTOM
from shared.protobuf_fields import DELIMITED, FIXED_64, VARINT, varint

COUNTS_END, BUCKETS_END = 1 << 64, 1 << 63
"""Limits below which whole counts are counts of a message: numbers of observations, and of those in a bucket."""
HINTS: tuple[Literal["unknown", "reset", "notReset", "gauge"], ...] = ("unknown", "reset", "notReset", "gauge")
LINE_HISTOGRAMS_MAX = 1000
"""The limit on the histograms of one line."""
LINE_TEXT_MAX = 4 << 20
"""Characters of the histograms of a line that has more than one. Imports accept lines of twice this length."""

Number = float | Literal["NaN", "Infinity", "-Infinity"]


class Histogram(msgspec.Struct, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """A native histogram with its counts by the index of the bucket."""

    schema: int
    count: Number
    sum: Number
    zero_threshold: float = 0.0
    zero_count: Number = 0.0
    negative: dict[int, Number] = {}
    positive: dict[int, Number] = {}
    bounds: list[float] = []
    counter_reset_hint: Literal["unknown", "reset", "notReset", "gauge"] = "unknown"
    is_float: bool = msgspec.field(default=False, name="float")


def histograms_of(read: Slice) -> Iterator[tuple[int, int, str]]:
    """(row of its series, time in ms, JSON text) of each histogram of a slice, by series and in the order of time."""
    samples = read.samples
    if samples.histograms is None:
        return
    at = np.flatnonzero(is_reference(samples.values))
    series = np.searchsorted(samples.offsets, at, side="right") - 1
    rows = rows_of(samples.values[at])
    for owner, time_ms, row in zip(series.tolist(), samples.timestamps_ms[at].tolist(), rows.tolist(), strict=True):
        yield owner, time_ms, msgspec.json.encode(_histogram(samples.histograms, row)).decode()


def histogram_groups(read: Slice) -> Iterator[tuple[int, list[int], list[str]]]:
    """(row of their series, times in ms, JSON texts) of the histograms of a slice that are in one line together."""
    owner, times, texts, size = -1, list[int](), list[str](), 0
    for row, time_ms, text in histograms_of(read):
        size += len(text)
        if texts and (row != owner or len(texts) == LINE_HISTOGRAMS_MAX or size > LINE_TEXT_MAX):
            yield owner, times, texts
            times, texts, size = [], [], len(text)
        owner = row
        times.append(time_ms)
        texts.append(text)
    if texts:
        yield owner, times, texts


def histogram_lines(read: Slice) -> Iterator[bytes]:
    """JSON lines with the histograms of a slice."""
    for row, times, texts in histogram_groups(read):
        yield _line(read, row, texts, times)


def _line(read: Slice, row: int, texts: Sequence[str], times: Sequence[int]) -> bytes:
    metric = orjson.dumps(dict(read.labels.labels(row)))
    return b'{"metric":%b,"histograms":[%b],"timestamps":%b}\n' % (
        metric,
        ",".join(texts).encode(),
        orjson.dumps(times),
    )


def _histogram(batch: HistogramBatch, row: int) -> Histogram:
    columns, layouts = batch.columns, batch.layouts.columns
    layout = int(columns.layout[row])
    indexes = layouts.indexes[layouts.start[layout] : layouts.start[layout + 1]].tolist()
    row_counts = columns.counts[columns.start[row] : columns.start[row + 1]]
    counts: list[Number] = row_counts.tolist()
    if not np.isfinite(row_counts).all():
        counts = [_shown(count) for count in row_counts.tolist()]
    zero = int(layouts.zero_at[layout])
    flags = int(columns.flags[row])
    pairs = list(zip(indexes, counts, strict=True))
    return Histogram(
        schema=int(layouts.schema[layout]),
        count=_shown(float(columns.observations[row])),
        sum=_shown(float(columns.sum[row])),
        zero_threshold=float(layouts.zero_threshold[layout]),
        zero_count=0.0 if zero == NO_ZERO else counts[zero],
        negative=dict(reversed(pairs[: max(zero, 0)])),
        positive=dict(pairs[zero + 1 :]),
        bounds=layouts.bound[layouts.bound_start[layout] : layouts.bound_start[layout + 1]].tolist(),
        counter_reset_hint=HINTS[flags & HINT],
        is_float=bool(flags & IS_FLOAT),
    )


def _shown(number: float) -> Number:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def message_of(histogram: Histogram, time_ms: int) -> bytes:
    """The message `prometheus.Histogram` of remote write, which its receiver examines. Raises BadData for what no
    message can have."""
    if not TIME_MS_MIN <= time_ms <= TIME_MS_MAX:
        raise BadData(f"a histogram's timestamp is {time_ms} ms; it must lie within the years 1 to 9999")
    if len(histogram.negative) + len(histogram.positive) > BUCKETS_MAX:
        raise BadData(f"a histogram has more than {BUCKETS_MAX} buckets, the limit")
    count, zero_count = float(histogram.count), float(histogram.zero_count)
    negative, positive = (
        {index: float(count) for index, count in buckets.items()}
        for buckets in (histogram.negative, histogram.positive)
    )
    if not histogram.is_float:
        _require_whole((count, zero_count), COUNTS_END, "2^64")
        _require_whole((*negative.values(), *positive.values()), BUCKETS_END, "2^63")
    if not -(1 << 31) <= histogram.schema < 1 << 31:
        raise BadData(f"a histogram has the schema {histogram.schema}; right are -4 to 8, and -53")
    is_custom = histogram.schema == CUSTOM
    parts = [_number(OBSERVATIONS, OBSERVATIONS_FLOAT, count, histogram.is_float)]
    parts += [_double(SUM, float(histogram.sum)), _varint(SCHEMA, _zigzag(histogram.schema))]
    if not is_custom:
        parts.append(_double(ZERO_THRESHOLD, histogram.zero_threshold))
        parts.append(_number(ZERO_COUNT, ZERO_COUNT_FLOAT, zero_count, histogram.is_float))
    for spans, deltas, floats, buckets in (
        (NEGATIVE_SPANS, NEGATIVE_DELTAS, NEGATIVE_COUNTS, negative),
        (POSITIVE_SPANS, POSITIVE_DELTAS, POSITIVE_COUNTS, positive),
    ):
        parts += _buckets(spans, deltas, floats, buckets, is_float=histogram.is_float)
    parts.append(_varint(RESET_HINT, HINTS.index(histogram.counter_reset_hint)))
    parts.append(_varint(TIMESTAMP, time_ms & (1 << 64) - 1))
    if histogram.bounds:
        parts.append(_delimited(CUSTOM_VALUES, struct.pack(f"<{len(histogram.bounds)}d", *histogram.bounds)))
    return b"".join(parts)


def _require_whole(counts: Iterable[float], end: int, shown_end: str) -> None:
    for count in counts:
        if not (0 <= count < end and count == int(count)):
            raise BadData(
                f"a histogram without `float` has a count of {count}; right are whole numbers below {shown_end}"
            )


def _buckets(spans: int, deltas: int, floats: int, buckets: Mapping[int, float], *, is_float: bool) -> list[bytes]:
    """The fields of buckets: a span for each run of neighbours, whose offset counts from the end of the one before."""
    parts, following, begin = list[bytes](), 0, 0
    indexes = sorted(buckets)
    if indexes and not -(1 << 31) <= indexes[0] <= indexes[-1] < 1 << 31:
        raise BadData(f"a histogram has a bucket with the index {indexes[-1]}, which no schema has")
    for place, index in enumerate(indexes):
        if place + 1 == len(indexes) or indexes[place + 1] != index + 1:
            first, length = indexes[begin], place + 1 - begin
            span = _varint(1, _zigzag(first - following)) + _varint(2, length)
            parts.append(_delimited(spans, span))
            following, begin = index + 1, place + 1
    if indexes:
        counts = [buckets[index] for index in indexes]
        if is_float:
            parts.append(_delimited(floats, struct.pack(f"<{len(counts)}d", *counts)))
        else:
            steps = (int(count) - int(last) for last, count in pairwise([0, *counts]))
            parts.append(_delimited(deltas, b"".join(varint(_zigzag(step)) for step in steps)))
    return parts


def _number(whole: int, floating: int, count: float, is_float: bool) -> bytes:
    return _double(floating, count) if is_float else _varint(whole, int(count))


def _varint(number: int, value: int) -> bytes:
    return varint(number << 3 | VARINT) + varint(value)


def _double(number: int, value: float) -> bytes:
    return varint(number << 3 | FIXED_64) + struct.pack("<d", value)


def _delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | DELIMITED) + varint(len(content)) + content


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1
