"""What the check of types never lets through is refused by the engine too, instead of being answered with something."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coordinator.queries import planner
from coordinator.queries.fetched import Fetched
from coordinator.queries.planner import plan
from shared.errors import Internal, NotExecutable
from shared.labels import LabelFrame
from shared.promql import parser
from shared.promql.ast import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Matcher,
    MatrixSelector,
    NumberLiteral,
    Paren,
    Remote,
    StringLiteral,
    Subquery,
    Unary,
    ValueType,
    VectorSelector,
)
from shared.promql.engine import aggregation_parameters, batches, evaluator, range_functions, smoothed
from shared.promql.engine.context import resolved
from shared.promql.engine.finishing import finish
from shared.promql.engine.functions import INSTANT_FUNCTIONS
from shared.promql.engine.functions.info import info_selector
from shared.promql.engine.functions.sort import natural
from shared.promql.engine.rows import SAME_LABELS
from shared.promql.model import Grid, RangeVector, Samples, Scalar, String
from shared.promql.regex import GROUPS_MAX
from tests.unit.engine_answers import at, rows, source
from tests.unit.operators_setup import Bench

M = VectorSelector("m", (Matcher("__name__", "=", "m"),))
ONE = NumberLiteral(1.0)
TEXT = StringLiteral("x")


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        (Unary("-", TEXT), "unary minus is defined on scalars and instant vectors, not on a String"),
        (Binary("+", TEXT, ONE), r"binary operator \+ is defined on .*, not on String and Scalar"),
        (Call("abs", (ONE,)), "argument 1 of abs must be an instant vector, not a scalar"),
        (Call("clamp_min", (Call("vector", (ONE,)), TEXT)), "argument 2 of clamp_min must be a scalar, not a string"),
        (
            Call("label_join", (Call("vector", (ONE,)), ONE, TEXT)),
            "argument 2 of label_join must be a string, not a scalar",
        ),
        (Call("rate", (ONE,)), "expected a range vector in call to function 'rate'"),
        (Aggregate("sum", ONE), "expected an instant vector, got a scalar"),
        (Aggregate("topk", Call("vector", (ONE,)), TEXT), "the parameter must be a scalar, not string"),
        (Call("histogram_quantiles", (Call("vector", (ONE,)), StringLiteral(""), ONE)), "invalid label name ''"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_what_it_meets(expr: Expr, words: str) -> None:
    bench = Bench()
    with pytest.raises(NotExecutable, match=words):
        evaluator.evaluate(expr, bench.grid, bench.context)


def test_a_vector_is_no_scalar() -> None:
    bench = Bench()
    with pytest.raises(NotExecutable, match="expected a scalar, got a matrix"):
        evaluator.evaluate_scalar(Call("vector", (ONE,)), bench.grid, bench.context)


def test_a_subquery_is_of_an_instant_vector() -> None:
    bench = Bench()
    with pytest.raises(NotExecutable, match="subquery is only allowed on instant vector"):
        evaluator.evaluate(Subquery(ONE, 60_000, 60_000), bench.grid, bench.context)


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        (Call("sum_of_all", ()), "function sum_of_all has no implementation"),
        (M, "a selector reached an evaluation that has no source of samples"),
    ],
)
def test_what_no_query_can_bring_about_is_an_internal_error(expr: Expr, words: str) -> None:
    bench = Bench()
    with pytest.raises(Internal, match=words):
        evaluator.evaluate(expr, bench.grid, bench.context)


def test_a_duration_that_nobody_has_resolved_is_an_internal_error() -> None:
    assert resolved(5) == 5
    with pytest.raises(Internal, match="unresolved"):
        resolved(ONE)  # type: ignore[arg-type]


def test_samples_that_were_not_fetched_are_an_internal_error() -> None:
    bench = Bench()
    symbols = bench.context.symbols
    nothing = Samples(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
    vector = RangeVector(LabelFrame.of([], symbols), nothing, np.zeros(0, dtype=np.bool_))
    fetched = Fetched()
    fetched.add(M.matchers, 10, 20, vector)
    assert fetched.select(M.matchers, 10, 20, symbols).labels.size == 0
    for matchers, start_ms, end_ms in ((M.matchers, 9, 20), (M.matchers, 10, 21), ((), 10, 20)):
        with pytest.raises(Internal, match="the plan fetched no samples"):
            fetched.select(matchers, start_ms, end_ms, symbols)


def test_info_series_that_are_no_vector_are_an_internal_error() -> None:
    bench = Bench()
    bench.context.remote = [bench.scalar(1.0)]
    leaf = Remote(0, ValueType.VECTOR, M)
    with pytest.raises(Internal, match=r"info series of info\(\) is not an instant vector"):
        INSTANT_FUNCTIONS["info"](
            Call("info", (M, leaf)), [bench.matrix(({"job": "a"}, [1]))], bench.grid, bench.context
        )


def test_an_expression_without_a_rule_is_no_plan() -> None:
    cut = planner._Cut("x", True)
    with pytest.raises(AssertionError, match="no rule for a Remote"):
        cut._rewrite(Remote(0, ValueType.VECTOR, M), ())


def test_what_the_interpreter_is_too_deep_for_is_not_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(self: object, expr: Expr) -> Expr:
        raise RecursionError

    monkeypatch.setattr(planner._Cut, "root", deep)
    with pytest.raises(NotExecutable, match="nested too deeply"):
        plan("m + 12345", Grid(0, 0))


# Labels and texts


def test_a_label_name_is_any_text_that_can_be_sent() -> None:
    assert aggregation_parameters.is_label_name("é") and aggregation_parameters.is_label_name("a b")
    assert not aggregation_parameters.is_label_name("")
    assert not aggregation_parameters.is_label_name("\ud800")
    with pytest.raises(NotExecutable, match="invalid label name"):
        aggregation_parameters.label_name(String("\ud800"))
    with pytest.raises(NotExecutable, match="invalid label name"):
        aggregation_parameters.label_name(None)


def test_an_expression_of_too_many_groups_is_refused() -> None:
    bench = Bench()
    matrix = bench.matrix(({"a": "x"}, [1]))
    function = INSTANT_FUNCTIONS["label_replace"]

    def replaced(groups: int) -> object:
        texts = [String(text) for text in ("dst", "$1", "a", "(x)" + "()" * (groups - 1))]
        return function(Call("label_replace", (M, TEXT, TEXT, TEXT, TEXT)), [matrix, *texts], bench.grid, bench.context)

    replaced(GROUPS_MAX)
    with pytest.raises(NotExecutable, match=f"{GROUPS_MAX + 1} groups, at most {GROUPS_MAX} are allowed"):
        replaced(GROUPS_MAX + 1)


@pytest.mark.parametrize(
    ("a", "b", "order"),
    [
        ("a", "a", 0),
        ("", "", 0),
        ("01", "1", -1),
        ("1", "01", 1),
        ("a2", "a10", -1),
        ("a10", "a2", 1),
        ("a2", "b1", -1),
        ("b1", "a2", 1),
        ("a", "a1", -1),
        ("a1", "a", 1),
        ("12", "13", -1),
        ("a0", "a", 1),
    ],
)
def test_texts_are_in_natural_order_and_equal_only_if_the_same(a: str, b: str, order: int) -> None:
    assert np.sign(natural(a, b)) == order


# Limits of parameters

INT64_MIN, INT64_MAX = -(2.0**63), 9223372036854774784.0


def test_a_limit_is_any_int64() -> None:
    values = np.array([INT64_MIN, -1.5, 0.0, 2.9, INT64_MAX])
    assert aggregation_parameters.limits(Scalar(values)).tolist() == [-(2**63), -1, 0, 2, 9223372036854774784]
    assert aggregation_parameters.limits(Scalar(np.zeros(0))).tolist() == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nextafter(INT64_MIN, -math.inf), "underflows int64"),
        (2.0**63, "overflows int64"),
        (math.inf, "overflows int64"),
        (-math.inf, "underflows int64"),
        (math.nan, "Parameter value is NaN"),
    ],
)
def test_a_limit_that_is_no_int64_is_refused_at_whatever_step(value: float, words: str) -> None:
    with pytest.raises(NotExecutable, match=words):
        aggregation_parameters.limits(Scalar(np.array([1.0, value, 2.0])))


def test_ratios_within_one_are_not_remarked_on() -> None:
    bench = Bench(3)
    assert aggregation_parameters.ratios(Scalar(np.array([1.0, -1.0, 0.0])), 3, bench.context).tolist() == [
        1.0,
        -1.0,
        0.0,
    ]
    assert bench.remarks == []


def test_a_ratio_below_minus_one_is_capped_and_remarked_on() -> None:
    bench = Bench(2)
    assert aggregation_parameters.ratios(Scalar(np.array([-2.0, 0.5])), 3, bench.context).tolist() == [-1.0, 0.5]
    (remark,) = bench.context.annotations.items.values()
    assert remark.text.endswith("got -2, capping to -1") and remark.offset == 3


# Series that became equal


def test_a_range_vector_whose_series_became_equal_is_refused() -> None:
    bench = Bench()
    labels = LabelFrame.of([{"__name__": "a", "x": "1"}, {"__name__": "b", "x": "1"}], bench.context.symbols)
    samples = Samples(np.array([0, 1, 2]), np.array([0, 0]), np.array([1.0, 2.0]))
    kept = finish(RangeVector(labels, samples, np.zeros(2, dtype=np.bool_)))
    assert isinstance(kept, RangeVector) and kept.labels.size == 2
    with pytest.raises(NotExecutable, match=SAME_LABELS):
        finish(RangeVector(labels, samples, np.ones(2, dtype=np.bool_)))


# Selectors


@pytest.mark.parametrize(
    ("modifier", "func", "is_allowed"),
    [
        ("anchored", "rate", True),
        ("anchored", "resets", True),
        ("smoothed", "resets", False),
        ("smoothed", "rate", True),
        ("anchored", "sum_over_time", False),
    ],
)
def test_extended_windows_are_for_some_functions(modifier: str, func: str, is_allowed: bool) -> None:
    node = MatrixSelector(replace(M, **{modifier: True}), 60_000)
    if is_allowed:
        range_functions._refuse_extension(func, node)
    else:
        with pytest.raises(NotExecutable, match=f"{modifier} modifier can only be used with: .*rate.* not with {func}"):
            range_functions._refuse_extension(func, node)


def test_the_times_of_a_smoothed_selector_are_the_evaluations() -> None:
    data = source({"m": [1.0, 2.0, 3.0]})
    assert at("timestamp(m smoothed)", data, 15) == {"{}": 15.0}
    assert rows("timestamp(m smoothed)", data, 5, 15, 5) == {"{}": [5.0, 10.0, 15.0]}
    assert rows("timestamp(m smoothed offset 5s)", data, 10, 20, 5) == {"{}": [5.0, 10.0, 15.0]}
    bench = Bench()
    bench.context.source = data
    node = replace(M, smoothed=True)
    assert smoothed.sample_times("start_timestamp", node, Grid(5000, 10_000, 5000), bench.context).values.tolist() == [
        [0.0, 0.0]
    ]


def test_the_info_selector_looks_where_the_first_selector_of_an_operation_looks() -> None:
    def offset_of(text: str) -> object:
        return info_selector(Call("info", (parser.parse(text),))).offset

    assert offset_of("1 + m offset 1m") == 60_000
    assert offset_of("m offset 2m + n offset 1m") == 120_000
    assert offset_of("vector(1)") == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", True),
        ('"x"', True),
        ("-(1)", True),
        ("1 + time()", True),
        ("1 + scalar(m)", False),
        ("scalar(m) + 1", False),
        ("-scalar(m)", False),
        ("m", False),
        ("m[5m]", False),
        ("m[5m:1m]", False),
        ("scalar(sum(m))", False),
        ("sum(vector(1))", False),
    ],
)
def test_what_reads_no_samples_is_constant(text: str, expected: bool) -> None:
    assert batches.constant(parser.parse(text)) is expected


def test_what_stands_for_an_answer_of_the_workers_is_not_constant() -> None:
    assert not batches.constant(Paren(Remote(0, ValueType.SCALAR, M)))
