"""Functions of classic histograms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shared.errors import NotExecutable
from shared.histograms.references import references
from shared.promql.ast import Call, NumberLiteral
from shared.promql.engine.functions import INSTANT_FUNCTIONS
from shared.promql.engine.functions.histogram import bound_of, quantile_text
from shared.promql.model import String
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import NativeHistogram
from tests.unit.operators_setup import Bench, by_labels


def call(bench, name, *args):
    exprs = tuple(NumberLiteral(0.0, span=(10 * i, 10 * i + 1)) for i in range(len(args)))
    values = [String(arg) if isinstance(arg, str) else bench.scalar(arg) if np.isscalar(arg) else arg for arg in args]
    return INSTANT_FUNCTIONS[name](Call(name, exprs), values, bench.grid, bench.context)


def buckets(bench, counts, **labels):
    return bench.matrix(*(({"__name__": "x", "le": le, **labels}, np.atleast_1d(n)) for le, n in counts.items()))


def quantile(q, counts):
    bench = Bench()
    (cells,) = by_labels(call(bench, "histogram_quantile", q, buckets(bench, counts))).values()
    return cells[0], bench.remarks


def fraction(lower, upper, counts):
    bench = Bench()
    (cells,) = by_labels(call(bench, "histogram_fraction", lower, upper, buckets(bench, counts))).values()
    return cells[0]


@pytest.mark.parametrize(
    ("q", "counts", "expected"),
    [
        (0.5, {"0.1": 50, ".2": 70, "1e0": 110, "+Inf": 120}, 0.15),
        (0.8, {"0.1": 50, ".2": 70, "1e0": 110, "+Inf": 120}, 0.72),
        (1.0, {"0.1": 50, ".2": 70, "1e0": 110, "+Inf": 120}, 1.0),
        (0.2, {"-.2": 10, "-0.1": 20, "0.3": 20, "+Inf": 30}, -0.2),
        (0.0, {"0": 0, "0.1": 5, "+Inf": 5}, 0.0),
        (1.0, {"0.1": 1, "0.2": 1, "2e-1": 1, "2.0e-1": 1, "+Inf": 4}, 0.2),
        (0.5, {"1": 1, "2": 2}, math.nan),
        (0.5, {"+Inf": 2}, math.nan),
        (0.5, {"1": 0, "+Inf": 0}, math.nan),
        (-0.1, {"1": 1, "+Inf": 1}, -math.inf),
        (1.1, {"1": 1, "+Inf": 1}, math.inf),
        (math.nan, {"1": 1, "+Inf": 1}, math.nan),
    ],
)
def test_quantiles_are_linear_within_a_bucket(q, counts, expected):
    np.testing.assert_allclose(quantile(q, counts)[0], expected)


def test_counts_that_fall_are_raised_with_a_remark():
    counts = {"0.1": 20, "1": 10, "10": 50, "100": 40, "1000": 90, "+Inf": 80}
    value, remarks = quantile(0.99, counts)
    np.testing.assert_allclose(value, 979.75)
    assert remarks == [
        "PromQL info: input to histogram_quantile needed to be fixed for monotonicity (see "
        'https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile) for metric name "x"'
    ]


def test_rounding_errors_in_counts_go_unremarked():
    assert quantile(0.5, {"1": 1.0, "2": 1.0 - 1e-15, "+Inf": 2.0})[1] == []


@pytest.mark.parametrize(
    ("lower", "upper", "counts", "expected"),
    [
        (0, 1.5, {"1": 1, "2": 3, "3": 6, "+Inf": 100}, 0.02),
        (-4, -2, {"-3": 10, "-2": 12, "-1": 15, "+Inf": 100}, 0.02),
        (-math.inf, -1.5, {"-3": 10, "-2": 12, "-1": 15, "+Inf": 100}, 0.135),
        (4, 5, {"1": 1, "2": 3, "3": 6, "+Inf": 100}, 0.0),
        (400, math.inf, {"1": 1, "2": 3, "3": 6, "+Inf": 100}, 0.94),
        (3, 2, {"1": 1, "+Inf": 100}, 0.0),
        (0, 1, {"+Inf": 100}, 0.0),
        (0, 5, {"1": 0, "+Inf": 0}, math.nan),
        (math.nan, 5, {"1": 1, "+Inf": 1}, math.nan),
        (0, 5, {"1": 1, "2": 1}, math.nan),
        (-math.inf, math.inf, {"1": 1, "+Inf": 7}, 1.0),
    ],
)
def test_fractions_do_not_divide_infinite_buckets(lower, upper, counts, expected):
    np.testing.assert_allclose(fraction(lower, upper, counts), expected)


def test_histograms_differ_in_any_label_but_le_and_names_are_dropped():
    bench = Bench(2)
    matrix = bench.matrix(
        ({"__name__": "x", "le": "+Inf", "job": "a"}, [4, 4]),
        ({"__name__": "x", "le": "1", "job": "a"}, [2, None]),
        ({"__name__": "x", "le": "2", "job": "a"}, [4, 4]),
        ({"__name__": "x", "le": "1", "job": "b"}, [1, None]),
        ({"__name__": "x", "le": "+Inf", "job": "b"}, [1, None]),
    )
    answer = call(bench, "histogram_quantile", 0.5, matrix)
    assert by_labels(answer) == {
        (("__name__", "x"), ("job", "a")): [1.0, 1.0],
        (("__name__", "x"), ("job", "b")): [0.5, None],
    }
    assert answer.drop_name.all()


def test_a_histogram_that_loses_its_name_at_some_steps_is_beside_a_classic_one_at_all():
    bench = Bench(2)
    matrix = bench.matrix(
        ({"__name__": "h"}, [1, None]),
        ({"__name__": "h"}, [None, 2]),
        ({"__name__": "h", "le": "1"}, [3, 3]),
        ({"__name__": "h", "le": "+Inf"}, [4, 4]),
    )
    matrix.values[[0, 1], [0, 1]] = references(np.arange(2))
    matrix.histograms = batch_of([NativeHistogram(count=n, sum=n, positive={0: n}) for n in (1.0, 2.0)])
    matrix.drop_name = np.array([True, False, False, False])

    assert not call(bench, "histogram_quantile", 0.5, matrix).present.any()
    [warning] = bench.remarks
    assert "vector contains a mix of classic and native histograms" in warning


@pytest.mark.parametrize("le", ["", "Hello World", "1_0", " 1", "NaN", "0x1", "1e400", "-1e400", "0x1p5000"])
def test_series_without_a_bound_are_left_out_with_a_warning(le):
    bench = Bench()
    matrix = bench.matrix(({"__name__": "x", "le": le}, [1]))
    assert by_labels(call(bench, "histogram_quantile", 0.5, matrix)) == {}
    ((text, offset),) = [(a.text, a.offset) for a in bench.context.annotations.items.values()]
    assert (
        text == f'PromQL warning: bucket label "le" is missing or has a malformed value of "{le}" for metric name "x"'
    )
    assert offset == 10


@pytest.mark.parametrize(
    ("le", "bound"), [("+inf", math.inf), ("-Infinity", -math.inf), ("1e3", 1000.0), ("0x1p-2", 0.25), ("-.5", -0.5)]
)
def test_bounds_are_read_as_go_reads_numbers(le, bound):
    assert bound_of(le) == bound


def test_bad_quantiles_are_remarked_on_even_for_no_series():
    bench = Bench()
    call(bench, "histogram_quantile", math.nan, bench.matrix())
    assert bench.remarks == ["PromQL warning: quantile value should be between 0 and 1, got NaN"]


def test_several_quantiles_are_told_apart_by_a_label():
    bench = Bench()
    matrix = buckets(bench, {"0": 0, "2": 10, "4": 20, "+Inf": 20}, job="a")
    answer = call(bench, "histogram_quantiles", matrix, "q", 0, 0.5, 1)
    name = ("__name__", "x")
    assert by_labels(answer) == {
        (name, ("job", "a"), ("q", "0.0")): [0.0],
        (name, ("job", "a"), ("q", "0.5")): [2.0],
        (name, ("job", "a"), ("q", "1.0")): [4.0],
    }


def test_a_quantile_label_that_makes_series_equal_is_refused():
    bench = Bench()
    rows = [({"le": le, "start": start}, [1]) for le in ("1", "+Inf") for start in ("a", "b")]
    with pytest.raises(NotExecutable, match="same labelset"):
        call(bench, "histogram_quantiles", bench.matrix(*rows), "start", 0.5, 1)


def test_a_quantile_that_varies_names_each_of_its_values():
    bench = Bench(2)
    matrix = buckets(bench, {"1": [1, 1], "2": [2, 2], "+Inf": [2, 2]})
    q = bench.scalar(0.5, 1.0)
    answer = by_labels(call(bench, "histogram_quantiles", matrix, "q", q))
    assert {labels[-1]: cells for labels, cells in answer.items()} == {
        ("q", "0.5"): [1.0, None],
        ("q", "1.0"): [None, 2.0],
    }


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1.0"), (-0.1, "-0.1"), (math.nan, "NaN"), (-math.inf, "-Inf"), (1e-7, "1e-07")]
)
def test_quantiles_as_labels_look_like_openmetrics(value, text):
    assert quantile_text(float(value)) == text


def test_buckets_of_several_histograms_may_come_in_any_order():
    bench = Bench()
    rows = []
    for le, a, b in (("10", 4, 0), ("+Inf", 4, 8), ("9", 2, 0), ("100", 4, 8)):
        rows += [({"__name__": "x", "job": "b", "le": le}, [b]), ({"__name__": "x", "job": "a", "le": le}, [a])]
        rows += [({"__name__": "x", "job": "a", "le": f"no {le}"}, [99])]
    answer = by_labels(call(bench, "histogram_quantile", 0.75, bench.matrix(*rows)))
    assert answer == {
        (("__name__", "x"), ("job", "a")): [9.5],
        (("__name__", "x"), ("job", "b")): [77.5],
    }
    assert [text.partition("value of ")[2] for text in bench.remarks] == [
        f'"no {le}" for metric name "x"' for le in ("10", "+Inf", "9", "100")
    ]


def test_of_series_without_a_bound_ten_are_remarked_on():
    bench = Bench()
    rows = [({"__name__": "x", "le": f"no {number}"}, [1]) for number in range(12)]
    call(bench, "histogram_quantile", 0.5, bench.matrix(*rows))
    assert len(bench.remarks) == 10
    assert bench.remarks[9].endswith('"no 9" for metric name "x"')
