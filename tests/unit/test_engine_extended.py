"""`anchored` and `smoothed` range selectors."""

from __future__ import annotations

import pytest

from shared.errors import NotExecutable
from tests.unit.engine_answers import STALE, at, rows, source


def test_anchored_increase_counts_from_the_last_sample_before_the_window() -> None:
    data = source({"m_total": [1, 2, 4, 8]})
    assert at("increase(m_total[10s] anchored)", data, 25) == {"{}": 2}
    assert at("rate(m_total[10s] anchored)", data, 25) == {"{}": 0.2}


def test_anchored_increase_counts_from_the_first_sample_where_none_is_before() -> None:
    assert at("increase(m_total[1m] anchored)", source({"m_total": [1, 2, 4]}), 20) == {"{}": 3}


def test_anchored_window_without_a_sample_of_its_own_is_empty() -> None:
    assert at("increase(m_total[5s] anchored)", source({"m_total": [1, 2]}), 19) == {}


def test_anchor_is_not_older_than_the_lookback() -> None:
    data = source({"m_total": [1] + [None] * 30 + [5]})
    assert at("increase(m_total[10s] anchored)", data, 310) == {"{}": 0}
    assert at("increase(m_total[10001ms] anchored)", data, 310) == {"{}": 4}
    assert at("changes(m_total[10001ms] anchored)", data, 310) == {"{}": 1}
    assert at("changes(m_total[10s] anchored)", data, 310) == {"{}": 0}


def test_smoothed_increase_is_between_interpolated_bounds() -> None:
    data = source({"m_total": [0, 10, 20, 30]})
    assert at("increase(m_total[10s] smoothed)", data, 15) == {"{}": 10}
    assert at("increase(m_total[4s] smoothed)", data, 8) == {"{}": 4}


def test_smoothed_counter_restarts_from_zero_at_a_reset() -> None:
    # From 2 s on a line 0 → 10: at 2 s 2, at 8 s 8.
    data = source({"m_total": [100, 10]})
    assert at("increase(m_total[6s] smoothed)", data, 8) == {"{}": 6}
    assert at("delta(m_total[6s] smoothed)", data, 8) == {"{}": -54}


def test_smoothed_window_after_the_last_sample_is_empty() -> None:
    data = source({"m_total": [0, 10, STALE]})
    assert rows("increase(m_total[10s] smoothed)", data, 10, 30, 10) == {"{}": [10, None, None]}


@pytest.mark.parametrize(
    "modifier, func", [("smoothed", "resets(m[1m] smoothed)"), ("anchored", "deriv(m[1m] anchored)")]
)
def test_other_functions_refuse_the_modifiers(modifier: str, func: str) -> None:
    with pytest.raises(
        NotExecutable, match=f"{modifier} modifier can only be used with: .*delta, increase, rate.* - not with"
    ):
        at(func, source({"m": [1]}), 0)
