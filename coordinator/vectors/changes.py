"""Requests that change vectors by id or by filter: deletes and updates of attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.parsing.large_bodies import SLICED_BYTES_MIN, LargeObject
from coordinator.vectors import filters
from coordinator.vectors.decode import IDS_MAX, check_id_count, check_ids, decode_json, texts_of
from coordinator.vectors.decode_protobuf import ids_of
from coordinator.vectors.json_attributes import plain_value
from coordinator.vectors.scroll import RAW_FILTER, filter_of
from coordinator.vectors.values import ATTRIBUTES_MAX, attribute_from_protobuf, pack_attributes, shown
from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vectors import VECTOR_FIELD, Condition

REST_BYTES_MAX = 3 << 19
"""Bytes of a request beside its ids: its filter, and the attributes that it sets."""


@dataclass(slots=True)
class ChangeRequest:
    """The vectors to change: those with these ids, or those that satisfy the filter; one of the two is None. In an
    update, `set` is a packed map and `unset` names attributes; setting an attribute to null unsets it."""

    collection: str
    ids: list[bytes] | None
    filter: Condition | None
    set: bytes = b""
    unset: tuple[str, ...] = ()


class _Delete(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str] | msgspec.UnsetType = msgspec.UNSET
    collection: str = ""
    filter: RAW_FILTER = msgspec.UNSET


class _Update(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str] | msgspec.UnsetType = msgspec.UNSET
    collection: str = ""
    filter: RAW_FILTER = msgspec.UNSET
    set: dict[str, msgspec.Raw] = {}
    unset: list[str] = []


def delete_from_json(body: bytes) -> ChangeRequest:
    """Raises BadData, TooLarge."""
    request, ids = _decoded(body, _Delete)
    return _selecting(request.collection, ids, filter_of(request.filter), "a delete")


def update_from_json(body: bytes) -> ChangeRequest:
    """Raises BadData, TooLarge."""
    request, ids = _decoded(body, _Update)
    change = _selecting(request.collection, ids, filter_of(request.filter), "an update")
    try:
        values = {name: plain_value(raw, f"set.{name}") for name, raw in request.set.items()}
    except UnicodeDecodeError:
        raise BadData("set: a text is not UTF-8") from None
    return _with_attributes(change, values, request.unset)


def _decoded(body: bytes, kind: type[Any]) -> tuple[Any, list[str] | None]:
    """(the request, without its ids if it is large; its ids)."""
    if len(body) < SLICED_BYTES_MIN:
        request = decode_json(body, kind)
        return request, None if request.ids is msgspec.UNSET else request.ids
    large = LargeObject(body, {"ids": IDS_MAX}, REST_BYTES_MAX)
    return decode_json(large.rest, kind), texts_of(large, "ids", check_id_count)


def delete_from_protobuf(body: bytes) -> ChangeRequest:
    """Raises BadData, TooLarge."""
    request, ids = ids_of(body, vector_pb2.DeleteRequest, check_id_count, REST_BYTES_MAX)
    # Without ids and filter it is a delete of no vectors, which such a message always was.
    condition = filters.from_protobuf_filter(request.filter) if request.HasField("filter") else None
    return _selecting(request.collection, ids if ids or condition is None else None, condition, "a delete")


def update_from_protobuf(body: bytes) -> ChangeRequest:
    """Raises BadData, TooLarge."""
    request, ids = ids_of(body, vector_pb2.UpdateRequest, check_id_count, REST_BYTES_MAX)
    condition = filters.from_protobuf_filter(request.filter) if request.HasField("filter") else None
    change = _selecting(request.collection, ids if ids or condition is None else None, condition, "an update")
    values = {
        name: None if name == VECTOR_FIELD else attribute_from_protobuf(value, f"set.{name}")
        for name, value in request.set.items()
    }
    return _with_attributes(change, values, request.unset)


def _selecting(collection: str, ids: Sequence[str] | None, condition: Condition | None, what: str) -> ChangeRequest:
    if ids is not None and condition is not None:
        raise BadData(f"ids and filter are both given; {what} has one of them")
    if ids is None and condition is None:
        raise BadData(f"ids and filter are missing; {what} has one of them")
    return ChangeRequest(collection, None if ids is None else check_ids(ids), condition)


def _with_attributes(change: ChangeRequest, values: Mapping[str, Any], unset: Sequence[str]) -> ChangeRequest:
    if VECTOR_FIELD in values or VECTOR_FIELD in unset:
        raise BadData(f"{VECTOR_FIELD!r} is the vector, which an update cannot change; write the vector anew")
    if not values and not unset:
        raise BadData("set and unset are missing or empty; an update has at least one attribute to set or unset")
    for name in unset:
        if name in values:
            raise BadData(f"the attribute {shown(name)} is in set and in unset; it must be in one of them")
    nulls = [name for name, value in values.items() if value is None]
    change.set = pack_attributes({name: value for name, value in values.items() if value is not None}, "set")
    change.unset = (*unset, *nulls)
    if len(change.unset) > ATTRIBUTES_MAX:
        raise BadData(f"{len(change.unset)} attributes are unset; at most {ATTRIBUTES_MAX} are allowed")
    return change
