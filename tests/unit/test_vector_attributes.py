"""Filters over attributes: the index agrees with the columns, and both with a filter written the obvious way."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.vectors import Condition
from worker.vectors import attributes as module
from worker.vectors.attributes import Attributes

VALUES = st.one_of(
    st.sampled_from(["", "a", "b", "blue", "ü"]),
    st.integers(-3, 3),
    st.sampled_from([2**62, -(2**63), 2**63 - 1]),
    st.sampled_from([-2.5, -1.0, -0.0, 0.0, 0.5, 2.0, 1e300]),
    st.booleans(),
)
ROWS = st.lists(st.dictionaries(st.sampled_from(["x", "y"]), VALUES), min_size=1, max_size=40)
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
    for value in condition.values:
        if comparable(own, value):
            fits = {"lt": own < value, "lte": own <= value, "gt": own > value, "gte": own >= value}
            if fits.get(op, own == value):
                return True
    return False


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
    rows = [{"n": n, "text": f"{n:06d}", "share": n / distinct, "even": n % 2 == 0} for n in values]
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
