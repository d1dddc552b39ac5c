"""Kernels of range functions on their own, at the edges of their conditions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from coordinator.queries.fetched import FetchedSelection
from loadtest.harness.memory_source import MemorySource
from shared.labels import LabelFrame, Symbols
from shared.process.processor_time import ProcessorTime
from shared.promql.ast import Matcher, VectorSelector
from shared.promql.engine import range_functions, readings, scan
from shared.promql.engine.invariance import step_invariant
from shared.promql.engine.kernels.extrapolation import extrapolation
from shared.promql.engine.kernels.windows import last_in_window
from shared.promql.model import STALE_NAN_BITS, Grid, RangeVector, Samples
from shared.promql.parser import parse
from tests.unit.engine_answers import at, remarks, rows, source
from tests.unit.operators_setup import Bench

FIRST_T, LAST_T = 100, 110


@pytest.mark.parametrize(
    ("to_start", "to_end", "samples", "expected"),
    [
        (0, 0, 2, 10.0),
        (10, 0, 2, 20.0),
        (0, 10, 2, 20.0),
        (10, 10, 2, 30.0),
        (11, 0, 2, 21.0),
        (0, 11, 2, 21.0),
        (12, 13, 2, 20.0),
        (5, 5, 3, 20.0),
        (6, 5, 3, 17.5),
        (5, 6, 3, 17.5),
        (50, 50, 3, 15.0),
        (11, 5, 2, 26.0),
        (5, 11, 2, 26.0),
        (10, 10, 1, 30.0),
        (11, 11, 1, 32.0),
    ],
)
def test_an_increase_goes_on_to_the_windows_ends_or_half_a_gap_where_they_are_far(
    to_start: int, to_end: int, samples: int, expected: float
) -> None:
    """An increase of 10 over 10 ms, before and after whose samples the window has so much room."""
    for counter, first_value in ((False, 0.0), (False, 2.0), (True, 1000.0)):
        got = 10.0 * extrapolation(
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
    got = result * extrapolation(result, first_value, FIRST_T, LAST_T, 2, FIRST_T - 10, LAST_T, FIRST_T - 10, counter)
    assert got == pytest.approx(expected)


@pytest.mark.parametrize(("zero_t", "expected"), [(95, 10.0), (91, 10.0), (90, 12.0), (89, 12.0)])
def test_a_counter_known_to_have_been_zero_within_the_window_counts_from_there(zero_t: int, expected: float) -> None:
    got = 10.0 * extrapolation(10.0, 2.0, FIRST_T, LAST_T, 2, FIRST_T - 10, LAST_T, zero_t, True)
    assert got == pytest.approx(expected)


def test_an_increase_from_a_known_zero_goes_on_to_the_windows_end() -> None:
    got = 10.0 * extrapolation(10.0, 0.0, FIRST_T, LAST_T, 2, FIRST_T - 10, LAST_T + 3, FIRST_T - 5, True)
    assert got == pytest.approx(10.0 * 18 / 15)


# Windows by way of queries, at the edges of what is looked at


@pytest.mark.parametrize(
    ("lookback_ms", "at_20_s"),
    [(20_000, {"{}": 1.0}), (20_001, {"{}": 1.0}), (19_999, {}), (10_000, {})],
)
def test_a_smoothed_window_looks_ahead_as_far_as_the_lookback_and_no_further(
    lookback_ms: int, at_20_s: dict[str, float]
) -> None:
    data = source({"m": [1.0, 2.0, None, None, 5.0]})
    assert at("increase(m[10s] smoothed)", data, 20, lookback_ms=lookback_ms) == at_20_s


@pytest.mark.parametrize(("lookback_ms", "at_35_s"), [(15_000, {"{}": 0.0}), (15_001, {"{}": 3.0})])
def test_an_anchored_window_looks_back_less_than_the_lookback(lookback_ms: int, at_35_s: dict[str, float]) -> None:
    data = source({"m": [1.0, 2.0, None, 5.0]})
    assert at("increase(m[10s] anchored)", data, 35, lookback_ms=lookback_ms) == at_35_s


def test_a_mean_whose_sum_overflows_is_of_its_own_window_only() -> None:
    large = 1.5e308
    data = source({"m": [1.0, large, large, large, -large]})
    got = rows("avg_over_time(m[20s])", data, 20, 40, 10)
    assert got == {"{}": [pytest.approx(large), pytest.approx(large), pytest.approx(0.0, abs=1e293)]}
    assert at("avg_over_time(m[30s])", data, 30) == {"{}": pytest.approx(large)}
    assert at("avg_over_time(m[40s])", data, 40) == {"{}": pytest.approx(large / 2)}


def test_overlapping_start_times_are_remarked_on_however_much_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1.0, 2.0, 3.0]
    times = [0, 10_000, 20_000]
    overlapping = MemorySource.of({"m_total": (times, values, [0, 0, 5000])})
    apart = MemorySource.of({"m_total": (times, values, [0, 0, 10_000])})
    expected = remarks("increase(m_total[1m])", overlapping, 20)
    assert len(expected) == 1 and "overlaps" in expected[0][0]
    assert remarks("increase(m_total[1m])", apart, 20) == []
    monkeypatch.setattr(readings, "KERNEL_WORK", 1)
    assert remarks("increase(m_total[1m])", overlapping, 20) == expected
    assert remarks("increase(m_total[1m])", apart, 20) == []


@pytest.mark.parametrize(
    ("assumed_ms", "read"),
    [(20_000, [(0, 2), (2, 5), (5, 8), (8, 9)]), (5000, [(0, 1), (1, 4), (4, 7), (7, 9)])],
)
def test_so_many_series_are_read_at_once_that_their_samples_fit(
    monkeypatch: pytest.MonkeyPatch, assumed_ms: int, read: list[tuple[int, int]]
) -> None:
    """The first read has as few series as would be needed if their samples were so far apart."""
    monkeypatch.setattr(scan, "ASSUMED_INTERVAL_MS", assumed_ms)
    monkeypatch.setattr(scan, "READ_SERIES", 2)
    monkeypatch.setattr(scan, "READ_SAMPLES", 12)
    bench = Bench()
    bench.context.source = source({f'm{{i="{n}"}}': [1.0] * 4 for n in range(9)})
    node = VectorSelector("m", (Matcher("__name__", "=", "m"),))
    found = scan.scan(node, scan.windows_of(node, 60_000, Grid(30_000, 30_000), bench.context), bench.context)
    assert [(at.start, at.stop) for at, _ in scan.reads(found, bench.context)] == read


def test_fetched_samples_are_those_of_the_range_with_both_ends() -> None:
    symbols = Symbols()
    labels = LabelFrame.of([{"a": "1"}, {"a": "2"}], symbols)
    starts = np.arange(6, dtype=np.int64)
    samples = Samples(np.array([0, 4, 6]), np.array([10, 20, 30, 40, 20, 30]), np.arange(6.0), starts)
    selection = FetchedSelection(RangeVector(labels, samples, np.zeros(2, dtype=np.bool_)), 20, 30)
    both, second = selection.read(0, 2), selection.read(1, 2)
    assert (both.offsets.tolist(), both.timestamps_ms.tolist()) == ([0, 2, 4], [20, 30, 20, 30])
    assert both.values.tolist() == [1.0, 2.0, 4.0, 5.0]
    assert both.start_timestamps_ms is not None and both.start_timestamps_ms.tolist() == [1, 2, 4, 5]
    assert (second.offsets.tolist(), second.values.tolist()) == ([0, 2], [4.0, 5.0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum(m @ 10)", True),
        ("sum(m)", False),
        ("topk(2, m @ 10)", True),
        ("topk(2, m)", False),
        ("topk(scalar(k), m @ 10)", False),
        ("topk(scalar(k @ 10), m @ 10)", True),
        ("m @ 10 + n @ 20", True),
        ("m @ 10 + n", False),
        ("m + n @ 10", False),
        ("-(m @ 10)", True),
        ("rate(m[5m] @ 10)", True),
        ("rate(m[5m])", False),
        ("rate(m[5m:1m] @ 10)", True),
        ("timestamp(m @ 10)", True),
        ("timestamp(m)", False),
        ("timestamp(-m @ 10)", False),
        ("time()", False),
        ("vector(1)", True),
        ('label_replace(m @ 10, "a", "b", "c", "d")', True),
    ],
)
def test_what_is_the_same_at_every_step_is_known_by_its_parts(text: str, expected: bool) -> None:
    assert bool(step_invariant(parse(text), Bench().context)) is expected


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5])
def test_the_best_of_groups_are_chosen_whatever_the_sizes_of_the_groups(k: int) -> None:
    data = source({f'm{{g="{g}",i="{i}"}}': [float(i)] for g, size in (("a", 4), ("b", 2)) for i in range(size)})
    got = at(f"topk by (g) ({k}, m)", data, 0)
    expected = {f'm{{g="{g}",i="{i}"}}': float(i) for g, size in (("a", 4), ("b", 2)) for i in range(size)[-k:] if k}
    assert got == expected


@pytest.mark.parametrize(("lookback_ms", "expected"), [(30_000, 2.0), (30_001, 2.0), (29_999, 1.0)])
def test_a_smoothed_value_lies_between_samples_that_are_no_further_than_the_lookback(
    lookback_ms: int, expected: float
) -> None:
    data = source({"m": [1.0, None, None, None, 5.0]})
    assert at("m smoothed", data, 10, lookback_ms=lookback_ms) == {"m{}": expected}
    assert at("m smoothed", data, 0, lookback_ms=lookback_ms) == {"m{}": 1.0}
    assert at("m smoothed", data, 30, lookback_ms=30_000) == {}
    assert at("m smoothed", data, 30, lookback_ms=30_001) == {"m{}": 4.0}


def test_a_kernel_is_called_with_so_many_samples_and_steps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = source({"m": [1.0, 2.0, 3.0]})
    expected = rows("sum_over_time(m[30s])", data, 0, 40, 10)
    monkeypatch.setattr(readings, "KERNEL_WORK", 6)
    steps: list[int] = []
    parts = readings.parts

    def noted(reading: readings.Reading, work_max: int) -> Iterator[readings.Reading]:
        for part in parts(reading, work_max):
            steps.append(part.windows.steps)
            yield part

    monkeypatch.setattr(readings, "parts", noted)
    assert rows("sum_over_time(m[30s])", data, 0, 40, 10) == expected
    assert steps == [2, 2, 1]
    steps.clear()
    rows("sum_over_time(m[30s])", data, 0, 10, 10)
    assert steps == []


def test_a_light_query_calls_kernels_with_less_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = source({"m": [1.0, 2.0, 3.0]})
    expected = rows("sum_over_time(m[30s])", data, 0, 40, 10)
    calls: list[int] = []
    kernel = range_functions.RANGE_FUNCTIONS["sum_over_time"]

    def noted(reading: readings.Reading) -> None:
        calls.append(reading.windows.steps)
        kernel(reading)

    monkeypatch.setitem(range_functions.RANGE_FUNCTIONS, "sum_over_time", noted)
    monkeypatch.setattr(readings, "LIGHT_KERNEL_WORK", 6)
    assert rows("sum_over_time(m[30s])", data, 0, 40, 10) == expected
    assert calls == [5]
    calls.clear()
    light = rows("sum_over_time(m[30s])", data, 0, 40, 10, processor=ProcessorTime(60))
    assert light == expected
    assert calls == [2, 2, 1]


def test_bounds_that_are_exactly_at_the_threshold_are_decided_as_the_formula_rounds():
    """A bound as far as 1.1 average gaps: seconds and quotients round to one side or the other."""
    sides = set()
    for gaps in (1, 3, 6, 7, 10, 11):
        for interval in range(30_000, 330_000, 30_000):
            distance, rest = divmod(11 * interval, 10 * gaps)
            if rest:
                continue
            threshold = interval / 1000 / gaps * 1.1
            is_far = distance / 1000 >= threshold
            sides.add(is_far)
            beyond = interval / gaps / 2 if is_far else distance
            begin, end = FIRST_T - distance, FIRST_T + interval
            got = extrapolation(1.0, 1.0, FIRST_T, end, gaps + 1, begin, end, begin, False)
            assert got == pytest.approx((interval + beyond) / interval, rel=1e-12)
    assert sides == {True, False}


@pytest.mark.parametrize("seed", range(40))
def test_the_newest_samples_are_those_of_each_series_whether_its_neighbours_have_its_times_or_not(seed: int) -> None:
    random = np.random.default_rng(seed)
    series: list[tuple[list[int], list[float]]] = []
    for _ in range(8):
        times = sorted(random.choice(60, int(random.integers(0, 9)), replace=False).tolist())
        for _ in range(int(random.integers(1, 4))):
            values = [float("nan") if random.random() < 0.2 else float(random.integers(9)) for _ in times]
            series.append((times, values))
    first, step, range_ms, steps = (
        int(random.integers(0, 20)),
        int(random.integers(0, 9)),
        int(random.integers(1, 20)),
        7,
    )
    offsets = np.concatenate(([0], np.cumsum([len(times) for times, _ in series])))
    all_times = np.array([time for times, _ in series for time in times], np.int64)
    column = np.array([value for _, values in series for value in values])
    bits = np.where(np.isnan(column), STALE_NAN_BITS, column.view(np.int64))
    out, present = np.full((len(series), steps), -1.0), np.ones((len(series), steps), np.bool_)
    last_in_window(offsets, all_times, bits, column, STALE_NAN_BITS, first, step, range_ms, out, present)
    for s, (times, values) in enumerate(series):
        for k in range(steps):
            end = first + k * step
            inside = [value for time, value in zip(times, values, strict=True) if end - range_ms < time <= end]
            assert present[s, k] == bool(inside and not np.isnan(inside[-1]))
            assert not present[s, k] or out[s, k] == inside[-1]


@pytest.mark.parametrize("place", [None, 0, 4, 6])
def test_staleness_markers_are_left_out_wherever_they_are(place: int | None) -> None:
    values = np.arange(7.0)
    if place is not None:
        values.view(np.int64)[place] = STALE_NAN_BITS
    found = scan.without_stale(Samples(np.array([0, 3, 7]), np.arange(7), values))
    left = [number for number in range(7) if number != place]
    assert found.timestamps_ms.tolist() == found.values.tolist() == left
    assert found.offsets.tolist() == [0, len([n for n in left if n < 3]), len(left)]
