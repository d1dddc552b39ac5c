"""Remote write 2.0: the same content stores the same frames as by version 1.0, and faults are named, one by one."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.series import metadata, remote_write, remote_write_v2
from coordinator.series.remote_write import Limits
from coordinator.series.split_request import SplitRequest
from coordinator.series.walk import PLAIN, STATUS
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import UNLIMITED, body, body_v2, request_v2
from proto import remote_write_v2_pb2
from shared.errors import BadData, TooLarge
from shared.frames import exemplars as exemplar_frames
from shared.frames import samples as sample_frames
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.messages.series import FamilyMetadata
from shared.protobuf_fields import delimited_head, varint
from tests.unit.test_remote_write import LIMITS, SHARDS, any_times, parts_of, series, texts

BYTES_MAX = 1 << 30
GOOD = ({"__name__": "good"}, [(1, 1.0)])
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]


def split(raw: bytes, shards: int = 1, limits: Limits = LIMITS, known: frozenset[int] = frozenset()) -> SplitRequest:
    return remote_write_v2.split(remote_write_v2.survey(raw, limits, BYTES_MAX, known), shards, limits)


def frames_of(answer: SplitRequest) -> dict[int, list[bytes]]:
    return {shard: [bytes(frame) for frame in frames] for shard, frames in answer.parts.items()}


def one_series(**fields: object) -> remote_write_v2_pb2.Request:
    """The series `good`, and one after it with these fields; symbols are "", "__name__", "good", "a", "b"."""
    request = request_v2([GOOD])
    request.symbols.extend(["a", "b"])
    request.timeseries.add(**fields)
    return request


@settings(max_examples=200, deadline=None)
@given(st.lists(series, max_size=6))
def test_the_same_content_is_split_into_the_same_frames_by_both_versions(requested: list) -> None:
    first, second = remote_write.split(body(requested), SHARDS, LIMITS), split(body_v2(requested), SHARDS)
    assert frames_of(second) == frames_of(first)
    assert second.samples == first.samples
    assert second.refused == first.refused
    assert second.refused_count == first.refused_count


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcdeé"), unique=True, max_size=6), min_size=1, max_size=8),
    st.lists(texts.filter(bool), min_size=1, max_size=4),
)
def test_sorted_series_of_changing_shapes_are_plain(shapes: list[list[str]], values: list[str]) -> None:
    own = [
        {"__name__": "m", **{name: values[(i + j) % len(values)] for j, name in enumerate(shape)}}
        for i, shape in enumerate(shapes)
    ]
    requested = [(labels, [(i, float(i))]) for i, labels in enumerate(own)]
    surveyed = remote_write_v2.survey(body_v2(requested), UNLIMITED, BYTES_MAX)
    assert (surveyed.walk.table[:, STATUS] == PLAIN).all()
    first = remote_write.split(body(requested), SHARDS, UNLIMITED)
    assert frames_of(remote_write_v2.split(surveyed, SHARDS, UNLIMITED)) == frames_of(first)


def test_names_in_the_order_of_an_earlier_series_are_not_taken_for_those_of_the_last() -> None:
    shapes = ["abc", "ad", "adc", "abc", "acb", "ac", "acb", "abc", "ab", "abc"]
    own = [([("__name__", "m"), *((name, "x") for name in names)], [(i, 1.0)]) for i, names in enumerate(shapes)]
    surveyed = remote_write_v2.survey(body_v2(own), UNLIMITED, BYTES_MAX)
    is_plain = surveyed.walk.table[:, STATUS] == PLAIN
    assert is_plain.tolist() == [list(names) == sorted(names) for names in shapes]


@given(st.lists(st.tuples(any_times, st.floats(width=64), st.just(0) | any_times), max_size=4), st.booleans())
def test_start_timestamps_are_stored_beside_the_samples(samples: list[tuple[int, float, int]], is_odd: bool) -> None:
    labels = [("a", "x"), ("__name__", "m")] if is_odd else [("__name__", "m"), ("a", "x")]
    request = request_v2([(labels, [])])
    for timestamp, value, start in samples:
        request.timeseries[0].samples.add(timestamp=timestamp, value=value, start_timestamp=start)
    is_valid = [all(TIME_MS_MIN <= t <= TIME_MS_MAX for t in (time, start)) for time, _, start in samples]
    kept = [sample for sample, valid in zip(samples, is_valid, strict=True) if valid]
    first = remote_write.split(body([(labels, [sample[:2] for sample in kept])]), 1, LIMITS)
    second = split(request.SerializeToString())
    assert parts_of(second) == parts_of(first) or any(np.isnan(value) for _, value, _ in samples)
    assert second.refused_count == len(samples) - len(kept)
    for frame in second.parts.get(0, []):
        starts = sample_frames.parse(bytes(frame)).start_timestamps_ms
        assert (starts is None) == (not any(start for _, _, start in kept))
        assert starts is None or starts.tolist() == [start for _, _, start in kept]


@pytest.mark.parametrize("is_odd", [False, True])
def test_created_timestamps_of_earlier_drafts_and_stale_markers_are_taken(is_odd: bool) -> None:
    message = remote_write_v2_pb2.TimeSeries(labels_refs=[1, 2])
    message.samples.add(timestamp=5, value=STALE)
    raw = message.SerializeToString() + b"\x30" + varint(1_700_000_000_000) + (b"\x78\x01" if is_odd else b"")
    answer = split(b"\x22\x00\x22\x08__name__\x22\x01m" + delimited_head(5, len(raw)) + raw)
    assert (answer.samples, answer.refused) == (1, [])
    [frame] = answer.parts[0]
    assert struct.pack("<Q", 0x7FF0000000000002) in bytes(frame)
    starts = sample_frames.parse(bytes(frame)).start_timestamps_ms
    assert starts is not None
    assert starts.tolist() == [1_700_000_000_000]


@pytest.mark.parametrize("is_odd", [False, True])
def test_a_created_timestamp_is_that_of_samples_without_one_of_their_own(is_odd: bool) -> None:
    message = remote_write_v2_pb2.RawTimeSeries(labels_refs=[1, 2], created_timestamp=7)
    for time, start in ((10, 0), (20, 9)):
        message.samples.add(timestamp=time, start_timestamp=start)
        message.histograms.append(histogram_message(timestamp=time + 1, start_timestamp=start))
    raw = message.SerializeToString() + (b"\x78\x01" if is_odd else b"")
    answer = split(b"\x22\x00\x22\x08__name__\x22\x01m" + delimited_head(5, len(raw)) + raw)
    frames = [sample_frames.parse(bytes(frame)) for frame in answer.parts[0]]
    assert [columns.times_ms.tolist() for columns in frames] == [[10, 20], [11, 21]]
    starts = [columns.start_timestamps_ms for columns in frames]
    assert [None if own is None else own.tolist() for own in starts] == [[7, 9], [7, 9]]


def test_a_created_timestamp_out_of_range_refuses_the_samples_that_need_it() -> None:
    message = remote_write_v2_pb2.RawTimeSeries(labels_refs=[1, 2], created_timestamp=1 << 62)
    for time, start in ((10, 0), (20, 9)):
        message.samples.add(timestamp=time, start_timestamp=start)
        message.histograms.append(histogram_message(timestamp=time, start_timestamp=start))
    raw = message.SerializeToString()
    answer = split(b"\x22\x00\x22\x08__name__\x22\x01m" + delimited_head(5, len(raw)) + raw)
    assert (answer.samples, answer.histograms, answer.refused_count) == (1, 1, 2)
    assert [f"start timestamp is {1 << 62} ms" in text for text in answer.refused] == [True, True]


def test_fields_between_samples_are_passed_over() -> None:
    samples = [
        remote_write_v2_pb2.TimeSeries(samples=[remote_write_v2_pb2.Sample(value=i, timestamp=i)]) for i in (1, 2)
    ]
    first, second = (message.SerializeToString() for message in samples)
    raw = b"\x0a\x02\x01\x02" + first + b"\x30\x0b" + second + b"\x22\x00" + first
    answer = split(b"\x22\x00\x22\x08__name__\x22\x04good" + delimited_head(5, len(raw)) + raw)
    samples_frame, exemplars_frame = frames_of(answer)[0]
    columns = sample_frames.parse(samples_frame)
    assert (columns.times_ms.tolist(), columns.values.tolist()) == ([1, 2, 1], [1.0, 2.0, 1.0])
    assert columns.start_timestamps_ms is not None
    assert columns.start_timestamps_ms.tolist() == [11, 11, 11]
    assert exemplar_frames.parse(exemplars_frame).times_ms.tolist() == [0]


def test_what_follows_an_odd_number_of_references_is_not_one() -> None:
    request = request_v2([GOOD, ({f"l{i:02}": "x" for i in range(15)}, [(1, 1.0)])])
    del request.timeseries[1].labels_refs[:]
    request.timeseries[1].labels_refs.extend([1, 2, 3])  # then the tag of a sample, 18, which is the number of a symbol
    assert len(request.symbols) > 18
    answer = split(request.SerializeToString())
    assert answer.samples == 1
    assert answer.refused == ["series 1: it has 3 label references; they must be pairs of name and value"]


def test_references_that_are_not_packed_and_symbols_behind_the_series_are_read() -> None:
    message = (
        b"\x08\x01\x08\x02"
        + remote_write_v2_pb2.TimeSeries(samples=[remote_write_v2_pb2.Sample(value=1, timestamp=1)]).SerializeToString()
    )
    answer = split(delimited_head(5, len(message)) + message + b"\x22\x00\x22\x08__name__\x22\x04good")
    assert frames_of(answer) == frames_of(remote_write.split(body([GOOD]), 1, LIMITS))


def test_lengths_not_in_shortest_form_and_fields_of_later_versions_are_read() -> None:
    raw = body_v2([GOOD]).replace(b"\x22\x04good", b"\x22\x84\x00good") + b"\x7a\x01x\x80\x01\x05"
    answer = split(raw)
    assert frames_of(answer) == frames_of(remote_write.split(body([GOOD]), 1, LIMITS))


@pytest.mark.parametrize(
    ("references", "reason"),
    [
        ([1], "it has 1 label references; they must be pairs of name and value"),
        ([1, 2, 3], "it has 3 label references; they must be pairs of name and value"),
        ([1, 5], "a label reference is 5; the request has 5 symbols, counted from 0"),
        ([7, 2], "a label reference is 7"),
        ([1, 1 << 31], "a label reference is 2147483648"),
        ([1, (1 << 32) - 1], "a label reference is 4294967295"),
        ([], "no label __name__"),
        ([3, 4], "no label __name__"),
        ([1, 0], "no label __name__"),
        ([1, 2, 0, 3], "a label name is empty"),
        ([1, 2, 3, 4, 3, 3], "label name 'a' appears twice"),
        ([1, 2] * 17, "17 labels; the limit is 16"),
        ([1, 2] * 10_000, "it has 10000 labels; the limit is 16"),
    ],
)
def test_a_series_with_wrong_references_is_named_and_the_others_are_kept(references: list[int], reason: str) -> None:
    request = one_series(labels_refs=references, samples=[remote_write_v2_pb2.Sample(value=1, timestamp=1)])
    answer = split(request.SerializeToString())
    assert (answer.samples, answer.refused_count) == (1, 1)
    assert answer.refused[0].startswith("series 1")
    assert reason in answer.refused[0]


def test_labels_that_are_not_sorted_or_empty_are_made_canonical_as_by_version_1() -> None:
    own = [([("b", "x"), ("a", ""), ("__name__", "m")], [(1, 1.0)]), GOOD]
    assert frames_of(split(body_v2(own), SHARDS)) == frames_of(remote_write.split(body(own), SHARDS, LIMITS))


@pytest.mark.parametrize("place", ["name", "value"])
def test_a_symbol_that_is_not_utf8_is_refused_where_a_label_is_made_of_it(place: str) -> None:
    raw = one_series(
        labels_refs=[1, 2, 3, 4], samples=[remote_write_v2_pb2.Sample(value=1, timestamp=1)]
    ).SerializeToString()
    raw = raw.replace(b"\x22\x01a" if place == "name" else b"\x22\x01b", b"\x22\x01\xff")
    answer = split(raw)
    assert (answer.samples, answer.refused_count) == (1, 1)
    assert "is not UTF-8 at byte 0" in answer.refused[0]
    assert split(raw.replace(b"\x0a\x04\x01\x02\x03\x04", b"\x0a\x02\x01\x02\x78\x00")).refused == []


@pytest.mark.parametrize(("name", "value", "reason"), [("a" * 65, "x", "has 65 bytes"), ("a", "x" * 257, "257 bytes")])
def test_long_texts_are_refused_as_by_version_1(name: str, value: str, reason: str) -> None:
    answer = split(body_v2([GOOD, ({"__name__": "m", name: value}, [(1, 1.0)])]))
    assert (answer.samples, answer.refused_count) == (1, 1)
    assert reason in answer.refused[0]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "has no symbols; the first must be the empty string"),
        (body([GOOD]), "has no symbols"),
        (b"\x22\x01a" + body_v2([GOOD]), "the first of 4 symbols has 1 bytes; it must be the empty string"),
        (b"\x22\x00\x22", "the field at byte 2 is truncated"),
        (b"\x22\x00\x2a\x05abc", "the field at byte 2 is truncated"),
        (b"\x22\x00\x2a\xff\xff\xff\xff\xff", "the field at byte 2 is truncated"),
        (b"\x22\x00\xff\xff\xff\xff\xff\xff", "the field at byte 2 is truncated"),
    ],
)
def test_what_is_no_request_is_bad_data(raw: bytes, reason: str) -> None:
    with pytest.raises(BadData, match=reason):
        split(raw)


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x0a\x09",
        b"\x0a\x01\x80",
        b"\x0a\x02\x01\x02\x12\x05",
        b"\x0a\x02\x01\x02\x12\x02\x10\xff",
        b"\xff",
        b"\x0b\x10",
    ],
)
def test_a_series_that_is_cut_off_within_is_named_and_the_others_are_kept(damaged: bytes) -> None:
    answer = split(body_v2([GOOD]) + delimited_head(5, len(damaged)) + damaged + b"\x2a\x04\x0a\x02\x01\x02")
    assert (answer.samples, answer.refused_count) == (1, 1)
    assert answer.refused[0].startswith("series 1 is not a protobuf TimeSeries")


def test_exemplars_and_histograms_are_stored_of_plain_series_and_odd_ones() -> None:
    request = request_v2([GOOD, ([("b", "c"), ("__name__", "odd")], [(1, 1.0)])])
    for entry in request.timeseries:
        entry.exemplars.add(labels_refs=[1, 2], value=1, timestamp=1)
        entry.histograms.append(histogram_message(timestamp=5))
        entry.histograms.append(histogram_message(timestamp=6))
    answer = split(request.SerializeToString())
    assert (answer.exemplars, answer.exemplars_left_out, answer.histograms, answer.samples) == (2, 0, 4, 2)


def test_metadata_is_that_of_version_1_by_family_each_once() -> None:
    names = ["req_total", "lat_bucket", "lat_bucket", "lat_sum", "lat_count", "s_sum", "s", "size_gsum", "_sum", "none"]
    kinds = [1, 3, 3, 3, 3, 5, 5, 4, 5, 0]
    request = request_v2([({"__name__": name, "i": str(i)}, [(1, 1.0)]) for i, name in enumerate(names)])
    request.symbols.extend(["hé", "seconds"])
    help_reference = len(request.symbols) - 2
    for entry, kind in zip(request.timeseries, kinds, strict=True):
        if kind:
            entry.metadata.type, entry.metadata.help_ref, entry.metadata.unit_ref = (
                kind,
                help_reference,
                help_reference + 1,
            )
    answer = split(request.SerializeToString())
    assert [(entry.family, entry.type) for entry in answer.metadata] == [
        ("req_total", "counter"),
        ("lat", "histogram"),
        ("s", "summary"),
        ("size", "gaugehistogram"),
        ("_sum", "summary"),
    ]
    assert {(entry.help, entry.unit) for entry in answer.metadata} == {("hé", "seconds")}
    assert split(request.SerializeToString(), known=frozenset(answer.metadata_keys)).metadata == []


def test_different_metadata_of_one_metric_is_kept_each_once() -> None:
    request = request_v2([({"__name__": "m", "i": str(i)}, [(1, 1.0)]) for i in range(8)])
    count = len(request.symbols)
    request.symbols.extend(["one", "two"])
    said = [(1, count, 0), (1, count + 1, 0), (1, count + 1, count), (2, count + 1, count)]
    for entry, own in zip(request.timeseries, said * 2, strict=True):
        entry.metadata.type, entry.metadata.help_ref, entry.metadata.unit_ref = own
    answer = split(request.SerializeToString())
    assert [(entry.type, entry.help, entry.unit) for entry in answer.metadata] == [
        ("counter", "one", ""),
        ("counter", "two", ""),
        ("counter", "two", "one"),
        ("gauge", "two", "one"),
    ]


def test_metadata_of_an_odd_series_and_of_one_without_samples_is_kept() -> None:
    request = request_v2([([("b", "c"), ("__name__", "odd")], [(1, 1.0)]), ({"__name__": "bare"}, [])])
    for entry in request.timeseries:
        entry.metadata.type = 2
    answer = split(request.SerializeToString())
    assert answer.metadata == [FamilyMetadata("bare", "gauge", "", ""), FamilyMetadata("odd", "gauge", "", "")]


def test_metadata_that_is_not_valid_is_named_and_the_samples_are_stored() -> None:
    request = request_v2([({"__name__": f"m{i}"}, [(1, 1.0)]) for i in range(4)])
    request.symbols.extend(["x" * 4097, "?"])
    count = len(request.symbols)
    for entry, reference in zip(request.timeseries, (count, count - 2, count - 1, 0), strict=True):
        entry.metadata.type, entry.metadata.help_ref = 99, reference
    answer = split(request.SerializeToString().replace(b"\x22\x01?", b"\x22\x01\xff"))
    assert answer.samples == 4
    assert answer.refused_count == 3
    assert f"metric 'm0': its help is symbol {count}; the request has {count}" in answer.refused[0]
    assert "'m1': its help has 4097 bytes; the limit is 4096" in answer.refused[1]
    assert "'m2': its help is not UTF-8 at byte 0" in answer.refused[2]
    assert answer.metadata == [FamilyMetadata("m3", "unknown", "", "")]
    assert len(answer.metadata_keys) == 1


def test_more_different_metadata_than_the_limit_is_too_large() -> None:
    request = request_v2([({"__name__": f"m{i}"}, [(1, 1.0)]) for i in range(metadata.METADATA_MAX + 1)])
    for entry in request.timeseries:
        entry.metadata.type = 1
    with pytest.raises(TooLarge, match="more than 10000 different metadata"):
        split(request.SerializeToString())
    del request.timeseries[-1]
    assert len(split(request.SerializeToString()).metadata) == metadata.METADATA_MAX


def many_references(series_count: int, is_odd: bool) -> bytes:
    """Series that refer to a long text, in a few bytes each."""
    own = [("a", "x"), ("__name__", "v" * 60_000)] if is_odd else [("__name__", "v" * 60_000)]
    request = request_v2([(own, [(1, 1.0)])])
    raw = request.timeseries[0].SerializeToString()
    del request.timeseries[:]
    return request.SerializeToString() + (delimited_head(5, len(raw)) + raw) * series_count


def test_labels_are_measured_before_they_are_written() -> None:
    raw = many_references(100, is_odd=False)
    taken = remote_write_v2.survey(raw, UNLIMITED, BYTES_MAX).bytes_total
    assert 6_000_000 < taken < 6_200_000
    assert remote_write_v2.survey(raw, UNLIMITED, taken).label_bytes == taken - len(raw)
    with pytest.raises(TooLarge, match=rf"has {len(raw)} bytes, and with the labels .* more than {taken - 1}"):
        remote_write_v2.survey(raw, UNLIMITED, taken - 1)


def test_labels_of_series_that_are_not_plain_are_bounded_too() -> None:
    assert split(many_references(100, is_odd=True), limits=UNLIMITED).samples == 100
    with pytest.raises(TooLarge, match="not in canonical form have more than 16777216 bytes"):
        split(many_references(300, is_odd=True), limits=UNLIMITED)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x22\x00" * ((1 << 20) + 1), "1048577 symbols; the limit is 1048576"),
        (b"\x22\x00" + b"\x2a\x00" * ((1 << 19) + 1), "524289 series; the limit is 524288"),
        (b"\x22\x00" + b"\x2a\x00" * 100_001, "100001 series are not in canonical form; the limit is 100000"),
        (b"\x22\x00" + delimited_head(5, 4 << 20) + b"\x78\x00" * (2 << 20), "2097152 fields together"),
    ],
)
def test_requests_of_tiny_things_by_the_million_are_too_large(raw: bytes, reason: str) -> None:
    with pytest.raises(TooLarge, match=reason):
        split(raw)


@settings(max_examples=300, deadline=None)
@given(st.lists(series, min_size=1, max_size=3), st.data())
def test_damaged_bodies_are_refused_or_split_into_valid_ones(requested: list, data: st.DataObject) -> None:
    damaged = bytearray(body_v2(requested))
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    try:
        answer = split(bytes(damaged), SHARDS)
    except BadData:
        return
    kept = sum(len(points) for entries in parts_of(answer).values() for _, points in entries)
    assert kept == answer.samples


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_split(data: bytes) -> None:
    with contextlib.suppress(BadData):
        split(b"\x22\x00" + data, SHARDS)


def test_known_metadata_is_forgotten_after_a_while_or_when_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(metadata.time, "monotonic", lambda: now[0])
    known = metadata.KnownMetadata()
    known.add([1, 2])
    now[0] += metadata.KNOWN_S - 1
    known.forget()
    assert 1 in known and 3 not in known
    now[0] += 1
    known.forget()
    assert 1 not in known
    known.add(np.arange(metadata.KNOWN_MAX + 1).tolist())
    known.forget()
    assert 1 not in known
