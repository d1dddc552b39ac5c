"""Documents with metadata as vectors with attributes, for the vector stores of LangChain and LlamaIndex.

Metadata that the service can store as attributes keep their names, so that filters find them. The rest (null, objects,
mixed lists, reserved names and long ones) stands as JSON in one attribute. An id of more than 64 bytes is stored as an
attribute, and its hash takes its place.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from triptych.hits import VECTOR, Vector

ID_BYTES_MAX = 64
NAME_BYTES_MAX = 256
ID = "_id"
REST = "_rest"
ATTRIBUTES_MAX = 240
"""Attributes of a vector beside those of this module; the service allows 256."""
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
EVERYTHING: Mapping[str, Any] = {"or": [{"exists": {"field": ID}}, {"not": {"exists": {"field": ID}}}]}
"""A filter that every vector satisfies. `joined` and `negated` keep it as it is, so that a delete can refuse it."""
NOTHING: Mapping[str, Any] = {"not": EVERYTHING}


def stored_id(id: str) -> str:
    """The id itself, or for a longer one (or none) its SHA-256, which has 64 digits."""
    octets = id.encode()
    return id if 0 < len(octets) <= ID_BYTES_MAX else hashlib.sha256(octets).hexdigest()


def attributes_of(id: str, metadata: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that a document is stored with; `beside` are those that are not metadata. Raises TypeError for
    metadata that JSON does not have, such as a name that is no text."""
    attributes: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    reserved = {VECTOR, ID, REST, *beside}
    for name, value in metadata.items():
        if not isinstance(name, str):
            raise TypeError(f"the metadata have the name {name!r}, which is {type(name).__name__}; it must be a str")
        is_name = 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX and name not in reserved
        is_plain = is_name and len(attributes) < ATTRIBUTES_MAX and _is_storable(value)
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
    """Whether the service stores the value unchanged."""
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
    members must all hold. Raises ValueError. None for an empty filter, and for one that has only empty ones."""
    if not filter:
        return None
    return joined("and", [_condition(name, operand) for name, operand in filter.items()])


def joined(operator: str, conditions: Iterable[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """The condition that all (`and`) or some (`or`) of these are satisfied. None is an empty filter, which does not
    count; the result is None if there are only empty ones."""
    counted = [condition for condition in conditions if condition is not None]
    decisive, indifferent = (NOTHING, EVERYTHING) if operator == "and" else (EVERYTHING, NOTHING)
    if decisive in counted:
        return decisive
    different = [condition for condition in counted if condition != indifferent]
    if not different:
        return indifferent if counted else None
    return different[0] if len(different) == 1 else {operator: different}


def negated(condition: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The negation of a condition; None for an empty filter."""
    if condition is None:
        return None
    return EVERYTHING if condition == NOTHING else {"not": condition}


def within(field: str, values: list[Any]) -> Mapping[str, Any]:
    """The condition that the field has one of these values."""
    return NOTHING if values == [] else {"in": {"field": field, "values": values}}


def _condition(name: str, operand: Any) -> Mapping[str, Any] | None:
    if name in _CONDITIONS and _is_own(name, operand):
        return {name: operand}
    if name == "$and":
        return joined("and", map(filter_of, operand))
    if name == "$or":
        if not operand:
            raise ValueError(f"the filter has {name!r} with an empty list; it must have a condition")
        return joined("or", [_not_empty(name, each) for each in operand])
    if name == "$not":
        return negated(_not_empty(name, operand))
    if name.startswith("$"):
        raise ValueError(f"the filter has {name!r}; it must be a field, $and, $or or $not")
    if isinstance(operand, (list, tuple)):
        return within(name, list(operand))
    if not isinstance(operand, Mapping):
        return {"eq": {"field": name, "value": operand}}
    if not operand:
        raise ValueError(f"the filter of {name!r} is empty; it must have an operator, such as $gte")
    return joined("and", [_comparison(name, operator, value) for operator, value in operand.items()])


def _not_empty(name: str, filter: Mapping[str, Any]) -> Mapping[str, Any]:
    """As `filter_of`. Raises ValueError for an empty filter: whether it means all or none is not clear here."""
    condition = filter_of(filter)
    if condition is None:
        raise ValueError(f"the filter has {name!r} with an empty filter; it must have a condition")
    return condition


def _is_own(name: str, operand: Any) -> bool:
    """A field may have the name of a condition."""
    if name in ("and", "or"):
        return isinstance(operand, Sequence) and all(isinstance(each, Mapping) for each in operand)
    return isinstance(operand, Mapping) and (name == "not" or "field" in operand)


def _comparison(field: str, operator: str, value: Any) -> Mapping[str, Any] | None:
    if operator in _COMPARISONS:
        return {_COMPARISONS[operator]: {"field": field, "value": value}}
    if operator in ("$in", "$nin"):
        membership = within(field, list(value))
        return membership if operator == "$in" else negated(membership)
    if operator == "$exists":
        exists = {"exists": {"field": field}}
        return exists if value else {"not": exists}
    known: list[str] = [*_COMPARISONS, "$in", "$nin", "$exists"]
    raise ValueError(f"the filter of {field!r} has {operator!r}; it must be one of {', '.join(known)}")
