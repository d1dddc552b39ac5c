"""Kernels of range functions on their own, at the edges of their conditions."""

from __future__ import annotations

import pytest

from shared.promql.engine import kernels

FIRST_T, LAST_T = 100, 110


@pytest.mark.parametrize(
    ("to_start", "to_end", "samples", "expected"),
    [
        (0, 0, 2, 10.0),
        (10, 0, 2, 20.0),
        (0, 10, 2, 20.0),
        (10, 10, 2, 30.0),
        (11, 0, 2, 15.0),
        (0, 11, 2, 15.0),
        (12, 13, 2, 20.0),
        (5, 5, 3, 20.0),
        (6, 5, 3, 17.5),
        (5, 6, 3, 17.5),
        (50, 50, 3, 15.0),
        (11, 5, 2, 20.0),
        (5, 11, 2, 20.0),
        (10, 10, 1, 30.0),
        (11, 11, 1, 20.0),
    ],
)
def test_an_increase_goes_on_to_the_windows_ends_or_half_a_gap_where_they_are_far(
    to_start: int, to_end: int, samples: int, expected: float
) -> None:
    """An increase of 10 over 10 ms, before and after whose samples the window has so much room."""
    for counter, first_value in ((False, 0.0), (False, 2.0), (True, 1000.0)):
        got = kernels.extrapolated(
            10.0,
            first_value,
            FIRST_T,
            LAST_T,
            samples,
            FIRST_T - to_start,
            LAST_T + to_end,
            FIRST_T - to_start,
            counter,
        )
        assert got == pytest.approx(expected)


@pytest.mark.parametrize(
    ("result", "first_value", "counter", "expected"),
    [
        (10.0, 2.0, True, 12.0),
        (10.0, 10.0, True, 20.0),
        (10.0, 9.0, True, 19.0),
        (10.0, 0.0, True, 10.0),
        (10.0, -1.0, True, 20.0),
        (10.0, 2.0, False, 20.0),
        (0.0, 2.0, True, 0.0),
        (-10.0, 2.0, True, -20.0),
    ],
)
def test_a_counter_is_not_continued_to_below_zero(
    result: float, first_value: float, counter: bool, expected: float
) -> None:
    got = kernels.extrapolated(result, first_value, FIRST_T, LAST_T, 2, FIRST_T - 10, LAST_T, FIRST_T - 10, counter)
    assert got == pytest.approx(expected)


@pytest.mark.parametrize(("zero_t", "expected"), [(95, 10.0), (91, 10.0), (90, 12.0), (89, 12.0)])
def test_a_counter_known_to_have_been_zero_within_the_window_counts_from_there(zero_t: int, expected: float) -> None:
    got = kernels.extrapolated(10.0, 2.0, FIRST_T, LAST_T, 2, FIRST_T - 10, LAST_T, zero_t, True)
    assert got == pytest.approx(expected)


def test_an_increase_from_a_known_zero_goes_on_to_the_windows_end() -> None:
    got = kernels.extrapolated(10.0, 0.0, FIRST_T, LAST_T, 2, FIRST_T - 10, LAST_T + 3, FIRST_T - 5, True)
    assert got == pytest.approx(10.0 * 18 / 15)
