"""Functions of instant vectors and scalars, on values."""

from __future__ import annotations

import datetime
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import DeadlineExceeded, NotExecutable
from shared.promql.ast import Call, Matcher, NumberLiteral, Paren, VectorSelector
from shared.promql.engine.functions import INSTANT_FUNCTIONS
from shared.promql.engine.functions.labels import _template
from shared.promql.engine.functions.sort import natural
from shared.promql.engine.numbers import general, plain
from shared.promql.model import Scalar, String
from tests.unit.operators_setup import Bench, by_labels, rows

M = VectorSelector("m", (Matcher("__name__", "=", "m"),), span=(7, 8))


def call(bench, name, *args, exprs=None):
    values = [String(arg) if isinstance(arg, str) else arg for arg in args]
    exprs = exprs or tuple(NumberLiteral(0.0, span=(10 * i, 10 * i + 1)) for i in range(len(args)))
    return INSTANT_FUNCTIONS[name](Call(name, exprs, span=(3, 9)), values, bench.grid, bench.context)


def on_value(name, value, *params):
    bench = Bench()
    matrix = bench.matrix(({"__name__": "m", "a": "1"}, [value]))
    answer = call(bench, name, matrix, *map(bench.scalar, params))
    assert answer.drop_name.all()
    return answer.values[0, 0] if answer.labels.size else None


@pytest.mark.parametrize(
    ("name", "value", "params", "expected"),
    [
        ("abs", -2.5, (), 2.5),
        ("ceil", 2.1, (), 3.0),
        ("floor", -2.5, (), -3.0),
        ("ln", -1.0, (), math.nan),
        ("ln", 0.0, (), -math.inf),
        ("log2", 8.0, (), 3.0),
        ("log10", 1000.0, (), 3.0),
        ("sqrt", -1.0, (), math.nan),
        ("exp", 1000.0, (), math.inf),
        ("sgn", -math.inf, (), -1.0),
        ("sgn", math.nan, (), math.nan),
        ("sgn", 0.0, (), 0.0),
        ("sgn", 5e-324, (), 1.0),
        ("round", 2.5, (), 3.0),
        ("round", -2.5, (), -2.0),
        ("round", 5.25, (0.1,), 5.3),
        ("round", 0.0, (5.0,), 0.0),
        ("clamp", 7.0, (1.0, 5.0), 5.0),
        ("clamp", 7.0, (math.nan, 0.0), math.nan),
        ("clamp_min", -3.0, (-2.0,), -2.0),
        ("clamp_max", math.nan, (1.0,), math.nan),
        ("deg", math.pi, (), 180.0),
        ("rad", 180.0, (), math.pi),
        ("asin", 2.0, (), math.nan),
        ("acosh", 10.0, (), 2.993222846126381),
    ],
)
def test_functions_of_one_number(name, value, params, expected):
    np.testing.assert_allclose(on_value(name, value, *params), expected, rtol=1e-12)


def test_the_sign_of_a_zero_is_the_zero_itself():
    assert math.copysign(1.0, on_value("sgn", -0.0)) == -1.0
    assert math.copysign(1.0, on_value("sgn", 0.0)) == 1.0


def test_clamp_answers_nothing_where_the_bounds_are_the_wrong_way_round():
    bench = Bench(2)
    answer = call(bench, "clamp", bench.matrix(({}, [1, 1])), bench.scalar(5, 0), bench.scalar(-5, 2))
    assert rows(answer) == [({}, [None, 1.0])]
    assert on_value("clamp", 1.0, 5.0, -5.0) is None


def test_min_of_and_max_of_propagate_nan():
    bench = Bench(3)
    low = call(bench, "min_of", bench.scalar(1, 2, math.nan), bench.scalar(2, 1, 0))
    np.testing.assert_equal(low.values, [1.0, 1.0, math.nan])


def test_time_is_the_evaluations_and_start_end_step_range_the_querys():
    bench = Bench(3)
    assert call(bench, "time").values.tolist() == [0.0, 60.0, 120.0]
    assert call(bench, "start").values.tolist() == [0.0] * 3
    assert call(bench, "end").values.tolist() == [120.0] * 3
    assert call(bench, "step").values.tolist() == [60.0] * 3
    assert call(bench, "range").values.tolist() == [120.0] * 3
    instant = Bench()
    assert call(instant, "step").values.tolist() == call(instant, "range").values.tolist() == [0.0]


@given(st.integers(-(10**10), 10**11))
def test_parts_of_dates_are_those_of_the_calendar(seconds):
    date = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    next_month = datetime.datetime(date.year + date.month // 12, date.month % 12 + 1, 1)
    expected = {
        "minute": date.minute,
        "hour": date.hour,
        "day_of_week": date.isoweekday() % 7,
        "day_of_month": date.day,
        "day_of_year": date.timetuple().tm_yday,
        "days_in_month": (next_month - datetime.datetime(date.year, date.month, 1)).days,
        "month": date.month,
        "year": date.year,
    }
    assert {name: on_value(name, float(seconds)) for name in expected} == expected


def test_dates_of_what_is_no_date_are_nan():
    for value in (math.nan, math.inf, -math.inf, 1e300):
        assert math.isnan(on_value("year", value))


def test_date_functions_without_an_argument_are_about_now():
    bench = Bench(2)
    answer = call(bench, "minute")
    assert rows(answer) == [({}, [0.0, 1.0])]
    assert answer.drop_name.shape == (1,)


def test_timestamp_of_what_is_no_selector_is_the_evaluations_time():
    bench = Bench(3)
    assert rows(call(bench, "timestamp", bench.matrix(({"a": "1"}, [5, None, 7])))) == [
        ({"a": "1"}, [0.0, None, 120.0])
    ]


def test_scalar_is_nan_unless_there_is_one_sample():
    bench = Bench(3)
    answer = call(bench, "scalar", bench.matrix(({"a": "1"}, [5, None, 7]), ({"a": "2"}, [6, None, None])))
    assert isinstance(answer, Scalar)
    np.testing.assert_equal(answer.values, [math.nan, math.nan, 7.0])
    np.testing.assert_equal(call(bench, "scalar", bench.matrix()).values, [math.nan] * 3)


def test_vector_has_one_series_without_labels():
    bench = Bench(2)
    assert rows(call(bench, "vector", bench.scalar(1, math.nan)))[0][0] == {}


def test_absent_answers_with_the_labels_a_selector_equates():
    bench = Bench(2)
    matchers = [("__name__", "=", "m"), ("a", "=", "1"), ("b", "=~", "x"), ("c", "=", "1"), ("c", "=", "2")]
    selector = Paren(VectorSelector("m", tuple(Matcher(*matcher) for matcher in matchers)))
    some = bench.matrix(({"a": "1"}, [1, None]))
    assert rows(call(bench, "absent", some, exprs=(selector,))) == [({"a": "1"}, [None, 1.0])]
    assert rows(call(bench, "absent", bench.matrix())) == [({}, [1.0, 1.0])]
    assert rows(call(bench, "absent", bench.matrix(({}, [1, 1])))) == []


def test_label_replace_sets_a_label_where_the_whole_value_matches():
    bench = Bench()
    matrix = bench.matrix(
        ({"src": "value-10", "dst": "old"}, [1]), ({"src": "other", "dst": "old"}, [2]), ({"dst": "old"}, [3])
    )
    answer = call(bench, "label_replace", matrix, "dst", "${n}-$2$$-$1x", "src", "(?P<n>val)ue-(.*)")
    assert [labels.get("dst") for labels, _ in rows(answer)] == ["val-10$-", "old", "old"]
    answer = call(bench, "label_replace", matrix, "dst", "", "dst", ".*")
    assert [labels for labels, _ in rows(answer)] == [{"src": "value-10"}, {"src": "other"}, {}]


def test_templates_are_those_of_regexp_expand():
    assert _template("a$1b${1}b$$ $ $9", {}, 1) == [b"a", 1, b"b", b"$", b" $ "]
    assert _template("$0${name}", {"name": 2}, 2) == [0, 2]


def test_digits_with_a_leading_0_are_the_name_of_a_group():
    assert _template("$01-${00}-${10}", {}, 1) == [b"-", b"-"]
    assert _template("${01}", {"01": 2}, 2) == [2]


def test_a_name_set_by_label_replace_is_not_dropped():
    bench = Bench()
    matrix = bench.matrix(({"__name__": "m"}, [1]), ({"__name__": "other"}, [2]), drop_name=True)
    answer = call(bench, "label_replace", matrix, "__name__", "rate_$1", "__name__", "(m)")
    assert rows(answer)[0][0] == {"__name__": "rate_m"}
    assert answer.drop_name.tolist() == [False, True]


def test_label_functions_refuse_bad_names_expressions_and_duplicates():
    bench = Bench(2)
    matrix = bench.matrix(({"a": "1", "b": "x"}, [1, 1]), ({"a": "1", "b": "y"}, [None, 1]))
    with pytest.raises(NotExecutable, match="invalid regular expression in label_replace"):
        call(bench, "label_replace", matrix, "dst", "", "a", "(")
    with pytest.raises(NotExecutable, match="invalid destination label name in label_replace"):
        call(bench, "label_replace", matrix, "", "", "a", "x")
    with pytest.raises(NotExecutable, match="invalid source label name in label_join"):
        call(bench, "label_join", matrix, "dst", "-", "")
    with pytest.raises(NotExecutable, match="vector cannot contain metrics with the same labelset"):
        call(bench, "label_join", matrix, "b", "-", "a")


def test_label_functions_refuse_what_would_take_too_long_or_fill_the_memory():
    bench = Bench()
    matrix = bench.matrix(({"a": "x" * 50_000}, [1]))
    with pytest.raises(NotExecutable, match="160000 bytes long, at most 65536"):
        call(bench, "label_replace", matrix, "dst", "", "a", "a?" * 80_000)
    with pytest.raises(NotExecutable, match="replacement of 8000 characters; at most 4096"):
        call(bench, "label_replace", matrix, "dst", "$1" * 4_000, "a", "(.*)")
    with pytest.raises(NotExecutable, match="a label value of 1100000 bytes; at most 1048576"):
        call(bench, "label_replace", matrix, "dst", "$1" * 22, "a", "(.*)")
    with pytest.raises(NotExecutable, match=r"label_join\(\) makes a label value of 1250000 bytes; at most 1048576"):
        call(bench, "label_join", matrix, "dst", "", *["a"] * 25)
    many = bench.matrix(*(({"a": f"{i:03d}" + "x" * 50_000}, [1]) for i in range(70)))
    with pytest.raises(NotExecutable, match="more than 67108864 bytes together"):
        call(bench, "label_replace", many, "dst", "$1" * 20, "a", "(.*)")


@pytest.mark.parametrize("texts", [("label_replace", "dst", "$1", "a", "(.*)9"), ("label_join", "dst", "-", "a", "a")])
def test_label_functions_look_at_the_deadline(texts):
    bench = Bench()
    matrix = bench.matrix(*(({"a": str(i)}, [1]) for i in range(2_000)))
    bench.context.deadline = 0
    with pytest.raises(DeadlineExceeded):
        call(bench, *texts[:1], matrix, *texts[1:])


def test_label_join_unites_series_that_are_never_there_together():
    bench = Bench(2)
    matrix = bench.matrix(({"a": "1", "b": "x"}, [1, None]), ({"a": "1", "b": "y"}, [None, 2]))
    answer = call(bench, "label_join", matrix, "b", ",", "a", "nowhere", "a")
    assert rows(answer) == [({"a": "1", "b": "1,,1"}, [1.0, 2.0])]
    assert [labels for labels, _ in rows(call(bench, "label_join", matrix, "b", ","))] == [{"a": "1"}]


@pytest.mark.parametrize(("name", "order"), [("sort", ["c", "a", "b", "n"]), ("sort_desc", ["b", "a", "c", "n"])])
def test_sort_puts_nan_last(name, order):
    bench = Bench()
    matrix = bench.matrix(({"i": "n"}, [math.nan]), ({"i": "a"}, [2]), ({"i": "b"}, [3]), ({"i": "c"}, [1]))
    assert [labels["i"] for labels, _ in rows(call(bench, name, matrix))] == order


def test_sorting_a_range_query_only_leaves_a_remark():
    bench = Bench(2)
    matrix = bench.matrix(({"i": "b"}, [2, 2]), ({"i": "a"}, [1, 1]))
    assert rows(call(bench, "sort", matrix)) == rows(matrix)
    (remark,) = bench.context.annotations.items.values()
    assert remark.text.startswith("PromQL warning: sort is ineffective for range queries")
    assert remark.offset == 3


def test_sort_by_label_is_natural_and_falls_back_to_the_whole_label_set():
    bench = Bench()
    names = [("4m600", "b"), ("4m5", "z"), ("4m1000", "a"), ("4m5", "a")]
    matrix = bench.matrix(*(({"i": i, "g": g}, [0]) for i, g in names))
    ordered = [(r["i"], r["g"]) for r, _ in rows(call(bench, "sort_by_label", matrix, "i"))]
    assert ordered == [("4m5", "a"), ("4m5", "z"), ("4m600", "b"), ("4m1000", "a")]
    backwards = [(r["i"], r["g"]) for r, _ in rows(call(bench, "sort_by_label_desc", matrix, "i"))]
    assert backwards == ordered[::-1]
    by_group = [(r["i"], r["g"]) for r, _ in rows(call(bench, "sort_by_label", matrix, "g", "i"))]
    assert by_group == [("4m5", "a"), ("4m1000", "a"), ("4m600", "b"), ("4m5", "z")]


@given(st.lists(st.text(alphabet="a01²-", max_size=6), min_size=3, max_size=3))
def test_natural_order_is_an_order(texts):
    a, b, c = texts
    assert (natural(a, b) > 0) == (natural(b, a) < 0)
    assert (natural(a, b) == 0) == (a == b)
    if natural(a, b) <= 0 and natural(b, c) <= 0:
        assert natural(a, c) <= 0


@pytest.mark.parametrize(
    ("value", "shown", "written"),
    [
        (1.0, "1", "1"),
        (-0.0, "-0", "-0"),
        (1e6, "1e+06", "1000000"),
        (123456.0, "123456", "123456"),
        (0.0001, "0.0001", "0.0001"),
        (1e-5, "1e-05", "0.00001"),
        (1.5e300, "1.5e+300", "15" + "0" * 299),
        (math.inf, "+Inf", "+Inf"),
        (math.nan, "NaN", "NaN"),
    ],
)
def test_numbers_are_written_as_by_go(value, shown, written):
    assert general(value) == shown
    assert plain(value) == written


def test_functions_of_native_histograms_answer_nothing_for_floats():
    bench = Bench()
    for name in ("histogram_avg", "histogram_count", "histogram_sum", "histogram_stddev", "histogram_stdvar"):
        assert by_labels(call(bench, name, bench.matrix(({"a": "1"}, [1])))) == {}


def test_an_argument_of_the_wrong_type_is_named():
    bench = Bench()
    with pytest.raises(NotExecutable, match="argument 1 of abs must be an instant vector, not a scalar"):
        call(bench, "abs", bench.scalar(1))
