"""Histograms of OpenTelemetry become native histograms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint

from coordinator.otlp import metrics, native
from coordinator.otlp.native import exponential
from coordinator.series.remote_write import NO_REFERENCES
from loadtest.harness.histogram_messages import parsed
from proto import remote_write_pb2
from tests.otlp_requests import START_MS, START_NS, T_MS, T_NS, Request, prepared, rules_of

Buckets = dict[int, int]


def point_of(scale: int, offset: int, counts: list[int], **more: Any) -> Any:
    point = ExponentialHistogramDataPoint(
        time_unix_nano=T_NS, start_time_unix_nano=START_NS, scale=scale, count=sum(counts), **more
    )
    point.positive.offset = offset
    point.positive.bucket_counts.extend(counts)
    return point


def buckets_of(spans: Any, deltas: Any) -> Buckets:
    """Index → count, as remote write says it."""
    found, index, deltas, count = {}, 0, iter(deltas), 0
    for span in spans:
        index += span.offset
        for _ in range(span.length):
            count += next(deltas)
            found[index] = count
            index += 1
    assert not list(deltas)
    return {index: count for index, count in found.items() if count}


def test_bucket_i_is_bucket_i_plus_1_with_all_that_is_beside() -> None:
    point = point_of(3, -1, [1, 0, 2], sum=4.5, zero_count=7, zero_threshold=0.25)
    point.negative.offset = 4
    point.negative.bucket_counts.append(9)
    message = parsed(exponential(point, is_delta=False))
    assert buckets_of(message.positive_spans, message.positive_deltas) == {0: 1, 2: 2}
    assert buckets_of(message.negative_spans, message.negative_deltas) == {5: 9}
    assert (message.schema, message.sum, message.zero_count_int, message.zero_threshold) == (3, 4.5, 7, 0.25)
    assert (message.timestamp, message.start_timestamp, message.count_int, message.reset_hint) == (T_MS, START_MS, 3, 0)


def test_a_bucket_beyond_the_last_index_is_refused_and_not_taken_for_another() -> None:
    last = 2**31 - 2
    assert buckets_of(*_sides(exponential(point_of(0, last, [1]), is_delta=False))) == {last + 1: 1}
    with pytest.raises(ValueError, match="index 2147483648; the largest is 2147483647"):
        exponential(point_of(0, last, [1, 1]), is_delta=False)


def test_a_scale_above_the_highest_schema_is_reduced_and_one_below_the_lowest_is_refused() -> None:
    message = parsed(exponential(point_of(10, 5, [1, 2, 3, 4]), is_delta=False))
    assert message.schema == 8
    assert buckets_of(message.positive_spans, message.positive_deltas) == {2: 6, 3: 4}  # 5, 6, 7 are 1 of a quarter
    assert buckets_of(*_sides(exponential(point_of(2**31 - 1, -1, [1, 2]), is_delta=False))) == {0: 1, 1: 2}
    with pytest.raises(ValueError, match="its scale is -5; the least is -4"):
        exponential(point_of(-5, 0, [1]), is_delta=False)


def _sides(data: bytes) -> tuple[Any, Any]:
    message = parsed(data)
    return message.positive_spans, message.positive_deltas


def test_what_a_delta_a_stale_one_and_one_without_threshold_look_like() -> None:
    assert parsed(exponential(point_of(0, 0, [1]), is_delta=True)).reset_hint == native.GAUGE_HINT
    assert parsed(exponential(point_of(0, 0, [1]), is_delta=False)).zero_threshold == native.ZERO_THRESHOLD
    stale = parsed(exponential(point_of(-9, 0, [1], flags=1), is_delta=False))
    assert np.float64(stale.sum).view(np.int64) == native.STALE_SUM_BITS
    assert stale.timestamp == T_MS


def test_too_many_buckets_are_refused() -> None:
    with pytest.raises(ValueError, match="it has 10001 buckets on one side; the limit is 10000"):
        exponential(point_of(0, 0, [1] * 10_001), is_delta=False)


@given(st.integers(-4, 12), st.integers(-1000, 1000), st.lists(st.sampled_from((0, 0, 0, 1, 5, 1 << 40)), max_size=30))
def test_every_bucket_is_where_its_upper_bound_is(scale: int, offset: int, counts: list[int]) -> None:
    message = parsed(exponential(point_of(scale, offset, counts), is_delta=False))
    shift = max(0, scale - 8)
    expected: Buckets = {}
    for i, count in enumerate(counts):
        index = -(-(offset + i + 1) // (1 << shift))  # of the upper bound: base ** (offset + i + 1)
        expected[index] = expected.get(index, 0) + count
    assert buckets_of(message.positive_spans, message.positive_deltas) == {i: c for i, c in expected.items() if c}


def test_explicit_bounds_are_custom_boundaries() -> None:
    request = Request()
    request.histogram("lat", [0.5, 2.0], [1, 0, 3], total=9.0, own={"a": "b"})
    request.histogram("bare", [], [], total=None).count = 2
    request.histogram("gone", [1.0], []).flags = 1
    request.histogram("wrong", [2.0, 1.0], [1, 1, 1])
    request.gauge("g", 1.0)
    translation = rules_of(otlp_custom_buckets=True)
    ready = prepared(request.bytes(), translation)
    split_request = metrics.split(ready, ready.written(), 2, translation, NO_REFERENCES)
    assert (split_request.samples, split_request.histograms, ready.refusals.count) == (1, 3, 1)
    assert "custom boundary 1 comes after 2" in ready.refusals.message("data points")
    series = remote_write_pb2.RawWriteRequest.FromString(bytes(ready.written())).timeseries
    lat, bare, *_ = [
        parsed(each) for raw in series for each in remote_write_pb2.RawTimeSeries.FromString(raw).histograms
    ]
    assert (lat.schema, lat.count_int, lat.sum, list(lat.custom_values)) == (-53, 4, 9.0, [0.5, 2.0])
    assert buckets_of(lat.positive_spans, lat.positive_deltas) == {0: 1, 2: 3}
    assert (bare.count_int, buckets_of(bare.positive_spans, bare.positive_deltas)) == (2, {0: 2})
