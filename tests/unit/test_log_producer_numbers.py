"""Which numbers of a producer are appended when they do not come in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.log.area import LogArea
from shared.errors import BadData, Unavailable
from shared.messages import log as messages
from tests.unit.log_area import Log, batch, eventually, key_on, read, values
from tests.unit.log_shard import OneShard
from tests.unit.test_log_producers import HOME, OTHER, PRODUCER, THIRD, fault


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.links.close()


def of_number(seq: int, shard: int) -> Any:
    return batch((key_on(shard), b"%d" % seq), producer=PRODUCER, seq=seq)


@pytest.mark.parametrize("crash", [False, True])
async def test_a_number_that_was_refused_can_be_sent_again_after_a_later_one_was_kept(log: Log, crash: bool) -> None:
    async with log.running(crash=crash) as area:
        await area.append(of_number(3, HOME))
        fault(log, "lost", ("log.append", OTHER))
        refused, kept = await asyncio.gather(
            area.append(of_number(4, OTHER)), area.append(of_number(5, THIRD)), return_exceptions=True
        )
        assert isinstance(refused, Unavailable)
        assert isinstance(kept, tuple)
        log.links.fault = lambda method, shard: ""
        if not crash:
            assert (await area.append(of_number(4, OTHER)))[0] > kept[0]
    async with log.running() as area:
        again = await area.append(of_number(4, OTHER))
        assert again[0] > kept[0]
        assert await area.append(of_number(4, OTHER)) == again
        assert await area.append(of_number(5, THIRD)) == kept
        assert await values(area) == [b"3", b"5", b"4"]


async def test_a_producer_s_first_number_that_was_refused_can_be_sent_again(log: Log) -> None:
    async with log.running() as area:
        fault(log, "lost", ("log.append", OTHER))
        outcomes = await asyncio.gather(
            area.append(of_number(0, OTHER)), area.append(of_number(1, THIRD)), return_exceptions=True
        )
        assert [isinstance(outcome, Unavailable) for outcome in outcomes] == [True, False]
        log.links.fault = lambda method, shard: ""
        again = await area.append(of_number(0, OTHER))
        assert await area.append(of_number(0, OTHER)) == again
        assert await values(area) == [b"1", b"0"]


async def test_a_number_that_comes_after_a_higher_one_is_appended(log: Log) -> None:
    """From two connections; also while the higher one is under way."""
    async with log.running() as area:
        await area.append(of_number(0, HOME))
        await asyncio.gather(area.append(of_number(3, OTHER)), area.append(of_number(2, THIRD)))
        await area.append(of_number(1, HOME))
        assert sorted(await values(area)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_number_below_those_that_are_remembered_is_refused(log: Log, crash: bool) -> None:
    last = messages.PRODUCER_ANSWERS_MAX
    async with log.running(crash=crash) as area:
        for seq in (*range(1, last + 1), 0, last + 1):
            if seq == 0:
                with pytest.raises(BadData, match=f"is at {last} already"):
                    await area.append(of_number(0, HOME))
            else:
                await area.append(of_number(seq, HOME))
        if not crash:
            with pytest.raises(BadData, match="remembered, from 2 on"):
                await area.append(of_number(1, HOME))
    async with log.running() as area:
        for seq in (0, 1):
            with pytest.raises(BadData):
                await area.append(of_number(seq, HOME))
        assert await area.append(of_number(2, HOME)) == (1, 1)


def test_a_shard_remembers_the_highest_numbers_also_when_a_lower_one_comes_last(tmp_path: Path) -> None:
    """Otherwise a number that was stored would be missing between those that are remembered."""
    shard = OneShard(tmp_path / "shard")
    last = messages.PRODUCER_ANSWERS_MAX
    highest = list(range(10, 10 + last))
    for group, seq in enumerate([*highest, 9]):
        shard.append_numbered(group, seq, producer="p")
    assert [seq for seq, _, _ in shard.part.producer_answers("p")] == highest
    shard.part._closed = len(highest) + 1
    shard.part.gather()
    assert [seq for seq, _, _ in shard.part.producer_answers("p")] == highest
    assert len(list(shard.store.scan("log", b"log/producer/", b"log/producer0"))) == last
    shard.close()


@pytest.mark.parametrize("ends", ["not at all", "in order", "by a crash"])
async def test_an_answer_is_remembered_for_as_long_as_its_records(tmp_path: Path, ends: str) -> None:
    log = Log(tmp_path, log_segment_bytes=1024, log_retention_bytes=2500)

    async def repeat(area: LogArea) -> None:
        again = await area.append(of_number(0, HOME))
        assert again[0] > first[0], "it was not there any more"
        assert await area.append(of_number(0, HOME)) == again
        assert [value for _, key, value in await read(area) if key != b"other"] == [b"0"]

    try:
        async with log.running(crash=ends == "by a crash") as area:
            first = await area.append(of_number(0, HOME))
            for _ in range(8):
                await area.append(batch((b"other", bytes(600)), durable=True))
            await eventually(lambda: area.sequencer.log_start > first[0])
            if ends == "not at all":
                await repeat(area)
        if ends != "not at all":
            async with log.running() as area:
                await repeat(area)
    finally:
        log.links.close()
