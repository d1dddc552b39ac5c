"""Bodies of OTLP: gzip, JSON, and the answers."""

from __future__ import annotations

import gzip
import json
import time

import orjson
import pytest
from google.protobuf import json_format
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from coordinator.http import otlp_answers as answers
from coordinator.http.early_refusal import refusal
from coordinator.http.responses import error_answer
from coordinator.limits.request_kinds import OTLP_PATHS
from coordinator.otlp import bodies, exemplars, logs
from shared.errors import BadData, Overloaded, TooLarge
from tests.otlp_requests import T_NS, Request, rules_of, values

ZIPPED = gzip.compress(b"a" * 99, mtime=0)


def of_json(body: bytes) -> ExportMetricsServiceRequest:
    message = bodies.of_json(body, ExportMetricsServiceRequest, exemplars.all_of)
    assert isinstance(message, ExportMetricsServiceRequest)
    return message


def test_json_with_hexadecimal_ids_numbers_as_texts_and_unknown_fields() -> None:
    point = {
        "timeUnixNano": str(T_NS), "asInt": "3", "newField": 1,
        "exemplars": [{"asDouble": 1, "traceId": "0AF7651916CD43DD8448EB211C80319C", "spanId": "b7ad6b7169203331"}],
    }  # fmt: skip
    metric = {"name": "a", "sum": {"isMonotonic": True, "aggregationTemporality": 2, "dataPoints": [point]}}
    message = of_json(json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode())
    (exemplar,) = exemplars.all_of(message)
    assert exemplar.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert exemplar.span_id.hex() == "b7ad6b7169203331"
    assert values(message.SerializeToString(), rules_of()) == {"__name__=a_total": 3.0}


def test_json_is_the_same_as_protobuf() -> None:
    request = Request({"service.name": "s", "x": [1, {"a": 2.5}]}, "scope")
    request.gauge("g", float("nan"), {"a": b"\x00"})
    request.histogram("h", [1.0], [1, 2])
    assert of_json(json_format.MessageToJson(request.message).encode()) == request.message


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"1", b'{"resourceMetrics":1}', b'{"resourceMetrics":[1]}', b"{", b'"\xff"',
        b'{"resourceMetrics":[{"resource":{"attributes":[{"key":1}]}}]}',
        b'{"resourceMetrics":[{"resource":{"attributes":[{"key":"a","value":' + b'{"arrayValue":{"values":[' * 200
        + b"]}}" * 200 + b"}]}}]}",
        b"[" * 5000,
        b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":[{"exemplars":[{"traceId":"xyz"}]}]}}]}]}]}',
    ],
)  # fmt: skip
def test_what_is_no_json_of_a_request_is_bad_data(body: bytes) -> None:
    with pytest.raises(BadData):
        of_json(body)


def test_a_large_body_of_json_is_refused() -> None:
    with pytest.raises(TooLarge, match="Send application/x-protobuf"):
        of_json(b" " * (bodies.JSON_BYTES_MAX + 1))


def test_json_of_many_empty_objects_is_refused_before_anything_is_made_of_it() -> None:
    body = b'{"resourceMetrics":[' + b",".join([b"{}"] * bodies.JSON_BRACKETS_MAX) + b"]}"
    with pytest.raises(TooLarge, match="250002 objects and arrays; the limit is 250000"):
        of_json(body)


def test_the_brackets_in_texts_are_no_objects_and_arrays() -> None:
    text = orjson.dumps({"coordinates": [[1, 2]] * bodies.JSON_BRACKETS_MAX}).decode()
    line = orjson.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": text}}]}]}]})
    [record] = logs.message_of_json(line).resource_logs[0].scope_logs[0].log_records
    assert record.body.string_value == text


@pytest.mark.parametrize("text", [rb"\"", b"\\\\", b"\\", b"a"])
def test_a_text_that_does_not_end_is_looked_at_once(text: bytes) -> None:
    body = b'{"' + text * (1 << 20) + b"[" * (bodies.JSON_BRACKETS_MAX + 1)
    began_s = time.thread_time()
    with pytest.raises((BadData, TooLarge)):
        of_json(body)
    assert time.thread_time() - began_s < 2.0


def test_gzip_of_one_member_within_the_limit() -> None:
    body = b"abc" * 1000
    assert bodies.inflated(gzip.compress(body), 3000) == body
    with pytest.raises(TooLarge, match="3000 bytes; the limit is 2999"):
        bodies.inflated(gzip.compress(body), 2999)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"abc", b"x" * 40, ZIPPED[:-1], ZIPPED * 2, ZIPPED[:-4] + (98).to_bytes(4, "little"),
        ZIPPED[:-4] + b"\xff" * 4,
    ],
    ids=["empty", "short", "other", "cut", "two", "wrong size", "impossible size"],
)  # fmt: skip
def test_what_is_not_one_member_of_gzip_is_bad_data(raw: bytes) -> None:
    with pytest.raises(BadData, match="gzip"):
        bodies.inflated(raw, 1 << 20)


def test_answers_are_the_messages_of_the_protocol() -> None:
    assert answers.exported(0, "", "rejectedDataPoints", is_protobuf=True) == b""
    assert orjson.loads(answers.exported(0, "", "rejectedDataPoints", is_protobuf=False)) == {}
    for rejected in (0, 3, 1 << 20):
        encoded = answers.exported(rejected, "wrong: é", "rejectedDataPoints", is_protobuf=True)
        message = ExportMetricsServiceResponse.FromString(encoded)
        assert message.partial_success.rejected_data_points == rejected
        assert message.partial_success.error_message == "wrong: é"
        plain = answers.exported(rejected, "wrong: é", "rejectedDataPoints", is_protobuf=False)
        assert json_format.Parse(plain, ExportMetricsServiceResponse()) == message


def test_an_error_is_a_status_of_google_rpc() -> None:
    error = BadData("wrong: é")
    message = Status.FromString(answers.status(error, is_protobuf=True))
    assert (message.code, message.message) == (3, "wrong: é")
    assert json_format.Parse(answers.status(error), Status()) == message


@pytest.mark.parametrize("path", sorted(OTLP_PATHS))
def test_errors_that_no_handler_sees_are_a_status_too(path: str) -> None:
    answer = error_answer(path, Overloaded("wait"))
    assert (answer.status, json.loads(answer.body)) == (503, {"code": 14, "message": "wait"})
    assert answer.headers["Retry-After"]
    early = refusal(path, "wait", "id", b"")
    assert b"Retry-After: " in early and early.endswith(b'{"code":14,"message":"wait"}')
