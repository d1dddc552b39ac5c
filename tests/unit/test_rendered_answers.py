"""Answers whose series the workers rendered are, byte for byte, those the coordinator renders from arrays."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.queries import label_order
from coordinator.queries.joining import Joined
from coordinator.queries.merge import Merged
from coordinator.queries.results import Result, ordered
from loadtest.harness.memory_source import MemorySource, label_set
from shared.errors import DeadlineExceeded, NotExecutable, OverBudget
from shared.histograms import references
from shared.labels import LabelFrame, Symbols
from shared.messages import exchange
from shared.promql.engine.context import EvalContext
from shared.promql.model import STALE_NAN_BITS, Grid, Matrix, RangeVector, Samples
from shared.promql.rendering import series as rendering
from shared.promql.rendering.series import SeriesWriter
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import NativeHistogram
from tests.sharded import evaluate_sharded, split
from worker.queries import evaluation

STALE = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]
T = 1_700_000_000_000
HISTOGRAM = NativeHistogram(schema=0, positive={1: 3.0, 4: 1.0}, count=4.0, sum=7.5)
GRID = Grid(T, T + 300_000, 15_000)
INSTANT = Grid(T + 60_000, T + 60_000)

VALUES = [
    [0.0, -0.0, 1.0, -1.0],
    [math.nan, math.inf, -math.inf, 2.5],
    [1e20, 1e21, -1.25e22, 1e-6],
    [1e-7, 5e-324, 1.7976931348623157e308, 9007199254740993.0],
    [1.0, STALE, STALE, 4.0],
    [0.1, 1 / 3, 123456789.125, 2.0**63],
]
LABELS = [
    {"__name__": "m", "job": "a"},
    {"__name__": "m", "job": 'a"b', "x": "1"},
    {"__name__": "m", "job": "a\\b"},
    {"__name__": "m", "job": "a\nb\tc\rd\be\ff\x01\x1f"},
    {"__name__": "m", "job": "é漢🙂"},
    {"__name__": "m", "job": "a b!"},
    {"__name__": "m"},
    {"__name__": "m", "z.ü": "1"},
    {"__name__": "m", "job": "a", "zone": ""},
]


def placed(parts: Sequence[Mapping[str, Sequence[float]] | Sequence[tuple[dict[str, str], Sequence[float]]]]):
    """One source a worker of (labels, values 15 s apart)."""
    return [
        MemorySource({label_set(labels): (T + 15_000 * np.arange(len(v)), np.array(v)) for labels, v in part})
        for part in parts
    ]


def rows(count: int, first: int = 0) -> list[tuple[dict[str, str], list[float]]]:
    return [
        ({"__name__": "m", "pod": f"p{i * 7919 % 10007:05d}", "i": str(i)}, [i + 0.5, math.nan, 3.0 * i, i / 7])
        for i in range(first, first + count)
    ]


ODD = [({**labels, "n": str(n)} if n % 2 else labels, VALUES[n % len(VALUES)]) for n, labels in enumerate(LABELS[:7])]
ODD += [({**LABELS[7], "v": str(n)}, values) for n, values in enumerate(VALUES)]


def text(merged: Merged, grid: Grid, is_range: bool) -> bytes:
    value = merged.value if isinstance(merged.value, Joined) else ordered(merged.value)
    return b"".join(Result(value, grid, is_range).chunks())


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker renders, a few samples at a time."""
    monkeypatch.setattr(evaluation, "TEXT_WEIGHT_MIN", 0)
    _few_at_a_time(monkeypatch)


def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = SeriesWriter.spans
    monkeypatch.setattr(SeriesWriter, "spans", lambda self: spans(self, 50))


def both(query: str, sources: Sequence[MemorySource], grid: Grid) -> tuple[bytes, bytes, bool]:
    """(the answer made of arrays, made of text, whether any worker sent text)."""
    is_range = not grid.instant
    form = "matrix" if is_range or query.endswith("]") else "vector"
    arrays = evaluate_sharded(query, sources, grid)
    rendered = evaluate_sharded(query, sources, grid, form=form)
    assert not isinstance(arrays.value, Joined)
    assert rendered.samples_read == arrays.samples_read
    assert rendered.samples_peak == arrays.samples_peak
    assert rendered.annotations == arrays.annotations
    sent = isinstance(rendered.value, Joined)
    if sent:
        assert Result(rendered.value, grid, is_range).type == Result(arrays.value, grid, is_range).type
    return text(arrays, grid, is_range), text(rendered, grid, is_range), sent


QUERIES = ["m", "m * 2", "-m", "abs(m)", "rate(m[1m])", "m > 1", "1 / m", "m @ 1700000015", "last_over_time(m[1m])"]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_range_answers_are_the_same_bytes(always: None, query: str, workers: int) -> None:
    sources = placed([ODD[n::workers] + rows(20, 20 * n) for n in range(workers)])
    arrays, rendered, sent = both(query, sources, GRID)
    assert sent and rendered == arrays
    assert len(json.loads(rendered)) > 10


@pytest.mark.parametrize("query", [*QUERIES, "m[45s]", "m[1m:7s]", "abs(m)[1m:7s]"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_instant_answers_are_the_same_bytes(always: None, query: str, workers: int) -> None:
    sources = placed([ODD[n::workers] + rows(20, 20 * n) for n in range(workers)])
    arrays, rendered, sent = both(query, sources, INSTANT)
    assert sent and rendered == arrays
    assert len(json.loads(rendered)) > 10


def test_an_empty_answer_is_an_empty_array(always: None) -> None:
    for grid in (GRID, INSTANT):
        for parts in ([[]], [[], []], [rows(3), []]):
            query = "m > 1e300" if parts[0] else "m"
            assert both(query, placed(parts), grid)[:2] == (b"[]", b"[]")


def test_a_series_without_labels_comes_first(always: None) -> None:
    sources = placed([rows(3), [({"__name__": "m"}, [1.0, 2.0, 3.0, 4.0])]])
    arrays, rendered, _ = both("m * 1", sources, GRID)
    assert rendered == arrays
    assert rendered.startswith(b'[{"metric":{},"values":[[1700000000,"1"]')


def test_series_come_in_order_however_they_are_spread(always: None) -> None:
    series = {label_set(labels): ([T], [1.0]) for labels, _ in rows(500) + ODD}
    for workers in (2, 3, 7):
        arrays, rendered, _ = both("m", split(series, workers), INSTANT)
        assert rendered == arrays
        shown = [tuple(sorted(one["metric"].items())) for one in json.loads(rendered)]
        assert shown == sorted(series)


@pytest.mark.parametrize("sizes", [(1, 40), (40, 1), (0, 40), (40, 0), (1, 40, 2, 60)])
@pytest.mark.parametrize("grid", [GRID, INSTANT])
def test_a_worker_that_sent_arrays_is_joined_with_one_that_sent_text(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], grid: Grid
) -> None:
    monkeypatch.setattr(evaluation, "TEXT_WEIGHT_MIN", 20 * (evaluation.SERIES_WEIGHT + grid.steps))
    _few_at_a_time(monkeypatch)
    sources = placed([rows(size, 1000 * n) for n, size in enumerate(sizes)])
    for query in ("m", "m * 2"):
        arrays, rendered, sent = both(query, sources, grid)
        assert sent and rendered == arrays


def test_small_and_very_large_values_are_sent_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not both("m", placed([rows(3)]), GRID)[2]
    assert both("m", placed([rows(100)]), GRID)[2]
    monkeypatch.setattr(evaluation, "TEXT_BYTES_MAX", 100 * GRID.steps * rendering.SAMPLE_BYTES_MAX)
    arrays, rendered, sent = both("m", placed([rows(100)]), GRID)  # room for the numbers, but not for the labels
    assert not sent and rendered == arrays
    monkeypatch.setattr(evaluation, "TEXT_BYTES_MAX", 99 * GRID.steps * rendering.SAMPLE_BYTES_MAX)
    assert not both("m", placed([rows(100)]), GRID)[2]


@pytest.mark.parametrize("series", [0, 1, 3, 40])
@pytest.mark.parametrize("grid", [GRID, INSTANT])
@pytest.mark.parametrize("query", [*QUERIES, "m[1m]"])
def test_the_only_worker_that_is_asked_renders_small_values_too(query: str, grid: Grid, series: int) -> None:
    if query.endswith("]") and not grid.instant:
        return
    source, is_range = placed([rows(series)]), not grid.instant
    form = "matrix" if is_range or query.endswith("]") else "vector"
    arrays = evaluate_sharded(query, source, grid)
    rendered = evaluate_sharded(query, source, grid, form=form, is_alone=True)
    assert isinstance(rendered.value, Joined)
    assert text(rendered, grid, is_range) == text(arrays, grid, is_range)
    assert Result(rendered.value, grid, is_range).type == Result(arrays.value, grid, is_range).type
    assert rendered.samples_read == arrays.samples_read
    assert rendered.annotations == arrays.annotations
    assert not isinstance(evaluate_sharded(query, source, grid, is_alone=True).value, Joined)


def test_few_histograms_are_rendered_where_their_numbers_are_counted() -> None:
    histogram = references.references(np.zeros(1, dtype=np.int64))
    source = MemorySource({label_set({"__name__": "m"}): (np.array([T]), histogram)}, batch_of([HISTOGRAM]))
    merged = evaluate_sharded("m", [source], GRID, form="matrix", is_alone=True)
    assert not isinstance(merged.value, Joined)
    with pytest.raises(OverBudget, match="buckets of histograms as often as they are shown"):
        evaluate_sharded("m", [source], GRID, form="matrix", is_alone=True, samples_max=GRID.steps + 10)


@pytest.mark.parametrize("query", ["sum(m)", "sum by (pod) (m)", "m + m", "label_replace(m, 'a', 'b', '', '')", "1"])
def test_what_the_coordinator_has_to_compute_is_not_rendered_elsewhere(always: None, query: str) -> None:
    arrays, rendered, sent = both(query, placed([rows(5), rows(5, 5)]), GRID) if query != "1" else (b"", b"", False)
    assert not sent and rendered == arrays


def named(name: str, values: list[float], start: int = 0) -> tuple[dict[str, str], list[float]]:
    return {"__name__": name, "i": "1"}, [STALE] * start + values


def test_series_that_became_equal_in_two_workers_are_refused(always: None) -> None:
    for parts in ([[named("a", [1.0]), named("b", [1.0])]], [[named("a", [1.0])], [named("b", [1.0])]]):
        with pytest.raises(NotExecutable, match="vector cannot contain metrics with the same labelset"):
            evaluate_sharded('{__name__=~"a|b"} * 1', placed(parts), GRID, form="matrix")


def test_series_that_became_equal_at_different_times_are_one(always: None) -> None:
    early = {label_set({"__name__": "a", "i": "1"}): (T + np.array([0, 15_000]), np.array([1.0, STALE]))}
    late = {label_set({"__name__": "b", "i": "1"}): (T + np.array([60_000]), np.array([2.0]))}
    sources = [MemorySource(early), MemorySource(late)]
    merged = evaluate_sharded('{__name__=~"a|b"} * 1', sources, GRID, form="matrix")
    (series,) = json.loads(text(merged, GRID, True))
    assert series["metric"] == {"i": "1"}
    assert series["values"][:2] == [[T // 1000, "1"], [T // 1000 + 60, "2"]]


def test_rendering_stops_when_nobody_waits(always: None) -> None:
    value = Matrix(
        LabelFrame.of([{"i": str(i)} for i in range(100)], Symbols()),
        np.ones((100, GRID.steps)),
        np.ones((100, GRID.steps), dtype=bool),
        np.zeros(100, dtype=bool),
    )
    late = EvalContext(None, Symbols(), GRID, deadline=time.monotonic() - 1)
    with pytest.raises(DeadlineExceeded):
        evaluation._rendered(value, "matrix", GRID, late)


def test_text_comes_back_over_the_wire(always: None) -> None:
    samples = Samples(np.array([0, 2, 3]), np.array([1, 2001, 5000]), np.array([1.0, 2.0, 0.25]))
    labels = LabelFrame.of([{"a": "2"}, {"a": "1"}], Symbols())
    writer = SeriesWriter(RangeVector(labels, samples, np.zeros(2, bool)), np.array([1, 0]), INSTANT, instant=False)
    value = exchange.Rendered([writer.write(0, 1), writer.write(1, 2)], 7)
    shape, frames = exchange.encode(value)
    back = exchange.decode(shape, [bytes(frame) for frame in frames], Symbols())
    assert isinstance(back, exchange.Rendered)
    assert (back.cells, exchange.cells(back)) == (7, 7)
    assert [own.data.tobytes() for own in back.texts] == [
        b',{"metric":{"a":"1"},"values":[[5,"0.25"]]}',
        b',{"metric":{"a":"2"},"values":[[0.001,"1"],[2.001,"2"]]}',
    ]
    assert [own.data[: own.label_ends[0]].tobytes() for own in back.texts] == [
        b',{"metric":{"a":"1"',
        b',{"metric":{"a":"2"',
    ]


texts = st.text(
    st.characters(codec="utf-8") | st.sampled_from('"\\\b\f\n\r\t\x00\x01\x1f !,}{:/u0123abcdef'),
    min_size=1,
    max_size=6,
)
names = st.sampled_from(["a", "ab", "a.b", 'a"', "a\\", "b", "é"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.dictionaries(names, texts, max_size=3), min_size=1, max_size=12), st.data())
def test_label_texts_merge_into_the_order_of_label_sets(sets: list[dict[str, str]], data: st.DataObject) -> None:
    different = sorted({label_set(one) for one in sets})
    owners = data.draw(st.lists(st.integers(0, 3), min_size=len(different), max_size=len(different)))
    placed = [labels for owner in range(4) for labels, own in zip(different, owners, strict=True) if own == owner]
    frame = LabelFrame.of([dict(labels) for labels in placed], Symbols())
    none = Matrix(frame, np.zeros((len(placed), 0)), np.zeros((len(placed), 0), bool), np.zeros(len(placed), bool))
    heads = SeriesWriter(none, np.arange(len(placed)), GRID, instant=False).heads()
    keys = [heads.data[a:b] for a, b in zip(heads.starts(), heads.label_ends, strict=True)]
    offsets = np.cumsum([0, *map(len, keys)])
    bounds = np.cumsum([0, *(owners.count(owner) for owner in range(4))])
    runs = [np.arange(a, b) for a, b in pairwise(bounds.tolist())]
    order = label_order.merged(np.concatenate(keys), offsets, runs)
    assert order is not None
    assert [placed[i] for i in order] == different
    again = np.concatenate([np.concatenate(keys), keys[0]])
    runs = [*runs, np.array([len(keys)])]
    assert label_order.merged(again, np.append(offsets, len(again)), runs) is None
