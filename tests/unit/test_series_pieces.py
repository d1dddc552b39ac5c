"""Pieces with histograms and start times: joined, clipped and partly deleted as a dictionary of samples would be."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.histograms.interning import with_distinct_layouts
from shared.histograms.references import is_reference, references, rows_of
from shared.promql.model import STALE_NAN_BITS, Samples
from tests.histogram_batches import batch_of, histograms_of
from tests.histogram_strategies import histograms
from tests.oracle_native_histograms import NativeHistogram
from worker.series.pieces import Piece, between, in_order, join

EXAMPLES = settings(max_examples=50, deadline=None)
STALE = float(np.array([STALE_NAN_BITS]).view(np.float64)[0])
ROWS = 3


@dataclass(frozen=True)
class Sample:
    row: int
    time_ms: int
    start_ms: int
    value: float | NativeHistogram

    @property
    def text(self) -> str:
        value = self.value
        if isinstance(value, NativeHistogram):
            value = replace(value, positive=_sorted(value.positive), negative=_sorted(value.negative))
        return f"{self.time_ms} from {self.start_ms}: {value!r}"


def _sorted(counts: dict[int, float]) -> dict[int, float]:
    return dict(sorted(counts.items()))


samples = st.builds(
    Sample,
    row=st.integers(0, ROWS - 1),
    time_ms=st.integers(0, 9),
    start_ms=st.integers(0, 3),
    value=st.one_of(st.sampled_from([0.0, 1.5, STALE]), histograms),
)
layers = st.lists(st.lists(samples, max_size=7, unique_by=lambda sample: (sample.row, sample.time_ms)), max_size=4)


def piece_of(layer: list[Sample]) -> Piece:
    """A piece of these samples with a histogram and a sample before its first run, to which nothing refers."""
    layer = sorted(layer, key=lambda sample: (sample.row, sample.time_ms))
    kept = [sample.value for sample in layer if isinstance(sample.value, NativeHistogram)]
    numbers = iter(references(np.arange(len(kept)) + 1))
    values = np.array([next(numbers) if isinstance(s.value, NativeHistogram) else s.value for s in layer], float)
    counts = np.bincount([sample.row for sample in layer], minlength=ROWS)
    ends = np.cumsum(counts) + 1
    start_times = np.array([0, *(sample.start_ms for sample in layer)])
    return Piece(
        np.array([-1, *(sample.time_ms for sample in layer)]),
        np.concatenate((references(np.zeros(1)), values)),
        np.arange(ROWS),
        ends - counts,
        ends,
        start_times if start_times.any() else None,
        batch_of([NativeHistogram(schema=0, count=9.0), *kept]) if kept else None,
    )


def texts(found: Samples) -> list[list[str]]:
    return [
        [
            Sample(row, int(found.timestamps_ms[i]), start_ms_of(found, i), value_of(found, i)).text
            for i in range(found.offsets[row], found.offsets[row + 1])
        ]
        for row in range(len(found.offsets) - 1)
    ]


def start_ms_of(found: Samples, at: int) -> int:
    return 0 if found.start_timestamps_ms is None else int(found.start_timestamps_ms[at])


def value_of(found: Samples, at: int) -> float | NativeHistogram:
    value = found.values[at : at + 1]
    if not is_reference(value)[0]:
        return float(value[0])
    assert found.histograms is not None
    row = int(rows_of(value)[0])
    return histograms_of(found.histograms.take(np.array([row])))[0]


def expected(layers: list[list[Sample]], first_ms: int = 0, last_ms: int = 9) -> list[list[str]]:
    latest = {(sample.row, sample.time_ms): sample for layer in layers for sample in layer}
    kept = [sample for _, sample in sorted(latest.items()) if first_ms <= sample.time_ms <= last_ms]
    return [[sample.text for sample in kept if sample.row == row] for row in range(ROWS)]


@EXAMPLES
@given(layers)
def test_joined_pieces_have_the_samples_of_the_last_piece_and_only_their_histograms(layers: list[list[Sample]]) -> None:
    found = join([piece_of(layer) for layer in layers], ROWS)
    assert texts(found) == expected(layers)
    if found.histograms is None:
        assert not is_reference(found.values).any()
    else:
        used = np.sort(rows_of(found.values[is_reference(found.values)]))
        assert used.tolist() == list(range(len(found.histograms)))


@EXAMPLES
@given(layers, st.integers(0, 9), st.integers(0, 9))
def test_clipped_pieces_keep_histograms_and_start_times(layers: list[list[Sample]], first: int, last: int) -> None:
    found = join([piece_of(layer).clipped(first, last) for layer in layers], ROWS)
    assert texts(found) == expected(layers, first, last)


@EXAMPLES
@given(layers, st.integers(0, 9), st.integers(0, 9))
def test_what_is_not_deleted_keeps_histograms_and_start_times(
    layers: list[list[Sample]], first: int, last: int
) -> None:
    deleted = np.array([True, False, True])
    found = join([piece_of(layer).without(deleted, first, last) for layer in layers], ROWS)
    left = [[s for s in layer if not (deleted[s.row] and first <= s.time_ms <= last)] for layer in layers]
    assert texts(found) == expected(left)


@EXAMPLES
@given(st.lists(samples, max_size=20))
def test_samples_in_order_of_arrival_are_sorted_with_their_start_times(arrived: list[Sample]) -> None:
    by_row = sorted(arrived, key=lambda sample: sample.row)
    kept = [sample.value for sample in by_row if isinstance(sample.value, NativeHistogram)]
    numbers = iter(references(np.arange(len(kept))))
    values = [next(numbers) if isinstance(s.value, NativeHistogram) else s.value for s in by_row]
    found = in_order(
        Samples(
            np.searchsorted([sample.row for sample in by_row], np.arange(ROWS + 1)),
            np.array([sample.time_ms for sample in by_row], np.int64),
            np.array(values, float),
            np.array([sample.start_ms for sample in by_row], np.int64),
            batch_of(kept) if kept else None,
        ),
        np.ones(ROWS, bool),
    )
    assert texts(found) == expected([[sample] for sample in arrived])


def test_of_the_histograms_of_two_pieces_equal_layouts_become_one() -> None:
    histogram = NativeHistogram(schema=0, positive={1: 2.0}, count=2.0, sum=1.0)
    layers = [[Sample(0, time, 0, histogram)] for time in (1, 2)]
    found = join([piece_of(layer) for layer in layers], ROWS).histograms
    assert found is not None
    assert len(found) == 2
    assert len(found.layouts) == 1


def test_what_is_read_of_one_series_does_not_have_the_layouts_of_others() -> None:
    layer = [Sample(0, at, 0, NativeHistogram(schema=0, positive={at: 1.0}, count=1.0)) for at in range(9)]
    found = join([piece_of(layer).clipped(3, 4)], ROWS).histograms
    assert found is not None
    assert len(found.layouts) == len(found) == 2


@EXAMPLES
@given(st.lists(histograms, max_size=12))
def test_distinct_layouts_mean_what_the_old_ones_meant(kept: list[NativeHistogram]) -> None:
    batch = batch_of(kept)
    found = with_distinct_layouts(batch)
    assert repr(histograms_of(found)) == repr(histograms_of(batch))
    assert len(found.layouts) == len(np.unique(batch.columns.layout))


def test_pieces_without_histograms_and_start_times_join_to_samples_without() -> None:
    found = join([piece_of([Sample(0, 1, 0, 1.0)]), piece_of([Sample(0, 2, 0, 2.0)])], ROWS)
    assert found.start_timestamps_ms is None
    assert found.histograms is None


@given(
    series=st.lists(st.lists(st.integers(-20, 20), max_size=12, unique=True).map(sorted), max_size=6),
    start_ms=st.integers(-22, 22),
    span_ms=st.integers(-1, 44),
    has_starts=st.booleans(),
)
def test_between_takes_the_samples_of_a_range_with_all_their_columns(
    series: list[list[int]], start_ms: int, span_ms: int, has_starts: bool
) -> None:
    times = np.array([time for own in series for time in own], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, series)])
    starts = times - 100 if has_starts else None
    found = between(Samples(offsets, times, times * 0.5, starts), start_ms, start_ms + span_ms)
    expected = [[time for time in own if start_ms <= time <= start_ms + span_ms] for own in series]
    assert found.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    expected_times = [time for own in expected for time in own]
    assert found.timestamps_ms.tolist() == expected_times
    assert found.values.tolist() == [time * 0.5 for time in expected_times]
    assert (found.start_timestamps_ms is None) == (not has_starts)
    if found.start_timestamps_ms is not None:
        assert (found.timestamps_ms - found.start_timestamps_ms == 100).all()
