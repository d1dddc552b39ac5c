"""Decodes bodies of vector requests. A write becomes columns, which are checked whole before anything is applied.

JSON is ProtoJSON with attributes flattened (`{"vector": […], "colour": "red"}`); field names are in camelCase or as in
the .proto. Binary protobuf is `proto/vector.proto`. Every error is a BadData or TooLarge that names the vector and
field.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from coordinator.vectors.numbers import Buffer, find_unusable, parse_arrays
from coordinator.vectors.values import id_bytes, pack_attributes, protobuf_attributes, shown
from coordinator.vectors.walk import walk_write
from proto import vector_pb2
from shared.errors import BadData, TooLarge
from shared.messages.vectors import DIMENSION_MAX, K_MAX, VECTOR_FIELD, Collection, Floats

VECTORS_MAX = 10_000
IDS_MAX = 100_000
DIAGNOSED_BYTES_MAX = 4 << 20  # largest invalid body that is decoded again, slowly, to locate the error

T = TypeVar("T")


@dataclass(slots=True)
class Upserts:
    """Vectors to write: `flat` holds their components one vector after the other, `counts[i]` of them for `ids[i]`;
    `attributes[i]` is packed."""

    collection: str
    ids: list[bytes]
    flat: Floats
    counts: NDArray[np.int64]
    attributes: list[bytes]

    def label(self, place: int) -> str:
        return f"upsertVectors: vector {shown(self.ids[place].decode())}, field attributes.{VECTOR_FIELD}"

    def dimension(self) -> int:
        """Number of components of the first vector. Raises BadData if it is not a valid dimension."""
        count = int(self.counts[0])
        if not 1 <= count <= DIMENSION_MAX:
            raise BadData(f"{self.label(0)} has {count} components; it must have 1 to {DIMENSION_MAX}")
        return count

    def matrix(self, collection: Collection) -> Floats:
        """float32[n, dimension]. Raises BadData for a vector of another dimension, not finite, or zero under cosine."""
        dimension = collection.dimension
        wrong = np.flatnonzero(self.counts != dimension)
        if len(wrong):
            place = int(wrong[0])
            raise BadData(
                f"{self.label(place)} has {int(self.counts[place])} components; "
                f"the dimension of the collection {collection.name!r} is {dimension}"
            )
        table = self.flat.reshape(len(self.ids), dimension)
        check_components(table, collection.metric, self.label)
        return table

    def last_wins(self, table: Floats) -> tuple[list[bytes], Floats, list[bytes]]:
        """(ids, vectors, attributes) with each id once: its last occurrence counts."""
        last_places = {name: place for place, name in enumerate(self.ids)}
        if len(last_places) == len(self.ids):
            return self.ids, table, self.attributes
        places = list(last_places.values())
        return list(last_places), table[places], [self.attributes[place] for place in places]


def check_components(table: Floats, metric: str, label: Any) -> None:
    """Raises BadData for components of which no distance can be computed; `label(row)` names the vector."""
    wrong = find_unusable(table, lengths_matter=metric == "cosine")
    if wrong is None:
        return
    row, component = wrong
    if component < 0:
        raise BadData(f"{label(row)} is all zeros, which has no direction to compare under cosine")
    raise BadData(f"{label(row)}: component {component} is not a finite 32-bit float (NaN, infinite or past 3.4e38)")


# JSON


class _Vector(msgspec.Struct, forbid_unknown_fields=True):
    id: str = ""
    attributes: dict[str, msgspec.Raw] = {}


class _Write(msgspec.Struct, forbid_unknown_fields=True):
    upsertVectors: list[_Vector]
    collection: str = ""


class _WriteProtoNames(msgspec.Struct, forbid_unknown_fields=True):
    upsert_vectors: list[_Vector]
    collection: str = ""


class _Ids(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]
    collection: str = ""


class _Get(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]
    includeFields: list[str] | None = None
    include_fields: list[str] | None = None
    collection: str = ""


class CollectionSettings(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of a new collection; None means the service's own setting."""

    dimension: int
    metric: str | None = None
    storage: str | None = None
    textFields: list[str] = []


def decode_json(body: Buffer, kind: type[T]) -> T:
    """The body as a `kind`. Raises BadData that says where the body is not valid."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise BadData(f"the body is not right: {_plain(error)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadData(f"the body is not valid JSON: {_plain(error)}{_not_a_number(bytes(body))}") from error
    except RecursionError:
        raise BadData("the body is nested too deeply") from None


def _plain(error: Exception) -> str:
    return str(error).replace("`", "'").replace(" - at '$.", " - at '").replace(" - at '$'", "")


def _not_a_number(body: bytes) -> str:
    """Text that names the field with a NaN or Infinity, which are not JSON, but which Python's encoder writes; "" when
    there is none."""
    if len(body) > DIAGNOSED_BYTES_MAX:
        return ""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    vectors = content.get("upsertVectors", content.get("upsert_vectors")) if isinstance(content, dict) else None
    if isinstance(vectors, list):
        for entry in vectors:
            attributes = entry.get("attributes") if isinstance(entry, dict) else None
            for name, value in attributes.items() if isinstance(attributes, dict) else ():
                if _has_not_a_number(value):
                    return (
                        f"; vector {shown(entry.get('id'))}, field attributes.{name}: NaN and Infinity are not allowed"
                    )
    elif isinstance(content, dict):
        for name, value in content.items():
            if _has_not_a_number(value):
                return f"; field {name}: NaN and Infinity are not allowed"
    return ""


def _has_not_a_number(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_not_a_number, value))
    return isinstance(value, float) and (value != value or value in (float("inf"), float("-inf")))


def write_from_json(body: bytes) -> Upserts:
    if b'"upsert_vectors"' in body[:256]:
        named = decode_json(body, _WriteProtoNames)
        vectors, collection = named.upsert_vectors, named.collection
    else:
        request = decode_json(body, _Write)
        vectors, collection = request.upsertVectors, request.collection
    _check_count("upsertVectors", len(vectors), VECTORS_MAX, 1)
    ids = [id_bytes(vector.id, "upsertVectors") for vector in vectors]
    arrays = []
    attributes = []
    for vector in vectors:
        entries = vector.attributes
        array = entries.pop(VECTOR_FIELD, None)
        if array is None:
            raise BadData(f"upsertVectors: vector {shown(vector.id)}, field attributes.{VECTOR_FIELD} is missing")
        arrays.append(array)
        if not entries:
            attributes.append(b"")
            continue
        where = f"upsertVectors: vector {shown(vector.id)}, field attributes"
        attributes.append(pack_attributes({name: _plain_value(raw) for name, raw in entries.items()}, where))
    flat, counts = numbers(arrays, lambda i: f"upsertVectors: vector {shown(vectors[i].id)}, field attributes.vector")
    return Upserts(collection, ids, flat, counts, attributes)


def _plain_value(raw: msgspec.Raw) -> Any:
    # The decoder refuses a number beyond the range of a double. As infinity, it gets the error of our own check.
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return float("inf")


def numbers(arrays: Sequence[Buffer], label: Any) -> tuple[Floats, NDArray[np.int64]]:
    """As `parse_arrays`, but raises BadData that names the array and the component that is not a number."""
    try:
        return parse_arrays(arrays)
    except (msgspec.MsgspecError, OverflowError):
        pass
    for place, array in enumerate(arrays):
        try:
            content = msgspec.json.decode(array)
        except msgspec.MsgspecError as error:
            raise BadData(f"{label(place)}: {_plain(error)}; every component must be a finite 32-bit float") from None
        if not isinstance(content, list):
            raise BadData(f"{label(place)} is {shown(content)}; it must be an array of numbers")
        for component, value in enumerate(content):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadData(f"{label(place)}: component {component} is {shown(value)}; it must be a number")
            if not abs(value) <= sys.float_info.max:
                raise BadData(f"{label(place)}: component {component} is not a finite 32-bit float")
    raise BadData(f"{label(0)} holds something that is not a number")


def ids_from_json(body: bytes) -> tuple[str, list[bytes]]:
    """(collection, ids) of a delete."""
    request = decode_json(body, _Ids)
    return request.collection, check_ids(request.ids)


def get_from_json(body: bytes) -> tuple[str, list[bytes], tuple[str, ...] | None]:
    """(collection, ids, names of the fields to include; None for all) of a read."""
    request = decode_json(body, _Get)
    fields = request.includeFields if request.includeFields is not None else request.include_fields
    return request.collection, _ids_to_read(request.ids), None if fields is None else tuple(fields)


def settings_from_json(body: bytes) -> CollectionSettings:
    return decode_json(body, CollectionSettings)


def _ids_to_read(ids: Sequence[str]) -> list[bytes]:
    if len(ids) > K_MAX:
        raise BadData(f"ids has {len(ids)} entries; at most {K_MAX} are read at once")
    return check_ids(ids)


def check_ids(ids: Sequence[str]) -> list[bytes]:
    _check_count("ids", len(ids), IDS_MAX, 0)
    return [id_bytes(name, "ids") for name in ids]


def _check_count(field: str, count: int, most: int, least: int) -> None:
    if count < least:
        raise BadData(f"{field} is empty; it must have at least one entry")
    if count > most:
        raise TooLarge(f"{field} has {count} entries; a request may have at most {most}")


# Protobuf


def parse_protobuf(body: bytes, message: Any) -> Any:
    """Parse `body` into `message` and return it. Raises BadData for bytes that are not such a message."""
    try:
        message.ParseFromString(body)
    except (DecodeError, ValueError) as error:
        raise BadData(f"the body is not a protobuf {message.DESCRIPTOR.full_name}: {error}") from error
    return message


def write_from_protobuf(body: bytes) -> Upserts:
    usual = walk_write(body, VECTORS_MAX)
    if usual is None:
        return _write_from_message(parse_protobuf(body, vector_pb2.WriteRequest()))
    rows, (first, last) = usual
    _check_count("upsertVectors", len(rows), VECTORS_MAX, 1)
    ids: list[bytes] = []
    pieces: list[bytes] = []
    attributes: list[bytes] = []
    for start, end, id_start, id_end, floats_start, floats_end, others in rows.tolist():
        name = _utf8(body[id_start:id_end], "upsertVectors")
        ids.append(id_bytes(name, "upsertVectors"))
        if floats_end == floats_start:
            raise BadData(f"upsertVectors: vector {shown(name)}, field attributes.{VECTOR_FIELD} is missing or empty")
        pieces.append(body[floats_start:floats_end])
        if others:
            vector = parse_protobuf(body[start:end], vector_pb2.Vector())
            where = f"upsertVectors: vector {shown(name)}, field attributes"
            attributes.append(protobuf_attributes(vector, where))
        else:
            attributes.append(b"")
    flat = np.frombuffer(b"".join(pieces), dtype=np.float32)
    counts = (rows[:, 5] - rows[:, 4]) // 4
    return Upserts(_utf8(body[first:last], "collection"), ids, flat, counts, attributes)


def _utf8(text: bytes, field: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise BadData(f"{field}: {shown(text)} is not UTF-8 text") from None


def _write_from_message(request: vector_pb2.WriteRequest) -> Upserts:
    vectors = request.upsert_vectors
    _check_count("upsertVectors", len(vectors), VECTORS_MAX, 1)
    ids = [id_bytes(vector.id, "upsertVectors") for vector in vectors]
    pieces = []
    attributes = []
    for vector in vectors:
        where = f"upsertVectors: vector {shown(vector.id)}, field attributes"
        if VECTOR_FIELD not in vector.attributes:
            raise BadData(f"{where}.{VECTOR_FIELD} is missing")
        value = vector.attributes[VECTOR_FIELD]
        if value.WhichOneof("value") != "vector_value":
            raise BadData(f"{where}.{VECTOR_FIELD} is {shown(str(value).strip())}; it must be a vector_value")
        pieces.append(np.array(value.vector_value.values, dtype=np.float32))
        attributes.append(protobuf_attributes(vector, where))
    counts = np.array([len(piece) for piece in pieces], dtype=np.int64)
    return Upserts(request.collection, ids, np.concatenate(pieces), counts, attributes)


def ids_from_protobuf(body: bytes) -> tuple[str, list[bytes]]:
    request = parse_protobuf(body, vector_pb2.DeleteRequest())
    return request.collection, check_ids(request.ids)


def get_from_protobuf(body: bytes) -> tuple[str, list[bytes], tuple[str, ...] | None]:
    request = parse_protobuf(body, vector_pb2.GetRequest())
    return request.collection, _ids_to_read(request.ids), tuple(request.include_fields) or None
