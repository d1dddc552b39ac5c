"""Vector requests as they arrive: numbers, ids, attributes and filters, in JSON and protobuf."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.vectors import decode, search
from coordinator.vectors import filters as vector_filters
from coordinator.vectors.catalogue import Catalogue
from coordinator.vectors.decode import VECTORS_MAX, Upserts, decode_json, write_from_json
from coordinator.vectors.decode_protobuf import write_from_protobuf
from coordinator.vectors.numbers import parse_arrays
from proto import vector_pb2
from shared.control import LocalControl
from shared.errors import BadData, ConfigError, NotFound, TooLarge
from shared.messages.vectors import Collection, Condition
from shared.settings import Settings
from worker.vectors.attributes import Attributes

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(FLOATS | st.integers(-(10**25), 10**25), max_size=20), min_size=1, max_size=4))
def test_numbers_of_arrays_are_those_of_the_json_decoder(arrays: list[list[float]]) -> None:
    texts = [json.dumps(array).encode() for array in arrays]
    flat, counts = parse_arrays(texts)
    with np.errstate(over="ignore"):
        expected = np.array([float(x) for array in arrays for x in array]).astype(np.float32)
    assert counts.tolist() == [len(array) for array in arrays]
    np.testing.assert_array_equal(flat, expected)


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=50))
def test_float32_written_as_text_is_read_back_bit_for_bit(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    short = "[" + ", ".join(str(value) for value in array) + "]"
    for text in (short, json.dumps(array.tolist())):
        np.testing.assert_array_equal(parse_arrays([text.encode()])[0].view(np.int32), array.view(np.int32))


def test_numbers_at_the_edge_of_float32_round_as_doubles_do() -> None:
    texts = [
        "1.00000005960464477539",
        "1.0000000596046448",
        "16777217",
        "3.4028235677973366e38",
        "1e-45",
        "7e-46",
        "-0",
    ]
    flat, _ = parse_arrays([f"[ {text} ]".encode() for text in texts])
    with np.errstate(over="ignore"):
        expected = np.array([float(text) for text in texts]).astype(np.float32)
    np.testing.assert_array_equal(flat.view(np.int32), expected.view(np.int32))


def protobuf(vectors: dict[str, dict]) -> bytes:
    request = vector_pb2.WriteRequest(collection="c")
    for name, attributes in vectors.items():
        vector = request.upsert_vectors.add(id=name)
        for key, value in attributes.items():
            into = vector.attributes[key]
            if isinstance(value, list):
                into.vector_value.values.extend(value)
            elif isinstance(value, str):
                into.string_value = value
            elif isinstance(value, bool):
                into.bool_value = value
            elif isinstance(value, int):
                into.int64_value = value
            else:
                into.float64_value = value
    return request.SerializeToString()


def as_json(vectors: dict[str, dict]) -> bytes:
    upserts = [{"id": name, "attributes": attributes} for name, attributes in vectors.items()]
    return json.dumps({"upsertVectors": upserts, "collection": "c"}).encode()


def content(upserts: Upserts) -> list[tuple]:
    attributes = [msgspec.msgpack.decode(packed) if packed else {} for packed in upserts.attributes]
    ends = np.cumsum(upserts.counts).tolist()
    vectors = [upserts.flat[end - count : end].tolist() for end, count in zip(ends, upserts.counts, strict=True)]
    return list(zip(upserts.ids, vectors, attributes, strict=True))


VALUES = st.text(max_size=5) | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOATS
NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name != "vector")
VECTORS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5)
ENTRIES = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.builds(lambda vector, rest: {"vector": vector, **rest}, VECTORS, st.dictionaries(NAMES, VALUES, max_size=3)),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(ENTRIES)
def test_json_and_protobuf_of_the_same_vectors_are_read_alike(vectors: dict[str, dict]) -> None:
    expected = [
        (name.encode(), entry["vector"], {k: v for k, v in entry.items() if k != "vector"})
        for name, entry in vectors.items()
    ]
    assert content(write_from_json(as_json(vectors))) == expected
    found = content(write_from_protobuf(protobuf(vectors)))
    assert [(name, vector) for name, vector, _ in found] == [(name, vector) for name, vector, _ in expected]
    assert [sorted(a.items()) for _, _, a in found] == [sorted(a.items()) for _, _, a in expected]


@settings(max_examples=200, deadline=None)
@given(ENTRIES, st.data())
def test_damaged_protobuf_is_refused_or_read_but_never_fails(vectors: dict[str, dict], data: st.DataObject) -> None:
    body = bytearray(protobuf(vectors))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    try:
        write_from_protobuf(bytes(body[: data.draw(st.integers(0, len(body)))]))
    except (BadData, TooLarge) as error:
        assert str(error)


def test_unpacked_floats_and_fields_out_of_order_are_read() -> None:
    unpacked = b"\x0d" + np.float32(1.5).tobytes() + b"\x0d" + np.float32(2.5).tobytes()
    value = b"\x2a" + bytes([len(unpacked)]) + unpacked
    entry = b"\x12" + bytes([len(value)]) + value + b"\x0a\x06vector"
    vector = b"\x1a" + bytes([len(entry)]) + entry + b"\x0a\x01a"
    upserts = write_from_protobuf(b"\x0a" + bytes([len(vector)]) + vector)
    assert content(upserts) == [(b"a", [1.5, 2.5], {})]


def test_proto_names_are_read_as_json_names_are() -> None:
    body = b'{"upsert_vectors": [{"id": "a", "attributes": {"vector": [1]}}]}'
    assert content(write_from_json(body)) == [(b"a", [1.0], {})]


def test_too_many_vectors_are_refused() -> None:
    most = {f"{n}": {"vector": [1.0]} for n in range(VECTORS_MAX)}
    assert len(write_from_json(as_json(most)).ids) == len(write_from_protobuf(protobuf(most)).ids) == VECTORS_MAX
    more = {**most, "one more": {"vector": [1.0]}}
    with pytest.raises(TooLarge, match=f"upsertVectors has {VECTORS_MAX + 1} entries"):
        write_from_json(as_json(more))
    with pytest.raises(TooLarge, match="upsertVectors"):
        write_from_protobuf(protobuf(more))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"vector": [1], "vectors": [[1]]}, "vector and vectors"),
        ({"vectors": []}, "vectors is empty"),
        ({"vector": [1], "k": 10_001}, "k is 10001"),
        ({"vectors": [[1]] * 1001}, "1001"),
        ({"vectors": [[1]] * 100, "k": 1001}, "100000"),
        ({"vector": [1], "expansion": -1}, "expansion"),
        ({"vector": {"a": 1}}, "vector"),
        ({"vectors": [[1], ["x"]]}, r"vectors\[1\]: component 0"),
        ({"text": {"field": "body", "query": ""}}, "text.query"),
        ({"text": {"field": "body"}}, "query"),
    ],
)
def test_bad_searches_are_refused(body: dict, words: str) -> None:
    with pytest.raises(BadData, match=words):
        search.from_json(json.dumps(body).encode())


def filters() -> st.SearchStrategy:
    field = st.sampled_from(["a", "b"])
    value = st.sampled_from([0, 1, 2, -1, 0.5, 1.0, math.pi, 2**53 + 1, 2**63 - 1, "x", "y", "", True, False])
    leaf = st.one_of(
        st.builds(
            lambda op, f, v: {op: {"field": f, "value": v}},
            st.sampled_from(["eq", "neq", "lt", "lte", "gt", "gte"]),
            field,
            value,
        ),
        st.builds(lambda f, v: {"in": {"field": f, "values": v}}, field, st.lists(value, min_size=1, max_size=3)),
        st.builds(lambda f: {"exists": {"field": f}}, field),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(
                lambda op, children: {op: children},
                st.sampled_from(["and", "or"]),
                st.lists(inner, min_size=1, max_size=3),
            ),
            st.builds(lambda child: {"not": child}, inner),
        ),
        max_leaves=6,
    )


ROW_VALUES = st.sampled_from([0, 1, 2, -1, 0.5, 1.0, 2**53, 2**53 + 1, 2**63 - 1, "x", "y", "z", "", True, False])


def satisfies(row: dict, condition: dict) -> bool:
    """What the documentation says a filter means."""
    [(op, operand)] = condition.items()
    if op in ("and", "or"):
        return (all if op == "and" else any)(satisfies(row, child) for child in operand)
    if op == "not":
        return not satisfies(row, operand)
    value = row.get(operand["field"])
    if op == "exists":
        return value is not None

    def kind(x: object) -> str:
        return "bool" if isinstance(x, bool) else "text" if isinstance(x, str) else "number"

    def equal(x: object) -> bool:
        return value is not None and kind(value) == kind(x) and value == x

    if op in ("eq", "neq"):
        return equal(operand["value"]) == (op == "eq")
    if op == "in":
        return any(map(equal, operand["values"]))
    edge = operand["value"]
    if value is None or kind(value) != kind(edge):
        return False
    return {"lt": value < edge, "lte": value <= edge, "gt": value > edge, "gte": value >= edge}[op]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), ROW_VALUES), min_size=1, max_size=12), filters())
def test_filters_mean_what_they_say(rows: list[dict], condition: dict) -> None:
    attributes = Attributes()
    for start in range(0, len(rows), 5):
        attributes.append(start, [msgspec.msgpack.encode(row) if row else b"" for row in rows[start : start + 5]])
    mask = attributes.mask(vector_filters.from_json(condition), len(rows))
    assert mask.tolist() == [satisfies(row, condition) for row in rows]


def test_filters_of_protobuf_and_json_are_the_same_tree() -> None:
    message = vector_pb2.Filter()
    both = getattr(message, "and")
    both.filters.add().eq.MergeFrom(vector_pb2.Comparison(field="a", value=vector_pb2.AttributeValue(string_value="x")))
    getattr(both.filters.add(), "not").exists.field = "b"
    found = vector_filters.from_protobuf_filter(message)
    assert found == vector_filters.from_json({"and": [{"eq": {"field": "a", "value": "x"}}, {"not": {"exists": "b"}}]})
    assert found.children[0] == Condition("eq", "a", ("x",))
    with pytest.raises(BadData, match="operator"):
        vector_filters.from_protobuf_filter(vector_pb2.Filter())


def test_catalogue_keeps_collections_and_never_reuses_their_numbers(tmp_path) -> None:
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    first = catalogue.create(Collection(0, "a", 3, "cosine", "f32"))
    assert catalogue.create(Collection(0, "a", 3, "cosine", "f32")) == first
    with pytest.raises(BadData, match=r"dimension 3, .* cannot become dimension 4"):
        catalogue.create(Collection(0, "a", 4, "cosine", "f32"))
    catalogue.remove("a")
    again = Catalogue(LocalControl(tmp_path / "vector"))
    again.load()
    with pytest.raises(NotFound, match="'a'"):
        again.get("a")
    assert again.create(Collection(0, "a", 4, "l2", "f16", ("body",))) == Collection(
        first.id + 1, "a", 4, "l2", "f16", ("body",)
    )
    (tmp_path / "vector" / "collections.json").write_text("{")
    mended = Catalogue(LocalControl(tmp_path / "vector"))
    mended.load()
    assert mended.all() == again.all()
    for name in ("collections.json", "collections.copy.json"):
        (tmp_path / "vector" / name).write_text("{")
    lost = Catalogue(LocalControl(tmp_path / "vector"))
    lost.load()
    assert not lost.is_known
    (tmp_path / "vector" / "collections.json").unlink()
    (tmp_path / "vector" / "collections.json").mkdir()
    with pytest.raises(ConfigError, match=r"collections\.json"):
        Catalogue(LocalControl(tmp_path / "vector")).load()


def test_settings_of_vectors_are_checked() -> None:
    with pytest.raises(ConfigError, match="TRIPTYCH_VECTOR_METRIC is 'hamming'"):
        Settings(vector_metric="hamming")
    with pytest.raises(ConfigError, match="TRIPTYCH_VECTOR_STORAGE"):
        Settings(vector_storage="i8", vector_metric="l2")


# What is refused, by its place


def vector_message(**attributes: object) -> bytes:
    request = vector_pb2.WriteRequest()
    vector = request.upsert_vectors.add(id="a")
    vector.attributes["vector"].vector_value.values.extend([1.0])
    for name, value in attributes.items():
        setattr(vector.attributes[name], {str: "string_value", bool: "bool_value"}[type(value)], value)
    return request.SerializeToString()


def test_a_damaged_message_is_refused() -> None:
    with pytest.raises(BadData, match=r"the body is not a protobuf triptych\.vector\.v1\.WriteRequest"):
        write_from_protobuf(b"\xff\xff")


def test_vectors_without_other_attributes_lie_between_others() -> None:
    bodies = [vector_message(), vector_message(colour="red"), vector_message()]
    read = write_from_protobuf(b"".join(bodies))
    packed = [msgspec.msgpack.decode(one) if one else {} for one in read.attributes]
    assert packed == [{}, {"colour": "red"}, {}]
    assert (read.flat.tolist(), read.counts.tolist(), read.ids) == ([1, 1, 1], [1, 1, 1], [b"a"] * 3)


def test_texts_of_a_message_are_utf_8() -> None:
    body = vector_message()
    assert body.count(b"a") >= 1
    with pytest.raises(BadData, match=r"is not UTF-8 text|not a protobuf"):
        write_from_protobuf(body.replace(b"\n\x01a", b"\n\x01\xff"))


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        (lambda vector: None, r"'a', field attributes\.vector is missing"),
        (lambda vector: setattr(vector.attributes["vector"], "bool_value", True), "it must be a vector_value"),
        (lambda vector: vector.attributes["vector"].SetInParent(), "it must be a vector_value"),
    ],
)
def test_a_vector_without_its_components_is_refused(fill: object, words: str) -> None:
    request = vector_pb2.WriteRequest()
    fill(request.upsert_vectors.add(id="a"))  # type: ignore[operator]
    with pytest.raises(BadData, match=words):
        write_from_protobuf(request.SerializeToString())


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(BadData, match="the body is nested too deeply"):
        decode_json(b"[" * 200_000, list)  # type: ignore[type-var]


def test_attributes_that_are_no_plain_values_are_refused_in_protobuf() -> None:
    request = vector_pb2.WriteRequest()
    vector = request.upsert_vectors.add(id="a")
    vector.attributes["vector"].vector_value.values.extend([1.0])
    vector.attributes["x"].SetInParent()
    with pytest.raises(BadData, match=r"attributes\.x: no value; it must be a string, an integer, a float or a bool"):
        write_from_protobuf(request.SerializeToString())
    vector.attributes["x"].vector_value.values.extend([1.0])
    with pytest.raises(BadData, match=r"attributes\.x: a vector; it must be"):
        write_from_protobuf(request.SerializeToString())


def test_arrays_that_are_no_json_are_named_by_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def label(place: int) -> str:
        return f"vector {place}"

    with pytest.raises(BadData, match=r"vector 1: .*; every component must be a finite 32-bit float"):
        decode.numbers([b"[1]", b"[1,x"], label)

    def refuse(arrays: object) -> None:
        raise OverflowError

    monkeypatch.setattr(decode, "parse_arrays", refuse)
    with pytest.raises(BadData, match="vector 0 holds something that is not a number"):
        decode.numbers([b"[1]"], label)
    with pytest.raises(BadData, match="vector 1: component 2 is not a finite 32-bit float"):
        decode.numbers([b"[1]", b"[1,-1.5," + b"9" * 309 + b"]"], label)
    with pytest.raises(BadData, match="vector 0: component 0 is False; it must be a number"):
        decode.numbers([b"[false]"], label)
    with pytest.raises(BadData, match=r"vector 0 is \{\}; it must be an array of numbers"):
        decode.numbers([b"{}"], label)


@pytest.mark.parametrize("name", ["includeFields", "include_fields"])
@pytest.mark.parametrize("ids", [["a"], ["a" * 64] * 1000], ids=["small", "large"])
def test_a_read_names_a_bounded_number_of_fields(name: str, ids: list[str]) -> None:
    def body(fields: int) -> bytes:
        return json.dumps({"ids": ids, name: ["f"] * fields}).encode()

    assert (len(body(1)) >= decode.SLICED_BYTES_MIN) == (len(ids) > 1)
    _, _, fields = decode.get_from_json(body(decode.FIELDS_MAX))
    assert fields == ("f",) * decode.FIELDS_MAX
    with pytest.raises(BadData, match=f"includeFields has {decode.FIELDS_MAX + 1} entries"):
        decode.get_from_json(body(decode.FIELDS_MAX + 1))
