"""A head with histograms and start timestamps, against dictionaries."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.histograms.packed import PackedHistograms
from shared.histograms.packed import joined as joined_frames
from shared.promql.model import Samples
from tests.histogram_batches import histograms_of
from tests.oracle_native_histograms import NativeHistogram
from tests.unit.extended_samples import Value, any_values, columns_of, start_column, starts, text_of, texts
from worker.series.arena import LATE_CHECK
from worker.series.growing_histograms import GrowingHistograms
from worker.series.head import Head

SERIES = 4
Sample = tuple[int, int, Value, int]
ALL = np.arange(SERIES)
ONE = NativeHistogram(schema=1, count=3.0, sum=0.5, positive={0: 1.0, 1: 2.0})

samples = st.tuples(st.integers(0, SERIES - 1), st.integers(0, 30), any_values(), starts())
batches = st.lists(st.lists(samples, max_size=30), max_size=6)


def append(head: Head, batch: list[Sample]) -> None:
    series, times, values, own_starts = zip(*batch, strict=True) if batch else ((), (), (), ())
    columns, histograms = columns_of(values)
    packed = None if histograms is None else PackedHistograms.of(histograms)
    head.append(np.array(series, np.int64), np.array(times, np.int64), columns, start_column(own_starts), packed)


def as_dicts(found: Samples) -> list[dict[int, tuple[str, int]]]:
    shown = texts(found.values, found.histograms)
    own_starts = np.zeros(len(shown), np.int64) if found.start_timestamps_ms is None else found.start_timestamps_ms
    entries = list(zip(found.timestamps_ms.tolist(), shown, own_starts.tolist(), strict=True))
    bounds = itertools.pairwise(found.offsets.tolist())
    return [{time: (text, start) for time, text, start in entries[first:last]} for first, last in bounds]


def written(head: Head) -> list[dict[int, tuple[str, int]]]:
    found = head.read(ALL, 0, 100)
    assert found.start_timestamps_ms is None or found.start_timestamps_ms.any()
    if found.histograms is not None:
        assert len(found.histograms) == sum(
            text[0].startswith("Native") for own in as_dicts(found) for text in own.values()
        )
        assert set(found.histograms.columns.layout.tolist()) == set(range(len(found.histograms.layouts)))
    return as_dicts(found)


@settings(max_examples=150, deadline=None)
@given(
    batches, st.lists(st.integers(0, SERIES - 1), unique=True), st.tuples(*[st.integers(0, 30)] * 2), st.integers(0, 6)
)
def test_head_equals_a_dictionary_that_the_last_write_wins(
    written_batches: list[list[Sample]], deleted: list[int], gone: tuple[int, int], delete_after: int
) -> None:
    head = Head()
    head.extend(SERIES)
    expected: list[dict[int, tuple[str, int]]] = [{} for _ in range(SERIES)]
    for number, batch in enumerate(written_batches):
        append(head, batch)
        for series, time, value, start in batch:
            expected[series][time] = (text_of(value), start)
        if number == delete_after:
            head.delete(np.array(deleted, np.int64), *gone)
            for s in deleted:
                expected[s] = {t: own for t, own in expected[s].items() if not gone[0] <= t <= gone[1]}
    assert written(head) == expected
    assert as_dicts(head.read(ALL[::-1].copy(), 7, 19)) == [
        {t: own for t, own in by_time.items() if 7 <= t <= 19} for by_time in expected[::-1]
    ]


def test_rewriting_a_series_keeps_its_histograms_and_start_timestamps() -> None:
    head = Head()
    head.extend(SERIES)
    for turn in range(2 * LATE_CHECK):
        append(head, [(0, at, ONE, turn + at) for at in (10, 20, 30)])
    last = 2 * LATE_CHECK - 1
    assert written(head)[0] == {at: (text_of(ONE), last + at) for at in (10, 20, 30)}
    assert head.samples < 4 * LATE_CHECK


def test_replaced_histograms_count_until_the_head_is_sealed() -> None:
    head = Head()
    head.extend(SERIES)
    append(head, [(0, 5, ONE, 0)])
    before = head.size_bytes
    for _ in range(1000):
        append(head, [(0, 5, ONE, 0)])
    assert head.samples == 1
    assert head.size_bytes >= before + 1000 * (8 + 16 + len(ONE.positive))
    assert head.read_bytes >= head.size_bytes + 1000 * 7 * len(ONE.positive)


def test_the_first_start_timestamp_comes_after_samples_without_one() -> None:
    head = Head()
    head.extend(SERIES)
    append(head, [(0, at, 1.0, 0) for at in range(3000)])
    assert head.read(ALL, 0, 5000).start_timestamps_ms is None
    size = head.size_bytes
    append(head, [(0, 3000, 1.0, 7)])
    append(head, [(0, at, 1.0, 0) for at in range(3001, 9000)])
    found = head.read(ALL, 0, 9000)
    assert found.start_timestamps_ms is not None
    assert found.start_timestamps_ms.tolist() == [0] * 3000 + [7] + [0] * 5999
    assert head.size_bytes > 1.5 * size
    assert head.read(ALL, 0, 2999).start_timestamps_ms is None


def test_layouts_are_kept_once_while_more_of_them_come() -> None:
    growing = GrowingHistograms()
    first_rows = []
    for turn in range(60):
        own = [
            NativeHistogram(schema=turn % 9 - 4, count=1.0, sum=1.0, positive=dict.fromkeys(range(turn % 20), 1.0)),
            NativeHistogram(
                schema=-53, count=1.0, sum=1.0, positive={0: 1.0}, bounds=tuple(map(float, range(turn % 7)))
            ),
        ]
        histograms = columns_of(own)[1]
        assert histograms is not None
        first_rows.append((growing.append(PackedHistograms.of(histograms)), own))
    taken = growing.so_far().take(np.array([first + i for first, _ in first_rows for i in range(2)]))
    assert list(map(text_of, histograms_of(taken))) == [text_of(h) for _, own in first_rows for h in own]
    distinct = {repr((h.schema, sorted(h.positive), h.bounds)) for _, own in first_rows for h in own}
    assert len(taken.layouts) == len(distinct)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(any_values().filter(lambda value: not isinstance(value, float)), max_size=4), max_size=4))
def test_histograms_of_several_frames_keep_their_rows(groups: list[list[NativeHistogram]]) -> None:
    growing = GrowingHistograms()
    for _ in range(2):
        frames = [PackedHistograms.of(histograms) for own in groups if (histograms := columns_of(own)[1]) is not None]
        if frames:
            growing.append(joined_frames(frames))
    every = [histogram for own in groups for histogram in own] * 2
    order = np.arange(len(every))[::-1].copy()
    taken = growing.so_far().take(order)
    assert list(map(text_of, histograms_of(taken))) == [text_of(histogram) for histogram in every[::-1]]


def test_what_was_copied_stays_while_the_head_grows_and_is_rewritten() -> None:
    head = Head()
    head.extend(SERIES)
    small = NativeHistogram(schema=1, count=3.0, sum=0.5, positive={0: 1.0, 1: 2.0})
    append(head, [(0, 20, small, 0), (0, 10, small, 7), (1, 10, 0.5, 0)])
    expected = as_dicts(head.read(ALL, 0, 100))
    copied = head.copied(ALL, 0, 100)
    wide = NativeHistogram(schema=2, count=1e9, sum=0.5, positive=dict.fromkeys(range(50), 0.25))
    for turn in range(100):
        append(head, [(s, 10 + turn % 11, wide, turn) for s in range(SERIES)] * 10)
    head.delete(ALL, 0, 15)
    assert as_dicts(copied.samples()) == expected


def test_histograms_that_come_are_seldom_copied() -> None:
    growing = GrowingHistograms()
    frame = PackedHistograms.of(columns_of([ONE] * 100)[1])
    places = set()
    while len(growing) < 60_000:
        growing.append(frame)
        places.add(growing.so_far().rows.ctypes.data)
    assert len(places) <= 2
    taken = growing.so_far().take(np.array([0, 16_383, 16_384, 59_999]))
    assert [text_of(h) for h in histograms_of(taken)] == [text_of(ONE)] * 4


def test_narrow_counts_take_a_byte_each_until_they_are_read() -> None:
    growing = GrowingHistograms()
    one = NativeHistogram(schema=1, count=3.0, sum=0.5, positive=dict.fromkeys(range(39), 1.0))
    histograms = columns_of([one] * 1000)[1]
    assert histograms is not None
    growing.append(PackedHistograms.of(histograms))
    assert growing.nbytes < 1000 * (40 + 40)
    assert growing.read_nbytes > 1000 * 8 * 40
    before = growing.nbytes
    wide = columns_of([NativeHistogram(schema=2, count=4000.0, positive=dict.fromkeys(range(4000), 1.0))])[1]
    assert wide is not None
    growing.append(PackedHistograms.of(wide))
    assert growing.nbytes > before + 4000 + 4 * 4000  # the counts of the row, and the indexes of its layout
