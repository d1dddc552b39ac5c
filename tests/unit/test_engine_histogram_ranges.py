"""Range functions over native histograms: that cutting the work changes nothing, and how it is bounded. The conformance
scripts say what they compute."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest

from loadtest.harness.local_queries import range_query
from loadtest.harness.memory_source import MemorySource
from shared.errors import DeadlineExceeded, OverBudget
from shared.histograms.batch import HistogramBatch
from shared.histograms.references import is_reference
from shared.labels import Symbols
from shared.promql import parser
from shared.promql.engine import histogram_neighbours, histogram_ranges, range_functions, scan
from shared.promql.engine.context import EvalContext
from shared.promql.engine.evaluator import evaluate
from shared.promql.engine.functions import native_histogram
from shared.promql.engine.kernels import histogram_windows
from shared.promql.model import Grid, Matrix
from tests.conformance.histogram_notation import parse_histogram
from tests.conformance.memory_backend import answer_of, columns
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import Hint, NativeHistogram

STEP_MS, SAMPLES, SERIES = 10_000, 40, 5
GRID = Grid(20_000, 420_000, 15_000)
FUNCTIONS = sorted(set(range_functions.RANGE_FUNCTIONS) - {"quantile_over_time", "predict_linear"})


def _walk(rng: np.random.Generator) -> list[NativeHistogram | float]:
    """A counter that grows, is reset now and then, changes its layout, and is sometimes a float."""
    samples: list[NativeHistogram | float] = []
    counts = np.zeros(6)
    for _ in range(SAMPLES):
        counts = counts + rng.poisson(2.0, 6) if rng.random() < 0.9 else rng.poisson(1.0, 6).astype(float)
        if rng.random() < 0.08:
            samples.append(float(counts.sum()))
            continue
        schema, threshold = int(rng.choice([1, 1, 1, 0])), float(rng.choice([0.01, 0.01, 0.1]))
        samples.append(
            NativeHistogram(
                schema=schema,
                count=counts.sum(),
                sum=counts.sum() / 2,
                zero_threshold=threshold,
                zero_count=counts[0],
                positive=dict(enumerate(counts[1:].tolist())),
                hint=Hint.GAUGE if rng.random() < 0.02 else Hint.UNKNOWN,
            )
        )
    return samples


def _source(seed: int, extra: list[NativeHistogram | float] | None = None) -> MemorySource:
    rng = np.random.default_rng(seed)
    histograms: list[NativeHistogram] = []
    series = {}
    for i in range(SERIES):
        samples = _walk(rng) if i or extra is None else extra
        times = STEP_MS * np.arange(len(samples))
        starts = np.where(rng.random(len(times)) < 0.2, times - 4_000, 0)
        points = list(zip(times.tolist(), samples, starts.tolist(), strict=True))
        series[(("__name__", "m"), ("i", str(i)))] = columns(points, histograms)
    return MemorySource(series, batch_of(histograms))


def _answer(query: str, source: MemorySource) -> object:
    done = range_query(query, source, GRID)
    return answer_of(query, done.value, done.annotations, GRID, ranged=True)


def _query(func: str) -> str:
    parameters = ", 0.5, 0.5" if func == "double_exponential_smoothing" else ""
    return f"{func}(m[1m]{parameters})"


@pytest.mark.parametrize("query", [
    *map(_query, FUNCTIONS), "increase(m[1m] smoothed)", "rate(m[1m] anchored)", "resets(m[1m] anchored)", "m smoothed",
    "m", "increase(m[1m:7s])", "histogram_quantile(0.9, m)", "histogram_fraction(0, time() / 100, m)",
    "histogram_count(sum(m))",
])  # fmt: skip
def test_cutting_the_work_changes_nothing(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = _source(1)
    expected = _answer(query, source)
    for module, name, size in (
        (histogram_ranges, "CELLS_AT_ONCE", 1),
        (histogram_ranges, "LAYOUTS_CARRIED", 0),
        (histogram_neighbours, "BUCKETS_AT_ONCE", 20),
        (native_histogram, "BUCKETS_AT_ONCE", 20),
        (scan, "READ_SERIES", 2),
        (scan, "READ_SAMPLES", 1),
    ):
        monkeypatch.setattr(module, name, size)

    assert _answer(query, source) == expected


def test_windows_that_one_sample_could_change_are_the_only_ones_that_do() -> None:
    """A function of windows sees no sample outside of them."""
    samples = _walk(np.random.default_rng(5))
    other = [*samples[:20], parse_histogram("schema:2 count:9 sum:9 buckets:[9]"), *samples[21:]]
    at_ms = 20 * STEP_MS
    for func in FUNCTIONS:
        if func in ("absent_over_time",):
            continue
        first, second = (_answer(_query(func), _source(5, which)) for which in (samples, other))
        for (labels, left), (_, right) in zip(first.series, second.series, strict=True):  # type: ignore[attr-defined]
            outside = [[pair for pair in pairs if not at_ms <= pair[0] < at_ms + 60_000] for pairs in (left, right)]
            assert outside[0] == outside[1], (func, labels)


def test_results_count_in_the_budget_of_the_query() -> None:
    wide = [NativeHistogram(count=1.0, positive=dict.fromkeys(range(2000), 1.0))] * SAMPLES
    source = _source(3, wide)  # type: ignore[arg-type]
    grid = Grid(0, 390_000, 100)
    read = range_query("m{i='0'}", source, Grid(0, 0)).samples_read
    assert range_query("rate(m{i='0'}[1m])", source, Grid(0, 390_000, 39_000)).value
    with pytest.raises(OverBudget):
        range_query("rate(m{i='0'}[1m])", source, grid, samples_max=read * SAMPLES + 2_000_000)


@pytest.mark.parametrize("func", ["rate", "sum_over_time", "resets", "changes"])
def test_the_deadline_is_checked_between_slices(func: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = _source(4)
    checks: list[float] = []
    monkeypatch.setattr(histogram_neighbours, "BUCKETS_AT_ONCE", 1)
    deadline = time.monotonic() + 60

    def cancelled() -> bool:
        checks.append(0.0)
        return len(checks) > 30

    with pytest.raises(DeadlineExceeded):
        range_query(f"{func}(m[1m])", source, GRID, deadline=deadline, cancelled=cancelled)


def test_a_failed_evaluation_leaves_the_search_for_resets_as_it_was() -> None:
    context = EvalContext(_source(4), Symbols(), GRID, samples_max=0)
    for query in ("histogram_count(sum(m))", "histogram_sum(sum_over_time(m[1m:10s]))"):
        with pytest.raises(OverBudget):
            evaluate(parser.parse(query), GRID, context)
        assert not context.finds_resets
    context.finds_resets = True
    with pytest.raises(OverBudget):
        evaluate(parser.parse("histogram_quantile(0.5, m) + max_over_time(m[1m:10s])"), GRID, context)
    assert context.finds_resets


def test_absent_values_never_look_like_histograms() -> None:
    for query in ("m", "rate(m[1m])", "last_over_time(m[15s])", "m smoothed"):
        value = range_query(query, _source(6), Grid(0, 900_000, 15_000)).value
        assert isinstance(value, Matrix) and isinstance(value.histograms, HistogramBatch)
        assert not (is_reference(value.values) & ~value.present).any()


def _histogram(count: float) -> NativeHistogram:
    return NativeHistogram(count=count, sum=count, positive={0: count})


def _at(query: str, samples: list[NativeHistogram | float], at_ms: int) -> tuple[list[float], list[str]]:
    """(values, annotations) at this time, of a series with a sample every 10 s from 0 on."""
    histograms: list[NativeHistogram] = []
    points = [(STEP_MS * number, sample, 0) for number, sample in enumerate(samples)]
    source = MemorySource({(("__name__", "m"),): columns(points, histograms)}, batch_of(histograms))
    done = range_query(query, source, Grid(at_ms, at_ms))
    assert isinstance(done.value, Matrix)
    return done.value.values[done.value.present].tolist(), [note.text for note in done.annotations.items.values()]


def test_a_rate_of_floats_and_histograms_has_no_result_however_many_floats_there_are() -> None:
    samples = [1.0, 2.0, 3.0, _histogram(4.0), _histogram(5.0)]
    values, notes = _at("rate(m[1m])", samples, 40_000)
    assert not values and len(notes) == 1
    values, notes = _at("rate(m[1m])", samples, 20_000)
    assert len(values) == 1 and not any("mix" in note for note in notes)


def test_a_function_of_floats_says_that_it_ignored_histograms_beside_them() -> None:
    samples = [1.0, 2.0, 3.0, _histogram(4.0)]
    values, notes = _at("max_over_time(m[1m])", samples, 30_000)
    assert values == [3.0]
    assert len(notes) == 1 and "ignored histograms" in notes[0]
    assert _at("max_over_time(m[1m])", samples, 20_000) == ([3.0], [])


def test_a_reset_behind_the_end_of_a_smoothed_range_is_counted() -> None:
    """From 15, half of the way from 10 to 20, to 2, half of the way from zero to 4; before that, 30 were reached."""
    samples = [_histogram(count) for count in (10.0, 20.0, 30.0, 4.0, 9.0)]
    assert _at("histogram_count(increase(m[20s] smoothed))", samples, 25_000)[0] == [2.0 + 30.0 - 15.0]
    assert _at("histogram_count(increase(m[20s] smoothed))", samples, 20_000)[0] == [20.0]


COUNTS = [1.0, 10.0, 100.0, 1_000.0, 10_000.0]


@pytest.mark.parametrize("resets", list(product((False, True), repeat=len(COUNTS) - 1)), ids=str)
def test_members_of_a_difference_add_up_to_it_and_are_as_many_as_counted(resets: tuple[bool, ...]) -> None:
    """All bounds of windows over five samples, each at a sample or half of the way to the next one."""
    is_reset = np.array([False, *resets])
    after = np.append(np.where(is_reset, np.arange(5), 5), 5)
    next_reset = np.minimum.accumulate(after[::-1])[::-1].copy()
    bounds = [(at, share) for at in range(5) for share in (0.0, 0.5) if at + share <= 4]
    for left, right, from_zero in product(bounds, bounds, (False, True)):
        if left > right or (left == right and left[1] > 0):
            continue
        columns = (np.array([left[0]]), np.array([left[1]]), np.array([right[0]]), np.array([right[1]]))
        window = (*columns, np.array([from_zero]), is_reset, next_reset)
        sizes = np.full(1, -1)
        histogram_windows.count_difference_members(*window, sizes)
        members, weights = np.full(sizes[0] + 3, -7), np.zeros(sizes[0] + 3)
        start = np.array([0, sizes[0]])

        histogram_windows.difference_members(*window, np.arange(5), start, members, weights)

        assert (members[sizes[0] :] == -7).all() and (members[: sizes[0]] >= 0).all(), (left, right)
        added_up = float(np.dot(weights[: sizes[0]], np.array(COUNTS)[members[: sizes[0]]]))
        assert added_up == _increase(left, right, is_reset, from_zero=from_zero), (left, right, from_zero)


def _increase(left: tuple[int, float], right: tuple[int, float], is_reset: np.ndarray, *, from_zero: bool) -> float:
    """What a counter with COUNTS grew between two bounds (a sample, and the share of the way to the next one)."""
    first_reset = left[0] + (2 if left[1] else 1)
    last = right[0] + (1 if right[1] else 0)
    lost = sum(COUNTS[i - 1] for i in range(first_reset, last + 1) if is_reset[i])
    return _bound(right, is_reset) - (0.0 if from_zero else _bound(left, is_reset)) + lost


def _bound(bound: tuple[int, float], is_reset: np.ndarray) -> float:
    at, share = bound
    if not share:
        return COUNTS[at]
    return share * COUNTS[at + 1] + (0.0 if is_reset[at + 1] else (1.0 - share) * COUNTS[at])


def test_histograms_of_a_window_are_added_up_and_averaged() -> None:
    samples: list[NativeHistogram | float] = [_histogram(count) for count in (10.0, 20.0, 60.0, 1.0)]
    assert _at("histogram_count(sum_over_time(m[25s]))", samples, 20_000) == ([90.0], [])
    assert _at("histogram_sum(avg_over_time(m[25s]))", samples, 20_000) == ([30.0], [])
