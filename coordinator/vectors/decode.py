"""Decodes bodies of vector requests. A write becomes columns, which are all checked before anything is applied.

JSON is ProtoJSON with attributes flattened (`{"vector": […], "colour": "red"}`); field names are in camelCase or as in
the .proto. `coordinator.vectors.decode_protobuf` reads binary protobuf; large bodies are read in slices
(`coordinator.parsing.large_bodies`). Every error is a BadData or TooLarge that names the vector and field.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.parsing.body_errors import explained_in_quotes
from coordinator.parsing.large_bodies import SLICE_BYTES, SLICED_BYTES_MIN, LargeObject, Slices
from coordinator.vectors.json_attributes import check_large_vector, plain_value
from coordinator.vectors.numbers import COMPONENTS_BYTES_MAX, Buffer, find_unusable, joined, parse_arrays
from coordinator.vectors.values import (
    id_bytes,
    pack_attributes,
    shown,
)
from shared.errors import BadData, TooLarge
from shared.messages.vector_text import TextField
from shared.messages.vectors import DIMENSION_MAX, HALF_MOST, VECTOR_FIELD, Collection, Floats

VECTORS_MAX = 200_000
"""The components of a write: as many as two workers store within half of the time that a write may take by default."""
IDS_MAX = 100_000
DIAGNOSED_BYTES_MAX = 512 << 10  # largest invalid body that is decoded again, slowly, to locate the error
VECTOR_BYTES_MAX = 8 << 20
"""The limit on one vector in a body, as it is encoded: 16,384 components take 0.4 MB as JSON, the rest is for its
attributes."""
FIELDS_MAX = 10_000
"""The limit on the names of fields that a read includes."""

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
        check_halves(table, collection, self.label)
        return table

    def last_wins(self, table: Floats) -> tuple[list[bytes], Floats, list[bytes]]:
        """(ids, vectors, attributes) with each id once: its last occurrence counts."""
        last_places = {name: place for place, name in enumerate(self.ids)}
        if len(last_places) == len(self.ids):
            return self.ids, table, self.attributes
        places = list(last_places.values())
        return list(last_places), table[places], [self.attributes[place] for place in places]


def check_halves(table: Floats, collection: Collection, label: Any) -> None:
    """Raises BadData for a component that float16 does not have, where vectors are compared as such."""
    if collection.storage == "f32" or collection.metric == "cosine" or not table.size:
        return
    if max(float(table.max()), -float(table.min())) <= HALF_MOST:
        return
    row, place = divmod(int(np.abs(table).argmax()), table.shape[1])
    raise BadData(
        f"{label(row)}: component {place} is {table[row, place]:g}; with the storage {collection.storage!r} of the "
        f"collection {collection.name!r}, components are at most {HALF_MOST:g} in size (f32 has all of them)"
    )


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
    index: str | None = None
    textFields: list[str | TextField] = []


_VECTORS = msgspec.json.Decoder(list[_Vector])
_TEXTS = msgspec.json.Decoder(list[str])


def decode_json(body: Buffer, kind: type[T]) -> T:
    """The body as a `kind`. Raises BadData that says where the body is not valid."""
    return _decoded(lambda: msgspec.json.decode(body, type=kind), body, kind)


def _decoded(decode: Callable[[], T], body: Buffer, kind: Any) -> T:
    try:
        return decode()
    except msgspec.ValidationError as error:
        raise BadData(f"the body is not right: {explained_in_quotes(error, kind)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadData(
            f"the body is not valid JSON: {explained_in_quotes(error, kind)}{_not_a_number(bytes(body))}"
        ) from error
    except RecursionError:
        raise BadData("the body is nested too deeply") from None


def _not_a_number(body: bytes) -> str:
    """Text that names the field with a NaN or an infinity; "" if there is none. Python's encoder writes them, though
    JSON does not have them."""
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
    named = b'"upsert_vectors"' in body[:256]
    if len(body) >= SLICED_BYTES_MIN:
        return _write_from_slices(body, named)
    if named:
        request = decode_json(body, _WriteProtoNames)
        vectors, collection = request.upsert_vectors, request.collection
    else:
        plain = decode_json(body, _Write)
        vectors, collection = plain.upsertVectors, plain.collection
    check_count("upsertVectors", len(vectors), VECTORS_MAX, 1)
    return _upserts(collection, [vectors])


def _write_from_slices(body: bytes, named: bool) -> Upserts:
    name = "upsert_vectors" if named else "upsertVectors"
    large = LargeObject(body, {name: VECTORS_MAX})
    other_fields = decode_json(large.rest, _WriteProtoNames) if named else decode_json(large.rest, _Write)
    vectors = large.lists.get(name)
    if vectors is None:
        raise BadData(f"{name} is not an array")
    check_count("upsertVectors", vectors.count, VECTORS_MAX, 1)
    vectors.require_elements_within(VECTOR_BYTES_MAX)
    return _upserts(other_fields.collection, (_vectors_of(vectors, first, text) for first, text in vectors))


def _vectors_of(vectors: Slices, first: int, text: bytes) -> list[_Vector]:
    if len(text) > SLICE_BYTES:
        check_large_vector(text, f"upsertVectors[{first}], field attributes")
    return _decoded(partial(vectors.decode, first, text, _VECTORS), b'{"upsertVectors":[%s]}' % text, _VECTORS.type)


def _upserts(collection: str, pieces: Iterable[list[_Vector]]) -> Upserts:
    """The vectors of a request that is read in pieces, each of which is released before the next."""
    ids: list[bytes] = []
    attributes: list[bytes] = []
    flats: list[Floats] = []
    counts: list[NDArray[np.int64]] = []
    for vectors in pieces:
        ids += [id_bytes(vector.id, "upsertVectors") for vector in vectors]
        arrays, packed = _attributes(vectors)
        flat, lengths = numbers(arrays, partial(_vector_label, vectors))
        flats.append(flat)
        counts.append(lengths)
        attributes += packed
    if len(flats) == 1:
        return Upserts(collection, ids, flats[0], counts[0], attributes)
    return Upserts(collection, ids, joined(flats), np.concatenate(counts), attributes)


def _vector_label(vectors: Sequence[_Vector], place: int) -> str:
    return f"upsertVectors: vector {shown(vectors[place].id)}, field attributes.{VECTOR_FIELD}"


def _attributes(vectors: Sequence[_Vector]) -> tuple[list[Buffer], list[bytes]]:
    """(the vectors as they are encoded, their other attributes packed)."""
    arrays: list[Buffer] = []
    packed = []
    for vector in vectors:
        entries = vector.attributes
        array = entries.pop(VECTOR_FIELD, None)
        if array is None:
            raise BadData(f"upsertVectors: vector {shown(vector.id)}, field attributes.{VECTOR_FIELD} is missing")
        arrays.append(array)
        if not entries:
            packed.append(b"")
            continue
        where = f"upsertVectors: vector {shown(vector.id)}, field attributes"
        try:
            values = {name: plain_value(raw, f"{where}.{name}") for name, raw in entries.items()}
        except UnicodeDecodeError:
            raise BadData(f"{where}: a text is not UTF-8") from None
        packed.append(pack_attributes(values, where))
    return arrays, packed


def numbers(arrays: Sequence[Buffer], label: Any) -> tuple[Floats, NDArray[np.int64]]:
    """As `parse_arrays`, but raises BadData that names the array and the component that is not a number."""
    try:
        return parse_arrays(arrays)
    except (msgspec.MsgspecError, OverflowError, UnicodeDecodeError):
        pass
    for place, array in enumerate(arrays):
        size = len(memoryview(array))
        if size > COMPONENTS_BYTES_MAX:
            raise BadData(f"{label(place)} has {size} bytes; it may have at most {COMPONENTS_BYTES_MAX}")
        try:
            content = msgspec.json.decode(array)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadData(
                f"{label(place)}: {explained_in_quotes(error, Any)}; every component must be a finite 32-bit float"
            ) from None
        if not isinstance(content, list):
            raise BadData(f"{label(place)} is {shown(content)}; it must be an array of numbers")
        for component, value in enumerate(content):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadData(f"{label(place)}: component {component} is {shown(value)}; it must be a number")
            if not abs(value) <= sys.float_info.max:
                raise BadData(f"{label(place)}: component {component} is not a finite 32-bit float")
    raise BadData(f"{label(0)} holds something that is not a number")


def get_from_json(body: bytes) -> tuple[str, list[bytes], tuple[str, ...] | None]:
    """(collection, ids, names of the fields to include; None for all) of a read."""
    if len(body) < SLICED_BYTES_MIN:
        request = decode_json(body, _Get)
    else:
        large = LargeObject(body, {"ids": IDS_MAX, "includeFields": FIELDS_MAX, "include_fields": FIELDS_MAX})
        request = decode_json(large.rest, _Get)
        request.ids = texts_of(large, "ids", check_read_count) or []
        for name in ("includeFields", "include_fields"):
            setattr(request, name, texts_of(large, name, _check_fields))
    fields = request.includeFields if request.includeFields is not None else request.include_fields
    return request.collection, ids_to_read(request.ids), included(fields)


def texts_of(large: LargeObject, name: str, check_count: Callable[[int], None]) -> list[str] | None:
    """The list of texts in a large body; None if it has none."""
    slices = large.lists.get(name)
    if slices is None:
        return None
    check_count(slices.count)
    slices.require_elements_within(SLICE_BYTES)
    texts: list[str] = []
    for first, text in slices:
        texts += _decoded(partial(slices.decode, first, text, _TEXTS), b"", _TEXTS.type)
    return texts


def included(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    _check_fields(len(names))
    return tuple(names)


def _check_fields(count: int) -> None:
    if count > FIELDS_MAX:
        raise BadData(f"includeFields has {count} entries; at most {FIELDS_MAX} are allowed")


def settings_from_json(body: bytes) -> CollectionSettings:
    return decode_json(body, CollectionSettings)


def ids_to_read(ids: Sequence[str]) -> list[bytes]:
    check_read_count(len(ids))
    return check_ids(ids)


def check_read_count(count: int) -> None:
    if count > IDS_MAX:
        raise BadData(f"ids has {count} entries; at most {IDS_MAX} are read at once")


def check_ids(ids: Sequence[str]) -> list[bytes]:
    check_id_count(len(ids))
    return [id_bytes(name, "ids") for name in ids]


def check_id_count(count: int) -> None:
    check_count("ids", count, IDS_MAX, 0)


def check_count(field: str, count: int, most: int, least: int) -> None:
    if count < least:
        raise BadData(f"{field} is empty; it must have at least one entry")
    if count > most:
        raise TooLarge(f"{field} has {count} entries; a request may have at most {most}")
