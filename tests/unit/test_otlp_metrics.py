"""OTLP metrics become series of Prometheus: labels, values, times, and what is refused."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.otlp import known_sets, metrics, survey, walk
from coordinator.otlp.known_sets import KnownSets
from coordinator.series.remote_write import NO_REFERENCES
from proto import remote_write_pb2
from shared.errors import BadData, TooLarge
from shared.labels import METRIC_NAME
from shared.promql.model import STALE_NAN_BITS
from shared.wire import Frame
from tests.otlp_requests import (
    START_MS,
    START_NS,
    T_MS,
    T_NS,
    Request,
    attributes,
    expected,
    prepared,
    rules_of,
    series_of,
    values,
)

RULES = rules_of()
RESOURCE = {"service.namespace": "shop", "service.name": "cart", "service.instance.id": "c-1", "host.name": "h"}


def test_a_gauge_has_the_attributes_and_the_identity_of_its_resource() -> None:
    request = Request(RESOURCE, "lib", "1.2")
    request.gauge("queue.size", 7, {"queue.name": "in", "n": 3, "x": 0.5, "on": True, "none": None})
    assert values(request.bytes(), RULES) == {
        "__name__=queue_size,instance=c-1,job=shop/cart,n=3,on=true,otel_scope_name=lib,otel_scope_version=1.2,"
        "queue_name=in,x=0.5": 7.0,
        "__name__=target_info,host_name=h,instance=c-1,job=shop/cart": 1.0,
    }


def test_a_cumulative_sum_is_a_counter_with_a_start_and_a_gauge_has_none() -> None:
    request = Request()
    request.sum("a", 2.5, unit="s")
    request.sum("b", -2, monotonic=False)
    request.gauge("c", 1.0, start_time_unix_nano=START_NS)
    series = series_of(prepared(request.bytes(), RULES).written())
    starts = {own[0][1]: samples[0][2] for own, samples in series.items()}
    assert starts == {"a_seconds_total": START_MS, "b": START_MS, "c": 0}


def test_a_histogram_has_cumulative_buckets_a_sum_and_a_count() -> None:
    request = Request()
    request.histogram("lat", [0.5, 10.0, 1e22], [1, 2, 0, 4], total=9.5, own={"le": "mine"})
    assert values(request.bytes(), RULES) == {
        "__name__=lat_sum,le=mine": 9.5,
        "__name__=lat_count,le=mine": 7.0,
        "__name__=lat_bucket,le=0.5": 1.0,
        "__name__=lat_bucket,le=10": 3.0,
        "__name__=lat_bucket,le=10000000000000000000000": 3.0,
        "__name__=lat_bucket,le=+Inf": 7.0,
    }


def test_a_histogram_without_sum_and_buckets_has_a_count_and_one_bucket() -> None:
    request = Request()
    point = request.histogram("lat", [], [], total=None)
    point.count = 3
    assert values(request.bytes(), RULES) == {"__name__=lat_count": 3.0, "__name__=lat_bucket,le=+Inf": 3.0}


def test_a_summary_has_a_series_for_each_quantile() -> None:
    request = Request()
    point = request.metric("size", "By").summary.data_points.add(time_unix_nano=T_NS, count=4, sum=10.0)
    point.quantile_values.add(quantile=0.5, value=2.0)
    point.quantile_values.add(quantile=1.0, value=4.0)
    assert values(request.bytes(), RULES) == {
        "__name__=size_bytes_sum": 10.0,
        "__name__=size_bytes_count": 4.0,
        "__name__=size_bytes,quantile=0.5": 2.0,
        "__name__=size_bytes,quantile=1": 4.0,
    }


def test_no_recorded_value_is_a_stale_marker_of_every_series() -> None:
    request = Request()
    for point in (request.gauge("g", 1.0), request.histogram("h", [1.0], [1, 2])):
        point.flags = 1
    summary = request.metric("s").summary.data_points.add(time_unix_nano=T_NS, flags=1)
    summary.quantile_values.add(quantile=0.5, value=2.0)
    request.metric("empty").gauge.data_points.add(time_unix_nano=T_NS, flags=1)
    series = series_of(prepared(request.bytes(), RULES).written())
    assert len(series) == 1 + 4 + 3 + 1
    assert all(samples[0][:2] == (T_MS, STALE_NAN_BITS) for samples in series.values())


@pytest.mark.parametrize("temporality", [walk.DELTA, walk.UNSPECIFIED])
def test_deltas_are_refused_by_name_unless_a_setting_keeps_them(temporality: int) -> None:
    request = Request()
    request.sum("orders", 1, temporality=temporality)
    request.histogram("lat", [1.0], [1, 2], temporality=temporality)
    request.sum("fine", 1)
    ready = prepared(request.bytes(), RULES)
    assert ready.refusals.count == 2
    text = ready.refusals.message("data points")
    assert text.startswith("2 data points refused: metric 'orders': ") and "metric 'lat'" in text
    assert [own[0][1] for own in series_of(ready.written())] == ["fine_total"]
    kept = prepared(request.bytes(), rules_of(otlp_keep_delta=True))
    assert kept.refusals.count == (0 if temporality == walk.DELTA else 2)
    if temporality == walk.DELTA:
        series = series_of(kept.written())
        assert [samples[0][2] for samples in series.values()] == [START_MS] * len(series)
        assert (METRIC_NAME, "orders") in [own[0] for own in series]


def test_resource_attributes_are_promoted_by_setting_and_a_point_s_own_come_first() -> None:
    request = Request({**RESOURCE, "k8s.pod.name": "p"})
    request.gauge("g", 1.0, {"host.name": "own"})
    named = rules_of(otlp_promote_resource_attributes=("k8s.pod.name", "missing"), otlp_scope_labels=False)
    assert next(iter(values(request.bytes(), named))) == (
        "__name__=g,host_name=own,instance=c-1,job=shop/cart,k8s_pod_name=p"
    )
    every = next(iter(values(request.bytes(), rules_of(otlp_promote_resource_attributes=("*",)))))
    assert "service_name=cart" in every and "host_name=own" in every


@pytest.mark.parametrize(
    ("resource", "names"),
    [
        ({"service.name": "cart"}, ["g"]),  # nothing beside what identifies it
        ({"host.name": "h"}, ["g"]),  # nothing that identifies it
        ({"service.name": "cart", "host.name": "h"}, ["g", "target_info"]),
        ({"service.namespace": "n", "host.name": "h"}, ["g"]),
        ({"service.instance.id": "i", "host.name": "h"}, ["g", "target_info"]),
    ],
)
def test_which_resources_have_a_target_info(resource: dict[str, str], names: list[str]) -> None:
    request = Request(resource)
    request.gauge("g", 1.0)
    assert [own[0][1] for own in series_of(prepared(request.bytes(), RULES).written())] == names


def test_attributes_that_get_the_same_name_are_joined() -> None:
    request = Request()
    request.gauge("g", 1.0, {"a.b": "2", "a_b": "3", "a-b": "1"})
    assert list(values(request.bytes(), RULES)) == ["__name__=g,a_b=1;2;3"]
    utf8 = rules_of(otlp_translation_strategy="NoTranslation")
    assert list(values(request.bytes(), utf8)) == ["__name__=g,a-b=1,a.b=2,a_b=3"]


def test_lists_and_maps_are_json() -> None:
    request = Request()
    request.gauge("g", 1.0, {"l": ["a", 1, math.inf, b"x"], "m": {"b": None, "a": [True]}, "bytes": b"\x01"})
    own = dict(next(iter(series_of(prepared(request.bytes(), RULES).written()))))
    assert own["l"] == '["a",1,"+Inf","eA=="]'
    assert own["m"] == '{"a":[true],"b":null}'
    assert own["bytes"] == "AQ=="


def exemplars_of(request: Frame) -> dict[tuple[str, str], list[Any]]:
    """(name of the metric, `le`) → (labels, value, time) of each exemplar."""
    found = {}
    raw = remote_write_pb2.RawWriteRequest.FromString(bytes(request)).timeseries
    for series, each in zip(remote_write_pb2.WriteRequest.FromString(bytes(request)).timeseries, raw, strict=True):
        own = {label.name: label.value for label in series.labels}
        encoded = remote_write_pb2.RawTimeSeries.FromString(each).exemplars
        if encoded:
            read = [remote_write_pb2.Exemplar.FromString(data) for data in encoded]
            found[own[METRIC_NAME], own.get("le", "")] = [
                ({label.name: label.value for label in one.labels}, one.value, one.timestamp) for one in read
            ]
    return found


def test_exemplars_are_with_the_bucket_that_their_value_is_in() -> None:
    request = Request()
    counter = request.sum("orders", 3)
    counter.exemplars.add(as_int=1, time_unix_nano=T_NS, trace_id=b"\xab" * 16, span_id=b"\xcd" * 8)
    histogram = request.histogram("lat", [1.0, 2.0], [1, 1, 1])
    for value in (1.0, 1.5, 7.0):
        histogram.exemplars.add(as_double=value, time_unix_nano=T_NS, filtered_attributes=attributes({"user.id": "u"}))
    histogram.exemplars.add(as_double=0.5, filtered_attributes=attributes({"long": "x" * 200}), trace_id=b"\x01" * 16)
    found = exemplars_of(prepared(request.bytes(), RULES).written())
    assert found == {
        ("orders_total", ""): [({"trace_id": "ab" * 16, "span_id": "cd" * 8}, 1.0, T_MS)],
        ("lat_bucket", "1"): [({"user_id": "u"}, 1.0, T_MS), ({"trace_id": "01" * 16}, 0.5, 0)],
        ("lat_bucket", "2"): [({"user_id": "u"}, 1.5, T_MS)],
        ("lat_bucket", "+Inf"): [({"user_id": "u"}, 7.0, T_MS)],
    }


def test_exemplars_that_are_switched_off_are_counted() -> None:
    request = Request()
    request.sum("orders", 3).exemplars.add(as_int=1)
    ready = prepared(request.bytes(), rules_of(exemplars_bytes=0))
    assert (ready.exemplars_left_out, exemplars_of(ready.written())) == (1, {})


def test_metadata_has_the_type_the_unit_and_the_help() -> None:
    request = Request()
    request.sum("orders", 1).SetInParent()
    request.sum("level", 1, monotonic=False)
    request.metric("size", "By", "How large.").gauge.data_points.add(time_unix_nano=T_NS, as_int=1)
    request.histogram("lat", [], [])
    request.sum("moved", 1, temporality=walk.DELTA)
    ready = prepared(request.bytes(), RULES)
    assert [(each.family, each.type, each.unit, each.help) for each in ready.metadata] == [
        ("orders_total", "counter", "", ""),
        ("level", "gauge", "", ""),
        ("size_bytes", "gauge", "bytes", "How large."),
        ("lat", "histogram", "", ""),
        ("moved", "unknown", "", ""),
    ]


def test_metadata_that_is_known_is_not_read_again() -> None:
    request = Request()
    request.sum("orders", 1)
    known = KnownSets(0)
    ready = prepared(request.bytes(), RULES, known)
    assert len(ready.metadata_keys) == 1
    assert not len(survey.survey(request.bytes(), known, set(ready.metadata_keys)).without_metadata)


def test_what_is_known_is_written_like_the_first_time() -> None:
    known = KnownSets(1 << 20)
    request = Request(RESOURCE, "s")
    request.gauge("g", 1.0, {"a": "b"})
    request.histogram("h", [1.0, 2.0], [1, 2, 3], own={"c": "d"})
    first = prepared(request.bytes(), RULES, known)
    assert len(first.new_keys) == 3
    second = prepared(request.bytes(), RULES, known)
    assert len(second.new_keys) == 0
    assert second.written() == first.written()
    assert known.bytes > 0


def test_sets_that_find_no_room_are_written_every_time() -> None:
    known = KnownSets(4096)
    for turn in range(3):
        request = Request()
        for i in range(50):
            request.gauge("g", float(i), {"i": str(i), "turn": str(turn)})
        assert len(values(request.bytes(), RULES)) == 50
        assert len(series_of(prepared(request.bytes(), RULES, known).written())) == 50


def test_full_tables_keep_what_they_have_until_it_is_time_to_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownSets(4096)  # room for 11, one of which is that there is no target_info

    def new_of(first: int) -> int:
        request = Request()
        for i in range(first, first + 8):
            request.gauge("g", 1.0, {"i": str(i)})
        return len(prepared(request.bytes(), RULES, known).new_keys)

    assert [new_of(0), new_of(0), new_of(8), new_of(8), new_of(0)] == [9, 0, 8, 6, 0]
    monkeypatch.setattr(known_sets, "FORGET_S", 0.0)
    assert [new_of(8), new_of(8), new_of(8), new_of(0)] == [6, 9, 0, 8]


def cumulative(metric: Any) -> Any:
    metric.aggregation_temporality = 2
    return metric.data_points


@pytest.mark.parametrize(
    ("fill", "why"),
    [
        (lambda r: r.metric("m").gauge.data_points.add(time_unix_nano=T_NS), "metric 'm': a data point has no value"),
        (lambda r: r.metric("m").gauge.data_points.add(as_double=1.0), "metric 'm': a data point has no time"),
        (lambda r: r.metric("m").gauge.data_points.add(as_int=1, time_unix_nano=999_999), "a data point has no time"),
        (lambda r: r.metric("m").summary.data_points.add(count=1), "metric 'm': a data point has no time"),
        (lambda r: cumulative(r.metric("m").histogram).add(count=1, bucket_counts=[1]), "a data point has no time"),
        (lambda r: cumulative(r.metric("m").exponential_histogram).add(count=1), "a data point has no time"),
        (lambda r: r.histogram("m", [1.0], [1]), "one bucket more than explicit bounds"),
        (lambda r: r.histogram("m", [2.0, 1.0], [1, 1, 1]), "do not ascend"),
        (lambda r: r.histogram("m", [float(i) for i in range(1001)], [0] * 1002), "1001 explicit bounds; the limit is"),
        (lambda r: r.gauge("", 1.0), "it has no name"),
        (lambda r: r.gauge("///", 1.0), "nothing is left of its name"),
        (lambda r: r.gauge("m", 1.0, {"": "x"}), "a label name is empty"),
        (lambda r: r.gauge("m", 1.0, {str(i): "x" for i in range(300)}), "it has 301 labels; the limit is 256"),
        (lambda r: r.gauge("m", 1.0, {"a": "x" * 70_000}), "the value of label 'a' has 70000 bytes"),
    ],
)
def test_what_is_not_valid_is_refused_by_name_and_the_rest_is_kept(fill: Any, why: str) -> None:
    request = Request()
    fill(request)
    request.gauge("fine", 1.0)
    ready = prepared(request.bytes(), RULES)
    assert (ready.refusals.count, [own[0][1] for own in series_of(ready.written())]) == (1, ["fine"])
    assert why in ready.refusals.message("data points")


def test_an_attribute_that_is_not_utf_8_is_refused_with_its_point() -> None:
    request = Request()
    request.gauge("g", 1.0, {"a": "XXXX"})
    request.gauge("h", 1.0)
    ready = prepared(request.bytes().replace(b"XXXX", b"\xff\xff\xff\xff"), RULES)
    assert (ready.refusals.count, len(series_of(ready.written()))) == (1, 1)


@pytest.mark.parametrize("body", [b"\x0a\x05abc", b"\xff\xff", b"\x0a\x02\x12\x05"])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadData, match="not a protobuf ExportMetricsServiceRequest"):
        prepared(body, RULES)


def test_a_message_with_fields_in_another_order_and_twice_is_read_like_protobuf_does() -> None:
    request = Request({"service.name": "a"})
    request.gauge("g", 1.0)
    resource, scopes = request.resource.resource.SerializeToString(), request.scope.SerializeToString()
    other = Request({"service.instance.id": "b"}).resource.resource.SerializeToString()
    swapped = b"\x12" + bytes([len(scopes)]) + scopes
    swapped += b"".join(b"\x0a" + bytes([len(each)]) + each for each in (resource, other)) + b"\x98\x06\x01"
    body = b"\x0a" + bytes([len(swapped)]) + swapped
    assert list(values(body, RULES)) == ["__name__=g,instance=b,job=a"]


@pytest.mark.parametrize("where", ["scope", "resource"])
def test_a_scope_or_a_resource_with_too_many_labels_is_looked_at_once(where: str) -> None:
    request = Request()
    many = attributes({f"a{i}": "x" for i in range(5000)})
    (request.scope.scope if where == "scope" else request.resource.resource).attributes.extend(many)
    for i in range(500):
        request.gauge(f"m{i}", 1.0)
    started = time.process_time()
    ready = prepared(request.bytes(), rules_of(otlp_promote_resource_attributes=("*",)))
    assert time.process_time() - started < 1.5  # with each metric, it would be more than 5 s
    assert (ready.refusals.count, series_of(ready.written())) == (500, {})
    assert f"its {where} has 5000 attributes that are labels; the limit is 256" in ready.refusals.message("points")


def test_too_many_of_anything_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request()
    for i in range(20):
        request.gauge("g", 1.0, {"i": str(i)})
    monkeypatch.setattr(survey, "_TABLES", tuple((*table[:2], 10, table[3]) for table in survey._TABLES))
    with pytest.raises(TooLarge, match="more than 10 metrics"):
        prepared(request.bytes(), RULES)
    monkeypatch.undo()
    monkeypatch.setattr(metrics, "NEW_SERIES_MAX", 10)
    with pytest.raises(TooLarge, match="more than 10 new series"):
        prepared(request.bytes(), RULES)
    monkeypatch.undo()
    with pytest.raises(TooLarge, match="new series have more than 67108864 bytes"):
        prepared(request.bytes(), RULES, bytes_max=100)
    with pytest.raises(TooLarge, match="with its labels written out"):
        prepared(request.bytes(), RULES).require_at_most(100)


def test_what_remote_write_refuses_is_counted_once() -> None:
    request = Request()
    point = request.metric("e").exponential_histogram.data_points.add(time_unix_nano=T_NS, count=1, scale=3)
    point.positive.bucket_counts.extend([5])  # more than the count
    request.message.resource_metrics[0].scope_metrics[0].metrics[0].exponential_histogram.aggregation_temporality = 2
    request.gauge("g", 1.0)
    ready = prepared(request.bytes(), RULES)
    split_request = metrics.split(ready, ready.written(), 2, RULES, NO_REFERENCES)
    assert (split_request.samples, split_request.histograms, ready.refusals.count) == (1, 0, 1)
    assert "its buckets have 5 observations" in ready.refusals.message("data points")


_TEXTS = st.sampled_from(("", "a", "b.c", "é", "__name__", "le", "x" * 40))
_VALUES = _TEXTS | st.integers(-3, 3) | st.booleans() | st.floats(allow_nan=False) | st.none()
_NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats()


@st.composite
def _requests(draw: st.DrawFn) -> list[bytes]:
    """Some requests, with much in common."""
    bodies = []
    for _ in range(draw(st.integers(1, 3))):
        message = Request().message
        message.Clear()
        for _ in range(draw(st.integers(0, 2))):
            resource = message.resource_metrics.add()
            resource.resource.attributes.extend(
                attributes(draw(st.sampled_from((RESOURCE, {"service.name": "x"}, {}))))
            )
            scope = resource.scope_metrics.add(schema_url=draw(_TEXTS))
            scope.scope.name = draw(_TEXTS)
            for _ in range(draw(st.integers(0, 3))):
                metric = scope.metrics.add(name=draw(_TEXTS), unit=draw(st.sampled_from(("", "s", "1", "By/s"))))
                kind = draw(st.sampled_from(("gauge", "sum", "histogram")))
                data = getattr(metric, kind)
                data.SetInParent()
                if kind != "gauge":
                    data.aggregation_temporality = draw(st.integers(0, 2))
                if kind == "sum":
                    data.is_monotonic = draw(st.booleans())
                for _ in range(draw(st.integers(0, 3))):
                    own = attributes(draw(st.dictionaries(_TEXTS, _VALUES, max_size=3)))
                    point = data.data_points.add(attributes=own, flags=draw(st.sampled_from((0, 0, 1, 2))))
                    point.time_unix_nano = draw(st.integers(0, 1 << 62))
                    point.start_time_unix_nano = draw(st.integers(0, 1 << 62))
                    if kind == "histogram":
                        point.explicit_bounds.extend(sorted(set(draw(st.lists(st.floats(-9, 9), max_size=3)))))
                        size = len(point.explicit_bounds) + draw(st.sampled_from((1, 1, 1, 0, 2)))
                        point.bucket_counts.extend(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)))
                        point.count = draw(st.integers(0, 99))
                        if draw(st.booleans()):
                            point.sum = draw(st.floats(-9, 9))
                    elif draw(st.integers(0, 5)):
                        number = draw(_NUMBERS)
                        setattr(point, "as_int" if isinstance(number, int) else "as_double", number)
        bodies.append(message.SerializeToString())
    return bodies


@settings(max_examples=50)
@given(_requests(), st.booleans())
def test_the_kernels_write_what_plain_python_says(bodies: list[bytes], keep_delta: bool) -> None:
    translation = rules_of(otlp_keep_delta=keep_delta)
    known = KnownSets(1 << 16)
    for body in [*bodies, *bodies]:
        ready = prepared(body, translation, known)
        message = Request().message.FromString(body)
        series, refused = expected(message, translation)
        assert series_of(ready.written()) == series
        assert ready.refusals.count == refused
        assert int(np.count_nonzero(ready.survey.points[:, 0] >= 0)) == sum(
            len(getattr(metric, metric.WhichOneof("data")).data_points)
            for resource in message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        )
