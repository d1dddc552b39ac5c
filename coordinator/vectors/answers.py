"""Vectors and hits as JSON and protobuf."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np

from coordinator.vectors.search import Hit
from coordinator.vectors.values import to_protobuf
from proto import vector_pb2
from shared.messages.vectors import VECTOR_FIELD, Floats


class Shown(Protocol):
    """What a vector in an answer is made of."""

    id: bytes
    attributes: bytes
    vector: Floats | None


def score(near: np.float32, metric: str) -> np.float32:
    """The score shown: the similarity itself, under l2 the distance."""
    return np.float32(0) - near if metric == "l2" else near


def vector_json(entry: Shown) -> dict[str, Any]:
    attributes: dict[str, Any] = {} if entry.vector is None else {VECTOR_FIELD: entry.vector}
    if entry.attributes:
        attributes.update(msgspec.msgpack.decode(entry.attributes))
    return {"id": entry.id.decode(), "attributes": attributes}


def hit_json(hit: Hit, metric: str) -> dict[str, Any]:
    return {"score": score(hit.near, metric), "vector": vector_json(hit)}


def vector_protobuf(entry: Shown, into: vector_pb2.Vector) -> None:
    into.id = entry.id.decode()
    if entry.vector is not None:
        into.attributes[VECTOR_FIELD].vector_value.values.extend(entry.vector.tolist())
    if entry.attributes:
        for name, value in msgspec.msgpack.decode(entry.attributes).items():
            to_protobuf(value, into.attributes[name])


def hit_protobuf(hit: Hit, metric: str, into: vector_pb2.SearchResult) -> None:
    into.score = float(score(hit.near, metric))
    vector_protobuf(hit, into.vector)
