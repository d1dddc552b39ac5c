"""Answers of log reads: JSON, protobuf columns, and server-sent events.

In JSON, keys and values are base64, which any bytes can be, or text where they are UTF-8 (`Encoding`).
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np

from coordinator.api.log import log_parameters
from coordinator.log.follow import Row
from coordinator.log.headers import unpacked
from coordinator.parsing import json_walk
from proto import log_pb2
from shared.errors import BadData
from shared.log.headers import HeadedValue
from shared.messages.log_pages import Records
from shared.protobuf_fields import delimited_head

VALUE_BYTES_MAX = (1 << 32) - 1
"""More than any value has."""
_PAGES_FIELD = log_pb2.ScanResponse.PAGES_FIELD_NUMBER


class _Record(msgspec.Struct, omit_defaults=True):
    """`timeMs` is missing if it is unknown, and headers if there are none. The value of a `tombstone` is empty.
    `valueBytes`: the full length of a value that was shortened."""

    sequence: int
    key: bytes
    value: bytes
    timeMs: int = 0
    headers: dict[str, str] = {}
    contentType: str = ""
    tombstone: bool = False
    valueBytes: int = 0


class _ReadableRecord(msgspec.Struct, omit_defaults=True):
    """The key and the value, each in one of its forms."""

    sequence: int
    key: bytes | None = None
    keyText: str | None = None
    value: bytes | None = None
    text: str | None = None
    json: msgspec.Raw | None = None
    timeMs: int = 0
    headers: dict[str, str] = {}
    contentType: str = ""
    tombstone: bool = False
    valueBytes: int = 0


class Encoding(StrEnum):
    """How keys and values are written in JSON. `TEXT`: as `keyText` and `text`, or as base64 if they are not UTF-8.
    `JSON`: as `TEXT`, but a value that is valid JSON is written as it is."""

    BASE64 = "base64"
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Form:
    """How records are written in JSON. `value_bytes`: the limit to which longer values are shortened."""

    encoding: Encoding = Encoding.BASE64
    value_bytes: int = VALUE_BYTES_MAX

    @property
    def is_plain(self) -> bool:
        return self.encoding == Encoding.BASE64 and self.value_bytes == VALUE_BYTES_MAX


PLAIN = Form()
_encoder = msgspec.json.Encoder()
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)
_LINES_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")
_BRACKETS_UNCHECKED = 64
"""A value with fewer brackets than this is not nested deeply."""


def encoding(query: Mapping[str, str]) -> Encoding:
    """The parameter `encoding`. Raises BadData."""
    text = query.get("encoding", Encoding.BASE64)
    if text not in set(Encoding):
        raise BadData(f"parameter 'encoding' is {text!r}; it must be one of {', '.join(Encoding)}")
    return Encoding(text)


def form(query: Mapping[str, str]) -> Form:
    """The parameters `encoding` and `value_bytes`. Raises BadData."""
    return Form(encoding(query), log_parameters.whole(query, ("value_bytes",), VALUE_BYTES_MAX, 0, VALUE_BYTES_MAX))


def key_json(key: bytes, encoding: Encoding) -> dict[str, str]:
    """The member for a key in an object of an answer."""
    text = _text(key) if encoding != Encoding.BASE64 else None
    return {"key": base64.b64encode(key).decode()} if text is None else {"keyText": text}


def _text(octets: bytes) -> str | None:
    """The text of UTF-8 bytes; None if they are not UTF-8."""
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return None


def _beginning(octets: bytes) -> str | None:
    """As `_text`, for bytes that may end within a character, whose beginning is then left out."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(octets)
    except UnicodeDecodeError:
        return None


def _record(row: Row, form: Form) -> _Record | _ReadableRecord:
    sequence, key, value, time_ms = row
    headers: dict[str, str] = {}
    content_type, tombstone = "", False
    if isinstance(value, HeadedValue):
        (headers, content_type, tombstone), value = unpacked(value.headers), bytes(value)
    is_cut = len(value) > form.value_bytes
    length = len(value) if is_cut else 0
    value = value[: form.value_bytes]
    if form.encoding == Encoding.BASE64:
        return _Record(sequence, key, value, time_ms, headers, content_type, tombstone, length)
    record = _ReadableRecord(sequence, timeMs=time_ms, headers=headers, contentType=content_type, tombstone=tombstone)
    record.valueBytes = length
    record.keyText, record.text = _text(key), _beginning(value) if is_cut else _text(value)
    if record.keyText is None:
        record.key = key
    if record.text is None:
        record.value = value
    elif form.encoding == Encoding.JSON and not is_cut and _is_json(value):
        # A line break outside of strings is white space. It would end the line of an event.
        record.text, record.json = None, msgspec.Raw(value.translate(_LINES_TO_SPACES))
    return record


def _is_json(value: bytes) -> bool:
    """Whether UTF-8 text is one JSON value that is not nested more deeply than a body may be. Readers have limits as
    well."""
    try:
        _raw_decoder.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    if value.count(b"[") + value.count(b"{") < _BRACKETS_UNCHECKED:
        return True
    octets = np.frombuffer(value, np.uint8)
    return json_walk.past_value(octets, json_walk.past_space(octets, 0, len(octets)), len(octets)) >= 0


def json_records(rows: Sequence[Row], form: Form = PLAIN) -> bytes:
    """The records as JSON objects with commas between them, without the brackets of an array."""
    if form.is_plain:
        records = [_Record(*row) if type(row[2]) is bytes else _record(row, form) for row in rows]
        return _encoder.encode(records)[1:-1]
    return _encoder.encode([_record(row, form) for row in rows])[1:-1]


def json_end(following: int, log_start: int, warnings: Sequence[str], infos: Sequence[str] = ()) -> bytes:
    """The part of a scan's answer after the records."""
    text = f'],"nextSequence":{following},"logStartSequence":{log_start}'.encode()
    if warnings:
        text += b',"warnings":' + _encoder.encode(warnings)
    if infos:
        text += b',"infos":' + _encoder.encode(infos)
    return text + b"}"


JSON_START = b'{"status":"success","records":['


def event(row: Row, form: Form = PLAIN) -> bytes:
    """One record as a server-sent event, whose id is its sequence number."""
    return b"id: %d\ndata: %b\n\n" % (row[0], _encoder.encode(_record(row, form)))


def progress_event(position: int) -> bytes:
    """How far a search without a match has come: an event with an id only. A reader that reconnects resumes there."""
    return b": searching\nid: %d\n\n" % (position - 1)


def warning_event(text: str) -> bytes:
    """What is missing from a stream of events. It has no id: a reader that reconnects resumes after its last record."""
    return b"event: warning\ndata: %b\n\n" % _encoder.encode(text)


def protobuf_page(records: Records) -> list[bytes | bytearray | memoryview]:
    """A ScanResponse with one page, in pieces. The columns are sent as they came from the shards, unless a record has
    headers."""
    headers: list[bytes] = []
    if records.headed.any():
        values = records.value_list()
        headers = [value.headers if isinstance(value, HeadedValue) else b"" for value in values]
        records = Records.of(records.sequences, values, records.key_list(), records.times)
    columns = [
        (1, records.sequences.astype("<u8", copy=False).data.cast("B")),
        (2, records.value_lengths.astype("<u4", copy=False).data.cast("B")),
        (3, records.values),
        (4, records.key_lengths.astype("<u4", copy=False).data.cast("B")),
        (5, records.keys),
        (6, records.times.astype("<i8", copy=False).data.cast("B")),
        (7, np.fromiter(map(len, headers), "<u4", len(headers)).data.cast("B")),
        (8, b"".join(headers)),
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
