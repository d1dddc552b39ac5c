"""An attribute's column: every comparison of every kind of value, beside Python's own."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest

from worker.vectors.attribute_column import ARRAY, CAPACITY_MIN, AttributeColumn, ColumnState
from worker.vectors.attribute_comparison import INT64_MAX, INT64_MIN
from worker.vectors.attribute_strings import STRING_BYTES

VALUES: list[Any] = [
    *("", "a", "b", "ba", "z", "é"),
    *(INT64_MIN, -3, -1, 0, 1, 2, 3, (1 << 53) + 1, INT64_MAX),
    *(-math.inf, -2.5, -0.0, 0.5, 2.0, 2.5, float(1 << 53), math.inf, math.nan),
    *(True, False),
]
ASKED: list[Any] = [*VALUES, "aa", 2.0000001, -(1 << 70), 1 << 70, 1e300, -1e300, float(1 << 63), -float(1 << 63)]
OPERATORS = {"lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge}
EVERY = slice(0, len(VALUES))


@pytest.fixture
def column() -> AttributeColumn:
    filled = AttributeColumn()
    filled.put(range(len(VALUES)), VALUES)
    return filled


def kind(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("asked", [value for value in ASKED if value == value], ids=repr)
def test_rows_compare_as_their_values_do(column: AttributeColumn, op: str, asked: Any) -> None:
    expected = [kind(value) == kind(asked) and OPERATORS[op](value, asked) for value in VALUES]
    assert column.compare(op, asked, EVERY).tolist() == expected


@pytest.mark.parametrize("asked", [*ASKED, (1 << 62) + 1], ids=repr)
def test_rows_are_equal_to_values_of_their_kind(column: AttributeColumn, asked: Any) -> None:
    expected = [kind(value) == kind(asked) and value == asked for value in VALUES]
    assert column.equal(asked, EVERY).tolist() == expected


def test_rows_that_were_never_set_are_absent(column: AttributeColumn) -> None:
    rows = np.array([0, len(VALUES), 10 * CAPACITY_MIN])
    assert column.present(rows).tolist() == [True, False, False]
    assert column.equal(0, rows).tolist() == [False, False, False]
    assert column.compare("lte", 0, rows).tolist() == [False, False, False]
    assert column.present(slice(0, CAPACITY_MIN + 5)).sum() == len(VALUES)
    assert len(column.present(np.zeros(0, np.int64))) == 0


def test_a_column_grows_with_its_rows_and_keeps_them() -> None:
    column = AttributeColumn()
    column.put([0, CAPACITY_MIN - 1], [1, 2])
    before = column.memory_bytes
    column.put([CAPACITY_MIN], ["x"])
    assert column.memory_bytes == before * 3 // 2 + STRING_BYTES
    assert column.equal(1, slice(0, 1)).tolist() == [True]
    assert column.equal(2, slice(CAPACITY_MIN - 1, CAPACITY_MIN)).tolist() == [True]
    assert column.equal("x", slice(CAPACITY_MIN, CAPACITY_MIN + 1)).tolist() == [True]


def test_new_strings_take_their_place_in_the_order() -> None:
    column = AttributeColumn()
    for row, text in enumerate(["m", "c", "x", "a", "n"]):
        column.put([row], [text])
        below = [own < "n" for own in ["m", "c", "x", "a", "n"][: row + 1]]
        assert column.compare("lt", "n", slice(0, row + 1)).tolist() == below
    assert column.code("x") == 2
    assert column.code("none") == -1
    assert column.compare("lt", "n", slice(0, 0)).tolist() == []
    assert AttributeColumn().compare("lt", "n", slice(0, 2)).tolist() == [False, False]


def test_a_saved_column_is_the_same_when_it_is_loaded(column: AttributeColumn) -> None:
    size = len(VALUES)
    loaded = AttributeColumn.from_state(column.state(size), size)
    for asked in ("a", 2, 2.5, True):
        assert loaded.equal(asked, EVERY).tolist() == column.equal(asked, EVERY).tolist()
        assert loaded.compare("gte", asked, EVERY).tolist() == column.compare("gte", asked, EVERY).tolist()
    loaded.put([size], ["new"])
    assert loaded.code("new") == column.code("é") + 1


@pytest.mark.parametrize(
    ("kinds", "bits", "texts", "size"),
    [
        ([1], [0], ["a"], 2),
        ([1, 1], [0], ["a"], 2),
        ([1], [0, 0], ["a"], 1),
        ([1], [1], ["a"], 1),
        ([1], [-1], ["a"], 1),
        ([ARRAY + 1], [0], ["a"], 1),
        ([1], [0], ["a", "a"], 1),
    ],
)
def test_a_saved_column_that_does_not_fit_is_refused(
    kinds: list[int], bits: list[int], texts: list[str], size: int
) -> None:
    with pytest.raises(ValueError, match="a column has"):
        AttributeColumn.from_state(ColumnState(bytes(kinds), np.array(bits, np.int64).tobytes(), texts), size)
