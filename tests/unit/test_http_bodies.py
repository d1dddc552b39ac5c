"""Bodies of requests on their way in: together they take a bounded memory, and small ones always have room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import bodies
from coordinator.context import CONTEXT
from shared.config import Settings
from shared.errors import Overloaded, TooLarge

LIMIT = 10_000


class Arriving:
    """A request whose chunks come one by one; `None` is the moment to wait for `rest`."""

    content_length = None

    def __init__(self, context: Any, chunks: Iterable[bytes | None]) -> None:
        self.app = {CONTEXT: context}
        self.headers = {"Content-Encoding": ""}
        self.content = self
        self.rest = asyncio.Event()
        self._chunks = chunks

    def is_eof(self) -> bool:
        return False

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            if chunk is None:
                await self.rest.wait()
            else:
                yield chunk


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Room for 1,000 bytes, and a share of 100 bytes for each of ten requests."""
    monkeypatch.setattr(bodies, "BODIES_BYTES_MAX", 1000)
    return SimpleNamespace(settings=Settings(requests_in_flight_max=10), body_bytes=0)


def read(request: Any) -> Any:
    return bodies.read_body(request, LIMIT)


def test_large_bodies_that_hang_leave_room_for_small_ones(context: Any) -> None:
    async def run() -> None:
        hanging = Arriving(context, [bytes(500), bytes(500), None, b"end"])
        first = asyncio.create_task(read(hanging))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert context.body_bytes == 900
        assert await read(Arriving(context, [bytes(60), bytes(40)])) == bytes(100)
        assert await read(Arriving(context, [bytes(200)])) == bytes(200)
        with pytest.raises(
            Overloaded, match=r"large bodies of 1000 bytes are arriving, the limit is 1000; .* 100 bytes"
        ):
            await read(Arriving(context, [bytes(200), bytes(1)]))
        assert context.body_bytes == 900
        hanging.rest.set()
        assert await first == bytes(1000) + b"end"
        assert context.body_bytes == 0

    asyncio.run(run())


def test_one_body_alone_may_be_as_large_as_its_limit(context: Any) -> None:
    assert len(asyncio.run(read(Arriving(context, [bytes(1000)] * 10)))) == LIMIT
    with pytest.raises(TooLarge):
        asyncio.run(read(Arriving(context, [bytes(1000)] * 11)))
    assert context.body_bytes == 0


def test_who_goes_away_gives_the_room_back(context: Any) -> None:
    async def run() -> None:
        task = asyncio.create_task(read(Arriving(context, [bytes(1000), None])))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert context.body_bytes == 900
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert context.body_bytes == 0

    asyncio.run(run())


class Arrived:
    """A request whose body is all there, `content_length` unknown."""

    content_length = None

    def __init__(self, context: Any, body: bytes) -> None:
        self.app = {CONTEXT: context}
        self.headers = {"Content-Encoding": ""}
        self.content = SimpleNamespace(is_eof=lambda: True, read_nowait=lambda: body)


def test_a_body_that_is_there_is_taken_at_once_within_the_same_limit(context: Any) -> None:
    assert asyncio.run(read(Arrived(context, bytes(LIMIT)))) == bytes(LIMIT)
    with pytest.raises(TooLarge):
        asyncio.run(read(Arrived(context, bytes(LIMIT + 1))))
    assert context.body_bytes == 0
