"""Ids and attributes of vectors: which are allowed, and their packed form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vectors import ID_BYTES_MAX, VECTOR_FIELD, Value

ATTRIBUTES_MAX = 256
NAME_BYTES_MAX = 256
TEXT_BYTES_MAX = 1 << 20
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
SHOWN_MAX = 80


def shown(value: Any) -> str:
    """A value as error messages show it, cut to SHOWN_MAX characters."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"


def id_bytes(name: str, field: str) -> bytes:
    """The id in UTF-8. Raises BadData that names the field and the id."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise BadData(f"{field}: the id {shown(name)} is not UTF-8 text") from None
    if not encoded:
        raise BadData(f"{field}: an id is empty; it must have 1 to {ID_BYTES_MAX} bytes of UTF-8")
    if len(encoded) > ID_BYTES_MAX:
        raise BadData(
            f"{field}: the id {shown(name)} has {len(encoded)} bytes; it must have 1 to {ID_BYTES_MAX} bytes of UTF-8"
        )
    return encoded


def check_value(value: Any, where: str) -> Value:
    """The attribute's value. Raises BadData, beginning with `where`, for a type or size that is not allowed."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if len(value) * 4 > TEXT_BYTES_MAX and len(value.encode()) > TEXT_BYTES_MAX:
            raise BadData(f"{where}: the text has {len(value.encode())} bytes; the limit is {TEXT_BYTES_MAX}")
        return value
    if isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            raise BadData(f"{where}: {shown(value)} does not fit a 64-bit integer")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadData(f"{where}: {value} is not a finite number")
        return value
    kind = {type(None): "null", list: "an array", dict: "an object"}.get(type(value), type(value).__name__)
    raise BadData(f"{where}: {kind} cannot be a value; it must be a string, an integer, a float or a bool")


def pack_attributes(attributes: Mapping[str, Any], where: str) -> bytes:
    """The attributes (without the vector) as a msgpack map; b"" for none. Raises BadData."""
    if not attributes:
        return b""
    if len(attributes) > ATTRIBUTES_MAX:
        raise BadData(f"{where}: {len(attributes)} attributes; at most {ATTRIBUTES_MAX} are kept")
    for name, value in attributes.items():
        if not name or len(name.encode()) > NAME_BYTES_MAX:
            raise BadData(
                f"{where}: the name {shown(name)} has {len(name.encode())} bytes; it must have 1 to {NAME_BYTES_MAX}"
            )
        check_value(value, f"{where}.{name}")
    return msgspec.msgpack.encode(attributes)


def from_protobuf(value: vector_pb2.AttributeValue, where: str) -> Value:
    """The attribute's value. Raises BadData when it is a vector or missing."""
    kind = value.WhichOneof("value")
    if kind is None or kind == "vector_value":
        raise BadData(
            f"{where}: {'a vector' if kind else 'no value'}; it must be a string, an integer, a float or a bool"
        )
    return check_value(getattr(value, kind), where)


def to_protobuf(value: Value, into: vector_pb2.AttributeValue) -> None:
    if isinstance(value, str):
        into.string_value = value
    elif isinstance(value, bool):
        into.bool_value = value
    elif isinstance(value, int):
        into.int64_value = value
    else:
        into.float64_value = value


def protobuf_attributes(vector: vector_pb2.Vector, where: str) -> bytes:
    return pack_attributes(
        {
            name: from_protobuf(value, f"{where}.{name}")
            for name, value in vector.attributes.items()
            if name != VECTOR_FIELD
        },
        where,
    )
