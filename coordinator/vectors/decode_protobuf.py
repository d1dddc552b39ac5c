"""Decodes bodies of vector requests in binary protobuf, as `proto/vector.proto` defines them; otherwise as
`coordinator.vectors.decode`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from coordinator.parsing.large_bodies import REST_BYTES_MAX, SLICE_BYTES, SLICED_BYTES_MIN, LargeMessage
from coordinator.vectors.decode import (
    IDS_MAX,
    VECTORS_MAX,
    Upserts,
    check_count,
    check_read_count,
    ids_to_read,
    included,
)
from coordinator.vectors.json_attributes import ODD_ATTRIBUTES_MAX
from coordinator.vectors.values import ATTRIBUTES_MAX, id_bytes, protobuf_attributes, shown
from coordinator.vectors.walk import gather, walk_write
from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vectors import VECTOR_FIELD, Floats

ROWS_LISTED = 1000
ODD_VECTOR_BYTES_MAX = 1 << 20
"""The limit on a vector in protobuf in an unusual form: 16,384 components that are not packed take 80 KB."""


def parse_protobuf(body: bytes, message: Any) -> Any:
    """Parse `body` into `message` and return it. Raises BadData for bytes that are not such a message."""
    try:
        message.ParseFromString(body)
    except (DecodeError, ValueError) as error:
        raise BadData(f"the body is not a protobuf {message.DESCRIPTOR.full_name}: {error}") from error
    return message


def write_from_protobuf(body: bytes) -> Upserts:
    usual = walk_write(body, min(VECTORS_MAX, len(body) // 2))  # a vector has two bytes or more
    if usual is None:
        return _write_from_message(body)
    rows, (first, last) = usual
    check_count("upsertVectors", len(rows), VECTORS_MAX, 1)
    ids: list[bytes] = []
    attributes: list[bytes] = []
    for start, end, id_start, id_end, floats_start, floats_end, others in _row_lists(rows):
        name = _utf8(body[id_start:id_end], "upsertVectors")
        ids.append(id_bytes(name, "upsertVectors"))
        if floats_end == floats_start:
            raise BadData(f"upsertVectors: vector {shown(name)}, field attributes.{VECTOR_FIELD} is missing or empty")
        if others > ODD_ATTRIBUTES_MAX:
            raise BadData(
                f"upsertVectors: vector {shown(name)}, field attributes: {others} attributes; "
                f"at most {ATTRIBUTES_MAX} are kept"
            )
        if others:
            vector = parse_protobuf(body[start:end], vector_pb2.Vector())
            where = f"upsertVectors: vector {shown(name)}, field attributes"
            attributes.append(protobuf_attributes(vector, where))
        else:
            attributes.append(b"")
    flat, counts = gather(body, rows)
    return Upserts(_utf8(body[first:last], "collection"), ids, flat, counts, attributes)


def _row_lists(rows: NDArray[np.int64]) -> Iterator[list[int]]:
    """The rows as lists, of which only a few are in memory at once."""
    for start in range(0, len(rows), ROWS_LISTED):
        yield from rows[start : start + ROWS_LISTED].tolist()


def _utf8(text: bytes, field: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise BadData(f"{field}: {shown(text)} is not UTF-8 text") from None


def _write_from_message(body: bytes) -> Upserts:
    if len(body) < SLICED_BYTES_MIN:
        requests: Iterable[vector_pb2.WriteRequest] = [parse_protobuf(body, vector_pb2.WriteRequest())]
        collection = next(iter(requests)).collection
    else:
        large = LargeMessage(body, 1, "upsertVectors", VECTORS_MAX)
        check_count("upsertVectors", large.list.count, VECTORS_MAX, 1)
        large.list.require_elements_within(ODD_VECTOR_BYTES_MAX)
        collection = parse_protobuf(large.rest, vector_pb2.WriteRequest()).collection
        requests = (parse_protobuf(text, vector_pb2.WriteRequest()) for _, text in large.list)
    ids: list[bytes] = []
    flats: list[Floats] = []
    counts: list[int] = []
    attributes: list[bytes] = []
    for request in requests:
        pieces: list[Floats] = []
        check_count("upsertVectors", len(request.upsert_vectors), VECTORS_MAX, 1)
        ids += [id_bytes(vector.id, "upsertVectors") for vector in request.upsert_vectors]
        for vector in request.upsert_vectors:
            where = f"upsertVectors: vector {shown(vector.id)}, field attributes"
            if VECTOR_FIELD not in vector.attributes:
                raise BadData(f"{where}.{VECTOR_FIELD} is missing")
            value = vector.attributes[VECTOR_FIELD]
            if value.WhichOneof("value") != "vector_value":
                raise BadData(f"{where}.{VECTOR_FIELD} is {shown(str(value).strip())}; it must be a vector_value")
            pieces.append(np.array(value.vector_value.values, dtype=np.float32))
            attributes.append(protobuf_attributes(vector, where))
        flats.append(np.concatenate(pieces))
        counts += map(len, pieces)
    return Upserts(collection, ids, np.concatenate(flats), np.array(counts, dtype=np.int64), attributes)


def get_from_protobuf(body: bytes) -> tuple[str, list[bytes], tuple[str, ...] | None]:
    request, ids = ids_of(body, vector_pb2.GetRequest, check_read_count)
    return request.collection, ids_to_read(ids), included(request.include_fields or None)


def ids_of(
    body: bytes, kind: Any, check_count: Callable[[int], None], rest_bytes_max: int = REST_BYTES_MAX
) -> tuple[Any, Sequence[str]]:
    """(the request, without its ids if it is large; its ids)."""
    if len(body) < SLICED_BYTES_MIN:
        request = parse_protobuf(body, kind())
        return request, request.ids
    large = LargeMessage(body, 1, "ids", IDS_MAX, rest_bytes_max)
    check_count(large.list.count)
    large.list.require_elements_within(SLICE_BYTES)
    ids = [name for _, text in large.list for name in parse_protobuf(text, kind()).ids]
    return parse_protobuf(large.rest, kind()), ids
