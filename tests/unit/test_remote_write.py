"""What a remote-write request is split into, against the protobuf library and xxhash."""

from __future__ import annotations

import contextlib
import struct
from collections import Counter

import numpy as np
import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.series.decompression import INTO_BYTES_MIN, decompress
from coordinator.series.remote_write import Limits, split, walk
from coordinator.series.split_request import REFUSED_SHOWN_MAX, SplitRequest
from coordinator.series.walk import LABELS, LABELS_END, PLAIN, STATUS
from loadtest.harness.memory_source import label_set
from loadtest.harness.remote_write_bodies import UNLIMITED, body
from proto import remote_write_pb2, remote_write_v2_pb2
from shared import hashing, labels
from shared.errors import BadData, TooLarge
from shared.frames import samples as sample_frames
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.messages.series import FamilyMetadata
from shared.protobuf_fields import varint
from shared.xxh64 import xxh64

LIMITS = Limits(labels=16, name_bytes=64, value_bytes=256)
SHARDS = 4

texts = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=20)
names = st.text(alphabet="abcdefgZ_é", min_size=1, max_size=4)
times = st.integers(TIME_MS_MIN, TIME_MS_MAX)
any_times = times | st.sampled_from([-(1 << 63), (1 << 63) - 1, TIME_MS_MIN - 1, TIME_MS_MAX + 1])
samples = st.lists(st.tuples(any_times, st.floats(width=64)), max_size=4)
label_lists = st.lists(st.tuples(names, texts), max_size=5)
metric = texts.map(lambda text: [("__name__", text)]) | st.just([])
series = st.tuples(st.tuples(metric, label_lists).map(lambda parts: parts[0] + parts[1]), samples)


def parts_of(answer: SplitRequest) -> dict[int, list[tuple[bytes, list[tuple[int, float]]]]]:
    """Shard → (canonical label bytes, samples) of each series."""
    found: dict[int, list] = {}
    for shard, frames in answer.parts.items():
        for frame in frames:
            own = sample_frames.parse(bytes(frame))
            at = np.concatenate(([0], np.cumsum(own.counts)))
            for i in range(len(own.counts)):
                label_bytes = own.data[own.starts[i] : own.ends[i]].tobytes()
                assert int(own.hashes[i]) == hashing.hash64(label_bytes)
                points = zip(own.times_ms[at[i] : at[i + 1]].tolist(), own.values[at[i] : at[i + 1]], strict=True)
                found.setdefault(shard, []).append((label_bytes, list(points)))
    return found


def bits(value: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", value))[0]


@given(st.binary(max_size=200), st.integers(0, 8), st.integers(0, 8))
def test_kernel_hash_is_xxh64_of_any_slice(data: bytes, skip: int, drop: int) -> None:
    start, end = min(skip, len(data)), max(min(skip, len(data)), len(data) - drop)
    assert int(xxh64(np.frombuffer(data, dtype=np.uint8), start, end)) == hashing.hash64(data[start:end])


@given(st.lists(st.dictionaries(names, texts.filter(bool), max_size=5), max_size=5))
def test_sorted_valid_series_are_plain_and_hashed_as_their_canonical_bytes(label_sets: list[dict[str, str]]) -> None:
    label_sets = [{**own, "__name__": "m"} for own in label_sets]
    pairs = [sorted(own.items(), key=lambda pair: pair[0].encode()) for own in label_sets]
    found = walk(body((own, [(1, 2.0)]) for own in pairs), UNLIMITED)
    assert found is not None
    assert (found.table[:, STATUS] == PLAIN).all()
    for row, own in enumerate(label_sets):
        canonical = labels.encode(label_set(own))
        assert found.body[found.table[row, LABELS] : found.table[row, LABELS_END]].tobytes() == canonical
        assert int(found.hashes[row]) == hashing.hash64(canonical)


@settings(max_examples=200)
@given(st.lists(series, max_size=6))
def test_split_keeps_every_valid_sample_in_its_shard_and_nothing_else(requested: list) -> None:
    expected: Counter = Counter()
    refused = 0
    for own, points in requested:
        kept = {name: value for name, value in own if value}
        if len({name for name, _ in own}) < len(own) or "__name__" not in kept:
            refused += 1
            continue
        canonical = labels.encode(label_set(kept))
        for timestamp, value in points:
            if TIME_MS_MIN <= timestamp <= TIME_MS_MAX:
                expected[hashing.shard_of(canonical, SHARDS), canonical, timestamp, bits(value)] += 1
            else:
                refused += 1
    answer = split(body(requested), SHARDS, LIMITS)
    found: Counter = Counter()
    for shard, kept_series in parts_of(answer).items():
        for canonical, points in kept_series:
            for timestamp, value in points:
                found[shard, canonical, timestamp, bits(value)] += 1
    assert found == expected
    assert answer.samples == expected.total()
    assert answer.refused_count == refused


@given(st.binary(max_size=12))
def test_text_is_accepted_exactly_if_it_is_utf8(value: bytes) -> None:
    raw = remote_write_pb2.RawTimeSeries(samples=[remote_write_pb2.Sample(value=1, timestamp=1)])
    raw.labels.add(name=b"__name__", value=b"m")
    raw.labels.add(name=b"a", value=value)
    answer = split(
        remote_write_pb2.RawWriteRequest(timeseries=[raw.SerializeToString()]).SerializeToString(), 1, LIMITS
    )
    try:
        value.decode()
    except UnicodeDecodeError:
        assert answer.refused_count == 1 and "not UTF-8" in answer.refused[0]
    else:
        assert answer.refused_count == 0


@settings(max_examples=300)
@given(st.lists(series, min_size=1, max_size=3), st.data())
def test_damaged_bodies_are_refused_or_split_into_valid_ones(requested: list, data: st.DataObject) -> None:
    damaged = bytearray(body(requested))
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    try:
        answer = split(bytes(damaged), SHARDS, LIMITS)
    except BadData:
        return
    kept = sum(len(points) for entries in parts_of(answer).values() for _, points in entries)
    assert kept == answer.samples


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_split(data: bytes) -> None:
    with contextlib.suppress(BadData):
        split(data, SHARDS, LIMITS)


def test_stale_marker_keeps_its_bits() -> None:
    stale = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
    raw = body([({"__name__": "m"}, [(5, 1.0)])]).replace(struct.pack("<d", 1.0), struct.pack("<Q", 0x7FF0000000000002))
    (frames,) = split(raw, 1, LIMITS).parts.values()
    assert struct.pack("<Q", 0x7FF0000000000002) in bytes(frames[0])
    assert np.isnan(stale)


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ([("job", "x")], "no label __name__"),
        ([("__name__", "")], "no label __name__"),
        ([("__name__", "m"), ("", "x")], "label name is empty"),
        ([("__name__", "m"), ("a", "x"), ("a", "x")], "'a' appears twice"),
        ([("__name__", "m"), ("a" * 65, "x")], "has 65 bytes; the limit is 64"),
        ([("__name__", "m"), ("a", "x" * 257)], "'a' has 257 bytes; the limit is 256"),
        ([("__name__", "m"), *((f"l{i:02}", "x") for i in range(16))], "17 labels; the limit is 16"),
    ],
)
def test_a_bad_series_is_named_and_the_good_ones_are_kept(own: list, reason: str) -> None:
    answer = split(body([({"__name__": "good"}, [(1, 1.0)]), (own, [(1, 1.0)])]), 1, LIMITS)
    assert answer.samples == 1
    assert answer.refused_count == 1
    assert answer.refused[0].startswith("series 1 {")
    assert reason in answer.refused[0]


def test_only_the_sample_out_of_range_is_refused() -> None:
    answer = split(body([({"__name__": "m"}, [(1, 1.0), ((1 << 63) - 1, 2.0), (-(1 << 63), 3.0)])]), 1, LIMITS)
    assert answer.samples == 1
    assert answer.refused_count == 2
    assert "9223372036854775807 ms" in answer.refused[0]


def test_many_refused_series_are_counted_and_a_few_named() -> None:
    answer = split(body([({"job": "x"}, [(1, 1.0)])] * 100), 1, LIMITS)
    assert answer.refused_count == 100
    assert len(answer.refused) == REFUSED_SHOWN_MAX


@pytest.mark.parametrize("unknown_field", [b"", b"\x7a\x01x"])
def test_metadata_is_read_between_series(unknown_field: bytes) -> None:
    said = remote_write_pb2.WriteRequest()
    said.metadata.add(type=1, metric_family_name="m", help="hé", unit="bytes")
    other = remote_write_pb2.WriteRequest()
    other.metadata.add(type=99, metric_family_name="n")
    one = body([({"__name__": "m"}, [(1, 1.0)])])
    data = one + said.SerializeToString() + one + other.SerializeToString() + said.SerializeToString() + unknown_field
    answer = split(data, 1, LIMITS)
    assert answer.samples == 2
    assert answer.metadata == [FamilyMetadata("m", "counter", "hé", "bytes"), FamilyMetadata("n", "unknown", "", "")]


def test_metadata_that_is_not_valid_is_named_and_the_rest_kept() -> None:
    request = remote_write_pb2.WriteRequest()
    request.metadata.add(metric_family_name="good")
    request.metadata.add(help="of nobody")
    request.metadata.add(metric_family_name="long", help="é" * 3000)
    raw = b"\x1a\x03\x12\x01\xff" + request.SerializeToString()
    answer = split(raw, 1, LIMITS)
    assert answer.metadata == [FamilyMetadata("good", "unknown", "", "")]
    assert answer.refused_count == 3
    assert "metadata 0 is not a MetricMetadata message with texts in UTF-8" in answer.refused[0]
    assert "metadata 2 of metric family '': it has no metric_family_name" in answer.refused[1]
    assert "'long': its help has 6000 bytes; the limit is 4096" in answer.refused[2]


@pytest.mark.parametrize("unknown_field", [b"", b"\x7a\x01x"])
def test_metadata_without_end_is_refused(unknown_field: bytes) -> None:
    with pytest.raises(TooLarge, match="100000 metadata messages; the limit is 10000"):
        split(b"\x1a\x00" * 100_000 + unknown_field, 1, LIMITS)


@pytest.mark.parametrize("series", [1, 100_000])
def test_a_body_of_version_2_is_not_taken_for_an_empty_one_of_version_1(series: int) -> None:
    """Its fields are unknown in version 1.0: a sender with the wrong Content-Type would lose all of it in silence."""
    second = remote_write_v2_pb2.Request(symbols=["", "__name__", "m"])
    for _ in range(series):
        second.timeseries.add(labels_refs=[1, 2]).samples.add(value=1.0, timestamp=1000)
    with pytest.raises(BadData, match=r"version 2\.0 needs .*;proto=io\.prometheus\.write\.v2\.Request"):
        split(second.SerializeToString(), 1, LIMITS)


def test_a_body_with_unknown_fields_is_read_through_the_library() -> None:
    answer = split(b"\x7a\x01x" + body([({"__name__": "m"}, [(1, 1.0)])]), 1, LIMITS)
    assert answer.samples == 1
    assert answer.refused_count == 0


@pytest.mark.parametrize("damaged", [b"\x0a", b"\x0a\x05abc", b"\x0a\x02\x0a\x09", b"\xff\xff\xff\xff\xff", b"\x00"])
def test_what_is_no_write_request_is_bad_data(damaged: bytes) -> None:
    with pytest.raises(BadData, match="not a protobuf WriteRequest"):
        split(damaged, 1, LIMITS)


def test_decompression_is_refused_past_its_bound_before_it_is_done() -> None:
    with pytest.raises(TooLarge, match="decompresses to 1000000 bytes; the limit is 999999"):
        decompress(snappy.compress(bytes(1_000_000)), 999_999)


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", b"\xff" * 10, b"\x80\x80\x80\x80\x01", snappy.compress(b"abc" * 100)[:-5], b"\x0aabc", b"\x05\x00a"],
)
def test_what_is_not_snappy_is_bad_data(raw: bytes) -> None:
    with pytest.raises(BadData, match="not snappy"):
        decompress(raw, 1 << 30)


@pytest.mark.parametrize("size", [1, INTO_BYTES_MIN - 1, INTO_BYTES_MIN, 3 * INTO_BYTES_MIN])
def test_a_body_of_any_size_is_decompressed_or_refused_as_a_whole(size: int) -> None:
    body = np.random.default_rng(1).integers(0, 50, size, np.uint8).tobytes()
    raw = snappy.compress(body)
    assert bytes(decompress(raw, size)) == body
    for damaged in (raw[:-1], raw + b"\0a", varint(size + 1) + raw[len(varint(size)) :]):
        with pytest.raises(BadData, match="not snappy"):
            decompress(damaged, 1 << 30)


@given(st.binary(max_size=100))
def test_random_bytes_never_decompress_to_more_than_they_announce(raw: bytes) -> None:
    with contextlib.suppress(BadData, TooLarge):
        assert len(decompress(raw, 1000)) <= 1000


@pytest.mark.parametrize("place", ["name", "value"])
@pytest.mark.parametrize("surrogate", [b"\xed\xa0\x80", b"\xed\xaf\xbf", b"\xed\xb0\x80", b"\xed\xbf\xbf"])
@pytest.mark.parametrize("around", [b"", b"x" * 30])
def test_utf16_surrogates_are_no_utf8_to_the_kernel_nor_to_the_general_reader(
    place: str, surrogate: bytes, around: bytes
) -> None:
    series = remote_write_pb2.RawTimeSeries()
    text = around + surrogate + around
    for name, value in ((b"__name__", b"m"), (text, b"v") if place == "name" else (b"job", text)):
        series.labels.add(name=name, value=value)
    series.samples.add(timestamp=1, value=1.0)
    message = series.SerializeToString()
    data = b"\x0a" + bytes([len(message)]) + message
    found = walk(data, UNLIMITED)
    assert found is not None and found.table[0, STATUS] != PLAIN
    answer = split(data, 1, UNLIMITED)
    assert answer.parts == {}
    [refusal] = answer.refused
    assert "is not UTF-8" in refusal


@pytest.mark.parametrize("text", [b"\xed\x9f\xbf", b"\xee\x80\x80"])
def test_the_characters_beside_the_surrogates_are_utf8_to_the_kernel(text: bytes) -> None:
    series = remote_write_pb2.RawTimeSeries()
    series.labels.add(name=b"__name__", value=text)
    series.samples.add(timestamp=1, value=1.0)
    message = series.SerializeToString()
    found = walk(b"\x0a" + bytes([len(message)]) + message, UNLIMITED)
    assert found is not None and found.table[0, STATUS] == PLAIN
