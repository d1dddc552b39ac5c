"""Appends at the bounds of their queues and groups, over shards that answer as a test tells them to."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.links import Answer, FanOut, Links
from coordinator.log import append as append_module
from coordinator.log.append import Appender
from coordinator.log.columns import columns_of
from coordinator.log.frontier import Frontier
from coordinator.log.records import Append
from coordinator.log.sequencer import Sequencer
from coordinator.log.state_writes import StateWrites
from shared.config import Settings
from shared.errors import DeadlineExceeded, Overloaded, Unavailable
from shared.hashing import shard_of
from shared.messages import log
from shared.wire import Reply, unpack

SHARDS = 3


class Shards:
    """Keeps what it is sent; `go` lets appends be answered, `lost` shards never answer."""

    shards = SHARDS

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.lost: set[int] = set()
        self.bodies: list[log.AppendBody] = []
        self.parts: list[dict[int, Any]] = []
        self.synced: list[list[int]] = []

    def require(self, shards: Any) -> None:
        return None

    async def fan_out(self, method: str, **options: Any) -> FanOut:
        if method == "log.sync":
            self.synced.append(list(options["shards"]))
            asked = options["shards"]
        else:
            self.bodies.append(unpack(options["body"], log.AppendBody))
            self.parts.append(dict(options["parts"]))
            await self.go.wait()
            asked = options["parts"]
        missing = {n: "lost" for n in asked if n in self.lost}
        there = tuple(n for n in asked if n not in missing)
        return FanOut([Answer("w0", there, Reply(), 0.0)] if there else [], missing)


class Revocations:
    refusal = ""

    def __init__(self) -> None:
        self.revoked: list[tuple[int, int, list[log.Span], list[int]]] = []

    async def revoke(self, segment: int, group: int, spans: Any, shards: Any) -> None:
        self.revoked.append((segment, group, list(spans), list(shards)))


class Appends:
    def __init__(self, directory: Path, **options: Any) -> None:
        settings = Settings(shards=SHARDS, **options)
        self.shards, self.revoker = Shards(), Revocations()
        self.sequencer = Sequencer(directory, settings)
        self.sequencer.open()
        self.sequencer.start_segment()  # so that no append waits for the disk
        self.frontier = Frontier("acked")
        self.appender = Appender(
            settings, cast(Links, self.shards), self.sequencer, self.frontier, self.revoker, StateWrites(5.0)
        )
        self.appender._unsynced.clear()

    async def append(self, *keys: bytes, durable: bool = False, producer: str = "", value: bytes = b"v") -> int:
        records = columns_of(list(keys), [value] * len(keys))
        return await self.appender.append(Append(records, durable, producer, 0))


def key_on(shard: int) -> bytes:
    return next(k for i in range(1000) if shard_of(k := b"%d" % i, SHARDS) == shard)


def starts(shards: Shards) -> list[list[tuple[int, int]]]:
    return [[(batch.start, batch.count) for batch in body.batches] for body in shards.bodies]


async def test_batches_are_numbered_in_the_order_they_came(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    assert await asyncio.gather(*(area.append(*[b"k"] * n) for n in (2, 1, 3))) == [0, 2, 3]
    assert starts(area.shards) == [[(0, 2), (2, 1), (3, 3)]]
    assert (area.frontier.readable, area.sequencer.next) == (6, 6)
    assert area.sequencer.segments[-1].bytes == 6 * 2


async def test_a_group_takes_no_further_batch_past_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_module, "GROUP_RECORDS_MAX", 3)
    area = Appends(tmp_path)
    await asyncio.gather(*(area.append(*[b"k"] * n) for n in (2, 1, 1, 5, 1)))
    assert starts(area.shards) == [[(0, 2), (2, 1)], [(3, 1), (4, 5)], [(9, 1)]]


async def test_a_group_takes_no_further_batch_past_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_module, "GROUP_BYTES_MAX", 10)
    area = Appends(tmp_path)
    await asyncio.gather(*(area.append(b"k", value=bytes(n)) for n in (8, 0, 9, 1)))
    assert starts(area.shards) == [[(0, 1), (1, 1)], [(2, 1)], [(3, 1)]]


async def test_durable_batches_and_others_go_apart_and_in_turn(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    await asyncio.gather(*(area.append(b"k", durable=durable) for durable in (True, True, False)))
    assert sorted((body.durable, len(body.batches)) for body in area.shards.bodies) == [(False, 1), (True, 2)]


async def test_so_many_groups_are_under_way_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_module, "GROUPS_IN_FLIGHT_MAX", 2)
    monkeypatch.setattr(append_module, "GROUP_RECORDS_MAX", 1)
    area = Appends(tmp_path)
    area.shards.go.clear()
    appends = [asyncio.create_task(area.append(b"k")) for _ in range(5)]
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert len(area.shards.bodies) == 2
    area.shards.go.set()
    assert await asyncio.gather(*appends) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bound", ["QUEUE_RECORDS_MAX", "QUEUE_BYTES_MAX"])
async def test_a_full_queue_refuses_and_takes_again_when_it_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    area = Appends(tmp_path)
    area.shards.go.clear()
    under_way = [asyncio.create_task(area.append(b"k")) for _ in range(20)]
    await asyncio.sleep(0.01)
    small = [asyncio.create_task(area.append(b"k", durable=durable)) for durable in (False, True)]
    await asyncio.sleep(0.01)
    queues = area.appender._queues.values()
    waiting = {"QUEUE_RECORDS_MAX": sum(q.records for q in queues), "QUEUE_BYTES_MAX": sum(q.bytes for q in queues)}
    monkeypatch.setattr(append_module, bound, waiting[bound] + 1)
    small.append(asyncio.create_task(area.append(b"k")))
    await asyncio.sleep(0.01)
    total = sum(q.records for q in queues)
    assert total == waiting["QUEUE_RECORDS_MAX"] + 1
    with pytest.raises(Overloaded, match=rf"{total} records \({2 * total} bytes\) wait to be appended"):
        await area.append(b"k")
    area.shards.go.set()
    await asyncio.gather(*under_way, *small)
    assert await area.append(b"k") == 23


async def test_a_failed_part_fails_its_batches_alone(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    area.shards.lost = {1}
    results = await asyncio.gather(
        area.append(key_on(0)),
        area.append(key_on(0), key_on(1)),
        area.append(key_on(1)),
        area.append(key_on(2)),
        return_exceptions=True,
    )
    assert [results[0], results[3]] == [0, 4]
    for failed in (results[1], results[2]):
        assert str(failed) == "the records were not appended: shard 1: lost"
    assert area.revoker.revoked == [(0, 0, [(1, 3), (3, 4)], [0, 1])]
    assert area.frontier.readable == 5


async def test_the_shard_of_a_producer_takes_part_though_it_has_no_record(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    await area.append(key_on(0), producer="p")
    (batch,) = area.shards.bodies[0].batches
    own = shard_of(b"p", SHARDS)
    assert (set(batch.shards), batch.producer) == ({0, own}, "p")
    assert set(area.shards.parts[0]) == {0, own}


async def test_a_durable_append_leaves_nothing_to_sync_and_another_does(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    await area.append(key_on(1), durable=True)
    assert (area.appender._unsynced, area.frontier.durable) == (set(), 1)
    await area.append(key_on(1))
    assert (area.appender._unsynced, area.frontier.durable) == ({1}, 1)
    await area.append(key_on(2), durable=True)
    assert area.frontier.durable == 1
    await area.appender.sync()
    assert (area.appender._unsynced, area.frontier.durable, area.shards.synced) == (set(), 3, [[1]])
    await area.appender.sync()
    assert area.shards.synced == [[1]]


async def test_an_append_that_waited_too_long_is_not_sent(tmp_path: Path) -> None:
    area = Appends(tmp_path, write_timeout_ms=10_000)
    answer = area.appender._submit(Append(columns_of([b"k"], [b"v"]), False, "", 0))
    area.appender._queues[False].batches[0].expires = time.monotonic() - 1
    with pytest.raises(DeadlineExceeded, match="waited too long and were not appended"):
        await answer
    assert area.shards.bodies == []
    assert await area.append(b"k") == 0


async def test_after_a_stop_nothing_is_taken_and_what_waits_is_refused(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    area.shards.go.clear()
    under_way = []
    for _ in range(append_module.GROUPS_IN_FLIGHT_MAX):
        under_way.append(asyncio.create_task(area.append(b"k")))
        await asyncio.sleep(0.01)
    waiting = area.appender._submit(Append(columns_of([b"k"], [b"v"]), False, "", 0))
    stopping = asyncio.create_task(area.appender.stop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    area.shards.go.set()
    await stopping
    assert await asyncio.gather(*under_way) == [0, 1]
    with pytest.raises(Unavailable, match="the coordinator is stopping; the records were not appended"):
        await waiting
    with pytest.raises(Unavailable, match="the coordinator is stopping"):
        await area.append(b"k")
    assert area.shards.synced[-1] == sorted({shard_of(b"k", SHARDS)})


async def test_while_nothing_can_be_taken_back_nothing_is_appended(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    area.revoker.refusal = "the disk is full"
    with pytest.raises(Unavailable, match="records cannot be appended: the disk is full"):
        await area.append(b"k")
    assert area.shards.bodies == []
