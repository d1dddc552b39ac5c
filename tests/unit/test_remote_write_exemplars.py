"""The exemplars that a remote-write request is split into, against the protobuf library."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.series.exemplars import EXEMPLARS_MAX
from coordinator.series.remote_write import Limits, split
from coordinator.series.split_request import REFUSED_SHOWN_MAX, SplitRequest
from loadtest.harness.remote_write_bodies import UNLIMITED
from proto import remote_write_pb2
from shared import hashing, labels
from shared.errors import Internal, TooLarge
from shared.frames import exemplars as exemplar_frames
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.protobuf_fields import delimited_head
from shared.settings import Settings
from tests.unit.exemplar_requests import NO_MESSAGES, Exemplar, body
from worker.series.exemplar_record import ExemplarRecord, joined

SHARDS = 3
M = {"__name__": "m"}
LIMITS = Limits.of(Settings())

texts = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=8)
names = st.sampled_from(["trace_id", "span_id", "é", "a" * 100, ""]) | texts
pairs = st.lists(st.tuples(names, texts), max_size=4)
times = st.integers(TIME_MS_MIN, TIME_MS_MAX) | st.sampled_from([TIME_MS_MIN - 1, TIME_MS_MAX + 1, -(1 << 63)])
exemplars = st.lists(st.tuples(pairs, st.floats(width=64), times), max_size=4)
series_labels = st.lists(st.tuples(st.sampled_from("abc"), texts), max_size=3).map(
    lambda own: [("__name__", "m"), *own]
)
requests = st.lists(st.tuples(series_labels, st.just([(1, 1.0)]) | st.just([]), exemplars), max_size=4)


def found(answer: SplitRequest) -> Counter:
    """(shard, label bytes of the series, labels, bits of the value, Unix ms) of each exemplar."""
    counted: Counter = Counter()
    for shard, frames in answer.parts.items():
        for frame in filter(exemplar_frames.is_exemplars, frames):
            own = exemplar_frames.parse(bytes(frame))
            runs = np.repeat(np.arange(len(own.counts)), own.counts)
            for i, run in enumerate(runs.tolist()):
                series = own.data[own.starts[run] : own.ends[run]].tobytes()
                assert int(own.hashes[run]) == hashing.hash64(series)
                exemplar_labels = labels.decode(own.labels[own.label_offsets[i] : own.label_offsets[i + 1]].tobytes())
                bits = int(own.values.view(np.uint64)[i])
                counted[shard, series, exemplar_labels, bits, int(own.times_ms[i])] += 1
    return counted


def is_valid(exemplar: Exemplar) -> bool:
    own_labels, _, at_ms = exemplar
    kept = [name for name, value in own_labels if value]
    characters = sum(len(name) + len(value) for name, value in own_labels)
    has_names = all(name for name, _ in own_labels)
    return has_names and len(set(kept)) == len(kept) and characters <= 128 and TIME_MS_MIN <= at_ms <= TIME_MS_MAX


@given(requests)
def test_every_valid_exemplar_is_in_the_shard_of_its_series(requested: list) -> None:
    expected: Counter = Counter()
    refused = 0
    for own_labels, _, own_exemplars in requested:
        kept = [(name, value) for name, value in own_labels if value]
        if len({name for name, _ in own_labels}) < len(own_labels):
            refused += len(own_exemplars)
            continue
        label_bytes = labels.encode(tuple(kept))
        for exemplar in own_exemplars:
            if not is_valid(exemplar):
                refused += 1
                continue
            pairs_kept = sorted((pair for pair in exemplar[0] if pair[1]), key=lambda pair: pair[0].encode())
            bits = int(np.float64(exemplar[1]).view(np.uint64))
            shard = hashing.hash64(label_bytes) % SHARDS
            expected[shard, label_bytes, tuple(pairs_kept), bits, exemplar[2]] += 1
    answer = split(body(requested), SHARDS, LIMITS)
    assert found(answer) == expected
    assert (answer.exemplars, answer.exemplars_refused) == (expected.total(), refused)


def sent(data: bytes, limits: Limits = LIMITS) -> SplitRequest:
    """A split request with one series, one sample and two exemplars: the first has these bytes, the other is valid."""
    series = remote_write_pb2.RawTimeSeries(exemplars=[data, b"\x18\x05"])
    series.labels.add(name=b"__name__", value=b"m")
    series.samples.add(timestamp=1, value=1)
    return split(
        remote_write_pb2.RawWriteRequest(timeseries=[series.SerializeToString()]).SerializeToString(), 1, limits
    )


def label(name: bytes, value: bytes) -> bytes:
    pair = remote_write_pb2.RawLabel(name=name, value=value).SerializeToString()
    return delimited_head(1, len(pair)) + pair


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        *((data, "an exemplar is not an Exemplar message") for data in NO_MESSAGES),
        (b"\x0a\x02\x0a\x09", "an exemplar is not an Exemplar message"),
        (b"\x18" + b"\xff" * 9 + b"\x01", None),
        (b"\x18" + b"\xff" * 8 + b"\x7f", "an exemplar's timestamp is 9223372036854775807 ms; it must lie within"),
        (label(b"a", b"\xff"), "a label of an exemplar is not UTF-8"),
        (label(b"\xff", b"a"), "a label of an exemplar is not UTF-8"),
        (label(b"", b"a"), "a label name of an exemplar is empty"),
        (label(b"a", b"1") + label(b"a", b"2"), "label name 'a' appears twice in an exemplar"),
        (label(b"a", b"1") + label(b"a", b""), None),
        (label(b"a" * 64, b"b" * 64), None),
        (label(b"a" * 64, "é".encode() * 64), None),
        (label(b"a" * 64, b"b" * 65), "the labels of an exemplar have 129 characters; the limit is 128"),
        (label(b"a", b"b" * 100_000), "the labels of an exemplar have 100001 characters; the limit is 128"),
        (b"".join(label(b"%d" % i, b"") for i in range(500)), "have 1390 characters; the limit is 128"),
        (b"\x7a\x03abc\x20\x01\x2d1234", None),
    ],
)
def test_an_exemplar_that_is_not_valid_is_refused_alone_and_named(data: bytes, fault: str | None) -> None:
    answer = sent(data)
    assert answer.samples == 1
    assert found(answer).total() == answer.exemplars == (1 if fault else 2)
    if fault is None:
        assert not answer.refused
    else:
        assert answer.exemplars_refused == answer.refused_count == 1
        assert f'series 0 {{__name__="m"}}: {fault}' in answer.refused[0] or fault in answer.refused[0]


def test_fields_of_an_exemplar_may_come_in_any_order_and_more_than_once() -> None:
    data = label(b"b", b"2") + b"\x18\x07\x11" + b"\x00" * 8 + label(b"a", b"1") + b"\x18\x09"
    ((_, _, own_labels, bits, at_ms),) = [key for key in found(sent(data)) if key[2]]
    assert (own_labels, bits, at_ms) == ((("a", "1"), ("b", "2")), 0, 9)


def test_many_refused_exemplars_are_counted_and_a_few_named() -> None:
    answer = split(body([(M, [], [({}, 1.0, TIME_MS_MAX + 1)] * 1000)]), 1, LIMITS)
    assert answer.refused_count == answer.exemplars_refused == 1000
    assert len(answer.refused) == REFUSED_SHOWN_MAX
    assert not answer.parts


def test_a_refused_exemplar_of_a_series_not_in_canonical_form_is_named_by_its_place_in_the_request() -> None:
    unsorted = [("job", "b"), ("__name__", "m")]
    answer = split(body([(M, [(1, 1.0)], []), (unsorted, [], []), (unsorted, [], [({}, 1.0, 1 << 62)])]), 1, LIMITS)
    assert answer.refused[0].startswith('series 2 {__name__="m", job="b"}: an exemplar')


def test_exemplars_without_end_are_refused() -> None:
    count = EXEMPLARS_MAX + 1
    with pytest.raises(TooLarge, match="the request has 100001 exemplars; the limit is 100000"):
        split(body([(M, [], [({}, 1.0, 1)] * count)]), 1, LIMITS)


def test_the_labels_of_a_series_are_sent_once_for_all_its_exemplars() -> None:
    large = {**M, "x": "y" * 60_000}
    answer = split(body([(large, [], [({"a": str(i)}, 1.0, i) for i in range(1000)])]), SHARDS, LIMITS)
    assert sum(len(frame) for frames in answer.parts.values() for frame in frames) < 200_000


def test_exemplars_that_are_switched_off_are_counted_and_skipped() -> None:
    off = Limits.of(Settings(exemplars_bytes=0))
    answer = sent(b"\x0a", off)
    assert (answer.exemplars, answer.exemplars_left_out, answer.refused_count) == (0, 2, 0)
    assert not found(answer)


@given(st.binary(max_size=300) | st.integers(0, 40).map(lambda n: exemplar_frames.MARK.to_bytes(8, "little") * n))
def test_what_is_no_frame_is_an_internal_error(data: bytes) -> None:
    with pytest.raises(Internal, match=r"shared\.frames\.exemplars"):
        exemplar_frames.parse(data)


@given(st.lists(exemplars, min_size=1, max_size=3))
def test_joined_frames_have_the_exemplars_of_each(parts: list) -> None:
    frames = []
    expected: Counter = Counter()
    for number, own in enumerate(parts):
        answer = split(body([({**M, "n": str(number)}, [], own)]), 1, UNLIMITED)
        expected += found(answer)
        frames += answer.parts.get(0, [])
    if frames:
        records, series = [], []
        for frame in frames:
            own = exemplar_frames.parse(frame)
            records.append(ExemplarRecord.of_columns(own, np.arange(len(own.counts)) + len(series)))
            series += [own.data[a:b].tobytes() for a, b in zip(own.starts, own.ends, strict=True)]
        together = joined(records)
        assert len(together) == expected.total()
        decoded = [labels.decode(together.labels[a:b].tobytes()) for a, b in pairwise(together.label_offsets.tolist())]
        assert Counter(decoded) == Counter({key[2]: 0 for key in expected}) + Counter(
            key[2] for key in expected.elements()
        )
        assert {series[row] for row in together.series.tolist()} == set(series) == {key[1] for key in expected}
