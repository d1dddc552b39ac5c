"""Series with histograms as JSON: the arrays' renderer writes what the plain one does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.queries.results import Result
from shared.histograms import references
from shared.histograms.batch import concatenated
from shared.histograms.text import answer_number, answer_object
from shared.labels import LabelFrame, Symbols
from shared.promql.model import Grid, Matrix, RangeVector, Samples
from shared.promql.rendering import series as rendering
from shared.promql.rendering.series import SeriesWriter
from tests.conformance.histogram_notation import parse_histogram
from tests.histogram_batches import batch_of
from tests.histogram_strategies import custom, exponential, histograms
from tests.oracle_native_histograms import NativeHistogram

EXAMPLES = settings(max_examples=60, deadline=None)
GRID = Grid(1_700_000_000_125, 1_700_000_000_125 + 4 * 15_000, 15_000)
INSTANT = Grid(1_700_000_000_000, 1_700_000_000_000)
extreme = [1e300, 5e-324, 1e21, 9007199254740993.0, 1 / 3, 2.0**63, np.inf]
any_histogram = st.one_of(histograms, exponential(extreme, reach=1_000), custom(extreme))
batches = st.lists(any_histogram, min_size=1, max_size=6)


def labels(count: int) -> LabelFrame:
    return LabelFrame.of([{"__name__": "h", "i": str(i)} for i in range(count)], Symbols())


def mixed(seed: int, shape: tuple[int, ...], rows: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = references.references(rng.integers(0, rows, shape))
    return np.where(rng.random(shape) < 0.3, rng.normal(size=shape), values)


def text_of(value: Matrix | RangeVector, grid: Grid, *, is_range: bool) -> str:
    return b"".join(Result(value, grid, is_range).chunks()).decode()


def by_the_book(value: RangeVector) -> str:
    """What `text_of` has to write, one sample after another."""
    samples, batch = value.samples, value.samples.histograms
    assert batch is not None
    shown: list[dict[str, Any]] = []
    for i in range(value.labels.size):
        floats, objects = [], []
        for at in range(samples.offsets[i], samples.offsets[i + 1]):
            time = samples.timestamps_ms[at] / 1000
            time = int(time) if time == int(time) else time
            one = samples.values[at : at + 1]
            if references.is_reference(one)[0]:
                objects.append([time, answer_object(batch, int(references.rows_of(one)[0]))])
            else:
                floats.append([time, answer_number(float(one[0]))])
        lists = {name: points for name, points in (("values", floats), ("histograms", objects)) if points}
        shown.append({"metric": dict(value.labels.labels(i)), **lists})
    return json.dumps(shown, separators=(",", ":"))


def as_range_vector(matrix: Matrix) -> RangeVector:
    times = np.tile(GRID.times_ms(), (matrix.labels.size, 1))[matrix.present]
    offsets = np.concatenate(([0], np.cumsum(matrix.present.sum(axis=1))))
    samples = Samples(offsets, times, matrix.values[matrix.present], histograms=matrix.histograms)
    return RangeVector(matrix.labels, samples, matrix.drop_name)


@EXAMPLES
@given(batches, st.integers(0, 2**32 - 1))
def test_series_are_written_as_by_the_book(one: list[NativeHistogram], seed: int) -> None:
    present = np.random.default_rng(seed + 1).random((4, GRID.steps)) < 0.8
    present[:, 2] = True
    batch = concatenated([batch_of(one), batch_of(one[:1])])  # with a layout that occurs twice
    matrix = Matrix(labels(4), mixed(seed, present.shape, len(batch)), present, np.zeros(4, bool), batch)
    value = as_range_vector(matrix)
    expected = by_the_book(value)
    assert text_of(value, INSTANT, is_range=False) == expected
    assert text_of(matrix, GRID, is_range=True) == expected


@EXAMPLES
@given(batches, st.integers(0, 2**32 - 1))
def test_an_instant_vector_has_a_value_or_a_histogram(one: list[NativeHistogram], seed: int) -> None:
    values = mixed(seed, (5, 1), len(one))
    matrix = Matrix(labels(5), values, np.ones((5, 1), bool), np.zeros(5, bool), batch_of(one))
    samples = Samples(np.arange(6), np.full(5, INSTANT.start_ms), values.reshape(-1), histograms=batch_of(one))
    book = json.loads(by_the_book(RangeVector(matrix.labels, samples, matrix.drop_name)))
    for series in book:
        for many, single in (("values", "value"), ("histograms", "histogram")):
            if many in series:
                (series[single],) = series.pop(many)
    assert text_of(matrix, INSTANT, is_range=False) == json.dumps(book, separators=(",", ":"))


def test_the_example_of_the_specification() -> None:
    histogram = parse_histogram(
        "schema:0 count:60 sum:33.4 z_bucket:10 z_bucket_w:0.001 offset:1 buckets:[5 0 20.5] n_offset:-1 n_buckets:[9]"
    )
    value = Matrix(
        labels(1), references.references(np.array([[0]])), np.ones((1, 1), bool), np.zeros(1, bool),
        batch_of([histogram]),
    )  # fmt: skip
    assert text_of(value, INSTANT, is_range=False) == (
        '[{"metric":{"__name__":"h","i":"0"},"histogram":[1700000000,{"count":"60","sum":"33.4","buckets":'
        '[[1,"-0.5","-0.25","9"],[3,"-0.001","0.001","10"],[0,"1","2","5"],[0,"4","8","20.5"]]}]}]'
    )


@EXAMPLES
@given(batches, st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_long_series_in_parts_are_the_same_bytes(one: list[NativeHistogram], seed: int, numbers: int) -> None:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 30, 6))))
    batch = batch_of(one)
    samples = Samples(offsets, np.arange(offsets[-1]), mixed(seed, (offsets[-1],), len(one)), histograms=batch)
    value = RangeVector(labels(6), samples, np.zeros(6, bool))
    whole = SeriesWriter(value, np.arange(6)[::-1].copy(), INSTANT, instant=False)
    expected = b"".join(text.data.tobytes() for text in whole.texts())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendering, "SERIES_BYTES_MAX", int(np.median(whole._bytes_max)))
        patch.setattr(rendering, "TEXT_SAMPLES", numbers)
        spans = SeriesWriter.spans
        patch.setattr(SeriesWriter, "spans", lambda self: spans(self, 2 * numbers))
        pieces = [piece.tobytes() for piece in whole.pieces()]
    assert b"".join(pieces) == expected


def test_a_histogram_shown_many_times_is_not_written_at_once() -> None:
    wide = NativeHistogram(schema=8, positive={i: 1.0 + i for i in range(2_000)}, count=1e6, sum=2.0)
    steps = 3_000
    values = np.full((1, steps), references.references(np.array([0]))[0])
    value = Matrix(labels(1), values, np.ones((1, steps), bool), np.zeros(1, bool), batch_of([wide]))
    writer = SeriesWriter(value, np.zeros(1, np.int64), Grid(0, 1000 * (steps - 1), 1000), instant=False)
    assert writer.has_long_series and writer.numbers == steps * (2_001 + 1)  # the zero bucket is one
    first = next(writer.pieces())
    assert len(first) < 8 << 20 < writer.bytes_max / 10


def test_lengths_are_never_more_than_was_announced() -> None:
    tiny = -np.nextafter(np.float64(2.0**-1022), 1)
    rows = [
        NativeHistogram(
            schema=8,
            positive=dict.fromkeys(range(-255_000, -254_900), 1.2345678901234568e-300),
            negative=dict.fromkeys(range(-255_000, -254_900), 1.2345678901234568e-300),
            zero_threshold=-tiny,
            zero_count=1.2345678901234567e-300,
            count=1.2345678901234567e-300,
            sum=-1.2345678901234567e-300,
        )
    ] * 3
    samples = Samples(
        np.array([0, 3]), -(2**53) - np.arange(3), references.references(np.arange(3)), histograms=batch_of(rows)
    )
    writer = SeriesWriter(RangeVector(labels(1), samples, np.zeros(1, bool)), np.zeros(1, int), INSTANT, instant=False)
    (text,) = writer.texts()
    assert 0.88 * writer.bytes_max < len(text.data) <= writer.bytes_max
