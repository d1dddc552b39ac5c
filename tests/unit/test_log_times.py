"""When records were appended: kept by the shards, never falling, and found by halving."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.api.log.times import between
from coordinator.log.reads import KeySelection, Warnings
from coordinator.log.recovery import _with_times
from coordinator.log.sequencer import Segment, Sequencer
from shared.control import LocalControl
from shared.errors import DeadlineExceeded, Unavailable
from shared.messages.log import SEQUENCE_MAX, Range
from shared.messages.log_pages import Records
from shared.settings import Settings
from tests.unit.log_area import EVERYTHING, Log, batch, key_on
from tests.unit.log_shard import OneShard, named
from worker.logs import reading, times
from worker.logs.runs import TIME_SPAN_MS_MAX

NOW_MS = 1735689600000


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    made = OneShard(tmp_path / "shard")
    yield made
    made.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.links.close()


def in_time() -> None:
    """It is."""


def times_of(shard: OneShard) -> list[tuple[int, int]]:
    """(number, time) of everything, read by prefix and checked against reads by key in both directions."""
    span = Range(0, 9, 0, SEQUENCE_MAX)
    records, _, done = reading.merge(shard.part, span, b"", 10_000, in_time)
    assert done
    rows = list(zip(records.sequences.tolist(), records.times.tolist(), strict=True))
    for key in set(records.key_list()):
        own = [row for row, other in zip(rows, records.key_list(), strict=True) if other == key]
        for reverse in (False, True):
            page = reading.scan(shard.part, span, key, 10_000, reverse).records
            found = list(zip(page.sequences.tolist(), page.times.tolist(), strict=True))
            assert found == (own[::-1] if reverse else own)
    return rows


def test_a_record_keeps_its_time_in_memory_in_the_store_and_over_a_start(shard: OneShard, tmp_path: Path) -> None:
    shard.append(0, named(3), named(2), time_ms=NOW_MS)
    shard.append(5, named(4), time_ms=NOW_MS + 7)
    expected = [(number, NOW_MS if number < 5 else NOW_MS + 7) for number in range(9)]
    assert times_of(shard) == expected
    shard.restart()
    assert times_of(shard) == expected
    shard.append(9, named(1), time_ms=NOW_MS + 8, closed=9)
    shard.part.gather()
    expected.append((9, NOW_MS + 8))
    assert times_of(shard) == expected
    crashed = shard.crashed_into(tmp_path / "crashed")
    assert times_of(crashed) == expected
    crashed.close()


def test_records_of_an_earlier_format_have_no_time_and_those_that_follow_have_one(shard: OneShard) -> None:
    shard.append(0, named(3))
    shard.append(3, named(3), time_ms=NOW_MS)
    shard.append(6, named(3), time_ms=NOW_MS + TIME_SPAN_MS_MAX + 1)
    shard.append(9, named(1), time_ms=NOW_MS + TIME_SPAN_MS_MAX + 1)
    shard.part.gather()
    expected = [0, 0, 0, *3 * [NOW_MS], *4 * [NOW_MS + TIME_SPAN_MS_MAX + 1]]
    assert [time_ms for _, time_ms in times_of(shard)] == expected
    held = shard.part.segments()[0]
    assert (held.start, held.time_ms) == (0, NOW_MS)


def test_a_revocation_leaves_the_times_of_the_other_batches(shard: OneShard) -> None:
    shard.append(0, named(3), time_ms=NOW_MS)
    shard.append(3, named(3), named(3), time_ms=NOW_MS + 5)
    shard.append(9, named(1), time_ms=NOW_MS + 9)
    shard.part.gather()
    shard.part.revoke(0, 3, [(3, 6)])
    kept = [(number, NOW_MS + (5 if number < 9 else 9) * (number > 2)) for number in (0, 1, 2, 6, 7, 8, 9)]
    assert times_of(shard) == kept


@pytest.mark.parametrize("gathers", [False, True])
def test_the_first_batch_at_a_time_is_found(shard: OneShard, gathers: bool) -> None:
    starts = []
    number = 1000
    for i in range(40):
        starts.append((NOW_MS + 10 * (i // 2), number))
        shard.append(number, named(2), named(1), segment=i // 20, time_ms=starts[-1][0], closed=number)
        if gathers and i % 3 == 0:
            shard.part.gather()
        number += 3 + 17 * (i % 5)
    for segment in (0, 1):
        for time_ms in range(NOW_MS - 5, NOW_MS + 415, 5):
            own = [start for i, (at, start) in enumerate(starts) if at >= time_ms and i // 20 == segment]
            assert times.first_at(shard.part, segment, time_ms, in_time) == min(own, default=SEQUENCE_MAX)
    assert times.first_at(shard.part, 7, 0, in_time) == SEQUENCE_MAX


def test_a_search_for_a_time_ends_at_its_deadline(shard: OneShard) -> None:
    shard.append(0, named(3), time_ms=NOW_MS, closed=0)
    shard.append(3, named(3), time_ms=NOW_MS, closed=3)
    shard.part.gather()

    def late() -> None:
        raise DeadlineExceeded("late")

    with pytest.raises(DeadlineExceeded):
        times.first_at(shard.part, 0, NOW_MS, late)


def test_a_shard_refuses_a_time_before_its_newest_one_of_an_earlier_coordinator(shard: OneShard) -> None:
    assert shard.append(0, named(1), time_ms=NOW_MS, life=1) == {}
    assert shard.append(9, named(1), time_ms=NOW_MS + 5, life=1, closed=0) == {}
    assert shard.append(5, named(1), time_ms=NOW_MS + 3, life=1, closed=0) == {}, "one group may overtake another"
    shard.restart()
    (why,) = shard.append(12, named(1), time_ms=NOW_MS + 4, life=2).values()
    assert f"the newest records are of {NOW_MS + 5} ms and these of {NOW_MS + 4} ms" in why
    assert shard.part.newest_ms == NOW_MS + 5
    assert shard.append(15, named(1), time_ms=NOW_MS + 5, life=2) == {}
    shard.append(18, named(1), time_ms=NOW_MS + 6, life=2, closed=18)
    shard.part.gather()
    shard.restart()
    assert shard.part.newest_ms == NOW_MS + 6


def test_pages_keep_the_times_when_they_are_cut_joined_and_sent() -> None:
    records = Records.of(np.arange(4, dtype=np.uint64), [b"a"] * 4, [b"k"] * 4, np.arange(7, 11))
    sent = Records.from_frames(Records.joined([records.cut(1, 3), records.cut(0, 1)]).frames())
    assert sent.times.tolist() == [8, 9, 7]


# The coordinator


def sequencer(directory: Path, clock: list[int]) -> Sequencer:
    opened = Sequencer(LocalControl(directory), Settings(), lambda: clock[0])
    opened.open()
    return opened


def test_a_clock_that_goes_back_repeats_the_last_time_until_it_has_passed_it(tmp_path: Path) -> None:
    clock = [NOW_MS]
    numbers = sequencer(tmp_path, clock)
    assert [numbers.time_ms() for clock[0] in (NOW_MS, NOW_MS - 9, NOW_MS + 1, NOW_MS - 1)] == [
        *2 * [NOW_MS],
        *2 * [NOW_MS + 1],
    ]
    numbers.close()
    clock[0] = NOW_MS - 1000
    again = sequencer(tmp_path, clock)
    assert again.time_ms() == NOW_MS + 1
    again.not_before(NOW_MS + 5)
    again.start_segment()
    assert again.segments[-1].start_time_ms == NOW_MS + 5


def test_segments_that_a_lost_state_did_not_know_begin_with_their_first_record_or_with_the_next_segment() -> None:
    held = [Segment(4, 40, 30), Segment(2, 20, 0), Segment(3, 30, 50), Segment(5, 50, 0)]
    segments = [(s.id, s.start_seq, s.start_time_ms) for s in _with_times(held, 99)]
    assert segments == [(2, 20, 30), (3, 30, 30), (4, 40, 30), (5, 50, 99)]


async def test_numbers_are_found_by_time_over_segments_and_shards(log: Log) -> None:
    clock = [NOW_MS]
    expected: list[tuple[int, int]] = []
    async with log.running() as area:
        area.sequencer.wall_ms = lambda: clock[0]
        assert await area.reader.sequence_at(NOW_MS, EVERYTHING) == 0
        for i in range(60):
            clock[0] = NOW_MS + 10 * (i // 2)
            if i % 20 == 19:
                area.sequencer.start_segment()
            start, _ = await area.append(batch((key_on(i % 3), b"v"), (key_on(i * i % 3), b"w")))
            expected.append((clock[0], start))
            if i % 7 == 0:
                for each in log.links._shards:
                    each.logs.gather()
        end = area.frontier.visible
        for time_ms in range(NOW_MS - 15, NOW_MS + 320, 5):
            first = min([start for at, start in expected if at >= time_ms], default=end)
            assert await area.reader.sequence_at(time_ms, EVERYTHING) == first
        selection = KeySelection(key_on(1))
        bound = await area.reader.sequence_at(NOW_MS + 100, selection)
        async for page in area.reader.pages(selection, 0, SEQUENCE_MAX, 1000):
            rows = list(zip(page.records.sequences.tolist(), page.records.times.tolist(), strict=True))
            assert len(rows) > 20 and all((number >= bound) == (at >= NOW_MS + 100) for number, at in rows)


@pytest.mark.parametrize("visibility", ["memory", "durable"])
async def test_reads_that_meet_at_a_time_give_what_was_under_way_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visibility: str
) -> None:
    log = Log(tmp_path, log_visibility=visibility, write_timeout_ms=1000)
    fan_out, arrived, goes_on = log.links.fan_out, asyncio.Event(), asyncio.Event()

    async def held(method: str, **options: Any) -> Any:
        if method == "log.append":
            arrived.set()
            await goes_on.wait()
        return await fan_out(method, **options)

    async with log.running() as area:
        await area.recovery.wait_complete(5)
        monkeypatch.setattr(log.links, "fan_out", held)
        area.sequencer.wall_ms = lambda: 2 * NOW_MS
        appending = asyncio.create_task(area.append(batch((key_on(0), b"v"))))
        await arrived.wait()
        area.sequencer.wall_ms = lambda: 2 * NOW_MS + 10
        bound = 2 * NOW_MS + 5
        with pytest.raises(Unavailable, match="under way"):
            await area.reader.sequence_at(bound, EVERYTHING)
        assert await area.reader.sequence_at(2 * NOW_MS, EVERYTHING) == 0, "it was appended then, not before"
        first = asyncio.create_task(between(area.reader, EVERYTHING, (0, SEQUENCE_MAX), (None, bound), Warnings()))
        await asyncio.sleep(0.05)
        goes_on.set()
        await appending
        second, _ = await between(area.reader, EVERYTHING, (0, SEQUENCE_MAX), (bound, None), Warnings())
        assert await first == (0, second) == (0, 1)
    log.links.close()


async def test_times_go_on_above_those_of_the_shards_after_the_clock_was_set_back(log: Log) -> None:
    async with log.running(crash=True) as area:
        area.sequencer.wall_ms = lambda: 2 * NOW_MS
        await area.append(batch((key_on(0), b"1")))
    async with log.running() as area:
        await area.recovery.complete.wait()
        await area.append(batch((key_on(0), b"2")))
        async for page in area.reader.pages(EVERYTHING, 0, SEQUENCE_MAX, 10):
            assert page.records.times.tolist() == [2 * NOW_MS, 2 * NOW_MS]
