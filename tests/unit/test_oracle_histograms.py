"""The oracle on native histograms, against values worked out by hand; the conformance scripts judge the rest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.oracle import with_detected_resets
from tests.oracle_aggregations import histogram_text, short_text
from tests.oracle_counters import difference, restarts
from tests.oracle_folds import averaged
from tests.oracle_native_histograms import Hint, NativeHistogram
from tests.oracle_values import Number, Point, Remarks


def counted(count: float, hint: Hint = Hint.UNKNOWN) -> NativeHistogram:
    return NativeHistogram(count=count, sum=count, positive={0: count}, hint=hint)


def custom(count: float, *bounds: float) -> NativeHistogram:
    return NativeHistogram(-53, count=count, sum=count, positive={0: count}, bounds=bounds)


def test_difference_adds_what_was_lost_at_resets() -> None:
    values: list[Number] = [counted(5), counted(9), counted(2), counted(4)]

    found = difference(values, [False, True, False], False, True, Remarks(), "m")

    assert isinstance(found, NativeHistogram) and found.count == 4 - 5 + 9 and found.hint is Hint.GAUGE


def test_first_histogram_of_other_buckets_is_not_looked_at_if_it_was_reset_at_once() -> None:
    remarks = Remarks()

    found = difference([custom(3, 1.0), counted(2)], [True], False, True, remarks, "m")

    assert isinstance(found, NativeHistogram) and found.positive == {0: 2} and not remarks.found


def test_histograms_of_other_buckets_have_no_difference() -> None:
    remarks = Remarks()

    assert difference([custom(3, 1.0), counted(2)], [False], False, True, remarks, "m") is None
    assert [text for _, text, _ in remarks.found] == [
        "PromQL warning: vector contains a mix of histograms with exponential and custom buckets schemas "
        'for metric name "m"'
    ]


@pytest.mark.parametrize(
    ("start_ms", "previous_start_ms", "reset"),
    [
        *((0, 0, False), (59_000, 1, False), (60_000, 1, True), (60_000, 0, False), (60_000, 60_000, False)),
        *((60_001, 0, True), (119_999, 1, True), (120_000, 1, False)),
    ],
)
def test_start_timestamp_tells_a_reset(start_ms: int, previous_start_ms: int, reset: bool) -> None:
    assert restarts(Point(60_000, 1.0, previous_start_ms), Point(120_000, 2.0, start_ms)) is reset


def test_mean_of_counts_whose_sum_overflows_is_finite() -> None:
    assert averaged([counted(1.5e308), counted(1.5e308)]).count == 1.5e308


def test_hints_are_found_where_only_counts_are_read() -> None:
    points = [Point(0, counted(3)), Point(1, counted(4)), Point(2, counted(1)), Point(3, counted(0, Hint.GAUGE))]

    hints = [point.value.hint for point in with_detected_resets(points) if isinstance(point.value, NativeHistogram)]

    assert hints == [Hint.UNKNOWN, Hint.NOT_RESET, Hint.RESET, Hint.GAUGE]


def test_text_names_count_sum_and_populated_buckets() -> None:
    histogram = NativeHistogram(
        count=4, sum=-0.5, zero_threshold=0.001, zero_count=1, positive={0: 1, 1: 0}, negative={1: 2}
    )

    assert histogram_text(histogram) == "{count:4, sum:-0.5, [-2,-1):2, [-0.001,0.001]:1, (0.5,1]:1}"
    assert histogram_text(replace(custom(2, 1.5), sum=math.nan)) == "{count:2, sum:NaN, (-Inf,1.5]:2}"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e21, "1e+21"), (1e6, "1e+06"), (999999.5, "999999.5"), (1.5e-7, "1.5e-07"), (0.0001, "0.0001"), (-0.0, "-0")],
)
def test_short_text_has_an_exponent_where_it_is_shorter(value: float, text: str) -> None:
    assert short_text(value) == text
