"""Ids and attributes of vectors: the rules for them, and their packed form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vectors import (
    ARRAY_ELEMENTS_MAX,
    ATTRIBUTES_MAX,
    ID_BYTES_MAX,
    VECTOR_FIELD,
    Attribute,
    Value,
)

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
    """A single value, not an array. Raises BadData, whose text begins with `where`, for a type or size that is not
    allowed."""
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
    raise BadData(f"{where}: {_kind(value)} cannot be a value; it must be a string, an integer, a float or a bool")


def check_attribute(value: Any, where: str) -> Attribute:
    """An attribute's value, which may be an array. Raises BadData as `check_value` does."""
    if isinstance(value, list):
        return _check_array(value, where)
    if isinstance(value, dict):
        raise BadData(
            f"{where}: an object cannot be a value; it must be a string, an integer, a float, a bool, or an array "
            "of strings, of numbers or of bools"
        )
    return check_value(value, where)


def _check_array(values: list[Any], where: str) -> list[Value]:
    if len(values) > ARRAY_ELEMENTS_MAX:
        raise BadData(f"{where}: the array has {len(values)} elements; the limit is {ARRAY_ELEMENTS_MAX}")
    kinds = set(map(type, values))
    if not (kinds <= {str} or kinds <= {bool} or kinds <= {int, float}):
        first = type(values[0])
        place = next((n for n, value in enumerate(values) if type(value) not in _ELEMENT_KINDS.get(first, ())), 0)
        raise BadData(
            f"{where}: element {place} of the array is {_kind(values[place])}; "
            "the elements of an array must be all strings, all numbers or all bools"
        )
    if kinds == {str}:
        text_bytes = sum(len(value.encode()) for value in values)
        if text_bytes > TEXT_BYTES_MAX:
            raise BadData(f"{where}: the texts of the array have {text_bytes} bytes; the limit is {TEXT_BYTES_MAX}")
    elif kinds != {bool}:
        for place, value in enumerate(values):
            if not (INT64_MIN <= value <= INT64_MAX if type(value) is int else math.isfinite(value)):
                check_value(value, f"{where}, element {place}")
    return values


_ELEMENT_KINDS: dict[type, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int, float), float: (int, float)}
"""The type of an array's first element → the types of all its elements."""
_NAMES: dict[type, str] = {
    type(None): "null",
    list: "an array",
    dict: "an object",
    str: "a string",
    bool: "a bool",
    int: "an integer",
    float: "a float",
}


def _kind(value: Any) -> str:
    return _NAMES.get(type(value), type(value).__name__)


def pack_attributes(attributes: Mapping[str, Any], where: str) -> bytes:
    """The attributes (without the vector) as a msgpack map; b"" for none. One that is None is absent.

    Raises BadData.
    """
    if None in attributes.values():
        attributes = {name: value for name, value in attributes.items() if value is not None}
    if not attributes:
        return b""
    if len(attributes) > ATTRIBUTES_MAX:
        raise BadData(f"{where}: {len(attributes)} attributes; at most {ATTRIBUTES_MAX} are kept")
    for name, value in attributes.items():
        if not name or len(name.encode()) > NAME_BYTES_MAX:
            raise BadData(
                f"{where}: the name {shown(name)} has {len(name.encode())} bytes; it must have 1 to {NAME_BYTES_MAX}"
            )
        check_attribute(value, f"{where}.{name}")
    return msgspec.msgpack.encode(attributes)


def from_protobuf(value: vector_pb2.AttributeValue, where: str) -> Value | None:
    """A single value; None for null. Raises BadData when it is a vector, an array or missing."""
    kind = value.WhichOneof("value")
    if kind is None or kind in ("vector_value", "array_value"):
        wrong = {None: "no value", "vector_value": "a vector", "array_value": "an array"}[kind]
        raise BadData(f"{where}: {wrong}; it must be a string, an integer, a float or a bool")
    return None if kind == "null_value" else check_value(getattr(value, kind), where)


def attribute_from_protobuf(value: vector_pb2.AttributeValue, where: str) -> Attribute | None:
    """An attribute's value, which may be an array; None for null. Raises BadData as `from_protobuf` does."""
    if value.WhichOneof("value") != "array_value":
        return from_protobuf(value, where)
    elements = value.array_value.values
    if len(elements) > ARRAY_ELEMENTS_MAX:
        raise BadData(f"{where}: the array has {len(elements)} elements; the limit is {ARRAY_ELEMENTS_MAX}")
    return _check_array([_element(one) for one in elements], where)


def _element(value: vector_pb2.AttributeValue) -> Any:
    """A single value; the restrictions of elements are the same as in JSON."""
    kind = value.WhichOneof("value")
    if kind is None or kind == "null_value":
        return None
    return [] if kind in ("vector_value", "array_value") else getattr(value, kind)


def to_protobuf(value: Attribute, into: vector_pb2.AttributeValue) -> None:
    if isinstance(value, list):
        into.array_value.SetInParent()
        for element in value:
            to_protobuf(element, into.array_value.values.add())
    elif isinstance(value, str):
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
            name: attribute_from_protobuf(value, f"{where}.{name}")
            for name, value in vector.attributes.items()
            if name != VECTOR_FIELD
        },
        where,
    )
