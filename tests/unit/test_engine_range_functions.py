"""Range functions: what Prometheus's documentation says of tiny series, and that sliding changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtest.harness.local_queries import range_query
from loadtest.harness.memory_source import MemorySource
from shared.errors import NotExecutable
from shared.kernels import Kernel, compile_all
from shared.promql.engine import histogram_ranges, readings
from shared.promql.engine.kernels import (
    counters,
    extended,
    extremes,
    histogram_windows,
    moments,
    order_statistics,
    tallies,
    trends,
    windows,
)
from shared.promql.model import Grid
from tests.unit.engine_answers import STALE, at, remarks, rows, source

NAN = math.nan
INF = math.inf


def alone(text: str, data: MemorySource, time_s: float) -> float:
    answer = at(text, data, time_s)
    assert isinstance(answer, dict) and len(answer) == 1
    return next(iter(answer.values()))


def test_window_is_left_open() -> None:
    data = source({"m": [1, 2, 3]})
    assert alone("count_over_time(m[20s])", data, 20) == 2
    assert alone("count_over_time(m[20001ms])", data, 20) == 3


def test_staleness_markers_are_no_samples_of_a_window() -> None:
    data = source({"m": [1, STALE, 3], "n": [STALE, STALE]})
    assert at('count_over_time({__name__=~"m|n"}[30s])', data, 20) == {"{}": 2}


def test_increase_is_extrapolated_half_an_interval_past_far_bounds() -> None:
    # 30 over 30 s; 5 s of extrapolation on both sides, as both bounds are further than 11 s.
    assert alone("increase(m_total[100s])", source({"m_total": [None] * 5 + [100, 110, 120, 130]}), 100) == 40


def test_increase_is_extrapolated_to_near_bounds() -> None:
    # 20 over 20 s from 20 to 40; bounds at 15 and 45.
    assert alone("increase(m_total[30s])", source({"m_total": [80, 90, 100, 110, 120]}), 45) == pytest.approx(30)


def test_counter_is_not_extrapolated_below_zero() -> None:
    # 20 over 20 s from a 1 at t=0: zero would have been at -1 s. Bound at -9 s.
    assert alone("increase(m_total[31s])", source({"m_total": [1, 11, 21]}), 22) == pytest.approx(
        20 * (20 + 1 + 2) / 20
    )
    assert alone("delta(m_total[31s])", source({"m_total": [1, 11, 21]}), 22) == pytest.approx(20 * (20 + 9 + 2) / 20)


def test_rate_is_increase_per_second_of_the_range() -> None:
    data = source({"m_total": [0, 10, 20, 5, 15]})
    assert alone("rate(m_total[41s])", data, 40) == alone("increase(m_total[41s])", data, 40) / 41
    assert alone("increase(m_total[40001ms])", data, 40) == 35


def test_one_sample_is_no_rate() -> None:
    assert at("rate(m_total[10s])", source({"m_total": [1, 2, 3]}), 20) == {}


def test_irate_and_idelta_look_at_the_last_two_samples() -> None:
    data = source({"m": [0, 100, 30]})
    assert alone("irate(m[1m])", data, 20) == 3
    assert alone("idelta(m[1m])", data, 20) == -70
    assert alone("irate(m[1m])", data, 10) == 10


def test_changes_and_resets() -> None:
    data = source({"m": [1, 1, NAN, NAN, 3, 2, 2, 0]})
    assert alone("changes(m[2m])", data, 70) == 4
    assert alone("resets(m[2m])", data, 70) == 2


def test_minimum_and_maximum_ignore_nan_unless_alone() -> None:
    data = source({'m{a="1"}': [NAN, 3, 1, 3, NAN], 'm{a="2"}': [NAN, NAN]})
    least = at("min_over_time(m[1m])", data, 40)
    assert least['{a="1"}'] == 1 and math.isnan(least['{a="2"}'])
    assert at("max_over_time(m[1m])", data, 40)['{a="1"}'] == 3


def test_times_of_extremes_are_those_of_the_last_sample_that_has_it() -> None:
    data = source({"m": [1, 3, 1, 3, 2]})
    assert alone("ts_of_max_over_time(m[1m])", data, 40) == 30
    assert alone("ts_of_min_over_time(m[1m])", data, 40) == 20
    assert alone("ts_of_first_over_time(m[30s])", data, 40) == 20
    assert alone("ts_of_last_over_time(m[30s])", data, 45) == 40


def test_first_and_last_keep_the_name() -> None:
    data = source({"m": [1, 2, 3]})
    assert at("first_over_time(m[20s])", data, 20) == {"m{}": 2}
    assert at("last_over_time(m[20s])", data, 20) == {"m{}": 3}
    assert at("present_over_time(m[20s])", data, 20) == {"{}": 1}


def test_sums_are_compensated() -> None:
    data = source({"m": [1, 1e100, 1, -1e100]})
    assert alone("sum_over_time(m[1m])", data, 30) == 2
    assert alone("avg_over_time(m[1m])", data, 30) == 0.5


def test_average_does_not_overflow() -> None:
    data = source({"m": [1.7e308, 1.7e308], "n": [INF, INF, -INF]})
    assert alone("avg_over_time(m[1m])", data, 10) == 1.7e308
    assert alone("sum_over_time(m[1m])", data, 10) == INF
    assert math.isnan(alone("avg_over_time(n[1m])", data, 20))


def test_deviations() -> None:
    data = source({"m": [0, 8, 8, 2, 3], "equal": [1.1] * 4})
    assert alone("stdvar_over_time(m[1m])", data, 40) == pytest.approx(10.56)
    assert alone("stddev_over_time(m[1m])", data, 40) == pytest.approx(math.sqrt(10.56))
    assert alone("stddev_over_time(equal[1m])", data, 30) == 0


def test_quantile_interpolates_between_samples() -> None:
    data = source({"m": [4, 0, 1]})
    assert alone("quantile_over_time(0.75, m[1m])", data, 20) == 2.5
    assert alone("quantile_over_time(0, m[1m])", data, 20) == 0
    assert alone("quantile_over_time(1, m[1m])", data, 20) == 4


def test_quantile_outside_its_domain_is_infinite_and_remarked() -> None:
    data = source({"m": [4, 0, 1]})
    assert alone("quantile_over_time(-0.1, m[1m])", data, 20) == -INF
    assert remarks("quantile_over_time(1.5, m[1m])", data, 20) == [
        ("PromQL warning: quantile value should be between 0 and 1, got 1.5", 19)
    ]
    assert remarks("quantile_over_time(1.5, absent[1m])", data, 20) == []


def test_median_absolute_deviation() -> None:
    data = source({"m": [4, 6, 2, 1, 999, 1, 2], "n": [1, NAN, 2]})
    assert alone("mad_over_time(m[2m])", data, 60) == 1
    assert math.isnan(alone("mad_over_time(n[1m])", data, 20))


def test_regression() -> None:
    data = source({"m": [0, 10, 20, 30], "flat": [5, 5, 5], "wild": [1, INF, 2]})
    assert alone("deriv(m[1m])", data, 30) == pytest.approx(1)
    assert alone("predict_linear(m[1m], 60)", data, 30) == pytest.approx(90)
    assert alone("predict_linear(m[1m], 60)", data, 35) == pytest.approx(95)
    assert alone("deriv(flat[1m])", data, 20) == 0
    assert math.isnan(alone("deriv(wild[1m])", data, 20))
    assert at("deriv(m[10s])", data, 30) == {}


def test_double_exponential_smoothing() -> None:
    # level 1 → slope 2; 0.5 * 3 + 0.5 * (1 + 2) = 3; slope 0.5 * 2 + 0.5 * 2 = 2; 0.5 * 8 + 0.5 * (3 + 2) = 6.5.
    data = source({"m": [1, 3, 8]})
    assert alone("double_exponential_smoothing(m[1m], 0.5, 0.5)", data, 20) == 6.5
    with pytest.raises(NotExecutable, match=r"invalid smoothing factor. Expected: 0 < sf < 1, got: 1.000000"):
        at("double_exponential_smoothing(m[1m], 1, 0.5)", data, 20)


def test_absent_over_time_tells_the_labels_of_equalities() -> None:
    data = source({'m{a="1"}': [1]})
    assert at('absent_over_time(m{a="2",b=~"x"}[1m])', data, 20) == {'{a="2"}': 1}
    assert rows("absent_over_time(m[20s])", data, 0, 30, 10) == {"{}": [None, None, 1, 1]}


def test_parameters_are_of_the_step_and_windows_of_at_are_not() -> None:
    data = source({"m": [1, 2, 3, 4, 5], "q": [0, 0.5, 1]})
    assert rows("quantile_over_time(scalar(q), m[1m] @ 40)", data, 0, 20, 10) == {"{}": [1, 3, 5]}


def test_rate_of_a_metric_not_named_like_a_counter_is_remarked() -> None:
    data = source({"m": [1, 2, 3], "m_sum": [1, 2, 3]})
    text = 'metric might not be a counter, name does not end in _total/_sum/_count/_bucket: "m"'
    assert remarks("rate(m[1m])", data, 20) == [("PromQL info: " + text, 5)]
    assert remarks("sum(increase(m[1m]))", data, 20) == [("PromQL info: " + text, 13)]
    assert remarks("rate(m_sum[1m])", data, 20) == remarks("delta(m[1m])", data, 20) == []


def test_start_timestamp_inside_the_window_is_a_zero_of_the_counter() -> None:
    # Zero at 5 s, 30 at 10 s, 40 at 20 s: 40 in 15 s, and 10 s more to the window's end.
    data = MemorySource.of({"m_total": ([10_000, 20_000], [30.0, 40.0], [5_000, 5_000])})
    assert alone("increase(m_total[30s])", data, 30) == pytest.approx(40 * 25 / 15)
    assert alone("increase(m_total[11s])", data, 15) == 30
    assert at("increase(m_total[10s])", data, 15) == {}


def test_start_timestamp_after_the_previous_sample_is_a_reset() -> None:
    data = MemorySource.of({"m_total": ([10_000, 20_000], [30.0, 40.0], [0, 15_000])})
    assert alone("increase(m_total[10001ms])", data, 20) == pytest.approx(40 * 1.0001, rel=1e-3)
    assert alone("irate(m_total[20s])", data, 20) == 4
    assert alone("resets(m_total[20s])", data, 20) == 1
    assert alone("resets(m_total[20s:10s])", data, 20) == 0


def test_overlapping_start_timestamps_are_remarked() -> None:
    data = MemorySource.of({"m_total": ([10_000, 20_000], [30.0, 40.0], [0, 5_000])})
    text = 'sample has start time that overlaps with previous sample timestamp for metric "m_total"'
    for call in ("rate(m_total[1m])", "irate(m_total[1m])", "increase(m_total[1m] anchored)"):
        assert remarks(call, data, 20) == [("PromQL warning: " + text, call.index("m_total"))]
    assert remarks("delta(m_total[1m])", data, 20) == remarks("resets(m_total[1m])", data, 20) == []


def test_overlapping_start_timestamps_are_remarked_of_their_own_series_only() -> None:
    data = MemorySource.of(
        {
            'm_total{i="1"}': ([10_000, 20_000], [30.0, 40.0], [0, 10_000]),
            "other_total": ([10_000, 20_000], [30.0, 40.0], [0, 5_000]),
        }
    )
    text = 'sample has start time that overlaps with previous sample timestamp for metric "other_total"'
    assert remarks('rate({__name__=~".+"}[1m])', data, 20) == [("PromQL warning: " + text, 5)]


def test_overlaps_are_found_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [10_000, 20_000, 30_000]
    series = {f'm{i}_total{{i="{i}"}}': (times, [1.0, 2, 3], [0, 0, 15_000 if i % 3 == 0 else 0]) for i in range(7)}
    data = MemorySource.of(series)
    grid = Grid(10_000, 60_000, 10_000)
    for values_max in (1 << 18, 12, 4):
        monkeypatch.setattr(histogram_ranges, "CELLS_AT_ONCE", values_max)
        found = [a.text for a in range_query('rate({__name__=~".+"}[10s])', data, grid).annotations.items.values()]
        assert not found
        found = [a.text for a in range_query('rate({__name__=~".+"}[21s])', data, grid).annotations.items.values()]
        assert [text.partition(" for metric ")[2] for text in found] == ['"m0_total"', '"m3_total"', '"m6_total"']


def test_start_timestamps_overlap_within_a_window_only() -> None:
    # Overlapping are the samples at 20 s and 30 s.
    data = MemorySource.of({"m_total": ([10_000, 20_000, 30_000, 40_000], [1.0, 2, 3, 4], [0, 0, 15_000, 15_000])})
    grid = Grid(10_000, 50_000, 10_000)
    for call, is_remarked in (
        ("rate(m_total[20s])", [False, False, True, False, False]),
        ("rate(m_total[21s])", [False, False, True, True, False]),
        ("irate(m_total[1m])", [False, False, True, False, False]),
        ("rate(m_total[10s] anchored)", [False, False, True, False, False]),
        ("rate(m_total[5s] smoothed)", [False, False, True, False, False]),
    ):
        assert [bool(remarks(call, data, time / 1000)) for time in grid.times_ms()] == is_remarked, call
        assert bool(remarks(f"({call})", data, 30)) and len(range_query(call, data, grid).annotations.items) == 1
        assert not range_query(call, data, Grid(10_000, 50_000, 40_000)).annotations.items, call


@pytest.mark.parametrize("text", ["predict_linear(m[1m], 60)", "quantile_over_time(scalar(q), m[25s])", "rate(m[1m])"])
def test_work_cut_into_bounded_calls_of_a_kernel_changes_no_answer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    data = source({"q": [0.2, 0.4, 0.9] * 9, **{f'm{{i="{i}"}}': rng.normal(size=20).tolist() for i in range(3)}})
    whole = rows(text, data, 0, 250, 5)
    monkeypatch.setattr(readings, "KERNEL_WORK", 45)
    assert rows(text, data, 0, 250, 5) == whole


SLIDING = [
    *(f"{name}(m[{{}}])" for name in ("rate", "increase", "delta", "irate", "idelta", "changes", "resets", "deriv")),
    *(f"{name}_over_time(m[{{}}])" for name in ("sum", "avg", "min", "max", "count", "stddev", "mad", "first", "last")),
    *(f"ts_of_{name}_over_time(m[{{}}])" for name in ("min", "max", "first", "last")),
    *("increase(m[{}] anchored)", "increase(m[{}] smoothed)", "delta(m[{}] smoothed)", "changes(m[{}] anchored)"),
    *("quantile_over_time(0.3, m[{}])", "double_exponential_smoothing(m[{}], 0.3, 0.6)"),
]


@pytest.mark.parametrize("window", ["3s", "25s", "100s"])
@pytest.mark.parametrize("text", SLIDING)
def test_every_step_of_a_range_query_is_the_instant_query_at_its_time(text: str, window: str) -> None:
    rng = np.random.default_rng(7)
    series = {}
    for i, values in enumerate((rng.integers(0, 9, 80), rng.normal(size=80), np.where(rng.random(80) < 0.2, NAN, 1.5))):
        times = np.sort(rng.choice(200_000, 80, replace=False)).astype(np.int64)
        series[f'm{{i="{i}"}}'] = (times, values.astype(np.float64))
    data = MemorySource.of(series)
    query = text.format(window)
    over_range = rows(query, data, 0, 210, 7)
    for k, time_s in enumerate(range(0, 211, 7)):
        here = {name: values[k] for name, values in over_range.items() if values[k] is not None}
        there = at(query, data, time_s)
        np.testing.assert_equal(sorted(here), sorted(there))
        np.testing.assert_allclose([here[n] for n in sorted(here)], [there[n] for n in sorted(there)], rtol=1e-12)


def test_warming_up_compiles_every_kernel_for_one_signature() -> None:
    compile_all()
    modules = (windows, counters, tallies, extremes, extended, moments, trends, order_statistics, histogram_windows)
    compiled = [item for module in modules for item in vars(module).values() if isinstance(item, Kernel)]
    alone("rate(m[1m])", source({"m": [1, 2]}), 10)
    at("sum(quantile_over_time(0.5, m[1m:1s]))", source({"m": [1, 2]}), 10)
    at("m", source({"m": [1, 2]}), 10)
    assert compiled and all(item.is_ready() for item in compiled)
