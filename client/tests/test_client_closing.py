"""What becomes of loops over a client's answers when they are left, and when the client is closed."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
from client_server import FakeServer, forking, in_a_fork, is_soon_over, page, reply

from triptych import AsyncClient, Client

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


def test_an_interrupt_while_a_consumer_leaves_does_not_keep_the_client_open():
    def answer(request):
        if request.url.path.endswith("leave"):
            raise KeyboardInterrupt
        return consumed(request)

    http = httpx.Client(transport=httpx.MockTransport(answer))
    client = Client(http=http)
    pages = client.log.consume("g")
    next(pages)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert http.is_closed


@forking
@pytest.mark.parametrize("end", ["client", "pages"])
def test_a_forked_process_does_not_take_its_parents_consumer_out_of_the_group(end):
    server = FakeServer(consumed)
    with server.client() as client:
        pages = client.log.consume("g")
        next(pages)

        def close():
            {"client": client, "pages": pages}[end].close()
            return actions(server)

        assert in_a_fork(close) == "['join', 'poll']"
        next(pages)
    assert actions(server) == ["join", "poll", "poll", "leave"]


@forking
def test_a_forked_process_closes_its_client_whatever_its_parents_threads_were_doing():
    client = Client("http://127.0.0.1:1")
    lock = client._transport._http._transport._pool._optional_thread_lock
    held, forked = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            forked.wait(10)

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait(10)
    try:
        assert in_a_fork(lambda: is_soon_over(client.close)) == "True"
    finally:
        forked.set()
        holding.join()
        client.close()


async def test_a_consumer_that_is_cancelled_when_its_answer_comes_ends():
    polls = 0

    async def answer(request):
        nonlocal polls
        await asyncio.sleep(0)
        if request.url.path.endswith("poll"):
            polls += 1
            assert polls < 5, "the cancellation is lost"
            if polls == 2:
                asyncio.get_running_loop().call_soon(consuming.cancel)
        return consumed(request)

    async def consume():
        async for _ in client.log.consume("g"):
            pass

    client = AsyncClient(http=httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    consuming = asyncio.ensure_future(consume())
    with pytest.raises(asyncio.CancelledError):
        await consuming
    await client.close()


async def test_an_async_loop_that_waits_for_its_answer_is_told_that_the_client_is_closed():
    polled, closed = asyncio.Event(), asyncio.Event()

    async def answer(request):
        if request.url.path.endswith("poll"):
            polled.set()
            await closed.wait()
        return consumed(request)

    client = AsyncClient(http=httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    consuming = asyncio.ensure_future(client.log.consume("g").__anext__())
    await polled.wait()
    await client.close()
    closed.set()
    with pytest.raises(RuntimeError, match="closed before this was read to its end"):
        await consuming
