"""Bodies of the vector area in JSON and protobuf, in one piece and in slices, and filters over a few rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from coordinator.direct.searches import split_vector
from coordinator.parsing import large_bodies
from coordinator.vectors import changes, decode, decode_protobuf, facets, filters, map_request, scroll, search
from coordinator.vectors.decode import Upserts
from proto import vector_pb2
from shared.errors import BadData, TooLarge
from shared.messages.selected_vectors import Position
from shared.messages.vectors import Collection, Condition
from tests.fuzz.target import Target
from tests.fuzz.thresholds import lowered
from worker.vectors.attributes import Attributes

SMALL_SLICE_BYTES = 48
_SLICING = (changes, decode, decode_protobuf, search)


def _both_ways(read: Callable[[bytes], Any], shown: Callable[[Any], Any], data: bytes) -> None:
    """A body that is read in one piece and in slices gives the same, where both accept it."""
    whole = _outcome(read, shown, data)
    with lowered("SLICED_BYTES_MIN", 0, *_SLICING), lowered("SLICE_BYTES", SMALL_SLICE_BYTES, large_bodies):
        sliced = _outcome(read, shown, data)
    if not isinstance(whole, str) and not isinstance(sliced, str):
        assert whole == sliced, f"in one piece it is {whole}, in slices {sliced}"
    read(data)


def _outcome(read: Callable[[bytes], Any], shown: Callable[[Any], Any], data: bytes) -> Any:
    try:
        return shown(read(data))
    except (BadData, TooLarge) as error:
        return str(error)


def _upserts(content: Upserts) -> Any:
    flat = content.flat.view(np.uint32).tolist()
    return content.collection, content.ids, flat, content.counts.tolist(), content.attributes


def _request(content: search.SearchRequest) -> Any:
    flat = content.flat.view(np.uint32).tolist()
    rest = repr((content.filter, content.text, content.fusion, content.id))
    return content.collection, flat, content.counts, content.k, rest


def _same(content: Any) -> Any:
    return content


def _apart(data: bytes) -> None:
    """A search whose vector is read apart from the rest of its body is the same as one that is read whole."""
    shape_and_vector = split_vector(data)
    whole = _outcome(search.from_json, _whole, data)
    if shape_and_vector is not None:
        shape, text = shape_and_vector

        def joined(text: bytes) -> search.SearchRequest:
            flat, counts = decode.numbers([text], lambda place: "vector")
            return replace(shape.request, flat=flat, counts=counts.tolist())

        assert whole == (found := _outcome(joined, _whole, text)), f"whole it is {whole}, apart {found}"
    search.from_json(data)


def _whole(content: search.SearchRequest) -> Any:
    return content.flat.view(np.uint32).tolist(), repr(replace(content, flat=content.flat[:0]))


def _table(data: bytes) -> None:
    content = decode.write_from_json(data)
    content.last_wins(content.matrix(Collection(1, "c", content.dimension(), "cosine", "f32")))


ROWS = [
    {"name": "a", "n": 1, "x": 0.5, "on": True},
    {"name": "b", "n": -(1 << 63), "x": -0.0},
    {"n": (1 << 63) - 1, "x": 1e308, "name": ""},
    {},
    {"name": 7, "n": "text", "on": 0, "x": 1},
    {"name": ["a", "b", "a"], "n": [1, 2.5], "on": [], "x": [True]},
    {"name": "2026-01-01T00:00:00Z", "n": ["2026-01-01t02:00:00.5+02:00"]},
]


def _columns() -> Attributes:
    columns = Attributes()
    columns.append(0, [msgspec.msgpack.encode(row) if row else b"" for row in ROWS])
    return columns


_PLAIN, _INDEXED = _columns(), _columns()
_INDEXED.build_index(len(ROWS))


def _filter_json(data: bytes) -> None:
    try:
        content = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    _matched(filters.from_json(content))


def _filter_protobuf(data: bytes) -> None:
    _matched(filters.from_protobuf_filter(decode_protobuf.parse_protobuf(data, vector_pb2.Filter())))


def _matched(condition: Condition) -> None:
    """The index finds what a comparison of all rows finds; the condition is the same after it was sent."""
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(condition), type=Condition)
    rows, indexed = _PLAIN.mask(sent, len(ROWS)).tolist(), _INDEXED.mask(sent, len(ROWS)).tolist()
    assert rows == indexed, f"the index finds {indexed}, a comparison of all rows {rows}"


# Inputs


def writes() -> Iterator[bytes]:
    vectors = [{"id": f"v{i}", "attributes": {"vector": [i, 0.5, -1e3], "name": "a", "n": i}} for i in range(3)]
    yield json.dumps({"upsertVectors": vectors}).encode()
    yield json.dumps({"upsert_vectors": vectors[:1], "collection": "c"}).encode()
    arrays = {"vector": [1, 0.5], "name": ["a", "b"], "n": None, "x": [1, 0.5]}
    yield json.dumps({"upsertVectors": [{"id": "v", "attributes": arrays}]}).encode()


def _proto_writes() -> Iterator[bytes]:
    request = vector_pb2.WriteRequest(collection="c")
    for i in range(3):
        vector = request.upsert_vectors.add(id=f"v{i}")
        vector.attributes["vector"].vector_value.values.extend([i, 0.5])
        yield request.SerializeToString()
        vector.attributes["name"].string_value = "a"
        vector.attributes["n"].int64_value = -i
        vector.attributes["tags"].array_value.values.add(string_value="a")
        vector.attributes["x"].MergeFrom(vector_pb2.AttributeValue(null_value="NULL_VALUE"))
    yield request.SerializeToString()


def _searches() -> Iterator[bytes]:
    yield b'{"vector":[1,0.5],"k":3,"filter":{"and":[{"eq":{"field":"name","value":"a"}},{"not":{"exists":"n"}}]}}'
    yield b'{"vectors":[[1,2],[3,4]],"includeFields":["name"],"expansion":7,"exact":true,"collection":"c"}'
    yield b'{"vector":[1,2],"recall":0.99}'
    yield b'{"text":{"field":"name","query":"word"},"vector":[1]}'
    yield b'{"text":{"fields":{"name":2.5},"query":"+a \\"b c\\"~2 d* -e","operator":"and","highlight":{"preTag":"["}}}'
    yield b'{"text":{"query":"a"},"vector":[1],"fusion":{"method":"linear","weights":{"text":0.5},"rank_constant":1}}'
    yield b'{"vector":[1],"offset":2,"scoreThreshold":0.5}'
    yield b'{"vector":[1],"groupBy":{"field":"name","groups":2,"perGroup":2}}'
    yield b'{"filter":{"exists":"name"}}'
    yield b'{"id":"v1","k":3,"text":{"query":"a"}}'


def _apart_searches() -> Iterator[bytes]:
    yield b'{"k":3,"includeFields":[],"vector":[1,0.5e-3],"filter":{"eq":{"field":"\\"vector\\":[1]","value":"a"}}}'
    yield b'{"vector" : [ -1, 2.0 ],"include_fields":[],"collection":"c","offset":2,"recall":0.9}'


def _proto_searches() -> Iterator[bytes]:
    request = vector_pb2.SearchRequest(vector=[1, 2], k=3, include_fields=["name"])
    compared = getattr(request.filter, "and").filters.add().eq
    compared.field, compared.value.string_value = "name", "a"
    yield request.SerializeToString()
    yield vector_pb2.SearchRequest(vectors=[vector_pb2.VectorValue(values=[1, 2])] * 2, k=1).SerializeToString()
    hybrid = vector_pb2.SearchRequest(vector=[1, 2], k=3)
    hybrid.text.query, hybrid.text.fields["name"], hybrid.text.highlight.pre_tag = '"a b"~1 c*', 2.0, "["
    hybrid.fusion.method, hybrid.fusion.weights.text = "linear", 0.5
    yield hybrid.SerializeToString()
    yield vector_pb2.SearchRequest(id="v1", k=3).SerializeToString()


def _filters() -> Iterator[bytes]:
    yield b'{"and":[{"eq":{"field":"name","value":"a"}},{"lt":{"field":"n","value":2.5}},{"not":{"exists":"x"}}]}'
    yield b'{"or":[{"containsAll":{"field":"name","values":["a","b"]}},{"eq":{"field":"n","value":null}}]}'
    yield b'{"or":[{"containsAny":{"field":"x","values":[1]}},{"lt":{"field":"n","value":"2026-01-01T00:00:01Z"}}]}'
    yield b'{"or":{"filters":[{"in":{"field":"n","values":[1,"text",true]}},{"gte":{"field":"x","value":1}}]}}'


def _proto_filters() -> Iterator[bytes]:
    for text in ("name", "n"):
        condition = vector_pb2.Filter()
        condition.gte.field = text
        condition.gte.value.int64_value = 1
        contained = vector_pb2.Filter()
        contained.contains_all.field = text
        contained.contains_all.values.add(string_value="a")
        outer = vector_pb2.Filter()
        getattr(outer, "or").filters.extend([condition, contained])
        getattr(getattr(outer, "or").filters.add(), "not").exists.field = text
        yield outer.SerializeToString()


_VALUES: st.SearchStrategy[Any] = (
    st.sampled_from(("a", "", "text", True, False, None, 0, -0.0, 1e308, [], {}))
    | st.sampled_from(("2026-01-01T00:00:00Z", "2026-01-01 00:00:00.5+00:00", "2026-01-01"))
    | st.integers()
    | st.floats()
)
_COMPONENTS = st.lists(_VALUES | st.integers(-9, 9), max_size=4) | st.lists(st.floats(width=32), max_size=3)


def write_strategy() -> st.SearchStrategy[bytes]:
    names = st.sampled_from(("vector", "name", "n", "")) | st.text(max_size=3)
    attributes = st.dictionaries(names, _VALUES | _COMPONENTS, max_size=3)
    usual = st.builds(lambda rest, vector: {**rest, "vector": vector}, attributes, _COMPONENTS)
    vector = st.fixed_dictionaries({"id": st.text(max_size=4) | _VALUES, "attributes": usual | attributes})
    return st.builds(
        lambda name, vectors: json.dumps({name: vectors}).encode(),
        st.sampled_from(("upsertVectors", "upsertVectors", "upsert_vectors")),
        st.lists(vector, max_size=4),
    )


def filter_strategy() -> st.SearchStrategy[bytes]:
    fields = st.sampled_from(("name", "n", "x", "on", "other", "vector", ""))
    compared = st.builds(
        lambda op, field, value: {op: {"field": field, "value": value}},
        st.sampled_from(("eq", "neq", "lt", "lte", "gt", "gte", "contains")),
        fields,
        _VALUES,
    )
    members = st.builds(
        lambda op, field, v: {op: {"field": field, "values": v}},
        st.sampled_from(("in", "containsAny", "contains_all")),
        fields,
        st.lists(_VALUES, max_size=3),
    )
    exists = fields.map(lambda field: {"exists": field})
    tree = st.recursive(
        compared | members | exists,
        lambda inner: (
            st.builds(lambda op, all_of: {op: all_of}, st.sampled_from(("and", "or")), st.lists(inner, max_size=3))
            | inner.map(lambda one: {"not": one})
        ),
        max_leaves=6,
    )
    return tree.map(lambda content: json.dumps(content).encode())


_TOKENS = (
    "upsertVectors", "upsert_vectors", "attributes", "vector", "vectors", "filter", "includeFields", "collection",
    "and", "or", "not", "in", "exists", "field", "value", "values", "gte", "ids", "k", "exact", "expansion",
    "text", "query", "operator", "highlight", "fields", "fusion", "weights", "linear", "contains", "containsAny",
    "containsAll", "recall", "set", "unset", "orderBy", "direction", "desc", "pageToken", "groupBy", "offset",
    "id", "attribute", "limit",
    "NaN", "1e999", "null", "\\u0000", "\\ud800",
)  # fmt: skip
_IDS = [b'{"ids":["a","b"],"collection":"c"}', b'{"ids":["\\u00e9"],"includeFields":["n"]}']


def _protobuf_ids(request: Any) -> list[bytes]:
    return [request(ids=["a", "\u00e9"], collection="c").SerializeToString()]


def _deletes() -> Iterator[bytes]:
    yield b'{"ids":["a","b"],"collection":"c"}'
    yield b'{"filter":{"eq":{"field":"name","value":"a"}}}'


def _updates() -> Iterator[bytes]:
    yield b'{"ids":["a"],"set":{"name":"b","n":2.0},"unset":["x"],"collection":"c"}'
    yield b'{"filter":{"exists":"n"},"unset":["x","name"]}'


def _proto_updates() -> Iterator[bytes]:
    request = vector_pb2.UpdateRequest(ids=["a"], unset=["x"])
    request.set["name"].string_value = "b"
    yield request.SerializeToString()


_FIRST = scroll.from_json(b'{"orderBy":{"field":"n","direction":"desc"}}')


def _tokens() -> Iterator[bytes]:
    for value in (None, 7, 0.5, "text", True):
        yield scroll.token_of(_FIRST, Position(value, b"v1")).encode()


def _token(data: bytes) -> None:
    """A token that is accepted names a position, and the position gives such a token again."""
    token = data.decode(errors="replace")
    asked = {"orderBy": {"field": "n", "direction": "desc"}, "pageToken": token}
    after = scroll.from_json(json.dumps(asked).encode()).after
    if after is not None:
        again = {**asked, "pageToken": scroll.token_of(_FIRST, after)}
        assert repr(scroll.from_json(json.dumps(again).encode()).after) == repr(after)


def _scrolls() -> Iterator[bytes]:
    yield b'{"limit":5,"filter":{"exists":"n"},"orderBy":{"field":"n"},"includeFields":["n"],"collection":"c"}'
    yield b'{"pageToken":"%s"}' % scroll.token_of(scroll.from_json(b"{}"), Position(None, b"v1")).encode()


def _proto_scrolls() -> Iterator[bytes]:
    order = vector_pb2.OrderBy(field="n", direction="desc")
    yield vector_pb2.ScrollRequest(limit=5, order_by=order, include_fields=["n"]).SerializeToString()


def _facets() -> Iterator[bytes]:
    yield b'{"field":"n","limit":5,"filter":{"exists":"n"},"collection":"c"}'


def _proto_facets() -> Iterator[bytes]:
    yield vector_pb2.FacetsRequest(field="n", limit=5).SerializeToString()


def _maps() -> Iterator[bytes]:
    yield b'{"attribute":"n","limit":5,"filter":{"exists":"n"},"collection":"c"}'


def _proto_maps() -> Iterator[bytes]:
    yield vector_pb2.MapRequest(attribute="n", limit=5, collection="c").SerializeToString()


TARGETS = [
    Target("vector-write-json", partial(_both_ways, decode.write_from_json, _upserts), writes, write_strategy,
           tokens=_TOKENS),
    Target("vector-table", _table, writes, write_strategy, tokens=_TOKENS),
    Target("vector-write-protobuf", partial(_both_ways, decode_protobuf.write_from_protobuf, _upserts), _proto_writes),
    Target("vector-delete", partial(_both_ways, changes.delete_from_json, repr), _deletes, tokens=_TOKENS),
    Target("vector-delete-protobuf", changes.delete_from_protobuf, partial(_protobuf_ids, vector_pb2.DeleteRequest)),
    Target("vector-update", partial(_both_ways, changes.update_from_json, repr), _updates, tokens=_TOKENS),
    Target("vector-update-protobuf", changes.update_from_protobuf, _proto_updates),
    Target("vector-scroll", scroll.from_json, _scrolls, tokens=_TOKENS),
    Target("vector-scroll-protobuf", scroll.from_protobuf, _proto_scrolls),
    Target("vector-token", _token, _tokens),
    Target("vector-facets", facets.facets_from_json, _facets, tokens=_TOKENS),
    Target("vector-facets-protobuf", facets.facets_from_protobuf, _proto_facets),
    Target("vector-map", map_request.from_json, _maps, tokens=_TOKENS),
    Target("vector-map-protobuf", map_request.from_protobuf, _proto_maps),
    Target("vector-get", partial(_both_ways, decode.get_from_json, _same), lambda: _IDS, tokens=_TOKENS),
    Target("vector-search-json", partial(_both_ways, search.from_json, _request), _searches, tokens=_TOKENS),
    Target("vector-search-apart", _apart, _apart_searches, tokens=_TOKENS),
    Target("vector-search-protobuf", partial(_both_ways, search.from_protobuf, _request), _proto_searches),
    Target("vector-filter-json", _filter_json, _filters, filter_strategy, tokens=_TOKENS),
    Target("vector-filter-protobuf", _filter_protobuf, _proto_filters),
]  # fmt: skip
