"""Repeated requests of remote write 2.0: splitting with a template gives the same result as without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.series import (
    known_samples,
    remote_write,
    remote_write_v2,
    request_templates,
    series_references,
    template_kernels,
)
from coordinator.series.known_labels import KnownLabels
from coordinator.series.request_templates import (
    CANDIDATES_MAX,
    NO_TEMPLATES,
    SAME_TABLE_MAX,
    UNUSED_MINUTES,
    Instance,
    RequestTemplates,
)
from coordinator.series.series_references import SeriesReferences
from coordinator.series.split_request import SplitRequest
from loadtest.harness.remote_write_bodies import UNLIMITED, body_v2
from proto.remote_write_v2_pb2 import Metadata, Request
from shared import labels
from tests.unit.test_remote_write_v2 import frames_of
from tests.unit.test_series_references import (
    BYTES_MAX,
    SERIES,
    SHARDS,
    Coordinator,
    Entry,
    every_histogram,
    every_series,
    outcome,
    pairs_of,
    request_of,
)

ROOM = 1 << 24


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_templates, "SERIES_MIN", 1)


def split_of(instance: Instance) -> SplitRequest | None:
    """The instance split by shard, with known samples as frames."""
    split_request = instance.split(SHARDS)
    if split_request is not None and split_request.known is not None:
        parts = {shard: [frame] for shard, frame in known_samples.frames([split_request.known]).items()}
        return replace(split_request, parts=parts, known=None)
    return split_request


class Repeating(Coordinator):
    """Splits requests of version 2.0 with templates, if there are any."""

    def __init__(self, rows: int = 100, room: int = ROOM) -> None:
        super().__init__(rows)
        self.templates = RequestTemplates(room, self.references)
        self.instances = 0
        self.known: set[int] = set()

    def split(self, raw: bytes, version: int, references: SeriesReferences) -> SplitRequest:
        if version == 1 or references is not self.references:
            return super().split(raw, version, references)
        instance = self.instance(raw)
        split_request = split_of(instance) if instance else None
        if split_request is not None:
            self.instances += 1
            return split_request
        surveyed = remote_write_v2.survey(
            raw, UNLIMITED, BYTES_MAX, self.known, self.known_labels, references, self.templates
        )
        split_request = remote_write_v2.split(surveyed, SHARDS, UNLIMITED)
        self.known.update(split_request.metadata_keys)
        return split_request

    def instance(self, raw: bytes) -> Instance | None:
        return self.templates.read(np.frombuffer(raw, np.uint8), BYTES_MAX, self.known)

    def send_and_learn(self, entries: list[Entry]) -> bool:
        """Returns whether the request was an instance of a template."""
        before = self.instances
        self.send(entries, 2, odd=False)
        self.learn(-1)
        return self.instances > before


def learned(entries: list[Entry], room: int = ROOM) -> Repeating:
    """A coordinator that has had a request twice with labels, and once by number."""
    coordinator = Repeating(room=room)
    assert [coordinator.send_and_learn(entries) for _ in range(4)] == [False, False, False, True]
    return coordinator


def without_templates(raw: bytes, coordinator: Repeating) -> SplitRequest:
    surveyed = remote_write_v2.survey(
        raw, UNLIMITED, BYTES_MAX, coordinator.known, KnownLabels(1 << 20), coordinator.references
    )
    return remote_write_v2.split(surveyed, SHARDS, UNLIMITED)


shapes = st.lists(st.integers(0, SERIES - 1), min_size=1, max_size=6)
"""Series of a request; one may be there twice. Those whose numbers differ by 4 have labels of the same lengths."""


@st.composite
def sample_lists(draw: st.DrawFn, shape: list[int]) -> list[Entry]:
    kind = draw(st.sampled_from(["one", "one", "one", "histogram", "any"]))
    number = st.floats(-9, 9).filter(bool) if kind == "one" else st.integers(1, 9)
    if kind != "any":
        time = draw(st.integers(0, 1 << 42))
        # A series that is there twice has the same sample twice, so that it makes no difference which comes last.
        values = {series: draw(number) for series in shape}
        return [(series, [(time, values[series])]) for series in shape]
    values = st.one_of(st.floats(-9, 9), st.integers(1, 9))
    of_series = {
        series: [(time, draw(values)) for time in draw(st.lists(st.integers(0, 3), max_size=3, unique=True))]
        for series in shape
    }
    return [(series, of_series[series]) for series in shape]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple]:
    own = draw(st.lists(shapes, min_size=1, max_size=3))
    own.append([(number + 4) % SERIES for number in own[0]])
    step = st.one_of(
        st.sampled_from(own).flatmap(lambda shape: st.tuples(st.just("send"), sample_lists(shape), st.booleans())),
        st.sampled_from(own).flatmap(lambda shape: st.tuples(st.just("send"), sample_lists(shape), st.just(True))),
        st.tuples(st.just("learn"), st.integers(0, 9)),
        st.tuples(st.just("reopen"), st.integers(0, SHARDS - 1)),
        st.tuples(st.just("minutes"), st.integers(1, 2 * UNUSED_MINUTES)),
    )
    return draw(st.lists(step, max_size=30))


@settings(max_examples=300, deadline=None)
@given(histories(), st.sampled_from([1, 5, 100]), st.sampled_from([80_000, ROOM]))
def test_every_sample_of_repeated_requests_is_stored_with_its_own_series(history: list, rows: int, room: int) -> None:
    coordinator, minute = Repeating(rows, room), [100]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series_references, "_minute", lambda: minute[0])
        patch.setattr(request_templates, "SERIES_MIN", 1)
        for what, *given_ in history:
            if what == "learn":
                coordinator.learn(*given_)
            elif what == "reopen":
                coordinator.shards.reopen(*given_)
            elif what == "minutes":
                minute[0] += given_[0]
            else:
                entries, is_learned = given_
                coordinator.send(entries, 2, odd=False)
                if is_learned:
                    coordinator.learn(-1)
            assert coordinator.shards.stored == coordinator.expected
            assert coordinator.templates.bytes <= room


@pytest.mark.parametrize("entries", [every_series, every_histogram])
def test_a_request_that_comes_again_is_split_to_the_same_frames(entries: Callable[[int], list[Entry]]) -> None:
    coordinator = learned(entries(1))
    raw = request_of(entries(7), 2)
    expected = without_templates(raw, coordinator)
    instance = coordinator.instance(raw)
    assert instance is not None
    split_request = split_of(instance)
    assert split_request == expected
    assert split_request is not None
    assert frames_of(split_request) == frames_of(expected)
    assert split_request.known_series == SERIES


def several_samples(request: Request) -> None:
    request.timeseries[0].samples.add(value=0.0, timestamp=3)
    request.timeseries[1].samples[0].start_timestamp = 1


def a_start_timestamp(request: Request) -> None:
    request.timeseries[3].samples[0].start_timestamp = 1


def a_value_like_a_reference(request: Request) -> None:
    request.timeseries[2].samples[0].value = np.array([0x7FFD_0000_0000_0001]).view(float).item()


def other_values(request: Request) -> None:
    for series, value in zip(request.timeseries, (0.0, -0.0, float("nan"), float("inf"), 1e-320), strict=False):
        series.samples[0].value = value


def other_times(request: Request) -> None:
    times = (0, -5, 1 << 34, (1 << 35) - 1, 1 << 35, (1 << 42) - 1, 1 << 42, 1 << 46)
    for series, time in zip(request.timeseries, times, strict=False):
        series.samples[0].timestamp = time


@pytest.mark.parametrize(
    "change", [several_samples, a_start_timestamp, a_value_like_a_reference, other_values, other_times]
)
@pytest.mark.parametrize("time", [2, 1_700_000_000_000])
def test_samples_may_be_any(change: Callable[[Request], None], time: int) -> None:
    coordinator = learned(every_series(1))
    request = Request.FromString(request_of(every_series(time), 2))
    change(request)
    raw = request.SerializeToString()
    instance = coordinator.instance(raw)
    assert instance is not None
    split_request = split_of(instance)
    assert split_request is not None
    assert frames_of(split_request) == frames_of(without_templates(raw, coordinator))


def test_a_symbol_that_changes_at_equal_length_is_another_series() -> None:
    coordinator = learned(every_series(1))
    raw = request_of(every_series(2), 2)
    request = Request.FromString(raw)
    for place in range(1, len(request.symbols)):
        changed = Request.FromString(raw)
        changed.symbols[place] = "~" * len(request.symbols[place])
        other = changed.SerializeToString()
        assert len(other) == len(raw)
        assert coordinator.instance(other) is None
        assert coordinator.split(other, 2, coordinator.references).known_series < SERIES
    assert coordinator.instance(raw) is not None


def test_a_byte_anywhere_in_a_long_table_of_symbols_makes_another_request() -> None:
    coordinator = Repeating()
    series = [({"__name__": "m", "a": str(i), "long": f"{i:03}" + "x" * 90}, [(1, 1.0)]) for i in range(12)]
    raw = body_v2(series)
    for _ in range(3):
        split_request = coordinator.split(raw, 2, coordinator.references)
        coordinator.pending.append((split_request, coordinator.shards.write(split_request.parts)))
        coordinator.learn(-1)
    assert coordinator.instance(raw) is not None
    symbols = len(raw) - sum(len(entry.SerializeToString()) + 2 for entry in Request.FromString(raw).timeseries)
    assert symbols > 4 * template_kernels._BLOCK_BYTES
    for place in range(symbols):
        assert coordinator.instance(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]) is None


def test_references_of_the_same_length_to_other_symbols_are_another_request() -> None:
    coordinator = learned(every_series(1))
    raw = request_of(every_series(2), 2)
    request = Request.FromString(raw)
    for series in request.timeseries:
        for place in range(1, len(series.labels_refs), 2):
            own = series.labels_refs[place]
            series.labels_refs[place] = own % (len(request.symbols) - 1) + 1
            other = request.SerializeToString()
            assert len(other) == len(raw)
            assert coordinator.instance(other) is None
            series.labels_refs[place] = own
    assert coordinator.instance(request.SerializeToString()) is not None


def one_series_less(request: Request) -> None:
    del request.timeseries[-1]


def one_series_more(request: Request) -> None:
    request.timeseries.append(request.timeseries[0])


def an_exemplar(request: Request) -> None:
    request.timeseries[3].exemplars.add(value=1.0, timestamp=1)


def a_created_timestamp(request: Request) -> None:
    request.timeseries[3].MergeFromString(b"\x30\x05")  # a field of earlier drafts


def no_sample(request: Request) -> None:
    del request.timeseries[3].samples[:]


def a_time_that_nothing_has(request: Request) -> None:
    request.timeseries[3].samples[0].timestamp = 1 << 60


def metadata(request: Request) -> None:
    request.timeseries[3].metadata.CopyFrom(Metadata(type=1))


def another_symbol(request: Request) -> None:
    request.symbols.append("more")


@pytest.mark.parametrize(
    "change",
    [
        one_series_less, one_series_more, an_exemplar, a_created_timestamp, no_sample, a_time_that_nothing_has,
        metadata, another_symbol,
    ],
)  # fmt: skip
def test_what_a_template_does_not_have_makes_another_request(change: Callable[[Request], None]) -> None:
    coordinator = learned(every_series(1))
    request = Request.FromString(request_of(every_series(2), 2))
    assert coordinator.instance(request.SerializeToString()) is not None
    change(request)
    raw = request.SerializeToString()
    assert coordinator.instance(raw) is None
    expected = outcome(raw, 2, Coordinator(0), remote_write.NO_REFERENCES)
    for _ in range(3):  # split without a template, and again once its table has been seen
        assert outcome(raw, 2, coordinator, coordinator.references) == expected


@settings(max_examples=400, deadline=None)
@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 2), st.binary(max_size=2)), min_size=1, max_size=3),
)
def test_a_malformed_instance_is_split_as_if_there_were_no_template(is_of_histograms: bool, edits: list) -> None:
    entries = every_histogram(1) if is_of_histograms else every_series(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_templates, "SERIES_MIN", 1)
        coordinator = learned(entries)
        raw = request_of(entries, 2)
        for at, size, inserted in edits:
            place = at % (len(raw) + 1)
            raw = raw[:place] + inserted + raw[place + size :]
        expected = outcome(raw, 2, coordinator, remote_write.NO_REFERENCES)
        assert outcome(raw, 2, coordinator, coordinator.references) == expected


def test_metadata_that_is_forgotten_is_sent_again() -> None:
    request = Request.FromString(request_of(every_series(1), 2))
    request.symbols.append("how many")
    for series in request.timeseries:
        series.metadata.CopyFrom(Metadata(type=1, help_ref=len(request.symbols) - 1))
    raw = request.SerializeToString()
    coordinator = Repeating()
    told = []
    for _ in range(5):
        split_request = coordinator.split(raw, 2, coordinator.references)
        told.append(len(split_request.metadata))
        coordinator.pending.append((split_request, coordinator.shards.write(split_request.parts)))
        coordinator.learn(-1)
    assert (told, coordinator.instances) == ([3, 0, 0, 0, 0], 2)
    coordinator.known = set()
    assert len(coordinator.split(raw, 2, coordinator.references).metadata) == 3
    assert coordinator.split(raw, 2, coordinator.references).metadata == []
    assert coordinator.instances == 3
    assert len(coordinator.templates._entries) == 1
    request.timeseries[0].metadata.type = 2
    assert coordinator.instance(request.SerializeToString()) is None


def test_a_histogram_that_is_not_valid_is_refused_by_the_name_of_its_series() -> None:
    coordinator = learned(every_histogram(1))
    request = Request.FromString(request_of(every_histogram(2), 2))
    request.timeseries[5].histograms[0] = request.timeseries[5].histograms[0] + b"\x18\x63"  # the schema
    raw = request.SerializeToString()
    instance = coordinator.instance(raw)
    assert instance is not None
    assert instance.split(SHARDS) is None
    assert (
        coordinator.split(raw, 2, coordinator.references).refused == without_templates(raw, coordinator).refused != []
    )


def test_the_labels_count_towards_the_limit_on_bytes() -> None:
    coordinator = learned(every_series(1))
    raw = request_of(every_series(2), 2)
    taken = remote_write_v2.survey(raw, UNLIMITED, BYTES_MAX).bytes_total
    body = np.frombuffer(raw, np.uint8)
    assert coordinator.templates.read(body, taken, ()) is not None
    assert coordinator.templates.read(body, taken - 1, ()) is None


def test_after_a_shard_was_opened_anew_the_template_gets_the_new_numbers() -> None:
    coordinator = learned(every_series(1))
    coordinator.shards.reopen(1)
    # The first one finds the numbers stale, the second one has labels and learns.
    assert [coordinator.send_and_learn(every_series(time)) for time in range(2, 6)] == [True, False, True, True]
    assert coordinator.shards.stored == coordinator.expected
    assert len(coordinator.templates._entries) == 1


def test_samples_that_wait_keep_the_numbers_that_they_were_split_with() -> None:
    coordinator = learned(every_series(1))
    instance = coordinator.instance(request_of(every_series(2), 2))
    assert instance is not None and instance.known is not None
    before = {shard: bytes(frame) for shard, frame in known_samples.frames([instance.known]).items()}
    coordinator.shards.reopen(1)
    assert [coordinator.send_and_learn(every_series(time)) for time in range(3, 6)] == [True, False, True]
    later = coordinator.instance(request_of(every_series(2), 2))
    assert later is not None and later.known is not None
    assert {shard: bytes(frame) for shard, frame in known_samples.frames([instance.known]).items()} == before
    assert {shard: bytes(frame) for shard, frame in known_samples.frames([later.known]).items()} != before


def test_requests_of_both_versions_share_a_frame() -> None:
    coordinator = learned(every_series(1))
    second = coordinator.instance(request_of(every_series(2), 2))
    first = known_samples.read(request_of(every_series(3), 1), SHARDS, coordinator.references)
    assert first is not None and second is not None and second.known is not None
    frames = known_samples.frames([second.known, first, second.known.copied()])
    receipt = coordinator.shards.write({shard: [frame] for shard, frame in frames.items()})
    assert not receipt.stale
    expected = {(labels.encode(tuple(pairs_of(n))), time): float(n) for time in (1, 2, 3) for n in range(SERIES)}
    assert coordinator.shards.stored == expected


def test_a_large_instance_is_split_to_frames_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = learned(every_series(1))
    raw = request_of(every_series(2), 2)
    monkeypatch.setattr(known_samples, "SHARING_SAMPLES_MAX", SERIES - 1)
    instance = coordinator.instance(raw)
    assert instance is not None
    split_request = instance.split(SHARDS)
    assert split_request is not None and split_request.known is None
    assert frames_of(split_request) == frames_of(without_templates(raw, coordinator))


def test_when_rows_get_other_places_the_template_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    minute = [100]
    monkeypatch.setattr(series_references, "_minute", lambda: minute[0])
    coordinator = learned(every_series(1))
    minute[0] += UNUSED_MINUTES + 1
    assert coordinator.send_and_learn(every_series(2))  # so they have been used
    coordinator.references.tidy()
    assert [coordinator.send_and_learn(every_series(time)) for time in range(3, 6)] == [False, True, True]
    assert coordinator.shards.stored == coordinator.expected


def test_templates_that_nobody_uses_make_room_and_used_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    minute = [100]
    monkeypatch.setattr(series_references, "_minute", lambda: minute[0])
    first, second = every_series(1)[:6], every_series(1)[6:]
    least = next(room for room in range(70_000, 100_000, 100) if _can_learn(first, room))
    coordinator = learned(first, least + 200)
    assert [coordinator.send_and_learn(second) for _ in range(5)] == [False] * 5
    minute[0] += UNUSED_MINUTES - 1
    assert coordinator.send_and_learn(first)
    minute[0] += UNUSED_MINUTES - 1
    assert [coordinator.send_and_learn(second) for _ in range(2)] == [False] * 2
    minute[0] += 1
    assert [coordinator.send_and_learn(second) for _ in range(2)] == [False, True]
    assert [coordinator.send_and_learn(first) for _ in range(2)] == [False] * 2
    assert coordinator.templates.bytes <= least + 200
    assert coordinator.shards.stored == coordinator.expected


def _can_learn(entries: list[Entry], room: int) -> bool:
    coordinator = Repeating(room=room)
    return [coordinator.send_and_learn(entries) for _ in range(4)][-1]


def test_one_table_of_symbols_has_few_templates() -> None:
    coordinator = learned(every_series(1))
    raw = request_of(every_series(2), 2)
    for last in range(1, SERIES):
        request = Request.FromString(raw)
        del request.timeseries[last:]
        for _ in range(2):
            coordinator.split(request.SerializeToString(), 2, coordinator.references)
    assert len(coordinator.templates._entries) == SAME_TABLE_MAX
    assert SAME_TABLE_MAX <= CANDIDATES_MAX


def test_who_finds_the_templates_or_the_numbers_in_use_does_without() -> None:
    coordinator = learned(every_series(1))
    raw = request_of(every_series(2), 2)
    expected = frames_of(without_templates(raw, coordinator))
    with coordinator.references.lent():
        assert coordinator.instance(raw) is None
    with coordinator.templates._lock:
        assert coordinator.instance(raw) is None
        assert frames_of(coordinator.split(raw, 2, coordinator.references)) == expected
    assert coordinator.instance(raw) is not None


def test_without_room_nothing_is_kept() -> None:
    coordinator = Repeating(room=0)
    assert [coordinator.send_and_learn(every_series(1)) for _ in range(5)] == [False] * 5
    assert (coordinator.templates.bytes, NO_TEMPLATES.bytes) == (0, 0)


def test_small_requests_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_templates, "SERIES_MIN", SERIES + 1)
    coordinator = Repeating()
    assert [coordinator.send_and_learn(every_series(1)) for _ in range(5)] == [False] * 5
    assert coordinator.templates.bytes == 0
