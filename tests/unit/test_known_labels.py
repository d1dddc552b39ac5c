"""Label sets that were sent before: what is split is the same as without them, whatever is kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.series import known_labels, remote_write_v2
from coordinator.series.known_labels import (
    KNOWN_SET,
    LABEL_BYTES_MAX,
    LEFT_OUT,
    NO_TABLES,
    REFERENCES_MAX,
    SETS,
    SYMBOLS,
    KnownLabels,
    Tables,
)
from coordinator.series.remote_write import Limits
from coordinator.series.remote_write_v2 import KEEPS_NONE, Survey
from coordinator.series.split_request import SplitRequest
from loadtest.harness.remote_write_bodies import UNLIMITED, Series, body_v2, request_v2
from proto import remote_write_v2_pb2
from shared.protobuf_fields import delimited_head
from tests.unit.test_remote_write import LIMITS, series
from tests.unit.test_remote_write_v2 import BYTES_MAX, GOOD, frames_of

ROOM = 1 << 20
SET_BYTES = known_labels._SET_BYTES_MAX
values = st.sampled_from(["x", "y", "zz", "a value of more than sixteen bytes", "é", "x" * 7, "x" * 8])
sorted_series = st.tuples(
    st.dictionaries(st.sampled_from(["a", "b", "c", "label_with_a_name"]), values, max_size=3),
    st.sampled_from(["m", "n"]),
    st.lists(st.tuples(st.integers(0, 9), st.floats(width=64)), max_size=2),
).map(lambda parts: ({**parts[0], "__name__": parts[1]}, parts[2]))
requests = st.lists(st.lists(sorted_series | series, max_size=6), min_size=1, max_size=8)


def surveyed(raw: bytes, labels: KnownLabels, limits: Limits = LIMITS) -> Survey:
    return remote_write_v2.survey(raw, limits, BYTES_MAX, known_labels=labels)


def split(raw: bytes, labels: KnownLabels, limits: Limits = LIMITS) -> SplitRequest:
    return remote_write_v2.split(surveyed(raw, labels, limits), 3, limits)


def known_in(raw: bytes, labels: KnownLabels, limits: Limits = LIMITS) -> list[bool]:
    """Which series of a request are known."""
    return (surveyed(raw, labels, limits).recognised[:, KNOWN_SET] >= 0).tolist()


def tables_of(labels: KnownLabels) -> Tables:
    with labels.lent() as tables:
        return tables


def named(metric: str, count: int = 1, **more: str) -> list[Series]:
    return [({"__name__": metric, "number": str(i), **more}, [(i, 1.0)]) for i in range(count)]


def assert_same(raw: bytes, labels: KnownLabels, limits: Limits = LIMITS) -> None:
    """A request is split as it is without known labels, and so is what the survey says of it."""
    first, second = surveyed(raw, labels, limits), surveyed(raw, KEEPS_NONE, limits)
    assert first.label_bytes == second.label_bytes
    assert first.steps == second.steps
    assert (first.walk.table == second.walk.table).all()
    assert (first.metadata_table == second.metadata_table).all()
    assert (first.metadata_keys == second.metadata_keys).all()
    one, other = (remote_write_v2.split(each, 3, limits) for each in (first, second))
    assert frames_of(one) == frames_of(other)
    one.parts, other.parts = {}, {}
    assert one == other


@settings(max_examples=300, deadline=None)
@given(requests, st.sampled_from([1, 2, 4, 1000]))
def test_requests_are_split_as_without_known_labels_however_little_room_there_is(sent: list, sets: int) -> None:
    labels = KnownLabels(sets * SET_BYTES)
    for requested in sent:
        assert_same(body_v2(requested), labels)


@settings(max_examples=100, deadline=None)
@given(requests, st.integers(0, 1 << 30))
def test_symbols_may_repeat_and_come_in_any_order(sent: list, seed: int) -> None:
    labels, random = KnownLabels(ROOM), Random(seed)
    for requested in sent:
        request = request_v2(requested)
        old = [*request.symbols]
        texts = 2 * old[1:]
        random.shuffle(texts)
        texts.insert(0, "")
        request.symbols[:] = texts
        for entry in request.timeseries:
            same = [[i for i, text in enumerate(texts) if text == old[place]] for place in entry.labels_refs]
            entry.labels_refs[:] = [random.choice(places) for places in same]
        assert_same(request.SerializeToString(), labels)


def test_series_that_were_sent_before_are_known_in_any_order() -> None:
    labels = KnownLabels(ROOM)
    split(body_v2(named("m", 5)), labels)
    assert known_in(body_v2(named("m", 5)), labels) == [True] * 5
    assert known_in(body_v2([*named("n", 2), *named("m", 6)[::-1]]), labels) == [False] * 3 + [True] * 5
    assert_same(body_v2(named("m", 6)[::-1]), labels)


def test_a_set_is_not_taken_for_one_that_begins_like_it() -> None:
    shorter, longer = named("m"), named("m", z="1")
    for first, second in ((shorter, longer), (longer, shorter)):
        labels = KnownLabels(ROOM)
        split(body_v2(first), labels)
        assert known_in(body_v2(second), labels) == [False]
        assert_same(body_v2(second), labels)
        assert known_in(body_v2([*first, *second]), labels) == [True, True]


def test_series_that_are_not_valid_are_not_kept() -> None:
    labels = KnownLabels(ROOM)
    request = request_v2([GOOD])
    request.symbols.extend(["a", "b", "", "x" * (LIMITS.value_bytes + 1)])
    own = remote_write_v2_pb2.Sample(value=1, timestamp=1)
    for references in ([3, 4], [1, 2, 3], [1, 2, 3, 3, 3, 4], [3, 4, 1, 2], [1, 2, 3, 5], [1, 2, 3, 6], [1, 2, 0, 3]):
        request.timeseries.add(labels_refs=references, samples=[own])
    for _ in range(2):
        raw = request.SerializeToString()
        assert_same(raw, labels)
        assert known_in(raw, labels) == [True] + [False] * 7
    used = tables_of(labels).used
    assert (used[SETS], used[SYMBOLS]) == (1, 2)


def test_a_known_text_whose_length_is_not_in_its_shortest_form_is_read_like_an_unknown_one() -> None:
    labels = KnownLabels(ROOM)
    split(body_v2([GOOD]), labels)
    raw = body_v2([GOOD]).replace(b"\x22\x04good", b"\x22\x84\x00good")
    assert known_in(raw, labels) == [False]
    assert_same(raw, labels)


def test_references_behind_another_field_or_in_two_fields_are_read() -> None:
    labels = KnownLabels(ROOM)
    sample = remote_write_v2_pb2.TimeSeries(samples=[remote_write_v2_pb2.Sample(value=1, timestamp=1)])
    symbols, references = b"\x22\x00\x22\x08__name__\x22\x01m\x22\x01n", b"\x0a\x02\x01\x02"
    known = references + sample.SerializeToString()
    split(symbols + delimited_head(5, len(known)) + known, labels)
    for fields in (
        sample.SerializeToString() + references,
        references + references + sample.SerializeToString(),
        b"\x0a\x00" + references + sample.SerializeToString(),
        b"\x0a\x82\x00\x01\x02" + sample.SerializeToString(),
        known,
    ):
        raw = symbols + delimited_head(5, len(fields)) + fields
        assert known_in(raw, labels)[0] == fields.startswith(references)
        assert_same(raw, labels)


def test_sets_and_texts_with_one_hash_are_told_apart() -> None:
    labels = KnownLabels(ROOM)
    tables = tables_of(labels)
    tables.factors[:] = 0
    for metric in ("m", "n", "m"):
        assert_same(body_v2(named(metric, 20)), labels)
    assert tables.used[SETS] == known_labels.PROBES_MAX
    slots = np.flatnonzero(tables.symbol_slots)
    tags, numbers = tables.symbol_slots[slots] >> 32 << 32, tables.symbol_slots[slots] & 0xFFFFFFFF
    tables.symbol_slots[slots] = tags | np.roll(numbers, 1)  # those of other texts
    assert_same(body_v2(named("n", 20)[::-1]), labels)


def test_when_many_sets_found_no_room_the_tables_start_anew() -> None:
    labels = KnownLabels(4 * SET_BYTES)
    split(body_v2(named("m", 6)), labels)
    assert known_in(body_v2(named("m", 6)), labels) == [True] * 4 + [False] * 2
    held = surveyed(body_v2(named("m", 6)), labels)
    for _ in range(8):
        split(body_v2(named("n", 2)), labels)
    assert tables_of(labels).used[LEFT_OUT] == 0
    assert labels.generation == 1
    split(body_v2(named("n", 4)), labels)
    assert known_in(body_v2([*named("n", 4), *named("m", 1)]), labels) == [True] * 4 + [False]
    expected = frames_of(split(body_v2(named("m", 6)), KEEPS_NONE))
    assert frames_of(remote_write_v2.split(held, 3, LIMITS)) == expected


def test_long_sets_are_not_kept() -> None:
    limits = Limits(256, 1 << 16, 1 << 16)
    labels = KnownLabels(ROOM)
    many: list[Series] = [({"__name__": "m", **{f"l{i:03}": "x" for i in range(REFERENCES_MAX // 2)}}, [(1, 1.0)])]
    for raw in (body_v2(named("m", a="x" * LABEL_BYTES_MAX)), body_v2(many)):
        split(raw, labels, limits)
        assert known_in(raw, labels, limits) == [False]
        assert_same(raw, labels, limits)
    assert tables_of(labels).used[SETS] == 0


def test_while_another_thread_has_the_tables_nothing_is_known_and_nothing_waits() -> None:
    labels = KnownLabels(ROOM)
    raw = body_v2(named("m", 3))
    split(raw, labels)
    before = surveyed(raw, labels)
    with labels.lent() as tables:
        assert tables is not NO_TABLES
        assert known_in(raw, labels) == [False] * 3
        assert frames_of(remote_write_v2.split(before, 3, LIMITS)) == frames_of(split(raw, KEEPS_NONE))
    assert known_in(raw, labels) == [True] * 3


def test_requests_of_several_threads_are_split_as_alone() -> None:
    labels = KnownLabels(700 * SET_BYTES)
    bodies = [body_v2(named(f"m{i % 5}", 100 + 50 * i)) for i in range(16)]
    expected = [frames_of(split(raw, KEEPS_NONE, UNLIMITED)) for raw in bodies]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            assert list(pool.map(lambda raw: frames_of(split(raw, labels, UNLIMITED)), bodies)) == expected
    assert labels.generation > 0


@pytest.mark.parametrize("room", [0, SET_BYTES - 1, SET_BYTES, 10_000, 100_000, 1 << 20, 3_000_001])
def test_the_tables_take_no_more_than_they_may(room: int) -> None:
    labels = KnownLabels(room)
    tables = tables_of(labels)
    assert (tables is NO_TABLES) == (room < SET_BYTES)
    before = labels.bytes
    split(body_v2(named("m", 100)), labels)
    assert (labels.bytes > before) == (room >= SET_BYTES)
    if room >= SET_BYTES:
        assert labels.bytes <= sum(part.nbytes for part in tables if part is not tables.factors) <= room + 64
