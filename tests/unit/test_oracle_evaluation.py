"""The oracle on whole queries, against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from shared.promql import parser
from shared.promql.model import Grid
from tests import oracle
from tests.conformance.series_text import STALE
from tests.oracle_aggregations import plain_text
from tests.oracle_histograms import bucket_fraction, bucket_quantile
from tests.oracle_values import OracleError

DATA = {
    (("__name__", "m"), ("l", "a")): [(0, 1.0), (60_000, 2.0), (120_000, STALE)],
    (("__name__", "m"), ("l", "b")): [(0, 10.0), (120_000, 30.0)],
    (("__name__", "n"), ("l", "b")): [(0, 5.0)],
}


def ask(text: str, start_s: int = 0, end_s: int | None = None, step_s: int = 60) -> dict[tuple[str, ...], list[float]]:
    """Label values of each series → its values."""
    grid = Grid(start_s * 1000, (start_s if end_s is None else end_s) * 1000, step_s * 1000)
    result = oracle.evaluate(parser.resolve_durations(parser.parse(text), grid), DATA, grid)
    return {tuple(value for _, value in labels): [v for _, v in points] for labels, points in result.items()}


def test_selector_looks_back_five_minutes_and_stops_at_a_stale_marker() -> None:
    assert ask("m", 0, 480) == {("m", "a"): [1, 2], ("m", "b"): [10, 10, 30, 30, 30, 30, 30]}


def test_window_is_open_at_its_start() -> None:
    assert ask("count_over_time(m[1m])", 60) == {("a",): [1]}


def test_subquery_steps_are_multiples_of_its_step() -> None:
    assert ask("sum_over_time(vector(time())[50s:20s])", 70) == {(): [40 + 60]}


def test_name_is_dropped_at_the_end_only() -> None:
    assert ask('label_replace(-m{l="a"}, "was", "$1", "__name__", "(.*)")') == {("a", "m"): [-1]}


def test_two_results_with_one_label_set_are_an_error() -> None:
    with pytest.raises(OracleError, match="same labelset"):
        ask('-{l="b"}')


def test_vectors_pair_by_labels_other_than_the_name() -> None:
    assert ask("m - n") == {("b",): [5]}


def test_duplicates_on_the_one_side_are_an_error() -> None:
    with pytest.raises(OracleError, match="duplicate series"):
        ask("m + on() m")


def test_comparison_keeps_the_left_value() -> None:
    assert ask("m > n") == {("m", "b"): [10]}


def test_topk_orders_ties_by_label_set() -> None:
    assert ask("topk(1, m * 0)") == {("a",): [0]}


def test_quantile_of_a_bucket_is_linear() -> None:
    assert bucket_quantile(0.5, [(1.0, 2.0), (3.0, 6.0), (math.inf, 6.0)]) == 1.5


def test_quantile_in_the_endless_bucket_is_its_lower_bound() -> None:
    assert bucket_quantile(0.9, [(1.0, 2.0), (math.inf, 6.0)]) == 1


def test_fraction_does_not_divide_the_endless_bucket() -> None:
    assert bucket_fraction(0, 5, [(1.0, 2.0), (math.inf, 6.0)]) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("value", "text"), [(6, "6"), (0.5, "0.5"), (1e21, "1" + "0" * 21), (-1e-7, "-0.0000001"), (math.inf, "+Inf")]
)
def test_counted_values_are_written_without_exponent(value: float, text: str) -> None:
    assert plain_text(float(value)) == text
