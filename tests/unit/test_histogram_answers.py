"""Answers with histograms from several workers: what they cost, and who renders them."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from coordinator.queries import joining
from coordinator.queries.cost import Costs
from coordinator.queries.fetched import FetchedSelection
from coordinator.queries.joining import Joined, SeriesTooLong
from coordinator.queries.merge import Merged, Terms, evaluate_plan, message
from coordinator.queries.planner import plan
from coordinator.queries.results import Result, ordered
from loadtest.harness.memory_source import MemorySource, label_set
from shared.errors import OverBudget
from shared.histograms.references import is_reference, references, rows_of
from shared.histograms.text import answer_object
from shared.labels import Symbols
from shared.promql.model import Grid, RangeVector
from shared.promql.rendering import series as rendering
from shared.promql.rendering.series import SeriesWriter
from shared.wire import pack
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import NativeHistogram
from tests.sharded import ask, evaluate_sharded
from worker.queries import evaluation

T = 1_700_000_000_000
GRID = Grid(T, T + 60_000, 15_000)
INSTANT = Grid(T + 60_000, T + 60_000)
SAMPLES = 5


def histogram(number: int, buckets: int = 4) -> NativeHistogram:
    positive = {i + number % 3: float(number + i) for i in range(1, buckets)}
    return NativeHistogram(schema=0, positive=positive, count=sum(positive.values()), sum=number / 7)


def source(worker: int, series: int, buckets: int = 4) -> MemorySource:
    """Series of floats, of histograms, and of both in turn."""
    batch = [histogram(SAMPLES * i + k, buckets) for i in range(series) for k in range(SAMPLES)]
    refs = references(np.arange(len(batch))).reshape(series, SAMPLES)
    columns = {}
    for i in range(series):
        values = np.where((i + np.arange(SAMPLES)) % 3 == 0, np.arange(5.0), refs[i]) if i % 3 else refs[i]
        name = "h" if i % 2 else "g"
        columns[label_set({"__name__": name, "i": f"{7919 * i % 1009:04d}", "w": str(worker)})] = (
            T + 15_000 * np.arange(SAMPLES), values,
        )  # fmt: skip
    return MemorySource(columns, batch_of(batch))


def text(merged: Merged, grid: Grid) -> bytes:
    value = merged.value if isinstance(merged.value, Joined) else ordered(merged.value)
    return b"".join(Result(value, grid, is_range=not grid.instant).chunks())


@pytest.mark.parametrize("query", ["h", '{__name__=~"h|g"}', "-h", "h[1m]", "last_over_time(h[1m])"])
@pytest.mark.parametrize("sizes", [(30,), (30, 20), (2, 30), (30, 0, 11)])
def test_workers_write_the_bytes_that_the_coordinator_does(
    monkeypatch: pytest.MonkeyPatch, query: str, sizes: tuple[int, ...]
) -> None:
    monkeypatch.setattr(evaluation, "TEXT_WEIGHT_MIN", 10 * evaluation.SERIES_WEIGHT)
    spans = SeriesWriter.spans
    monkeypatch.setattr(SeriesWriter, "spans", lambda self: spans(self, 50))
    sources = [source(worker, size) for worker, size in enumerate(sizes)]
    for grid in (INSTANT,) if query.endswith("]") else (GRID, INSTANT):
        form = "matrix" if query.endswith("]") or not grid.instant else "vector"
        arrays, rendered = (evaluate_sharded(query, sources, grid, form=one) for one in ("arrays", form))
        assert isinstance(rendered.value, Joined) and not isinstance(arrays.value, Joined)
        assert text(rendered, grid) == text(arrays, grid)
        assert rendered.samples_peak == arrays.samples_peak
        assert b'"histogram' in text(arrays, grid)


def test_series_that_lose_their_names_become_one_with_floats_and_histograms() -> None:
    batch = batch_of([histogram(3)])
    old = {label_set({"__name__": "a", "i": "1"}): ([T], references(np.array([0])))}
    new = {label_set({"__name__": "b", "i": "1"}): ([T + 30_000], [2.5])}
    sources = [MemorySource(old, batch), MemorySource(new)]
    for form in ("arrays", "matrix"):
        merged = evaluate_sharded('last_over_time({__name__=~"a|b"}[15s]) * 1', sources, GRID, form=form)
        (series,) = json.loads(text(merged, GRID))
        assert series["metric"] == {"i": "1"}
        assert series["values"] == [[T // 1000 + 30, "2.5"]]
        assert series["histograms"] == [[T // 1000, answer_object(batch, 0)]]


def test_histograms_among_fetched_samples_are_ignored_as_in_workers() -> None:
    """The parameter needs other shards, so the coordinator gets the samples themselves."""
    sources = [source(0, 7), source(1, 7)]
    here = evaluate_sharded("quantile_over_time(0 * scalar(count(h)) + 0.5, h[1m])", sources, INSTANT)
    there = evaluate_sharded("quantile_over_time(0.5, h[1m])", sources, INSTANT)
    assert text(here, INSTANT) == text(there, INSTANT) != b"[]"
    texts = [[remark.text for remark in merged.annotations.items.values()] for merged in (here, there)]
    assert texts[0] == texts[1] != []


def test_a_read_of_fetched_samples_has_the_histograms_of_its_series_only() -> None:
    """All are held already; what is read of them counts once more."""
    fetched = source(0, 9)
    frame = fetched.frame(Symbols())
    samples = fetched.select([], T, T + 60_000, frame.symbols).read(0, 9)
    selection = FetchedSelection(RangeVector(frame, samples, np.zeros(9, dtype=np.bool_)), T, T + 45_000)
    assert samples.histograms is not None
    for series in range(9):
        expected = samples.values[samples.offsets[series] : samples.offsets[series + 1]][:4]
        read = selection.read(series, series + 1)
        is_histogram = is_reference(expected)
        assert read.values[~is_histogram].tolist() == expected[~is_histogram].tolist()
        assert (is_reference(read.values) == is_histogram).all() and is_histogram.any()
        assert read.histograms is not None and len(read.histograms) <= 4
        own, all_rows = rows_of(read.values[is_histogram]), rows_of(expected[is_histogram])
        for mine, theirs in zip(own, all_rows, strict=True):
            assert answer_object(read.histograms, int(mine)) == answer_object(samples.histograms, int(theirs))


def long_series(worker: int, steps: int = 300) -> tuple[MemorySource, Grid]:
    """One series whose only sample, a histogram of 1,000 buckets, is shown at every step."""
    wide = batch_of([NativeHistogram(schema=8, positive=dict.fromkeys(range(1_000), 1.0), count=1e3, sum=1.0)])
    labels = label_set({"__name__": "h", "w": str(worker)})
    return MemorySource({labels: ([T], references(np.array([0])))}, wide), Grid(T, T + 500 * (steps - 1), 500)


def test_a_long_series_is_sent_as_arrays_and_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "TEXT_WEIGHT_MIN", 0)
    long, grid = long_series(9)
    expected = text(evaluate_sharded("h", [long, source(0, 30)], grid), grid)
    monkeypatch.setattr(rendering, "SERIES_BYTES_MAX", 1 << 20)
    query_plan = plan("h", grid)
    terms = Terms(grid, 300_000, 50_000_000, time.monotonic() + 60, form="matrix")
    body = pack(message(query_plan, terms))
    replies = [ask(one, body, terms) for one in (long, source(0, 30))]
    assert [reply.answers[0].shape.kind for reply, _ in replies] == ["matrix", "text"]
    with pytest.raises(SeriesTooLong):
        evaluate_plan(query_plan, replies, terms)
    asked_again = evaluate_sharded("h", [long, source(0, 30)], grid, form="matrix")
    assert not isinstance(asked_again.value, joining.Joined)
    pieces = list(Result(ordered(asked_again.value), grid, is_range=True).chunks())
    assert b"".join(pieces) == expected
    assert max(map(len, pieces)) < len(expected) / 5


@pytest.mark.parametrize("form", ["arrays", "matrix"])
def test_an_answer_with_too_many_buckets_is_refused(form: Any) -> None:
    """What workers send is small, since all steps show one histogram; the text would be long."""
    long, grid = long_series(9)
    shown = 300 * 1_002
    sources = [long, source(0, 0)]
    evaluate_sharded("h", sources, grid, samples_max=shown, form=form)
    with pytest.raises(OverBudget):
        evaluate_sharded("h", sources, grid, samples_max=shown - 1, form=form)


def test_buckets_count_as_samples_that_are_read() -> None:
    sources = [source(0, 6, buckets=40), source(1, 6, buckets=40)]
    grid, query_plan = GRID, plan("count_over_time(h[1m])", GRID)
    terms = Terms(grid, 300_000, 50_000_000, time.monotonic() + 60)
    answers = [ask(one, pack(message(query_plan, terms)), terms)[0].answers[0] for one in sources]
    samples, buckets = sum(a.samples_read for a in answers), sum(a.buckets_read for a in answers)
    assert samples - buckets == sum(len(s.labels) // 2 * SAMPLES for s in sources)
    assert buckets > 20 * (samples - buckets)
    # A worker would hold the samples of all of its series and their counts together, if they were floats.
    with pytest.raises(OverBudget):
        evaluate_sharded("count_over_time(h[1m])", sources, grid, samples_max=(samples - buckets) // 2 + 3 * grid.steps)
    raw = evaluate_sharded("h[1m]", sources, INSTANT)
    assert 0.75 * samples < raw.samples_peak <= samples  # the window leaves out its first sample
    evaluate_sharded("h[1m]", sources, INSTANT, samples_max=raw.samples_peak)
    with pytest.raises(OverBudget):
        evaluate_sharded("h[1m]", sources, INSTANT, samples_max=raw.samples_peak - 1)
    costs = Costs()
    costs.learn(query_plan.demands[0], 6, samples, buckets)
    wide = costs.estimate(query_plan.demands)
    costs.learn(query_plan.demands[0], 6, samples)
    assert wide.touches - wide.samples > 20 * (costs.estimate(query_plan.demands).touches - samples)
