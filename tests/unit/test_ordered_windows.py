"""Quantiles of windows: what is kept in order while samples enter and leave, and how long that takes."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.errors import DeadlineExceeded
from shared.promql.engine.kernels.order_statistics import MAD, QUANTILE, order_statistics
from shared.promql.engine.kernels.ordered import FEW, RUN, put_in, sort, take_out
from shared.promql.model import Float, Grid, Int
from tests.sharded import Series, evaluate_sharded, split

NAN = math.nan
T_MS = 1_700_000_000_000

_numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_nan=False))


@given(st.lists(_numbers, max_size=5 * RUN))
def test_values_are_sorted(values: list[float]) -> None:
    ordered = np.array(values, np.float64)
    sort(ordered, len(values), np.empty(len(values)))
    np.testing.assert_array_equal(ordered, np.sort(values))


@pytest.mark.parametrize("count", [0, 1, RUN - 1, RUN, RUN + 1, 2 * RUN + 1, 1000, 1 << 12])
@pytest.mark.parametrize("kind", ["rising", "falling", "equal", "up and down", "random"])
def test_runs_of_all_lengths_and_orders_are_sorted(count: int, kind: str) -> None:
    rising = np.arange(count, dtype=np.float64)
    values = {
        "rising": rising,
        "falling": -rising,
        "equal": np.ones(count),
        "up and down": -np.abs(rising - count // 2),
        "random": np.random.default_rng(count).normal(size=count),
    }[kind]
    expected = np.sort(values)
    sort(values, count, np.empty(count))
    np.testing.assert_array_equal(values, expected)


@given(st.lists(_numbers, max_size=40), st.lists(_numbers, max_size=3 * FEW))
@example([1.0, 1.0], [1.0] * (FEW + 1))
@example([], [2.0] * FEW)
def test_what_is_put_in_can_be_taken_out(inside: list[float], entering: list[float]) -> None:
    count = len(entering)
    ordered = np.concatenate([np.sort(np.array(inside, np.float64)), np.zeros(count)])
    n = put_in(ordered, len(inside), np.array(entering, np.float64), count, np.empty(count))
    assert n == len(inside) + count
    np.testing.assert_array_equal(ordered, np.sort([*inside, *entering]))
    n = take_out(ordered, n, np.array(entering, np.float64), count, np.empty(count))
    np.testing.assert_array_equal(ordered[:n], np.sort(inside))


def naive(op: int, times: Int, values: Float, end_ms: int, range_ms: int, q: float) -> float | None:
    window = values[(times > end_ms - range_ms) & (times <= end_ms)]
    if not len(window):
        return None
    if op == QUANTILE:
        return quantile(window, q)
    return NAN if np.isnan(window).any() else quantile(np.abs(window - quantile(window, 0.5)), 0.5)


def quantile(window: Float, q: float) -> float:
    """NaNs come first."""
    known = window[~np.isnan(window)]
    ordered = np.concatenate([np.full(len(window) - len(known), NAN), np.sort(known)])
    rank = q * (len(ordered) - 1)
    lower, weight = math.floor(rank), rank - math.floor(rank)
    return float(ordered[lower] * (1 - weight) + ordered[min(lower + 1, len(ordered) - 1)] * weight)


def arrangements(rng: np.random.Generator, n: int) -> dict[str, Float]:
    normal = rng.normal(size=n)
    return {
        "random": normal,
        "duplicates": rng.integers(0, 4, n) / 0.7,
        "falling": np.arange(n, 0, -1) / 3,
        "rising": np.arange(n) / 3,
        "NaN": np.where(rng.random(n) < 0.15, NAN, normal),
    }


@pytest.mark.parametrize("range_ms", [1, 40, 700, 3000])
@pytest.mark.parametrize("step_ms", [0, 1, 13, 45, 400])
def test_windows_are_those_of_a_naive_computation(range_ms: int, step_ms: int) -> None:
    rng = np.random.default_rng(range_ms * 1000 + step_ms)
    series = [(name, values) for n in (300, 7, 0) for name, values in arrangements(rng, n).items()]
    columns = [np.sort(rng.choice(3000, len(values), replace=False)).astype(np.int64) for _, values in series]
    offsets = np.cumsum([0, *map(len, columns)]).astype(np.int64)
    q = rng.choice([0.0, 0.1, 0.5, 0.99, 1.0], 60)
    for op in (QUANTILE, MAD):
        out, present = np.empty((len(series), len(q))), np.empty((len(series), len(q)), np.bool_)
        values = np.concatenate([values for _, values in series])
        order_statistics(op, offsets, np.concatenate(columns), values, 500, step_ms, range_ms, q, out, present)
        for s, (name, own) in enumerate(series):
            for k in range(len(q)):
                expected = naive(op, columns[s], own, 500 + k * step_ms, range_ms, q[k])
                assert present[s, k] == (expected is not None), name
                if expected is not None:
                    np.testing.assert_equal(out[s, k], expected, err_msg=name)


LONG = 100_000
"""Samples of one window."""


def falling(samples: int) -> Series:
    times = T_MS - 1000 * np.arange(samples, dtype=np.int64)[::-1]
    return {(("__name__", "m"),): [times, np.arange(samples, 0, -1, dtype=np.float64)]}


def evaluated_within(text: str, grid: Grid, seconds: float, data: Series) -> float:
    """How long the query took, which had so many seconds."""
    sources = split(data, 1)
    evaluate_sharded("quantile_over_time(0.5, m[1m]) + mad_over_time(m[1m])", sources, grid)  # kernels are loaded
    started_at = time.monotonic()
    try:
        evaluate_sharded(text, sources, grid, deadline=started_at + seconds)
    except DeadlineExceeded:
        assert time.monotonic() - started_at >= seconds * 0.9
    return time.monotonic() - started_at


@pytest.mark.parametrize("text", ["quantile_over_time(0.5, m[{}s])", "mad_over_time(m[{}s])"])
def test_one_long_window_of_falling_values_is_answered_in_time(text: str) -> None:
    """Each of them moves all others if they are put in one by one: 5 billion moves."""
    assert evaluated_within(text.format(LONG), Grid(T_MS, T_MS), 30.0, falling(LONG)) < 3.0


@pytest.mark.parametrize("text", ["quantile_over_time(0.5, m[{}s])", "mad_over_time(m[{}s])"])
def test_a_long_window_that_slides_ends_with_the_time_of_the_query(text: str) -> None:
    grid = Grid(T_MS - 10_000 * 1000, T_MS, 1000)
    assert evaluated_within(text.format(LONG), grid, 1.0, falling(LONG + 10_000)) < 3.0


def test_a_long_window_is_cut_into_calls_that_look_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid(T_MS - 300_000, T_MS, 1000)
    samples = LONG + 300
    looks = 0

    def cancelled() -> bool:
        nonlocal looks
        looks += 1
        return False

    evaluate_sharded(f"quantile_over_time(0.5, m[{LONG}s])", split(falling(samples), 1), grid, cancelled=cancelled)
    of_quantile, looks = looks, 0
    evaluate_sharded(f"max_over_time(m[{LONG}s])", split(falling(samples), 1), grid, cancelled=cancelled)
    assert of_quantile > looks + 5
