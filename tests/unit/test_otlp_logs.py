"""OTLP log records become records of the log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from coordinator.otlp import logs, message_counts
from shared.errors import BadData, TooLarge
from shared.log.headers import HeadedValue
from shared.protobuf_fields import varint
from shared.settings import Settings
from tests.otlp_requests import T_NS, any_value, attributes


def request(records: int = 1, **resource: Any) -> Any:
    message = ExportLogsServiceRequest()
    own = message.resource_logs.add()
    own.resource.attributes.extend(attributes({name.replace("_", "."): value for name, value in resource.items()}))
    scope = own.scope_logs.add()
    scope.scope.name = "lib"
    for i in range(records):
        scope.log_records.add(time_unix_nano=T_NS + i, body=any_value(f"text {i}"))
    return message


def batch(message: Any, **settings: Any) -> logs.LogExport:
    body = message.SerializeToString()
    return logs.export_of(body, message, Settings(**settings))


def values(made: logs.LogExport) -> list[dict[str, Any]]:
    return [json.loads(part.records.value(at)) for part in made.parts for at in range(len(part.records))]


def keys(made: logs.LogExport) -> list[bytes]:
    return [part.records.key(at) for part in made.parts for at in range(len(part.records))]


def test_a_record_is_json_with_all_that_it_says() -> None:
    message = request(0, service_name="cart", host={"cpus": [1, 2]})
    record = message.resource_logs[0].scope_logs[0].log_records.add(
        time_unix_nano=1_700_000_000_000_000_001, observed_time_unix_nano=1, severity_number=9, severity_text="INFO",
        body=any_value({"a": [1, None, b"x"]}), attributes=attributes({"k": 2.5}), flags=1, event_name="paid",
        trace_id=b"\xab" * 16, span_id=b"\x01" * 8,
    )  # fmt: skip
    assert record
    made = batch(message)
    assert keys(made) == [b"cart"]
    assert values(made) == [
        {
            "time": "2023-11-14T22:13:20.000000001Z", "observedTime": "1970-01-01T00:00:00.000000001Z",
            "severityNumber": 9, "severityText": "INFO", "eventName": "paid", "body": {"a": [1, None, "eA=="]},
            "attributes": {"k": 2.5}, "traceId": "ab" * 16, "spanId": "01" * 8, "flags": 1,
            "resource": {"service.name": "cart", "host": {"cpus": [1, 2]}}, "scope": {"name": "lib"},
        }
    ]  # fmt: skip
    assert isinstance(made.parts[0].records.value(0), HeadedValue)
    assert made.parts[0].durable


def test_the_largest_time_is_written() -> None:
    message = request(1)
    message.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = (1 << 64) - 1
    assert values(batch(message))[0]["time"] == "2554-07-21T23:34:33.709551615Z"


@pytest.mark.parametrize(
    ("resource", "setting", "key"),
    [
        ({}, "service.name", b"unknown_service"),
        ({"service_name": "a"}, "service.name", b"a"),
        ({"service_name": "a", "tenant": 7}, "tenant", b"7"),
        ({"tenant": ""}, "tenant", b"unknown_service"),
    ],
)
def test_the_key_is_an_attribute_of_the_resource(resource: dict[str, Any], setting: str, key: bytes) -> None:
    assert keys(batch(request(**resource), otlp_log_key=setting)) == [key]


def test_the_same_body_has_the_same_producer_and_parts_are_numbered() -> None:
    parts = batch(request(25), log_records_max=10).parts
    assert [(len(part.records), part.producer_seq) for part in parts] == [(10, 0), (10, 1), (5, 2)]
    assert len({part.producer for part in parts}) == 1
    assert batch(request(25)).parts[0].producer == parts[0].producer != batch(request(24)).parts[0].producer


def test_records_without_a_time_may_be_the_same_and_have_no_producer() -> None:
    message = request(2)
    message.resource_logs[0].scope_logs[0].log_records[1].time_unix_nano = 0
    assert batch(message).parts[0].producer == ""


def test_bounds() -> None:
    with pytest.raises(TooLarge, match="10 appends to the log; the limit is 8"):
        batch(request(10), log_records_max=1)
    made = batch(request(3), log_batch_bytes_max=250)
    assert [len(part.records) for part in made.parts] == [2, 1]
    made = batch(request(2, service_name="s" * 70_000))
    assert (made.refusals.count, made.parts) == (2, [])
    assert "has 70000 bytes; a key has at most 65535" in made.refusals.message("log records")
    made = batch(request(2), log_record_bytes_max=10)
    assert made.refusals.count == 2


def test_many_records_and_a_large_resource_in_each_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    many = ExportLogsServiceRequest()
    for _ in range(2):
        scope = many.resource_logs.add().scope_logs.add()
        for _ in range(51_000):
            scope.log_records.add()
    with pytest.raises(TooLarge, match="102000 log records; the limit is 100000"):
        logs.message_of(many.SerializeToString())
    with pytest.raises(TooLarge, match="more than 67108864 bytes together as JSON"):
        batch(request(200, text="x" * 500_000))
    assert len(list(logs.records_of(logs.message_of(request(7).SerializeToString())))) == 7


def delimited(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + varint(len(content)) + content


def of_record(fields: bytes) -> bytes:
    """A request with one record that has these fields."""
    return delimited(0x0A, delimited(0x12, delimited(0x12, fields)))


def of_resource(fields: bytes) -> bytes:
    return delimited(0x0A, delimited(0x0A, fields))


EMPTY = {
    "record": lambda count: of_record(b"\x32\x00" * count),
    "resource": lambda count: of_resource(b"\x0a\x00" * count),
    "scope": lambda count: delimited(0x0A, delimited(0x12, delimited(0x0A, b"\x1a\x00" * count))),
    "list": lambda count: of_record(delimited(0x2A, delimited(0x2A, b"\x0a\x00" * count))),
    "map": lambda count: of_record(delimited(0x2A, delimited(0x32, b"\x0a\x00" * count))),
    "in an attribute": lambda count: of_record(delimited(0x32, delimited(0x12, delimited(0x2A, b"\x0a\x00" * count)))),
    "entity": lambda count: of_resource(b"\x1a\x00" * count),
    "entity keys": lambda count: of_resource(delimited(0x1A, b"\x1a\x00" * count)),
    "overlong tags": lambda count: of_record(b"\xb2\x00\x00" * count),
}


@pytest.mark.parametrize("place", EMPTY)
def test_a_body_has_few_attributes_however_little_they_take(place: str) -> None:
    logs.message_of(EMPTY[place](1000))
    with pytest.raises(TooLarge, match=r"has 52\d{4} attributes and elements of values; the limit is 524288"):
        logs.message_of(EMPTY[place](logs.ATTRIBUTES_MAX + 1))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\x0a\x00" * ((1 << 16) + 1), "65537 resources; the limit is 65536"),
        (delimited(0x0A, b"\x12\x00" * ((1 << 16) + 1)), "65537 scopes; the limit is 65536"),
    ],
)
def test_a_body_has_few_resources_and_scopes_even_if_they_are_empty(body: bytes, what: str) -> None:
    with pytest.raises(TooLarge, match=what):
        logs.message_of(body)


def test_fields_that_the_count_cannot_read_are_refused_before_the_rest_is() -> None:
    group = b"\x0b\x0c"  # the protobuf library skips it, as a field that it does not know
    many = of_record(b"\x32\x00" * 10)
    assert len(ExportLogsServiceRequest.FromString(group + many).resource_logs) == 1
    for body in (group + many, of_record(group + b"\x32\x00"), many[:-1]):
        with pytest.raises(BadData, match="not a protobuf ExportLogsServiceRequest: a field is not whole"):
            logs.message_of(body)
    deep = b""
    for _ in range(300):
        deep = delimited(0x2A, delimited(0x0A, deep))
    with pytest.raises(BadData, match="nested too deeply"):
        logs.message_of(of_record(delimited(0x2A, deep)))


def test_all_parts_of_a_usual_request_are_counted() -> None:
    message = request(3, service_name="shop")
    message.resource_logs[0].scope_logs[0].log_records[0].attributes.extend(
        attributes({"a": 1, "b": ["x", "y"], "c": {"d": 1.5}})
    )
    counts, is_whole = message_counts.counted(message.SerializeToString(), message_counts.LOGS_REQUEST)
    assert is_whole
    assert counts == [3, 1, 1, 1 + 3 + 2 + 1]


def test_no_records_are_no_parts() -> None:
    assert batch(ExportLogsServiceRequest()).parts == []
