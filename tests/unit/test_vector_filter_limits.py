"""Limits of filters: the deepest and the longest that are taken, and what the refusal of a wrong one says."""

from __future__ import annotations

import pytest

from coordinator.vectors import filters as vector_filters
from coordinator.vectors.filters import DEPTH_MAX, NODES_MAX, VALUES_MAX
from proto import vector_pb2
from shared.errors import BadData

EQ = {"eq": {"field": "a", "value": 1}}


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


def test_each_value_that_must_be_contained_is_a_condition() -> None:
    def all_of(count: int) -> dict:
        return {"containsAll": {"field": "a", "values": [1] * count}}

    assert len(vector_filters.from_json(all_of(NODES_MAX - 1)).children) == NODES_MAX - 1
    with pytest.raises(BadData, match=f"more than {NODES_MAX} conditions"):
        vector_filters.from_json(all_of(NODES_MAX))


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
        ({"lt": {"field": "a", "value": None}}, "lt of field 'a': null cannot be a value"),
        ({"contains": {"field": "a", "value": None}}, "contains of field 'a': null cannot be a value"),
        ({"containsAny": {"field": "a", "values": [1, None]}}, "containsAny of field 'a': null cannot be a value"),
        ({"containsAll": {"field": "a", "values": [None]}}, "containsAll of field 'a': null cannot be a value"),
        ({"containsAll": {"field": "a", "values": []}}, "containsAll of field 'a' has 0 values; it must have 1 to"),
        ({"containsAny": {"field": "a", "value": 1}}, "unknown field 'value'; it has field and values"),
        ({"eq": {"field": "a", "value": [1]}}, "eq of field 'a': an array cannot be a value"),
        ({"contains": {"field": "a", "value": {}}}, "contains of field 'a': an object cannot be a value"),
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
