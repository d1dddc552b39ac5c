"""A disk of the log's state that does not answer: who waits for it, and how long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from coordinator.log import area as area_module
from coordinator.log.state_writes import StateWrites
from coordinator.log.waiting import ORDER_WAIT_FACTOR
from shared.control import LocalControl
from shared.errors import TriptychError, Unavailable
from tests.unit.log_area import Log, batch, eventually, key_on, values

TIMEOUT_S = 0.3


class Disk:
    """Of the log's state: writes wait while it hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = 0
        self._answers = threading.Event()
        self._answers.set()
        self._replace = LocalControl.replace
        monkeypatch.setattr(LocalControl, "replace", lambda *write: self._wait_and_write(*write))

    def _wait_and_write(self, control: LocalControl, name: str, content: bytes) -> None:
        self.waiting += 1
        try:
            assert self._answers.wait(30)
        finally:
            self.waiting -= 1
        self._replace(control, name, content)

    def hang(self) -> None:
        self._answers.clear()

    def answer(self) -> None:
        self._answers.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.answer()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path, write_timeout_ms=int(TIMEOUT_S * 1000), log_segment_bytes=1024)
    yield made
    made.links.close()


@pytest.mark.parametrize("producer", ["", "p"])
async def test_appends_are_refused_while_a_taking_back_waits_for_the_disk(log: Log, disk: Disk, producer: str) -> None:
    async with log.running() as area:
        await area.append(batch((key_on(0), b"1")))
        await area.recovery.complete.wait()
        disk.hang()
        log.links.fault = lambda method, shard: "lost" if (method, shard) == ("log.append", 1) else ""
        asked_at = time.monotonic()
        halves = batch((key_on(0), b"half"), (key_on(1), b"half"), producer=producer, seq=1)
        append = asyncio.create_task(area.append(halves))
        await eventually(lambda: bool(area.recovery.refusal))
        log.links.fault = lambda method, shard: ""
        for _ in range(3):
            with pytest.raises(Unavailable, match="has not answered a write"):
                await area.append(batch((key_on(2), b"refused at once")))
        assert "has not answered a write" in area.warnings()[0]
        assert await values(area) == [b"1"]
        with pytest.raises(TriptychError, match="may or may not"):
            await append
        assert time.monotonic() - asked_at < ORDER_WAIT_FACTOR * TIMEOUT_S + 1
        assert disk.waiting == 1
        disk.answer()
        await eventually(lambda: not area.recovery.refusal)
        await area.append(batch((key_on(2), b"2")))
        assert await values(area) == [b"1", b"2"]


async def test_a_segment_begins_when_that_is_on_the_disk_and_stops_nobody_meanwhile(log: Log, disk: Disk) -> None:
    async with log.running() as area:
        await area.append(batch((key_on(0), bytes(2000))))
        await area.recovery.complete.wait()
        disk.hang()
        beginning = asyncio.create_task(area._appender.end_segment())
        await eventually(lambda: disk.waiting == 1)
        assert [segment.start_seq for segment in area.sequencer.segments] == [0]
        append = asyncio.create_task(area.append(batch((key_on(0), b"next"))))
        assert await values(area) == [bytes(2000)]
        assert not append.done(), "no number is taken while it is decided where a segment begins"
        disk.answer()
        await beginning
        assert await append == (1, 1)
        assert [segment.start_seq for segment in area.sequencer.segments] == [0, 1]


async def test_an_idle_log_whose_segment_is_due_does_not_hold_up_the_coordinator(tmp_path: Path, disk: Disk) -> None:
    log = Log(tmp_path, log_segment_age_ms=1000, log_retention_ms=60_000)
    async with log.running() as area:
        await area.append(batch((key_on(0), b"old")))
        await area.recovery.complete.wait()
        disk.hang()
        await eventually(lambda: disk.waiting == 1)  # which retention began, not the test
        assert await values(area) == [b"old"]
        disk.answer()
        await eventually(lambda: len(area.sequencer.segments) == 2)
    log.links.close()


async def test_segments_are_dropped_for_readers_when_that_is_on_the_disk(log: Log, disk: Disk) -> None:
    async with log.running() as area:
        for _ in range(3):
            await area.append(batch((key_on(0), bytes(2000))))
        await area.recovery.complete.wait()
        disk.hang()
        dropping = asyncio.create_task(area._retention._writes.run(lambda: area.sequencer.drop_segments(2)))
        await eventually(lambda: disk.waiting == 1)
        assert area.sequencer.log_start == 0
        assert len(await values(area)) == 3
        disk.answer()
        await dropping
        assert area.sequencer.log_start == 2


async def test_a_stop_does_not_wait_for_the_disk_for_ever(
    log: Log, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(area_module, "STOP_WRITE_S", 0.1)
    async with log.running() as area:
        await area.append(batch((key_on(0), b"1"), durable=True))
        await area.recovery.complete.wait()
        disk.hang()
        started_at = time.monotonic()
    assert time.monotonic() - started_at < 5
    disk.answer()
    await eventually(lambda: not area.sequencer._lock.locked())  # the process that hung has ended
    async with log.running() as area:
        await eventually(lambda: area.recovery.complete.is_set())
        assert await values(area) == [b"1"]
        assert (await area.append(batch((key_on(0), b"2"))))[0] > 0


async def test_writes_that_wait_for_a_disk_that_hangs_hold_one_thread() -> None:
    """Also when those who asked for them have left: the coordinator has few threads, and others need them."""
    writes = StateWrites(TIMEOUT_S)
    answers, begun, done = threading.Event(), [], []

    def write(number: int) -> None:
        begun.append(number)
        assert answers.wait(30)
        done.append(number)

    asking = [asyncio.create_task(writes.run(partial(write, number))) for number in range(10)]
    await eventually(lambda: begun == [0])
    assert not writes.overdue
    asking[0].cancel()
    await asyncio.sleep(TIMEOUT_S + 0.1)
    assert begun == [0]
    assert "has not answered a write" in writes.overdue
    answers.set()
    await asyncio.gather(*asking, return_exceptions=True)
    await eventually(lambda: done == list(range(10)))
    assert not writes.overdue
