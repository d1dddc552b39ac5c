"""Searches that are served without aiohttp: which these are, and that nothing else about them is different."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from coordinator.api import vector
from coordinator.direct.searches import PATH, READ_LATER_BYTES_MAX, SEARCH_BYTES_MAX, SHAPE_BYTES_MAX, shape_of
from coordinator.fanout.calls import FanOut
from coordinator.http.responses import BODY_BYTES_MAX
from coordinator.vectors.batching import SearchKind
from shared.errors import Canceled, DeadlineExceeded, NotFound
from shared.messages.vectors import Collection
from tests.unit.direct_service import PLAIN, USUAL, Client, Service, post
from tests.unit.test_vector_gathering import SlowLinks, area_on

Answer = tuple[int, dict[str, str], bytes]
BODY = b'{"vector": [7, 1], "k": 1, "includeFields": []}'


def request(headers: Iterable[str] = PLAIN, body: bytes = BODY) -> bytes:
    return post(PATH, headers, body)


class HeldLinks(SlowLinks):
    """Answers nothing while `free` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()

    async def fan_out(self, method: str, **options: Any) -> FanOut:
        answer = await super().fan_out(method, **options)
        await self.free.wait()
        return answer


class Searching(Service):
    """The search endpoint over workers that answer each query with an id that is its first component. `direct`: the
    searches that came without aiohttp."""

    links: HeldLinks
    direct: list[SearchKind]

    async def start_on(self, directory: Path) -> Searching:
        self.links, self.direct = HeldLinks(), []
        area = self.context.vectors = await area_on(self.links, directory)
        await area.create(Collection(0, "other", 2, "cosine", "f32"))
        begin = area.begin

        def noted(kind: SearchKind, queries: Any) -> Any:
            self.direct.append(kind)
            return begin(kind, queries)

        area.begin = noted  # type: ignore[method-assign]
        await self.start()
        return self

    async def together(self, alone: bytes, *messages: bytes) -> list[Answer]:
        """The answers to these requests; all but the first are in one batch."""
        clients = [await self.client() for _ in (alone, *messages)]
        self.links.free.clear()
        first = asyncio.create_task(clients[0].ask(alone))
        await self.until(lambda: self.links.batches)
        others = [
            asyncio.create_task(client.ask(message)) for client, message in zip(clients[1:], messages, strict=True)
        ]
        queues = self.context.vectors._batches._queues
        await self.until(lambda: sum(len(queue.waiting) for queue in queues.values()) == len(messages))
        self.links.free.set()
        return list(await asyncio.gather(first, *others))

    async def both(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """The answer, which is the same with aiohttp and by the shortest way: (status, content)."""
        client = await self.client()
        answers = []
        for headers in (PLAIN, USUAL):
            status, head, content = await client.ask(request((*headers, "X-Request-Id: mine"), body))
            head.pop("Date")
            answers.append((status, list(head.items()), content))
        assert answers[0] == answers[1]
        return answers[0][0], json.loads(answers[0][2])


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Searching]:
    service = await Searching(PATH, vector.ROUTES).start_on(tmp_path)
    yield service
    await service.stop()
    await service.context.vectors.stop()


def ids(answer: Answer) -> list[str]:
    assert answer[0] == 200
    return [result["vector"]["id"] for result in json.loads(answer[2])["results"]]


async def test_both_ways_give_the_same_answer(service: Searching) -> None:
    status, content = await service.both(BODY)
    assert (status, content["results"][0]["vector"]) == (200, {"id": "7", "attributes": {}})
    assert len(service.direct) == 1
    assert service.served(200) == 2
    assert service.is_at_rest
    assert list(service.context.connections.idle)


@pytest.mark.parametrize(
    ("body", "is_direct"),
    [
        (b'{"k":1,"includeFields":[],"vector":[7,1]}', True),
        (b'{"k":1,"filter":{"eq":{"field":"a","value":1}},"includeFields":[],\n"vector" : [ 7e0,\t-1.5 ] }', True),
        (b'{"vector":[7,1],"k":1,"includeFields":[],"recall":0.9,"scoreThreshold":3}', True),
        (b'{"vector":[7,1],"k":2,"includeFields":[],"offset":1,"expansion":30}', True),
        (b'{"vector":[7,1],"k":1,"includeFields":[],"collection":"other"}', True),
        (b'{"vector":[7],"k":1,"includeFields":[]}', True),
        (b'{"vector":[],"k":1,"includeFields":[]}', True),
        (b'{"vector":[0,0],"k":1,"includeFields":[],"collection":"other"}', True),
        (b'{"vector":[1e39,0],"k":1,"includeFields":[]}', True),
        (b'{"vector":[7,"a"],"k":1,"includeFields":[]}', True),
        (b'{"vector":[7,null],"k":1,"includeFields":[]}', True),
        (b'{"vector":[7,1],"k":1,"includeFields":[],"collection":"none"}', False),
        (b'{"vector":[7,1],"k":1}', True),
        (b'{"vector":[7,1],"includeFields":["colour"]}', True),
        (b'{"vector":[7,1],"k":101,"includeFields":[]}', False),
        (b'{"vector":[7,1],"k":0,"includeFields":[]}', False),
        (b'{"vector":[7,1],"k":1,"includeFields":[],"vector":[8,1]}', False),
        (b'{"vector":[7,1],"k":1,"includeFields":[],"vectors":[[8,1]]}', False),
        (b'{"vectors":[[7,1]],"k":1,"includeFields":[]}', False),
        (b'{"id":"a","k":1,"includeFields":[]}', False),
        (b'{"vector":[[7],1],"k":1,"includeFields":[]}', False),
        (b'{"vector":[7 1],"k":1,"includeFields":[]}', False),
        (b'{"vector":[7,1,],"k":1,"includeFields":[]}', False),
        (b'{"vector":[07,1],"k":1,"includeFields":[]}', False),
        (b'{"vector":[7,1],"k":1,"includeFields":[],"unknown":1}', False),
        (b'{"vector":[7,1],"k":1,"includeFields":[]', False),
        (b'{"vector":[7,1', False),
        (b'{"filter":{"eq":{"field":"\\"vector\\":[1]","value":"a"}},"vector":[7,1],"includeFields":[]}', True),
        (b'{"a\\"vector":[7,1],"vector":[7,1],"includeFields":[]}', False),
        (b'{"vector":[7,1],"includeFields":[],"groupBy":{"field":"a"}}', False),
        (b"[]", False),
        (b"", False),
    ],
)
async def test_what_is_unusual_or_wrong_has_the_answer_of_aiohttp(
    service: Searching, body: bytes, is_direct: bool
) -> None:
    await service.both(body)
    assert len(service.direct) == is_direct
    assert service.is_at_rest


@pytest.mark.parametrize(
    "message",
    [
        request((*PLAIN[:2], "Accept: application/protobuf")),
        request((PLAIN[0], "Content-Type: application/protobuf")),
        post(PATH + "?partial_response=false", PLAIN, BODY),
        post(PATH + "/", PLAIN, BODY),
        request(body=BODY[:-1] + b" " * SHAPE_BYTES_MAX + b"}"),
        request(body=BODY.replace(b"1]", b"1," + b"0," * (SEARCH_BYTES_MAX // 2) + b"0]")),
        request((*PLAIN, "Authorization: Bearer x")),
        request() + request(),
    ],
)
async def test_everything_else_is_left_to_aiohttp(service: Searching, message: bytes) -> None:
    client = await service.client()
    client.writer.write(message)
    await client.answer()
    assert service.direct == []


async def test_a_long_vector_is_read_when_it_comes(service: Searching) -> None:
    wrong, right = ("0," * READ_LATER_BYTES_MAX, " " * READ_LATER_BYTES_MAX)
    status, content = await service.both(b'{"includeFields":[],"vector":[%b0]}' % wrong.encode())
    assert (status, "components" in content["message"]) == (400, True)
    assert service.direct == []
    status, content = await service.both(b'{"includeFields":[],"vector":[7,%b1]}' % right.encode())
    assert content["results"][0]["vector"]["id"] == "7"
    assert len(service.direct) == 1


async def test_attributes_and_vectors_are_shown_as_by_aiohttp(service: Searching) -> None:
    service.links.attributes = {"colour": "red", "sizes": [1, 2.5], "näme": 'a"b'}
    status, content = await service.both(b'{"vector":[7,1.25]}')
    shown = {"vector": [7.0, 1.25], **service.links.attributes}
    assert (status, content["results"][0]["vector"]) == (200, {"id": "7", "attributes": shown})
    assert len(service.direct) == 1


@pytest.mark.parametrize("escapes", [False, True])
async def test_a_long_answer_is_begun_anew_by_aiohttp_and_the_next_of_its_kind_goes_there_at_once(
    service: Searching, escapes: bool
) -> None:
    """Which answers are long shows before they are rendered, or after."""
    text = "\n" * (BODY_BYTES_MAX // 2) if escapes else "a" * BODY_BYTES_MAX
    service.links.attributes = {"text": text}
    for _ in range(2):
        status, content = await service.both(b'{"vector":[7,1]}')
        assert (status, content["results"][0]["vector"]["attributes"]["text"]) == (
            200,
            *service.links.attributes.values(),
        )
        assert len(service.direct) == 1
    assert service.served(200) == 4
    assert service.is_at_rest
    service.links.attributes = {}
    await service.both(BODY)
    assert len(service.direct) == 2, "searches of another kind are not concerned"


def test_a_shape_is_that_of_searches_that_differ_in_their_vector_alone() -> None:
    before, after = b'{"k":3,"includeFields":[],"vector":', b',"offset":2}'
    shape = shape_of(before, after)
    assert shape is not None
    assert (shape.request.k, shape.request.refinement.offset) == (3, 2)
    assert shape is shape_of(before, after)
    for wrong in ((before, after + b" x"), (before, b',"vector":[1]}'), (before, b',"id":"a"}'), (b'{"k":', after)):
        assert shape_of(*wrong) is None


async def test_a_wrong_search_leaves_the_others_of_its_batch_their_answers(service: Searching) -> None:
    wrong_body = BODY.replace(b"[7, 1]", b"[7, 1, 1]")
    first, right, wrong, other = await service.together(
        request(), request(), request(body=wrong_body), request(body=BODY.replace(b"7", b"8"))
    )
    assert (ids(first), ids(right), ids(other)) == (["7"], ["7"], ["8"])
    assert (wrong[0], json.loads(wrong[2])["message"]) == (
        400,
        "vector has 3 components; the dimension of the collection 'default' is 2",
    )
    assert service.links.batches == [1, 2]


async def test_searches_of_both_ways_share_a_batch(service: Searching) -> None:
    found = await service.together(
        request(), request(USUAL, BODY.replace(b"7", b"8")), request(body=BODY.replace(b"7", b"9"))
    )
    assert [ids(answer) for answer in found] == [["7"], ["8"], ["9"]]
    assert service.links.batches == [1, 2]


async def begun(service: Searching, *headers: str) -> Client:
    """A client whose search is in the workers."""
    service.links.answer_s = 60.0
    client = await service.client()
    client.writer.write(request((*headers, "X-Request-Id: mine")))
    await service.until(lambda: service.links.batches)
    return client


async def test_a_client_that_leaves_takes_its_search_back(service: Searching) -> None:
    client = await begun(service, *PLAIN)
    admission = service.context.admission
    assert (admission.requests, len(admission.reads), admission.body_bytes) == (1, 1, len(BODY))
    client.writer.close()
    await service.until(lambda: service.served(499) == 1)
    await service.until(lambda: service.links.left == ["mine"])
    assert service.is_at_rest


@pytest.mark.parametrize("headers", [PLAIN, USUAL])
async def test_a_search_is_listed_and_can_be_canceled(service: Searching, headers: tuple[str, ...]) -> None:
    client = await begun(service, *headers)
    running = service.context.running
    (listed,) = running.listed(())
    assert (listed["id"], listed["kind"], listed["client"], listed["state"]) == (
        "mine",
        "vector.search",
        "127.0.0.1",
        "running",
    )
    assert listed["query"] == "collection=default vectors=1 k=1"
    assert running.cancel("mine") == 1
    status, _, body = await client.answer()
    assert (status, json.loads(body)["message"]) == (
        Canceled.status,
        "the query was canceled: DELETE /api/v1/queries/mine",
    )
    assert service.served(Canceled.status) == 1
    await service.until(lambda: service.links.left == ["mine"])
    assert service.is_at_rest


async def test_a_search_ends_at_its_deadline(service: Searching) -> None:
    service.context.vectors._batches._timeout_s = 0.05
    status, _, body = await (await begun(service, *PLAIN)).answer()
    assert (status, json.loads(body)["message"]) == (DeadlineExceeded.status, "the search took longer than 0.05 s")
    assert service.is_at_rest


async def test_a_slow_search_is_in_the_log_of_slow_queries(service: Searching) -> None:
    service.context.slow._after_s = 0.001
    assert (await (await service.client()).ask(request()))[0] == 200
    (told,) = service.context.slow.kept("seconds")
    assert (told["kind"], told["status"]) == ("vector.search", 200)
    assert set(told["states"]) == {"planning", "running", "rendering"}


async def test_failures_of_workers_are_those_of_aiohttp(service: Searching) -> None:
    service.links.failing = True
    assert (await service.both(BODY))[0] == 500
    assert service.served(500) == 2


async def test_while_the_list_of_collections_is_not_known_searches_are_left_to_aiohttp(service: Searching) -> None:
    collections = service.context.vectors._collections
    collections._known.clear()
    assert service.context.vectors.at_hand("default") is None
    client = await service.client()
    client.writer.write(request())
    await asyncio.sleep(0.02)
    assert service.direct == []
    collections._known.set()
    assert ids(await client.answer()) == ["7"]


async def test_a_collection_that_does_not_exist_is_not_at_hand(service: Searching) -> None:
    area = service.context.vectors
    assert area.at_hand("") == area.at_hand("default") == await area.find("default")
    assert area.at_hand("none") is None
    with pytest.raises(NotFound):
        await area.find("none")
