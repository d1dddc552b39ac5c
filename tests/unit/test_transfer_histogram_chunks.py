"""Chunks of native histograms in blocks of Prometheus's TSDB."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.transfer.tsdb_chunks import BROKEN, FLOAT_HISTOGRAM, HISTOGRAM, HISTOGRAMS, OTHER
from coordinator.transfer.tsdb_histograms import Decoder
from loadtest.harness.histogram_messages import message_of
from shared.histograms.fields import BUCKETS_MAX
from shared.protobuf_fields import read_varint
from tests.histogram_chunks import STALE_BITS, Layout, Row, chunk_data

RESET, NOT_RESET, GAUGE = 0b10, 0b01, 0b11
STALE = struct.unpack(">d", struct.pack(">Q", STALE_BITS))[0]
DECODER = Decoder(1 << 16)

SPANS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=3)
INTEGERS = st.one_of(st.integers(0, 20), st.integers(0, 1 << 60)).map(float)
FLOATS = st.floats(0, allow_nan=False)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[Layout, list[Row], bool]:
    is_float, is_custom = draw(st.booleans()), draw(st.booleans())
    if is_custom:
        bounds = draw(st.lists(st.one_of(st.integers(0, 9).map(float), st.floats(allow_nan=False)), max_size=4))
        layout = Layout(-53, 0.0, draw(SPANS), [], bounds)
    else:
        threshold = draw(st.one_of(st.just(0.0), st.integers(-250, 12).map(lambda power: 2.0**power), FLOATS))
        first = draw(st.integers(-1000, 1000))
        layout = Layout(draw(st.integers(-4, 8)), threshold, [(first, 1), *draw(SPANS)], draw(SPANS))
    number = FLOATS if is_float else INTEGERS
    counts = st.lists(number, min_size=layout.buckets, max_size=layout.buckets)
    times = st.integers(-(1 << 45), 1 << 45)
    row = st.builds(Row, times, number, number, st.floats(allow_nan=False), counts)
    rows = draw(st.lists(row, min_size=1, max_size=6))
    for time_ms in draw(st.lists(times, max_size=2)):
        rows.append(Row(time_ms, 0.0, 0.0, STALE))
    return layout, rows, is_float


def read(
    *data: tuple[bytes, bool], deleted: Sequence[Sequence[tuple[int, int]]] = (), decoder: Decoder = DECODER
) -> tuple[list[list[Any]], list[int]]:
    """(The messages of each chunk, what each chunk is)."""
    whole, table = b"", []
    for content, is_float in data:
        whole += bytes([FLOAT_HISTOGRAM if is_float else HISTOGRAM]) + content
        table.append([HISTOGRAMS, len(whole) - len(content), len(whole), 0])
    rows = np.array(table, dtype=np.int64)
    found: list[list[Any]] = [[] for _ in data]
    for read_now in decoder.read(np.frombuffer(whole, np.uint8), rows, deleted or [()] * len(data)):
        for row, fields in read_now:
            at = 0
            while at < len(fields):
                assert fields[at] == 0x22
                size, at = read_varint(fields, at + 1)
                found[row].append(message_of(fields[at : at + size]))
                at += size
    return found, rows[:, 0].tolist()


def held(message: Any) -> tuple[Any, ...]:
    if struct.unpack(">Q", struct.pack(">d", message.sum))[0] == STALE_BITS:
        return message.timestamp, "stale"
    is_float = message.WhichOneof("count") == "count_float"
    counts = [*message.positive_counts, *message.negative_counts]
    if not is_float:
        for deltas in (message.positive_deltas, message.negative_deltas):
            counts += np.cumsum(np.array(deltas, np.int64)).tolist()
    return (
        message.timestamp,
        is_float,
        message.count_float if is_float else message.count_int,
        message.zero_count_float if is_float else message.zero_count_int,
        message.sum,
        counts,
        (message.schema, message.zero_threshold, list(message.custom_values)),
        [(span.offset, span.length) for span in message.positive_spans],
        [(span.offset, span.length) for span in message.negative_spans],
    )


def expected(layout: Layout, row: Row, is_float: bool) -> tuple[Any, ...]:
    if row.is_stale:
        return row.time_ms, "stale"
    head = (layout.schema, layout.threshold, list(layout.bounds))
    numbers = (row.count, row.zero, row.sum, list(row.counts))
    return (row.time_ms, is_float, *numbers, head, list(layout.positive), list(layout.negative))


@settings(max_examples=100, deadline=None)
@given(chunks(), st.sampled_from([0, RESET, NOT_RESET, GAUGE]))
def test_histograms_are_read_as_they_were_written(chunk: tuple[Layout, list[Row], bool], flags: int) -> None:
    layout, rows, is_float = chunk
    data = chunk_data(layout, rows, is_float=is_float, flags=flags)
    (messages,), (status,) = read((data, is_float))
    assert status == HISTOGRAMS
    assert [held(message) for message in messages] == [expected(layout, row, is_float) for row in rows]
    first = {RESET: 1, GAUGE: 3}.get(flags, 0)
    assert [message.reset_hint for message in messages] == [first] + [3 if flags == GAUGE else 2] * (len(rows) - 1)


LAYOUT = Layout(1, 0.5, [(0, 2)])
ROWS = [Row(1000 * k, 3.0 * k, float(k), 1.5, [float(k), float(k)]) for k in range(8)]
DATA = chunk_data(LAYOUT, ROWS, is_float=False, flags=RESET)


def test_histograms_that_were_deleted_are_left_out() -> None:
    ((left, whole), _) = read((DATA, False), (DATA, False), deleted=[[(0, 1000), (4000, 5500)], []])
    assert [message.timestamp for message in left] == [2000, 3000, 6000, 7000]
    assert [message.reset_hint for message in left] == [0, 2, 2, 2], "what was before the first one is not known"
    assert [message.timestamp for message in whole] == [row.time_ms for row in ROWS]


@pytest.mark.parametrize("is_float", [False, True])
def test_a_chunk_that_is_cut_off_is_broken_and_others_are_read(is_float: bool) -> None:
    data = chunk_data(LAYOUT, ROWS, is_float=is_float)
    for size in range(len(data)):
        found, status = read((data[:size], is_float), (data, is_float))
        assert status == [BROKEN, HISTOGRAMS]
        assert (len(found[0]), len(found[1])) == (0, len(ROWS))


def test_what_no_chunk_can_have_is_refused() -> None:
    too_many = chunk_data(Layout(1, 0.0, [(0, 6000), (0, 6000)]), [], is_float=False)
    endless = chunk_data(Layout(1, 0.0, [(0, 20_000)]), [], is_float=False)
    found, status = read((too_many, False), (endless, False), (DATA, False))
    assert status == [OTHER, BROKEN, HISTOGRAMS]
    assert len(found[2]) == len(ROWS)


def test_the_largest_layout_has_room() -> None:
    spans = [((1 << 31) - 1, 0)] * BUCKETS_MAX
    layout = Layout(-53, 0.3, [(0, BUCKETS_MAX), *spans[1:]], spans, [0.1] * BUCKETS_MAX)
    row = Row(1, 2.0**60, 2.0**60, 1.5, [0.0, 2.0**60] * (BUCKETS_MAX // 2))
    (messages,), _ = read((chunk_data(layout, [row], is_float=False), False), decoder=Decoder())
    assert [held(message) for message in messages] == [expected(layout, row, False)]


def test_chunks_come_in_as_many_parts_as_there_is_room_for() -> None:
    decoder = Decoder(400)
    whole, table = b"", []
    large = chunk_data(LAYOUT, [Row(k, 0.0, 0.0, 0.0, [0.0, 0.0]) for k in range(100)], is_float=False)
    for content in (DATA, DATA, large, DATA):
        whole += bytes([HISTOGRAM]) + content
        table.append([HISTOGRAMS, len(whole) - len(content), len(whole), 0])
    rows = np.array(table, dtype=np.int64)
    parts = list(decoder.read(np.frombuffer(whole, np.uint8), rows, [()] * 4))
    assert [[row for row, _ in part] for part in parts] == [[0], [1], [3]]
    assert rows[:, 0].tolist() == [HISTOGRAMS, HISTOGRAMS, OTHER, HISTOGRAMS]
