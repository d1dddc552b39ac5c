"""The log area when work in the background fails or does not end, and what is remembered of producers."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from coordinator.log import area as area_module
from coordinator.log.area import _logged
from coordinator.log.producers import _Producer
from shared.errors import DeadlineExceeded, Unavailable
from shared.messages import log as messages
from tests.unit.log_area import Log, batch


@pytest.fixture
def log(tmp_path: Path) -> Any:
    made = Log(tmp_path, write_timeout_ms=200)
    yield made
    made.links.close()


async def test_work_in_the_background_that_ends_with_a_mistake_is_told_and_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, str]] = []
    monkeypatch.setattr(area_module, "event", lambda level, text, **_: told.append((level, text)))

    async def fails() -> None:
        raise ValueError("a mistake")

    async def ends() -> None:
        return None

    with pytest.raises(ValueError, match="a mistake"):
        await _logged(fails)
    assert told == [(logging.ERROR, "a background task of the log ended")]
    await _logged(ends)
    assert len(told) == 1


async def test_a_repeat_that_never_becomes_durable_is_past_its_deadline(log: Log) -> None:
    async with log.running() as area:
        log.links.fault = lambda method, shard: "lost" if method == "log.sync" else ""
        first = await area.append(batch((b"k", b"1"), producer="p", seq=1))
        assert await area.append(batch((b"k", b"1"), producer="p", seq=1)) == first
        with pytest.raises(DeadlineExceeded, match="stored, but not all of the log before them is on disk"):
            await area.append(batch((b"k", b"1"), durable=True, producer="p", seq=1))
        log.links.fault = lambda method, shard: ""
        assert await area.append(batch((b"k", b"1"), durable=True, producer="p", seq=1)) == first


async def test_a_log_that_is_recovered_too_slowly_is_unavailable(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.log.recovery.RETRY_S", 0.02)
    log.links.fault = lambda method, shard: "lost" if method == "log.recover" else ""
    async with log.running() as area:
        with pytest.raises(Unavailable, match="the log is still being recovered after a start"):
            await area.recovery.wait_for([0])
        assert not area.recovery.complete.is_set()
        log.links.fault = lambda method, shard: ""
        await asyncio.wait_for(area.recovery.complete.wait(), 5)
        await area.recovery.wait_for([0])


async def test_work_for_producers_is_given_up_when_the_area_stops(log: Log) -> None:
    async with log.running() as area:
        never: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(60))
        lookup: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(60))
        known = area._producers._producer("p")
        known.under_way[1], known.loading = never, lookup
        area._producers._producer("idle")
    await asyncio.wait([never, lookup], timeout=1)
    assert never.cancelled() and lookup.cancelled()


def test_so_many_answers_and_refusals_of_a_producer_are_remembered_and_the_lowest_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "PRODUCER_ANSWERS_MAX", 2)
    producer = _Producer()
    for number in (5, 3, 9):
        producer.refuse(number)
    assert producer.refused == {5, 9}
    producer.remember((9, 90, 1))
    assert producer.refused == {5}
    for number in (7, 8):
        producer.remember((number, number * 10, 1))
    assert sorted(producer.answers) == [8, 9]
    assert [number for number in range(10) if producer.is_forgotten(number)] == [0, 1, 2, 3, 4, 6, 7]
    assert not _Producer().is_forgotten(0)
