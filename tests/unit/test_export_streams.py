"""An export while it is sent: whole or visibly broken off, and never far ahead of its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coordinator.api import export
from coordinator.fanout.calls import WorkerReply
from coordinator.queries.gate import HEAVY
from coordinator.transfer.slices import ExportSelection, slices
from shared.errors import Overloaded, Unavailable
from shared.labels import LabelFrame, Symbols
from shared.messages import exchange
from shared.messages.series_export import Cursor, ExportBody, ExportReply
from shared.promql.model import RangeVector, Samples
from shared.wire import Reply, pack, unpack

WANTED = ExportSelection([()], 0, 1 << 40)


class _Links:
    """Two workers with four shards, of three slices each. `asked`: (shard, cursor) in order."""

    shards = 4

    def __init__(self, damaged: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self._damaged = damaged

    def worker_count(self) -> int:
        return 2

    async def call(self, method: str, *, shards: tuple[int], body: bytes, timeout_s: float) -> list[WorkerReply]:
        after = unpack(body, ExportBody).cursor.after
        self.asked.append((shards[0], after))
        await asyncio.sleep(0)
        labels = LabelFrame.of([{"__name__": f"m{shards[0]}_{after + 1}"}], Symbols())
        samples = Samples(np.array([0, 1]), np.array([after + 1]), np.array([float(shards[0])]))
        shape, frames = exchange.encode(RangeVector(labels, samples, np.zeros(1, dtype=np.bool_)))
        warnings = ["block x is set aside"] if shards[0] == self._damaged else []
        following = Cursor(after + 1) if after < 1 else None
        message = Reply(pack(ExportReply(shape, following)), frames, warnings=warnings)
        return [WorkerReply("worker", shards, message, 0.0)]


async def at_once(ask: Callable[[float], Any]) -> Any:
    return await ask(1.0)


async def test_all_slices_of_all_shards_are_read_and_no_more_than_are_sent() -> None:
    links = _Links()
    names = []
    async for reply in slices(links, WANTED, at_once):  # type: ignore[arg-type]
        await asyncio.sleep(0.001)
        assert len(links.asked) <= len(names) + 1 + 2, "one more of each lane is under way"
        names += [dict(reply.decoded(WANTED).labels.labels(0))["__name__"]]
    assert sorted(names) == [f"m{shard}_{number}" for shard in range(4) for number in range(3)]
    by_shard = [[after for own, after in links.asked if own == shard] for shard in range(4)]
    assert by_shard == [[-1, 0, 1]] * 4


async def test_an_export_that_lacks_a_block_ends_with_an_error() -> None:
    with pytest.raises(Unavailable, match="block x is set aside"):
        async for _ in slices(_Links(damaged=2), WANTED, at_once):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("failure", [Unavailable("the worker is gone"), TypeError("a defect")])
async def test_an_export_that_fails_in_the_middle_does_not_look_whole(failure: Exception) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"second"
        raise failure

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with pytest.raises(ConnectionResetError):  # anything else would be answered once more
            await export._send(request, b"first", pieces())
        return response

    app = web.Application()
    app.router.add_get("/", handler)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            async with session.get(server.make_url("/")) as answer:
                await answer.read()


async def test_an_export_under_way_waits_while_there_is_too_much_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "RETRY_S", 0.0)
    refusals = [Overloaded("busy")] * 3

    class Gate:
        async def run(self, client: str, query: str, deadline: float, attempt: Any, *, is_heavy: bool) -> Any:
            assert is_heavy
            if refusals:
                raise refusals.pop()
            return await attempt(HEAVY)

    async def ask(timeout_s: float) -> str:
        return "a slice"

    context = SimpleNamespace(gate=Gate(), settings=SimpleNamespace(query_timeout_ms=1000))
    running = SimpleNamespace(samples_read=5, is_light=None)
    assert await export._in_turn(context, "client", running, ask) == "a slice"  # type: ignore[arg-type, comparison-overlap]
    refusals.append(Overloaded("busy"))
    running.samples_read = 0
    with pytest.raises(Overloaded):
        await export._in_turn(context, "client", running, ask)  # type: ignore[arg-type]
