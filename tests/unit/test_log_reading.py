"""Reads of one shard's log, and of several: each page is nearer to the end, and what is missing is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.log.reads import KeySelection, Warnings
from shared.errors import DeadlineExceeded, Internal
from shared.messages.log import SEQUENCE_MAX, Range
from shared.messages.log_pages import NO_NUMBERS, Page, Records, check_progress
from tests.unit.log_area import EVERYTHING, Log, batch, eventually, key_on, read
from tests.unit.log_shard import OneShard
from worker.damage import DamageReport
from worker.logs import reading, rows
from worker.logs.part import LogPart

PAGES_MAX = 100


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


def pages_of(shard: OneShard, span: Range, prefix: bytes, limit: int = 1000) -> list[Page]:
    """All pages of a merged read, which has to come to an end."""
    pages: list[Page] = []
    while not pages or not pages[-1].done:
        assert len(pages) < PAGES_MAX, "it does not end"
        pages.append(reading.merge(shard.part, span, prefix, limit, lambda: None))
        check_progress(pages[-1], span.start, span.end)
        span.start = pages[-1].next
    return pages


def gathering_after_the_view(closed: int) -> Callable[[LogPart], Any]:
    """In the place of `LogPart.view`: what is below `closed` is gathered between the view and the read."""
    view = LogPart.view

    def then_gathers(part: LogPart) -> Any:
        seen = view(part)
        part._closed = closed
        part.gather()
        return seen

    return then_gathers


def test_a_scan_for_a_rare_prefix_ends_however_many_other_records_were_gathered(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LOOKED_AT_MAX", 50)
    shard.append(0, [(b"many", b"%d" % i) for i in range(200)])
    shard.append(200, [(b"other", b"one")])
    shard.append(201, [(b"many", b"after")])
    shard.part.gather()
    pages = pages_of(shard, Range(0, 9, 0, SEQUENCE_MAX), b"oth")
    assert [n for page in pages for n in page.records.sequences.tolist()] == [200]
    assert len(pages) > 1, "each page looks at few records"


def test_a_page_that_ends_early_goes_on_within_the_range(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records above the range's end may not be readable yet: a reader that was sent beyond it would miss them."""
    monkeypatch.setattr(reading, "LOOKED_AT_MAX", 10)
    shard.append(0, [(b"many", b"%d" % i) for i in range(100)])
    shard.append(100, [(b"many", b"after")])
    shard.part.gather()
    page = reading.merge(shard.part, Range(0, 9, 0, 60), b"oth", 1000, lambda: None)
    assert page.next == 60


def test_entries_outside_of_the_range_move_a_page_nowhere(shard: OneShard) -> None:
    for group in (0, 10, 20):
        shard.append(group, [(b"many", b"%d" % i) for i in range(10)])
        shard.part._closed = group + 10
        shard.part.gather()
    span = Range(0, 9, 10, 20)
    pieces = list(reading._merged(shard.part, shard.part.view(), span, b"", lambda: None))
    assert pieces
    assert all(span.start < upto <= span.end for _, upto, _ in pieces)


def test_a_gathering_between_the_view_and_the_read_repeats_nothing(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.append(0, [(b"a", b"1"), (b"b", b"2")])
    shard.append(2, [(b"a", b"3"), (b"b", b"4")], closed=2)
    expected = shard.read()
    then_gathers = gathering_after_the_view(closed=4)
    monkeypatch.setattr(LogPart, "view", then_gathers)
    page = reading.merge(shard.part, Range(0, 9, 0, SEQUENCE_MAX), b"", 1000, lambda: None)
    numbers = page.records.sequences.tolist()
    assert list(zip(numbers, page.records.key_list(), page.records.value_list(), strict=True)) == expected


def test_a_gathering_of_an_earlier_segment_between_the_view_and_the_read_hides_and_repeats_nothing(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry lies below the range of rows that is read, though the view has nothing in the store yet."""
    monkeypatch.setattr(reading, "LOOKED_AT_MAX", 2)
    shard.append(0, [(b"a", b"1"), (b"b", b"2")], segment=1)
    shard.append(2, [(b"a", b"3")], segment=2, closed=2)
    then_gathers = gathering_after_the_view(closed=2)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(LogPart, "view", then_gathers)
        page = reading.merge(shard.part, Range(0, 9, 0, SEQUENCE_MAX), b"", 1000, lambda: None)
    assert page.records.sequences.tolist() == [0, 1]
    assert shard.part.damage.texts("log") == []
    shard.append(3, [(b"a", b"4")], segment=2, closed=3)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(LogPart, "view", then_gathers)
        assert reading.count_prefix(shard.part, Range(0, 9, 0, SEQUENCE_MAX), b"", lambda: None) == 4


def test_a_count_while_an_earlier_segment_is_gathered_counts_once(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.append(0, [(b"a", b"1"), (b"b", b"2")], segment=1)
    shard.append(2, [(b"a", b"3")], segment=2, closed=2)
    then_gathers = gathering_after_the_view(closed=2)
    monkeypatch.setattr(LogPart, "view", then_gathers)
    assert reading.count_prefix(shard.part, Range(0, 9, 0, SEQUENCE_MAX), b"", lambda: None) == 3


def test_a_key_read_while_its_records_are_gathered_repeats_nothing(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.append(0, [(b"a", b"1"), (b"b", b"2")])
    then_gathers = gathering_after_the_view(closed=2)
    monkeypatch.setattr(LogPart, "view", then_gathers)
    page = reading.scan(shard.part, Range(0, 9, 0, SEQUENCE_MAX), b"a", 1000, False)
    assert page.records.value_list() == [b"1"]
    shard.append(2, [(b"a", b"3")], closed=2)
    assert reading.count_key(shard.part, Range(0, 9, 0, SEQUENCE_MAX), b"a", lambda: None) == 2
    shard.append(3, [(b"a", b"4")], closed=3)
    assert reading.count_prefix(shard.part, Range(0, 9, 0, SEQUENCE_MAX), b"a", lambda: None) == 3


def test_a_record_whose_value_the_store_has_lost_is_said(shard: OneShard) -> None:
    shard.append(0, [(b"a", b"1"), (b"b", b"2")])
    shard.append(2, [(b"a", b"3")])
    shard.part.gather()
    changes = shard.store.batch()
    for row in shard.store.keys("log", rows.runs_of(0, b"a"), rows.past_key(0, b"a")):
        changes.delete("log", row)
    shard.store.write(changes)
    page = reading.merge(shard.part, Range(0, 9, 0, SEQUENCE_MAX), b"", 1000, lambda: None)
    assert page.records.sequences.tolist() == [1, 2]
    assert shard.part.damage.texts("log") == ["1 records from sequence number 0 on have no values in the store"]


@pytest.mark.parametrize(
    ("following", "done", "reverse", "right"),
    [
        (11, False, False, True),
        (20, False, False, True),
        (20, True, False, True),
        (10, False, False, False),
        (9, True, False, False),
        (21, False, False, False),
        (10, False, True, True),
        (19, False, True, True),
        (20, False, True, False),
        (20, True, True, False),
        (9, True, True, False),
    ],
)
def test_a_page_has_to_be_nearer_to_the_end(following: int, done: bool, reverse: bool, right: bool) -> None:
    page = Page(Records.of(NO_NUMBERS, ()), following, done)
    if right:
        check_progress(page, 10, 20, reverse)
    else:
        with pytest.raises(Internal, match=f"goes on at {following}"):
            check_progress(page, 10, 20, reverse)


async def test_a_page_of_a_worker_that_does_not_move_on_is_refused(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers check it too; the coordinator does not rely on that."""
    async with log.running() as area:
        await area.append(batch((b"k", b"1"), (b"k", b"2")))
        broken = Page(Records.of(NO_NUMBERS, ()), 0, False)
        monkeypatch.setattr("worker.methods.log._page_reply", _unchecked)
        monkeypatch.setattr(reading, "scan", lambda *_: broken)
        with pytest.raises(Internal, match="goes on at 0"):
            await area.reader.page(KeySelection(b"k"), 0, SEQUENCE_MAX, 10)


def _unchecked(body: Any, page: Page) -> Any:
    from shared.messages.log import ScanReply
    from shared.wire import Reply, pack

    return Reply(pack(ScanReply(page.next, page.done)), page.records.frames())


async def test_a_scan_by_prefix_of_all_shards_ends(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LOOKED_AT_MAX", 100)
    async with log.running() as area:
        await area.append(batch(*[(b"many", b"%d" % i) for i in range(500)]))
        await area.append(batch((b"other", b"one")))
        await area.append(batch((b"many", b"last"), (b"other", b"two")))
        for shard in log.links._shards:
            shard.logs.gather()
        async with asyncio.timeout(10):
            assert [v for _, _, v in await read(area, KeySelection(None, b"oth"))] == [b"one", b"two"]
            assert len(await read(area)) == 503
            with area.followers.following(EVERYTHING, 0) as follower:
                seen = 0
                while seen < 503:
                    seen += len(await area.followers.read(follower, 100))


async def test_a_scan_over_its_time_ends_with_an_error_between_two_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.log.reads.PAGE_RECORDS", 10)
    log = Log(tmp_path, log_scan_timeout_ms=1)
    async with log.running() as area:
        await area.append(batch(*[(b"k", b"%d" % i) for i in range(50)]))
        numbers: list[int] = []
        with pytest.raises(DeadlineExceeded, match="TRIPTYCH_LOG_SCAN_TIMEOUT"):
            async for page in area.reader.pages(KeySelection(b"k"), 0, SEQUENCE_MAX, 1000):
                numbers += page.records.sequences.tolist()
                assert page.next == numbers[-1] + 1
                await asyncio.sleep(0.01)
        assert numbers == list(range(len(numbers)))
        assert 0 < len(numbers) < 50
    log.links.close()


async def test_damage_that_a_shard_tells_of_reaches_every_read(log: Log) -> None:
    key = key_on(1)
    async with log.running() as area:
        await area.append(batch((key, b"1"), (key_on(0), b"2")))
        log.links._shards[1].damage = DamageReport()
        log.links._shards[1].damage.add("log", "wal/0001 is damaged")
        expected = ["shard 1: wal/0001 is damaged"]
        for selection in (KeySelection(key), EVERYTHING):
            warnings = Warnings()
            await area.reader.page(selection, 0, SEQUENCE_MAX, 10, warnings=warnings)
            await area.reader.count(selection, 0, SEQUENCE_MAX, warnings)
            assert warnings.texts() == expected
        warnings = Warnings()
        await area.reader.keys(b"", None, (0, 99), 10, warnings)
        assert warnings.texts() == expected
        with area.followers.following(KeySelection(key), 0) as follower:
            await area.followers.read(follower, 10)
            assert follower.warnings.texts() == expected
        warnings = Warnings()
        await area.reader.page(KeySelection(key_on(0)), 0, SEQUENCE_MAX, 10, warnings=warnings)
        assert warnings.texts() == []
        await eventually(lambda: area.recovery.complete.is_set())
