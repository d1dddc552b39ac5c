"""Schemas of JSON values, from the short form of the tables and from protobuf messages.

In the short form a name is a type or a schema of the document, `[shape]` is a list, `{name: shape}` an object, where
`name!` is always there, and `{string: shape}` an object with any names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

Schema = dict[str, Any]
SCHEMAS = "#/components/schemas/"
ANY_NAME = "string"

_TYPES: Mapping[str, Schema] = {
    "string": {"type": "string"},
    "strings": {"type": "array", "items": {"type": "string"}},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "object": {"type": "object"},
    "any": {},
    "text": {"type": "string"},
    "binary": {"type": "string", "format": "binary"},
    "time": {"type": "string", "description": "RFC 3339, or Unix seconds"},
    "duration": {"type": "string", "description": "Such as 5m or 1h30m, or seconds"},
}
_OF_FIELDS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_FLOAT: "number",
    FieldDescriptor.TYPE_DOUBLE: "number",
}
NULL = "NullValue"


def schema_of(shape: Any) -> Schema:
    """The schema that a short form stands for."""
    if isinstance(shape, str):
        return dict(_TYPES[shape]) if shape in _TYPES else {"$ref": SCHEMAS + shape}
    if isinstance(shape, list):
        (items,) = shape
        return {"type": "array", "items": schema_of(items)}
    if list(shape) == [ANY_NAME]:
        return {"type": "object", "additionalProperties": schema_of(shape[ANY_NAME])}
    return object_of({name.rstrip("!"): schema_of(own) for name, own in shape.items()}, names_required(shape))


def names_required(names: Mapping[str, Any] | list[str]) -> list[str]:
    return [name.rstrip("!") for name in names if name.endswith("!")]


def object_of(properties: Mapping[str, Schema], required: list[str]) -> Schema:
    schema: Schema = {"type": "object", "properties": dict(properties)}
    return {**schema, "required": required} if required else schema


def schemas_of_messages(root: Descriptor, prefix: str) -> dict[str, Schema]:
    """The message in the JSON form of protobuf, and all messages in it, by name. 64-bit integers may be texts there."""
    schemas: dict[str, Schema] = {}
    pending = [root]
    while pending:
        message = pending.pop()
        if prefix + message.name in schemas:
            continue
        properties = {}
        for field in message.fields:
            properties[field.json_name] = _of_field(field, prefix)
            own = field.message_type
            if own is not None and own.GetOptions().map_entry:
                own = own.fields_by_name["value"].message_type
            if own is not None:
                pending.append(own)
        schemas[prefix + message.name] = object_of(properties, [])
    return schemas


def _of_field(field: FieldDescriptor, prefix: str) -> Schema:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {
            "type": "object",
            "additionalProperties": _of_single(field.message_type.fields_by_name["value"], prefix),
        }
    single = _of_single(field, prefix)
    return {"type": "array", "items": single} if field.is_repeated else single


def _of_single(field: FieldDescriptor, prefix: str) -> Schema:
    if field.message_type is not None:
        return {"$ref": f"{SCHEMAS}{prefix}{field.message_type.name}"}
    if field.enum_type is not None:
        return {"type": "null"} if field.enum_type.name == NULL else {"type": "string"}
    return {"type": _OF_FIELDS.get(field.type, "integer")}
