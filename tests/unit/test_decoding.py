"""Large bodies are decoded a few at a time, and what was made of a refused one is let go at once."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from coordinator.limits import decoding
from coordinator.limits.clients import CURRENT_CLIENT
from coordinator.limits.decoding import HUGE_BYTES_MIN, LARGE_DECODINGS_MAX, Decodings
from shared.errors import BadData, Unavailable


class Work:
    """Work that lasts until `end` is set, and notes how many run at once."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.running = self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.end.wait(10)
        with self._lock:
            self.running -= 1
        return "done"

    async def begun(self, count: int) -> None:
        give_up = time.monotonic() + 10
        while self.running < count:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("size", "most"), [(1, LARGE_DECODINGS_MAX), (HUGE_BYTES_MIN, 1)])
async def test_so_many_bodies_are_decoded_at_once(size: int, most: int) -> None:
    decodings, work = Decodings(), Work()
    requests = [asyncio.create_task(decodings.run(size, work)) for _ in range(5)]
    await work.begun(most)
    await asyncio.sleep(0.02)
    assert work.running == most
    work.end.set()
    assert await asyncio.gather(*requests) == ["done"] * 5
    assert work.most == most


async def test_a_body_that_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "DECODING_WAIT_S", 0.02)
    decodings, work = Decodings(), Work()
    requests = [asyncio.create_task(decodings.run(1, work)) for _ in range(LARGE_DECODINGS_MAX)]
    await work.begun(LARGE_DECODINGS_MAX)
    for size in (1, HUGE_BYTES_MIN):
        with pytest.raises(Unavailable, match=r"2 large bodies are being decoded, .* longer than 0.02 s; try again"):
            await decodings.run(size, work)
    work.end.set()
    await asyncio.gather(*requests)
    assert await decodings.run(HUGE_BYTES_MIN, work) == "done"


async def test_a_turn_ends_with_the_work_even_when_its_client_goes_away() -> None:
    decodings, work = Decodings(), Work()
    requests = [asyncio.create_task(decodings.run(1, work)) for _ in range(LARGE_DECODINGS_MAX)]
    await work.begun(LARGE_DECODINGS_MAX)
    for request in requests:
        request.cancel()
    waiting = asyncio.create_task(decodings.run(1, work))
    await asyncio.sleep(0.02)
    assert not waiting.done() and work.running == LARGE_DECODINGS_MAX
    work.end.set()
    assert await waiting == "done"
    assert work.most == LARGE_DECODINGS_MAX


async def test_a_client_that_sends_many_bodies_does_not_keep_the_others_waiting() -> None:
    decodings = Decodings()
    order: list[str] = []
    ends = [threading.Event() for _ in range(LARGE_DECODINGS_MAX)]

    def asked_by(client: str, decode: Callable[[], object]) -> asyncio.Task[object]:
        context = contextvars.copy_context()
        context.run(CURRENT_CLIENT.set, client)
        return asyncio.get_running_loop().create_task(decodings.run(1, decode), context=context)

    requests = [asked_by("many", partial(end.wait, 10)) for end in ends]
    requests += [asked_by("many", lambda: order.append("many")) for _ in range(5)]
    await asyncio.sleep(0.01)
    requests += [asked_by("one", lambda: order.append("one")) for _ in range(2)]
    await asyncio.sleep(0.01)
    ends[0].set()
    await asyncio.wait_for(asyncio.gather(*requests[LARGE_DECODINGS_MAX:]), 10)
    assert order == ["one"] * 2 + ["many"] * 5
    ends[1].set()
    await asyncio.gather(*requests)


async def test_a_turn_is_not_given_to_a_request_that_was_canceled_a_moment_ago() -> None:
    decodings, work, other = Decodings(), Work(), Work()
    requests = [asyncio.create_task(decodings.run(1, work)) for _ in range(LARGE_DECODINGS_MAX)]
    leaving, staying = (asyncio.create_task(decodings.run(1, other)) for _ in range(2))
    await work.begun(LARGE_DECODINGS_MAX)
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    # The threads report their end while the loop is held up, and the request is canceled right behind that.
    loop.call_soon(work.end.set)
    loop.call_soon(time.sleep, 0.02)
    loop.call_soon(lambda: loop.call_soon(leaving.cancel))
    other.end.set()
    assert await asyncio.wait_for(staying, 5) == "done"
    assert await asyncio.gather(*requests) == ["done"] * LARGE_DECODINGS_MAX
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert not failures


async def test_what_a_refused_body_was_made_into_is_let_go_at_once() -> None:
    kept: list[weakref.ref[np.ndarray]] = []

    def refuse() -> None:
        made = np.zeros(10)
        kept.append(weakref.ref(made))
        try:
            raise KeyError(made)
        except KeyError as error:
            raise BadData("no") from error

    gc.disable()
    try:
        with pytest.raises(BadData, match="no") as caught:
            await Decodings().run(1, refuse)
        assert caught.value.__cause__ is None
        assert kept[0]() is None
    finally:
        gc.enable()
