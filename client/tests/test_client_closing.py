"""What becomes of loops over a client's answers when they are left, and when the client is closed."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from client_server import FakeServer, page, reply

from triptych import AsyncClient

OK = {"status": "success"}


def consumed(request):
    action = request.url.path.rpartition("/")[2]
    joined = reply(200, {**OK, "member": "m", "generation": 1})
    return {"join": joined, "poll": page([(1, b"a", b"1")], 2), "leave": reply(200, OK)}[action]


def actions(server):
    return [request.url.path.rpartition("/")[2] for request in server.requests]


async def test_a_consumer_that_breaks_out_of_its_loop_leaves_before_the_client_is_closed():
    server = FakeServer(consumed)
    async with server.async_client() as client:
        async for _ in client.log.consume("g"):
            break
    assert actions(server) == ["join", "poll", "leave"]
    await asyncio.sleep(0)  # asyncio's own end of the loop sends nothing more
    assert actions(server) == ["join", "poll", "leave"]


async def test_the_end_of_a_client_waits_for_a_consumer_that_is_leaving():
    leaving, left = asyncio.Event(), []

    async def answer(request):
        if request.url.path.endswith("leave"):
            leaving.set()
            await asyncio.sleep(0.01)
            left.append(True)
        return consumed(request)

    async with AsyncClient(http=httpx.AsyncClient(transport=httpx.MockTransport(answer))) as client:
        async for _ in client.log.consume("g"):
            break
        await leaving.wait()
    assert left == [True]


async def test_a_consumer_that_breaks_out_of_its_loop_leaves_while_the_client_goes_on():
    left = asyncio.Event()

    def answer(request):
        if request.url.path.endswith("leave"):
            left.set()
        return consumed(request)

    client = FakeServer(answer).async_client()
    async for _ in client.log.consume("g"):
        break
    await asyncio.wait_for(left.wait(), 10)
    await client.close()


def test_a_consumer_that_outlives_the_client_has_left():
    server = FakeServer(consumed)
    with server.client() as client:
        pages = client.log.consume("g")
        next(pages)
    assert actions(server) == ["join", "poll", "leave"]
    pages.close()
    assert actions(server) == ["join", "poll", "leave"]


def test_a_loop_does_not_end_as_if_all_was_read_when_the_client_is_closed():
    server = FakeServer(page([(1, b"a", b"1"), (2, b"a", b"2")], 3))
    client = server.client()
    records = client.log.scan(prefix="", page_records=2)
    next(records)
    client.close()
    assert next(records).sequence == 2
    with pytest.raises(RuntimeError, match="closed before this was read to its end"):
        next(records)


async def test_an_async_loop_does_not_end_as_if_all_was_read_when_the_client_is_closed():
    server = FakeServer(page([(1, b"a", b"1"), (2, b"a", b"2")], 3))
    client = server.async_client()
    with pytest.raises(RuntimeError, match="closed before this was read to its end"):
        async for _ in client.log.scan(prefix="", page_records=2):
            await client.close()
