"""Reads of the log beside long ones: what a worker does of them with the CPU time of a light query, and when the
coordinator sends them to the workers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.limits.clients import CURRENT_CLIENT
from coordinator.log.reads import KeySelection
from coordinator.log.turns import BESIDE_MAX, GROUP_PAGE, Turns
from coordinator.queries.gate import LIGHT, Gate
from shared import wire
from shared.errors import TooHeavy, Unavailable
from shared.log.slots import slot_count
from shared.messages import log, log_groups
from shared.messages.log import SEQUENCE_MAX, Range, Search
from shared.messages.log_pages import Records
from shared.process.processor_time import ProcessorTime
from shared.wire import Reply, Request
from tests.unit.log_area import EVERYTHING, SHARDS, Log, batch, key_on, read
from tests.unit.log_shard import OneShard
from worker.logs import reading
from worker.methods import log as methods
from worker.methods import log_groups as group_methods

RECORDS = 100
KEY = b"k"
THIRD = Search(where="exists $.third")
STARTS = np.zeros(slot_count(1), "<u8").tobytes()


def value(number: int) -> bytes:
    return b'{"third": true}' if number % 3 == 0 else b"{}"


class _UsedUp(ProcessorTime):
    """A light request's time that is over from the beginning."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def is_over(self) -> bool:
        return True


@pytest.fixture(params=["recent", "stored"])
def shard(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OneShard]:
    """RECORDS records of KEY and of other keys, alternating; every third one says so."""
    made = OneShard(tmp_path / "shard")
    made.append(0, [(KEY if n % 2 else b"other", value(n)) for n in range(RECORDS)])
    if request.param == "stored":
        made.part._closed = RECORDS
        made.part.gather()
    yield made
    made.close()


def call(shard: OneShard, method: str, body: msgspec.Struct, processor: ProcessorTime) -> Reply:
    request = Request(method, (0,), time.monotonic() + 10, wire.pack(body), processor=processor)
    own: Any = {0: SimpleNamespace(logs=shard.part)}
    return {**methods.METHODS, **group_methods.METHODS}[method].run(own, request)


@pytest.mark.parametrize(
    ("method", "reverse", "search"),
    [
        ("log.merge", False, None),
        ("log.merge", False, THIRD),
        ("log.search", False, THIRD),
        ("log.search", True, THIRD),
        ("log.group_read", False, None),
    ],
)
def test_a_light_page_ends_with_its_time_and_the_next_goes_on(
    shard: OneShard, method: str, reverse: bool, search: Search | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LIGHT_PIECE_RECORDS", 10)
    numbers: list[int] = []
    span, pages, is_done = Range(0, 9, 0, RECORDS), 0, False
    while not is_done:
        if method == "log.group_read":
            body: msgspec.Struct = log_groups.SlotsBody(span, b"", STARTS, 1, {0: 1000}, 1 << 20)
        else:
            body = log.ScanBody(span, 1000, KEY, b"", reverse, search)
        reply = call(shard, method, body, _UsedUp())
        if method == "log.group_read":
            ((following, is_done),) = wire.unpack(reply.body, log_groups.SlotsReply).pages
        else:
            head = wire.unpack(reply.body, log.ScanReply)
            following, is_done = head.next, head.done
        found = Records.from_frames(reply.frames).sequences.tolist()
        assert len(found) <= 10
        numbers += found
        span = Range(0, 9, 0, following) if reverse else Range(0, 9, following, RECORDS)
        pages += 1
    expected = [n for n in range(RECORDS) if (method != "log.search" or n % 2) and (search is None or n % 3 == 0)]
    assert numbers == (expected[::-1] if reverse else expected)
    assert pages >= (RECORDS // 2 if method == "log.search" else RECORDS) // 10


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("log.count", log.CountBody(Range(0, 9, 0, RECORDS), None, b"")),
        ("log.count", log.CountBody(Range(0, 9, 0, RECORDS), KEY, b"")),
        ("log.count", log.CountBody(Range(0, 9, 0, RECORDS), None, b"", THIRD)),
        ("log.count", log.CountBody(Range(0, 9, 0, RECORDS), KEY, b"", THIRD)),
        ("log.keys", log.KeysBody(Range(0, 9, 0, RECORDS), b"", None, 10)),
        ("log.group_count", log_groups.SlotsBody(Range(0, 9, 0, RECORDS), b"", STARTS, 1)),
        ("log.group_lag", log_groups.LagBody(Range(0, 9, 0, RECORDS), b"", STARTS, 1, None, 10)),
    ],
)
def test_a_light_read_without_pages_stops_when_its_time_is_used_up(
    shard: OneShard, method: str, body: msgspec.Struct
) -> None:
    with pytest.raises(TooHeavy, match=f"{method} has had the processor time of a light request"):
        call(shard, method, body, _UsedUp())
    call(shard, method, body, ProcessorTime())


class _Links:
    """A worker in which counts are too heavy for light ones. `calls`: (method, CPU time) of each request."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    async def call(self, method: str, *, processor_s: float, **_: object) -> list[str]:
        self.calls.append((method, processor_s))
        if method == "log.count" and processor_s:
            raise TooHeavy("more is needed")
        return [method]


async def test_beside_a_long_read_pages_have_little_time_and_counts_wait_for_it() -> None:
    links, gate, goes_on = _Links(), Gate(1), asyncio.Event()
    turns = Turns(links, gate)  # type: ignore[arg-type]

    async def ask(method: str, client: str) -> Any:
        CURRENT_CLIENT.set(client)
        return await turns.call(method, shards=[0], body=b"", timeout_s=5.0)

    async def long_read(_: object) -> None:
        await goes_on.wait()

    assert await ask("log.merge", "a") == ["log.merge"]
    assert links.calls == [("log.merge", 0.0)], "alone, it may take as long as it needs"
    long = asyncio.create_task(gate.run("a", "long", time.monotonic() + 5, long_read))
    await asyncio.sleep(0)
    links.calls.clear()
    counts = [asyncio.create_task(ask("log.count", client)) for client in "aab"]
    assert await ask("log.merge", "b") == ["log.merge"]
    assert ("log.merge", LIGHT.processor_s) in links.calls
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(count.done() for count in counts)
    assert gate.heavy.waiting == 3
    links.calls.clear()
    goes_on.set()
    await asyncio.gather(long, *counts)
    assert links.calls == [("log.count", 0.0)] * 3


class _SlowLinks:
    """A worker that ends no page before `goes_on`, and then fails. `processor_s`: the CPU time of each page."""

    def __init__(self) -> None:
        self.processor_s: list[float] = []
        self.goes_on = asyncio.Event()

    async def call(self, _: str, *, processor_s: float = 0.0, **__: object) -> list[str]:
        self.processor_s.append(processor_s)
        await self.goes_on.wait()
        raise Unavailable("the shard is gone")


@pytest.mark.parametrize("waits", [False, True])
async def test_some_pages_of_groups_run_whole_beside_others_unless_a_query_waits(waits: bool) -> None:
    links, gate = _SlowLinks(), Gate(2)
    turns = Turns(links, gate)  # type: ignore[arg-type]

    async def page() -> None:
        with pytest.raises(Unavailable):
            await turns.call(GROUP_PAGE, shards=[0], body=b"", timeout_s=5.0)

    async def long_read(_: object) -> None:
        raise AssertionError("it has no slot yet")

    pages = [asyncio.create_task(page()) for _ in range(2)]
    await asyncio.sleep(0)
    assert links.processor_s == [0.0, 0.0]
    query = asyncio.create_task(gate.run("a", "long", time.monotonic() + 5, long_read, is_heavy=True))
    await asyncio.sleep(0)
    if not waits:
        query.cancel()
        await asyncio.sleep(0)
    pages += [asyncio.create_task(page()) for _ in range(BESIDE_MAX + 1)]
    await asyncio.sleep(0)
    query.cancel()
    beside = [LIGHT.processor_s] * 2 if waits else [0.0] * BESIDE_MAX + [LIGHT.processor_s]
    assert links.processor_s[2:] == beside, "only two are tried as light ones at a time"
    links.goes_on.set()
    await asyncio.gather(*pages)
    assert gate.heavy.free == 2
    links.processor_s.clear()
    links.goes_on.clear()
    pages = [asyncio.create_task(page()) for _ in range(2 + BESIDE_MAX)]
    await asyncio.sleep(0)
    assert links.processor_s == [0.0] * len(pages), "pages that have ended leave their places"
    links.goes_on.set()
    await asyncio.gather(*pages)


@pytest.fixture
def area_log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.links.close()


async def test_every_read_that_may_take_long_has_little_time_beside_long_ones(area_log: Log) -> None:
    async with area_log.running() as area:
        keys = [key_on(shard) for shard in range(SHARDS)]
        for n in range(30):
            await area.append(batch(*((key, value(n)) for key in keys), durable=True))
        state, _ = await area.groups.join("g", "a", None, None, 60_000)
        gate = area.reader._turns._gate
        while gate.heavy.take_now():
            pass
        area_log.links.light_calls.clear()
        assert len(await read(area)) == 90
        assert len(await read(area, KeySelection(keys[0], search=THIRD))) == 10
        assert await area.reader.count(EVERYTHING, 0, SEQUENCE_MAX) == 90
        assert await area.reader.keys(b"", None, (0, 99), 10) == (sorted(keys), False)
        assert await area.reader.sequence_at(area.sequencer.last_time_ms, EVERYTHING) > 0
        polled = await area.groups.poll("g", "a", state.members[0].generation, 0, 100, 0.0, contextlib.nullcontext)
        assert sum(map(len, polled.page.pages)) == 90
        lags, _ = await area.groups.reader.lag(b"", state.committed, None, 10, polled.warnings)
        assert [lag for _, lag in lags] == [30, 30, 30]
        assert await area.groups.reader.count(b"", state.committed, polled.warnings) == 90
        own = {"merge", "search", "count", "keys", "first_at", "group_read", "group_lag", "group_count"}
        assert own <= {method.removeprefix("log.") for method in area_log.links.light_calls}
