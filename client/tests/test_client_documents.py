"""Documents as vectors: metadata, ids and filters of other stores."""

from __future__ import annotations

import numpy as np
import pytest

from triptych.documents import EVERYTHING, NOTHING, attributes_of, filter_of, id_of, metadata_of, stored_id
from triptych.hits import Vector


@pytest.mark.parametrize(
    "metadata",
    [
        {"s": "x", "i": 3, "f": 2.0, "b": True, "l": ["a", "b"], "m": [1, 2.5]},
        {"none": None, "object": {"a": [1, {"b": None}]}, "mixed": [1, "x"], "nested": [[1]], "large": 1 << 70},
        {"vector": [1], "_id": "x", "_rest": "y", "text": "z", "": "empty", "empty": []},
        {f"n{i}": i for i in range(300)},
        {"k" * 256: 1, "k" * 257: 2, "ü" * 128: 3, "ü" * 129: 4},
    ],
)
@pytest.mark.parametrize("name", ["a", "ü" * 32, "x" * 68, ""])
def test_what_is_stored_comes_back(metadata, name):
    attributes = attributes_of(name, metadata, {"text": "content"})
    assert len(attributes) <= 256
    assert max(len(attribute.encode()) for attribute in attributes) <= 256
    assert len(stored_id(name).encode()) in range(1, 65)
    stored = Vector(stored_id(name), None, {key: value for key, value in attributes.items() if value is not None})
    assert metadata_of(stored, ["text"]) == metadata
    assert id_of(stored) == name
    assert stored.attributes["text"] == "content"


def test_plain_metadata_keep_their_names_so_that_filters_find_them():
    attributes = attributes_of("a", {"year": 2020, "tags": ["x"], "odd": None}, {"text": ""})
    assert (attributes["year"], attributes["tags"]) == (2020, ["x"])
    assert "odd" not in attributes


def test_metadata_that_is_no_json_is_refused():
    with pytest.raises(TypeError):
        attributes_of("a", {"array": np.zeros(2)}, {})
    with pytest.raises(TypeError, match="the name 7, which is int; it must be a str"):
        attributes_of("a", {7: 1}, {})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({}, None),
        ({"colour": "red"}, {"eq": {"field": "colour", "value": "red"}}),
        ({"in": 3}, {"eq": {"field": "in", "value": 3}}),
        ({"colour": ["red", "blue"]}, {"in": {"field": "colour", "values": ["red", "blue"]}}),
        ({"eq": {"field": "a", "value": 1}}, {"eq": {"field": "a", "value": 1}}),
        ({"not": {"exists": {"field": "a"}}}, {"not": {"exists": {"field": "a"}}}),
        (
            {"year": {"$gte": 2, "$lt": 5}},
            {"and": [{"gte": {"field": "year", "value": 2}}, {"lt": {"field": "year", "value": 5}}]},
        ),
        (
            {"$or": [{"a": 1}, {"b": {"$nin": [1]}}], "c": {"$exists": False}},
            {
                "and": [
                    {"or": [{"eq": {"field": "a", "value": 1}}, {"not": {"in": {"field": "b", "values": [1]}}}]},
                    {"not": {"exists": {"field": "c"}}},
                ]
            },
        ),
        ({"$not": {"a": None}}, {"not": {"eq": {"field": "a", "value": None}}}),
        ({"a": []}, NOTHING),
        ({"a": {"$in": []}}, NOTHING),
        ({"a": {"$nin": []}}, EVERYTHING),
        ({"a": [], "b": 1}, NOTHING),
        ({"a": {"$nin": [], "$lt": 5}}, {"lt": {"field": "a", "value": 5}}),
        ({"$or": [{"a": []}, {"b": 1}]}, {"eq": {"field": "b", "value": 1}}),
        ({"$or": [{"a": {"$nin": []}}, {"b": 1}]}, EVERYTHING),
        ({"$not": {"a": []}}, EVERYTHING),
        ({"$and": [{}, {"b": 1}]}, {"eq": {"field": "b", "value": 1}}),
        ({"$and": [{}]}, None),
    ],
)
def test_filters_of_other_stores(given, expected):
    assert filter_of(given) == expected


@pytest.mark.parametrize("wrong", [{"$nor": []}, {"a": {"$regex": "x"}}])
def test_an_operator_that_is_not_there_is_named(wrong):
    with pytest.raises(ValueError, match=r"\$nor|\$regex"):
        filter_of(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": {}},
        {"$not": {}},
        {"$or": [{}, {"a": 1}]},
        {"$not": {"$and": [{}]}},
        {"$or": []},
        {"a": 1, "$or": []},
        {"$and": [{"$or": []}]},
    ],
)
def test_an_empty_filter_that_could_mean_all_or_none_is_refused(wrong):
    with pytest.raises(ValueError, match="empty"):
        filter_of(wrong)
