"""Responses of OTLP/HTTP: the result of an export, and errors as google.rpc.Status.

Specification: https://opentelemetry.io/docs/specs/otlp/#otlphttp-response.
"""

from __future__ import annotations

import orjson

from shared.errors import TriptychError
from shared.protobuf_fields import delimited_head, varint

PROTOBUF = "application/x-protobuf"

_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 413: 8, 415: 3, 429: 8, 500: 13, 503: 14}
"""Numbers of google.rpc.Code, by HTTP status."""
_UNKNOWN = 2


def status(error: TriptychError, *, is_protobuf: bool = False) -> bytes:
    """A google.rpc.Status."""
    code, text = _CODES.get(error.status, _UNKNOWN), str(error)
    if not is_protobuf:
        return orjson.dumps({"code": code, "message": text})
    encoded = text.encode()
    return b"\x08" + varint(code) + delimited_head(2, len(encoded)) + encoded


def exported(rejected: int, text: str, name: str, *, is_protobuf: bool) -> bytes:
    """An Export…ServiceResponse. `name`: the JSON field with the number of rejected items. It has no partial success if
    everything was stored and there is nothing to report."""
    if not rejected and not text:
        return b"" if is_protobuf else b"{}"
    if not is_protobuf:
        # Protobuf's JSON has an int64 as text.
        return orjson.dumps({"partialSuccess": {name: str(rejected), "errorMessage": text}})
    encoded = text.encode()
    partial = (b"\x08" + varint(rejected) if rejected else b"") + delimited_head(2, len(encoded)) + encoded
    return delimited_head(1, len(partial)) + partial
