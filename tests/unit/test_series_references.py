"""Series sent by number: no sample is ever stored with the wrong series, whatever shards and senders do meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.series import histograms, known_samples, lessons, remote_write, remote_write_v2, series_references
from coordinator.series.known_labels import KnownLabels
from coordinator.series.lessons import EMPTY_RECEIPT, Receipt
from coordinator.series.series_references import _ROW_BYTES, UNUSED_MINUTES, SeriesReferences, find
from coordinator.series.split_request import SplitRequest
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import UNLIMITED, body, request_v2
from proto.remote_write_pb2 import WriteRequest
from shared import labels
from shared.errors import Internal, TriptychError
from shared.frames import references as reference_frames
from shared.frames import samples as sample_frames
from shared.hashing import hash64
from shared.histograms.batch import STALE_SUM_BITS
from shared.histograms.references import is_reference, references, rows_of
from shared.promql.model import STALE_NAN_BITS

SHARDS = 3
SERIES = 12
BYTES_MAX = 1 << 30

Entry = tuple[int, list[tuple[int, float]]]
"""The number of a series, and its samples: a whole number is sent as a histogram with this sum."""


def labels_of(number: int) -> dict[str, str]:
    """Label sets of different lengths, some of which begin like others."""
    every = {
        "__name__": "m" * (1 + number % 3),
        "a": str(number // 4),
        "b": "x" * (number % 4),
        "c": "1" * (number % 2),
    }
    return {name: value for name, value in every.items() if value}


def pairs_of(number: int) -> list[tuple[str, str]]:
    return sorted(labels_of(number).items())


class Shards:
    """Stand in for the workers: what was stored, by label bytes and time, and the numbers of each opening."""

    def __init__(self) -> None:
        self.stored: dict[tuple[bytes, int], float] = {}
        self.by_number = 0
        self._epochs = [0] * SHARDS
        self._numbers: list[dict[bytes, int]] = [{} for _ in range(SHARDS)]
        for shard in range(SHARDS):
            self.reopen(shard)

    def reopen(self, shard: int) -> None:
        """Another opening gives other numbers."""
        self._epochs[shard] = reference_frames.new_epoch()
        known = list(self._numbers[shard])
        random.shuffle(known)
        self._numbers[shard] = {label_bytes: number for number, label_bytes in enumerate(known)}

    def write(self, parts: dict) -> Receipt:
        epochs, stale, given = {}, set(), {}
        for shard, frames in parts.items():
            own = self._numbers[shard]
            for place, frame in enumerate(frames):
                if reference_frames.is_references(frame):
                    columns = reference_frames.parse(bytes(frame))
                    if columns.epoch != self._epochs[shard]:
                        stale.add((shard, place))
                        epochs[shard] = self._epochs[shard]
                        continue
                    every = list(own)
                    series = [every[number] for number in columns.series.tolist()]
                    self.by_number += len(series)
                else:
                    columns = sample_frames.parse(bytes(frame))
                    ends = zip(columns.starts.tolist(), columns.ends.tolist(), strict=True)
                    series = [columns.data[begin:end].tobytes() for begin, end in ends]
                    numbers = [own.setdefault(label_bytes, len(own)) for label_bytes in series]
                    given[shard, place] = np.array(numbers, dtype=np.int32)
                    epochs[shard] = self._epochs[shard]
                at = 0
                for label_bytes, count in zip(series, columns.counts.tolist(), strict=True):
                    for i in range(at, at + count):
                        self.stored[label_bytes, int(columns.times_ms[i])] = _value(columns, i)
                    at += count
        return Receipt(epochs, frozenset(stale), given) if epochs else EMPTY_RECEIPT


def _value(columns: sample_frames.SampleColumns | reference_frames.ReferenceColumns, i: int) -> float:
    if not is_reference(columns.values[i : i + 1])[0]:
        return float(columns.values[i])
    assert columns.histograms is not None
    return int(columns.histograms.unpacked().columns.sum[rows_of(columns.values[i : i + 1])[0]])


def request_of(entries: list[Entry], version: int, *, odd: bool = False) -> bytes:
    """If `odd`, a request of version 1.0 has every second label set in another order than the canonical one."""
    floats = [[sample for sample in samples if isinstance(sample[1], float)] for _, samples in entries]
    if version == 2:
        request: Any = request_v2([(labels_of(number), own) for (number, _), own in zip(entries, floats, strict=True)])
    else:
        pairs = [pairs_of(number)[:: -1 if odd and i % 2 else 1] for i, (number, _) in enumerate(entries)]
        request = WriteRequest.FromString(body(zip(pairs, floats, strict=True)))
    for series, (_, samples) in zip(request.timeseries, entries, strict=True):
        for time, value in samples:
            if isinstance(value, int):
                series.histograms.append(histogram_message(timestamp=time, sum=float(value)))
    return bytes(request.SerializeToString())


class Coordinator:
    """Splits, sends and learns as `coordinator.api.write` does; what it learns from a request may come late."""

    def __init__(self, rows: int) -> None:
        self.shards = Shards()
        self.references = SeriesReferences(rows * _ROW_BYTES, SHARDS)
        self.known_labels = KnownLabels(1 << 20)
        self.pending: list[tuple[SplitRequest, Receipt]] = []
        self.splits = 0
        self.expected: dict[tuple[bytes, int], float] = {}

    def send(self, entries: list[Entry], version: int, *, odd: bool) -> None:
        raw = request_of(entries, version, odd=odd)
        split_request = self.split(raw, version, self.references)
        receipt = self.shards.write(split_request.parts)
        stale = {shard for shard, _ in receipt.stale}
        if stale:
            again = self.split(raw, version, remote_write.NO_REFERENCES).parts
            assert not self.shards.write({shard: again[shard] for shard in stale}).stale
        self.pending.append((split_request, receipt))
        for number, samples in entries:
            label_bytes = labels.encode(tuple(pairs_of(number)))
            self.expected.update({(label_bytes, time): value for time, value in samples})

    def split(self, raw: bytes, version: int, references: SeriesReferences) -> SplitRequest:
        if version == 1:
            self.splits += 1
            known = known_samples.read(raw, SHARDS, references) if self.splits % 3 else None
            if known is None:
                return remote_write.split(raw, SHARDS, UNLIMITED, references)
            parts = {shard: [frame] for shard, frame in known_samples.frames([known]).items()}
            return SplitRequest(parts, samples=known.samples, known_series=known.series)
        surveyed = remote_write_v2.survey(raw, UNLIMITED, BYTES_MAX, (), self.known_labels, references)
        return remote_write_v2.split(surveyed, SHARDS, UNLIMITED)

    def learn(self, which: int) -> None:
        if self.pending:
            split_request, receipt = self.pending.pop(which % len(self.pending))
            lessons.learn(split_request.lessons, self.references, receipt)


@st.composite
def entry_lists(draw: st.DrawFn) -> list[Entry]:
    """Series of a request, most of them in the order of all, each once; a time has one value in it."""
    numbers = draw(st.lists(st.integers(0, SERIES - 1), min_size=1, max_size=SERIES, unique=True))
    if draw(st.booleans()):
        numbers.sort()
    times = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)
    values = st.one_of(st.floats(-9, 9), st.integers(1, 9))
    return [(number, [(time, draw(values)) for time in draw(times)]) for number in numbers]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), entry_lists(), st.sampled_from([1, 2]), st.booleans()),
        st.tuples(st.just("send and learn"), entry_lists(), st.sampled_from([1, 2]), st.just(False)),
        st.tuples(st.just("learn"), st.integers(0, 9)),
        st.tuples(st.just("reopen"), st.integers(0, SHARDS - 1)),
        st.tuples(st.just("minutes"), st.integers(1, 2 * UNUSED_MINUTES)),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(steps, st.sampled_from([0, 1, 3, 7, 100]))
def test_every_sample_is_stored_with_its_own_series(history: list, rows: int) -> None:
    coordinator, minute = Coordinator(rows), [100]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series_references, "_minute", lambda: minute[0])
        patch.setattr(series_references, "SLOTS_FIRST", 2)
        for what, *given_ in history:
            if what == "learn":
                coordinator.learn(*given_)
            elif what == "reopen":
                coordinator.shards.reopen(*given_)
            elif what == "minutes":
                minute[0] += given_[0]
            else:
                entries, version, odd = given_
                coordinator.send(entries, version, odd=odd)
                if what == "send and learn":
                    coordinator.learn(-1)
            assert coordinator.shards.stored == coordinator.expected


def every_series(time: int) -> list[Entry]:
    return [(number, [(time, float(number))]) for number in range(SERIES)]


def every_histogram(time: int) -> list[Entry]:
    return [(number, [(time, 1 + number)]) for number in range(SERIES)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("entries", [every_series, every_histogram])
def test_a_series_travels_by_number_from_its_second_request_on(
    version: int, entries: Callable[[int], list[Entry]]
) -> None:
    coordinator = Coordinator(100)
    for time in range(4):
        coordinator.send(entries(time), version, odd=False)
        coordinator.learn(0)
        assert coordinator.shards.by_number == time * SERIES
    coordinator.send(entries(9), 3 - version, odd=False)  # in the other version too
    assert coordinator.shards.by_number == 4 * SERIES
    assert coordinator.shards.stored == coordinator.expected


def test_slots_grow_with_the_series_that_are_kept() -> None:
    """Of the memory for half a million series, ten thousand take as much as they need."""
    count = 10_000
    references = SeriesReferences(128 << 20, SHARDS)
    encoded = [labels.encode((("__name__", "m"), ("i", str(i)))) for i in range(count)]
    bounds = np.cumsum([0, *map(len, encoded)])
    data = np.frombuffer(b"".join(encoded), np.uint8)
    hashes = np.array([hash64(own) for own in encoded], np.uint64)
    for at in range(0, count, 500):
        own = slice(at, at + 500)
        numbers = np.arange(count)[own]
        references.learn(data, bounds[:-1][own].copy(), bounds[1:][own].copy(), hashes[own], numbers, {})
    with references.lent() as tables:
        found = [find(data, bounds[i], bounds[i + 1], hashes[i], tables) for i in range(count)]
        assert found == list(range(count))
        assert 3 * count <= len(tables.slots) <= 12 * count
    assert references.bytes < 200 * count


def test_histograms_of_several_slices_teach_and_use_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "SLICE_BYTES", 30)
    coordinator = Coordinator(100)
    for time in range(3):
        coordinator.send(every_histogram(time), 1, odd=False)
        coordinator.learn(0)
        assert coordinator.shards.by_number == time * SERIES
    assert coordinator.shards.stored == coordinator.expected


def test_what_a_series_with_floats_teaches_its_histograms_use() -> None:
    coordinator = Coordinator(100)
    coordinator.send(every_series(0), 1, odd=False)
    coordinator.learn(0)
    stale = np.array([STALE_SUM_BITS]).view(float).item()
    raw = request_of([(number, []) for number in range(SERIES)], 1)
    request = WriteRequest.FromString(raw)
    for series in request.timeseries:
        series.histograms.append(histogram_message(timestamp=5, start_timestamp=3, sum=stale))
    split_request = coordinator.split(request.SerializeToString(), 1, coordinator.references)
    assert (split_request.histograms, split_request.known_series, split_request.lessons) == (SERIES, SERIES, [])
    columns = [reference_frames.parse(bytes(frame)) for frames in split_request.parts.values() for frame in frames]
    assert sum(frame.samples for frame in columns) == SERIES
    for frame in columns:
        assert frame.histograms is None
        assert set(frame.values.view(np.int64).tolist()) == {STALE_NAN_BITS}
        assert frame.start_timestamps_ms is not None
        assert set(frame.start_timestamps_ms.tolist()) == {3}


def test_after_a_shard_was_opened_anew_its_series_are_sent_whole_once() -> None:
    coordinator = Coordinator(100)
    for time in range(2):
        coordinator.send(every_series(time), 1, odd=False)
        coordinator.learn(0)
    coordinator.shards.reopen(1)
    counts = []
    for time in range(2, 6):
        before = coordinator.shards.by_number
        coordinator.send(every_series(time), 1, odd=False)
        coordinator.learn(0)
        counts.append(coordinator.shards.by_number - before)
    of_shard = SERIES - counts[0]
    assert 0 < of_shard < SERIES
    # It learns from requests that it has split with labels: those after the one that found the numbers stale.
    assert counts == [SERIES - of_shard, SERIES - of_shard, SERIES, SERIES]
    assert coordinator.shards.stored == coordinator.expected


def test_a_late_answer_of_an_earlier_opening_teaches_nothing_wrong() -> None:
    coordinator = Coordinator(100)
    coordinator.send(every_series(0), 1, odd=False)
    for shard in range(SHARDS):
        coordinator.shards.reopen(shard)
    coordinator.send(every_series(1), 1, odd=False)
    coordinator.learn(1)
    coordinator.learn(0)  # the first answer comes last
    for time in range(2, 6):
        coordinator.send(every_series(time), 1, odd=False)
        coordinator.learn(0)
        assert coordinator.shards.stored == coordinator.expected


def test_unused_series_make_room_and_used_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    minute = [100]
    monkeypatch.setattr(series_references, "_minute", lambda: minute[0])
    coordinator = Coordinator(6)

    def send(numbers: range) -> int:
        before = coordinator.shards.by_number
        coordinator.send([(number, [(minute[0], 1.0)]) for number in numbers], 1, odd=False)
        coordinator.learn(0)
        return coordinator.shards.by_number - before

    assert [send(range(6)), send(range(6))] == [0, 6]
    assert [send(range(6, 12)) for _ in range(3)] == [0, 0, 0]  # no room, and those that are there may be needed
    minute[0] += UNUSED_MINUTES + 1
    assert send(range(3)) == 3
    assert [send(range(6, 12)) for _ in range(2)] == [0, 3]
    assert send(range(3)) == 3
    assert coordinator.references.bytes < 6 * _ROW_BYTES + 4096
    assert coordinator.shards.stored == coordinator.expected


def test_what_differs_from_a_known_series_by_a_byte_is_another_series() -> None:
    coordinator = Coordinator(100)
    coordinator.send([(0, [(0, 1.0)])], 1, odd=False)
    coordinator.learn(0)
    base = dict(pairs_of(0))
    others = [{**base, "a": "1"}, {**base, "zz": "0"}, {**base, "__name__": "n"}, {"__name__": "m"}]
    split_request = remote_write.split(
        body([(other, [(1, 2.0)]) for other in others]), SHARDS, UNLIMITED, coordinator.references
    )
    assert split_request.known_series == 0
    assert split_request.samples == len(others)


def outcome(raw: bytes, version: int, coordinator: Coordinator, references: SeriesReferences) -> object:
    """All that a client sees of a request: what is stored of it and what is said of it."""
    before, coordinator.shards.stored = coordinator.shards.stored, {}
    try:
        split_request = coordinator.split(raw, version, references)
        coordinator.shards.write(split_request.parts)
        stored = {key: repr(value) for key, value in coordinator.shards.stored.items()}  # a NaN is equal to itself
        return (
            split_request.samples,
            split_request.histograms,
            split_request.refused,
            split_request.refused_count,
            stored,
        )
    except TriptychError as error:
        return type(error), str(error)
    finally:
        coordinator.shards.stored = before


@settings(max_examples=400, deadline=None)
@given(
    entry_lists(),
    st.sampled_from([1, 2]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), st.binary(max_size=3)), max_size=3),
)
def test_a_malformed_request_is_split_as_if_no_series_were_known(
    entries: list[Entry], version: int, edits: list
) -> None:
    coordinator = Coordinator(100)
    for known in (1, 2):
        coordinator.send(every_series(5), known, odd=False)
        coordinator.learn(0)
    raw = request_of(entries, version)
    for at, size, inserted in edits:
        place = at % (len(raw) + 1)
        raw = raw[:place] + inserted + raw[place + size :]
    expected = outcome(raw, version, coordinator, remote_write.NO_REFERENCES)
    assert outcome(raw, version, coordinator, coordinator.references) == expected


def test_who_finds_the_tables_in_use_sends_labels_and_learns_nothing() -> None:
    coordinator = Coordinator(100)
    coordinator.send(every_series(0), 1, odd=False)
    with coordinator.references.lent():
        coordinator.learn(0)
    coordinator.send(every_series(1), 1, odd=False)
    coordinator.learn(0)
    with coordinator.references.lent():
        coordinator.send(every_series(2), 1, odd=False)
    assert coordinator.shards.by_number == 0
    coordinator.send(every_series(3), 1, odd=False)
    assert coordinator.shards.by_number == SERIES


def test_numbers_of_another_epoch_than_the_one_in_use_are_not_learned() -> None:
    coordinator = Coordinator(100)
    coordinator.send(every_series(0), 1, odd=False)
    split_request, receipt = coordinator.pending[0]
    coordinator.references.begin_eras({shard: epoch + 2 for shard, epoch in receipt.epochs.items()})
    for lesson in split_request.lessons:
        lesson.learn(coordinator.references, receipt)
    assert coordinator.split(body([(pairs_of(0), [(1, 1.0)])]), 1, coordinator.references).known_series == 0


def test_neither_long_labels_nor_those_of_huge_requests_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(100)
    fits = next(size for size in range(5000) if len(encoded(size + 1)) > series_references.LABELS_BYTES_MAX)
    series = [([("__name__", "m"), ("x", "y" * size)], [(1, 1.0)]) for size in (fits, fits + 1)]
    for known in (0, 1):
        split_request = coordinator.split(body(series), 1, coordinator.references)
        assert split_request.known_series == known
        lessons.learn(split_request.lessons, coordinator.references, coordinator.shards.write(split_request.parts))
    every = body((pairs_of(number), [(1, 1.0)]) for number in range(SERIES))
    for most in (SERIES - 1, SERIES):
        monkeypatch.setattr(remote_write, "LESSON_SERIES_MAX", most)
        assert bool(coordinator.split(every, 1, coordinator.references).lessons) == (most == SERIES)


def encoded(size: int) -> bytes:
    return labels.encode((("__name__", "m"), ("x", "y" * size)))


@pytest.mark.parametrize(
    "words", [[5, 1, 1, 0, 0, 1, 2], [5, 1, 2, 0, 1 << 32, 1, 2, 0, 0], [5, 1, 1, 2, 1 << 32, 1, 0]]
)
def test_what_is_no_frame_of_numbers_is_an_internal_error(words: list[int]) -> None:
    with pytest.raises(Internal, match=r"shared\.frames\.references"):
        reference_frames.parse(np.array([reference_frames.MARK, *words], dtype=np.int64).tobytes())


def test_histograms_that_are_not_there_are_an_internal_error() -> None:
    (frames,) = Coordinator(9).split(request_of([(0, [(5, 1)])], 1), 1, remote_write.NO_REFERENCES).parts.values()
    packed = sample_frames.parse(bytes(frames[0])).histograms
    assert packed is not None
    own = np.frombuffer(b"".join(packed.bytes()), dtype=np.int64)

    def frame(row: int, words: np.ndarray) -> bytes:
        head = [reference_frames.HISTOGRAMS_MARK, 5, 1, 1, 0, len(words), 1 << reference_frames.COUNT_SHIFT, 7]
        return b"".join((np.array(head, dtype=np.int64).tobytes(), references(np.array([row])).tobytes(), words))

    assert reference_frames.parse(frame(0, own)).histograms is not None
    broken = own.copy()
    broken[0] += 1
    for row, words in ((1, own), (0, broken), (0, own[:0])):
        with pytest.raises(Internal, match=r"series\.write|refer"):
            reference_frames.parse(frame(row, words))
