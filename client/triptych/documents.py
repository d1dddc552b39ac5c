"""Documents with metadata as vectors with attributes, for the vector stores of LangChain and LlamaIndex.

Metadata that the service can store as attributes keep their names, so that filters find them. The rest (null, objects,
mixed lists, reserved names) stands as JSON in one attribute. An id of more than 64 bytes is stored as an attribute, and
its hash takes its place.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from triptych.hits import VECTOR, Vector

ID_BYTES_MAX = 64
ID = "_id"
REST = "_rest"
ATTRIBUTES_MAX = 240
"""Of a vector, beside those of this module; the service allows 256."""
ELEMENTS_MAX = 1024
TEXT_BYTES_MAX = 1 << 20
_COMPARISONS = {"$eq": "eq", "$ne": "neq", "$gt": "gt", "$gte": "gte", "$lt": "lt", "$lte": "lte"}
_CONDITIONS = frozenset(
    [
        "eq",
        "neq",
        "lt",
        "lte",
        "gt",
        "gte",
        "in",
        "exists",
        "and",
        "or",
        "not",
        "contains",
        "containsAny",
        "containsAll",
    ]  # the service's own
)


def stored_id(id: str) -> str:
    """The id itself, or for a longer one (or none) its SHA-256, which has 64 digits."""
    octets = id.encode()
    return id if 0 < len(octets) <= ID_BYTES_MAX else hashlib.sha256(octets).hexdigest()


def attributes_of(id: str, metadata: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that a document is stored with; `beside` are those that are not metadata. Raises TypeError for
    metadata that JSON does not have."""
    attributes: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    reserved = {VECTOR, ID, REST, *beside}
    for name, value in metadata.items():
        is_plain = name and name not in reserved and len(attributes) < ATTRIBUTES_MAX and _is_storable(value)
        (attributes if is_plain else rest)[name] = value
    attributes.update(beside)
    if rest:
        attributes[REST] = json.dumps(rest, ensure_ascii=False)
    if stored_id(id) != id:
        attributes[ID] = id
    return attributes


def metadata_of(vector: Vector, beside: Sequence[str]) -> dict[str, Any]:
    """The metadata of a document that was stored with `attributes_of`."""
    left_out = {ID, REST, *beside}
    metadata = {name: value for name, value in vector.attributes.items() if name not in left_out}
    if REST in vector.attributes:
        metadata.update(json.loads(vector.attributes[REST]))
    return metadata


def id_of(vector: Vector) -> str:
    return str(vector.attributes.get(ID, vector.id))


def _is_storable(value: Any) -> bool:
    """Whether the service stores the value as it is."""
    if isinstance(value, list):
        kinds = {type(element) for element in value}
        return (
            len(value) <= ELEMENTS_MAX
            and (len(kinds) <= 1 or kinds == {int, float})
            and list not in kinds
            and all(map(_is_storable, value))
            and sum(len(element) for element in value if isinstance(element, str)) * 4 <= TEXT_BYTES_MAX
        )
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str) and len(value.encode("utf-8", "replace")) <= TEXT_BYTES_MAX


def filter_of(filter: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The service's filter for one of its own, or for one as other stores have them: `{"colour": "red"}`,
    `{"colour": ["red", "blue"]}`, `{"year": {"$gte": 2020}}`, `{"$or": [filter, …]}`; several
    members must all hold. Raises ValueError."""
    if not filter:
        return None
    conditions = [_condition(name, operand) for name, operand in filter.items()]
    return conditions[0] if len(conditions) == 1 else {"and": conditions}


def _condition(name: str, operand: Any) -> dict[str, Any]:
    if name in _CONDITIONS and _is_own(name, operand):
        return {name: operand}
    if name in ("$and", "$or"):
        return {name[1:]: [filter_of(each) for each in operand]}
    if name == "$not":
        return {"not": filter_of(operand)}
    if name.startswith("$"):
        raise ValueError(f"the filter has {name!r}; it must be a field, $and, $or or $not")
    if isinstance(operand, (list, tuple)):
        return {"in": {"field": name, "values": list(operand)}}
    if not isinstance(operand, Mapping):
        return {"eq": {"field": name, "value": operand}}
    conditions = [_comparison(name, operator, value) for operator, value in operand.items()]
    return conditions[0] if len(conditions) == 1 else {"and": conditions}


def _is_own(name: str, operand: Any) -> bool:
    """A field may have the name of a condition."""
    if name in ("and", "or"):
        return isinstance(operand, Sequence) and all(isinstance(each, Mapping) for each in operand)
    return isinstance(operand, Mapping) and (name == "not" or "field" in operand)


def _comparison(field: str, operator: str, value: Any) -> dict[str, Any]:
    if operator in _COMPARISONS:
        return {_COMPARISONS[operator]: {"field": field, "value": value}}
    if operator in ("$in", "$nin"):
        within = {"in": {"field": field, "values": list(value)}}
        return within if operator == "$in" else {"not": within}
    if operator == "$exists":
        exists = {"exists": {"field": field}}
        return exists if value else {"not": exists}
    known: list[str] = [*_COMPARISONS, "$in", "$nin", "$exists"]
    raise ValueError(f"the filter of {field!r} has {operator!r}; it must be one of {', '.join(known)}")
