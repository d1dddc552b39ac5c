"""Idempotent appends: a repeat is answered only when its records are there for ever, and is stored once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.errors import BadData, DeadlineExceeded, TriptychError, Unavailable
from shared.hashing import shard_of
from shared.messages import log as messages
from tests.unit.log_area import SHARDS, Log, batch, eventually, key_on, read, values
from tests.unit.log_shard import OneShard

HOME, OTHER, THIRD = 0, 1, 2
PRODUCER = next(name for i in range(1000) if shard_of((name := f"p{i}").encode(), SHARDS) == HOME)
HALVES = ((key_on(HOME), b"half"), (key_on(OTHER), b"other half"))


def halves(seq: int = 1, *, durable: bool = False) -> Any:
    return batch(*HALVES, producer=PRODUCER, seq=seq, durable=durable)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path, write_timeout_ms=300)
    yield made
    made.links.close()


def fault(log: Log, kind: str, *where: tuple[str, int]) -> None:
    log.links.fault = lambda method, shard: kind if (method, shard) in where else ""


async def outcome_of(append: asyncio.Task[tuple[int, int]]) -> tuple[int, int] | TriptychError:
    try:
        return await append
    except TriptychError as error:
        return error


@pytest.mark.parametrize("durable", [False, True])
async def test_a_repeat_is_not_answered_while_its_append_is_under_way(log: Log, durable: bool) -> None:
    """One of two shards is frozen: the other one holds its half, and knows the answer. It must not be given."""
    async with log.running() as area:
        await area.recovery.complete.wait()
        fault(log, "frozen", ("log.append", OTHER), ("log.revoke", OTHER))
        first = asyncio.create_task(area.append(halves(durable=durable)))
        await asyncio.sleep(0.05)
        first.cancel()  # the client gives up
        repeats = [asyncio.create_task(area.append(halves(durable=durable))) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert not any(repeat.done() for repeat in repeats)
        repeats[0].cancel()  # which ends no other's
        outcomes = [await outcome_of(repeat) for repeat in repeats[1:]]
        assert all(isinstance(outcome, Unavailable) for outcome in outcomes), outcomes
        # The worker thaws: what it took of the group is taken back.
        log.links.fault = lambda method, shard: ""
        log.links.deliver_late()
        assert await values(area) == []
        start, count = await area.append(halves(durable=durable))
        assert (await area.append(halves(durable=durable))) == (start, count)
        assert await values(area) == [b"half", b"other half"]


@pytest.mark.parametrize("others", [0, 1])
async def test_an_append_outlives_its_client(log: Log, others: int) -> None:
    async with log.running() as area:
        await area.recovery.complete.wait()
        send = area._appender.decided

        async def slowly(append: Any) -> int:
            await asyncio.sleep(0.05)
            return await send(append)

        area._appender.decided = slowly  # type: ignore[method-assign]
        first = asyncio.create_task(area.append(halves()))
        await asyncio.sleep(0.02)
        repeats = [asyncio.create_task(area.append(halves())) for _ in range(others)]
        await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.gather(*repeats) == [(0, 2)] * others
        await eventually(lambda: area.sequencer.next == 2)
        assert await area.append(halves()) == (0, 2)
        assert await values(area) == [b"half", b"other half"]


async def test_a_client_that_leaves_during_a_lookup_ends_no_other_s(log: Log) -> None:
    async with log.running() as area:
        await area.recovery.complete.wait()
        call = log.links.call

        async def slowly(method: str, **options: Any) -> Any:
            await asyncio.sleep(0.05)
            return await call(method, **options)

        log.links.call = slowly  # type: ignore[method-assign]
        first = asyncio.create_task(area.append(halves()))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(area.append(halves()))
        await asyncio.sleep(0.01)
        first.cancel()
        assert await second == (0, 2)


async def test_a_lookup_that_overtakes_or_follows_a_late_append_does_not_see_it(log: Log) -> None:
    """The coordinator has given the batch up; the worker carries out the append, the lookup, and then the taking
    back: a lookup must not find the batch, nor leave out what was there before."""
    async with log.running() as area:
        kept = await area.append(halves(1))
        fault(log, "frozen", ("log.append", HOME), ("log.revoke", HOME))
        with pytest.raises(Unavailable):
            await area.append(halves(2))
        area._producers._producers.clear()  # as after many other producers
        log.links.deliver_late("log.append")
        log.links.fault = lambda method, shard: "lost" if method == "log.revoke" else ""
        again = await area.append(halves(2))
        assert again[0] > kept[0] + 1
        assert await area.append(halves(1)) == kept
        log.links.fault = lambda method, shard: ""
        log.links.deliver_late()
        await eventually(lambda: not area.sequencer.revoked)
        assert [n for n, _, _ in await read(area)] == [kept[0], kept[0] + 1, again[0], again[0] + 1]


async def test_a_taking_back_that_ends_during_a_lookup_is_not_missed(log: Log) -> None:
    """The shard answers the lookup before it takes the batch back; the answer comes when nothing is hidden any more."""
    async with log.running() as area:
        await area.recovery.complete.wait()
        fault(log, "lost", ("log.append", OTHER), ("log.revoke", HOME))
        with pytest.raises(Unavailable):
            await area.append(halves(1))
        area._producers._producers.clear()
        call = log.links.call

        async def slowly(method: str, **options: Any) -> Any:
            answers = await call(method, **options)
            if method == "log.producer":
                log.links.fault = lambda method, shard: ""
                await eventually(lambda: not area.sequencer.revoked)
            return answers

        log.links.call = slowly  # type: ignore[method-assign]
        await area.append(halves(1))
        assert await values(area) == [b"half", b"other half"]


async def test_a_batch_that_becomes_whole_during_a_lookup_is_stored_once(log: Log) -> None:
    """Two connections send the same batch, and each asks the shard first: the later answer is older than the append."""
    async with log.running() as area:
        await area.recovery.complete.wait()
        call = log.links.call
        lookups = 0

        async def slowly(method: str, **options: Any) -> Any:
            nonlocal lookups
            answers = await call(method, **options)
            if method == "log.producer":
                lookups += 1
                await asyncio.sleep(0.05 * lookups)
            return answers

        log.links.call = slowly  # type: ignore[method-assign]
        answers = await asyncio.gather(*(area.append(halves(1)) for _ in range(3)))
        assert len(set(answers)) == 1
        assert await values(area) == [b"half", b"other half"]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_repeat_after_a_crash_waits_until_its_batch_is_decided(log: Log, durable: bool) -> None:
    """Coordinator and a worker die half-way: the producer's shard is back and knows an answer, the other is not."""
    async with log.running(crash=True) as area:
        await area.append(halves(1))
        hang = asyncio.Event()

        async def dies(*_: Any) -> None:
            hang.set()
            await asyncio.sleep(60)

        area.recovery.revoke = dies  # type: ignore[method-assign]
        fault(log, "lost", ("log.append", OTHER))
        under_way = asyncio.create_task(area.append(halves(2)))
        await hang.wait()
        under_way.cancel()
    log.links.fault = lambda method, shard: ""
    log.links.down.add(OTHER)
    async with log.running() as area:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await area.append(halves(2, durable=durable))
        log.links.down.clear()
        start, count = await area.append(halves(2, durable=durable))
        assert await area.append(halves(2, durable=durable)) == (start, count)
        assert await values(area) == [b"half", b"other half"] * 2
        assert start >= area.recovery._epoch, "it was appended anew"


async def test_a_repeat_after_a_crash_gets_the_answer_of_what_was_kept(log: Log) -> None:
    async with log.running(crash=True) as area:
        await area.append(halves(1))
        hang = asyncio.Event()

        async def dies(*_: Any) -> None:
            hang.set()
            await asyncio.sleep(60)

        area.recovery.revoke = dies  # type: ignore[method-assign]
        fault(log, "unanswered", ("log.append", OTHER))
        under_way = asyncio.create_task(area.append(halves(2)))
        await hang.wait()
        under_way.cancel()
    log.links.fault = lambda method, shard: ""
    log.links.down.add(OTHER)
    async with log.running() as area:
        with pytest.raises(Unavailable):
            await area.append(halves(2))
        log.links.down.clear()
        assert await area.append(halves(2)) == (2, 2)
        assert await values(area) == [b"half", b"other half"] * 2


async def test_a_later_batch_of_a_producer_does_not_wait_for_one_in_doubt(log: Log) -> None:
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(HOME), b"1"), (key_on(THIRD), b"2"), producer=PRODUCER, seq=1))
    log.links.down.add(THIRD)
    async with log.running() as area:
        await area.append(batch((key_on(HOME), b"3"), producer=PRODUCER, seq=2))
        with pytest.raises(Unavailable):
            await area.append(batch((key_on(HOME), b"1"), (key_on(THIRD), b"2"), producer=PRODUCER, seq=1))
        log.links.down.clear()
        await area.recovery.complete.wait()
        again = await area.append(batch((key_on(HOME), b"1"), (key_on(THIRD), b"2"), producer=PRODUCER, seq=1))
        assert again == (0, 2)
        assert await values(area) == [b"1", b"2", b"3"]


async def test_what_is_under_way_is_not_taken_for_kept_while_another_batch_is_in_doubt(log: Log) -> None:
    """Each append asks the shard again then, which has its part of the batch that is under way."""
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(HOME), b"1"), (key_on(THIRD), b"2"), producer=PRODUCER, seq=1))
    log.links.down.add(THIRD)
    async with log.running() as area:
        await area.recovery.wait_for([HOME, OTHER])
        fault(log, "frozen", ("log.append", OTHER))
        first = asyncio.create_task(area.append(halves(2)))
        await eventually(lambda: "log.append" in log.links.calls[-3:])
        repeat = asyncio.create_task(area.append(halves(2)))
        outcomes = [await outcome_of(append) for append in (first, repeat)]
        assert all(isinstance(outcome, Unavailable) for outcome in outcomes), outcomes


async def test_answers_about_what_is_taken_back_are_forgotten(log: Log) -> None:
    async with log.running() as area:
        start, count = await area.append(halves(1))
        other, _ = await area.append(halves(2))
        await area.recovery.revoke(0, start, [(start, start + count)], [HOME, OTHER])
        again, _ = await area.append(halves(2))
        assert again == other
        with pytest.raises(BadData):  # unknown, and below the producer's last
            await area.append(halves(1))


async def test_a_durable_wait_looks_again_after_it(log: Log) -> None:
    async with log.running() as area:
        start, count = await area.append(halves(1))
        fault(log, "lost", ("log.revoke", HOME), ("log.revoke", OTHER))
        wait = area.frontier.wait_durable

        async def taken_back_meanwhile(upto: int) -> None:
            await area.recovery.revoke(0, start, [(start, start + count)], [HOME, OTHER])
            await wait(upto)

        area.frontier.wait_durable = taken_back_meanwhile  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="taken back"):
            await area.append(halves(1, durable=True))


async def test_an_outcome_that_is_not_known_in_time_is_still_shared_later(log: Log) -> None:
    """A deadline of the client's is no outcome: the batch goes on, and is not appended twice."""
    async with log.running() as area:
        await area.recovery.complete.wait()
        send, go = area._appender.decided, asyncio.Event()

        async def held(append: Any) -> int:
            start = await send(append)
            await go.wait()
            return start

        area._appender.decided = held  # type: ignore[method-assign]
        with pytest.raises(DeadlineExceeded, match="may or may not"):
            await area.append(halves(1))
        repeat = asyncio.create_task(area.append(halves(1)))
        await asyncio.sleep(0.05)
        go.set()
        assert await repeat == (0, 2)
        assert await values(area) == [b"half", b"other half"]


def test_batches_tried_many_times_do_not_push_out_other_answers(tmp_path: Path) -> None:
    """The shard may hold many tries of one number that will be taken back: what it remembers are numbers."""
    shard = OneShard(tmp_path / "shard")
    tries = 2 * messages.PRODUCER_ANSWERS_MAX
    shard.append_numbered(0, 1, producer="p")
    for group in range(1, 1 + tries):
        shard.append_numbered(group, 2, producer="p")
        if group % 5 == 0:
            shard.part.gather()
    shard.append_numbered(1 + tries, 3, producer="p")
    shard.part.gather()
    shard.append_numbered(2 + tries, 4, producer="p")
    shard.part.gather()
    answers = shard.part.producer_answers("p")
    assert [(seq, start) for seq, start, _ in answers][:2] == [(1, 0), (2, 1)]
    assert {seq for seq, _, _ in answers} == {1, 2, 3, 4}
    shard.close()


def test_a_shard_remembers_the_last_numbers_of_a_producer(tmp_path: Path) -> None:
    shard = OneShard(tmp_path / "shard")
    for group in range(20):
        shard.append_numbered(group, group, producer="p")
        if group % 6 == 5:
            shard.part.gather()
    last = messages.PRODUCER_ANSWERS_MAX
    assert [seq for seq, _, _ in shard.part.producer_answers("p")] == list(range(20 - last, 20))
    shard.part._closed = 20
    shard.part.gather()
    assert [seq for seq, _, _ in shard.part.producer_answers("p")] == list(range(20 - last, 20))
    assert len(list(shard.store.scan("log", b"log/producer/", b"log/producer0"))) == last
    shard.close()
