"""Bodies of OTLP requests as protobuf messages: decompressed, or converted from JSON.

Encodings: https://opentelemetry.io/docs/specs/otlp/#otlphttp-request, and for JSON
https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import orjson
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from shared.errors import BadData, TooLarge

JSON_BYTES_MAX = 4 << 20
"""Longest JSON body. Python code decodes it, at some 70 µs a data point, to objects of up to 70 times its bytes."""
JSON_BRACKETS_MAX = 250_000
"""Most objects and arrays of a JSON body. Those of attributes take at least 17 bytes each, so a valid body never has so
many. A body of only empty ones would take six seconds of Python code."""
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A JSON string. An unterminated one extends to the end of the body, so that no part is scanned twice."""
MESSAGE_BYTES_MAX = 8 << 20
"""Longest body that the protobuf library decodes: an attribute of two bytes becomes an object of 50."""
DEFLATE_RATIO_MAX = 1032
"""Deflate's highest compression ratio: a body that announces a larger one is invalid."""
_GZIP_BYTES_MIN = 18
_GZIP_WBITS = 31


def inflated_size(raw: bytes) -> int:
    """The decompressed size that a gzip body announces (RFC 1952, ISIZE). Raises BadData if it is no gzip."""
    size = int.from_bytes(raw[-4:], "little")
    if len(raw) < _GZIP_BYTES_MIN or raw[:2] != b"\x1f\x8b" or size > DEFLATE_RATIO_MAX * len(raw):
        raise BadData(f"the body of {len(raw)} bytes is not gzip, as its Content-Encoding says")
    return size


def inflated(raw: bytes, bytes_max: int) -> bytes:
    """The content of one gzip member. Raises TooLarge above the limit, BadData if it is no gzip member."""
    size = inflated_size(raw)
    if size > bytes_max:
        raise TooLarge(f"the body decompresses to {size} bytes; the limit is {bytes_max}")
    member = zlib.decompressobj(_GZIP_WBITS)
    try:
        body = member.decompress(raw, size + 1)
    except zlib.error as error:
        raise BadData(f"the body is not gzip, as its Content-Encoding says: {error}") from error
    if len(body) != size or not member.eof or member.unused_data:
        raise BadData(f"the body is not one member of gzip: it announces {size} bytes and holds others")
    return body


def of_json(body: bytes, kind: Any, with_ids: Callable[[Any], Iterator[Any]]) -> Any:
    """The message in a JSON body. `with_ids` yields the messages in it that have a `trace_id` and a `span_id`, which
    OTLP writes in hexadecimal. Raises BadData, TooLarge."""
    if len(body) > JSON_BYTES_MAX:
        raise TooLarge(
            f"the body of JSON has {len(body)} bytes; the limit is {JSON_BYTES_MAX}. Send application/x-protobuf, "
            "or smaller ones"
        )
    brackets = _brackets(body)
    if brackets > JSON_BRACKETS_MAX:  # count without strings, since the texts of logs may have as many
        brackets = _brackets(_TEXT.sub(b"", body))
    if brackets > JSON_BRACKETS_MAX:
        raise TooLarge(
            f"the body of JSON has {brackets} objects and arrays; the limit is {JSON_BRACKETS_MAX}. Send "
            "application/x-protobuf, or smaller ones"
        )
    try:
        plain = orjson.loads(body)
        if not isinstance(plain, dict):
            raise ValueError("it is no object")
        message = json_format.ParseDict(plain, kind(), ignore_unknown_fields=True)
    except (orjson.JSONDecodeError, json_format.ParseError, ValueError, TypeError, AttributeError) as error:
        raise BadData(f"the body is not a {kind.DESCRIPTOR.name} in JSON: {error}") from None
    except RecursionError:
        raise BadData(f"the body is not a {kind.DESCRIPTOR.name} in JSON: it is nested too deeply") from None
    for identified in with_ids(message):
        identified.trace_id, identified.span_id = (
            _from_hex(identified.trace_id, "traceId"),
            _from_hex(identified.span_id, "spanId"),
        )
    return message


def _brackets(body: bytes) -> int:
    return body.count(b"{") + body.count(b"[")


def _from_hex(decoded: bytes, name: str) -> bytes:
    """The bytes of hexadecimal digits that were decoded as base64."""
    digits = b64encode(decoded).decode()
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise BadData(f"a {name} is not in hexadecimal digits") from None


def message_of(body: bytes, kind: Any) -> Any:
    """The message in a protobuf body. Raises BadData, and TooLarge above MESSAGE_BYTES_MAX."""
    if len(body) > MESSAGE_BYTES_MAX:
        raise TooLarge(f"the body has {len(body)} bytes; the limit of such is {MESSAGE_BYTES_MAX}, send smaller ones")
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise BadData(f"the body is not a protobuf {kind.DESCRIPTOR.name}: {error}") from None


def rewritten(body: bytes, kind: Any) -> bytes:
    """The body as the protobuf library writes it: each singular field once, lists packed, and no unknown fields."""
    message = message_of(body, kind)
    message.DiscardUnknownFields()
    return bytes(message.SerializeToString())
