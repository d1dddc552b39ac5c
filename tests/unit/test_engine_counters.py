"""rate, increase and delta of many series in one call of the kernel: each as if it were alone, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.promql.engine import scan
from shared.promql.engine.kernels.counters import DELTA, INCREASE, RATE, counters, is_reset
from shared.promql.engine.kernels.extrapolation import extrapolation
from shared.promql.engine.scan import Windows
from shared.promql.model import Samples

RANGE_MS, STEP_MS, STEPS = 60_000, 10_000, 30
WINDOWS = Windows(20_000, STEP_MS, STEPS, RANGE_MS)
REGULAR = np.arange(0, 240_000, 15_000)
INNER_LATE = REGULAR + np.where(np.arange(len(REGULAR)) == 7, 5_001, 0)
"""The same first and last times, and as many of them."""
TIMES = (
    REGULAR,
    REGULAR,
    REGULAR,
    INNER_LATE,
    REGULAR + 1_000,
    REGULAR[:9],
    REGULAR[:1],
    REGULAR[:0],
    REGULAR[[0, 15]],
)
VALUES = (0.0, -0.0, 1.0, 2.0, 7.5, 1e300, float("inf"), float("nan"), -3.0)

Series = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]
"""Times in ms, values, start timestamps."""


def samples_of(series: list[Series]) -> Samples:
    times, values, starts = (np.concatenate([own[i] for own in series]) for i in range(3))
    offsets = np.cumsum([0, *(len(own[0]) for own in series)])
    return Samples(offsets, times.astype(np.int64), values.astype(np.float64), starts if starts.any() else None)


def together(op: int, series: list[Series]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    samples = samples_of(series)
    out, present = np.empty((len(series), STEPS)), np.empty((len(series), STEPS), dtype=np.bool_)
    starts, began = scan.counter_starts(samples)
    edges = WINDOWS.first, WINDOWS.step, WINDOWS.range_ms
    counters(op, samples.offsets, samples.timestamps_ms, samples.values, began, starts, *edges, out, present)
    return np.where(present, out, 0.0), present


def window_by_window(op: int, own: Series) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The same from the definition of a window, one after another."""
    samples = samples_of([own])
    times, values = samples.timestamps_ms, samples.values
    starts, began = scan.counter_starts(samples)
    out, present = np.zeros(STEPS), np.zeros(STEPS, dtype=np.bool_)
    for k, to_t in enumerate(range(WINDOWS.first, WINDOWS.last + 1, STEP_MS)):
        from_t = zero_t = to_t - RANGE_MS
        places = np.flatnonzero((times > from_t) & (times <= to_t))
        if op != DELTA and len(starts) and len(places) and 0 != starts[places[0]] < times[places[0]]:
            zero_t = max(from_t, starts[places[0]])
        if len(places) < 2 and not (len(places) and zero_t > from_t):
            continue
        low, last = places[0], places[-1]
        lost = 0.0
        for i in places[1:] if op != DELTA else ():
            lost += values[i - 1] if is_reset(values, began, i) else 0.0
        with np.errstate(all="ignore"):
            rise = (values[last] if zero_t > from_t else values[last] - values[low]) + lost
            rise *= extrapolation(
                rise, values[low], times[low], times[last], len(places), from_t, to_t, zero_t, op != DELTA
            )
        out[k], present[k] = rise / (RANGE_MS / 1000.0) if op == RATE else rise, True
    return out, present


@st.composite
def many_series(draw: st.DrawFn) -> list[Series]:
    """Some have the times of the one before, of which some grow steadily and some do anything."""
    has_starts = draw(st.booleans())
    series = []
    for _ in range(draw(st.integers(1, 6))):
        times = draw(st.sampled_from(TIMES))
        values = np.array(
            draw(st.lists(st.sampled_from(VALUES), min_size=len(times), max_size=len(times))), dtype=float
        )
        if draw(st.booleans()):
            values = np.cumsum(np.arange(len(times)) % draw(st.integers(1, 9))) + draw(st.sampled_from((0.0, 5.0, 1e6)))
        start = draw(st.sampled_from((0, 0, -20_000, 50_000, 64_999))) if has_starts else 0
        starts = np.where(times > start, start, 0) if start else np.zeros(len(times))
        series.append((times.astype(np.int64), values, starts.astype(np.int64)))
    return series


@pytest.mark.parametrize("op", [RATE, INCREASE, DELTA])
@settings(deadline=None)
@given(series=many_series())
def test_series_in_one_call_have_the_answers_that_each_has_alone(op: int, series: list[Series]) -> None:
    out, present = together(op, series)
    for row, own in enumerate(series):
        expected, expected_present = window_by_window(op, own)
        assert present[row].tolist() == expected_present.tolist()
        is_nan = np.isnan(expected)
        assert np.isnan(out[row]).tolist() == is_nan.tolist()
        assert out[row][~is_nan].tobytes() == expected[~is_nan].tobytes()


def rates(*series: Series) -> NDArray[np.float64]:
    return together(RATE, list(series))[0]


def growing(times: NDArray[np.int64], start: int = 0, first: float = 1e6) -> Series:
    return times, first + 3.0 * np.arange(len(times)), np.full(len(times), start)


def test_times_that_differ_in_the_middle_only_have_their_own_windows() -> None:
    alike, late = rates(growing(REGULAR), growing(INNER_LATE))
    assert late.tobytes() == rates(growing(INNER_LATE))[0].tobytes() != alike.tobytes()


def test_equal_times_with_other_start_timestamps_have_their_own_windows() -> None:
    older, newer = rates(growing(REGULAR + 60_000, -100_000, 5.0), growing(REGULAR + 60_000, 50_000, 5.0))
    assert newer.tobytes() == rates(growing(REGULAR + 60_000, 50_000, 5.0))[0].tobytes() != older.tobytes()


def test_a_series_without_samples_does_not_change_the_next_one() -> None:
    nothing = growing(REGULAR[:0])
    (first, none, last), present = together(RATE, [growing(REGULAR), nothing, growing(REGULAR)])
    assert first.tobytes() == last.tobytes() and first.any()
    assert not none.any() and present.any(axis=1).tolist() == [True, False, True]


def test_a_reset_and_the_limit_at_zero_are_those_of_their_own_series() -> None:
    falling = growing(REGULAR)
    falling[1][8:] = 3.0 * np.arange(len(REGULAR) - 8)
    plain, reset, small, again = rates(growing(REGULAR), falling, growing(REGULAR, first=0.5), growing(REGULAR))
    assert plain.tobytes() == again.tobytes()
    assert (reset >= 0).all() and reset.tobytes() != plain.tobytes()
    assert (small[:5] < plain[:5]).any() and small[10:].tobytes() == plain[10:].tobytes()


def test_a_difference_that_is_nothing_is_no_negative_zero() -> None:
    values = np.where(np.arange(len(REGULAR)) % 2, -0.0, 0.0)
    for op in (RATE, INCREASE, DELTA):
        out, present = together(op, [(REGULAR, values, np.zeros(len(REGULAR)))])
        assert present.any() and not np.signbit(out[present]).any()
