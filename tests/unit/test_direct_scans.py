"""Scans that are served without aiohttp: which these are, and that nothing else about them is different."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from coordinator.api.log import scan
from coordinator.direct import scans as direct_scans
from coordinator.direct.scans import LIMIT_MAX, PATH, VALUES_BYTES_MAX
from coordinator.log.reads import KeySelection, Warnings
from shared.errors import Unavailable
from shared.messages.log_pages import Page, Records
from tests.unit.direct_service import Service, get

PLAIN = ("Host: localhost", "Accept: */*", "User-Agent: a client")
USUAL = (*PLAIN, "X-Other: of aiohttp")
RECORDS = 50


class Reader:
    """Of a log with RECORDS records, of whatever key. `direct`: what was asked for without aiohttp."""

    def __init__(self) -> None:
        self.direct: list[tuple[KeySelection, int, int, int]] = []
        self.value = b"value"
        self.page_max = 1000
        self.warning = ""
        self.refusal: Exception | None = None
        self.free = asyncio.Event()
        self.free.set()

    def scan_deadline(self) -> float:
        return time.monotonic() + 10

    async def page(self, selection: KeySelection, start: int, end: int, limit: int, *, warnings: Warnings) -> Page:
        self.direct.append((selection, start, end, limit))
        await self.free.wait()
        return self._page(start, end, limit, warnings)

    async def pages(
        self, selection: KeySelection, start: int, end: int, limit: int, reverse: bool, warnings: Warnings, _: float
    ) -> AsyncGenerator[Page, None]:
        done = False
        while not done and limit > 0:
            page = self._page(start, end, limit, warnings)
            done, start, limit = page.done, page.next, limit - len(page.records)
            yield page

    def _page(self, start: int, end: int, limit: int, warnings: Warnings) -> Page:
        if self.refusal is not None:
            raise self.refusal
        if self.warning:
            warnings.add([SimpleNamespace(message=SimpleNamespace(warnings=[self.warning]))])  # type: ignore[list-item]
        last = min(end, RECORDS)
        following = min(last, start + min(limit, self.page_max))
        numbers = np.arange(start, max(following, start), dtype=np.uint64)
        times = np.full(len(numbers), 1_000, np.int64)
        records = Records.of(numbers, [self.value] * len(numbers), [], times)
        return Page(records, max(following, start), following == last)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    log = SimpleNamespace(reader=Reader(), sequencer=SimpleNamespace(log_start=3))
    service = Service(PATH, [web.get(PATH, scan.scan)], log=log)
    await service.start()
    yield service
    await service.stop()


async def ask(service: Service, query: str, headers: tuple[str, ...] = PLAIN) -> tuple[int, Any, bool]:
    """(status, content, whether it came without aiohttp)."""
    client = await service.client()
    before = len(service.log.reader.direct)
    status, _, body = await client.ask(get(f"{PATH}?{query}", headers))
    return status, json.loads(body), len(service.log.reader.direct) > before


@pytest.mark.parametrize(
    "query",
    [
        "key=a",
        "key=a%20b&start_seq=7&end_seq=9",
        "key_base64=YQ%3D%3D&startSeq=7&limit=3",
        "key=a&encoding=text",
        "key=a&encoding=json&value_bytes=2",
        "key=a&start_seq=50",
        f"key=a&limit={LIMIT_MAX}",
    ],
)
async def test_both_ways_give_the_same_answer(service: Service, query: str) -> None:
    client = await service.client()
    answers = []
    for headers in (PLAIN, USUAL):
        status, head, body = await client.ask(get(f"{PATH}?{query}", (*headers, "X-Request-Id: mine")))
        head.pop("Date")
        answers.append((status, list(head.items()), body))
    assert answers[0] == answers[1]
    assert answers[0][0] == 200
    assert len(service.log.reader.direct) == 1
    assert service.served(200, "GET") == 2
    assert service.is_at_rest


@pytest.mark.parametrize(
    "query",
    [
        "",
        "key=a&key_base64=YQ%3D%3D",
        "prefix=a",
        "key=a&reverse=true",
        "key=a&follow=true&timeout=0",
        "key=a&grep=x",
        "key=a&start_time=1",
        "key=a&starts_seq=5",
        "key=a&limit=0",
        f"key=a&limit={LIMIT_MAX + 1}",
        "key=a&encoding=none",
    ],
)
async def test_everything_else_is_left_to_aiohttp(service: Service, query: str) -> None:
    client = await service.client()
    client.writer.write(get(f"{PATH}?{query}", PLAIN))
    await asyncio.sleep(0.05)
    assert service.log.reader.direct == []


async def test_a_scan_of_several_pages_or_of_large_values_is_left_to_aiohttp(service: Service) -> None:
    reader = service.log.reader
    reader.page_max = 20
    status, content, was_tried = await ask(service, "key=a")
    assert (status, len(content["records"]), was_tried) == (200, RECORDS, True)
    reader.page_max, reader.value = 1000, b"v" * (VALUES_BYTES_MAX // RECORDS + 1)
    status, content, was_tried = await ask(service, "key=a")
    assert (status, len(content["records"]), was_tried) == (200, RECORDS, True)
    assert service.served(200, "GET") == 2
    await service.until(lambda: service.is_at_rest)


async def test_what_is_missing_is_said(service: Service) -> None:
    service.log.reader.warning = "3 records are damaged"
    assert (await ask(service, "key=a&limit=1"))[1] == (await ask(service, "key=a&limit=1", USUAL))[1]
    status, content, is_direct = await ask(service, "key=a&limit=1")
    assert (status, content["warnings"], is_direct) == (200, ["3 records are damaged"], True)


async def test_a_missing_shard_refuses_the_scan(service: Service) -> None:
    service.log.reader.refusal = Unavailable("shard 1 is down")
    status, content, is_direct = await ask(service, "key=a")
    assert (status, content, is_direct) == (503, {"status": "error", "message": "shard 1 is down"}, True)


async def test_a_scan_is_listed_while_it_runs_and_ends_with_its_client(service: Service) -> None:
    service.log.reader.free.clear()
    client = await service.client()
    client.writer.write(get(f"{PATH}?key=a%20b", PLAIN))
    await service.until(lambda: service.log.reader.direct)
    (told,) = service.context.running.listed([])
    assert (told["kind"], told["query"], told["state"]) == ("log.scan", "key=a b", "running")
    client.writer.close()
    await service.until(lambda: service.is_at_rest)
    assert service.served(499, "GET") == 1


async def test_a_page_with_records_of_another_limit_is_never_cut(service: Service) -> None:
    """The limit of the request is that of the page."""
    await ask(service, "key=a&limit=7")
    assert service.log.reader.direct[0][3] == 7
    await ask(service, "key=a")
    assert service.log.reader.direct[1][3] == direct_scans.LIMIT_DEFAULT
