"""The head against dictionaries."""

from __future__ import annotations

import itertools
import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.promql.model import STALE_NAN_BITS, Samples
from worker.series.head import LATE_CHECK, Head

SERIES = 5

times = st.integers(0, 60) | st.sampled_from([TIME_MS_MIN, TIME_MS_MAX])
batches = st.lists(
    st.lists(st.tuples(st.integers(0, SERIES - 1), times, st.floats(allow_nan=False)), max_size=60), max_size=8
)
ranges = st.tuples(times, times).map(sorted)


def as_dicts(samples: Samples) -> list[dict[int, float]]:
    bounds = samples.offsets.tolist()
    found = []
    for first, last in itertools.pairwise(bounds):
        own = samples.timestamps_ms[first:last]
        assert (np.diff(own) > 0).all()
        found.append(dict(zip(own.tolist(), samples.values[first:last].tolist(), strict=True)))
    return found


def append(head: Head, batch: list[tuple[int, int, float]]) -> None:
    series, timestamps, values = zip(*batch, strict=True) if batch else ((), (), ())
    head.append(np.array(series, dtype=np.int64), np.array(timestamps, dtype=np.int64), np.array(values, dtype=float))


@settings(max_examples=200, deadline=None)
@given(batches, ranges, ranges, st.lists(st.integers(0, SERIES - 1), unique=True), st.integers(0, 8))
def test_head_equals_a_dictionary_that_the_last_write_wins(
    written: list[list[tuple[int, int, float]]],
    gone: list[int],
    window: list[int],
    deleted: list[int],
    delete_after: int,
) -> None:
    head = Head()
    head.extend(SERIES)
    expected: list[dict[int, float]] = [{} for _ in range(SERIES)]
    for number, batch in enumerate(written):
        append(head, batch)
        for series, timestamp, value in batch:
            expected[series][timestamp] = value
        if number == delete_after:
            counted = head.delete(np.array(deleted, dtype=np.int64), gone[0], gone[1])
            assert counted == sum(gone[0] <= t <= gone[1] for s in deleted for t in expected[s])
            for s in deleted:
                expected[s] = {t: v for t, v in expected[s].items() if not gone[0] <= t <= gone[1]}
    everything = np.arange(SERIES)
    first, last = window
    inside = [{t: v for t, v in own.items() if first <= t <= last} for own in expected]
    assert as_dicts(head.read(everything, first, last)) == inside
    overlapping = head.overlapping(everything, first, last)
    assert head.all_overlap(everything, first, last) == overlapping.all()
    assert all(overlapping[s] for s in range(SERIES) if inside[s])
    assert head.samples >= sum(map(len, expected))


def test_reading_takes_series_in_the_order_asked_for() -> None:
    head = Head()
    head.extend(3)
    append(head, [(0, 1, 0.5), (1, 1, 1.5), (2, 1, 2.5)])
    assert as_dicts(head.read(np.array([2, 0]), 0, 9)) == [{1: 2.5}, {1: 0.5}]


def test_values_are_kept_bit_for_bit() -> None:
    payloads = [STALE_NAN_BITS, 0x7FF8000000000001, 0xFFF8000000000000, 0x8000000000000000, 1]
    head = Head()
    head.extend(1)
    values = np.array(payloads, dtype=np.uint64).view(np.float64)
    head.append(np.zeros(5, dtype=np.int64), np.array([5, 4, 3, 2, 1]), values)
    found = head.read(np.array([0]), 0, 9)
    assert found.values.view(np.uint64).tolist() == payloads[::-1]
    assert struct.pack("<d", found.values[-1])


def test_a_long_series_grows_through_many_chunks() -> None:
    head = Head()
    head.extend(1)
    n = 10_000
    head.append(np.zeros(n, dtype=np.int64), np.arange(n), np.arange(n) * 0.5)
    assert head.samples == n
    found = head.read(np.array([0]), 2500, 7499)
    assert found.timestamps_ms.tolist() == list(range(2500, 7500))
    assert (found.values == found.timestamps_ms * 0.5).all()


def test_runs_of_a_series_keep_their_start_timestamps() -> None:
    head = Head()
    head.extend(2)
    series, times = (
        np.repeat([0, 1, 0], [300, 300, 5]),
        np.concatenate([np.arange(300), np.arange(300), np.arange(300, 305)]),
    )
    head.append(series[:2], np.array([-2, -1]), np.zeros(2))  # samples without
    head.append(series, times, times * 0.5, times - 7)
    found = head.read(np.array([0, 1]), TIME_MS_MIN, TIME_MS_MAX)
    assert found.timestamps_ms.tolist() == [-2, -1, *range(305), *range(300)]
    assert found.start_timestamps_ms is not None
    assert found.start_timestamps_ms.tolist() == [0, 0, *range(-7, 298), *range(-7, 293)]


def test_writing_the_same_times_again_and_again_leaves_each_once() -> None:
    head = Head()
    head.extend(3)
    expected: list[dict[int, float]] = [{}, {}, {}]
    for turn in range(3000):
        batch = [(series, at, turn + 0.5) for series in (0, 2) for at in (10, 20, 30)]
        append(head, [*batch, (1, turn, 1.5)])
        for series, at, value in (*batch, (1, turn, 1.5)):
            expected[series][at] = value
    assert as_dicts(head.read(np.arange(3), 0, 5000)) == expected
    assert head.samples <= 3000 + 2 * 2 * LATE_CHECK


def test_settling_keeps_the_order_of_writing_among_samples_that_come_in_any_order() -> None:
    generator = np.random.default_rng(2)
    head = Head()
    head.extend(2)
    expected: list[dict[int, float]] = [{}, {}]
    for turn in range(40):
        times = generator.integers(0, 1500, 400)
        series = generator.integers(0, 2, 400)
        values = generator.random(400)
        head.append(series, times, values)
        for s, t, v in zip(series.tolist(), times.tolist(), values.tolist(), strict=True):
            expected[s][t] = v
        assert as_dicts(head.read(np.arange(2), 0, 5000)) == expected, turn
    assert head.samples < 2 * 1500 + 2 * 1500 + 4 * LATE_CHECK


def test_a_head_written_out_of_order_copies_each_sample_twice_at_most() -> None:
    head = Head()
    head.extend(1)
    n = 100_000
    for first in range(0, n, 500):
        head.append(np.zeros(500, dtype=np.int64), np.arange(n - first, n - first - 500, -1), np.zeros(500))
    assert head.samples == n
    assert head.size_bytes < 3.5 * 16 * n


def test_the_count_of_samples_is_exact_after_a_deletion() -> None:
    head = Head()
    head.extend(2)
    append(head, [(series, at, 0.5) for series in (0, 1) for at in range(100)])
    assert head.delete(np.array([0]), 10, 29) == 20
    assert head.samples == 180
    assert head.delete(np.array([0, 1]), 10, 29) == 20
    assert head.samples == 160
