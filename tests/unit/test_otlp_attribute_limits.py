"""Attributes of OTLP metrics that take next to no bytes: how many of them a request may have, and what they cost."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from coordinator.otlp import attributes as otlp_attributes
from coordinator.otlp import message_counts, metrics, survey
from coordinator.otlp.known_sets import KnownSets
from shared.errors import TooLarge
from tests.otlp_requests import T_NS, Request, attributes, prepared, rules_of

RULES = rules_of()
NESTED = {"a": 1, "b": ["x", "y"], "c": {"d": [True]}}
NESTED_COUNT = 3 + 2 + 1 + 1


def filled(message: Any, *fields: str) -> Message:
    """The message with NESTED in these fields, each of attributes or of messages that have them."""
    for field in fields:
        repeated = getattr(message, field)
        if field.endswith("attributes"):
            repeated.extend(attributes(NESTED))
        else:
            repeated.add().filtered_attributes.extend(attributes(NESTED))
    assert isinstance(message, Message)
    return message


@pytest.mark.parametrize(
    ("message", "kind", "count"),
    [
        (filled(Resource(), "attributes"), message_counts.RESOURCE, NESTED_COUNT),
        (filled(InstrumentationScope(name="s"), "attributes"), message_counts.SCOPE, NESTED_COUNT),
        (
            filled(metrics_pb2.NumberDataPoint(as_int=1), "attributes", "exemplars"),
            message_counts.NUMBER,
            2 * NESTED_COUNT,
        ),
        (
            filled(metrics_pb2.HistogramDataPoint(bucket_counts=[1, 2]), "attributes", "exemplars"),
            message_counts.HISTOGRAM,
            2 * NESTED_COUNT,
        ),
        (
            filled(metrics_pb2.ExponentialHistogramDataPoint(scale=3), "attributes", "exemplars"),
            message_counts.EXPONENTIAL,
            2 * NESTED_COUNT,
        ),
        (
            filled(
                metrics_pb2.SummaryDataPoint(quantile_values=[metrics_pb2.SummaryDataPoint.ValueAtQuantile()] * 2),
                "attributes",
            ),
            message_counts.SUMMARY,
            NESTED_COUNT + 2,
        ),
    ],
)
def test_the_attributes_of_every_kind_of_message_are_counted(message: Message, kind: int, count: int) -> None:
    assert message_counts.counted(message.SerializeToString(), kind) == ([0, 0, 0, count], True)


def test_the_attributes_that_python_code_reads_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request({"service.name": "s", "r": 1}, "scope")
    for n in range(5):
        request.gauge("g", 1.0, {"i": n, "j": ["x"]})
    monkeypatch.setattr(metrics, "ATTRIBUTES_MAX", 2 + 5 * 3)
    known = prepared(request.bytes(), RULES)
    assert known.refusals.count == 0
    monkeypatch.setattr(metrics, "ATTRIBUTES_MAX", 2 + 5 * 3 - 1)
    with pytest.raises(TooLarge, match="more than 16 attributes and elements of values in resources, scopes and new"):
        prepared(request.bytes(), RULES)


def test_a_point_with_a_field_that_the_count_cannot_read_is_refused() -> None:
    request = Request()
    request.gauge("g", 1.0)
    value = b"\x0a\x05\x0a\x01k\x13\x14"  # an attribute with a group, which the protobuf library skips
    request.resource.resource.MergeFromString(value)
    point = request.scope.metrics[0].gauge.data_points[0]
    assert point.time_unix_nano == T_NS
    ready = prepared(request.bytes(), RULES)
    assert ready.refusals.count == 1
    assert "its resource is not valid: a field is not whole" in ready.refusals.message("data points")


def test_many_attributes_of_one_name_are_joined_in_linear_time() -> None:
    began_s = time.thread_time()
    joined = otlp_attributes.joined([("a", "")] * 300_000)
    assert time.thread_time() - began_s < 0.5
    assert joined == {"a": ";" * 299_999}


def test_few_long_items_are_many_steps_of_python_code() -> None:
    """Such a request is not read on the event loop, however few points it has."""

    def steps(resource: int = 0, scope: int = 0, point: int = 0, exemplar: int = 0) -> int:
        request = Request()
        own = request.gauge("g", 1.0)
        request.resource.resource.attributes.extend([KeyValue()] * resource)
        request.scope.scope.attributes.extend([KeyValue()] * scope)
        own.attributes.extend([KeyValue()] * point)
        if exemplar:
            own.exemplars.add(as_int=1).filtered_attributes.extend([KeyValue()] * exemplar)
        return survey.survey(request.bytes(), KnownSets(1 << 20), ()).steps

    assert 0 < steps() < 10
    assert steps(resource=10_000) > 300
    assert steps(scope=10_000) > 300
    assert steps(point=10_000) > 300
    assert steps(exemplar=10_000) > 300
