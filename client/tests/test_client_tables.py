"""Results as tables of pandas, polars and Arrow."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from triptych.hits import Hit, SearchResult, Vector, Vectors
from triptych.records import NONE, Records
from triptych.series import QueryResult, Series

QUERY = QueryResult(
    "matrix",
    [
        Series({"__name__": "up", "job": "a"}, np.array([1.0, 2.5]), np.array([1.0, np.nan])),
        Series({"value": "x"}, np.array([1.0]), np.array([3.0])),
    ],
)
RECORDS = Records(np.array([1, 2], np.uint64), np.array([1500, 0]), [b"k", b"k"], [b"text", b"\xff"], {})
HITS = SearchResult(
    [
        Hit("a", np.array([1, 2], np.float32), {"id": 5, "n": 1, "mixed": "x", "tags": ["x"]}, 0.5),
        Hit("b", np.array([3, 4], np.float32), {"n": 2.5, "mixed": [1], "tags": []}, 0.25),
    ]
)


def test_a_query_has_a_row_for_each_sample():
    frame = QUERY.to_pandas()
    assert list(frame.columns) == ["__name__", "job", "exported_value", "timestamp", "value"]
    assert frame["job"].tolist()[:2] == ["a", "a"]
    assert frame["exported_value"].tolist()[2] == "x"
    assert str(frame["timestamp"].iloc[1]) == "1970-01-01 00:00:02.500000"
    assert QUERY.to_polars()["value"].to_list()[2] == 3.0
    table = QUERY.to_arrow()
    assert table.column("job").to_pylist() == ["a", "a", None]
    assert str(table.schema.field("timestamp").type) == "timestamp[ms]"


def test_records_have_texts_or_bytes():
    assert RECORDS.to_pandas()["value"].tolist() == ["text", "\ufffd"]
    assert RECORDS.columns(text=False)["value"] == [b"text", b"\xff"]
    assert RECORDS.to_arrow().column("time").to_pylist()[1] is None
    assert RECORDS.to_polars()["sequence"].to_list() == [1, 2]


def test_hits_have_a_column_for_each_attribute():
    frame = HITS.to_pandas()
    assert list(frame.columns) == ["id", "score", "attribute_id", "mixed", "n", "tags", "vector"]
    assert frame["vector"].iloc[1].tolist() == [3, 4]
    for table in (HITS.to_polars(), HITS.to_arrow()):
        columns = {
            name: table[name].to_pylist() if hasattr(table[name], "to_pylist") else table[name].to_list()
            for name in frame
        }
        assert columns["mixed"] == ["x", "[1]"]
        assert columns["n"] == [1.0, 2.5]
        assert columns["tags"] == [["x"], []]
        assert columns["vector"] == [[1, 2], [3, 4]]
        assert columns["attribute_id"] == [5, None]


def test_no_column_takes_the_place_of_another():
    labels = {"value": "a", "exported_value": "b", "exported_exported_value": "c", "timestamp": "d"}
    columns = QueryResult("vector", [Series(labels, np.zeros(1), np.ones(1))]).columns()
    assert {name: list(column) for name, column in columns.items() if name not in ("timestamp", "value")} == {
        "exported_exported_exported_value": ["a"],
        "exported_value": ["b"],
        "exported_exported_value": ["c"],
        "exported_timestamp": ["d"],
    }
    assert columns["value"].tolist() == [1.0]
    hit = Hit("a", None, {"id": 1, "attribute_id": 2, "score": 3, "attribute_score": 4}, 0.5)
    assert {name: list(column) for name, column in SearchResult([hit]).columns().items()} == {
        "id": ["a"],
        "score": [0.5],
        "attribute_attribute_id": [1],
        "attribute_id": [2],
        "attribute_attribute_score": [3],
        "attribute_score": [4],
    }


LARGE = (1 << 53) + 1


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        ([LARGE, 1.5, None], [str(LARGE), "1.5", None]),
        ([-LARGE, 1.5], [str(-LARGE), "1.5"]),
        ([LARGE - 1, 1.5], [float(LARGE - 1), 1.5]),
        ([LARGE, None], [LARGE, None]),
        ([[LARGE], [1.5]], [f"[{LARGE}]", "[1.5]"]),
        ([[LARGE, 1.5], [2]], [f"[{LARGE}, 1.5]", "[2]"]),
        ([[LARGE, 1.5]], [f"[{LARGE}, 1.5]"]),
        ([[LARGE], []], [[LARGE], []]),
    ],
)
def test_integers_that_float64_does_not_have_are_not_rounded(values, stored):
    table = Vectors([Vector("a", None, {"n": value}) for value in values])
    assert table.to_polars()["n"].to_list() == stored
    assert table.to_arrow()["n"].to_pylist() == stored
    assert table.to_pandas()["n"].tolist() == values


def test_results_without_rows_are_tables():
    for result in (QueryResult("vector", []), NONE, SearchResult([]), Vectors([Vector("a", None, {})])):
        assert len(result.to_pandas()) == len(result.to_polars()) == len(result.to_arrow())


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match=r"pip install 'triptych-client\[polars\]'"):
        QUERY.to_polars()
