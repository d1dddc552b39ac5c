"""Binary operators between vectors of native histograms and floats."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.promql.ast import Binary, Matching, Remote, Unary, ValueType, VectorSelector
from shared.promql.engine.binary import evaluate_binary
from shared.promql.engine.evaluator import evaluate
from shared.promql.model import Matrix
from tests import oracle_native_histograms as oracle
from tests.histogram_strategies import WHOLE, custom, exponential
from tests.oracle_native_histograms import Hint, NativeHistogram
from tests.unit.operators_setup import Bench, Cell, by_labels

SIDE = VectorSelector("m", ())
H = NativeHistogram(count=6.0, sum=9.0, positive={0: 1.0, 1: 2.0, 2: 3.0})
OTHER = NativeHistogram(count=2.0, sum=3.0, positive={0: 1.0, 3: 1.0})
CUSTOM = NativeHistogram(schema=-53, count=3.0, sum=4.0, positive={0: 1.0, 1: 2.0}, bounds=(5.0, 10.0))
COARSER = NativeHistogram(schema=-53, count=1.0, sum=4.0, positive={0: 1.0}, bounds=(5.0,))
GAUGE = Hint.GAUGE

_counted = st.one_of(exponential(WHOLE), custom(WHOLE)).filter(lambda h: not math.isnan(h.sum))
cells = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e300, math.inf, math.nan]), _counted)
OPERATORS = ["+", "-", "*", "/", "%", "^", "atan2", "==", "!=", "<", ">=", "</", ">/"]


def operate(bench, op, lhs, rhs, matching=None, *, return_bool=False):
    vectors = isinstance(lhs, Matrix) and isinstance(rhs, Matrix)
    node = Binary(op, SIDE, SIDE, return_bool, matching or (Matching() if vectors else None))
    return evaluate_binary(node, lhs, rhs, bench.grid, bench.context)


def kind(cell: Cell) -> str:
    return "histogram" if isinstance(cell, NativeHistogram) else "float"


def expected(op: str, left: Cell, right: Cell, *, return_bool: bool) -> tuple[Cell, bool]:
    """(the result of an operator with a histogram on some side, whether the types have one at all)."""
    match op, kind(left), kind(right):
        case "+" | "-", "histogram", "histogram":
            if left.is_custom != right.is_custom:
                return None, True
            result = oracle.summed([left, right], [1.0, -1.0 if op == "-" else 1.0])
            return (result if op == "+" else oracle.replace(result, hint=GAUGE)), True
        case "==" | "!=", "histogram", "histogram":
            holds = oracle.same(left, right) == (op == "==")
            return (float(holds) if return_bool else left if holds else None), True
        case "*", "histogram", "float":
            return oracle.scaled(left, right), True
        case "*", "float", "histogram":
            return oracle.scaled(right, left), True
        case "/", "histogram", "float":
            return oracle.divided(left, right), True
        case "</" | ">/", "histogram", "float":
            return oracle.trimmed(left, right, keeps_below=op == "</"), True
    return None, False


def assert_same(got: Cell, want: Cell) -> None:
    assert (got is None, kind(got)) == (want is None, kind(want))
    if not isinstance(want, NativeHistogram):
        assert got is None or got == pytest.approx(want, nan_ok=True)
        return
    got, want = oracle.compact(got), oracle.compact(want)
    assert (got.schema, got.bounds, got.hint) == (want.schema, want.bounds, want.hint)
    for number in ("count", "sum", "zero_count", "zero_threshold", "positive", "negative"):
        assert getattr(got, number) == pytest.approx(getattr(want, number), rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("op", OPERATORS)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=6), st.booleans())
def test_each_cell_is_computed_by_the_types_of_its_operands(op, pairs, return_bool):
    return_bool = return_bool and op in ("==", "!=", "<", ">=")
    bench = Bench(len(pairs))
    lhs, rhs = (bench.matrix(({"a": "1"}, [pair[side] for pair in pairs])) for side in (0, 1))
    (got,) = by_labels(operate(bench, op, lhs, rhs, return_bool=return_bool)).values() or ([None] * len(pairs),)
    refused = set()
    for cell, (left, right) in zip(got, pairs, strict=True):
        if left is None or right is None:
            assert cell is None
            continue
        if kind(left) == kind(right) == "float":
            if op in ("</", ">/"):
                refused.add("float float")
            continue
        want, is_defined = expected(op, left, right, return_bool=return_bool)
        if not is_defined:
            refused.add(f"{kind(left)} {kind(right)}")
        assert_same(cell, want)
    start = f'PromQL info: incompatible sample types encountered for binary operator "{op}": '
    texts = {text for text in bench.remarks if "incompatible sample types" in text}
    assert texts == {start + types.replace(" ", f" {op} ") for types in refused}


@pytest.mark.parametrize("op", OPERATORS)
@settings(max_examples=15, deadline=None)
@given(st.lists(cells, min_size=1, max_size=4), st.sampled_from([0.0, -2.0, 0.5, math.nan]), st.booleans())
def test_a_scalar_is_computed_with_as_a_float_of_each_cell(op, values, number, scalar_first):
    bench = Bench(len(values))
    vector, scalar = bench.matrix(({"a": "1"}, values)), bench.scalar(number)
    lhs, rhs = (scalar, vector) if scalar_first else (vector, scalar)
    (got,) = by_labels(operate(bench, op, lhs, rhs)).values() or ([None] * len(values),)
    for cell, value in zip(got, values, strict=True):
        if isinstance(value, NativeHistogram):
            left, right = (number, value) if scalar_first else (value, number)
            assert_same(cell, expected(op, left, right, return_bool=False)[0])
        elif value is None:
            assert cell is None
    with_floats = bench.matrix(
        ({"a": "1"}, [None if isinstance(value, NativeHistogram) else value for value in values])
    )
    lhs, rhs = (scalar, with_floats) if scalar_first else (with_floats, scalar)
    (of_floats,) = by_labels(operate(bench, op, lhs, rhs)).values() or ([None] * len(values),)
    for cell, value, alone in zip(got, values, of_floats, strict=True):
        if not isinstance(value, NativeHistogram):
            assert_same(cell, alone)


def test_both_sides_refer_to_rows_of_their_own():
    bench = Bench(2)
    lhs, rhs = bench.matrix(({"a": "1"}, [H, OTHER])), bench.matrix(({"a": "1"}, [OTHER, H]))
    want = oracle.compact(oracle.summed([H, OTHER]))
    assert by_labels(operate(bench, "+", lhs, rhs)) == {(("a", "1"),): [want, want]}
    assert bench.remarks == []


@pytest.mark.parametrize(
    ("op", "left", "right", "remarks"),
    [
        ("+", H, CUSTOM, ["PromQL warning: incompatible bucket layout encountered for binary operator +"]),
        ("-", H, CUSTOM, ["PromQL warning: incompatible bucket layout encountered for binary operator -"]),
        ("+", CUSTOM, COARSER, ["PromQL info: mismatched custom buckets were reconciled during addition"]),
        ("-", CUSTOM, COARSER, ["PromQL info: mismatched custom buckets were reconciled during subtraction"]),
        (
            "+",
            oracle.replace(H, hint=Hint.RESET),
            oracle.replace(H, hint=Hint.NOT_RESET),
            ["PromQL warning: conflicting counter resets during histogram addition"],
        ),
        (
            "-",
            oracle.replace(H, hint=Hint.NOT_RESET),
            oracle.replace(H, hint=Hint.RESET),
            ["PromQL warning: conflicting counter resets during histogram subtraction"],
        ),
        ("==", CUSTOM, COARSER, []),
        ("!=", H, CUSTOM, []),
    ],
)
def test_sums_say_what_did_not_fit(op, left, right, remarks):
    bench = Bench()
    result = operate(bench, op, bench.matrix(({"a": "1"}, [left])), bench.matrix(({"a": "1"}, [right])))
    assert bench.remarks == remarks
    assert len(by_labels(result)) == (op != "==" and not any("incompatible" in remark for remark in remarks))


def test_nothing_is_said_of_histograms_that_match_nothing():
    bench = Bench(2)
    lhs, rhs = bench.matrix(({"a": "1"}, [H, None])), bench.matrix(({"a": "1"}, [None, 1.0]), ({"a": "2"}, [2.0, 2.0]))
    assert by_labels(operate(bench, "+", lhs, rhs)) == {}
    assert bench.remarks == []


def test_group_left_and_fill_take_histograms_to_their_partners():
    bench = Bench()
    many = bench.matrix(({"a": "1", "b": "x"}, [H]), ({"a": "1", "b": "y"}, [OTHER]), ({"a": "2", "b": "z"}, [H]))
    one = bench.matrix(({"a": "1"}, [2.0]), ({"a": "3"}, [H]))
    matching = Matching(card="many-to-one", on=True, labels=("a",))
    twice = {labels: oracle.scaled(h, 2.0) for labels, h in {"x": H, "y": OTHER}.items()}
    assert by_labels(operate(bench, "*", many, one, matching)) == {
        (("a", "1"), ("b", label)): [h] for label, h in twice.items()
    }
    filled = Matching(card="many-to-one", on=True, labels=("a",), fill_left=3.0, fill_right=5.0)
    got = by_labels(operate(bench, "*", many, one, filled))
    assert got[("a", "2"), ("b", "z")] == [oracle.scaled(H, 5.0)]
    assert got[(("a", "3"),)] == [oracle.scaled(H, 3.0)]


@pytest.mark.parametrize("op", ["and", "or", "unless"])
def test_set_operators_carry_histograms(op):
    bench = Bench(2)
    lhs = bench.matrix(({"a": "1"}, [H, None]), ({"a": "2"}, [1.0, OTHER]))
    rhs = bench.matrix(({"a": "1"}, [CUSTOM, CUSTOM]), ({"a": "3"}, [7.0, COARSER]))
    matching = Matching(card="many-to-many")
    assert (
        by_labels(operate(bench, op, lhs, rhs, matching))
        == {
            "and": {(("a", "1"),): [H, None]},
            "or": {(("a", "1"),): [H, CUSTOM], (("a", "2"),): [1.0, OTHER], (("a", "3"),): [7.0, COARSER]},
            "unless": {(("a", "2"),): [1.0, OTHER]},
        }[op]
    )


def test_unary_minus_makes_gauges_and_negates_floats():
    bench = Bench(3)
    bench.context.remote = [bench.matrix(({"a": "1"}, [H, 2.0, None]), ({"a": "2"}, [None, H, 0.0]))]
    got = by_labels(evaluate(Unary("-", Remote(0, ValueType.VECTOR, SIDE)), bench.grid, bench.context))
    negative = oracle.scaled(H, -1.0)
    assert got == {(("a", "1"),): [negative, -2.0, None], (("a", "2"),): [None, negative, -0.0]}
    assert negative.hint is GAUGE
