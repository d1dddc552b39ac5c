"""The oracle's functions of range vectors, against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests import oracle_folds, oracle_windows
from tests.oracle_values import OracleError, Point, Series


def series(*points: tuple[int, float], window: tuple[int, int] = (0, 60_000)) -> Series:
    """Points as (seconds, value)."""
    return Series({"l": "1"}, [Point(t * 1000, float(v)) for t, v in points], *window)


def value(name: str, of: Series, *params: float, time_ms: int = 60_000) -> float | None:
    found = oracle_windows.call(name, [*map(float, params), [of]], time_ms)
    return found[0].value if found else None


def test_increase_covers_the_window_when_samples_do_nearly() -> None:
    assert value("increase", series((10, 10), (20, 20), (30, 30), (40, 40), (50, 50))) == pytest.approx(60)


def test_rate_does_not_reach_back_beyond_where_the_counter_was_zero() -> None:
    assert value("rate", series((30, 1), (60, 31))) == pytest.approx((30 + 1) / 60)


def test_increase_adds_what_was_lost_at_a_reset() -> None:
    assert value("increase", series((0, 0), (30, 50), (60, 20))) == pytest.approx(70)


def test_one_sample_has_no_rate() -> None:
    assert value("rate", series((30, 1))) is None


def test_irate_takes_the_value_after_a_reset_as_the_difference() -> None:
    assert value("irate", series((0, 7), (50, 9), (60, 5))) == pytest.approx(0.5)


def test_a_change_from_nan_to_nan_is_none() -> None:
    assert value("changes", series((0, math.nan), (10, math.nan), (20, 1), (30, 1), (40, 2))) == 2


def test_sum_of_values_that_cancel_keeps_the_small_ones() -> None:
    assert value("sum_over_time", series((0, 1e100), (1, 1), (2, -1e100), (3, 1))) == 2


def test_sum_of_both_infinities_is_nan() -> None:
    found = value("sum_over_time", series((0, math.inf), (1, -math.inf)))
    assert found is not None and math.isnan(found)


def test_mean_of_values_whose_sum_overflows_is_finite() -> None:
    assert value("avg_over_time", series((0, 1.5e308), (1, 1.5e308))) == 1.5e308


def test_deviation_is_of_the_population() -> None:
    assert value("stdvar_over_time", series((0, 1), (1, 3), (2, 5))) == pytest.approx(8 / 3)


def test_quantile_interpolates_and_takes_nan_as_smallest() -> None:
    assert oracle_folds.quantile(0.75, [4, math.nan, 2]) == 3


def test_prediction_goes_on_from_the_time_of_evaluation() -> None:
    assert value("predict_linear", series((0, 0), (30, 15)), 10, time_ms=60_000) == pytest.approx(35)


def test_smoothing_follows_a_straight_line_exactly() -> None:
    assert value("double_exponential_smoothing", series((0, 1), (1, 3), (2, 5), (3, 7)), 0.3, 0.7) == pytest.approx(7)


def test_smoothing_factors_are_between_zero_and_one() -> None:
    with pytest.raises(OracleError):
        value("double_exponential_smoothing", series((0, 1), (1, 3)), 0, 0.5)


def test_anchored_window_starts_from_the_sample_before_it() -> None:
    window = series((70, 30), (100, 45), window=(60_000, 120_000))
    window.mode, window.before = "anchored", [Point(40_000, 20.0), Point(55_000, 25.0)]

    assert value("increase", window) == 20


def test_smoothed_window_interpolates_at_both_edges() -> None:
    window = series((70, 30), (110, 50), window=(60_000, 120_000))
    window.mode, window.before, window.after = "smoothed", [Point(50_000, 20.0)], [Point(130_000, 70.0)]

    assert value("delta", window) == pytest.approx(60 - 25)


def test_name_is_kept_by_the_last_sample_and_dropped_by_a_sum() -> None:
    kept = oracle_windows.call("last_over_time", [[series((0, 1))]], 0)[0]
    dropped = oracle_windows.call("sum_over_time", [[series((0, 1))]], 0)[0]

    assert (kept.drop_name, dropped.drop_name) == (False, True)
