"""Binary operators on scalars and vectors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shared.errors import NotExecutable
from shared.promql.ast import Binary, Matching, VectorSelector
from shared.promql.engine import rows as engine_rows
from shared.promql.engine.binary import evaluate_binary
from shared.promql.engine.operations import ARITHMETIC_UFUNCS, COMPARISON_UFUNCS
from shared.promql.model import Matrix, Scalar
from shared.promql.operators import ARITHMETIC, COMPARISONS
from tests.oracle_operators import ARITHMETIC as OF_ORACLE
from tests.unit.operators_setup import Bench, by_labels, rows

SIDE = VectorSelector("m", ())
PLAIN = Matching()


def operate(bench, op, lhs, rhs, matching=None, *, return_bool=False):
    vectors = isinstance(lhs, Matrix) and isinstance(rhs, Matrix)
    node = Binary(op, SIDE, SIDE, return_bool, matching or (PLAIN if vectors else None))
    return evaluate_binary(node, lhs, rhs, bench.grid, bench.context)


def test_every_operator_of_numbers_has_an_implementation() -> None:
    assert set(ARITHMETIC_UFUNCS) == ARITHMETIC
    assert set(COMPARISON_UFUNCS) == COMPARISONS


@pytest.mark.parametrize("op", ["</", ">/"])
def test_trims_answer_nothing_for_floats_and_say_so(op):
    text = f'PromQL info: incompatible sample types encountered for binary operator "{op}": float {op} float'
    for left, right in (("vector", "scalar"), ("scalar", "vector"), ("vector", "vector")):
        bench = Bench(2)
        sides = {"vector": bench.matrix(({"a": "1"}, [1, 2])), "scalar": bench.scalar(3, 4)}
        assert rows(operate(bench, op, sides[left], sides[right])) == []
        assert bench.remarks == [text]
    bench = Bench(2)
    assert rows(operate(bench, op, bench.matrix(), bench.scalar(3, 4))) == []
    assert bench.remarks == []
    with pytest.raises(NotExecutable, match="not defined between scalars"):
        operate(bench, op, bench.scalar(1, 1), bench.scalar(2, 2))


@pytest.mark.parametrize(
    ("left", "op", "right", "expected"),
    [
        (-7, "%", 3, -1.0),
        (7, "%", -3, 1.0),
        (1, "%", 0, math.nan),
        (5, "%", math.inf, 5.0),
        (2, "^", 10, 1024.0),
        (-8, "^", 1 / 3, math.nan),
        (-1, "^", math.inf, 1.0),
        (math.nan, "^", 0, 1.0),
        (1, "/", 0, math.inf),
        (0, "/", 0, math.nan),
        (-1, "/", 0, -math.inf),
        (10, "atan2", 20, 0.4636476090008061),
    ],
)
def test_arithmetic_has_the_special_cases_of_c99(left, op, right, expected):
    bench = Bench()
    value = operate(bench, op, bench.scalar(left), bench.scalar(right))
    assert isinstance(value, Scalar)
    np.testing.assert_equal(value.values, [expected])


@pytest.mark.parametrize("exponent", [0.5, -0.5, 2, 3, -1, 0, 1, -3, math.inf])
def test_powers_have_the_special_cases_of_c99_however_many_there_are(exponent: float) -> None:
    bases = [-math.inf, -2.0, -0.0, 0.0, 1.0, 9.0, math.inf]
    expected = [float(OF_ORACLE["^"](np.float64(base), np.float64(exponent))) for base in bases]
    across = Bench(len(bases))
    of_steps = operate(across, "^", across.matrix(({"a": "1"}, bases)), across.scalar(exponent))
    down = Bench()
    of_series = operate(
        down, "^", down.matrix(*(({"a": str(i)}, [x]) for i, x in enumerate(bases))), down.scalar(exponent)
    )
    one_by_one = [operate(down, "^", down.matrix(({"a": "1"}, [x])), down.scalar(exponent)).values for x in bases]
    between = operate(across, "^", across.scalar(*bases), across.scalar(exponent))
    for values in (of_steps.values, of_series.values, one_by_one, between.values):
        np.testing.assert_equal(np.ravel(values), expected)
        is_number = ~np.isnan(expected)
        assert (np.signbit(np.ravel(values)) == np.signbit(expected))[is_number].all(), "zeros have their sign"


def test_series_become_one_if_they_agree_on_whether_the_name_is_dropped():
    bench = Bench(2)
    matrix = bench.matrix(({"__name__": "m"}, [1, None]), ({"__name__": "m"}, [None, 2]), ({"__name__": "n"}, [3, 3]))
    for drops, expected in (
        ([False] * 3, [([1, 2], False), ([3, 3], False)]),
        ([True, True, False], [([1, 2], True), ([3, 3], False)]),
        ([True, False, False], [([1, None], True), ([None, 2], False), ([3, 3], False)]),
    ):
        matrix.drop_name = np.array(drops)
        united = engine_rows.united(matrix)
        assert [(cells, drop) for (_, cells), drop in zip(rows(united), united.drop_name, strict=True)] == expected
    one_name = engine_rows.with_one_name(matrix)
    assert [cells for _, cells in rows(one_name)] == [[1, 2], [3, 3]]
    assert one_name.drop_name.tolist() == [True, False]


def test_series_with_and_without_a_name_that_is_dropped_are_refused_at_one_step():
    bench = Bench()
    matrix = bench.matrix(({"__name__": "m"}, [1]), ({"__name__": "m"}, [2]))
    matrix.drop_name = np.array([True, False])
    with pytest.raises(NotExecutable, match="same labelset"):
        engine_rows.united(matrix)


@pytest.mark.parametrize(("op", "is_refused"), [(">", False), ("+", True)])
def test_pairs_that_a_many_to_one_comparison_removes_are_not_ambiguous(op, is_refused):
    bench = Bench()
    many = bench.matrix(({"__name__": "c", "i": "1", "z": "q"}, [1]), ({"__name__": "c", "i": "1", "z": "r"}, [2]))
    one = bench.matrix(({"__name__": "one", "i": "1"}, [1.5]))
    matching = Matching("many-to-one", True, ("i",), ("z",))
    if is_refused:
        with pytest.raises(NotExecutable, match="grouping labels must ensure unique matches"):
            operate(bench, op, many, one, matching)
    else:
        assert rows(operate(bench, op, many, one, matching)) == [({"__name__": "c", "i": "1"}, [2.0])]


def test_a_comparison_of_scalars_answers_0_or_1():
    bench = Bench(2)
    assert operate(bench, "<", bench.scalar(1, 3), bench.scalar(2), return_bool=True).values.tolist() == [1.0, 0.0]


def test_a_comparison_of_scalars_without_bool_is_refused():
    bench = Bench()
    with pytest.raises(NotExecutable, match="bool"):
        operate(bench, "<", bench.scalar(1), bench.scalar(2))


def test_arithmetic_with_a_scalar_marks_the_name_as_dropped():
    bench = Bench()
    value = operate(bench, "*", bench.matrix(({"__name__": "m", "a": "1"}, [3])), bench.scalar(2))
    assert rows(value) == [({"__name__": "m", "a": "1"}, [6.0])]
    assert value.drop_name.all()


@pytest.mark.parametrize("swapped", [False, True])
def test_a_filter_answers_the_vectors_values_and_keeps_the_name(swapped):
    bench = Bench(3)
    vector = bench.matrix(({"__name__": "m"}, [1, 5, None]), ({"__name__": "n"}, [1, 2, 3]))
    sides = (bench.scalar(3), vector) if swapped else (vector, bench.scalar(3))
    value = operate(bench, "<" if swapped else ">", *sides)
    assert rows(value) == [({"__name__": "m"}, [None, 5.0, None])]
    assert not value.drop_name.any()


def test_nan_equals_nothing_and_differs_from_everything():
    bench = Bench(1)
    vector = bench.matrix(({"__name__": "m"}, [math.nan]))
    assert rows(operate(bench, "==", vector, bench.scalar(math.nan))) == []
    assert len(rows(operate(bench, "!=", vector, bench.scalar(math.nan)))) == 1


def test_vectors_match_on_all_labels_but_the_name():
    bench = Bench(2)
    lhs = bench.matrix(({"__name__": "m", "a": "1"}, [1, 2]), ({"__name__": "m", "a": "2"}, [3, 4]))
    rhs = bench.matrix(({"__name__": "n", "a": "2"}, [10, None]), ({"__name__": "n", "a": "3"}, [1, 1]))
    value = operate(bench, "+", lhs, rhs)
    assert rows(value) == [({"a": "2"}, [13.0, None])]


def test_on_keeps_the_labels_matched_and_ignoring_removes_them():
    bench = Bench()
    lhs = bench.matrix(({"a": "1", "b": "x"}, [1]))
    rhs = bench.matrix(({"a": "1", "b": "y"}, [2]))
    assert rows(operate(bench, "+", lhs, rhs, Matching(on=True, labels=("a",)))) == [({"a": "1"}, [3.0])]
    assert rows(operate(bench, "+", lhs, rhs, Matching(labels=("b",)))) == [({"a": "1"}, [3.0])]


def test_type_and_unit_leave_with_the_name():
    bench = Bench()
    labels = {"__type__": "counter", "__unit__": "s", "a": "1"}
    value = operate(bench, "-", bench.matrix(({"__name__": "m", **labels}, [5])), bench.matrix((labels, [2])))
    assert rows(value) == [({"a": "1"}, [3.0])]


def test_one_to_one_refuses_two_matches_even_where_the_comparison_drops_both():
    bench = Bench()
    lhs = bench.matrix(({"j": "t", "l": "a"}, [0]), ({"j": "t", "l": "b"}, [1]))
    rhs = bench.matrix(({"j": "t"}, [9]))
    with pytest.raises(NotExecutable, match="many-to-one matching must be explicit"):
        operate(bench, ">", lhs, rhs, Matching(on=True, labels=("j",)))


def test_duplicates_on_the_one_side_are_refused_only_where_both_are_present():
    bench = Bench(2)
    lhs = bench.matrix(({"__name__": "s"}, [1, 1]))
    apart = bench.matrix(({"__name__": "d", "l": "a"}, [1, None]), ({"__name__": "d", "l": "b"}, [None, 2]))
    on_nothing = Matching(on=True)
    assert rows(operate(bench, "+", lhs, apart, on_nothing)) == [({}, [2.0, 3.0])]
    together = bench.matrix(({"__name__": "d", "l": "b"}, [None, 1]), ({"__name__": "d", "l": "a"}, [1, 1]))
    with pytest.raises(NotExecutable) as error:
        operate(bench, "+", lhs, together, on_nothing)
    assert str(error.value) == (
        "found duplicate series for the match group {} on the right hand-side of the operation: "
        '[{__name__="d", l="a"}, {__name__="d", l="b"}];'
        "many-to-many matching not allowed: matching labels must be unique on one side"
    )


def test_duplicates_do_not_matter_where_the_other_side_is_empty():
    bench = Bench(2)
    lhs = bench.matrix(({}, [None, 1]))
    rhs = bench.matrix(({"l": "a"}, [1, 1]), ({"l": "b"}, [1, None]))
    assert rows(operate(bench, "+", lhs, rhs, Matching(on=True))) == [({}, [None, 2.0])]


def test_group_left_takes_included_labels_from_the_one_side_at_every_step():
    bench = Bench(2)
    many = bench.matrix(({"i": "a", "cpu": "0"}, [1, 2]), ({"i": "a", "cpu": "1"}, [3, 4]))
    one = bench.matrix(({"i": "a", "role": "old"}, [10, None]), ({"i": "a", "role": "new"}, [None, 100]))
    matching = Matching("many-to-one", True, ("i",), ("role",))
    assert by_labels(operate(bench, "*", many, one, matching)) == {
        (("cpu", "0"), ("i", "a"), ("role", "old")): [10.0, None],
        (("cpu", "0"), ("i", "a"), ("role", "new")): [None, 200.0],
        (("cpu", "1"), ("i", "a"), ("role", "old")): [30.0, None],
        (("cpu", "1"), ("i", "a"), ("role", "new")): [None, 400.0],
    }


def test_group_right_keeps_the_operands_sides():
    bench = Bench()
    one, many = bench.matrix(({"i": "a"}, [10])), bench.matrix(({"i": "a", "c": "0"}, [4]))
    matching = Matching("one-to-many", True, ("i",))
    assert rows(operate(bench, "-", one, many, matching)) == [({"i": "a", "c": "0"}, [6.0])]
    assert rows(operate(bench, ">", one, many, matching)) == [({"i": "a", "c": "0"}, [10.0])]


def test_group_left_can_give_the_result_a_name():
    bench = Bench()
    lhs, rhs = bench.matrix(({"__name__": "m", "a": "1"}, [1])), bench.matrix(({"__name__": "n"}, [2]))
    value = operate(bench, "+", lhs, rhs, Matching("many-to-one", True, (), ("__name__",)))
    assert rows(value) == [({"__name__": "n", "a": "1"}, [3.0])]
    assert not value.drop_name.any()


def test_grouping_labels_must_keep_the_results_apart():
    bench = Bench()
    many = bench.matrix(({"i": "a", "r": "x"}, [1]), ({"i": "a", "r": "y"}, [2]))
    one = bench.matrix(({"i": "a", "r": "z"}, [1]))
    with pytest.raises(NotExecutable, match="grouping labels must ensure unique matches"):
        operate(bench, "+", many, one, Matching("many-to-one", True, ("i",), ("r",)))


def test_a_dropped_name_stays_dropped_through_a_filter():
    bench = Bench()
    lhs = bench.matrix(({"__name__": "m"}, [5]), drop_name=True)
    value = operate(bench, ">", lhs, bench.matrix(({"__name__": "n"}, [1])))
    assert value.drop_name.tolist() == [True]


def test_fill_stands_in_for_the_side_that_is_absent_at_a_step():
    bench = Bench(3)
    lhs = bench.matrix(({"__name__": "l", "k": "a"}, [1, None, 3]))
    rhs = bench.matrix(({"__name__": "r", "k": "a"}, [10, 20, None]), ({"__name__": "r", "k": "b"}, [7, None, None]))
    both = replace(PLAIN, fill_left=0.0, fill_right=100.0)
    assert by_labels(operate(bench, "+", lhs, rhs, both)) == {
        (("k", "a"),): [11.0, 20.0, 103.0],
        (("k", "b"),): [7.0, None, None],
    }
    left = replace(PLAIN, fill_left=0.0)
    assert by_labels(operate(bench, "+", lhs, rhs, left))[(("k", "a"),)] == [11.0, 20.0, None]


def test_a_filled_comparison_answers_the_fill_without_a_name():
    bench = Bench()
    lhs, rhs = bench.matrix(({"__name__": "l", "k": "a"}, [10])), bench.matrix(({"__name__": "r", "k": "d"}, [400]))
    value = operate(bench, "!=", lhs, rhs, replace(PLAIN, fill_left=30.0, fill_right=30.0))
    assert by_labels(value) == {(("__name__", "l"), ("k", "a")): [10.0], (("k", "d"),): [30.0]}


def test_and_or_unless_decide_step_by_step():
    bench = Bench(3)
    lhs = bench.matrix(({"__name__": "l", "k": "a"}, [1, 2, None]), ({"__name__": "l", "k": "b"}, [3, None, None]))
    rhs = bench.matrix(({"__name__": "r", "k": "a"}, [None, 20, 30]))
    many = Matching("many-to-many")
    assert rows(operate(bench, "and", lhs, rhs, many)) == [({"__name__": "l", "k": "a"}, [None, 2.0, None])]
    assert rows(operate(bench, "unless", lhs, rhs, many)) == [
        ({"__name__": "l", "k": "a"}, [1.0, None, None]),
        ({"__name__": "l", "k": "b"}, [3.0, None, None]),
    ]
    assert rows(operate(bench, "or", lhs, rhs, many)) == [
        ({"__name__": "l", "k": "a"}, [1.0, 2.0, None]),
        ({"__name__": "l", "k": "b"}, [3.0, None, None]),
        ({"__name__": "r", "k": "a"}, [None, None, 30.0]),
    ]


def test_or_makes_one_series_of_equal_label_sets():
    bench = Bench(2)
    lhs, rhs = bench.matrix(({"k": "a"}, [1, None])), bench.matrix(({"k": "a"}, [10, 20]))
    assert rows(operate(bench, "or", lhs, rhs, Matching("many-to-many"))) == [({"k": "a"}, [1.0, 20.0])]


def test_on_without_labels_matches_everything():
    bench = Bench()
    lhs, rhs = bench.matrix(({"k": "a"}, [1]), ({"k": "b"}, [2])), bench.matrix(({"z": "z"}, [0]))
    assert len(rows(operate(bench, "and", lhs, rhs, Matching("many-to-many", True)))) == 2
    assert rows(operate(bench, "unless", lhs, rhs, Matching("many-to-many", True))) == []


@pytest.mark.parametrize("op", ["+", "==", "and", "or", "unless"])
def test_empty_vectors_are_no_trouble(op):
    bench = Bench(2)
    some, none = bench.matrix(({"k": "a"}, [1, 2])), bench.matrix()
    matching = Matching("many-to-many") if op in ("and", "or", "unless") else PLAIN
    assert len(rows(operate(bench, op, some, none, matching))) == (1 if op in ("or", "unless") else 0)
    assert len(rows(operate(bench, op, none, some, matching))) == (1 if op == "or" else 0)
    assert rows(operate(bench, op, none, none, matching)) == []
