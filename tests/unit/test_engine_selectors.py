"""Instant selectors over a grid: lookback, staleness, `offset`, `@`, `smoothed`."""

from __future__ import annotations

import time

import numpy as np
import pytest

from loadtest.harness.local_queries import instant, range_query
from loadtest.harness.memory_source import MemorySource
from shared.errors import BadData, DeadlineExceeded, NotExecutable, OverBudget
from shared.promql.model import Grid, Matrix, RangeVector
from shared.promql.parser import parse
from shared.promql.printer import to_text
from tests.sharded import evaluate_sharded, split
from tests.unit.engine_answers import STALE, at, rows, source


def test_instant_selector_takes_the_newest_sample_at_or_before_the_time() -> None:
    data = source({"m": [1, 2, 3]})
    assert rows("m", data, 0, 30, 5) == {"m{}": [1, 1, 2, 2, 3, 3, 3]}


def test_lookback_window_is_left_open() -> None:
    data = source({"m": [7]})
    assert at("m", data, 299.999) == {"m{}": 7}
    assert at("m", data, 300) == {}


def test_lookback_can_be_set_per_query() -> None:
    data = source({"m": [7]})
    assert at("m", data, 20, lookback_ms=20_000) == {}
    assert at("m", data, 20, lookback_ms=20_001) == {"m{}": 7}


def test_staleness_marker_ends_a_series_until_its_next_sample() -> None:
    data = source({"m": [1, STALE, None, 4]})
    assert rows("m", data, 0, 40, 10) == {"m{}": [1, None, None, 4, 4]}


def test_nan_is_a_value() -> None:
    answer = rows("m", source({"m": [1, float("nan")]}), 0, 10, 10)["m{}"]
    assert answer[0] == 1 and np.isnan(answer[1])


def test_series_without_a_sample_on_the_grid_is_left_out() -> None:
    data = source({'m{a="1"}': [1], 'm{a="2"}': [None] * 100 + [1]})
    assert rows("m", data, 0, 10, 10) == {'m{a="1"}': [1, 1]}


@pytest.mark.parametrize(
    "text",
    [
        "m @ {}",
        "m @ {} offset 1y",
        "m @ {} offset -1y",
        "m @ {} smoothed",
        "sum_over_time(m[5m] @ {})",
        "rate(m[5m] @ {} smoothed)",
        "max_over_time(m[5m:1m] @ {})",
        "max_over_time(sum(m)[5m:1m] @ {} offset -1y)",
        "quantile_over_time(scalar(sum(m)), m[5m] @ {})",
        "max_over_time(max_over_time(m[1y:200d])[1y:200d] @ {})",
    ],
)
@pytest.mark.parametrize("seconds", ["9223372036854774", "-9223372036854774"])
def test_nothing_is_found_at_the_furthest_times(text: str, seconds: str) -> None:
    samples = [np.array([0, 10_000]), np.array([1.0, 2.0])]
    value = evaluate_sharded(text.format(seconds), split({(("__name__", "m"),): samples}, 2), Grid(0, 0)).value
    assert isinstance(value, Matrix) and value.labels.size == 0


def test_the_furthest_times_are_printed_as_they_are() -> None:
    assert to_text(parse("m @ 9223372036854774")) == "m @ 9223372036854773.760"  # the nearest float


def test_offset_shifts_back_and_a_negative_one_forward() -> None:
    data = source({"m": [0, 1, 2, 3, 4]})
    assert rows("m offset 10s", data, 20, 40, 10) == {"m{}": [1, 2, 3]}
    assert rows("m offset -10s", data, 0, 20, 10) == {"m{}": [1, 2, 3]}


def test_at_fixes_the_time_and_offset_counts_from_it() -> None:
    data = source({"m": [0, 1, 2, 3, 4]})
    assert rows("m @ 30", data, 0, 20, 10) == {"m{}": [3, 3, 3]}
    assert rows("m @ 30 offset 20s", data, 0, 20, 10) == {"m{}": [1, 1, 1]}


def test_start_and_end_are_the_whole_query_s_inside_a_subquery() -> None:
    data = source({"m": [0, 1, 2, 3, 4]})
    assert rows("last_over_time((m @ end())[10s:10s])", data, 10, 40, 10) == {"m{}": [4, 4, 4, 4]}
    assert rows("m - m @ start()", data, 10, 40, 10) == {"{}": [0, 1, 2, 3]}


def test_timestamp_tells_the_sample_s_time_of_a_selector_and_the_step_s_of_anything_else() -> None:
    data = source({"m": [0, 1, 2]})
    assert rows("timestamp(m)", data, 5, 25, 10) == {"{}": [0, 10, 20]}
    assert rows("timestamp((m offset 10s))", data, 15, 25, 10) == {"{}": [0, 10]}
    assert rows("timestamp(-m)", data, 5, 25, 10) == {"{}": [5, 15, 25]}


def test_start_timestamp_is_zero_where_a_sample_has_none() -> None:
    data = MemorySource.of({"m": ([10_000, 20_000], [1.0, 2.0], [4_000, 0])})
    assert rows("start_timestamp(m)", data, 10, 20, 10) == {"{}": [4, 0]}


def test_smoothed_selector_interpolates_and_carries_the_last_value_on() -> None:
    data = source({"m": [None, 0, 10, 30]})
    assert rows("m smoothed", data, 0, 45, 5) == {"m{}": [None, None, 0, 5, 10, 20, 30, 30, 30, 30]}


def test_unary_minus_drops_the_name_and_plus_keeps_it() -> None:
    data = source({'m{a="1"}': [3]})
    assert at("-m", data, 0) == {'{a="1"}': -3}
    assert at("+m", data, 0) == {'m{a="1"}': 3}
    assert at("-(2)", data, 0) == -2


def test_series_equal_after_losing_their_names_are_refused_at_the_same_step() -> None:
    data = source({"a": [1], "b": [2]})
    with pytest.raises(NotExecutable, match="vector cannot contain metrics with the same labelset"):
        at('-{__name__=~"a|b"}', data, 0)


def test_series_equal_after_losing_their_names_become_one_where_they_do_not_meet() -> None:
    data = source({"a": [1, STALE], "b": [None, 2]})
    assert rows('-{__name__=~"a|b"}', data, 0, 10, 10) == {"{}": [-1, -2]}


def test_range_vector_is_an_instant_answer_only() -> None:
    data = source({"m": [0, 1, STALE, 3], "n": [1]})
    value = instant('{__name__=~"m|n"}[30s]', data, 30_000).value
    assert isinstance(value, RangeVector)
    assert value.labels.labels(0) == (("__name__", "m"),) and value.labels.size == 1
    assert value.samples.timestamps_ms.tolist() == [10_000, 30_000]
    assert value.samples.values.tolist() == [1, 3]
    with pytest.raises(BadData, match="must be Scalar or instant Vector"):
        range_query("m[30s]", data, Grid(0, 10, 10))


def test_samples_that_would_be_held_past_the_limit_are_refused() -> None:
    data, grid = source({f'm{{a="{i}"}}': range(20) for i in range(10)}), Grid(0, 190_000, 10_000)
    # All values of the result, and the samples of one series.
    done = range_query("m", data, grid, samples_max=200 + 20)
    assert (done.samples_read, done.samples_peak) == (200, 220)
    text = "query processing would load too many samples into memory in query execution: {} at a time.*limit is {} "
    with pytest.raises(OverBudget, match=text.format(220, 219)):
        range_query("m", data, grid, samples_max=219)
    with pytest.raises(OverBudget, match=text.format(200, 199)):
        range_query("m", data, grid, samples_max=199)


def test_a_matrix_past_the_budget_is_refused_before_it_is_made() -> None:
    data = source({"m": [1]})
    for text in (
        "sum_over_time(m[1y:1ms])",
        "sum_over_time(vector(time())[1y:1ms])",
        "count_over_time(vector(1)[1y:1ms])",
    ):
        with pytest.raises(NotExecutable, match="too many samples"):
            at(text, data, 0)


def test_a_query_past_its_deadline_or_cancelled_is_given_up() -> None:
    data = source({"m": [1]})
    with pytest.raises(DeadlineExceeded, match="timed out"):
        at("sum(m)", data, 0, deadline=time.monotonic() - 1)
    with pytest.raises(DeadlineExceeded, match="cancelled"):
        at("sum(m)", data, 0, cancelled=lambda: True)
