"""The log's state file is lost: what the coordinator learns from the shards, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.log.reads import KeySelection
from coordinator.log.sequencer import LOST_AHEAD, RESERVE_AHEAD, Sequencer
from shared.control import LocalControl
from shared.errors import Unavailable
from shared.messages.log import SEQUENCE_MAX
from shared.settings import Settings
from tests.unit.log_area import SHARDS, Log, batch, eventually, key_on, read, values

HALVES = ((key_on(0), b"half"), (key_on(1), b"other half"))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path, write_timeout_ms=300)
    yield made
    made.links.close()


def lose_state(directory: Path) -> None:
    (directory / "sequencer" / "state").unlink()


def test_a_state_made_anew_keeps_the_numbers_above_all_that_the_shards_hold_over_a_crash(tmp_path: Path) -> None:
    first = Sequencer(LocalControl(tmp_path), Settings())
    first.open()
    first.skip_to(13 + LOST_AHEAD)
    first.confirm()
    again = Sequencer(LocalControl(tmp_path), Settings())  # the coordinator died before it gave a number
    again.open()
    assert not again.is_new
    assert again.next >= 13 + LOST_AHEAD


async def test_a_lost_state_waits_for_every_shard_also_at_the_start_after(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with log.running(crash=True) as area:
        await area.append(batch(*HALVES, durable=True))
    lose_state(tmp_path)
    log.links.down.add(1)
    for _ in range(2):
        async with log.running(crash=True) as area:
            for refused in (
                area.append(batch((key_on(0), b"too early"))),
                read(area, KeySelection(key_on(0))),
                area.reader.count(KeySelection(key_on(0)), 0, SEQUENCE_MAX),
                area.wait_for_state(),
            ):
                with pytest.raises(Unavailable):
                    await refused
            await eventually(lambda: bool(area.warnings()))
            assert "was missing at the start" in area.warnings()[0]
    assert any(
        record.levelname == "ERROR" and "was missing at the start" in record.message for record in caplog.records
    )
    log.links.down.clear()
    async with log.running(crash=True) as area:
        start, _ = await area.append(batch((key_on(0), b"new")))
        assert start >= 2 + LOST_AHEAD
        assert await values(area) == [b"half", b"other half", b"new"]
    async with log.running() as area:
        again, _ = await area.append(batch((key_on(0), b"newer")))
        assert start < again < start + 4 * RESERVE_AHEAD, "it was lost once"
        assert area.warnings() == []


async def test_a_first_start_begins_at_zero(log: Log) -> None:
    async with log.running() as area:
        assert await area.append(batch(*HALVES)) == (0, 2)
        assert area.warnings() == []


async def test_a_lost_state_does_not_show_half_of_a_batch(log: Log, tmp_path: Path) -> None:
    """Taken back, and not yet removed from a shard, which is all the state file knew of it."""
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(2), b"1"), durable=True))
        log.links.fault = lambda method, shard: (
            "lost" if (method, shard) in (("log.append", 1), ("log.revoke", 0)) else ""
        )
        with pytest.raises(Unavailable):
            await area.append(batch(*HALVES))
        for i in range(5):
            await area.append(batch((key_on(0), b"%d" % i), durable=True))
        await area._appender.sync()
    log.links.fault = lambda method, shard: ""
    lose_state(tmp_path)
    async with log.running() as area:
        assert await values(area) == [b"1", b"0", b"1", b"2", b"3", b"4"]
        await eventually(lambda: not area.sequencer.revoked)
        assert await values(area) == [b"1", b"0", b"1", b"2", b"3", b"4"]


async def test_a_lost_state_refuses_what_still_comes_of_the_coordinator_before(log: Log, tmp_path: Path) -> None:
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(0), b"1")))
        log.links.fault = lambda method, shard: "late" if method == "log.append" else ""
        with pytest.raises(Unavailable):
            await area.append(batch((key_on(0), b"late")))
    log.links.fault = lambda method, shard: ""
    lose_state(tmp_path)
    async with log.running() as area:
        await area.append(batch((key_on(0), b"2")))
        log.links.deliver_late()
        await area.append(batch((key_on(0), b"3")))
        assert await values(area) == [b"1", b"2", b"3"]


async def test_a_lost_state_of_a_log_whose_records_were_all_dropped_takes_appends(tmp_path: Path) -> None:
    log = Log(tmp_path, log_segment_bytes=1024, log_retention_bytes=1)
    async with log.running() as area:
        for _ in range(3):
            await area.append(batch(*[(key_on(shard), bytes(800)) for shard in range(SHARDS)]))
        area.sequencer.start_segment()
        await eventually(lambda: all(not shard.logs.counts()["records"] for shard in log.links._shards))
        last = area.sequencer.segments[-1]
        assert last.start_seq == area.sequencer.next
    lose_state(tmp_path)
    async with log.running() as area:
        start, _ = await area.append(batch((key_on(0), b"new")))
        assert start >= last.start_seq
        assert area.sequencer.segments[-1].id >= last.id
        assert await values(area) == [b"new"]
    log.links.close()
