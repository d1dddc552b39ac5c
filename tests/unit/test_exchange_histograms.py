"""Values that are histograms survive the wire between workers and the coordinator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.queries.fetched import Fetched
from coordinator.queries.results import take
from shared.histograms import references
from shared.histograms.batch import HistogramBatch
from shared.labels import LabelFrame, Symbols
from shared.messages import exchange
from shared.promql.ast import Matcher
from shared.promql.engine.partial import Partial
from shared.promql.model import Float, Matrix, RangeVector, Samples
from tests.histogram_batches import batch_of, histograms_of
from tests.histogram_strategies import histograms
from tests.oracle_native_histograms import NativeHistogram

EXAMPLES = settings(max_examples=40, deadline=None)
ONE = NativeHistogram(schema=0, positive={1: 3.0, 4: 1.0}, count=4.0, sum=7.5)
batches = st.lists(histograms, min_size=1, max_size=5)


def sent(value: exchange.Shipped, symbols: Symbols | None = None) -> exchange.Shipped:
    shape, frames = exchange.encode(value)
    return exchange.decode(shape, [bytes(frame) for frame in frames], symbols or Symbols())


def meanings(values: Float, batch: HistogramBatch | None) -> list[str]:
    """Each value as the text of its number or of its histogram."""
    rows = [] if batch is None else [repr(histogram) for histogram in histograms_of(batch)]
    flat = values.reshape(-1)
    is_histogram = references.is_reference(flat)
    return [
        rows[references.rows_of(flat[i : i + 1])[0]] if is_histogram[i] else float(flat[i]).hex()
        for i in range(len(flat))
    ]


def labels(count: int) -> LabelFrame:
    return LabelFrame.of([{"i": str(i)} for i in range(count)], Symbols())


def mixed(rng: np.random.Generator, shape: tuple[int, ...], rows: int) -> Float:
    """Floats, and references of which some may occur twice and some not at all."""
    values = rng.normal(size=shape)
    return np.where(rng.random(shape) < 0.5, references.references(rng.integers(0, rows, shape)), values)


def matrix(rng: np.random.Generator, one: list[NativeHistogram], series: int = 3, steps: int = 4) -> Matrix:
    present = rng.random((series, steps)) < 0.7
    values = mixed(rng, present.shape, len(one))
    values[~present] = references.references(np.array([len(one) + 7]))[0]  # what is not present may be anything
    return Matrix(labels(series), values, present, np.zeros(series, bool), batch_of(one))


def range_vector(rng: np.random.Generator, one: list[NativeHistogram]) -> RangeVector:
    values = mixed(rng, (5,), len(one))
    samples = Samples(np.array([0, 2, 2, 5]), np.arange(5), values, np.arange(5) - 3, batch_of(one))
    return RangeVector(labels(3), samples, np.zeros(3, bool))


@EXAMPLES
@given(batches, st.integers(0, 2**32 - 1))
def test_a_matrix_comes_back_with_the_histograms_that_are_present(one: list[NativeHistogram], seed: int) -> None:
    value = matrix(np.random.default_rng(seed), one)
    back = sent(value)
    assert isinstance(back, Matrix)
    assert meanings(back.values[back.present], back.histograms) == meanings(
        value.values[value.present], value.histograms
    )
    used = np.unique(references.rows_of(value.values[value.present & references.is_reference(value.values)]))
    assert (0 if back.histograms is None else len(back.histograms)) == len(used)
    assert not (references.is_reference(back.values) & ~back.present).any()


@EXAMPLES
@given(batches, st.integers(0, 2**32 - 1))
def test_a_range_vector_comes_back_with_its_histograms_and_starts(one: list[NativeHistogram], seed: int) -> None:
    value = range_vector(np.random.default_rng(seed), one)
    back = sent(value)
    assert isinstance(back, RangeVector)
    assert meanings(back.samples.values, back.samples.histograms) == meanings(
        value.samples.values, value.samples.histograms
    )
    assert back.samples.start_timestamps_ms is not None
    assert back.samples.start_timestamps_ms.tolist() == [-3, -2, -1, 0, 1]


@EXAMPLES
@given(batches, st.integers(0, 2**32 - 1))
def test_a_partial_comes_back_with_the_histograms_of_all_planes(one: list[NativeHistogram], seed: int) -> None:
    rng = np.random.default_rng(seed)
    present = rng.random((2, 3)) < 0.7
    planes = {name: mixed(rng, present.shape, len(one)) for name in ("histogram", "compensation")}
    planes["count"] = np.where(present, 2.0, -np.inf)
    value = Partial(labels(2), planes, present, np.zeros(2, bool), batch_of(one))
    hashes = np.arange(2, dtype=np.uint64)
    shape, frames = exchange.with_hashes(*exchange.encode(value), hashes)
    back = exchange.decode(shape, [bytes(frame) for frame in frames], Symbols())
    assert isinstance(back, Partial)
    assert exchange.hashes_of(shape, frames).tolist() == [0, 1]
    for name in planes:
        assert meanings(back.planes[name][present], back.histograms) == meanings(planes[name][present], batch_of(one))
    assert (back.planes["count"] == planes["count"]).all()  # neutral elements too


@EXAMPLES
@given(st.lists(batches, min_size=1, max_size=3), st.integers(0, 2**32 - 1), st.booleans())
def test_answers_of_workers_are_joined_with_their_histograms(
    parts: list[list[NativeHistogram]], seed: int, has_floats: bool
) -> None:
    rng = np.random.default_rng(seed)
    symbols = Symbols()
    for make in (matrix, range_vector):
        values = [sent(make(rng, one), symbols) for one in parts]
        if has_floats:
            values.insert(1, sent(take(make(rng, [ONE]), np.zeros(0, np.int64)), symbols))
        joined = exchange.joined([v for v in values if isinstance(v, Matrix | RangeVector)])
        got = joined.samples.values if isinstance(joined, RangeVector) else joined.values[joined.present]
        batch = joined.samples.histograms if isinstance(joined, RangeVector) else joined.histograms
        wanted = []
        for value in values:
            if isinstance(value, RangeVector):
                wanted += meanings(value.samples.values, value.samples.histograms)
            elif isinstance(value, Matrix):
                wanted += meanings(value.values[value.present], value.histograms)
        assert meanings(got, batch) == wanted


def test_where_nothing_is_a_histogram_no_frame_is_sent_for_them() -> None:
    present = np.array([[True, False]])
    values = np.array([[1.0, references.references(np.array([0]))[0]]])
    floats = Matrix(labels(1), np.ones((1, 2)), present, np.zeros(1, bool))
    without = Matrix(labels(1), values, present, np.zeros(1, bool), batch_of([ONE]))
    assert exchange.encode(without)[0] == exchange.encode(floats)[0]
    back = sent(without)
    assert isinstance(back, Matrix) and back.histograms is None


def test_the_counts_of_histograms_are_numbers_of_a_value() -> None:
    batch = batch_of([ONE, ONE])
    values = references.references(np.array([[0, 0], [0, 0]]))
    value = Matrix(labels(2), values, np.ones((2, 2), bool), np.zeros(2, bool), batch)
    assert exchange.cells(value) == 4 + len(batch.columns.counts)
    back = sent(value)  # one of the two is used
    assert exchange.cells(back) == exchange.cells(exchange.without_unused(value)) == 4 + len(batch.columns.counts) / 2


def test_a_reference_to_a_histogram_that_was_not_sent_is_refused() -> None:
    values = references.references(np.array([[0, 0]]))
    shape, frames = exchange.encode(
        Matrix(labels(1), values, np.ones((1, 2), bool), np.zeros(1, bool), batch_of([ONE]))
    )
    frames[2] = references.references(np.array([0, 1])).tobytes()
    with pytest.raises(AssertionError, match="refers to a histogram"):
        exchange.decode(shape, [bytes(frame) for frame in frames], Symbols())


def test_fetched_samples_and_series_in_answer_order_keep_their_histograms() -> None:
    value = range_vector(np.random.default_rng(1), [ONE])
    fetched = Fetched()
    matchers = (Matcher("i", "=~", ".*"),)
    fetched.add(matchers, 0, 10, value)
    read = fetched.select(matchers, 1, 10, value.labels.symbols).read(0, 3)
    assert meanings(read.values, read.histograms) == meanings(value.samples.values[1:], value.samples.histograms)
    turned = take(value, np.array([2, 0]))
    assert isinstance(turned, RangeVector)
    assert meanings(turned.samples.values, turned.samples.histograms) == meanings(
        value.samples.values[[2, 3, 4, 0, 1]], value.samples.histograms
    )
