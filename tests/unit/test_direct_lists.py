"""Lists that are served without aiohttp: which these are, and that nothing else about them is different."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest

from coordinator.api import series
from coordinator.direct import lists as direct_lists
from coordinator.fanout.calls import FanOut, WorkerReply
from coordinator.limits.admission import may_use_reserve
from shared.errors import Unavailable
from shared.labels import LabelFrame, Symbols
from shared.messages.series import ListReply, SelectBody, TextsReply
from shared.wire import Reply, pack, unpack
from tests.unit.direct_service import Service, get, post

SETS, LABELS, VALUES = "/api/v1/series", "/api/v1/labels", "/api/v1/label/job/values"
ROUTE = "/api/v1/label/{name}/values"
PLAIN = ("Host: localhost", "Accept: */*", "Accept-Encoding: gzip, deflate", "User-Agent: a client")
USUAL = (*PLAIN, "X-Other: of aiohttp")
FORM = "Content-Type: application/x-www-form-urlencoded"
MANY = 2000


class Workers:
    """Two workers: each has some names and values, and one series. Answers nothing while `free` is not set."""

    def __init__(self, links: Any) -> None:
        self.shards, self.waits = 2, links.waits
        self.states, self.workers, self.pause_background = links.states, links.workers, links.pause_background
        self.refusal: Exception | None = None
        self.missing: dict[int, str] = {}
        self.asked: list[tuple[str, SelectBody]] = []
        self.free = asyncio.Event()
        self.free.set()

    async def fan_out(self, method: str, *, body: bytes, **_: Any) -> FanOut:
        asked = unpack(body, SelectBody)
        self.asked.append((method, asked))
        await self.free.wait()
        if self.refusal is not None:
            raise self.refusal
        replies = [self._reply(method, asked, number) for number in range(2)]
        return FanOut([WorkerReply(f"w{n}", (n,), reply, 0.0) for n, reply in enumerate(replies)], dict(self.missing))

    def require(self, shards: object) -> None:
        """All are there."""

    def _reply(self, method: str, asked: SelectBody, number: int) -> Reply:
        if method == series.SERIES:
            symbols = Symbols()
            frame = LabelFrame.of([{"__name__": "m", "i": str(number)}], symbols)
            return Reply(pack(ListReply(1, False)), [bytes(part) for part in frame.to_frames()])
        texts = [f"{asked.name or 'label'}-{i}" for i in range(number, number + (MANY if asked.name == "many" else 2))]
        return Reply(pack(TextsReply(sorted(texts), False)))


class Lists(Service):
    links: Workers


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lists]:
    service = Lists(ROUTE, series.ROUTES)
    service.links = Workers(service.context.links)
    service.context.links = service.links  # type: ignore[assignment]
    service.count(monkeypatch, direct_lists._ListWork)
    await service.start()
    yield service
    await service.stop()


@pytest.mark.parametrize(
    ("path", "route", "fields", "data"),
    [
        (VALUES, ROUTE, [], ["job-0", "job-1", "job-2"]),
        (VALUES, ROUTE, [("match[]", 'a{b="c"}'), ("match[]", "d"), ("start", "5"), ("end", "7")], None),
        (VALUES, ROUTE, [("limit", "2")], ["job-0", "job-1"]),
        (LABELS, LABELS, [("match[]", "m")], ["label-0", "label-1", "label-2"]),
        (SETS, SETS, [("match[]", "m")], [{"__name__": "m", "i": "0"}, {"__name__": "m", "i": "1"}]),
    ],
)
async def test_both_ways_give_the_same_answer(
    service: Lists, path: str, route: str, fields: list[tuple[str, str]], data: object
) -> None:
    service.path = route
    target = f"{path}?{urlencode(fields)}" if fields else path
    status, headers, body = await service.both(get(target, USUAL), get(target, PLAIN))
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert data is None or json.loads(body)["data"] == data
    assert service.links.asked[0] == service.links.asked[2]
    assert service.served(200, "GET") == 3
    await service.until(lambda: service.is_at_rest)


async def test_a_form_is_read_before_the_url_and_all_selectors_count(service: Lists) -> None:
    service.path = LABELS
    form = urlencode([("match[]", "m"), ("limit", "1")]).encode()
    target = f"{LABELS}?{urlencode([('match[]', 'n'), ('limit', '9')])}"
    _, _, body = await service.both(post(target, (*USUAL, FORM), form), post(target, (*PLAIN, FORM), form))
    assert json.loads(body)["data"] == ["label-0"]
    asked = service.links.asked[-1][1]
    assert [[matcher.value for matcher in matchers] for matchers in asked.selectors] == [["m"], ["n"]]


async def test_long_answers_are_compressed_as_with_aiohttp(service: Lists) -> None:
    target = "/api/v1/label/many/values"
    _, headers, body = await service.both(get(target, USUAL), get(target, PLAIN))
    assert headers["Content-Encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(body))["data"]) == MANY + 1


async def test_answers_larger_than_a_piece_are_left_to_aiohttp_for_good(
    service: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_lists, "BODY_BYTES_MAX", 10)
    client, ways = await service.client(), []
    for path in (VALUES, VALUES, VALUES, "/api/v1/label/instance/values"):
        status, _, body = await client.ask(get(path))
        ways.append(service.direct)
        assert (status, json.loads(body)["status"]) == (200, "success")
    assert ways == [1, 1, 1, 2]
    assert service.served(200, "GET") == 4
    await service.until(lambda: service.is_at_rest)


@pytest.mark.parametrize(
    "message",
    [
        get("/api/v1/label/a.b/values"),
        get("/api/v1/label//values"),
        get("/api/v1/label/a/b/values"),
        get("/api/v1/label/a/values/values"),
        get("/api/v1/label/values"),
        get(f"{VALUES}?limit=%zz"),
        post(VALUES, (*PLAIN, FORM), b""),
        post(LABELS, (*PLAIN, "Content-Type: application/json"), b"{}"),
    ],
)
async def test_everything_else_is_left_to_aiohttp(service: Lists, message: bytes) -> None:
    client = await service.client()
    await client.ask(message)
    assert service.direct == 0


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (f"{VALUES}?match%5B%5D=%7B", 400),
        (f"{VALUES}?start=9&end=7", 400),
        (f"{VALUES}?limit=many", 400),
        (f"{VALUES}?match%5B%5D=%7B%7D", 400),
        ("/api/v1/label/U___zz_/values", 200),
        (SETS, 400),
    ],
)
async def test_what_is_wrong_is_told_as_with_aiohttp(service: Lists, target: str, status: int) -> None:
    assert (await service.both(get(target, USUAL), get(target, PLAIN)))[0] == status
    await service.until(lambda: service.is_at_rest)


async def test_errors_of_the_workers_and_missing_shards_are_told(service: Lists) -> None:
    client = await service.client()
    service.links.missing = {1: "it is down"}
    _, _, body = await client.ask(get(VALUES))
    assert json.loads(body)["warnings"] == ["shard 1 is missing from this answer: it is down"]
    assert (await client.ask(get(f"{VALUES}?partial_response=false")))[0] == 503
    service.links.refusal = Unavailable("no shard answers")
    status, _, body = await client.ask(get(VALUES))
    assert (status, json.loads(body)["error"]) == (503, "no shard answers")
    assert service.direct == 3


async def test_a_list_is_listed_and_can_be_canceled(service: Lists) -> None:
    client = await service.client()
    service.links.free.clear()
    target = f"{VALUES}?{urlencode([('match[]', 'm'), ('match[]', 'n')])}"
    asked = asyncio.create_task(client.ask(get(target, (*PLAIN, "X-Request-Id: mine"))))
    await service.until(lambda: service.links.asked)
    (told,) = service.context.running.listed([])
    assert (told["id"], told["kind"], told["query"], told["state"]) == ("mine", series.VALUES, "m n", "running")
    assert service.context.running.cancel("mine") == 1
    status, headers, body = await asked
    assert (status, headers["X-Request-Id"], json.loads(body)["errorType"]) == (503, "mine", "canceled")
    await service.until(lambda: service.is_at_rest)


async def test_a_client_that_leaves_ends_its_list(service: Lists) -> None:
    client = await service.client()
    service.links.free.clear()
    client.writer.write(get(VALUES))
    await service.until(lambda: service.links.asked)
    client.writer.close()
    await service.until(lambda: service.is_at_rest)
    assert service.served(499, "GET") == 1
    assert service.context.gate.heavy.free == 1


async def test_the_places_that_are_kept_are_for_writes_and_states_not_for_lists(service: Lists) -> None:
    admission = service.context.admission
    admission.requests = admission._ordinary_max
    client = await service.client()
    status, _, body = await client.ask(get(VALUES))
    assert (status, service.direct) == (503, 0)
    assert "are kept for requests that write or tell a state" in json.loads(body)["error"]
    kept = ["/api/v1/write", "/api/v1/log/append", "/v1/metrics", "/-/healthy", "/metrics"]
    assert all(map(may_use_reserve, kept))
    assert not any(map(may_use_reserve, ["/api/v1/query", SETS, ROUTE, "/api/v1/log/scan", "/api/v1/vector/search"]))
