"""How many samples and histograms of a remote-write request are to be stored, found with the protobuf library and plain
Python: the rules of the specifications, written a second time."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from coordinator.series.label_sets import Limits, problem_of
from loadtest.harness.histogram_messages import parsed
from proto import remote_write_pb2, remote_write_v2_pb2
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.histograms.batch import STALE_SUM_BITS

CUSTOM = -53
SCHEMAS = range(-4, 9)


@dataclass
class Expected:
    samples: int = 0
    histograms: int = 0
    histograms_refused: int = 0


class Unclear(Exception):
    """The request has something that the protobuf library reads in another way than as it stands."""


def expected(body: bytes, limits: Limits) -> Expected:
    """Of version 1.0. Raises Unclear."""
    request = _exact(remote_write_pb2.RawWriteRequest, body)
    answer = Expected()
    for content in request.timeseries:
        series = _exact(remote_write_pb2.RawTimeSeries, content)
        _count(series, [(label.name, label.value) for label in series.labels], 0, limits, answer)
    return answer


def expected_v2(body: bytes, limits: Limits) -> Expected:
    """Of version 2.0. Raises Unclear."""
    request = _exact(remote_write_v2_pb2.Request, body)
    symbols = [text.encode() for text in request.symbols]
    answer = Expected()
    for entry in request.timeseries:
        series = _exact(remote_write_v2_pb2.RawTimeSeries, entry.SerializeToString())
        references = list(series.labels_refs)
        if len(references) % 2 or any(reference >= len(symbols) for reference in references):
            answer.histograms_refused += len(series.histograms)
            continue
        texts = [symbols[reference] for reference in references]
        pairs = list(zip(texts[::2], texts[1::2], strict=True))
        _count(series, pairs, series.created_timestamp, limits, answer)
    return answer


def _exact(kind: Any, data: bytes) -> Any:
    """The message, if the library would write it with as many bytes. Raises Unclear."""
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise Unclear from error
    if len(message.SerializeToString()) != len(data):
        raise Unclear
    return message


def _count(
    series: Any, pairs: Sequence[tuple[bytes, bytes]], created_ms: int, limits: Limits, answer: Expected
) -> None:
    if problem_of(pairs, limits):
        answer.histograms_refused += len(series.histograms)
        return
    answer.samples += sum(_are_times(s.timestamp, s.start_timestamp or created_ms) for s in series.samples)
    stored = sum(_is_stored(message, created_ms) for message in series.histograms)
    answer.histograms += stored
    answer.histograms_refused += len(series.histograms) - stored


def _are_times(*times_ms: int) -> bool:
    return all(TIME_MS_MIN <= time_ms <= TIME_MS_MAX for time_ms in times_ms)


def _is_stored(data: bytes, created_ms: int) -> bool:
    """Raises Unclear."""
    try:
        h = parsed(data)
    except DecodeError:
        return False
    if h is None:
        raise Unclear
    if not _are_times(h.timestamp, h.start_timestamp or created_ms):
        return False
    return struct.pack("<d", h.sum) == struct.pack("<Q", STALE_SUM_BITS) or _is_valid(h)


def _is_valid(h: Any) -> bool:
    is_float, is_custom = _is_float(h), h.schema == CUSTOM
    if is_float is None or not (is_custom or h.schema in SCHEMAS):
        return False
    zero_count = h.zero_count_float if h.WhichOneof("zero_count") == "zero_count_float" else h.zero_count_int
    if is_custom and (h.zero_threshold or zero_count or h.negative_spans or h.negative_deltas or h.negative_counts):
        return False
    bounds = list(h.custom_values)
    if bounds and (not is_custom or not all(map(math.isfinite, bounds)) or sorted(set(bounds)) != bounds):
        return False
    if not 0 <= h.zero_threshold < math.inf:
        return False
    counts = [zero_count]
    for side in ("negative", "positive"):
        own = list(getattr(h, f"{side}_counts")) if is_float else _running(getattr(h, f"{side}_deltas"))
        if not _fit(getattr(h, f"{side}_spans"), len(own), h.schema, len(bounds)):
            return False
        counts += own
    observations = h.count_float if h.WhichOneof("count") == "count_float" else h.count_int
    if any(not count >= 0 for count in (*counts, observations)):
        return False
    return is_float or _add_up(sum(map(float, counts)), float(observations), h.sum)


def _is_float(h: Any) -> bool | None:
    """None: it has counts of both kinds."""
    has_deltas = bool(h.positive_deltas or h.negative_deltas)
    has_counts = bool(h.positive_counts or h.negative_counts)
    said = h.WhichOneof("count")
    is_float = has_counts if said is None else said == "count_float"
    is_mixed = (has_counts and (has_deltas or not is_float)) or (has_deltas and is_float)
    return None if is_mixed else is_float


def _running(deltas: Sequence[int]) -> list[int]:
    counts, count = [], 0
    for delta in deltas:
        count += delta
        if count >= 1 << 63:
            return [-1]
        counts.append(count)
    return counts


def _fit(spans: Any, buckets: int, schema: int, bounds: int) -> bool:
    """Whether the spans have room for just so many buckets, all of which exist."""
    if sum(span.length for span in spans) != buckets or any(span.offset < 0 for span in spans[1:]):
        return False
    return all(_exists(index, schema, bounds) for index in _indexes(spans))


def _indexes(spans: Any) -> Iterator[int]:
    at = 0
    for span in spans:
        at += span.offset
        yield from range(at, at + span.length)
        at += span.length


def _exists(index: int, schema: int, bounds: int) -> bool:
    """Whether a float64 falls into the bucket: the smallest one is 2^-1074, the last bucket has the infinite ones."""
    if schema == CUSTOM:
        return 0 <= index <= bounds
    return index * 2.0**-schema >= -1074 and (index - 1) * 2.0**-schema <= 1024


def _add_up(in_buckets: float, observations: float, total: float) -> bool:
    """Up to 2^53 the sum is exact. Where the sum of the values is NaN, observations of NaN are in no bucket."""
    slack = 0.0 if in_buckets < 2.0**53 else in_buckets * 2.0**-40
    return in_buckets <= observations + slack and (math.isnan(total) or in_buckets >= observations - slack)
