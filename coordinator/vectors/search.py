"""Parses requests for a vector search, in JSON or protobuf."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from coordinator.parsing.body_errors import explained_in_quotes
from coordinator.parsing.large_bodies import SLICED_BYTES_MIN, LargeMessage, LargeObject, Slices
from coordinator.vectors import filters, fusion, refinements, text
from coordinator.vectors.catalogue import DEFAULT
from coordinator.vectors.decode import check_components, decode_json, numbers
from coordinator.vectors.decode_protobuf import parse_protobuf
from coordinator.vectors.fusion import Fusion
from coordinator.vectors.numbers import COMPONENTS_BYTES_MAX
from coordinator.vectors.refinements import NO_REFINEMENT, GroupBy, Refinement
from coordinator.vectors.scroll import filter_of
from coordinator.vectors.text import TextRequest, TextSearch
from coordinator.vectors.values import id_bytes
from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vectors import DIMENSION_MAX, K_MAX, Collection, Condition, Floats, SearchBody

K_DEFAULT = 10
EXPANSION_MAX = 10_000
RECALL_MIN, RECALL_MAX = 0.5, 0.999
RECALL_DEFAULT = 0.95
QUERIES_MAX = 1000
RESULTS_MAX = 100_000  # for all queries of a request together
FIELDS_MAX = 256
FUSION_DEPTH = 100
REST_BYTES_MAX = 3 << 19
"""Bytes of a request beside `vectors`: a vector of 16,384 components takes some 0.4 MB as JSON, the rest is for the
filter."""

_VECTORS_FIELD = vector_pb2.SearchRequest.VECTORS_FIELD_NUMBER
_RAW_VALUES = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(slots=True)
class SearchRequest:
    """A request, checked as far as that needs no settings of the collection. `flat` holds the components of the
    queries, one query after the other, `counts[i]` of them for query i. `batch`: whether the queries came in `vectors`.
    `id`: of the vector that is the query, which `of_vector` replaces by its components."""

    collection: str
    flat: Floats
    counts: list[int]
    batch: bool
    k: int
    fields: tuple[str, ...] | None
    filter: Condition | None
    expansion: int
    exact: bool
    text: TextSearch | None = None
    fusion: Fusion | None = None
    recall: float = 0.0
    refinement: Refinement = NO_REFINEMENT
    id: bytes = b""

    @property
    def is_browse(self) -> bool:
        """Whether the request only filters. Its results are in the order of the ids, all with the score 0."""
        return not self.counts and self.text is None

    @property
    def depth(self) -> int:
        """How many results the workers must return: one more if the query itself may be among them."""
        return self.k + self.refinement.offset + bool(self.id)

    def of_vector(self, vector: Floats) -> SearchRequest:
        """The request with the components of the vector `id` as its query."""
        return replace(self, flat=vector, counts=[len(vector)])

    def queries(self, collection: Collection) -> Floats:
        """The queries as float32[q, dimension]. Raises BadData that names the field when the request does not fit the
        collection."""

        return _table(self.flat, self.counts, collection, lambda place: f"vectors[{place}]" if self.batch else "vector")

    def hybrid(self) -> bool:
        """Whether the request searches by text and by vector."""
        return bool(self.text is not None and self.counts)

    def summary(self) -> str:
        """The request in one line: without numbers, and only whether it has a filter."""
        parts = [f"collection={self.collection or DEFAULT} vectors={len(self.counts) or bool(self.id):d} k={self.k}"]
        if self.expansion:
            parts.append(f"expansion={self.expansion}")
        if self.recall:
            parts.append(f"recall={self.recall:g}")
        if self.exact:
            parts.append("exact")
        if self.filter is not None:
            parts.append("filter")
        if self.text is not None:
            parts.append(f"text={self.text.query}")
        return " ".join(parts)

    def body(self, collection: Collection, expansion: int, recall: float = RECALL_DEFAULT) -> SearchBody:
        """The message to the workers. `expansion` (0: as many as `recall` needs) is the default for requests that have
        neither."""
        return SearchBody(
            collection,
            max(self.depth, FUSION_DEPTH) if self.hybrid() else self.depth,
            self.fields,
            self.filter,
            self.expansion or (0 if self.recall else expansion),
            self.exact,
            self.text.asked(collection) if self.text is not None else None,
            recall=self.recall or recall,
        )


def vectors_of(texts: Sequence[bytes], collection: Collection) -> Floats:
    """The queries of several searches as float32[n, dimension]; `texts[i]` is the `vector` of search i in JSON. Raises
    BadData for the first that does not fit the collection, as `SearchRequest.queries`."""

    def label(place: int) -> str:
        return "vector"

    flat, counts = numbers(texts, label)
    return _table(flat, counts.tolist(), collection, label)


def _table(flat: Floats, counts: Sequence[int], collection: Collection, label: Callable[[int], str]) -> Floats:
    for place, count in enumerate(counts):
        if count != collection.dimension:
            raise BadData(
                f"{label(place)} has {count} components; "
                f"the dimension of the collection {collection.name!r} is {collection.dimension}"
            )
    table = flat.reshape(-1, collection.dimension)
    check_components(table, collection.metric, label)
    return table


class _Search(msgspec.Struct, forbid_unknown_fields=True):
    vector: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    vectors: list[msgspec.Raw] | None = None
    id: str | None = None
    k: int = K_DEFAULT
    filter: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    includeFields: list[str] | None = None
    include_fields: list[str] | None = None
    expansion: int = 0
    exact: bool = False
    collection: str = ""
    text: TextRequest | None = None
    fusion: dict[str, Any] | None = None
    recall: float | None = None
    scoreThreshold: float | None = None
    score_threshold: float | None = None
    offset: int = 0
    groupBy: GroupBy | None = None
    group_by: GroupBy | None = None


def from_json(body: bytes) -> SearchRequest:
    request = _decoded(body)
    single, several = request.vector is not msgspec.UNSET, request.vectors is not None
    arrays: list[Any] = [request.vector] if single else request.vectors or []
    condition = filter_of(request.filter)
    own_id = b"" if request.id is None else id_bytes(request.id, "id")
    _check_id(own_id, given=single or several, grouped=(request.groupBy or request.group_by) is not None)
    _check_shape(single, several, len(arrays), bool(own_id) or request.text is not None, condition is not None)
    flat, counts = np.zeros(0, dtype=np.float32), []
    if arrays:
        flat, lengths = numbers(arrays, lambda place: f"vectors[{place}]" if several else "vector")
        counts = lengths.tolist()
    fields = request.includeFields if request.includeFields is not None else request.include_fields
    return _checked(
        SearchRequest(
            request.collection,
            flat,
            counts,
            several,
            request.k,
            None if fields is None else tuple(fields),
            condition,
            request.expansion,
            request.exact,
            text.from_json(request.text) if request.text is not None else None,
            fusion.from_json(request.fusion) if request.fusion is not None else None,
            _checked_recall(request.recall, request.expansion),
            refinements.of(
                request.offset,
                request.scoreThreshold if request.scoreThreshold is not None else request.score_threshold,
                request.groupBy or request.group_by,
                request.k,
                batch=several,
                rankings=single + several + bool(own_id) + (request.text is not None),
            ),
            own_id,
        )
    )


def _decoded(body: bytes) -> _Search:
    if len(body) < SLICED_BYTES_MIN:
        return decode_json(body, _Search)
    large = LargeObject(body, {"vectors": QUERIES_MAX}, REST_BYTES_MAX)
    request = decode_json(large.rest, _Search)
    slices = large.lists.get("vectors")
    if slices is not None:
        _check_queries(slices.count)
        slices.require_elements_within(COMPONENTS_BYTES_MAX)
        request.vectors = [
            # A copy, since a raw value keeps the memory of the slice around it.
            msgspec.Raw(bytes(raw))
            for first, text in slices
            for raw in _raw_values(slices, first, text)
        ]
    return request


def _raw_values(slices: Slices, first: int, text: bytes) -> list[msgspec.Raw]:
    try:
        return slices.decode(first, text, _RAW_VALUES)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadData(
            f"vectors, from entry {first} on, is not valid JSON: {explained_in_quotes(error, Any)}"
        ) from error


def from_protobuf(body: bytes) -> SearchRequest:
    request, vectors = _parsed(body)
    single, several = bool(request.vector), bool(vectors)
    arrays = [_components(request.vector, "vector")] if single else vectors
    by_text = request.HasField("text")
    own_id = id_bytes(request.id, "id") if request.id else b""
    k = request.k or K_DEFAULT
    _check_id(own_id, given=single or several, grouped=request.HasField("group_by"))
    _check_shape(single, several, len(arrays), bool(own_id) or by_text, request.HasField("filter"))
    return _checked(
        SearchRequest(
            request.collection,
            np.concatenate([np.zeros(0, np.float32), *arrays]),
            [len(array) for array in arrays],
            several,
            k,
            tuple(request.include_fields) or None,
            filters.from_protobuf_filter(request.filter) if request.HasField("filter") else None,
            request.expansion,
            request.exact,
            text.from_protobuf(request.text) if by_text else None,
            fusion.from_protobuf(request.fusion) if request.HasField("fusion") else None,
            _checked_recall(request.recall if request.HasField("recall") else None, request.expansion),
            refinements.from_protobuf(request, k, batch=several, rankings=single + several + bool(own_id) + by_text),
            own_id,
        )
    )


def _parsed(body: bytes) -> tuple[vector_pb2.SearchRequest, list[Floats]]:
    """(the request, without its `vectors` if it is large; the components of these)."""
    if len(body) < SLICED_BYTES_MIN:
        request = parse_protobuf(body, vector_pb2.SearchRequest())
        requests: Iterable[vector_pb2.SearchRequest] = [request]
        _check_queries(len(request.vectors))
    else:
        large = LargeMessage(body, _VECTORS_FIELD, "vectors", QUERIES_MAX, REST_BYTES_MAX)
        _check_queries(large.list.count)
        large.list.require_elements_within(COMPONENTS_BYTES_MAX)
        request = parse_protobuf(large.rest, vector_pb2.SearchRequest())
        requests = (parse_protobuf(text, vector_pb2.SearchRequest()) for _, text in large.list)
    vectors: list[Floats] = []
    for piece in requests:
        vectors += [_components(vector.values, f"vectors[{len(vectors)}]") for vector in piece.vectors]
    return request, vectors


def _components(values: Sequence[float], label: str) -> Floats:
    if len(values) > DIMENSION_MAX:
        raise BadData(f"{label} has {len(values)} components; it may have at most {DIMENSION_MAX}")
    return np.array(values, dtype=np.float32)


def _check_queries(count: int) -> None:
    if count > QUERIES_MAX:
        raise BadData(f"vectors has {count} entries; at most {QUERIES_MAX} are searched at once")


def _check_id(own_id: bytes, *, given: bool, grouped: bool) -> None:
    if own_id and given:
        raise BadData("id is given beside vector or vectors; a search has one of them")
    if own_id and grouped:
        raise BadData("groupBy and id are both given; a search with groups has a vector or a text")


def _check_shape(single: bool, several: bool, count: int, by_text: bool, condition: bool) -> None:
    if single and several:
        raise BadData("vector and vectors are both given; a search has one of them")
    if not single and not by_text and not count and (several or not condition):
        field_name = "vectors is empty" if several else "vector is missing or empty"
        raise BadData(f"{field_name}; a search needs a vector, vectors, an id, text or a filter")
    if several and by_text:
        raise BadData("vectors and text are both given; a hybrid search has one vector")
    _check_queries(count)


def _checked_recall(recall: float | None, expansion: int) -> float:
    """The recall of a request, 0 if it has none."""
    if recall is None:
        return 0.0
    if not RECALL_MIN <= recall <= RECALL_MAX:
        raise BadData(f"recall is {recall:g}; it must be {RECALL_MIN} to {RECALL_MAX} (exact has recall 1)")
    if expansion:
        raise BadData(f"recall is {recall:g} and expansion is {expansion}; a search has one of them")
    return recall


def _checked(request: SearchRequest) -> SearchRequest:
    if not 1 <= request.k <= K_MAX:
        raise BadData(f"k is {request.k}; it must be 1 to {K_MAX}")
    depth = request.k + request.refinement.offset
    if depth * len(request.counts) > RESULTS_MAX:
        raise BadData(
            f"k and offset are {depth} together, for {len(request.counts)} vectors; "
            f"at most {RESULTS_MAX} results are given at once"
        )
    if not 0 <= request.expansion <= EXPANSION_MAX:
        raise BadData(f"expansion is {request.expansion}; it must be 0 (chosen here) to {EXPANSION_MAX}")
    if request.fields is not None and len(request.fields) > FIELDS_MAX:
        raise BadData(f"includeFields has {len(request.fields)} entries; at most {FIELDS_MAX} are allowed")
    if request.fusion is not None and not (request.text is not None and (request.counts or request.id)):
        raise BadData("fusion is given, but only a search with vector and text has two rankings to fuse")
    return request
