"""Samples that came by number: the record and the columns are those that the general way makes of the same frames."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shared.frames import references as reference_frames
from shared.histograms.packed import PackedHistograms
from tests.histogram_strategies import exponential
from tests.unit.extended_samples import Value, columns_of, texts
from worker.series import journal
from worker.series.arrivals import Arrival, joined, numbered
from worker.series.numbered_samples import NumberedSamples

SERIES = 9
PERMANENT = np.array([3, 4, 7, 100, 101, 5000, 5001, 1 << 20, (1 << 31) - 1], dtype=np.int64)

Run = tuple[int, list[tuple[int, Value]]]


def runs(values: st.SearchStrategy[Value]) -> st.SearchStrategy[list[Run]]:
    samples = st.lists(st.tuples(st.integers(-(1 << 50), 1 << 50), values), min_size=1, max_size=4)
    return st.lists(st.tuples(st.integers(0, SERIES - 1), samples), max_size=6)


floats = runs(st.floats(width=64, allow_nan=False))
mixed = runs(st.one_of(st.floats(width=64, allow_nan=False), exponential()))


def arrival(frame_runs: list[Run], *, has_starts: bool = False) -> Arrival:
    samples = [sample for _, own in frame_runs for sample in own]
    starts = [7] * len(samples) if has_starts else []
    values, histograms = columns_of([value for _, value in samples])
    packed = b"" if histograms is None else b"".join(PackedHistograms.of(histograms).bytes())
    mark = reference_frames.HISTOGRAMS_MARK if packed else reference_frames.MARK
    words = [mark, 5, len(frame_runs), len(samples), len(starts)]
    words += [len(packed) // 8] if packed else []
    words += [number | len(own) << reference_frames.COUNT_SHIFT for number, own in frame_runs]
    words += [time_ms for time_ms, _ in samples]
    columns = (np.array(words, dtype=np.int64), values, np.array(starts, dtype=np.int64))
    parsed = Arrival(reference_frames.parse(b"".join((*(column.tobytes() for column in columns), packed))))
    parsed.series = parsed.columns.series  # type: ignore[union-attr]
    return parsed


@given(st.lists(st.one_of(floats, mixed), min_size=1, max_size=4))
def test_a_record_is_the_one_of_the_general_way(frames: list[list[Run]]) -> None:
    arrivals = [arrival(frame_runs) for frame_runs in frames]
    expected, _ = joined(arrivals)
    columns = numbered(arrivals)
    assert expected is not None and columns is not None
    samples = NumberedSamples.of(columns, PERMANENT)
    np.testing.assert_array_equal(samples.rows(), expected.rows())
    np.testing.assert_array_equal(samples.times_ms, expected.times_ms)
    assert samples.values.tobytes() == expected.values.tobytes()
    assert samples.latest_ms == expected.latest_ms
    assert texts(samples.values, samples.histograms) == texts(expected.values, expected.histograms)
    record = b"".join(map(bytes, journal.encode(samples, 8)))
    assert record == b"".join(map(bytes, journal.encode(expected.of(PERMANENT[expected.series]), 8)))


def test_frames_with_start_timestamps_go_the_general_way() -> None:
    run = [(1, [(5, 1.0)])]
    assert numbered([arrival(run), arrival(run, has_starts=True)]) is None
    assert numbered([arrival(run)]) is not None
