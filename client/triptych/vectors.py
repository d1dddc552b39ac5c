"""The vector area: collections, upserts, searches."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, TypeVar, Union
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from triptych import arrow
from triptych.calls import JSON, PROTOBUF, Call, Listing, Reading, ServerResponse, Steps, as_json, target
from triptych.hits import VECTOR, SearchResult, Vector, Vectors, result_of, vector_of
from triptych.protobuf import delimited, double, whole

T = TypeVar("T")
VECTORS_OF_REQUEST = 10_000
BYTES_OF_REQUEST = 16 << 20
IDS_OF_REQUEST = 10_000
QUERIES_OF_REQUEST = 1000
Attributes = Mapping[str, Any]
Filter = Mapping[str, Any]
"""Such as `{"eq": {"field": "colour", "value": "red"}}`; the guide to vectors lists them."""
Matrix = Union[NDArray[Any], Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Collection:
    """`metric`: cosine, dot or l2; `storage`: f32, f16, i8 or b1; `index`: lists or graph. `dimension`: 0 until the
    first vector of the default collection fixes it."""

    name: str
    dimension: int
    metric: str
    storage: str
    text_fields: tuple[Any, ...] = ()
    index: str = ""


def create_collection(
    name: str,
    dimension: int,
    *,
    metric: str = "",
    storage: str = "",
    text_fields: Sequence[str | Mapping[str, Any]] = (),
    index: str = "",
) -> Call[Collection]:
    """Create a collection, or confirm that it has these settings. Raises BadRequest if it has others.

    `text_fields`: attributes that are searched by text; each a name, or an object with a `language` and more.
    """
    settings: dict[str, Any] = {"dimension": dimension}
    options = {"metric": metric, "storage": storage, "index": index}
    settings.update({name: value for name, value in options.items() if value})
    if text_fields:
        settings["textFields"] = list(text_fields)
    body = as_json(settings)
    return Call(
        "PUT", _collection(name), lambda answer: _read(answer.json()["collection"]), {"Content-Type": JSON}, body
    )


def collection(name: str) -> Call[Collection]:
    """Raises NotFound."""
    return Call("GET", _collection(name), lambda answer: _read(answer.json()["collection"]))


def collections() -> Call[Listing[Collection]]:
    """All collections."""

    def read(answer: ServerResponse) -> Listing[Collection]:
        content = answer.json()
        return Listing([_read(each) for each in content["collections"]], content)

    return Call("GET", "/api/v1/vector/collections", read)


def delete_collection(name: str) -> Call[None]:
    """Delete a collection with all its vectors. Raises NotFound; sent once, since a repeat would not find it."""
    return Call("DELETE", _collection(name), lambda answer: None, repeatable=False)


def stats() -> Call[dict[str, Any]]:
    """Vectors, rows and bytes of each collection, as the server gives them."""
    return Call("GET", "/api/v1/vector/stats", lambda answer: answer.json())


def upsert(
    ids: Sequence[str],
    vectors: Matrix,
    attributes: Sequence[Attributes] | None = None,
    *,
    collection: str = "",
) -> Steps[int]:
    """Store vectors, float32[n, dimension], in as many requests as they need. Returns how many when all are on disk.

    A vector with the same id is replaced. Attributes are strings, ints, floats, bools, or lists of them; None stands
    for an attribute that is not there. Raises ValueError or TypeError for what cannot be sent, before anything is sent.
    """
    rows = np.ascontiguousarray(vectors, "<f4")
    if len(ids) == 0:
        return 0
    if rows.ndim != 2 or len(rows) != len(ids):
        raise ValueError(f"vectors have the shape {rows.shape}; it must be ({len(ids)}, dimension), one for each id")
    if attributes is not None and len(attributes) != len(ids):
        raise ValueError(f"there are {len(attributes)} sets of attributes for {len(ids)} ids")
    fields = [_fields(name, attributes[at] if attributes else {}) for at, name in enumerate(ids)]
    stored = 0
    for part in _parts(_vector(own, row) for own, row in zip(fields, rows)):
        body = b"".join(part) + delimited(2, collection.encode())
        stored += yield _protobuf("/api/v1/vector/write", body, lambda answer: int(answer.json()["vectorsUpserted"]))
    return stored


def search(
    vector: NDArray[Any] | Sequence[float] | None = None,
    *,
    k: int = 10,
    id: str | None = None,
    text: str | Mapping[str, Any] | None = None,
    filter: Filter | None = None,
    include: Sequence[str] | None = None,
    collection: str = "",
    exact: bool = False,
    recall: float | None = None,
    expansion: int | None = None,
    fusion: Mapping[str, Any] | None = None,
    offset: int = 0,
    score_threshold: float | None = None,
    group_by: Mapping[str, Any] | None = None,
    partial: bool = True,
) -> Call[SearchResult]:
    """The `k` nearest vectors, the best first: of a vector, of the vector with an `id`, by `text` (the query, or an
    object with its fields), or by vector and text together.

    `include`: the attributes wanted, `vector` among them; None: all. `partial=False`: Unavailable if a shard is
    missing, instead of an answer with a warning. The other parameters are those of the guide to vectors.
    """
    body = _search(k, filter, include, collection, exact, recall, expansion, offset, score_threshold)
    if vector is not None:
        body["vector"] = np.asarray(vector, np.float32).tolist()
    if text is not None:
        body["text"] = {"query": text} if isinstance(text, str) else text
    members = (("id", id), ("fusion", fusion), ("groupBy", group_by))
    body.update({name: value for name, value in members if value is not None})

    def read(answer: ServerResponse) -> SearchResult:
        if arrow.is_arrow(answer):
            return arrow.search_results(answer, 1)[0]
        content = answer.json()
        return result_of(content, content.get("results", ()))

    return replace(_post("search", body, read, partial), arrow=True)


def search_many(
    vectors: Matrix,
    *,
    k: int = 10,
    filter: Filter | None = None,
    include: Sequence[str] | None = None,
    collection: str = "",
    exact: bool = False,
    recall: float | None = None,
    expansion: int | None = None,
    partial: bool = True,
) -> Steps[list[SearchResult]]:
    """As `search`, for several vectors: float32[n, dimension]; a result for each of them."""
    queries = np.asarray(vectors, np.float32)
    results: list[SearchResult] = []
    step = max(1, min(QUERIES_OF_REQUEST, 100_000 // max(k, 1)))
    for start in range(0, len(queries), step):
        body = _search(k, filter, include, collection, exact, recall, expansion, 0, None)
        request_queries = queries[start : start + step]
        body["vectors"] = request_queries.tolist()
        results += yield replace(
            _post("search", body, functools.partial(_results, len(request_queries)), partial), arrow=True
        )
    return results


def _results(queries: int, answer: ServerResponse) -> list[SearchResult]:
    if arrow.is_arrow(answer):
        return arrow.search_results(answer, queries)
    content = answer.json()
    return [result_of(content, each["results"]) for each in content["resultSets"]]


def get(
    ids: Sequence[str], *, include: Sequence[str] | None = None, collection: str = "", partial: bool = True
) -> Steps[Vectors]:
    """The vectors with these ids that exist, in this order."""
    vectors = Vectors()
    for request_ids in _ids(ids):
        body = _body(collection, ids=request_ids, includeFields=None if include is None else list(include))
        page = yield _post("get", body, _vectors, partial)
        vectors += page
        vectors.warnings += page.warnings
    return vectors


def scroll(
    *,
    filter: Filter | None = None,
    order_by: str | Mapping[str, str] | None = None,
    include: Sequence[str] | None = None,
    collection: str = "",
    page_vectors: int = 1000,
    partial: bool = True,
) -> Reading[Vector]:
    """All vectors of a collection, or those that a filter matches, as they are read: in the order of their ids, or by
    an attribute (a name, or `{"field": …, "direction": "desc"}`)."""
    ordering = {"field": order_by} if isinstance(order_by, str) else order_by
    fields = None if include is None else list(include)
    token: str | None = None
    while True:
        body = _body(
            collection, limit=page_vectors, filter=filter, orderBy=ordering, includeFields=fields, pageToken=token
        )
        page = yield _post("scroll", body, _vectors, partial)
        yield page
        token = page.next_page_token
        if not token:
            return


def count(*, filter: Filter | None = None, collection: str = "", partial: bool = True) -> Call[int]:
    """How many vectors a collection has, or how many of them a filter matches."""
    return _post("count", _body(collection, filter=filter), lambda answer: int(answer.json()["count"]), partial)


def facets(
    field: str, *, filter: Filter | None = None, limit: int = 10, collection: str = "", partial: bool = True
) -> Call[Listing[tuple[Any, int]]]:
    """The most frequent values of an attribute, each with its number of vectors."""

    def read(answer: ServerResponse) -> Listing[tuple[Any, int]]:
        content = answer.json()
        return Listing([(facet["value"], facet["count"]) for facet in content["facets"]], content)

    return _post("facets", _body(collection, field=field, filter=filter, limit=limit), read, partial)


def delete(ids: Sequence[str] = (), *, filter: Filter | None = None, collection: str = "") -> Steps[int]:
    """Delete vectors by their ids, or those that a filter matches. Returns how many existed; where a request had to be
    repeated, those of its first attempt may not be counted."""
    return (yield from _changed("delete", "vectorsDeleted", ids, filter, _body(collection)))


def update(
    ids: Sequence[str] = (),
    *,
    set: Attributes | None = None,
    unset: Sequence[str] = (),
    filter: Filter | None = None,
    collection: str = "",
) -> Steps[int]:
    """Change attributes of vectors without sending the vectors. Returns how many vectors exist."""
    body = _body(collection, set=set or None, unset=list(unset) or None)
    return (yield from _changed("update", "vectorsUpdated", ids, filter, body))


def _changed(action: str, member: str, ids: Sequence[str], filter: Filter | None, body: dict[str, Any]) -> Steps[int]:
    def read(answer: ServerResponse) -> int:
        return int(answer.json()[member])

    if filter is not None:
        if len(ids):
            raise ValueError("ids and filter exclude each other")
        return int((yield replace(_post(action, {**body, "filter": filter}, read), changes=True)))
    changed = 0
    for request_ids in _ids(ids):
        changed += yield replace(_post(action, {**body, "ids": request_ids}, read), changes=True)
    return changed


def _search(
    k: int,
    filter: Filter | None,
    include: Sequence[str] | None,
    collection: str,
    exact: bool,
    recall: float | None,
    expansion: int | None,
    offset: int,
    score_threshold: float | None,
) -> dict[str, Any]:
    return _body(
        collection,
        k=k,
        filter=filter,
        includeFields=None if include is None else list(include),
        exact=exact or None,
        recall=recall,
        expansion=expansion,
        offset=offset or None,
        scoreThreshold=score_threshold,
    )


def _body(collection: str, **members: Any) -> dict[str, Any]:
    """Those that are not None."""
    body = {name: value for name, value in members.items() if value is not None}
    return {"collection": collection, **body} if collection else body


def _post(action: str, body: Mapping[str, Any], read: Callable[[ServerResponse], T], partial: bool = True) -> Call[T]:
    path = target(f"/api/v1/vector/{action}", [] if partial else [("partial_response", "false")])
    return Call("POST", path, read, {"Content-Type": JSON, "Accept": JSON}, as_json(body))


def _protobuf(path: str, body: bytes, read: Callable[[ServerResponse], T]) -> Call[T]:
    return Call("POST", path, read, {"Content-Type": PROTOBUF, "Accept": JSON}, body, changes=True)


def _vectors(answer: ServerResponse) -> Vectors:
    content = answer.json()
    return Vectors([vector_of(each) for each in content["vectors"]], content)


def _collection(name: str) -> str:
    return f"/api/v1/vector/collections/{quote(name, safe='')}"


def _read(content: Mapping[str, Any]) -> Collection:
    return Collection(
        content["name"],
        content["dimension"] or 0,
        content["metric"],
        content["storage"],
        tuple(content.get("textFields") or ()),
        content.get("index") or "",
    )


def _ids(ids: Sequence[str]) -> Iterator[list[str]]:
    if isinstance(ids, str):
        raise TypeError(f"ids is the text {ids!r}; it must be a list of ids")
    for start in range(0, len(ids), IDS_OF_REQUEST):
        yield list(ids[start : start + IDS_OF_REQUEST])


def _parts(encoded: Iterable[bytes]) -> Iterator[list[bytes]]:
    request_items: list[bytes] = []
    size = 0
    for each in encoded:
        if request_items and (len(request_items) == VECTORS_OF_REQUEST or size + len(each) > BYTES_OF_REQUEST):
            yield request_items
            request_items, size = [], 0
        request_items.append(each)
        size += len(each)
    if request_items:
        yield request_items


def _fields(name: str, attributes: Attributes) -> bytes:
    """The id and the attributes of an `upsert_vectors` of a WriteRequest (`proto/vector.proto`)."""
    if VECTOR in attributes:
        raise ValueError(f"the vector {name!r} has an attribute {VECTOR!r}, which is the name of the vector itself")
    parts = [delimited(1, name.encode())]
    for field, value in attributes.items():
        if value is not None:
            parts.append(_entry(field, _attribute(value, f"the vector {name!r}, attribute {field!r}")))
    return b"".join(parts)


def _vector(fields: bytes, row: NDArray[np.float32]) -> bytes:
    """All of an `upsert_vectors`."""
    return delimited(1, fields + _entry(VECTOR, delimited(5, delimited(1, row.tobytes()))))


def _entry(name: str, value: bytes) -> bytes:
    return delimited(3, delimited(1, name.encode()) + delimited(2, value))


def _attribute(value: Any, what: str) -> bytes:
    """An AttributeValue."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return delimited(1, value.encode())
    if isinstance(value, bool):
        return whole(4, int(value))
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{what} is {value}; an integer has at most 64 bits")
        return whole(2, value)
    if isinstance(value, float):
        return double(3, value)
    if isinstance(value, (list, tuple, np.ndarray)):
        return delimited(6, b"".join(delimited(1, _attribute(element, what)) for element in value))
    raise TypeError(f"{what} is {type(value).__name__}; it must be a str, int, float, bool, or a list of them")
