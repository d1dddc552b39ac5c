"""Requests of nothing but samples of known series are split into the frames that the longer way makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Thread, Timer
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.series import known_samples, remote_write
from coordinator.series.known_samples import KnownSamples
from coordinator.series.series_references import SeriesReferences
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import UNLIMITED, Series, body
from proto.remote_write_pb2 import WriteRequest
from shared.frames import references as reference_frames
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.histograms.references import references as histogram_references
from shared.promql.model import STALE_NAN_BITS

SHARDS = 3
SERIES = 10
NOW_MS = 1_700_000_000_000
EPOCHS = {shard: 100 + shard for shard in range(SHARDS)}


def labels_of(number: int) -> dict[str, str]:
    """Of different lengths, and some differ in their last byte only."""
    return {"__name__": "m" * (1 + number % 3), "instance": "x" * (number % 5) + str(number)}


def teach(references: SeriesReferences, numbers: Sequence[int] = range(SERIES)) -> None:
    """Have these series known, by numbers that are those of `labels_of` and 1,000 more."""
    references.begin_eras(EPOCHS)
    raw = body([(labels_of(number), [(1, 1.0)]) for number in numbers])
    walked = remote_write.walk(raw, UNLIMITED)
    assert walked is not None
    begins, ends = (np.ascontiguousarray(walked.table[:, column]) for column in (0, 1))
    given_numbers = np.array(numbers, dtype=np.int64) + 1000
    references.learn(walked.body, begins, ends, walked.hashes, given_numbers, EPOCHS)


@pytest.fixture(scope="module")
def known() -> SeriesReferences:
    references = SeriesReferences(1 << 20, SHARDS)
    teach(references)
    return references


def frames_of(requests: Sequence[KnownSamples]) -> dict[int, bytes]:
    return {shard: bytes(frame) for shard, frame in known_samples.frames(requests).items()}


def by_the_longer_way(raw: bytes, references: SeriesReferences) -> dict[int, bytes]:
    split_request = remote_write.split(raw, SHARDS, UNLIMITED, references)
    assert all(len(frames) == 1 for frames in split_request.parts.values())
    return {shard: bytes(frame) for shard, (frame,) in split_request.parts.items()}


times = st.one_of(
    st.integers(NOW_MS - 10, NOW_MS + 10),
    st.sampled_from([0, 1, 127, 128, -1, TIME_MS_MIN, TIME_MS_MAX, 1 << 34, 1 << 35, (1 << 42) - 1, 1 << 42]),
)
series_lists = st.lists(
    st.tuples(st.integers(0, SERIES - 1), st.lists(st.tuples(times, st.floats(width=64)), min_size=1, max_size=3)),
    min_size=1,
    max_size=2 * SERIES,
)


def named(entries: Sequence[tuple[int, list[tuple[int, float]]]]) -> list[Series]:
    return [(labels_of(number), samples) for number, samples in entries]


@settings(max_examples=200, deadline=None)
@given(entries=series_lists)
def test_the_frames_are_those_of_the_longer_way(known: SeriesReferences, entries: list) -> None:
    raw = body(named(entries))
    read = known_samples.read(raw, SHARDS, known)
    assert read is not None
    assert frames_of([read]) == by_the_longer_way(raw, known)
    assert (read.series, read.samples) == (len(entries), sum(len(samples) for _, samples in entries))
    assert read.shards == sorted(frames_of([read]))
    assert frames_of([read.copied()]) == frames_of([read])


@settings(max_examples=100, deadline=None)
@given(requests=st.lists(series_lists, min_size=1, max_size=4))
def test_requests_that_are_sent_together_share_a_frame_in_their_order(known: SeriesReferences, requests: list) -> None:
    read = [known_samples.read(body(named(entries)), SHARDS, known) for entries in requests]
    together = frames_of([one for one in read if one is not None])
    apart = [frames_of([one]) for one in read if one is not None]
    assert sorted(together) == sorted({shard for frames in apart for shard in frames})
    for shard, frame in together.items():
        joined = reference_frames.parse(frame)
        parts = [reference_frames.parse(frames[shard]) for frames in apart if shard in frames]
        assert joined.epoch == EPOCHS[shard]
        assert not joined.has_starts
        for column in ("series", "counts", "times_ms"):
            assert getattr(joined, column).tolist() == [n for part in parts for n in getattr(part, column).tolist()]
        bits = [part.values.view(np.int64) for part in parts]
        assert joined.values.view(np.int64).tolist() == np.concatenate(bits).tolist()


@settings(max_examples=300, deadline=None)
@given(
    entries=series_lists,
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3),
    cut_off=st.integers(0, 40),
)
def test_what_is_broken_is_left_or_read_like_the_longer_way(
    known: SeriesReferences, entries: list, changes: list, cut_off: int
) -> None:
    raw = bytearray(body(named(entries)))
    for at, byte in changes:
        raw[at % len(raw)] = byte
    broken = bytes(raw[: len(raw) - cut_off % len(raw)])
    read = known_samples.read(broken, SHARDS, known)
    if read is not None:
        assert frames_of([read]) == by_the_longer_way(broken, known)


def request(change: Callable[[Any], object]) -> bytes:
    """A request of all series, of which something is changed."""
    message = WriteRequest.FromString(body([(labels_of(n), [(NOW_MS, float(n))]) for n in range(SERIES)]))
    change(message)
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.metadata.add(type=1, metric_family_name="m"),
        lambda r: r.timeseries[4].labels.add(name="zone", value="1"),
        lambda r: r.timeseries[4].labels.pop(),
        lambda r: r.timeseries[4].samples.pop(),
        lambda r: setattr(r.timeseries[4].samples[0], "timestamp", TIME_MS_MAX + 1),
        lambda r: setattr(r.timeseries[4].samples[0], "timestamp", TIME_MS_MIN - 1),
        lambda r: setattr(r.timeseries[4].samples[0], "start_timestamp", 5),
        lambda r: r.timeseries[4].exemplars.add(value=1.0),
        lambda r: r.timeseries[4].histograms.append(histogram_message(timestamp=NOW_MS)),
        lambda r: r.timeseries.add().samples.add(timestamp=NOW_MS),
        lambda r: r.ClearField("timeseries"),
        lambda r: r.timeseries[9].samples.extend([r.timeseries[9].samples[0]] * known_samples.SAMPLES_MAX),
    ],
)
def test_every_other_request_is_left_to_the_longer_way(
    known: SeriesReferences, change: Callable[[Any], object]
) -> None:
    assert known_samples.read(request(lambda r: None), SHARDS, known) is not None
    assert known_samples.read(request(change), SHARDS, known) is None


def test_a_series_that_is_not_known_in_this_era_is_left_to_the_longer_way() -> None:
    references = SeriesReferences(1 << 20, SHARDS)
    teach(references, range(SERIES - 1))
    assert known_samples.read(request(lambda r: None), SHARDS, references) is None
    teach(references)
    read = known_samples.read(request(lambda r: None), SHARDS, references)
    assert read is not None
    references.begin_eras({1: 7})
    assert known_samples.read(request(lambda r: None), SHARDS, references) is None
    (frame,) = (frame for shard, frame in known_samples.frames([read]).items() if shard == 1)
    assert reference_frames.parse(bytes(frame)).epoch == EPOCHS[1]  # of which its numbers are


def test_a_large_request_may_have_more_samples(known: SeriesReferences, monkeypatch: pytest.MonkeyPatch) -> None:
    each = known_samples.SAMPLES_MAX // SERIES + 1
    raw = body([(labels_of(number), [(NOW_MS + i, float(i)) for i in range(each)]) for number in range(SERIES)])
    assert known_samples.read(raw, SHARDS, known) is None
    read = known_samples.read(raw, SHARDS, known, large=True)
    assert read is not None
    assert frames_of([read]) == by_the_longer_way(raw, known)
    assert read.samples == each * SERIES
    monkeypatch.setattr(known_samples, "SAMPLES_MAX_LARGE", each * SERIES - 1)
    assert known_samples.read(raw, SHARDS, known, large=True) is None


def test_tables_that_are_in_use_know_nothing(known: SeriesReferences) -> None:
    with known.lent():
        assert known_samples.read(request(lambda r: None), SHARDS, known) is None


@pytest.mark.parametrize("is_released", [True, False])
def test_a_large_request_waits_a_moment_for_tables_in_use(
    known: SeriesReferences, monkeypatch: pytest.MonkeyPatch, is_released: bool
) -> None:
    monkeypatch.setattr(known_samples, "TABLES_WAIT_S", 30.0 if is_released else 0.01)
    release, lent = Event(), Event()

    def use() -> None:
        with known.lent():
            lent.set()
            release.wait(30)

    other = Thread(target=use, daemon=True)
    other.start()
    assert lent.wait(30)
    if is_released:
        Timer(0.05, release.set).start()
    read = known_samples.read(request(lambda r: None), SHARDS, known, large=True)
    release.set()
    other.join()
    assert (read is not None) == is_released


def test_the_bits_of_a_number_stay_unless_they_would_refer_to_a_histogram(known: SeriesReferences) -> None:
    stale = np.array([STALE_NAN_BITS]).view(np.float64).item()
    raw = bytearray(request(lambda r: setattr(r.timeseries[0].samples[0], "value", 12345.0)))
    for bits, expected in ((stale, STALE_NAN_BITS), (histogram_references([7]).item(), 0x7FF8000000000000)):
        changed = bytes(raw).replace(np.float64(12345.0).tobytes(), np.float64(bits).tobytes())
        read = known_samples.read(changed, SHARDS, known)
        assert read is not None
        assert read.bits.tolist()[0] == expected


def test_epochs_that_have_changed_are_another_array(known: SeriesReferences) -> None:
    references = SeriesReferences(1 << 20, SHARDS)
    teach(references)
    before = references.epochs
    references.begin_eras(EPOCHS)
    assert references.epochs is before
    references.begin_eras({0: 1})
    assert references.epochs.tolist() == [1, 101, 102]
    assert before.tolist() == [100, 101, 102]
