"""The log records of an OTLP request, as records of the log.

The key of a record is the name of its service, or another attribute of its resource. Its value is JSON: the fields of
the OTLP record, with plain values for attributes, and times as text.

A request that is sent again is not appended again: the hash of its body is the name of a producer
(`coordinator.log.producers`), which has exactly the parts of this request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from coordinator.headers.negotiation import JSON
from coordinator.log.columns import columns_of
from coordinator.log.headers import packed
from coordinator.log.records import Append
from coordinator.otlp import attributes, bodies, message_counts
from coordinator.otlp.refusals import Refusals
from shared.errors import BadData, TooLarge
from shared.messages.log import KEY_BYTES_MAX, PRODUCER_ANSWERS_MAX
from shared.settings import Settings

NO_SERVICE = "unknown_service"
"""The key of records whose resource does not have it."""
ITEMS = "log records"
VALUES_BYTES_MAX = 64 << 20
"""Total size of the values of one request."""
RECORDS_MAX = 100_000
"""Records of one request. Each becomes an object of some 150 bytes, however few bytes it has in the body."""
SCOPES_MAX = RESOURCES_MAX = 1 << 16
"""The same as of metrics (coordinator.otlp.survey). Each takes some 2 µs of interpreted code, even if it is empty."""
ATTRIBUTES_MAX = 1 << 19
"""Attributes of one request, with the members and elements of nested values. Each takes some 1 µs of interpreted code.
Usual ones take more than 16 bytes, so MESSAGE_BYTES_MAX is reached first."""
_LIMITS = (
    ("log records", message_counts.RECORDS, RECORDS_MAX),
    ("resources", message_counts.RESOURCES, RESOURCES_MAX),
    ("scopes", message_counts.SCOPES, SCOPES_MAX),
    ("attributes and elements of values", message_counts.ATTRIBUTES, ATTRIBUTES_MAX),
)
_HEADERS = packed({}, JSON, "")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class LogExport:
    """The appends of a request, in order, and what is refused of it."""

    parts: list[Append]
    refusals: Refusals

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def export_of(body: bytes, message: Any, settings: Settings) -> LogExport:
    """The records of an ExportLogsServiceRequest with this body. Raises TooLarge for more than PRODUCER_ANSWERS_MAX
    parts, and for more than VALUES_BYTES_MAX bytes of values."""
    refusals = Refusals()
    bytes_left = VALUES_BYTES_MAX
    pairs: list[tuple[bytes, bytes]] = []
    is_timed = True
    for resource_logs in message.resource_logs:
        resource = attributes.json_object(resource_logs.resource.attributes)
        key, resource_json = _key(resource.get(settings.otlp_log_key)), _encoded(resource)
        for scope_logs in resource_logs.scope_logs:
            scope_json = _encoded(_scope(scope_logs.scope))
            for record in scope_logs.log_records:
                value = orjson.dumps(_value(record, resource_json, scope_json))
                bytes_left -= len(value)
                if bytes_left < 0:
                    raise TooLarge(
                        f"the records have more than {VALUES_BYTES_MAX} bytes together as JSON, in which each has its "
                        "resource; send the request in smaller ones"
                    )
                problem = _problem(key, value, settings)
                if problem:
                    refusals.refuse(problem)
                    continue
                pairs.append((key, value))
                is_timed = is_timed and bool(record.time_unix_nano or record.observed_time_unix_nano)
    producer = "otlp/" + hashlib.sha256(body).hexdigest() if is_timed else ""
    parts = [_append(part, producer, number) for number, part in enumerate(_parts(pairs, settings))]
    if len(parts) > PRODUCER_ANSWERS_MAX:
        raise TooLarge(
            f"the request has {len(pairs)} records, which are {len(parts)} appends to the log; the limit is "
            f"{PRODUCER_ANSWERS_MAX}, send it in smaller ones"
        )
    return LogExport(parts, refusals)


def _append(part: list[tuple[bytes, bytes]], producer: str, number: int) -> Append:
    records = columns_of(
        [key for key, _ in part], [value for _, value in part], dict.fromkeys(range(len(part)), _HEADERS)
    )
    return Append(records, True, producer, number if producer else 0)


def _parts(pairs: list[tuple[bytes, bytes]], settings: Settings) -> Iterator[list[tuple[bytes, bytes]]]:
    """The records in parts that each fit into one append."""
    part: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in pairs:
        record_size = len(key) + len(value) + len(_HEADERS)
        if part and (len(part) == settings.log_records_max or size + record_size > settings.log_batch_bytes_max):
            yield part
            part, size = [], 0
        part.append((key, value))
        size += record_size
    if part:
        yield part


def _key(value: Any) -> bytes:
    if value is None or value == "":
        return NO_SERVICE.encode()
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


def _problem(key: bytes, value: bytes, settings: Settings) -> str:
    if len(key) > KEY_BYTES_MAX:
        return f"the attribute {settings.otlp_log_key!r} has {len(key)} bytes; a key has at most {KEY_BYTES_MAX}"
    limit = min(settings.log_record_bytes_max, settings.log_batch_bytes_max - len(key) - len(_HEADERS))
    if len(value) > limit:
        return f"a record has {len(value)} bytes as JSON; the limit is {limit}"
    return ""


def _scope(scope: Any) -> dict[str, Any]:
    fields = {"name": scope.name, "version": scope.version, "attributes": attributes.json_object(scope.attributes)}
    return {name: value for name, value in fields.items() if value}


def _encoded(fields: dict[str, Any]) -> orjson.Fragment | None:
    return orjson.Fragment(orjson.dumps(fields)) if fields else None


def _value(record: Any, resource: orjson.Fragment | None, scope: orjson.Fragment | None) -> dict[str, Any]:
    """The fields of the record that are set."""
    fields = {
        "time": _time(record.time_unix_nano),
        "observedTime": _time(record.observed_time_unix_nano),
        "severityNumber": record.severity_number,
        "severityText": record.severity_text,
        "eventName": record.event_name,
        "body": attributes.json_value(record.body),
        "attributes": attributes.json_object(record.attributes),
        "traceId": record.trace_id.hex(),
        "spanId": record.span_id.hex(),
        "flags": record.flags,
        "resource": resource,
        "scope": scope,
    }
    return {name: value for name, value in fields.items() if value or (name == "body" and value is not None)}


def _time(unix_ns: int) -> str:
    """A time in the form of RFC 3339, with nine decimals; "" for 0, which means that there is no time."""
    if not unix_ns:
        return ""
    seconds, ns = divmod(unix_ns, 1_000_000_000)
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{ns:09}Z"


def records_of(message: Any) -> Iterator[Any]:
    """All records of an ExportLogsServiceRequest."""
    for resource in message.resource_logs:
        for scope in resource.scope_logs:
            yield from scope.log_records


def check_counts(body: bytes) -> None:
    """Raise TooLarge for a protobuf body above one of the limits of this module, BadData for one that has a field that
    is not whole."""
    counts, is_whole = message_counts.counted(body, message_counts.LOGS_REQUEST)
    for name, place, limit in _LIMITS:
        if counts[place] > limit:
            raise TooLarge(f"the request has {counts[place]} {name}; the limit is {limit}, send it in smaller ones")
    if not is_whole:
        raise BadData(
            "the body is not a protobuf ExportLogsServiceRequest: a field is not whole, or a value is nested too deeply"
        )


def message_of_json(body: bytes) -> Any:
    return bodies.of_json(body, ExportLogsServiceRequest, records_of)


def message_of(body: bytes) -> Any:
    check_counts(body)
    return bodies.message_of(body, ExportLogsServiceRequest)
