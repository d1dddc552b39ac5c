"""The log's state file, and the marks that outlive a crash: what cannot be written down is not passed by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.log.frontier import Frontier, Group
from coordinator.log.reads import KeySelection
from coordinator.log.sequencer import RESERVE_AHEAD, Sequencer
from shared.control import LocalControl
from shared.errors import TriptychError, Unavailable
from shared.messages.log import SEQUENCE_MAX
from shared.settings import Settings
from tests.unit.log_area import Log, batch, eventually, key_on, values


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path, write_timeout_ms=300)
    yield made
    made.links.close()


HALVES = ((key_on(0), b"half"), (key_on(1), b"other half"))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Fill the disk of the log's state, or make room."""
    replace = LocalControl.replace

    def refuse(self: LocalControl, name: str, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    def fill(full: bool) -> None:
        monkeypatch.setattr(LocalControl, "replace", refuse if full else replace)

    return fill


# What is taken back


async def test_readers_do_not_pass_a_taking_back_that_is_not_on_disk(log: Log, disk: Callable[[bool], None]) -> None:
    async with log.running() as area:
        await area.append(batch((key_on(0), b"1")))
        await area.recovery.complete.wait()
        disk(True)
        log.links.fault = lambda method, shard: "lost" if (method, shard) == ("log.append", 1) else ""
        append = asyncio.create_task(area.append(batch(*HALVES)))
        await eventually(lambda: bool(area.recovery.refusal))
        assert area.frontier.readable == 1
        log.links.calls.clear()
        with pytest.raises(Unavailable, match="No space left"):
            await area.append(batch((key_on(2), b"refused at once")))
        assert area.warnings()[0].startswith("appends are refused: the log's state")
        area.recovery._to_remove.set()  # as for another batch, whose shard was away
        await asyncio.sleep(0.05)
        with pytest.raises(TriptychError):
            await append
        assert "log.revoke" not in log.links.calls, "no shard removes what the next coordinator may find whole"
        log.links.fault = lambda method, shard: ""
        disk(False)
        await eventually(lambda: area.frontier.readable == 3)
        assert await area.append(batch((key_on(2), b"2"))) == (3, 1)
        assert await values(area) == [b"1", b"2"]
        assert area.warnings() == []


async def test_a_crash_before_a_taking_back_is_on_disk_shows_what_is_whole(
    log: Log, disk: Callable[[bool], None]
) -> None:
    """Every shard has its part, and only the answer was lost: the next coordinator finds the batch whole. Nobody was
    told otherwise, and no message of the one before removes it."""
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(0), b"1")))
        await area.recovery.complete.wait()
        disk(True)
        log.links.fault = lambda method, shard: (
            "unanswered" if (method, shard) == ("log.append", 1) else "late" if method == "log.revoke" else ""
        )
        append = asyncio.create_task(area.append(batch(*HALVES)))
        await eventually(lambda: bool(area.recovery.refusal))
        with pytest.raises(TriptychError, match="may or may not"):
            await append
    disk(False)
    log.links.fault = lambda method, shard: ""
    async with log.running() as area:
        await area.recovery.complete.wait()
        assert await values(area) == [b"1", b"half", b"other half"]
        log.links.deliver_late()
        assert await values(area) == [b"1", b"half", b"other half"]


async def test_settled_stops_below_what_shards_may_still_hold_of_a_batch_taken_back(log: Log) -> None:
    async with log.running() as area:
        await area.append(batch((key_on(0), b"1")))
        log.links.fault = lambda method, shard: (
            "lost" if (method, shard) in (("log.append", 1), ("log.revoke", 0)) else ""
        )
        with pytest.raises(Unavailable):
            await area.append(batch(*HALVES))
        await area.append(batch((key_on(0), b"2"), durable=True))
        await area._appender.sync()
        assert (area.frontier.settled, area.frontier.on_disk) == (1, 4)
        log.links.fault = lambda method, shard: ""
        await eventually(lambda: area.frontier.settled == 4)


# Marks


def test_settled_stops_below_what_is_in_doubt() -> None:
    frontier = Frontier("memory")
    frontier.begin_at(20, 0)
    frontier.in_doubt = 7
    frontier.synced(20)
    assert (frontier.settled, frontier.on_disk, frontier.visible) == (7, 7, 7)
    frontier.in_doubt = SEQUENCE_MAX
    frontier.being_removed = 9
    assert (frontier.settled, frontier.on_disk, frontier.visible) == (9, 20, 20)


async def test_a_batch_in_doubt_stays_so_over_further_starts(log: Log) -> None:
    """Nothing that is sent while a shard is missing may call the batch decided."""
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(2), b"1"), durable=True))
        hang = asyncio.Event()

        async def dies(*_: Any) -> None:
            hang.set()
            await asyncio.sleep(60)

        area.recovery.revoke = dies  # type: ignore[method-assign]
        log.links.fault = lambda method, shard: "lost" if (method, shard) == ("log.append", 1) else ""
        under_way = asyncio.create_task(area.append(batch(*HALVES)))
        await hang.wait()
        under_way.cancel()
    log.links.fault = lambda method, shard: ""
    log.links.down.add(1)
    for crash in (True, False, True):
        async with log.running(crash=crash) as area:
            await area.append(batch((key_on(0), b"later"), durable=True))
            await area._appender.sync()
            assert await values(area, KeySelection(key_on(0))) == []
            assert area.frontier.settled <= 1
    log.links.down.clear()
    async with log.running() as area:
        assert await values(area) == [b"1", b"later", b"later", b"later"]


async def test_shards_that_could_not_be_synced_hold_the_durable_frontier(log: Log) -> None:
    async with log.running() as area:
        await area.recovery.complete.wait()
        await eventually(lambda: not area._appender._unsynced)
        log.links.fault = lambda method, shard: "lost" if (method, shard) == ("log.sync", 1) else ""
        await area.append(batch(*HALVES))
        await area._appender.sync()
        await asyncio.sleep(0.1)
        assert area.frontier.durable == 0
        await area.append(batch((key_on(0), b"other shard"), durable=True))
        assert area.frontier.durable == 0, "what shard 1 has of the log before is not on disk"
        log.links.fault = lambda method, shard: ""
        await eventually(lambda: area.frontier.durable == 3)


async def test_a_sync_that_is_given_up_leaves_its_shards_unsynced(log: Log) -> None:
    async with log.running() as area:
        await area.recovery.complete.wait()
        await eventually(lambda: not area._appender._unsynced)
        log.links.fault = lambda method, shard: "frozen" if method == "log.sync" else ""
        await area.append(batch(*HALVES))
        syncing = asyncio.create_task(area._appender.sync())
        await asyncio.sleep(0.01)
        syncing.cancel()
        await asyncio.gather(syncing, return_exceptions=True)
        assert area._appender._unsynced >= {0, 1}
        await area.append(batch((key_on(0), b"durable"), durable=True))
        assert area.frontier.durable == 0
        log.links.fault = lambda method, shard: ""


async def test_what_comes_during_a_sync_is_not_called_synced(log: Log) -> None:
    async with log.running() as area:
        await area.recovery.complete.wait()
        await area.append(batch(*HALVES))
        fan_out = log.links.fan_out
        appended = asyncio.Event()

        async def slowly(method: str, **options: Any) -> Any:
            result = await fan_out(method, **options)
            if method == "log.sync" and not appended.is_set():
                appended.set()
                await area.append(batch((key_on(1), b"meanwhile")))
                log.links.fault = lambda method, shard: "lost" if method == "log.sync" else ""
            return result

        log.links.fan_out = slowly  # type: ignore[method-assign]
        area._appender.must_sync([0, 1])
        await appended.wait()
        await asyncio.sleep(0.1)
        assert area.frontier.durable == 2
        log.links.fault = lambda method, shard: ""
        await eventually(lambda: area.frontier.durable == 3)


# The file


def test_a_segment_that_could_not_be_written_down_is_not_there(tmp_path: Path, disk: Callable[[bool], None]) -> None:
    sequencer = Sequencer(LocalControl(tmp_path), Settings(log_segment_bytes=1024))
    sequencer.open()
    for _ in range(3):
        sequencer.reserve(1, 2000)
    before = [(s.id, s.start_seq) for s in sequencer.segments]
    disk(True)
    for change in (sequencer.start_segment, lambda: sequencer.drop_segments(2)):
        with pytest.raises(Unavailable):
            change()
        assert [(s.id, s.start_seq) for s in sequencer.segments] == before
        assert sequencer.log_start == 0
    with pytest.raises(Unavailable):
        sequencer.extend(2 * RESERVE_AHEAD)
    assert not sequencer.ready_for(2 * RESERVE_AHEAD)
    with pytest.raises(Unavailable):
        sequencer.confirm()
    assert sequencer.is_new
    disk(False)
    sequencer.save()
    between = Sequencer(LocalControl(tmp_path), Settings())
    between.open()
    assert between.is_new
    sequencer.confirm()
    assert not sequencer.is_new
    again = Sequencer(LocalControl(tmp_path), Settings())
    again.open()
    assert not again.is_new


async def test_segments_have_their_bytes_after_a_crash_also_if_appends_go_on_before_all_shards_are_back(
    log: Log,
) -> None:
    async with log.running(crash=True) as area:
        for i in range(4):
            await area.append(batch((key_on(i % 2), bytes(1000))))
    log.links.down.add(1)
    async with log.running() as area:
        for _ in range(3):
            await area.append(batch((key_on(0), bytes(1000))))
        log.links.down.discard(1)
        await asyncio.wait_for(area.recovery.complete.wait(), 5)
        held = sum(segment.bytes for shard in log.links._shards for segment in shard.logs.segments())
        assert sum(segment.bytes for segment in area.sequencer.segments) == held > 7000


# Damage


@pytest.mark.parametrize("damaged", [True, False])
async def test_a_batch_whose_part_was_damaged_keeps_the_rest_and_says_so(log: Log, damaged: bool) -> None:
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(2), b"1"), durable=True))
        log.links.fault = lambda method, shard: "lost" if (method, shard) == ("log.append", 1) else ""

        async def dies(*_: Any) -> None:
            await asyncio.sleep(60)

        area.recovery.revoke = dies  # type: ignore[method-assign]
        under_way = asyncio.create_task(area.append(batch(*HALVES)))
        await asyncio.sleep(0.05)
        under_way.cancel()
    log.links.fault = lambda method, shard: ""
    if damaged:
        log.links._shards[1].damage.add("log", "a record is damaged")
    async with log.running() as area:
        assert await values(area) == ([b"1", b"half"] if damaged else [b"1"])


def test_a_group_that_is_open_holds_those_behind_it() -> None:
    frontier = Frontier("memory")
    first, second = Group(0, 2), Group(2, 3)
    told: list[int] = []
    for group in (first, second):
        group.when_closed = lambda start=group.start: told.append(start)
        frontier.open(group)
    frontier.close(second)
    assert (frontier.readable, told) == (0, [])
    frontier.close(first)
    assert (frontier.readable, told) == (3, [0, 2])


async def test_what_is_readable_after_a_start_never_falls(log: Log) -> None:
    async with log.running(crash=True) as area:
        for i in range(3):
            await area.append(batch((key_on(i), b"v")))
        assert area.readable == 3
    log.links.down.add(1)
    async with log.running() as area:
        await asyncio.sleep(0.1)
        seen = area.readable
        assert seen <= area.sequencer.settled, "shard 1 may have lost what it had"
        log.links.down.discard(1)
        await eventually(lambda: area.recovery.complete.is_set() and area.readable >= 3)
        assert area.readable >= seen
