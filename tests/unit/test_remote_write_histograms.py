"""Native histograms by remote write 1.0 and 2.0: what arrives in the frames, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.api.write import INLINE_STEPS_MAX
from coordinator.series import histograms, remote_write, remote_write_v2
from coordinator.series.split_request import REFUSED_SHOWN_MAX, SplitRequest
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import request_v2
from proto import remote_write_pb2, remote_write_v2_pb2
from shared import hashing, labels
from shared.errors import TooLarge
from shared.frames import exemplars as exemplar_frames
from shared.frames import samples as sample_frames
from shared.frames.samples import TIME_MS_MAX
from shared.histograms import references
from shared.histograms.batch import STALE_SUM_BITS
from shared.promql.model import STALE_NAN_BITS
from tests.histogram_strategies import custom, exponential
from tests.oracle_native_histograms import NativeHistogram
from tests.unit.extended_samples import text_of, texts
from tests.unit.test_histograms_decoding import encode
from tests.unit.test_remote_write import LIMITS, SHARDS

VERSIONS = pytest.mark.parametrize("is_second", [False, True])
STALE = np.array([STALE_SUM_BITS]).view(float).item()
GOOD = histogram_message(timestamp=1, count_int=1, positive_spans=[(0, 1)], positive_deltas=[1])

Pairs = Sequence[tuple[str, str]]
Requested = tuple[Pairs, list[tuple[int, float]], list[bytes]]

M = [("__name__", "m")]
label_sets = st.sampled_from(
    [M, [("__name__", "m"), ("a", "b")], [("__name__", "n"), ("b", "")], [("b", "c"), ("__name__", "m")]]
)
own_histograms = st.lists(
    st.tuples(st.integers(-5, 5), st.one_of(exponential(), custom()), st.sampled_from([0, 0, 4])), max_size=3
)
floats = st.lists(st.tuples(st.integers(-5, 5), st.floats(allow_nan=False)), max_size=2)


def body_of(requested: Sequence[Requested], *, is_second: bool) -> bytes:
    if is_second:
        request: Any = request_v2([(pairs, samples) for pairs, samples, _ in requested])
    else:
        request = remote_write_pb2.WriteRequest()
        for pairs, samples, _ in requested:
            entry = request.timeseries.add()
            for name, value in pairs:
                entry.labels.add(name=name, value=value)
            for time, number in samples:
                entry.samples.add(timestamp=time, value=number)
    for entry, (_, _, messages) in zip(request.timeseries, requested, strict=True):
        entry.histograms.extend(messages)
    return bytes(request.SerializeToString())


def split(raw: bytes, *, is_second: bool, shards: int = 1) -> SplitRequest:
    if is_second:
        return remote_write_v2.split(remote_write_v2.survey(raw, LIMITS, 1 << 30), shards, LIMITS)
    return remote_write.split(raw, shards, LIMITS)


def stored(answer: SplitRequest, shards: int) -> list[tuple[bytes, int, str, int]]:
    """(label bytes, time, value, start timestamp) of all samples of all frames, sorted. Each is in its shard."""
    found = []
    for shard, frames in answer.parts.items():
        for frame in frames:
            columns = sample_frames.parse(bytes(frame))
            values = texts(columns.values, columns.histograms)
            starts = columns.start_timestamps_ms
            at = np.cumsum([0, *columns.counts.tolist()]).tolist()
            for run, (begin, end, own_hash) in enumerate(
                zip(columns.starts, columns.ends, columns.hashes, strict=True)
            ):
                label_bytes = columns.data[begin:end].tobytes()
                assert hashing.hash64(label_bytes) == int(own_hash)
                assert int(own_hash) % shards == shard
                for i in range(at[run], at[run + 1]):
                    start = 0 if starts is None else int(starts[i])
                    found.append((label_bytes, int(columns.times_ms[i]), values[i], start))
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(label_sets, floats, own_histograms), max_size=5), st.booleans(), st.integers(0, 1 << 30))
def test_what_was_sent_is_in_the_frames(requested: list, is_second: bool, seed: int) -> None:
    random = Random(seed)
    sent, expected = [], []
    for pairs, samples, own in requested:
        label_bytes = labels.encode(tuple(sorted((name, value) for name, value in pairs if value)))
        messages = [
            encode(h, random, is_float=True) + histogram_message(timestamp=time, start_timestamp=start)
            for time, h, start in own
        ]
        sent.append((pairs, samples, messages))
        expected += [(label_bytes, time, text_of(value), 0) for time, value in samples]
        expected += [(label_bytes, time, text_of(h), start) for time, h, start in own]
    answer = split(body_of(sent, is_second=is_second), is_second=is_second, shards=SHARDS)
    assert answer.refused == []
    assert stored(answer, SHARDS) == sorted(expected)
    assert answer.samples == sum(len(samples) for _, samples, _ in requested)
    assert answer.histograms == sum(len(own) for _, _, own in requested)


FAULTS = [
    (histogram_message(timestamp=9, schema=9), "the histogram at 9 ms is not valid: schema 9 is unknown"),
    (
        histogram_message(timestamp=9, positive_spans=[(0, (1 << 31) - 1)], positive_deltas=[1], count_int=1),
        "room for 2147483647 buckets, but there are counts of 1",
    ),
    (histogram_message(timestamp=9, positive_spans=[(0, 3)], positive_deltas=[1], count_int=1), "room for 3 buckets"),
    (
        histogram_message(timestamp=9, count_float=1.0, positive_spans=[(0, 1)], positive_counts=[float("nan")]),
        "a count is NaN",
    ),
    (b"\x10\x01", "the message is not a histogram of remote write"),
    (b"\x0a\xff", "the message is not a histogram of remote write"),
    (histogram_message(timestamp=TIME_MS_MAX + 1), f"a histogram's timestamp is {TIME_MS_MAX + 1} ms; it must lie"),
    (
        histogram_message(timestamp=1, start_timestamp=-(1 << 62)),
        f"a histogram's start timestamp is {-(1 << 62)} ms; it must lie",
    ),
]


@VERSIONS
@pytest.mark.parametrize("pairs", [M, [("b", "c"), ("__name__", "m")]], ids=["plain", "odd"])
@pytest.mark.parametrize(("message", "text"), FAULTS)
def test_a_fault_is_named_and_the_rest_is_stored(message: bytes, text: str, pairs: Pairs, is_second: bool) -> None:
    requested = [(M, [(1, 0.5)], [GOOD]), (pairs, [(2, 0.5)], [GOOD, message, GOOD])]
    answer = split(body_of(requested, is_second=is_second), is_second=is_second)
    assert (answer.samples, answer.histograms, answer.histograms_refused, answer.refused_count) == (2, 3, 1, 1)
    [refusal] = answer.refused
    assert text in refusal
    assert refusal.startswith("series 1 {")
    assert '__name__="m"' in refusal
    assert len(stored(answer, 1)) == 5


@VERSIONS
def test_histograms_of_a_series_that_is_refused_are_refused_with_it(is_second: bool) -> None:
    requested = [([("job", "a")], [], [GOOD, GOOD]), (M, [], [GOOD])]
    answer = split(body_of(requested, is_second=is_second), is_second=is_second)
    assert (answer.histograms, answer.histograms_refused, answer.refused_count) == (1, 2, 1)
    assert answer.refused == ['series 0 {job="a"}: it has no label __name__']


def test_histograms_of_a_series_whose_references_are_past_the_table_are_refused_with_it() -> None:
    request = request_v2([(M, [])])
    request.timeseries[0].histograms.append(GOOD)
    request.timeseries.add(labels_refs=[1, 99], histograms=[GOOD])
    request.timeseries.add(labels_refs=[1], histograms=[GOOD])
    answer = split(request.SerializeToString(), is_second=True)
    assert (answer.histograms, answer.histograms_refused) == (1, 2)
    assert "a label reference is 99" in answer.refused[0]
    assert "it has 1 label references" in answer.refused[1]


@VERSIONS
def test_of_many_faults_the_first_few_are_named(is_second: bool) -> None:
    requested = [(M, [], [b"\x10\x01"] * 1000 + [GOOD])]
    answer = split(body_of(requested, is_second=is_second), is_second=is_second)
    assert (answer.histograms, answer.histograms_refused, answer.refused_count) == (1, 1000, 1000)
    assert 1 <= len(answer.refused) <= REFUSED_SHOWN_MAX


@VERSIONS
def test_stale_histograms_become_the_stale_marker_of_floats(is_second: bool) -> None:
    stale = histogram_message(timestamp=3, sum=STALE, schema=99, start_timestamp=2)
    answer = split(body_of([(M, [], [GOOD, stale])], is_second=is_second), is_second=is_second)
    [frame] = answer.parts[0]
    columns = sample_frames.parse(bytes(frame))
    assert references.is_reference(columns.values).tolist() == [True, False]
    assert columns.values.view(np.int64)[1] == STALE_NAN_BITS
    assert columns.histograms is not None
    assert len(columns.histograms) == answer.histograms - 1 == 1
    alone = split(body_of([(M, [], [stale])], is_second=is_second), is_second=is_second)
    assert sample_frames.parse(bytes(alone.parts[0][0])).histograms is None


@VERSIONS
def test_stale_and_refused_histograms_leave_those_beside_them_as_they_are(is_second: bool) -> None:
    random, requested, expected = Random(9), list[Requested](), []
    for series in range(40):
        pairs, messages = [("__name__", "m"), ("i", f"{series:02}")], []
        for time in range(series % 5):
            start = random.choice([0, 0, 0, time - 7]) if series % 2 else 0
            kind = random.choice(["kept", "kept", "stale", "refused"])
            h = NativeHistogram(schema=series % 3, count=float(series), sum=1.0, positive={series: float(series)})
            message = encode(h, random, is_float=False) + histogram_message(timestamp=time, start_timestamp=start)
            if kind == "stale":
                message += histogram_message(sum=STALE)
            messages.append(message + (b"\x20\x12" if kind == "refused" else b""))  # schema 9
            if kind != "refused":
                value = text_of(h) if kind == "kept" else text_of(np.array([STALE_NAN_BITS]).view(float).item())
                expected.append((labels.encode(tuple(pairs)), time, value, start))
        requested.append((pairs, [], messages))
    answer = split(body_of(requested, is_second=is_second), is_second=is_second, shards=5)
    assert stored(answer, 5) == sorted(expected)
    assert answer.histograms == len(expected)
    assert answer.histograms_refused == sum(len(own) for _, _, own in requested) - len(expected) > 5


def test_many_histograms_of_few_bytes_take_steps() -> None:
    """The smallest message has no bytes, and decoding it takes time nevertheless."""
    walked = remote_write.walk(body_of([(M, [], [b""] * 20_000)], is_second=False), LIMITS)
    assert walked is not None
    assert remote_write.decoding_steps(walked) > INLINE_STEPS_MAX


@VERSIONS
def test_a_float_with_the_bits_of_a_reference_is_an_ordinary_nan(is_second: bool) -> None:
    reference = references.references(np.array([0])).item()
    answer = split(body_of([(M, [(1, reference)], [GOOD])], is_second=is_second), is_second=is_second)
    first, second = (sample_frames.parse(bytes(frame)) for frame in answer.parts[0])
    assert not references.is_reference(first.values).any()
    assert np.isnan(first.values).all()
    assert references.is_reference(second.values).all()


@VERSIONS
def test_slices_of_messages_give_the_same_as_one(is_second: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(5)
    requested: list[Requested] = []
    for series in range(30):
        own = [NativeHistogram(schema=i % 3, count=2.0, sum=1.0, positive={i: 2.0}) for i in range(series % 4)]
        messages = [encode(h, random, is_float=False) + histogram_message(timestamp=i) for i, h in enumerate(own)]
        requested.append(([("__name__", "m"), ("i", str(series))], [], messages))
    raw = body_of(requested, is_second=is_second)
    whole = stored(split(raw, is_second=is_second, shards=3), 3)
    monkeypatch.setattr(histograms, "SLICE_BYTES", 60)
    answer = split(raw, is_second=is_second, shards=3)
    assert 1 < len(answer.parts[0]) <= 2 * histograms.SLICES_MAX + 1
    assert stored(answer, 3) == whole
    assert len(whole) == answer.histograms == sum(len(messages) for _, _, messages in requested)


@VERSIONS
def test_more_histograms_or_buckets_than_a_request_may_have_are_refused(
    is_second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = body_of([(M, [], [GOOD] * 20)], is_second=is_second)
    monkeypatch.setattr(histograms, "BUCKETS_MAX", 39)
    with pytest.raises(TooLarge, match="more than 39 buckets"):
        split(raw, is_second=is_second)
    monkeypatch.setattr(histograms, "HISTOGRAMS_MAX", 19)
    with pytest.raises(TooLarge, match="20 histograms; the limit is 19"):
        split(raw, is_second=is_second)


@VERSIONS
def test_exemplars_and_samples_come_beside_histograms(is_second: bool) -> None:
    raw = body_of([(M, [(1, 1.0)], [GOOD])], is_second=is_second)
    request: Any = (remote_write_v2_pb2.Request if is_second else remote_write_pb2.WriteRequest).FromString(raw)
    request.timeseries[0].exemplars.add(value=1, timestamp=1)
    answer = split(request.SerializeToString(), is_second=is_second)
    assert (answer.samples, answer.histograms, answer.exemplars) == (1, 1, 1)
    assert [exemplar_frames.is_exemplars(frame) for frame in answer.parts[0]] == [False, False, True]
