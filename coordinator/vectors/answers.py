"""Vectors and hits as JSON and protobuf."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import orjson

from coordinator.vectors.merging import Hits
from coordinator.vectors.ranked_ids import QueryIds, scores_json, shown_scores
from coordinator.vectors.values import to_protobuf
from proto import vector_pb2
from shared.messages.vectors import VECTOR_FIELD, Floats

_ESCAPED = re.compile(r'["\\\x00-\x1f]')


class Shown(Protocol):
    """The parts of a vector in an answer."""

    id: bytes
    attributes: bytes
    vector: Floats | None


def vector_json(entry: Shown) -> dict[str, Any]:
    attributes: dict[str, Any] = {} if entry.vector is None else {VECTOR_FIELD: entry.vector}
    if entry.attributes:
        attributes.update(msgspec.msgpack.decode(entry.attributes))
    return {"id": entry.id.decode(), "attributes": attributes}


def hits_json(hits: Hits, metric: str, highlights: Sequence[bytes] = ()) -> str:
    """A JSON array of results, joined from texts: encoding an object per hit would take twice as long."""
    if isinstance(hits.ids, QueryIds) and not highlights:
        rendered = hits.ids.json(metric)
        if rendered is not None:
            return rendered
    if not hits.ids:
        return "[]"
    scores = scores_json(shown_scores(hits.near, metric)).decode()[1:-1].split(",")
    names = list(map(bytes.decode, hits.ids))
    # Most ids need no escaping in JSON.
    if _ESCAPED.search("".join(names)) is None:
        names = [f'"{name}"' for name in names]
    else:
        names = [orjson.dumps(name).decode() for name in names]
    attribute_texts = _attributes(hits) if hits.attributes else ["{}"] * len(names)
    results = [
        f'{{"score":{score},"vector":{{"id":{name},"attributes":{attributes}}}}}'
        for score, name, attributes in zip(scores, names, attribute_texts, strict=True)
    ]
    if highlights:
        results = [
            f'{result[:-1]},"highlights":{fragments.decode()}}}'
            for result, fragments in zip(results, highlights, strict=True)
        ]
    return f"[{','.join(results)}]"


def _attributes(hits: Hits) -> list[str]:
    """The attributes of each hit as a JSON object."""
    texts = [
        msgspec.json.encode(msgspec.msgpack.decode(packed)).decode() if packed else "{}" for packed in hits.attributes
    ]
    if hits.vectors is None:
        return texts
    vectors = [orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY).decode() for vector in hits.vectors]
    return [
        f'{{"{VECTOR_FIELD}":{vector}{"," if len(text) > 2 else ""}{text[1:]}'
        for vector, text in zip(vectors, texts, strict=True)
    ]


def vector_protobuf(entry: Shown, into: vector_pb2.Vector) -> None:
    _fill(entry.id, entry.attributes, entry.vector, into)


def _fill(name: bytes, attributes: bytes, vector: Floats | None, into: vector_pb2.Vector) -> None:
    into.id = name.decode()
    if vector is not None:
        into.attributes[VECTOR_FIELD].vector_value.values.extend(vector.tolist())
    if attributes:
        for key, value in msgspec.msgpack.decode(attributes).items():
            to_protobuf(value, into.attributes[key])


def hits_protobuf(hits: Hits, metric: str, into: Any) -> None:
    """Add results to `into`, a repeated field of SearchResult."""
    for score, (_, name, attributes, vector) in zip(shown_scores(hits.near, metric).tolist(), hits, strict=True):
        result = into.add()
        result.score = score
        _fill(name, attributes, vector, result.vector)


def highlights_protobuf(highlights: Sequence[bytes], results: Any) -> None:
    """Add highlights, one JSON object of fragments by field for each, to as many results; none if there are none."""
    if highlights:
        for result, fragments in zip(results, highlights, strict=True):
            for name, texts in msgspec.json.decode(fragments).items():
                result.highlights[name].fragments.extend(texts)
