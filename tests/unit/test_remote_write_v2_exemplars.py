"""Exemplars by remote write 2.0: the same as by version 1.0, and what references can do wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from coordinator.series import remote_write, remote_write_v2
from coordinator.series.exemplars import EXEMPLARS_MAX
from coordinator.series.remote_write import Limits
from coordinator.series.split_request import REFUSED_SHOWN_MAX, SplitRequest
from loadtest.harness.remote_write_bodies import UNLIMITED
from proto import remote_write_v2_pb2
from shared.errors import TooLarge
from shared.frames.samples import TIME_MS_MAX
from shared.protobuf_fields import delimited_head
from shared.settings import Settings
from tests.unit import exemplar_requests
from tests.unit.exemplar_requests import NO_MESSAGES, body, body_v2
from tests.unit.test_remote_write_exemplars import LIMITS, SHARDS, M, found, requests

BYTES_MAX = 1 << 30
SYMBOLS = ["", "__name__", "m", "trace_id", "abc", "span_id", "y" * 122, "é" * 120, "job", "z" * 100_000]
NAME, M_, TRACE, ABC, SPAN, LONG, WIDE, JOB, HUGE = range(1, 10)


def split(raw: bytes, shards: int = SHARDS, limits: Limits = LIMITS, bytes_max: int = BYTES_MAX) -> SplitRequest:
    return remote_write_v2.split(remote_write_v2.survey(raw, limits, bytes_max), shards, limits)


def series_field(content: bytes) -> bytes:
    return delimited_head(5, len(content)) + content


def sent(*exemplars: bytes, limits: Limits = LIMITS, more: bytes = b"") -> SplitRequest:
    """A split request with one series, one sample and these bytes as its exemplars, followed by `more`."""
    table = remote_write_v2_pb2.Request(symbols=SYMBOLS).SerializeToString()
    series = remote_write_v2_pb2.RawTimeSeries(labels_refs=[NAME, M_], exemplars=exemplars)
    series.samples.add(timestamp=1, value=1)
    return split(table + series_field(series.SerializeToString() + more), 1, limits)


def exemplar(*references: int, timestamp: int = 5) -> bytes:
    return remote_write_v2_pb2.Exemplar(labels_refs=references, timestamp=timestamp).SerializeToString()


def unpacked(*references: int) -> bytes:
    return b"".join(b"\x08" + bytes([reference]) for reference in references)


@settings(max_examples=200)
@given(requests)
def test_the_same_exemplars_are_split_into_the_same_frames_by_both_versions(requested: list) -> None:
    first, second = remote_write.split(body(requested), SHARDS, LIMITS), split(body_v2(requested))
    assert {shard: [bytes(frame) for frame in frames] for shard, frames in second.parts.items()} == {
        shard: [bytes(frame) for frame in frames] for shard, frames in first.parts.items()
    }
    assert (second.exemplars, second.exemplars_refused) == (first.exemplars, first.exemplars_refused)
    assert (second.refused, second.refused_count) == (first.refused, first.refused_count)
    assert second.exemplars_left_out == 0


@settings(max_examples=100)
@given(requests)
def test_the_labels_take_no_more_than_the_survey_says(requested: list) -> None:
    surveyed = remote_write_v2.survey(body_v2(requested), LIMITS, BYTES_MAX)
    read = surveyed.exemplars.read(surveyed.walk.body, surveyed.symbols)
    assert len(read.table) == sum(len(exemplars) for _, _, exemplars in requested)
    assert sum(read.table[:, -4] - read.table[:, -5]) <= surveyed.exemplars.label_bytes <= surveyed.resolved_bytes


@pytest.mark.parametrize("more", [b"", b"\x78\x00"], ids=["plain", "odd"])
@pytest.mark.parametrize(
    ("data", "fault"),
    [
        *((data, "an exemplar is not an Exemplar message") for data in NO_MESSAGES),
        (b"\x0a\x02\x03\x84", "an exemplar is not an Exemplar message"),
        (b"\x0a\x0b" + b"\xff" * 10 + b"\x01", "an exemplar is not an Exemplar message"),
        (b"\x18" + b"\xff" * 9 + b"\x01", None),
        (exemplar(timestamp=TIME_MS_MAX + 1), f"an exemplar's timestamp is {TIME_MS_MAX + 1} ms; it must lie within"),
        (exemplar(TRACE), "an exemplar has 1 label references; they must be pairs of name and value"),
        (exemplar(TRACE, ABC, SPAN), "an exemplar has 3 label references; they must be pairs of name and value"),
        (exemplar(TRACE, 10), "a label reference of an exemplar is 10; the request has 10 symbols, counted from 0"),
        (exemplar((1 << 32) - 1, 0), "a label reference of an exemplar is 4294967295; the request has 10 symbols"),
        (exemplar(0, ABC), "a label name of an exemplar is empty"),
        (exemplar(TRACE, ABC, TRACE, M_), "label name 'trace_id' appears twice in an exemplar"),
        (exemplar(TRACE, ABC, TRACE, 0), None),
        (exemplar(JOB, LONG), None),
        (exemplar(TRACE, WIDE), None),
        (exemplar(JOB, LONG, M_, LONG), "the labels of an exemplar have 248 characters; the limit is 128"),
        (exemplar(HUGE, HUGE), "the labels of an exemplar have 200000 characters; the limit is 128"),
        (exemplar(*[JOB, 0] * 500), "the labels of an exemplar have 1500 characters; the limit is 128"),
        (b"\x0a\x01\x03" + unpacked(ABC) + b"\x0a\x02\x05\x04\x7a\x03abc\x20\x01\x2d1234", None),
        (b"\x0a\x0c\x83\x80\x80\x80\xf0\xff\xff\xff\xff\x01\x84\x00", None),
    ],
)
def test_an_exemplar_that_is_not_valid_is_refused_alone_and_named(data: bytes, fault: str | None, more: bytes) -> None:
    answer = sent(data, exemplar(), more=more)
    assert answer.samples == 1
    assert found(answer).total() == answer.exemplars == (1 if fault else 2)
    if fault is None:
        assert not answer.refused
    else:
        assert answer.exemplars_refused == answer.refused_count == 1
        assert answer.refused[0].startswith(f'series 0 {{__name__="m"}}: {fault}')


@pytest.mark.parametrize("reference", [1, 2])
def test_a_text_that_is_not_utf8_is_refused_as_name_and_as_value(reference: int) -> None:
    table = b"\x22\x00\x22\x01\xff\x22\x01a\x22\x08__name__\x22\x01m"
    series = remote_write_v2_pb2.TimeSeries(labels_refs=[3, 4])
    for _ in range(2):
        series.exemplars.add(labels_refs=[reference, 3 - reference], timestamp=1)
    series.exemplars.add(labels_refs=[2, 2], timestamp=1)
    answer = split(table + series_field(series.SerializeToString()), 1)
    assert (answer.exemplars, answer.exemplars_refused) == (1, 2)
    assert answer.refused == ['series 0 {__name__="m"}: a label of an exemplar is not UTF-8'] * 2


def test_fields_of_an_exemplar_may_come_in_any_order_and_more_than_once() -> None:
    data = unpacked(TRACE, ABC) + b"\x18\x07\x11" + b"\x00" * 8 + b"\x0a\x02\x08\x02\x18\x09"
    ((_, _, own_labels, bits, at_ms),) = found(sent(data))
    assert (own_labels, bits, at_ms) == ((("job", "m"), ("trace_id", "abc")), 0, 9)


def test_exemplars_may_stand_before_and_between_the_other_fields_of_a_series() -> None:
    table = remote_write_v2_pb2.Request(symbols=SYMBOLS).SerializeToString()
    one = b"\x22" + bytes([len(exemplar(TRACE, ABC))]) + exemplar(TRACE, ABC)
    sample = b"\x12\x02\x10\x01"
    answer = split(table + series_field(one + b"\x0a\x02\x01\x02" + one + sample + one))
    assert (answer.samples, answer.exemplars, answer.refused) == (1, 3, [])
    assert found(answer).total() == 3


def test_series_with_exemplars_only_are_kept_among_others() -> None:
    own = [({**M, "i": str(i)}, [(1, 1.0)] * (i % 2), [({"t": str(i)}, 1.0, i)] * (i % 3 > 0)) for i in range(12)]
    unsorted = [([*reversed(labels.items())], samples, exemplars) for labels, samples, exemplars in own]
    answer = split(body_v2(own + unsorted))
    assert found(answer) == found(remote_write.split(body(own + unsorted), SHARDS, LIMITS))
    assert (answer.samples, answer.exemplars) == (12, 16)


def test_the_exemplars_of_a_refused_series_are_counted() -> None:
    one = [({"t": "1"}, 1.0, 1)]
    answer = split(body_v2([(M, [], one), ({"job": "a"}, [(1, 1.0)], one * 3), ([("b", "c"), *M.items()], [], one)]))
    assert (answer.exemplars, answer.exemplars_refused, answer.refused_count) == (2, 3, 1)


def test_exemplars_behind_a_group_are_not_lost_in_silence() -> None:
    answer = sent(exemplar(), more=b"\x7b\x7c\x22\x02\x18\x05")
    assert (answer.samples, answer.exemplars, answer.exemplars_refused) == (1, 1, 1)
    assert answer.refused == ["series 0: 1 exemplars come after a group, a kind of field that is not read"]


def test_many_refused_exemplars_are_counted_and_a_few_named() -> None:
    answer = split(body_v2([(M, [], [({}, 1.0, TIME_MS_MAX + 1)] * 1000)]))
    assert answer.refused_count == answer.exemplars_refused == 1000
    assert len(answer.refused) == REFUSED_SHOWN_MAX
    assert not answer.parts


@pytest.mark.parametrize("pairs", [M, [("job", "b"), ("__name__", "m")]], ids=["plain", "odd"])
def test_exemplars_without_end_are_refused(pairs: exemplar_requests.Pairs) -> None:
    count = EXEMPLARS_MAX + 1
    with pytest.raises(TooLarge, match="the request has 100001 exemplars; the limit is 100000"):
        split(body_v2([(pairs, [], [({}, 1.0, 1)] * count)]))


def test_labels_that_take_more_than_a_body_may_are_refused_before_they_are_written() -> None:
    raw = body_v2([(M, [], [({"t": "é" * 127}, 1.0, i) for i in range(1000)])])
    assert len(raw) < 20_000
    with pytest.raises(TooLarge, match=r"with the labels that its exemplars refer to more than 100000, .*TRIPTYCH"):
        split(raw, bytes_max=100_000)
    assert split(raw, bytes_max=300_000).exemplars == 1000


@pytest.mark.parametrize("limits", [LIMITS, UNLIMITED])
def test_a_long_text_is_read_once_however_many_exemplars_refer_to_it(limits: Limits) -> None:
    """Read for each of them, it would be 100 GB."""
    request = remote_write_v2_pb2.Request(symbols=["", "__name__", "m", "x" * 1_000_000])
    entry = request.timeseries.add(labels_refs=[1, 2])
    for _ in range(100_000):
        entry.exemplars.add(labels_refs=[1, 3], timestamp=1)
    answer = split(request.SerializeToString(), limits=limits)
    assert (answer.exemplars, answer.exemplars_refused) == (0, 100_000)
    assert "have 1000008 characters" in answer.refused[0]


def test_exemplars_that_are_switched_off_are_counted_and_left_out() -> None:
    off = Limits.of(Settings(exemplars_bytes=0))
    for more in (b"", b"\x78\x00"):
        answer = sent(b"\x0a", exemplar(), limits=off, more=more)
        assert (answer.samples, answer.exemplars, answer.exemplars_left_out, answer.refused_count) == (1, 0, 2, 0)
        assert not found(answer)
