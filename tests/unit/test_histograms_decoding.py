"""Native histograms of remote write: what is read, what is refused, and that memory is bounded by the bytes sent."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.harness.histogram_messages import body_of, histogram_message
from shared.histograms import frame_writing
from shared.histograms.batch import IS_FLOAT
from shared.histograms.decoding import Decoded, decoded
from shared.histograms.fields import BUCKETS_MAX, Fault
from shared.histograms.interning import collection, intern
from tests.conformance.series_text import STALE
from tests.histogram_batches import histograms_of
from tests.histogram_strategies import WHOLE, custom, exponential
from tests.oracle_native_histograms import NativeHistogram

EXAMPLES = settings(max_examples=40, deadline=None)


def decode(*messages: bytes) -> Decoded:
    return decoded(*body_of(messages))


def _spans(counts: dict[int, float], random: Random) -> list[tuple[int, int]]:
    """Spans for the indexes, with empty and divided ones as the specification allows."""
    spans, at = [], 0
    for i, index in enumerate(sorted(counts)):
        if i and random.random() < 0.2:
            spans.append((0, 0))
        if i and index == at and random.random() < 0.7:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        elif i and index > at + 1 and random.random() < 0.2:
            spans += [(1, 0), (index - at - 1, 1)]
        else:
            spans.append((index - at, 1))
        at = index + 1
    return spans


def encode(h: NativeHistogram, random: Random, *, is_float: bool) -> bytes:
    fields: dict[str, Any] = {}
    for side in ("positive", "negative"):
        counts = getattr(h, side)
        ordered = [counts[index] for index in sorted(counts)]
        fields[f"{side}_spans"] = _spans(counts, random)
        if is_float:
            fields[f"{side}_counts"] = ordered
        else:
            fields[f"{side}_deltas"] = [int(b - a) for a, b in zip([0, *ordered], ordered, strict=False)]
    kind = "float" if is_float else "int"
    fields |= {f"count_{kind}": h.count if is_float else int(h.count)}
    if not h.is_custom:
        fields |= {f"zero_count_{kind}": h.zero_count if is_float else int(h.zero_count)}
    return histogram_message(
        schema=h.schema, sum=h.sum, zero_threshold=h.zero_threshold, reset_hint=h.hint.value,
        custom_values=h.bounds, is_packed=random.random() < 0.7, **fields,
    )  # fmt: skip


@EXAMPLES
@given(st.lists(st.one_of(exponential(WHOLE), custom(WHOLE))), st.integers(0, 1 << 30), st.booleans())
def test_integer_histograms_are_read(rows: list[NativeHistogram], seed: int, is_float: bool) -> None:
    random = Random(seed)
    got = decode(*(encode(h, random, is_float=is_float) for h in rows))
    assert got.faults.tolist() == [0] * len(rows)
    assert [str(h) for h in map(_ordered, histograms_of(got.batch))] == [str(_ordered(h)) for h in rows]
    assert (got.batch.columns.flags & IS_FLOAT > 0).tolist() == [is_float] * len(rows)


@EXAMPLES
@given(st.lists(st.one_of(exponential(WHOLE), custom(WHOLE)), min_size=1, max_size=3), st.integers(0, 1 << 30))
def test_a_message_is_read_as_alone_whatever_came_before_it(rows: list[NativeHistogram], seed: int) -> None:
    random = Random(seed)
    good = [encode(h, random, is_float=random.random() < 0.5) for h in rows]
    changes = [
        b"", b"", b"", histogram_message(positive_spans=[(1, 0)]), histogram_message(schema=1),
        histogram_message(custom_values=[9e9]), histogram_message(zero_threshold=0.25),
        histogram_message(count_int=1 << 40), histogram_message(positive_deltas=[1]), b"\x0a\xff",
        histogram_message(sum=STALE), histogram_message(zero_count_int=1), histogram_message(negative_spans=[(0, 1)]),
    ]  # fmt: skip
    messages = [random.choice(good) + random.choice(changes) for _ in range(20)]
    together = decode(*messages)
    texts = [str(h) for h in histograms_of(together.batch)]
    for i, message in enumerate(messages):
        alone = decode(message)
        assert texts[i] == str(*histograms_of(alone.batch))
        assert together.faults[i] == alone.faults[0]
        if alone.faults[0]:
            assert together.fault_text(i) == alone.fault_text(0)


@pytest.mark.parametrize("buckets", [7, 8, 9, 16, 17, 40])
@pytest.mark.parametrize("large", [0, 63, 64, 1 << 20, 1 << 40])
def test_many_small_deltas_are_read_like_single_ones(buckets: int, large: int) -> None:
    for place in range(buckets):
        deltas = [(-1) ** i * (i % 3) + (large if i == place else 0) + 4 * (i == 0) for i in range(buckets)]
        counts = [sum(deltas[: i + 1]) for i in range(buckets)]
        message = histogram_message(count_int=sum(counts), positive_spans=[(0, buckets)], positive_deltas=deltas)
        got = decode(message)
        assert got.faults.tolist() == [0]
        assert got.batch.columns.counts.tolist() == [0, *counts]


@pytest.mark.parametrize("buckets", [8, 9, 20])
def test_a_count_that_turns_negative_anywhere_is_named(buckets: int) -> None:
    for place in range(buckets):
        deltas = [3 if i == 0 else 0 for i in range(buckets)]
        deltas[place] -= 10
        for after in (0, 60):  # later ones may lead back above 0
            changed = [delta + (after if i == place + 1 else 0) for i, delta in enumerate(deltas)]
            got = decode(histogram_message(positive_spans=[(0, buckets)], positive_deltas=changed))
            assert got.faults.tolist() == [Fault.NEGATIVE_COUNT]
            assert got.seen.tolist() == [-7.0]


@pytest.mark.parametrize("more", range(-2, 12))
def test_no_more_than_the_limit_of_small_deltas_is_read(more: int) -> None:
    buckets = BUCKETS_MAX + more
    got = decode(histogram_message(positive_spans=[(-5000, buckets)], positive_deltas=[0] * buckets, schema=8))
    assert got.faults.tolist() == [Fault.TOO_MANY_BUCKETS if more > 0 else 0]


def test_neighbours_with_the_same_spans_share_their_layout() -> None:
    one, other = (
        histogram_message(schema=1, count_int=3, positive_spans=[(at, 2)], positive_deltas=[1, 1]) for at in (0, 5)
    )
    got = decode(one, one, other, other, one)
    assert got.batch.columns.layout.tolist() == [0, 0, 1, 1, 0]
    assert len(got.batch.layouts) == 2


@EXAMPLES
@given(st.lists(st.one_of(exponential(), custom())), st.integers(0, 1 << 30))
def test_float_histograms_are_read(rows: list[NativeHistogram], seed: int) -> None:
    random = Random(seed)
    got = decode(*(encode(h, random, is_float=True) for h in rows))
    assert [str(h) for h in map(_ordered, histograms_of(got.batch))] == [str(_ordered(h)) for h in rows]


@EXAMPLES
@given(
    st.lists(st.one_of(exponential(WHOLE), exponential(), custom(WHOLE)), min_size=1), st.integers(0, 1 << 30),
    st.booleans(),
)  # fmt: skip
def test_decoding_tells_how_narrow_counts_are_as_writing_finds_it(
    rows: list[NativeHistogram], seed: int, is_float: bool
) -> None:
    random = Random(seed)
    got = decode(*(encode(h, random, is_float=is_float) for h in rows), histogram_message(sum=STALE))
    order, ends = np.arange(len(rows) + 1), np.arange(len(rows) + 1) + 1
    found, told = (frame_writing.Plan.of(got.batch, order, ends, digits) for digits in (None, got.digits))
    assert np.array_equal(told.table, found.table)


def _ordered(h: NativeHistogram) -> NativeHistogram:
    return replace(h, positive=dict(sorted(h.positive.items())), negative=dict(sorted(h.negative.items())))


def test_times_and_counts_above_2_to_the_53_are_read() -> None:
    huge = 1 << 62
    got = decode(
        histogram_message(
            count_int=2 * huge + 1, zero_count_int=1, positive_spans=[(0, 2)], positive_deltas=[huge, 0],
            timestamp=-5, start_timestamp=1_700_000_000_000,
        )
    )  # fmt: skip
    assert got.faults.tolist() == [0]
    assert (got.timestamps_ms.tolist(), got.start_timestamps_ms.tolist()) == ([-5], [1_700_000_000_000])
    assert histograms_of(got.batch)[0].positive == {0: float(huge), 1: float(huge)}
    assert got.batch.columns.observations.tolist() == [float(2 * huge)]


def test_equal_layouts_are_kept_once() -> None:
    one = histogram_message(count_int=3, positive_spans=[(2, 2)], positive_deltas=[1, 1])
    same = histogram_message(count_int=9, positive_spans=[(2, 1), (0, 0), (0, 1)], positive_deltas=[4, 1])
    other = histogram_message(count_int=3, positive_spans=[(2, 2)], positive_deltas=[1, 1], schema=1)
    got = decode(one, same, other, one)
    assert got.batch.columns.layout.tolist() == [0, 0, 1, 0]
    assert len(got.batch.layouts) == 2


def test_layouts_that_collide_are_kept_without_a_search_of_all() -> None:
    layouts = collection(3, 4, 1)
    layouts.indexes[0] = 0
    assert intern(layouts, 0, 0.0, 0, 1, 0) == 0
    layouts.slots[:] = 1
    for expected in (1, 2):
        layouts.indexes[layouts.start[layouts.used[0]]] = 0
        assert intern(layouts, 5, 0.0, 0, 1, 0) == expected


def test_only_the_sum_of_a_stale_marker_counts() -> None:
    got = decode(histogram_message(sum=STALE, schema=77, count_int=5, timestamp=9))
    assert (got.faults.tolist(), got.batch.is_stale.tolist()) == ([0], [True])
    assert (got.timestamps_ms.tolist(), got.batch.columns.counts.tolist()) == ([9], [0.0])


@pytest.mark.parametrize(
    "fields",
    [{"positive_deltas": [-4]}, {"negative_deltas": [1, -2, 3]}, {"positive_deltas": [1], "positive_counts": [1.0]}],
)
def test_counts_of_a_stale_marker_mean_nothing(fields: dict[str, Any]) -> None:
    got = decode(histogram_message(sum=STALE, timestamp=9, **fields), histogram_message(timestamp=10, **fields))
    assert got.batch.is_stale.tolist() == [True, False]
    assert (got.faults[0], got.faults[1] != 0, got.timestamps_ms.tolist()) == (0, True, [9, 10])


POSITIVE: dict[str, Any] = {"positive_spans": [(0, 2)], "positive_deltas": [1, 1]}
CUSTOM_ONE: dict[str, Any] = {
    "schema": -53,
    "custom_values": [1.0, 2.0],
    "positive_spans": [(0, 1)],
    "positive_deltas": [1],
}
REFUSED: list[tuple[Fault, str, dict[str, Any]]] = [
    (Fault.SCHEMA, "schema 9 is unknown; right are -4 to 8, and -53", {"schema": 9}),
    (Fault.SCHEMA, "schema -5 is unknown", {"schema": -5}),
    (Fault.SCHEMA, "schema -2147483648 is unknown", {"schema": -(1 << 31)}),
    (Fault.SPAN_OFFSET, "a span has the offset -1", POSITIVE | {"positive_spans": [(0, 1), (-1, 1)]}),
    (Fault.SPAN_LENGTHS, "have room for 3 buckets, but there are counts of 2", POSITIVE | {"positive_spans": [(0, 3)]}),
    (Fault.SPAN_LENGTHS, "have room for 1 buckets, but there are counts of 2", POSITIVE | {"positive_spans": [(0, 1)]}),
    (Fault.SPAN_LENGTHS, "have room for 0 buckets, but", POSITIVE | {"positive_spans": []}),
    (Fault.SPAN_LENGTHS, "have room for 4294967295 ", POSITIVE | {"positive_spans": [(0, (1 << 32) - 1)]}),
    (Fault.SPAN_LENGTHS, "have room for 2147483650 ", POSITIVE | {"positive_spans": [(0, 2), (0, 1 << 31)]}),
    (Fault.SPAN_LENGTHS, "have room for 1 ", {"negative_spans": [(0, 1)], "count_int": 0}),
    (Fault.INDEX, "bucket 1026 does not exist in its schema; the last one has the index 1025",
     POSITIVE | {"positive_spans": [(1025, 2)]}),
    (Fault.INDEX, "bucket 2147483648 does not", POSITIVE | {"positive_spans": [((1 << 31) - 1, 2)]} | {"schema": 8}),
    (Fault.INDEX, "bucket -2147483648 does not", POSITIVE | {"positive_spans": [(-(1 << 31), 2)]}),
    (Fault.INDEX, "bucket 3 does not exist in its schema; the last one has the index 2",
     CUSTOM_ONE | {"positive_spans": [(3, 1)]}),
    (Fault.INDEX, "bucket -1 does not", CUSTOM_ONE | {"positive_spans": [(-1, 1)]}),
    (Fault.NEGATIVE_COUNT, "a count of -1 is negative", POSITIVE | {"positive_deltas": [1, -2]}),
    (Fault.NEGATIVE_COUNT, "a count of -9223372036854776000 is negative",
     POSITIVE | {"positive_deltas": [(1 << 63) - 1, 1]}),
    (Fault.NEGATIVE_COUNT, "a count of -0.5 is negative",
     {"count_float": 1.0, "positive_spans": [(0, 1)], "positive_counts": [-0.5]}),
    (Fault.NEGATIVE_COUNT, "a count of -2 is negative", {"count_float": -2.0}),
    (Fault.NEGATIVE_COUNT, "a count of -3 is negative", {"count_float": 1.0, "zero_count_float": -3.0}),
    (Fault.NOT_A_NUMBER, "a count is NaN",
     {"count_float": 1.0, "positive_spans": [(0, 1)], "positive_counts": [math.nan]}),
    (Fault.NOT_A_NUMBER, "a count is NaN", {"count_float": math.nan}),
    (Fault.NOT_A_NUMBER, "a count is NaN", {"count_float": 1.0, "zero_count_float": math.nan}),
    (Fault.COUNT, "its buckets have 3 observations, but its count is 4", POSITIVE | {"count_int": 4}),
    (Fault.COUNT, "its buckets have 3 observations, but its count is 2", POSITIVE | {"count_int": 2, "sum": math.nan}),
    (Fault.COUNT, "its buckets have 0 observations, but its count is 1", {"count_int": 1}),
    (Fault.MIXED_COUNTS, "both integer and float counts", POSITIVE | {"count_float": 3.0}),
    (Fault.MIXED_COUNTS, "both integer and float counts",
     {"count_int": 1, "positive_spans": [(0, 1)], "positive_counts": [1.0]}),
    (Fault.ZERO_THRESHOLD, "the zero threshold -0.1 is not", {"zero_threshold": -0.1}),
    (Fault.ZERO_THRESHOLD, "the zero threshold +Inf is not", {"zero_threshold": math.inf}),
    (Fault.ZERO_THRESHOLD, "the zero threshold NaN is not", {"zero_threshold": math.nan}),
    (Fault.BOUND_ORDER, "custom boundary 2 comes after 2", CUSTOM_ONE | {"custom_values": [1.0, 2.0, 2.0]}),
    (Fault.BOUND_NOT_FINITE, "custom boundary +Inf is not finite", CUSTOM_ONE | {"custom_values": [1.0, math.inf]}),
    (Fault.BOUND_NOT_FINITE, "custom boundary NaN is not finite", CUSTOM_ONE | {"custom_values": [math.nan]}),
    (Fault.BOUNDS_OF_EXPONENTIAL, "schema 3 has no custom boundaries, but there are 2",
     {"schema": 3, "custom_values": [1.0, 2.0]}),
    (Fault.CUSTOM_WITH_ZERO_OR_NEGATIVE, "neither a zero bucket nor negative", CUSTOM_ONE | {"zero_count_int": 1}),
    (Fault.CUSTOM_WITH_ZERO_OR_NEGATIVE, "neither a zero bucket nor negative", CUSTOM_ONE | {"zero_threshold": 0.1}),
    (Fault.CUSTOM_WITH_ZERO_OR_NEGATIVE, "neither a zero bucket nor negative",
     CUSTOM_ONE | {"negative_spans": [(0, 1)], "negative_deltas": [1]}),
    (Fault.TOO_MANY_BUCKETS, f"more than {BUCKETS_MAX} buckets",
     {"positive_spans": [(0, BUCKETS_MAX + 1)], "positive_deltas": [1] * (BUCKETS_MAX + 1)}),
    (Fault.TOO_MANY_BUCKETS, f"more than {BUCKETS_MAX} buckets",
     {"count_float": 1, "negative_counts": [1] * BUCKETS_MAX, "positive_counts": [1]}),
    (Fault.TOO_MANY_SPANS, f"more than {BUCKETS_MAX} spans", {"positive_spans": [(0, 0)] * (BUCKETS_MAX + 1)}),
    (Fault.TOO_MANY_BOUNDS, f"more than {BUCKETS_MAX} custom",
     {"schema": -53, "custom_values": range(BUCKETS_MAX + 1)}),
]  # fmt: skip
GOOD = histogram_message(count_int=3, sum=4.5, timestamp=1, **POSITIVE)


@pytest.mark.parametrize(("fault", "text", "fields"), REFUSED, ids=lambda value: getattr(value, "name", None))
def test_an_invalid_histogram_is_refused_by_name_and_its_neighbours_are_not(
    fault: Fault, text: str, fields: dict[str, Any]
) -> None:
    defaults: dict[str, Any] = {} if {"count_int", "count_float"} & fields.keys() else {"count_int": 3}
    got = decode(GOOD, histogram_message(**defaults, **fields), GOOD)
    assert got.faults.tolist() == [0, fault, 0]
    assert text in got.fault_text(1)
    first, refused, last = histograms_of(got.batch)
    assert first == last == NativeHistogram(count=3.0, sum=4.5, positive={0: 1.0, 1: 2.0})
    assert refused == NativeHistogram()


def test_the_largest_histogram_allowed_is_read() -> None:
    half = BUCKETS_MAX // 2
    message = histogram_message(
        schema=8, count_int=BUCKETS_MAX, positive_spans=[(-7, half)], positive_deltas=[1] + [0] * (half - 1),
        negative_spans=[(0, half)], negative_deltas=[1] + [0] * (half - 1),
    )  # fmt: skip
    got = decode(*[message] * 30)  # more counts than the first buffer holds
    assert not got.faults.any()
    assert len(got.batch.layouts) == 1
    assert got.batch.columns.counts.sum() == 30 * BUCKETS_MAX
    assert {h.count for h in histograms_of(got.batch)} == {BUCKETS_MAX}


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(("negatives", "positives"), [(0, 9), (1, 9), (9, 1), (9, 0), (200, 300), (300, 200)])
def test_counts_are_in_order_wherever_their_fields_are(negatives: int, positives: int, is_packed: bool) -> None:
    rising = {"negative": range(1, negatives + 1), "positive": range(1001, positives + 1001)}
    fields = [
        histogram_message(
            negative_spans=[(0, negatives)], negative_deltas=deltas(rising["negative"]), is_packed=is_packed
        ),
        histogram_message(
            positive_spans=[(0, positives)], positive_deltas=deltas(rising["positive"]), is_packed=is_packed
        ),
    ]
    rest = histogram_message(count_int=sum(map(sum, rising.values())) + 7, zero_count_int=7)
    expected = [*reversed(rising["negative"]), 7, *rising["positive"]]
    messages = [GOOD, fields[0] + fields[1] + rest, rest + fields[1] + fields[0], GOOD]
    got = decode(*messages)
    assert not got.faults.any()
    columns = got.batch.columns
    for row in (1, 2):
        assert columns.counts[columns.start[row] : columns.start[row + 1]].tolist() == expected
    assert histograms_of(got.batch)[3] == histograms_of(decode(GOOD).batch)[0]


def deltas(counts: range) -> list[int]:
    return [counts[0], *[1] * (len(counts) - 1)] if counts else []


def test_infinite_observations_have_a_bucket() -> None:
    got = decode(*(histogram_message(schema=s, count_int=1, positive_spans=[(i, 1)], positive_deltas=[1])
                   for s, i in ((8, 262145), (0, 1025), (-4, 65))))  # fmt: skip
    assert not got.faults.any()
    assert got.batch.layouts.edges[1::2].tolist() == [[1.7976931348623157e308, math.inf]] * 3


def test_memory_is_bounded_by_the_bytes_whatever_they_claim() -> None:
    spans = histogram_message(count_int=0, positive_spans=[(1 << 30, (1 << 32) - 1)] * 100)
    got = decode(*[spans] * 50)
    assert set(got.faults.tolist()) == {Fault.SPAN_LENGTHS}
    assert got.batch.nbytes < 50 * 100


def test_a_message_that_is_cut_off_or_damaged_is_refused_or_read_but_nothing_breaks() -> None:
    whole = histogram_message(
        schema=2, count_int=9, sum=1.0, zero_count_int=2, reset_hint=1, timestamp=1 << 40, **POSITIVE,
        negative_spans=[(0, 2)], negative_deltas=[1, 2],
    )  # fmt: skip
    got = decode(*(whole[:size] for size in range(len(whole))))
    assert Fault.MALFORMED in got.faults.tolist()
    assert got.faults[-1] == Fault.MALFORMED
    random = Random(7)
    damaged = []
    for _ in range(3000):
        message = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            message[random.randrange(len(message))] = random.randrange(256)
        damaged.append(bytes(message))
    assert len(histograms_of(decode(*damaged).batch)) == len(damaged)


@pytest.mark.parametrize(
    "message",
    [
        b"\x07",  # field 0
        b"\x08",  # no value
        b"\x42\x03\x08\x02",  # a span that ends behind the message
        b"\x42\x02\x0d\x00",  # a span whose offset is no varint
        b"\x4a\x01\x80",  # a delta that is cut off
        b"\x52\x04" + b"\0" * 4,  # half a float
        b"\x19" + b"\0" * 7,
        b"\x1d" + b"\0" * 4,  # a sum of four bytes
        b"\x09" + b"\0" * 8,  # a count of eight bytes
        b"\x40\x01",  # a span that is a number
        b"\x0b",  # a group
    ],
)
def test_malformed_messages_are_refused(message: bytes) -> None:
    assert decode(message, GOOD).faults.tolist() == [Fault.MALFORMED, 0]


def test_fields_that_are_unknown_are_passed_over() -> None:
    later = b"\xa0\x06\x05" + b"\xa9\x06" + struct.pack("<d", 1.0) + b"\xb2\x06\x02ab" + b"\xbd\x06" + b"\0" * 4
    assert histograms_of(decode(GOOD + later).batch) == histograms_of(decode(GOOD).batch)


def test_float_counts_without_a_count_of_observations_are_those_of_a_float_histogram() -> None:
    got = decode(histogram_message(positive_spans=[(0, 1)], positive_counts=[0.0]))
    assert (got.faults.tolist(), got.batch.columns.flags.tolist()) == ([0], [IS_FLOAT])


def test_no_messages() -> None:
    assert len(decode().batch) == 0
