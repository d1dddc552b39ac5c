"""Queries that are served without aiohttp: which these are, and that nothing else about them is different."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest

from coordinator.api import query
from coordinator.direct import queries as direct_queries
from coordinator.queries import evaluation
from coordinator.queries.quick import QuickQueries
from loadtest.harness.memory_source import MemorySource
from shared.errors import Unavailable
from tests.unit.direct_service import Service, get, post
from tests.unit.test_query_conclusions import MINUTE_MS, Workers

INSTANT, RANGE = "/api/v1/query", "/api/v1/query_range"
PLAIN = ("Host: localhost", "Accept: */*", "Accept-Encoding: gzip, deflate", "User-Agent: a client")
USUAL = (*PLAIN, "X-Other: of aiohttp")
AT = {"query": "m + 1", "time": "60"}
OVER = {"query": "sum(m)", "start": "0", "end": "60", "step": "60"}
MANY = 400


class Held(Workers):
    """Answers nothing while `free` is not set."""

    def __init__(self) -> None:
        many = {f'many{{i="{number}"}}': ([0, MINUTE_MS], [1.0, 2.0]) for number in range(MANY)}
        super().__init__(MemorySource.of({"m": ([0, MINUTE_MS], [1.0, 2.0]), **many}))
        self.free = asyncio.Event()
        self.free.set()

    async def fan_out(self, *arguments: Any, **options: Any) -> Any:
        await self.free.wait()
        return await super().fan_out(*arguments, **options)

    def connected(self) -> list[Any]:
        return []

    def unready(self) -> dict[int, str]:
        return {0: "so that all are asked"}


class Queries(Service):
    """The query endpoints."""

    links: Held

    async def start_on(self, links: Held) -> Queries:
        self.links = links
        for name in ("states", "workers", "pause_background", "waits", "shards", "barrier"):
            if hasattr(self.context.links, name):
                setattr(links, name, getattr(self.context.links, name))
        self.context.links = links  # type: ignore[assignment]
        await self.start()
        return self


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queries]:
    monkeypatch.setattr(evaluation, "_QUICK", QuickQueries())
    monkeypatch.setattr("coordinator.queries.quick.QUICK_S", 5.0)  # busy machines are slow
    service = await Queries(INSTANT, query.ROUTES).start_on(Held())

    async def noted(*arguments: Any) -> Any:
        service.direct += 1
        return await query.evaluated(*arguments)

    monkeypatch.setattr(direct_queries, "evaluated", noted)
    yield service
    await service.stop()


def target(path: str, fields: dict[str, str]) -> str:
    return f"{path}?{urlencode(fields)}"


@pytest.mark.parametrize(("path", "fields"), [(INSTANT, AT), (RANGE, OVER)])
async def test_both_ways_give_the_same_answer(service: Queries, path: str, fields: dict[str, str]) -> None:
    service.path = path
    status, headers, body = await service.both(get(target(path, fields), USUAL), get(target(path, fields), PLAIN))
    assert (status, headers["Vary"]) == (200, "Accept-Encoding")
    assert json.loads(body)["status"] == "success"
    assert service.served(200, "GET") == 3
    await service.until(lambda: service.is_at_rest)


async def test_a_form_is_read_before_the_url(service: Queries) -> None:
    form = urlencode(AT).encode()
    type_line = "Content-Type: application/x-www-form-urlencoded; charset=utf-8"
    _, _, body = await service.both(
        post(f"{INSTANT}?time=0&limit=1", (*USUAL, type_line), form),
        post(f"{INSTANT}?time=0&limit=1", (*PLAIN, type_line), form),
    )
    assert json.loads(body)["data"]["result"] == [{"metric": {}, "value": [60, "3"]}]


async def test_long_answers_are_compressed_as_with_aiohttp(service: Queries) -> None:
    fields = {"query": "many", "time": "60"}
    _, headers, body = await service.both(get(target(INSTANT, fields), USUAL), get(target(INSTANT, fields), PLAIN))
    assert headers["Content-Encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(body))["data"]["result"]) == MANY


async def test_answers_larger_than_a_piece_are_left_to_aiohttp_for_good(
    service: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_queries, "BODY_BYTES_MAX", 10)
    client, ways = await service.client(), []
    for _ in range(4):
        status, _, body = await client.ask(get(target(INSTANT, AT)))
        ways.append(service.direct)
        assert (status, json.loads(body)["status"]) == (200, "success")
    assert ways == [0, 1, 1, 1]
    assert service.served(200, "GET") == 4
    await service.until(lambda: service.is_at_rest)


@pytest.mark.parametrize(
    "fields",
    [
        {"query": "m + 1", "time": "60", "stats": "all"},
        {"query": "m + 1", "time": "60", "explain": "true"},
        {"query": "m + 1", "time": "60", "explain": "maybe"},
        {"query": "m + 1", "time": "soon"},
        {"query": "m +", "time": "60"},
        {"query": "", "time": "60"},
        {"query": "nobody_asked_before", "time": "60"},
    ],
)
async def test_everything_else_is_left_to_aiohttp(service: Queries, fields: dict[str, str]) -> None:
    client = await service.client()
    for _ in range(2):
        await client.ask(get(target(INSTANT, AT)))
    assert service.direct == 1
    await client.ask(get(target(INSTANT, fields)))
    assert service.direct == 1


async def test_a_client_that_leaves_ends_its_query(service: Queries) -> None:
    client = await service.client()
    await client.ask(get(target(INSTANT, AT)))
    service.links.free.clear()
    client.writer.write(get(target(INSTANT, AT)))
    await service.until(lambda: service.direct and len(service.context.running))
    client.writer.close()
    await service.until(lambda: service.is_at_rest)
    assert service.served(499, "GET") == 1
    assert service.context.gate.light.free == len(range(64))


async def test_a_query_is_listed_and_can_be_canceled(service: Queries) -> None:
    client = await service.client()
    await client.ask(get(target(INSTANT, AT)))
    service.links.free.clear()
    asked = asyncio.create_task(client.ask(get(target(INSTANT, AT), (*PLAIN, "X-Request-Id: mine"))))
    await service.until(lambda: service.direct)
    await service.until(lambda: len(service.context.running))
    (told,) = service.context.running.listed([])
    assert (told["id"], told["kind"], told["query"], told["state"]) == ("mine", "instant", "m + 1", "running")
    assert service.context.running.cancel("mine") == 1
    status, headers, body = await asked
    assert (status, headers["X-Request-Id"], json.loads(body)["errorType"]) == (503, "mine", "canceled")
    await service.until(lambda: service.is_at_rest)


async def test_errors_are_those_of_aiohttp(service: Queries) -> None:
    client = await service.client()
    await client.ask(get(target(INSTANT, AT)))
    service.links.refusal = Unavailable("no shard answers")
    status, _, body = await client.ask(get(target(INSTANT, AT)))
    assert (status, service.direct) == (503, 1)
    assert json.loads(body) == {"status": "error", "errorType": "unavailable", "error": "no shard answers"}
    service.links.refusal = None
    assert (await client.ask(get(target(INSTANT, AT))))[0] == 200


async def test_pages_of_other_sites_are_told_apart_by_aiohttp(service: Queries) -> None:
    service.context.cors.is_on = True
    client = await service.client()
    for _ in range(2):
        _, headers, _ = await client.ask(get(target(INSTANT, AT)))
        assert headers["Vary"] == "Accept-Encoding, Origin"
    assert service.direct == 0


async def test_what_comes_behind_a_query_is_answered_after_it(service: Queries) -> None:
    client = await service.client()
    await client.ask(get(target(INSTANT, AT)))
    service.links.free.clear()
    client.writer.write(get(target(INSTANT, AT)))
    await service.until(lambda: service.direct)
    client.writer.write(get(target(INSTANT, {**AT, "query": "m + 2"})))
    service.links.free.set()
    answers = [await client.answer() for _ in range(2)]
    assert [json.loads(body)["data"]["result"][0]["value"][1] for _, _, body in answers] == ["3", "4"]
