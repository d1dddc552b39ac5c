"""Limits of vector requests: the last value that is taken and the first that is refused, and what the refusal says."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.vectors import catalogue as catalogue_module
from coordinator.vectors import filters as vector_filters
from coordinator.vectors.catalogue import TEXT_FIELDS_MAX, Catalogue, check
from coordinator.vectors.decode import (
    IDS_MAX,
    Upserts,
    check_components,
    check_ids,
    ids_from_json,
    write_from_json,
)
from coordinator.vectors.decode_protobuf import write_from_protobuf
from coordinator.vectors.filters import DEPTH_MAX, NODES_MAX, VALUES_MAX
from coordinator.vectors.merging import Hits, fuse
from coordinator.vectors.numbers import find_unusable, parse_arrays
from coordinator.vectors.values import (
    ATTRIBUTES_MAX,
    NAME_BYTES_MAX,
    SHOWN_MAX,
    TEXT_BYTES_MAX,
    check_value,
    id_bytes,
    pack_attributes,
    shown,
)
from coordinator.vectors.walk import walk_write
from proto import vector_pb2
from shared.control import LocalControl
from shared.errors import BadData, TooLarge, Unavailable
from shared.messages.vectors import DIMENSION_MAX, ID_BYTES_MAX, Collection

EQ = {"eq": {"field": "a", "value": 1}}


# Filters


def nested(depth: int) -> dict:
    condition: dict = EQ
    for _ in range(depth - 1):
        condition = {"not": condition}
    return condition


def wrapped(op: str, children: list[vector_pb2.Filter]) -> vector_pb2.Filter:
    outer = vector_pb2.Filter()
    if op == "not":
        getattr(outer, op).CopyFrom(children[0])
    else:
        getattr(outer, op).filters.extend(children)
        getattr(outer, op).SetInParent()
    return outer


def comparison() -> vector_pb2.Filter:
    condition = vector_pb2.Filter()
    condition.eq.field = "a"
    condition.eq.value.int64_value = 1
    return condition


@pytest.mark.parametrize("op", ["not", "and", "or"])
def test_a_filter_may_be_nested_so_deep_and_no_deeper(op: str) -> None:
    def deep(depth: int) -> dict:
        condition: dict = EQ
        for _ in range(depth - 1):
            condition = {op: condition if op == "not" else [condition]}
        return condition

    def deep_protobuf(depth: int) -> vector_pb2.Filter:
        condition = comparison()
        for _ in range(depth - 1):
            condition = wrapped(op, [condition])
        return condition

    assert vector_filters.from_json(deep(DEPTH_MAX)) == vector_filters.from_protobuf_filter(deep_protobuf(DEPTH_MAX))
    with pytest.raises(BadData, match=f"nested deeper than {DEPTH_MAX}"):
        vector_filters.from_json(deep(DEPTH_MAX + 1))
    with pytest.raises(BadData, match=f"nested deeper than {DEPTH_MAX}"):
        vector_filters.from_protobuf_filter(deep_protobuf(DEPTH_MAX + 1))


def test_a_filter_may_have_so_many_conditions_and_no_more() -> None:
    most = vector_filters.from_json({"and": [EQ] * (NODES_MAX - 1)})
    assert len(most.children) == NODES_MAX - 1
    with pytest.raises(BadData, match=f"more than {NODES_MAX} conditions"):
        vector_filters.from_json({"and": [EQ] * NODES_MAX})
    with pytest.raises(BadData, match=f"more than {NODES_MAX} conditions"):
        vector_filters.from_protobuf_filter(wrapped("and", [comparison()] * NODES_MAX))


@pytest.mark.parametrize("count", [0, VALUES_MAX + 1])
def test_a_membership_has_one_value_to_so_many(count: int) -> None:
    for whole in (1, VALUES_MAX):
        assert len(vector_filters.from_json({"in": {"field": "a", "values": [1] * whole}}).values) == whole
    with pytest.raises(BadData, match=rf"'a' has {count} values; it must have 1 to {VALUES_MAX}"):
        vector_filters.from_json({"in": {"field": "a", "values": [1] * count}})


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ([], "is not an object with one operator"),
        ({}, "is not an object with one operator"),
        ({**EQ, "exists": "a"}, "is not an object with one operator"),
        ({"like": 1}, "unknown operator 'like'"),
        ({"and": []}, r"and is \[\]; it must be an array of at least one filter"),
        ({"or": "x"}, "or is 'x'; it must be an array"),
        ({"and": {"filters": []}}, "it must be an array of at least one filter"),
        ({"and": {"filter": [EQ]}}, "unknown field 'filter'; it has filters"),
        ({"exists": {}}, "exists.field is missing"),
        ({"exists": ""}, "exists.field is ''; it must be the name of an attribute"),
        ({"exists": 1}, "exists is 1; it must be an object with field"),
        ({"exists": "vector"}, "cannot be filtered by"),
        ({"in": {"field": "a", "values": "x"}}, "in.values is 'x'; it must be an array"),
        ({"in": {"field": "a"}}, "in.values is missing"),
        ({"eq": {"field": "a"}}, "eq.value is missing"),
        ({"eq": {"field": 1, "value": 1}}, "eq.field is 1"),
        ({"eq": {"field": "a", "value": None}}, "eq of field 'a': null cannot be a value"),
        ({"eq": {"field": "a", "value": 1, "x": 2}}, "unknown field 'x'; it has field and value"),
    ],
)
def test_a_wrong_filter_is_refused_with_what_is_wrong(condition: object, words: str) -> None:
    with pytest.raises(BadData, match=words):
        vector_filters.from_json(condition)


def test_a_list_of_filters_may_be_written_as_an_array_or_an_object() -> None:
    assert vector_filters.from_json({"or": {"filters": [EQ]}}) == vector_filters.from_json({"or": [EQ]})


@pytest.mark.parametrize("op", ["and", "or"])
def test_an_empty_list_of_filters_is_refused_in_protobuf(op: str) -> None:
    with pytest.raises(BadData, match=f"{op} has no filters"):
        vector_filters.from_protobuf_filter(wrapped(op, []))


# Ids, attributes, values


def test_ids_have_one_byte_to_so_many() -> None:
    for name in ("x", "x" * ID_BYTES_MAX, "é" * (ID_BYTES_MAX // 2)):
        assert id_bytes(name, "ids") == name.encode()
    with pytest.raises(BadData, match="an id is empty"):
        id_bytes("", "ids")
    with pytest.raises(BadData, match=f"has {ID_BYTES_MAX + 1} bytes"):
        id_bytes("x" * (ID_BYTES_MAX + 1), "ids")
    with pytest.raises(BadData, match="not UTF-8"):
        id_bytes("\ud800", "ids")


def test_a_list_of_ids_may_be_empty_and_has_at_most_so_many() -> None:
    assert ids_from_json(b'{"ids": [], "collection": "c"}') == ("c", [])
    assert len(check_ids(["x"] * IDS_MAX)) == IDS_MAX
    with pytest.raises(TooLarge, match=f"ids has {IDS_MAX + 1} entries"):
        check_ids(["x"] * (IDS_MAX + 1))


def test_texts_are_limited_by_their_bytes() -> None:
    for text in ("x" * TEXT_BYTES_MAX, "é" * (TEXT_BYTES_MAX // 2), "\U0001f600" * (TEXT_BYTES_MAX // 4)):
        assert check_value(text, "f") == text
        with pytest.raises(BadData, match=f"the limit is {TEXT_BYTES_MAX}"):
            check_value(text + text[0], "f")


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, True, False, 0, 0.5, -1e308, ""])
def test_values_in_range_are_kept_as_they_are(value: object) -> None:
    kept = check_value(value, "f")
    assert (type(kept), kept) == (type(value), value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-(2**63) - 1, "-9223372036854775809 does not fit a 64-bit integer"),
        (2**63, "9223372036854775808 does not fit a 64-bit integer"),
        (float("inf"), "inf is not a finite number"),
        (float("nan"), "nan is not a finite number"),
        (None, "null cannot be a value"),
        ([1], "an array cannot be a value"),
        ({}, "an object cannot be a value"),
    ],
)
def test_values_out_of_range_are_refused(value: object, words: str) -> None:
    with pytest.raises(BadData, match=words):
        check_value(value, "here")


def test_attributes_are_limited_in_number_and_length_of_name() -> None:
    assert pack_attributes({}, "f") == b""
    for attributes in ({f"{n}": n for n in range(ATTRIBUTES_MAX)}, {"x" * NAME_BYTES_MAX: 1}):
        assert msgspec.msgpack.decode(pack_attributes(attributes, "f")) == attributes
    with pytest.raises(BadData, match=f"{ATTRIBUTES_MAX + 1} attributes"):
        pack_attributes({f"{n}": n for n in range(ATTRIBUTES_MAX + 1)}, "f")
    with pytest.raises(BadData, match=f"has {NAME_BYTES_MAX + 1} bytes"):
        pack_attributes({"x" * (NAME_BYTES_MAX + 1): 1}, "f")
    with pytest.raises(BadData, match="has 0 bytes"):
        pack_attributes({"": 1}, "f")


def test_long_values_are_cut_in_messages() -> None:
    fits = "x" * (SHOWN_MAX - 2)
    assert shown(fits) == repr(fits)
    assert shown(fits + "y") == "'" + fits + "…"
    assert len(shown(fits + "y")) == SHOWN_MAX


# Components


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_the_component_that_is_not_finite_is_named(bad: float) -> None:
    table = np.ones((3, 4), dtype=np.float32)
    table[1, 3] = bad
    assert find_unusable(table, lengths_matter=False) == (1, 3)
    with pytest.raises(BadData, match="row 1: component 3 is not a finite"):
        check_components(table, "dot", lambda row: f"row {row}")


def test_zeros_have_no_direction_and_any_other_component_gives_one() -> None:
    table = np.zeros((3, 4), dtype=np.float32)
    table[0, 0] = table[1, 3] = 1
    assert find_unusable(table, lengths_matter=True) == (2, -1)
    assert find_unusable(table, lengths_matter=False) is None
    assert find_unusable(table[:2], lengths_matter=True) is None
    check_components(table, "l2", str)
    with pytest.raises(BadData, match="row 2 is all zeros"):
        check_components(table, "cosine", lambda row: f"row {row}")


def upserts(*sizes: int) -> Upserts:
    ids = [b"v%d" % place for place in range(len(sizes))]
    return Upserts("c", ids, np.ones(sum(sizes), np.float32), np.array(sizes), [b""] * len(sizes))


def test_the_first_vector_decides_the_dimension_within_its_limits() -> None:
    assert upserts(1, 5).dimension() == 1
    assert upserts(DIMENSION_MAX).dimension() == DIMENSION_MAX
    for count in (0, DIMENSION_MAX + 1):
        with pytest.raises(BadData, match=f"'v0', field attributes.vector has {count} components"):
            upserts(count).dimension()


def test_the_first_vector_of_another_dimension_is_named() -> None:
    collection = Collection(1, "c", 2, "dot", "f32", ())
    assert upserts(2, 2).matrix(collection).shape == (2, 2)
    with pytest.raises(BadData, match=r"'v1', field attributes.vector has 3 components; .* 'c' is 2"):
        upserts(2, 3, 1).matrix(collection)


def test_of_an_id_that_comes_twice_the_last_vector_is_kept() -> None:
    twice = Upserts("c", [b"a", b"b", b"a"], np.arange(3, dtype=np.float32), np.array([1, 1, 1]), [b"1", b"2", b"3"])
    ids, table, attributes = twice.last_wins(twice.flat.reshape(3, 1))
    assert (ids, table.ravel().tolist(), attributes) == ([b"a", b"b"], [2.0, 1.0], [b"3", b"2"])
    once = Upserts("c", [b"a", b"b"], np.arange(2, dtype=np.float32), np.array([1, 1]), [b"1", b"2"])
    table = once.flat.reshape(2, 1)
    assert once.last_wins(table)[1] is table


# Numbers


@pytest.mark.parametrize(
    "text",
    [
        "123456789012345678",
        "1234567890123456789",
        "12345678901234567890123",
        "0.000000000000000000001234567890123456789",
        "123456.7890123456789012",
        "1234567890123456780000.000",
        "1e22",
        "1e23",
        "1e-22",
        "1e-23",
        "1E+5",
        "1e+05",
        "1.5e-5",
        "9007199254740992",
        "9007199254740993",
        "33554431.0000000000000000001",
        "1.1754943e-38",
        "1e-37",
        "0.0e5",
        "-0.0",
        "9" * 44,
        "1e44",
        "1e-44",
    ],
)
def test_a_number_is_that_of_the_general_parser_rounded(text: str) -> None:
    with np.errstate(over="ignore"):
        expected = np.array([float(text), -float(text)]).astype(np.float32)
    negative = text[1:] if text.startswith("-") else f"-{text}"
    flat, counts = parse_arrays([f"[{text},{negative}]".encode(), b"[7]"])
    np.testing.assert_array_equal(flat[:2].view(np.int32), expected.view(np.int32))
    assert (flat[2], counts.tolist()) == (7, [2, 1])


@pytest.mark.parametrize("space", [" ", "\n", "\r", "\t", ""])
def test_any_white_space_of_json_may_stand_between_numbers(space: str) -> None:
    flat, counts = parse_arrays([f"[{space}1{space},{space}2{space}]".encode(), f"[{space}]".encode(), b"[3]"])
    assert (flat.tolist(), counts.tolist()) == ([1, 2, 3], [2, 0, 1])


def test_an_array_the_kernel_leaves_out_takes_its_place_among_the_others() -> None:
    flat, counts = parse_arrays([b"[1,2]", b"[1e-300,5]", b"[]", b"[3]", b"[1e300]", b"[4]"])
    assert flat.tolist() == [1, 2, 0, 5, 3, np.inf, 4]
    assert counts.tolist() == [2, 2, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        ("{}", r"is \{\}; it must be an array of numbers"),
        ('"x"', "is 'x'; it must be an array of numbers"),
        ("[1,true]", "component 1 is True; it must be a number"),
        ("[1,null]", "component 1 is None; it must be a number"),
        ("[1,2,[3]]", r"component 2 is \[3\]; it must be a number"),
        ("[1," + "9" * 310 + "]", "component 1 is not a finite 32-bit float"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_by_its_place(vector: str, words: str) -> None:
    good, bad = (json.dumps({"id": name, "attributes": {"vector": 0}}) for name in "ab")
    body = '{"upsertVectors": [' + good.replace("0", "[1]") + ", " + bad.replace("0", vector) + "]}"
    with pytest.raises(BadData, match=f"'b', field attributes.vector.*{words}"):
        write_from_json(body.encode())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"upsertVectors": []}, "upsertVectors is empty"),
        ({"upsertVectors": [{"id": "a", "attributes": {"x": 1}}]}, "'a', field attributes.vector is missing"),
        ({"upsertVectors": [{"id": "", "attributes": {"vector": [1]}}]}, "an id is empty"),
        ({"upsertVectors": [{"id": "a", "attributes": {"vector": [1], "x": None}}]}, "attributes.x: null"),
        (
            {"upsertVectors": [{"id": "a", "attributes": {"vector": [float("nan")]}}]},
            "'a', field attributes.vector: NaN",
        ),
        ({"upsertVectors": [{"id": "a", "attributes": {"x": float("inf")}}]}, "attributes.x: NaN and Infinity"),
        ({"collection": float("nan")}, "field collection: NaN and Infinity are not allowed"),
    ],
)
def test_a_wrong_write_is_refused_with_the_vector_and_the_field(body: dict, words: str) -> None:
    with pytest.raises(BadData, match=words):
        write_from_json(json.dumps(body).encode())


def test_proto_names_are_seen_only_where_a_body_begins() -> None:
    late = {"collection": "c" * 300, "upsert_vectors": []}
    with pytest.raises(BadData, match="upsert_vectors"):
        write_from_json(json.dumps(late).encode())


# Protobuf


def protobuf(name: str, **attributes: list[float] | str) -> bytes:
    request = vector_pb2.WriteRequest(collection="c")
    vector = request.upsert_vectors.add(id=name)
    for key, value in attributes.items():
        if isinstance(value, str):
            vector.attributes[key].string_value = value
        else:
            vector.attributes[key].vector_value.values.extend(value)
            vector.attributes[key].vector_value.SetInParent()
    return request.SerializeToString()


@pytest.mark.parametrize("key", ["vecto", "vectors", "vectoR", "wector", "Vector", "vektor", "vecxor", "vectxr"])
def test_only_the_attribute_named_vector_is_the_vector(key: str) -> None:
    read = write_from_protobuf(protobuf("a", vector=[1.0, 2.0], **{key: "red"}))
    assert (read.flat.tolist(), read.counts.tolist()) == ([1.0, 2.0], [2])
    assert msgspec.msgpack.decode(read.attributes[0]) == {key: "red"}
    with pytest.raises(BadData, match=r"attributes\.vector is missing"):
        write_from_protobuf(protobuf("a", **{key: "red"}))


def test_a_vector_without_components_is_refused_in_protobuf() -> None:
    with pytest.raises(BadData, match=r"'a', field attributes\.vector has 0 components"):
        write_from_protobuf(protobuf("a", vector=[])).dimension()


def test_a_walk_finds_what_lies_where() -> None:
    body = protobuf("id-a", vector=[1.0, 2.0]) + protobuf("id-b", vector=[3.0], colour="red")
    walked = walk_write(body, 5)
    assert walked is not None
    rows, (first, last) = walked
    assert body[first:last] == b"c"
    assert [body[row[2] : row[3]] for row in rows.tolist()] == [b"id-a", b"id-b"]
    assert [np.frombuffer(body[row[4] : row[5]], np.float32).tolist() for row in rows.tolist()] == [[1, 2], [3]]
    assert rows[:, 6].tolist() == [0, 1]
    walked = walk_write(body, 0)
    assert walked is not None
    assert len(walked[0]) == 1
    assert walk_write(body[:-1], 5) is None


@pytest.mark.parametrize("size", [127, 128, 16383, 16384])
def test_lengths_of_several_bytes_are_read(size: int) -> None:
    read = write_from_protobuf(protobuf("a", vector=[1.0], text="x" * size))
    assert msgspec.msgpack.decode(read.attributes[0]) == {"text": "x" * size}


# Fusion


def test_hits_without_attributes_or_vectors_are_fused() -> None:
    plain = Hits(np.zeros(2, np.float32), [b"a", b"b"], [], None)
    fused = fuse([plain, Hits(np.zeros(0, np.float32), [], [], None)], 5)
    assert (fused.ids, fused.attributes, fused.vectors) == ([b"a", b"b"], [], None)
    np.testing.assert_allclose(fused.near, [1 / 61, 1 / 62], rtol=1e-6)
    assert fuse([plain, plain], 1).ids == [b"a"]


def test_hits_of_equal_scores_are_fused_by_id() -> None:
    one, other = (Hits(np.zeros(1, np.float32), [name], [], None) for name in (b"b", b"a"))
    assert fuse([one, other], 2).ids == [b"a", b"b"]


# Collections


@pytest.mark.parametrize("name", ["a", "A.b_c-1", "x" * 64, "0"])
def test_names_of_collections(name: str) -> None:
    check(name, 1, "cosine", "i8", ("t",))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("", 1, "dot", "f32", ()), "a name has 1 to 64"),
        (("x" * 65, 1, "dot", "f32", ()), "a name has 1 to 64"),
        ((".a", 1, "dot", "f32", ()), "a name has 1 to 64"),
        (("a", 0, "dot", "f32", ()), "dimension is 0"),
        (("a", DIMENSION_MAX + 1, "dot", "f32", ()), f"dimension is {DIMENSION_MAX + 1}"),
        (("a", 1, "hamming", "f32", ()), "metric is 'hamming'"),
        (("a", 1, "dot", "f8", ()), "storage is 'f8'"),
        (("a", 1, "dot", "i8", ()), "the metric must be cosine"),
        (("a", 1, "l2", "i8", ()), "the metric must be cosine"),
        (("a", 1, "dot", "f32", ("t", "t")), "different names"),
        (("a", 1, "dot", "f32", ("t", "")), "different names"),
        (("a", 1, "dot", "f32", tuple(map(str, range(TEXT_FIELDS_MAX + 1)))), f"at most {TEXT_FIELDS_MAX}"),
    ],
)
def test_wrong_settings_of_a_collection_are_refused(settings: tuple, words: str) -> None:
    with pytest.raises(BadData, match=words):
        check(*settings)


def test_the_largest_settings_of_a_collection_are_taken() -> None:
    check("a", DIMENSION_MAX, "cosine", "i8", tuple(map(str, range(TEXT_FIELDS_MAX))))


def test_there_are_so_many_collections_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "COLLECTIONS_MAX", 2)
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    made = [catalogue.create(name, 1, "dot", "f32", ()) for name in ("b", "a")]
    assert [collection.id for collection in made] == [1, 2]
    assert catalogue.next_id == 3
    assert [collection.name for collection in catalogue.all()] == ["a", "b"]
    with pytest.raises(BadData, match="there are 2 collections, which is the limit"):
        catalogue.create("c", 1, "dot", "f32", ())
    assert catalogue.create("a", 1, "dot", "f32", ()) == made[1]


def test_so_many_dropped_collections_are_waited_for_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_module, "DROPPED_MAX", 1)
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    first, second = (catalogue.create(name, 1, "dot", "f32", ()) for name in ("a", "b"))
    catalogue.remove("a")
    with pytest.raises(Unavailable, match="1 dropped collections wait"):
        catalogue.remove("b")
    assert (catalogue.all(), catalogue.dropped) == ([second], [first])
    catalogue.confirm_dropped(first)
    assert catalogue.dropped == []
    assert catalogue.remove("b") == second


def test_ids_go_on_above_a_given_number_and_never_fall(tmp_path: Path) -> None:
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    catalogue.give_above(7)
    assert catalogue.next_id == 8
    catalogue.give_above(3)
    assert catalogue.next_id == 8
    again = Catalogue(LocalControl(tmp_path / "vector"))
    again.load()
    assert again.create("a", 1, "dot", "f32", ()).id == 8
