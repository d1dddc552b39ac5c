"""Answers of log reads: JSON, protobuf columns, and server-sent events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coordinator.log.follow import Row
from proto import log_pb2
from shared.messages.log import Records
from shared.protobuf_fields import delimited_head

_PAGES_FIELD = log_pb2.ScanResponse.PAGES_FIELD_NUMBER


class _Record(msgspec.Struct):
    sequence: int
    key: bytes
    value: bytes


_encoder = msgspec.json.Encoder()


def json_records(rows: Sequence[Row]) -> bytes:
    """The records as JSON objects with commas between them, without the brackets of an array."""
    return _encoder.encode([_Record(*row) for row in rows])[1:-1]


def json_end(following: int, log_start: int, warnings: Sequence[str]) -> bytes:
    """What comes after the records in a scan's answer."""
    text = f'],"nextSequence":{following},"logStartSequence":{log_start}'.encode()
    if warnings:
        text += b',"warnings":' + _encoder.encode(warnings)
    return text + b"}"


JSON_START = b'{"status":"success","records":['


def event(row: Row) -> bytes:
    """One record as a server-sent event, whose id is its sequence number."""
    return b"id: %d\ndata: %b\n\n" % (row[0], _encoder.encode(_Record(*row)))


def warning_event(text: str) -> bytes:
    """What is missing from a stream of events. It has no id: a reader that reconnects resumes after its last record."""
    return b"event: warning\ndata: %b\n\n" % _encoder.encode(text)


def protobuf_page(records: Records) -> list[bytes | bytearray | memoryview]:
    """A ScanResponse with one page, in pieces: the columns go out as the shards sent them."""
    columns = [
        (1, records.sequences.astype("<u8", copy=False).data.cast("B")),
        (2, records.value_lengths.astype("<u4", copy=False).data.cast("B")),
        (3, records.values),
        (4, records.key_lengths.astype("<u4", copy=False).data.cast("B")),
        (5, records.keys),
    ]
    pieces: list[bytes | bytearray | memoryview] = []
    size = 0
    for number, column in columns:
        length = len(column)
        if length:
            head = delimited_head(number, length)
            pieces += [head, column]
            size += len(head) + length
    return [delimited_head(_PAGES_FIELD, size), *pieces]
