"""Every range of times and numbers, over small contents: each edge is in the range or out of it as a list says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shared.messages.log import Range, Span
from shared.promql.model import Samples
from tests import chunks_v1
from tests.unit.log_shard import OneShard
from tests.unit.test_series_chunks import COUNTS, FIRSTS, TIMES
from worker.logs import key_lists, reading
from worker.series.blocks import chunks
from worker.series.blocks import writer as writer_module
from worker.series.blocks.block import Block
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.writer import BlockWriter
from worker.series.head import Head
from worker.series.pieces import join
from worker.storage.objects import LocalObjects

SERIES: list[list[int]] = [[2, 4, 6], [4], [], [1, 7], [3, 4, 5], [7]]
IDS = np.arange(len(SERIES))
RANGES = [(start, end) for start in range(9) for end in range(start - 1, 9)]


def inside(times: list[int], start: int, end: int) -> list[int]:
    return [time for time in times if start <= time <= end]


def times_of(samples: Samples) -> list[list[int]]:
    bounds = samples.offsets.tolist()
    return [samples.timestamps_ms[first:last].tolist() for first, last in itertools.pairwise(bounds)]


@pytest.fixture(params=[1 << 20, 4], ids=["one chunk", "chunks"])
def block(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Block:
    monkeypatch.setattr(writer_module, "CHUNK_SAMPLES", request.param)
    writer = BlockWriter(LocalObjects(tmp_path), 1)
    for number, times in enumerate(SERIES):
        if times:
            writer.add(np.array([number]), np.array([len(times)]), np.array(times), np.array(times) * 1.5)
    return Block(writer.finish(), LocalObjects(tmp_path), DecodedCache(1 << 20))


def test_a_block_is_read_in_every_range(block: Block) -> None:
    for start, end in RANGES:
        found = join(block.pieces(IDS, start, end), len(SERIES))
        assert times_of(found) == [inside(times, start, end) for times in SERIES], (start, end)
        assert found.values.tolist() == (found.timestamps_ms * 1.5).tolist()


def test_a_block_says_of_every_range_which_series_it_has(block: Block) -> None:
    looks: list[int] = []
    for start, end in RANGES:
        having = [bool(inside(times, start, end)) for times in SERIES]
        assert block.having(IDS, start, end, lambda: looks.append(1)).tolist() == having, (start, end)
        around = [bool(times) and times[0] <= end and times[-1] >= start for times in SERIES]
        found = block.may_have(IDS, start, end, [])
        assert all(may or not has for may, has in zip(found.tolist(), having, strict=True))
        if len(block.directory().chunk_hashes) == 1:
            assert found.tolist() == around, (start, end)
        assert block.overlaps(start, end) == (start <= 7 and end >= 1)
    assert looks


def test_a_block_whose_samples_of_a_series_are_deleted_may_not_have_it(block: Block) -> None:
    about = np.array([True, False, False, False, True, False])
    for (start, end), (first, last) in itertools.product(RANGES[::3], RANGES[::5]):
        found = block.may_have(IDS, start, end, [(about, first, last)]).tolist()
        for number, times in enumerate(SERIES):
            left = [time for time in inside(times, start, end) if not (about[number] and first <= time <= last)]
            assert found[number] or not left, (number, start, end, first, last)
        if first <= start and end <= last:
            assert not found[0] and not found[4]


@pytest.mark.parametrize("order", ["ascending", "late"])
def test_a_head_answers_every_range(order: str) -> None:
    head = Head()
    head.extend(len(SERIES))
    for number, times in enumerate(SERIES):
        for time in times if order == "ascending" else reversed(times):
            head.append(np.array([number]), np.array([time]), np.array([time * 1.5]))
    for start, end in RANGES:
        expected = [inside(times, start, end) for times in SERIES]
        found = head.read(IDS, start, end)
        assert times_of(found) == expected
        assert found.values.tolist() == (found.timestamps_ms * 1.5).tolist()
        assert head.having(IDS, start, end).tolist() == [bool(times) for times in expected], (start, end)
        around = [bool(times) and times[0] <= end and times[-1] >= start for times in SERIES]
        assert head.overlapping(IDS, start, end).tolist() == around, (start, end)
    assert head.times() == (1, 7)


@pytest.mark.parametrize(("start", "end"), RANGES[::4])
def test_a_deletion_takes_its_range_and_nothing_beside_it(start: int, end: int) -> None:
    head = Head()
    head.extend(len(SERIES))
    for number, times in enumerate(SERIES):
        head.append(np.full(len(times), number), np.array(times, np.int64), np.zeros(len(times)))
    gone = np.array([0, 3, 5])
    assert head.delete(gone, start, end) == sum(len(inside(SERIES[number], start, end)) for number in gone)
    left = [
        [time for time in times if number not in gone or not start <= time <= end]
        for number, times in enumerate(SERIES)
    ]
    assert times_of(head.read(IDS, 0, 9)) == left
    assert head.samples == sum(map(len, left))


@pytest.mark.parametrize("encode", [chunks.encode, chunks_v1.encode], ids=["this release", "an earlier one"])
def test_a_chunk_says_of_every_range_which_runs_have_a_time(encode: Callable[..., bytes]) -> None:
    packed = encode(COUNTS, TIMES, np.zeros(9))
    runs = np.split(TIMES, np.cumsum(COUNTS)[:-1])
    edges = [-6, -5, -4, 9, 10, 11, 19, 20, 21, 35, 36, 6, 7, 8, 6999, 7000, 7001]
    for start, end in itertools.product(edges, edges):
        expected = [bool(inside(run.tolist(), start, end)) for run in runs]
        assert chunks.between(packed, COUNTS, FIRSTS, start, end).tolist() == expected, (start, end)


# The log

KEYS = [b"a", b"b", b"a", b"ab", b"a", b"b", b"a", b"ab", b"a", b"b"]


@pytest.fixture(params=["in memory", "gathered", "both"])
def log_shard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OneShard]:
    """The numbers 0 … 9 in three segments, with the keys above; a value says its number."""
    own = OneShard(tmp_path)
    for segment, (first, last) in enumerate(((0, 4), (4, 7), (7, 10))):
        own.append(first, [(KEYS[number], b"%d" % number) for number in range(first, last)], segment=segment)
        if request.param == "gathered" or (request.param == "both" and segment == 1):
            own.part._closed = last  # as a later message says
            own.part.gather()
    yield own
    own.close()


LOG_RANGES = [(start, end) for start in range(11) for end in range(start, 12)]


def expected_numbers(key: bytes, is_prefix: bool, start: int, end: int, hidden: list[Span]) -> list[int]:
    return [
        number
        for number, own in enumerate(KEYS)
        if start <= number < end
        and (own.startswith(key) if is_prefix else own == key)
        and not any(first <= number < last for first, last in hidden)
    ]


@pytest.mark.parametrize("hidden", [[], [Span((2, 3))], [Span((0, 1)), Span((4, 8))]])
def test_records_are_read_and_counted_in_every_range(log_shard: OneShard, hidden: list[Span]) -> None:
    part = log_shard.part
    for start, end in LOG_RANGES:
        span = Range(0, 2, start, end, hidden)
        expected = expected_numbers(b"a", False, start, end, hidden)
        page = reading.scan(part, span, b"a", 100, False)
        assert (page.records.sequences.tolist(), page.next, page.done) == (expected, end, True), (start, end)
        page = reading.scan(part, span, b"a", 100, True)
        assert (page.records.sequences.tolist(), page.next, page.done) == (expected[::-1], start, True), (start, end)
        assert reading.count_key(part, span, b"a", lambda: None) == len(expected)
        expected = expected_numbers(b"a", True, start, end, hidden)
        page = reading.merge(part, span, b"a", 100, lambda: None)
        assert (page.records.sequences.tolist(), page.next, page.done) == (expected, end, True), (start, end)
        assert page.records.value_list() == [b"%d" % number for number in expected]
        assert reading.count_prefix(part, span, b"a", lambda: None) == len(expected)
        names = sorted({KEYS[number] for number in expected_numbers(b"", True, start, end, hidden)})
        assert key_lists.keys(part, span, b"", None, 100, lambda: None) == names
        assert key_lists.keys(part, span, b"a", b"a", 100, lambda: None) == [name for name in names if name == b"ab"]
        assert key_lists.keys(part, span, b"", None, 1, lambda: None) == names[:1]


@pytest.mark.parametrize("limit", [1, 2, 4, 5])
def test_pages_of_every_length_follow_each_other_without_a_gap(log_shard: OneShard, limit: int) -> None:
    for reverse in (False, True):
        span, found = Range(0, 2, 1, 9), list[int]()
        while True:
            page = reading.scan(log_shard.part, span, b"a", limit, reverse)
            found += page.records.sequences.tolist()
            if page.done:
                break
            assert len(page.records.sequences) == limit
            if reverse:
                span.end = page.next
            else:
                span.start = page.next
        assert found == ([8, 6, 4, 2] if reverse else [2, 4, 6, 8])
    span, found = Range(0, 2, 1, 9), []
    while True:
        page = reading.merge(log_shard.part, span, b"a", limit, lambda: None)
        found += page.records.sequences.tolist()
        span.start = page.next
        if page.done:
            break
        assert 0 < len(page.records.sequences) <= limit
    assert found == [2, 3, 4, 6, 7, 8]


@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (3, 5)])
def test_only_the_segments_that_are_asked_for_are_read(log_shard: OneShard, first: int, last: int) -> None:
    bounds = [0, 4, 7, 10]
    numbers = [n for n in range(10) if any(bounds[s] <= n < bounds[s + 1] for s in range(first, min(last, 2) + 1))]
    page = reading.merge(log_shard.part, Range(first, last, 0, 99), b"", 100, lambda: None)
    assert page.records.sequences.tolist() == numbers
    page = reading.scan(log_shard.part, Range(first, last, 0, 99), b"b", 100, False)
    assert page.records.sequences.tolist() == [number for number in numbers if KEYS[number] == b"b"]


@pytest.mark.parametrize(("first_segment", "start"), [(0, 0), (1, 4), (2, 7), (3, 10)])
def test_what_is_dropped_is_gone_and_the_rest_is_there(log_shard: OneShard, first_segment: int, start: int) -> None:
    log_shard.part.drop(first_segment, start)
    assert [number for number, _, _ in log_shard.read()] == list(range(start, 10))
    assert log_shard.part.counts()["records"] == 10 - start
    assert [log_shard.part.has_dropped(segment) for segment in range(3)] == [n < first_segment for n in range(3)]
    assert [held.segment for held in log_shard.part.segments()] == [n for n in range(3) if n >= first_segment]
    log_shard.restart()
    assert [number for number, _, _ in log_shard.read()] == list(range(start, 10))
    assert log_shard.part.dropped == first_segment


@pytest.mark.parametrize("span", [(4, 7), (3, 8)])
def test_the_batches_within_a_span_are_taken_back_and_no_others(log_shard: OneShard, span: tuple[int, int]) -> None:
    log_shard.part.revoke(1, 4, [Span(span)])
    left = [0, 1, 2, 3, 7, 8, 9]
    assert [number for number, _, _ in log_shard.read()] == left
    assert log_shard.part.counts()["records"] == len(left)
    log_shard.restart()
    assert [number for number, _, _ in log_shard.read()] == left


@pytest.mark.parametrize("is_gathered", [False, True])
def test_what_is_taken_back_is_no_longer_counted_whatever_stays_beside_it(tmp_path: Path, is_gathered: bool) -> None:
    own = OneShard(tmp_path)
    own.append(0, [(b"a", b"first"), (b"b", b"second")])
    before = own.part.segments()
    own.append(2, [(b"a", b"third"), (b"c", b"fourth")])
    if is_gathered:
        own.part._closed = 4
        own.part.gather()
    own.part.revoke(0, 2, [Span((2, 4))])
    assert own.part.segments() == before
    assert own.read() == [(0, b"a", b"first"), (1, b"b", b"second")]
    own.restart()
    assert own.part.segments() == before
    own.close()
