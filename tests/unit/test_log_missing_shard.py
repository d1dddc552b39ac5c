"""A start of the log while one shard is away for long: retention and policies concern the shards that are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.log.policy_document import Policy
from tests.unit.log_area import Log, batch, eventually, key_on, read, values

AWAY, THERE = 2, 0
GONE, KEPT = key_on(AWAY), key_on(THERE)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path, log_segment_bytes=1024, log_retention_bytes=2500, log_policies_interval_ms=20)
    yield made
    made.links.close()


def records_of(log: Log, shard: int) -> int:
    return log.links._shards[shard].logs.counts()["records"]


async def test_retention_drops_segments_while_a_shard_is_away_and_from_that_shard_when_it_is_back(log: Log) -> None:
    async with log.running() as area:
        await area.append(batch((GONE, bytes(1000)), (KEPT, bytes(1000))))
    log.links.down = {AWAY}
    async with log.running() as area:
        for _ in range(9):
            await area.append(batch((KEPT, bytes(1000))))
        await eventually(lambda: records_of(log, THERE) <= 2)
        assert area.sequencer.log_start > 1
        assert records_of(log, AWAY) == 1
        log.links.down = set()
        await eventually(lambda: records_of(log, AWAY) == 0)
        assert not area.recovery.stale
        assert len(await read(area)) == records_of(log, THERE)


async def test_a_batch_in_doubt_that_retention_drops_holds_readers_back_no_longer(log: Log) -> None:
    async with log.running(crash=True) as area:
        await area.append(batch((GONE, b"1"), (KEPT, b"2")))
    log.links.down = {AWAY}
    async with log.running() as area:
        await eventually(lambda: area.recovery.batches_in_doubt() == {0})
        for _ in range(9):
            await area.append(batch((KEPT, bytes(1000))))
        await eventually(lambda: not area.recovery.batches_in_doubt())
        assert area.frontier.visible == area.sequencer.next
        log.links.down = set()
        await area.recovery.wait_complete(5)
        assert b"1" not in await values(area)
        assert area.sequencer.revoked == []


async def test_policies_are_applied_to_the_shards_that_are_there(log: Log) -> None:
    async with log.running() as area:
        for number in range(5):
            await area.append(batch((GONE, b"%d" % number), (KEPT, b"%d" % number), durable=True))
    log.links.down = {AWAY}
    async with log.running() as area:
        await area.policies.put(Policy("newest", b"", keep_newest=1))
        await eventually(lambda: records_of(log, THERE) == 1)
        assert records_of(log, AWAY) == 5
        log.links.down = set()
        await eventually(lambda: records_of(log, AWAY) == 1)
