"""Bodies of vector writes: the numbers in JSON, what protobuf may say, and what the refusal of a wrong one says."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from coordinator.vectors.decode import (
    write_from_json,
)
from coordinator.vectors.decode_protobuf import write_from_protobuf
from coordinator.vectors.numbers import parse_arrays
from coordinator.vectors.walk import walk_write
from proto import vector_pb2
from shared.errors import BadData

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
        ({"upsertVectors": [{"id": "a", "attributes": {"vector": [1], "x": {}}}]}, "attributes.x: an object cannot be"),
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
