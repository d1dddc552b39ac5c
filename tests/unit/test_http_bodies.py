"""Bodies of requests on their way in: together they take a bounded memory, and small ones always have room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.context import CONTEXT
from coordinator.http import bodies
from coordinator.limits import admission
from coordinator.limits.admission import Admission, Holder
from coordinator.limits.clients import Client
from coordinator.limits.connections import Connections
from shared.errors import BadData, Overloaded, TooLarge
from shared.settings import Settings

LIMIT = 10_000
ROOM = 1024
SMALL = 100


class Connection:
    """What `Connections` knows of one, without a socket."""

    def __init__(self, client: Client) -> None:
        self.holder = Holder(client)
        self.head_bytes = 0
        self.has_ended = False

    def end(self) -> None:
        self.has_ended = True

    def unsent_bytes(self) -> int:
        return 0


class Arriving:
    """A request whose chunks come one by one; `None` is the moment to wait for `rest`."""

    content_length = None

    def __init__(self, context: Any, chunks: Iterable[bytes | None], client: Client | None = None) -> None:
        self.app = {CONTEXT: context}
        self.headers = {"Content-Encoding": ""}
        self.content = self
        self.rest = asyncio.Event()
        self.protocol = Connection(client or Client("elsewhere"))
        self._chunks = chunks
        context.connections.open.add(self.protocol)
        context.admission.enter(self.protocol.holder, may_use_reserve=True)

    def is_eof(self) -> bool:
        return False

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            if chunk is None:
                await self.rest.wait()
            else:
                yield chunk

    def answered(self) -> None:
        self.app[CONTEXT].admission.leave(self.protocol.holder)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Room for 1,024 bytes, an eighth of which is kept for bodies of at most 100 bytes; 75 % of it for one client."""
    monkeypatch.setattr(admission, "SMALL_BODY_BYTES", SMALL)
    settings = Settings(bodies_bytes_max=ROOM, requests_in_flight_max=10)
    made = Admission(settings)
    return SimpleNamespace(settings=settings, admission=made, connections=Connections(settings, made, 100))


def read(request: Any) -> Any:
    return bodies.read_body(request, LIMIT)


async def begun(request: Arriving) -> asyncio.Task[bytes]:
    task = asyncio.create_task(read(request))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_large_bodies_that_hang_leave_room_for_small_ones(context: Any) -> None:
    hanging = Arriving(context, [bytes(400), bytes(400), None, b"end"])
    first = await begun(hanging)
    assert context.admission.body_bytes == 800
    small = [Arriving(context, [bytes(60), bytes(40)]), Arriving(context, [bytes(100)])]
    assert await read(small[0]) == bytes(100)
    with pytest.raises(Overloaded, match=r"bodies of 900 bytes .* 896 \(TRIPTYCH_BODIES.* at most 100 bytes"):
        await read(Arriving(context, [bytes(101)]))
    assert await read(small[1]) == bytes(100)
    assert context.admission.body_bytes == 1000
    for request in small:
        request.answered()
    hanging.rest.set()
    assert await first == bytes(800) + b"end"
    hanging.answered()
    assert context.admission.body_bytes == 0


async def test_one_client_leaves_room_for_the_bodies_of_others(context: Any) -> None:
    greedy = Client("10.0.0.1")
    await begun(Arriving(context, [bytes(700), None], greedy))
    with pytest.raises(Overloaded, match=r"bodies of 700 bytes .* limit is 768 .*10\.0\.0\.1.*CLIENT_SHARE"):
        await read(Arriving(context, [bytes(150)], greedy))
    assert await read(Arriving(context, [bytes(150)])) == bytes(150)
    assert await read(Arriving(context, [bytes(90)], greedy)) == bytes(90)


async def test_bytes_are_held_until_the_request_has_been_answered(context: Any) -> None:
    request = Arriving(context, [bytes(500)])
    await read(request)
    bodies.hold(request, 300)
    assert context.admission.body_bytes == 800
    with pytest.raises(Overloaded):
        await read(Arriving(context, [bytes(200)]))
    request.answered()
    assert context.admission.body_bytes == 0


async def test_slow_small_bodies_give_way_to_new_ones(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [Arriving(context, [bytes(100), None], Client(str(n))) for n in range(9)]
    for request in slow:
        await begun(request)
    last = Arriving(context, [bytes(100), None])
    await begun(last)
    with pytest.raises(Overloaded, match="bodies of 1000 bytes are held, the limit is 1024"):
        await read(Arriving(context, [bytes(99)]))
    assert not any(request.protocol.has_ended for request in slow)
    monkeypatch.setattr("coordinator.limits.connections.FRESH_S", -1.0)
    assert await read(Arriving(context, [bytes(99)])) == bytes(99)
    assert [request.protocol.has_ended for request in slow] == [True] + [False] * 8
    assert context.admission.body_bytes == 999


async def test_one_body_alone_may_be_as_large_as_its_limit(context: Any) -> None:
    request = Arriving(context, [bytes(1000)] * 10)
    assert len(await read(request)) == LIMIT
    request.answered()
    request = Arriving(context, [bytes(1000)] * 11)
    with pytest.raises(TooLarge):
        await read(request)
    request.answered()
    assert context.admission.body_bytes == 0


async def test_who_goes_away_gives_the_room_back(context: Any) -> None:
    request = Arriving(context, [bytes(1000), None])
    task = await begun(request)
    assert context.admission.body_bytes == 1000
    assert (context.admission.requests, len(context.connections.bodies)) == (0, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (context.admission.requests, len(context.connections.bodies)) == (1, 0)
    request.answered()
    assert (context.admission.requests, context.admission.body_bytes) == (0, 0)


async def test_a_request_whose_body_arrives_is_not_in_flight(context: Any) -> None:
    slow = [Arriving(context, [b"a", None], Client(str(n))) for n in range(10)]
    tasks = [await begun(request) for request in slow]
    assert context.admission.requests == 0
    served = [Arriving(context, [b"a"], Client(str(n))) for n in range(10)]
    slow[0].rest.set()
    with pytest.raises(Overloaded, match="10 requests are in flight, the limit is 10"):
        await tasks[0]
    slow[0].answered()
    served[0].answered()
    slow[1].rest.set()
    assert await tasks[1] == b"a"


async def test_a_body_must_keep_up_a_rate(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(bodies, "BODY_BYTES_PER_S_MIN", 1000)
    with pytest.raises(BadData, match=r"did not arrive within 0\.05 s and 1 s for each 1000 bytes; 1 bytes of it did"):
        await read(Arriving(context, [b"a", None]))
    fast = Arriving(context, [bytes(500), None, b"end"])
    task = await begun(fast)
    await asyncio.sleep(0.2)
    fast.rest.set()
    assert await task == bytes(500) + b"end"


class Arrived:
    """A request whose body is all there, `content_length` unknown."""

    content_length = None

    def __init__(self, context: Any, body: bytes) -> None:
        self.app = {CONTEXT: context}
        self.headers = {"Content-Encoding": ""}
        self.protocol = Connection(Client("elsewhere"))
        self.content = SimpleNamespace(is_eof=lambda: True, read_nowait=lambda: body)


def test_a_body_that_is_there_is_taken_at_once_within_the_same_limit(context: Any) -> None:
    assert asyncio.run(read(Arrived(context, bytes(LIMIT)))) == bytes(LIMIT)
    with pytest.raises(TooLarge):
        asyncio.run(read(Arrived(context, bytes(LIMIT + 1))))
    assert context.admission.body_bytes == LIMIT
