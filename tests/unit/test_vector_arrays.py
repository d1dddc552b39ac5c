"""Attributes that are arrays, or null: how they are written, kept and found."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.vectors import changes, filters, json_attributes
from coordinator.vectors.answers import vector_protobuf
from coordinator.vectors.area import StoredVector
from coordinator.vectors.decode import write_from_json
from coordinator.vectors.decode_protobuf import write_from_protobuf
from coordinator.vectors.infos import FIELDS_NAMED_MAX, unknown_fields
from coordinator.vectors.values import to_protobuf
from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vectors import ARRAY_ELEMENTS_MAX, Condition
from worker.vectors.attribute_column import ARRAY, AttributeColumn, ColumnState
from worker.vectors.attributes import COMPARED_UNKNOWN_NAMES, INDEX_ROWS_MIN, Attributes

ARRAYS: list[list[Any]] = [["a", "b", "a"], [], [True, False], [1, 2.5, -(2**63)], ["é"], [0.5], ["b"]]


def packed(values: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(values) if values else b""


def in_json(**attributes: Any) -> bytes:
    entry = {"id": "v", "attributes": {"vector": [1], **attributes}}
    [found] = write_from_json(json.dumps({"upsertVectors": [entry]}).encode()).attributes
    return found


def in_protobuf(**attributes: Any) -> bytes:
    request = vector_pb2.WriteRequest()
    stored = StoredVector(b"v", packed(attributes), np.ones(1, np.float32))
    vector_protobuf(stored, request.upsert_vectors.add())
    [found] = write_from_protobuf(request.SerializeToString()).attributes
    return found


@pytest.mark.parametrize("array", [*ARRAYS, ["x"] * ARRAY_ELEMENTS_MAX], ids=lambda array: f"{array}"[:20])
def test_an_array_is_kept_as_it_was_given(array: list[Any]) -> None:
    assert in_json(tags=array) == in_protobuf(tags=array) == packed({"tags": array})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["a", 1], "element 1 of the array is an integer; the elements of an array must be all strings"),
        ([1, True], "element 1 of the array is a bool"),
        ([True, 1.5], "element 1 of the array is a float"),
        (["a", None], "element 1 of the array is null"),
        ([["a"]], "element 0 of the array is an array"),
        ([1] * (ARRAY_ELEMENTS_MAX + 1), "the array has 1025 elements; the limit is 1024"),
        (["é" * 300_000, "é" * 300_000], "the texts of the array have 1200000 bytes; the limit is 1048576"),
        ([1, 2**63], "element 1: 9223372036854775808 does not fit a 64-bit integer"),
    ],
    ids=lambda value: f"{value}"[:20],
)
def test_a_wrong_array_is_refused(value: list[Any], words: str) -> None:
    with pytest.raises(BadData, match=f"vector 'v', field attributes.tags.*{words}"):
        in_json(tags=value)


@pytest.mark.parametrize("number", [1.5, 1])
def test_an_array_in_protobuf_is_checked_as_in_json(number: float) -> None:
    value = vector_pb2.Vector(id="v")
    elements = value.attributes["tags"].array_value.values
    elements.add(float64_value=float("inf"))

    def write() -> None:
        write_from_protobuf(vector_pb2.WriteRequest(upsert_vectors=[value]).SerializeToString())

    value.attributes["vector"].vector_value.values.append(number)
    with pytest.raises(BadData, match="element 0: inf is not a finite number"):
        write()
    for fill, words in (
        (lambda one: None, "element 1 of the array is null"),
        (lambda one: setattr(one, "null_value", 0), "element 1 of the array is null"),
        (lambda one: one.vector_value.values.append(1), "element 1 of the array is an array"),
        (lambda one: one.array_value.values.add(), "element 1 of the array is an array"),
    ):
        del elements[:]
        elements.add(int64_value=1)
        fill(elements.add())
        with pytest.raises(BadData, match=words):
            write()
    del elements[:]
    elements.extend([vector_pb2.AttributeValue(bool_value=True)] * (ARRAY_ELEMENTS_MAX + 1))
    with pytest.raises(BadData, match="the array has 1025 elements"):
        write()


def test_a_large_array_is_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "x" * json_attributes.SLICE_BYTES
    assert in_json(tags=[long, "y"]) == packed({"tags": [long, "y"]})
    for nested in ([1], {}, 1):
        with pytest.raises(BadData, match=r"attributes.tags: an array of more than 65536 bytes must be of strings"):
            in_json(tags=[long, nested])
    with pytest.raises(BadData, match="the array has 40000 elements; the limit is 1024"):
        in_json(tags=[""] * 40_000)
    with pytest.raises(BadData, match="it may have at most 65536"):
        in_json(tags={"x": long})


def test_null_in_a_write_is_no_attribute() -> None:
    assert in_json(colour=None) == b""
    assert in_json(colour=None, n=1) == packed({"n": 1})
    request = vector_pb2.WriteRequest()
    vector = request.upsert_vectors.add(id="v")
    vector.attributes["vector"].vector_value.values.append(1)
    vector.attributes["colour"].null_value = 0
    assert write_from_protobuf(request.SerializeToString()).attributes == [b""]


ROWS: list[dict[str, Any]] = [
    {"tags": ["a", "b"], "n": [1, 2.5]},
    {"tags": "a", "n": 2},
    {"tags": []},
    {},
    {"tags": ["b", "2026-01-01T02:00:00+02:00"], "n": [True]},
]
FILTERS: list[tuple[dict[str, Any], list[int]]] = [
    ({"contains": {"field": "tags", "value": "a"}}, [0, 1]),
    ({"eq": {"field": "tags", "value": "a"}}, [0, 1]),
    ({"neq": {"field": "tags", "value": "a"}}, [2, 3, 4]),
    ({"containsAny": {"field": "tags", "values": ["a", "b"]}}, [0, 1, 4]),
    ({"contains_any": {"field": "tags", "values": ["c", 1]}}, []),
    ({"in": {"field": "n", "values": [1.0, 2]}}, [0, 1]),
    ({"containsAll": {"field": "tags", "values": ["a", "b"]}}, [0]),
    ({"contains_all": {"field": "n", "values": [2.5, 1]}}, [0]),
    ({"gt": {"field": "n", "value": 2}}, [0]),
    ({"exists": {"field": "tags"}}, [0, 1, 2, 4]),
    ({"eq": {"field": "tags", "value": None}}, [3]),
    ({"neq": {"field": "n", "value": None}}, [0, 1, 4]),
    ({"in": {"field": "n", "values": [2, None]}}, [1, 2, 3]),
    ({"in": {"field": "n", "values": [None]}}, [2, 3]),
    ({"eq": {"field": "tags", "value": "2026-01-01T00:00:00Z"}}, [4]),
    ({"lt": {"field": "tags", "value": "2026-01-01T00:00:00.000000001Z"}}, [4]),
    ({"lt": {"field": "tags", "value": "2026-01-01T00:00:00Z"}}, []),
]


EXACTLY: list[tuple[Condition, list[int]]] = [
    (Condition("has", "tags", ("a",)), [0, 1]),
    (Condition("within", "tags", ("a",)), [1, 2]),
    (Condition("within", "tags", ("a", "b")), [0, 1, 2]),
    (Condition("has", "tags", ("2026-01-01T02:00:00+02:00",)), [4]),
    (Condition("has", "tags", ("2026-01-01T00:00:00Z",)), []),
    (Condition("within", "tags", ("b", "2026-01-01T00:00:00Z")), [2]),
    (Condition("within", "tags", ("b", "2026-01-01T02:00:00+02:00")), [2, 4]),
    (Condition("has", "n", (1.0, 2)), [0, 1]),
    (Condition("within", "n", (1, 2.5)), [0]),
    (Condition("within", "n", (True,)), [4]),
    (Condition("within", "n", (1,)), []),
    (Condition("not", children=(Condition("within", "nowhere", ("a",)),)), [0, 1, 2, 3, 4]),
    (Condition("has", "nowhere", ("a",)), []),
]
"""What only the coordinator asks for."""


def attributes_of(rows: list[dict[str, Any]]) -> Attributes:
    attributes = Attributes()
    attributes.append(0, [packed(row) for row in rows])
    return attributes


@pytest.mark.parametrize(("condition", "expected"), FILTERS, ids=lambda value: f"{value}"[:60])
def test_arrays_are_found_by_their_elements(condition: dict[str, Any], expected: list[int]) -> None:
    attributes = attributes_of(ROWS)
    tree = filters.from_json(condition)
    for indexed in (0, 2, len(ROWS)):
        attributes.build_index(indexed)
        assert np.flatnonzero(attributes.mask(tree, len(ROWS))).tolist() == expected
    assert attributes.unknown(tree) == set()


@pytest.mark.parametrize(("condition", "expected"), EXACTLY, ids=lambda value: f"{value}"[:60])
def test_arrays_are_found_by_all_or_some_of_their_elements_exactly(condition: Condition, expected: list[int]) -> None:
    attributes = attributes_of(ROWS)
    for indexed in (0, 2, len(ROWS)):
        attributes.build_index(indexed)
        assert np.flatnonzero(attributes.mask(condition, len(ROWS))).tolist() == expected
    rows = np.array([4, 0, 2])
    assert attributes.compared(condition, rows).tolist() == [row in expected for row in rows.tolist()]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array}"[:20])
def test_an_update_in_protobuf_may_set_arrays_as_one_in_json_may(array: list[Any]) -> None:
    request = vector_pb2.UpdateRequest(ids=["a"])
    to_protobuf(array, request.set["tags"])
    request.set["gone"].null_value = 0
    of_json = changes.update_from_json(json.dumps({"ids": ["a"], "set": {"tags": array, "gone": None}}).encode())
    assert changes.update_from_protobuf(request.SerializeToString()) == of_json
    assert of_json.set == packed({"tags": array})


def test_an_update_in_protobuf_names_an_element_that_is_not_right() -> None:
    request = vector_pb2.UpdateRequest(ids=["a"])
    to_protobuf(["x", 1], request.set["tags"])
    with pytest.raises(BadData, match=r"set\.tags: element 1 of the array is an integer"):
        changes.update_from_protobuf(request.SerializeToString())


def test_memberships_in_protobuf_are_those_of_json() -> None:
    for name, camel in (("contains_any", "containsAny"), ("contains_all", "containsAll"), ("in", "in")):
        message = vector_pb2.Filter()
        operand = getattr(message, name)
        operand.field = "tags"
        operand.values.add(string_value="a")
        operand.values.add(int64_value=1)
        asked = {camel: {"field": "tags", "values": ["a", 1]}}
        assert filters.from_protobuf_filter(message) == filters.from_json(asked)
    message = vector_pb2.Filter()
    message.contains.field, message.contains.value.string_value = "tags", "a"
    assert filters.from_protobuf_filter(message) == Condition("eq", "tags", ("a",))
    message.eq.field, message.eq.value.null_value = "tags", 0
    assert filters.from_protobuf_filter(message) == filters.from_json({"eq": {"field": "tags", "value": None}})
    message.eq.value.array_value.SetInParent()
    with pytest.raises(BadData, match="eq of field 'tags': an array; it must be a string"):
        filters.from_protobuf_filter(message)


def test_elements_grow_with_their_rows_whatever_was_loaded() -> None:
    random = np.random.default_rng(3)
    rows = [{"tags": [f"t{n}" for n in random.integers(0, 9, random.integers(0, 6))]} for _ in range(500)]
    attributes = attributes_of(rows[:100])
    attributes = Attributes.restore(attributes.save(100), 100)
    for first in range(100, 500, 50):
        attributes.append(first, [packed(row) for row in rows[first : first + 50]])
    for tag in ("t0", "t8", "none"):
        mask = attributes.mask(Condition("eq", "tags", (tag,)), 500)
        assert mask.tolist() == [tag in row["tags"] for row in rows]


def test_few_rows_are_compared_by_their_own_elements() -> None:
    rows = [{"tags": [f"a{n % 5}", f"b{n % 7}"], "n": n % 100} for n in range(INDEX_ROWS_MIN)]
    attributes = attributes_of(rows)
    attributes.build_index(len(rows))
    condition = Condition("and", children=(Condition("eq", "n", (13,)), Condition("in", "tags", ("a3", "b4", "b5"))))
    expected = [n for n in range(len(rows)) if n % 100 == 13 and (n % 5 == 3 or n % 7 in (4, 5))]
    assert np.flatnonzero(attributes.mask(condition, len(rows))).tolist() == expected


# Saved columns


def column_of(values: list[Any]) -> AttributeColumn:
    column = AttributeColumn()
    column.put(range(len(values)), values)
    return column


def test_a_column_saved_before_arrays_existed_is_read() -> None:
    state = column_of(["x", 1, True]).state(3)
    before = msgspec.msgpack.encode([state.kinds, state.bits, state.texts])
    column = AttributeColumn.from_state(msgspec.msgpack.decode(before, type=ColumnState), 3)
    assert column.equal("x", slice(0, 3)).tolist() == [True, False, False]
    column.put([3], [["x", "y"]])
    assert column.equal("x", slice(0, 4)).tolist() == [True, False, False, True]


def test_the_elements_of_rows_that_are_not_saved_are_not_saved() -> None:
    column = column_of([["a"], ["b", "c"], ["d"]])
    loaded = AttributeColumn.from_state(column.state(2), 2)
    assert loaded.elements(2)[0].tolist() == [0, 1, 1]
    assert loaded.equal("d", slice(0, 2)).tolist() == [False, False]


@pytest.mark.parametrize(
    "wrong",
    [
        {"owners": np.array([0, 0], np.int32).tobytes()},
        {"owners": np.array([0, 2, 0], np.int32).tobytes()},
        {"owners": np.array([0, 1, 2], np.int32).tobytes()},
        {"owners": np.array([0, 0, 9], np.int32).tobytes()},
        {"owners": np.array([-1, 0, 0], np.int32).tobytes()},
        {"element_kinds": bytes([1, 1])},
        {"element_kinds": bytes([1, 1, 0])},
        {"element_kinds": bytes([1, 1, ARRAY])},
        {"element_bits": np.array([0, 1, 9], np.int64).tobytes()},
        {"element_bits": b""},
    ],
)
def test_elements_that_do_not_fit_their_rows_are_refused(wrong: dict[str, bytes]) -> None:
    state = column_of([["a", "b"], 1, ["a"]]).state(3)
    assert AttributeColumn.from_state(state, 3).equal("b", slice(0, 3)).tolist() == [True, False, False]
    with pytest.raises(ValueError, match="a column has"):
        AttributeColumn.from_state(msgspec.structs.replace(state, **wrong), 3)


# Fields that no vector has


def test_unknown_fields_come_with_the_nearest_known_one() -> None:
    attributes = attributes_of([{"colour": "red", "year": 1, "x" * 300: 1}])
    assert attributes.nearest(["color", "tier", "x" * 200]) == {"color": "colour", "x" * 200: "x" * 300}
    assert attributes.nearest([]) == {}
    assert len(attributes.nearest([f"colou{n}" for n in range(9)])) == COMPARED_UNKNOWN_NAMES


def test_hints_name_a_few_unknown_fields_and_count_the_others() -> None:
    names = {f"f{n:02d}" for n in range(FIELDS_NAMED_MAX + 3)}
    hints = unknown_fields("notes", names, {"f00": "f"})
    assert hints[0] == "filter: no vector of the collection 'notes' has the field 'f00'; the nearest field is 'f'"
    assert len(hints) == FIELDS_NAMED_MAX + 1
    assert hints[-1] == "filter: no vector of the collection 'notes' has 3 other fields"
    assert len(unknown_fields("notes", {"x" * 10_000}, {})[0]) < 200
