"""Filters over attributes: the index agrees with the columns, and both with a filter written the obvious way."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.vectors import Condition
from worker.vectors import attributes as module
from worker.vectors.attributes import Attributes

DATETIMES = [
    *("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000+00:00", "2026-01-01t02:00:00+02:00"),
    *("2025-12-31 23:59:59.999999Z", "2026-01-01T00:00:00+02:00", "9999-12-31T23:59:59Z"),
]
TEXTS = st.sampled_from(["", "a", "b", "blue", "ü", "2026-01-01", "2026-01-01T00:00:00", *DATETIMES])
VALUES = st.one_of(
    TEXTS,
    st.integers(-3, 3),
    st.sampled_from([2**62, -(2**63), 2**63 - 1, 2**53, 2**53 + 1]),
    st.sampled_from([-2.5, -1.0, -0.0, 0.0, 0.5, 2.0, 1e300, 2.0**53, 2.0**63]),
    st.booleans(),
)
ARRAYS = st.one_of(
    *(st.lists(values, max_size=4) for values in (TEXTS, st.booleans(), st.integers(-2, 2) | st.floats(-2, 2)))
)
ROWS = st.lists(st.dictionaries(st.sampled_from(["x", "y"]), VALUES | ARRAYS), min_size=1, max_size=40)
FIELDS = st.sampled_from(["x", "y", "z"])
LEAVES = st.one_of(
    st.builds(
        lambda op, name, value: Condition(op, name, (value,)),
        st.sampled_from(["eq", "neq", "lt", "lte", "gt", "gte"]),
        FIELDS,
        VALUES,
    ),
    st.builds(lambda name, values: Condition("in", name, tuple(values)), FIELDS, st.lists(VALUES, min_size=1)),
    st.builds(lambda name: Condition("exists", name), FIELDS),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda c: Condition("not", children=(c,)), inner),
        st.builds(
            lambda op, c: Condition(op, children=tuple(c)),
            st.sampled_from(["and", "or"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
    ),
    max_leaves=6,
)


def comparable(a: Any, b: Any) -> bool:
    return (isinstance(a, str), isinstance(a, bool)) == (isinstance(b, str), isinstance(b, bool))


def satisfies(row: dict[str, Any], condition: Condition) -> bool:
    op = condition.op
    if op == "not":
        return not satisfies(row, condition.children[0])
    if op in ("and", "or"):
        return (all if op == "and" else any)(satisfies(row, child) for child in condition.children)
    if op == "exists":
        return condition.field in row
    if op == "neq":
        return not satisfies(row, Condition("eq", condition.field, condition.values))
    if condition.field not in row:
        return False
    own = row[condition.field]
    elements = own if isinstance(own, list) else [own]
    return any(fits(op, element, value) for element in elements for value in condition.values)


def fits(op: str, own: Any, value: Any) -> bool:
    if not comparable(own, value):
        return False
    if value in DATETIMES:
        if own not in DATETIMES:
            return False
        own, value = datetime.fromisoformat(own.upper()), datetime.fromisoformat(value.upper())
    orders = {"lt": own < value, "lte": own <= value, "gt": own > value, "gte": own >= value}
    return orders.get(op, own == value)


def packed(rows: list[dict[str, Any]]) -> list[bytes]:
    return [msgspec.msgpack.encode(row) if row else b"" for row in rows]


@settings(max_examples=150, deadline=None)
@given(ROWS, CONDITIONS, st.integers(0, 40), st.integers(0, 40))
def test_filters_choose_what_they_say_however_much_is_indexed(
    rows: list[dict[str, Any]], condition: Condition, indexed: int, size: int
) -> None:
    attributes = Attributes()
    attributes.append(0, packed(rows))
    size = min(size, len(rows))
    expected = [satisfies(row, condition) for row in rows[:size]]
    assert attributes.mask(condition, size).tolist() == expected
    attributes.build_index(min(indexed, len(rows)))
    assert attributes.mask(condition, size).tolist() == expected
    restored = Attributes.restore(attributes.save(len(rows)), len(rows))
    restored.append(len(rows), packed([{"x": "new"}]))
    restored.build_index(min(indexed, len(rows)))
    assert restored.mask(condition, size).tolist() == expected
    assert restored.mask(Condition("eq", "x", ("new",)), len(rows) + 1).tolist()[-1]


@pytest.mark.parametrize("distinct", [7, 5000])
def test_bitmaps_and_sorted_rows_agree_with_columns(distinct: int) -> None:
    random = np.random.default_rng(1)
    values = random.integers(0, distinct, 20_000).tolist()
    rows = [
        {
            "n": n,
            "text": f"{n:06d}",
            "share": n / distinct,
            "even": n % 2 == 0,
            "at": f"2026-01-01T{n % 24:02d}:00:00.{n:06d}Z",
            "tags": [f"{n:06d}", f"{n + 1:06d}"],
            "numbers": [n, n / 2, n],
        }
        for n in values
    ]
    attributes, plain = Attributes(), Attributes()
    for one in (attributes, plain):
        one.append(0, packed(rows))
    assert attributes.index_due(20_000)
    attributes.build_index(19_000)
    assert not attributes.index_due(20_000)
    edge = distinct // 3
    conditions = [
        Condition("eq", "n", (edge,)),
        Condition("in", "text", (f"{edge:06d}", f"{edge + 1:06d}", "nothing")),
        Condition("lt", "text", (f"{edge:06d}",)),
        Condition("gte", "share", (0.8,)),
        Condition("eq", "even", (True,)),
        Condition("gt", "at", ("2026-01-01T10:00:00+05:00",)),
        Condition("in", "at", (f"2026-01-01T{edge % 24:02d}:00:00.{edge:06d}+00:00", "2027-01-01T00:00:00Z")),
        Condition("eq", "tags", (f"{edge:06d}",)),
        Condition("gt", "numbers", (edge,)),
        Condition("lt", "tags", (f"{edge:06d}",)),
    ]
    narrow = Condition("eq", "n", (3,))
    for condition in (*conditions, Condition("and", children=(*conditions[2:], narrow)), Condition("neq", "n", (3,))):
        expected = plain.mask(condition, 20_000)
        assert expected.any() or condition.op == "and"
        assert (attributes.mask(condition, 20_000) == expected).all()
        assert attributes._estimate(condition, attributes._index) >= expected[:19_000].sum()


def test_index_is_built_anew_as_rows_are_added() -> None:
    attributes = Attributes()
    assert not attributes.index_due(module.INDEX_ROWS_MIN)
    attributes.append(0, packed([{"n": 1}] * module.INDEX_ROWS_MIN))
    assert attributes.index_due(module.INDEX_ROWS_MIN)
    attributes.build_index(module.INDEX_ROWS_MIN)
    assert attributes.index_due(2 * module.INDEX_ROWS_MIN)


@pytest.mark.parametrize("op", ["eq", "in", "lt", "lte", "gt", "gte"])
@pytest.mark.parametrize("asked", [2**53 + 1, -(2**53) - 1, 2**63 - 1])
def test_the_index_compares_floats_with_integers_that_no_float_represents(op: str, asked: int) -> None:
    rows = [{"x": float(near)} for near in (asked - 2, asked - 1, asked, asked + 1, asked + 2)]
    attributes = Attributes()
    attributes.append(0, packed(rows))
    attributes.build_index(len(rows))
    condition = Condition(op, "x", (asked, "y") if op == "in" else (asked,))
    assert attributes.mask(condition, len(rows)).tolist() == [satisfies(row, condition) for row in rows]
