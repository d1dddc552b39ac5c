"""Remote read: what a plain reader finds in the answers are the samples that were to be sent."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.remote_read import frames, parts, samples
from coordinator.remote_read.parts import Parts, parts_of
from coordinator.remote_read.plan import read_plan
from coordinator.remote_read.requests import ReadSelection, ResponseType, decode
from proto import remote_read_pb2
from shared.errors import BadData, NotExecutable
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.histograms.batch import HistogramBatch
from shared.labels import Labels
from shared.promql.parser import parse_selector
from tests import remote_read_answers as answers
from tests.histogram_strategies import histograms
from tests.oracle_native_histograms import CUSTOM, Hint, NativeHistogram
from tests.remote_read_answers import Series, comparable, query_of, vector_of, with_flags

T = 1_700_000_000_000
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
EXAMPLES = settings(max_examples=40, deadline=None)


def parts_from(series: Series, *, keeps_empty: bool = False) -> Parts:
    return parts_of(vector_of(series), keeps_empty=keeps_empty)


def of_samples(results: Sequence[Parts]) -> list[Series]:
    return answers.of_samples(b"".join(samples.chunks(results)))


def of_frames(results: Sequence[Parts]) -> list[Series]:
    return answers.of_frames(b"".join(frames.chunks(results)), len(results))


def labels_of(**pairs: str) -> Labels:
    return tuple(sorted({"__name__": "m", **pairs}.items()))


numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.5, math.nan, math.inf, -math.inf, STALE, 5e-324, 1e300, 3.0, 4.0]),
    st.floats(allow_nan=False),
)
steps = st.sampled_from([1, 2, 15_000, 15_000, 15_001, 8_000, 23_193, 60_000, 600_000, 1 << 20, 1 << 42])


@st.composite
def float_series(draw: st.DrawFn, most: int = 300) -> list[tuple[int, float]]:
    first = draw(st.sampled_from([T, 0, -1, TIME_MS_MIN, 63, 64, 1 << 20]))
    values = draw(st.lists(numbers, min_size=1, max_size=12))
    gaps = draw(st.lists(steps, min_size=1, max_size=12))
    count = draw(st.integers(1, most))
    times = np.cumsum([first, *(gaps[i % len(gaps)] for i in range(count - 1))]).tolist()
    return [(at, values[i % len(values)]) for i, at in enumerate(times)]


@EXAMPLES
@given(st.lists(float_series(), min_size=1, max_size=4))
def test_floats_arrive_with_all_their_bits(drawn: list[list[tuple[int, float]]]) -> None:
    series: Series = {labels_of(i=str(i)): list(own) for i, own in enumerate(drawn)}
    results = [parts_from(series)]
    assert comparable(of_frames(results)) == comparable([series])
    assert comparable(of_samples(results)) == comparable([series])


@EXAMPLES
@given(st.lists(st.one_of(numbers, histograms, histograms.map(lambda h: replace(h, hint=Hint.GAUGE))), min_size=1))
def test_histograms_and_floats_arrive_in_both_forms(drawn: list[float | NativeHistogram]) -> None:
    series: Series = {labels_of(): [(T + 15_000 * i, own) for i, own in enumerate(drawn)]}
    results = [parts_from(series)]
    assert comparable(of_samples(results)) == comparable([series])
    assert comparable(without_hints(of_frames(results))) == comparable(without_hints([series]))


def without_hints(results: Sequence[Series]) -> list[Series]:
    return [
        {
            labels: [(at, replace(o, hint=Hint.UNKNOWN) if isinstance(o, NativeHistogram) else o) for at, o in own]
            for labels, own in each.items()
        }
        for each in results
    ]


def counter(count: float, hint: Hint = Hint.UNKNOWN) -> NativeHistogram:
    return NativeHistogram(0, count + 1.0, 2.5 * count, 1e-3, 1.0, {1: count}, hint=hint)


def test_a_chunk_of_histograms_ends_where_a_reader_would_miss_a_reset() -> None:
    told = [counter(5), counter(7), counter(9, Hint.RESET), counter(3), counter(4, Hint.NOT_RESET)]
    gauges = [counter(9, Hint.GAUGE), counter(3, Hint.GAUGE)]
    series: Series = {labels_of(): [(T + i, own) for i, own in enumerate([*told, *gauges])]}
    (read,) = of_frames([parts_from(series)])
    hints = [own.hint for _, own in read[labels_of()] if isinstance(own, NativeHistogram)]
    unknown, no_reset = Hint.UNKNOWN, Hint.NOT_RESET
    assert hints == [unknown, no_reset, Hint.RESET, unknown, no_reset, Hint.GAUGE, Hint.GAUGE]


@pytest.mark.parametrize("threshold", [0.0, 2.0**-243, 2.0**10, 2.0**-128, 1e-128, 2.0**11, 0.75])
def test_a_zero_threshold_has_a_byte_or_nine(threshold: float) -> None:
    series: Series = {labels_of(): [(T, replace(counter(5), zero_threshold=threshold))]}
    assert comparable(of_frames([parts_from(series)])) == comparable([series])


def test_boundaries_that_are_short_decimals_or_not() -> None:
    bounds = (-1.0, 0.0, 0.005, 1 / 3, 33554.43, 33554.431, 1e9)
    series: Series = {labels_of(): [(T, NativeHistogram(CUSTOM, 3.0, 1.5, positive={0: 1.0, 7: 2.0}, bounds=bounds))]}
    for read in (of_samples, of_frames):
        assert comparable(read([parts_from(series)])) == comparable([series])


def test_integer_histograms_are_sent_as_integers_in_samples_and_as_floats_in_chunks() -> None:
    vector = vector_of({labels_of(): [(T, counter(5)), (T + 1, counter(70_000))]})
    batch = vector.samples.histograms
    assert isinstance(batch, HistogramBatch)
    vector.samples.histograms = with_flags(batch, 0)
    results = [parts_of(vector, keeps_empty=False)]
    body = snappy.uncompress(b"".join(samples.chunks(results)))
    (series,) = remote_read_pb2.ReadResponse.FromString(body).results[0].timeseries
    messages = [answers.message_of(data) for data in series.histograms]
    assert [(m.WhichOneof("count"), m.count_int, list(m.positive_deltas)) for m in messages] == [
        ("count_int", 6, [5]), ("count_int", 70_001, [70_000]),
    ]  # fmt: skip
    (read,) = of_frames(results)
    assert [own.count for _, own in read[labels_of()] if isinstance(own, NativeHistogram)] == [6.0, 70_001.0]


def test_series_are_in_the_order_of_their_labels_and_those_without_samples_are_left_out() -> None:
    names = [{"z": "1"}, {"é": "x" * 200}, {"a": "1", "b": ""}, {"a": "1"}, {"job": "b"}, {"job": "a"}]
    series: Series = {labels_of(**own): [(T, 1.0)] for own in names}
    series[labels_of(empty="1")] = []
    for read in (of_samples, of_frames):
        (found,) = read([parts_from(series)])
        wanted = sorted({tuple(p for p in labels if p[1]) for labels, own in series.items() if own})
        assert list(found) == wanted
    (listed,) = of_samples([parts_from(series, keeps_empty=True)])
    assert listed[labels_of(empty="1")] == []


def test_each_query_has_its_own_result() -> None:
    many: list[Series] = [{labels_of(q=str(i)): [(T + i, float(i))]} for i in range(200)]
    many[3] = {}
    results = [parts_from(own) for own in many]
    assert of_samples(results) == many
    assert of_frames(results) == many
    assert of_samples([]) == []
    assert b"".join(frames.chunks([])) == b""


def test_a_long_answer_is_made_in_pieces_and_a_very_long_series_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PIECE_NUMBERS", 1000)
    monkeypatch.setattr(parts, "PART_NUMBERS_MAX", 500)
    series: Series = {labels_of(i=f"{i:03}"): [(T + 10 * k, k * 0.1 + i) for k in range(60)] for i in range(100)}
    series[labels_of(i="050", x="long")] = [(T + k, float(k)) for k in range(1733)]
    series[labels_of(i="051", x="long")] = [(T + k, counter(float(k))) for k in range(300)]
    results = [parts_from(series), parts_from(series)]
    assert 4 < results[0].begins.sum() < len(results[0].rows) and len(results[0].spans()) > 8
    assert comparable(of_samples(results)) == comparable([dict(sorted(series.items()))] * 2)
    assert comparable(without_hints(of_frames(results))) == comparable(
        without_hints([dict(sorted(series.items()))] * 2)
    )


def test_an_answer_beyond_what_one_message_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "RESPONSE_BYTES_MAX", 100)
    with pytest.raises(NotExecutable, match="STREAMED_XOR_CHUNKS"):
        list(samples.chunks([parts_from({labels_of(): [(T + i, 1.0) for i in range(10)]})]))


# Requests


def decoded(query: remote_read_pb2.Query) -> ReadSelection:
    (selection,) = decode(remote_read_pb2.ReadRequest(queries=[query]).SerializeToString()).selections
    return selection


def test_matchers_become_a_selector() -> None:
    matchers = [("__name__", "=", 'a"b'), ("job", "!=", ""), ("x.y", "=~", "a|b"), ("z", "!~", "\\d+\n")]
    selection = decoded(query_of(matchers, 1, 2))
    assert parse_selector(selection.text) == parse_selector('{__name__="a\\"b", job!="", "x.y"=~"a|b", z!~"\\\\d+\\n"}')
    assert (selection.start_ms, selection.end_ms, selection.labels_only) == (1, 2, False)


@pytest.mark.parametrize(
    ("hints", "reach"),
    [
        ({}, (1000, 9000)),
        ({"start_ms": 2000, "end_ms": 3000, "func": "rate", "range_ms": 60}, (2000, 3000)),
        ({"start_ms": -50, "end_ms": 20_000}, (1000, 9000)),
        ({"start_ms": 9500, "end_ms": 9900}, (1000, 9000)),  # beside the query: not understood
        ({"start_ms": 5000, "end_ms": 4000}, (1000, 9000)),
    ],
)
def test_hints_narrow_the_times(hints: dict, reach: tuple[int, int]) -> None:
    selection = decoded(query_of([("a", "=", "b")], 1000, 9000, **hints))
    assert (selection.start_ms, selection.end_ms) == reach


def test_times_are_kept_within_what_can_be_stored_and_series_may_be_asked_for_alone() -> None:
    selection = decoded(query_of([("a", "=", "b")], -(1 << 63), (1 << 63) - 1, func="series"))
    assert (selection.start_ms, selection.end_ms) == (TIME_MS_MIN, TIME_MS_MAX)
    assert selection.labels_only


@pytest.mark.parametrize(
    ("types", "accepted"),
    [([], [0]), ([0], [0]), ([1], [1]), ([1, 0], [1, 0]), ([7, 0, 0, 1], [0, 1])],
)
def test_the_first_known_form_is_taken(types: list[int], accepted: list[int]) -> None:
    body = remote_read_pb2.ReadRequest(accepted_response_types=types).SerializeToString()
    assert decode(body).accepted == tuple(ResponseType(number) for number in accepted)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff\xff", "not a prometheus.ReadRequest"),
        (remote_read_pb2.ReadRequest(accepted_response_types=[7]).SerializeToString(), "accepted_response_types is"),
        (remote_read_pb2.ReadRequest(queries=[query_of([("a", "=", "b")], 2, 1)]).SerializeToString(), "ends at 1 ms"),
        (b"\x0a\x06\x1a\x04\x08\x05\x12\x00", "type 5"),
        (b"\x0a\x05\x1a\x03\x12\x01\xff", "not a prometheus.ReadRequest"),
        (b"\x0a\x00" * 501, "501 queries"),
    ],
)
def test_a_request_that_is_wrong_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(BadData, match=why):
        decode(body)


def test_a_plan_reads_the_times_of_each_query() -> None:
    selections = [ReadSelection('{a="b"}', 1000, 9000, False), ReadSelection('{c="d"}', 5, 5, True)]
    made = read_plan(selections, [parse_selector(own.text) for own in selections])
    assert [demand.read_ms for demand in made.demands] == [8000 + 1000, 1000]
    assert [leaf.mode for leaf in made.leaves] == ["samples", "series"]
    assert read_plan([], []).leaves == ()
