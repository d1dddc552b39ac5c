"""Appends at the bounds of their queues and groups, over shards that answer as a test tells them to."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.fanout.calls import FanOut, WorkerReply
from coordinator.fanout.links import Links
from coordinator.log import append as append_module
from coordinator.log.append import Appender
from coordinator.log.columns import columns_of
from coordinator.log.frontier import Frontier
from coordinator.log.records import Append
from coordinator.log.sequencer import Sequencer
from coordinator.log.state_writes import StateWrites
from coordinator.log.waiting import FEW_BATCHES
from shared.control import LocalControl
from shared.errors import DeadlineExceeded, Overloaded, Unavailable
from shared.hashing import shard_of
from shared.messages import log
from shared.settings import Settings
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
        return FanOut([WorkerReply("w0", there, Reply(), 0.0)] if there else [], missing)


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
        self.sequencer = Sequencer(LocalControl(directory), settings)
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


async def test_the_next_group_is_sent_before_the_last_one_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_module, "GROUPS_IN_FLIGHT_MAX", 1)
    area = Appends(tmp_path)
    area.shards.go.clear()
    sent_when_answered: list[int] = []
    answers = [area.appender.begin(Append(columns_of([b"k"], [b"v"]), True, "", 0))]
    answers[0].add_done_callback(lambda _: sent_when_answered.append(len(area.shards.bodies)))
    await asyncio.sleep(0.01)
    answers.append(area.appender.begin(Append(columns_of([b"k"], [b"v"]), True, "", 0)))
    area.shards.go.set()
    assert await asyncio.gather(*answers) == [0, 1]
    assert sent_when_answered == [2]


async def test_clients_that_are_answered_together_share_the_next_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_module, "HOLD_S", 5.0)  # longer than this process may be kept from running
    area = Appends(tmp_path)
    clients = FEW_BATCHES + 2

    async def client(turns: int) -> None:
        for _ in range(3):
            await area.append(b"k")
            for _ in range(turns):
                await asyncio.sleep(0)

    await asyncio.gather(*map(client, range(clients)))
    assert [len(body.batches) for body in area.shards.bodies] == [clients] * 3


async def test_a_batch_waits_only_a_moment_for_clients_that_do_not_come_back(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    for _ in range(2):
        await asyncio.gather(*(area.append(b"k") for _ in range(FEW_BATCHES + 1)))
        assert await asyncio.wait_for(area.append(b"k"), 5)
    assert [len(body.batches) for body in area.shards.bodies] == [FEW_BATCHES + 1, 1] * 2


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


async def test_a_batch_nobody_waits_for_is_not_sent_and_those_behind_it_are(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    left = area.appender._submit(Append(columns_of([b"left"], [b"v"]), False, "", 0))
    left.cancel()
    assert await area.append(b"k") == 0
    assert starts(area.shards) == [[(0, 1)]]


@pytest.mark.parametrize("fate", ["left", "expired"])
async def test_batches_around_one_that_is_not_sent_share_a_message(tmp_path: Path, fate: str) -> None:
    area = Appends(tmp_path, write_timeout_ms=10_000)
    first, between, last = (area.appender._submit(Append(columns_of([b"k"], [b"v"]), False, "", 0)) for _ in range(3))
    if fate == "left":
        between.cancel()
    else:
        area.appender._queues[False].batches[1].expires = time.monotonic() - 1
    assert await asyncio.gather(first, last) == [0, 1]
    assert starts(area.shards) == [[(0, 1), (1, 1)]]
    assert between.done()
    if fate == "expired":
        assert isinstance(between.exception(), DeadlineExceeded)


# The sequencer's file, which is written in a thread


async def test_a_number_that_cannot_be_reserved_fails_all_batches_that_wait_for_it(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    area.sequencer._limit = area.sequencer.next  # so that the next append needs a range
    refusals: list[Exception] = [Unavailable("the disk is full"), ValueError("a mistake")]
    extend = area.sequencer.extend

    def refuse(count: int = 0) -> None:
        if refusals:
            raise refusals.pop(0)
        extend(count)

    area.sequencer.extend = refuse  # type: ignore[method-assign]
    for words in ("the disk is full", "a mistake"):
        answers = await asyncio.gather(area.append(b"k"), area.append(b"k"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        assert [str(answer) for answer in answers] == [words, words]
    assert area.shards.bodies == []
    assert await asyncio.gather(area.append(b"k"), area.append(b"k")) == [0, 1]


async def test_a_mistake_of_the_program_is_told_and_a_full_disk_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(append_module, "event", lambda level, text, **_: told.append(text))
    for error, count in ((Unavailable("the disk is full"), 0), (ValueError("a mistake"), 1)):
        area = Appends(tmp_path / str(count))
        area.sequencer._limit = area.sequencer.next
        monkeypatch.setattr(area.sequencer, "extend", lambda count=0, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(Unavailable):
            await area.append(b"k")
        assert told == ["sequence numbers could not be reserved"] * count


@pytest.mark.parametrize("fails", [False, True])
async def test_a_further_range_is_reserved_ahead_once_and_appends_go_on_meanwhile(tmp_path: Path, fails: bool) -> None:
    area = Appends(tmp_path)
    begun, go_on, calls = threading.Event(), threading.Event(), []
    extend = area.sequencer.extend

    def slowly(count: int = 0) -> None:
        calls.append(count)
        begun.set()
        go_on.wait(5)
        if fails and len(calls) == 1:
            raise Unavailable("the disk is full")
        extend(count)

    area.sequencer.extend = slowly  # type: ignore[method-assign]
    limit = area.sequencer._limit
    area.sequencer.next = limit - 20  # less than half of the range is left
    assert await area.append(b"k") == limit - 20
    await asyncio.to_thread(begun.wait, 5)
    waiting = asyncio.create_task(area.append(b"k"))
    await asyncio.sleep(0.02)
    assert len(calls) == 1
    go_on.set()
    assert await asyncio.wait_for(waiting, 5) == limit - 19
    assert await area.append(b"k") == limit - 18
    async with asyncio.timeout(5):
        while area.sequencer.running_low():
            await asyncio.sleep(0.005)
    assert area.sequencer._limit > limit and len(calls) == 1 + fails


async def test_a_segment_that_is_due_is_begun_between_appends_and_once(tmp_path: Path) -> None:
    area = Appends(tmp_path)
    begun, go_on, prepared = threading.Event(), threading.Event(), []

    def slowly(count: int) -> None:
        prepared.append(count)
        begun.set()
        go_on.wait(5)

    area.sequencer.prepare = slowly  # type: ignore[method-assign]
    ending = asyncio.create_task(area.appender.end_segment())
    await asyncio.to_thread(begun.wait, 5)
    await area.appender.end_segment()
    append = asyncio.create_task(area.append(b"k"))
    await asyncio.sleep(0.02)
    assert (prepared, area.shards.bodies) == ([0], [])
    go_on.set()
    await ending
    assert await asyncio.wait_for(append, 5) == 0
    assert prepared == [0]


async def test_work_that_does_not_end_is_given_up_when_the_appender_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_module, "STOP_GRACE_S", 0.02)
    area = Appends(tmp_path)
    area.shards.go.clear()
    append = asyncio.create_task(area.append(b"k"))
    await asyncio.sleep(0.01)
    (task,) = area.appender._tasks
    await area.appender.stop()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    append.cancel()
