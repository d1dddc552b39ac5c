"""Pieces of a long answer."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from aiohttp import web

from coordinator.http.streaming import PIECE_BYTES, Body, Piece, gathered, respond
from tests.unit.direct_service import USUAL, Service, get


def test_chunks_are_gathered_into_pieces_of_a_size() -> None:
    assert list(gathered(iter([b"ab", b"cd", b"e", b"fghij", b"k"]), 4)) == [b"abcd", b"efghij", b"k"]
    assert list(gathered(iter([b"ab", b"cd"]), 4)) == [b"abcd"]
    assert list(gathered(iter([]), 4)) == []


@pytest.mark.parametrize("size", [1, 15])
def test_a_piece_that_was_given_away_is_not_held(size: int) -> None:
    held: list[weakref.ref[np.ndarray]] = []

    def chunk(_: int) -> memoryview:
        array = np.zeros(10, np.uint8)
        held.append(weakref.ref(array))
        return memoryview(array)

    pieces: Iterator[object] = gathered(map(chunk, range(9)), size)
    next(pieces)
    assert [one() for one in held] == [None] * len(held)
    assert held


@pytest.mark.parametrize("gzip", [False, True])
async def test_the_answer_to_head_has_no_body_and_holds_nothing(gzip: bool) -> None:
    released: list[str] = []

    def chunks() -> Iterator[Piece]:
        try:
            for _ in range(9):
                yield np.random.default_rng(1).bytes(PIECE_BYTES)
        finally:
            released.append("what the body is made from")

    async def beside(call: Callable[[], Piece | None]) -> Piece | None:
        return await asyncio.to_thread(call)

    async def long(request: web.Request) -> web.StreamResponse:
        body = Body(chunks(), gzip=gzip)
        response = await respond(request, body, beside, lambda: released.append("its account"))
        assert len(released) == 2 and not body.first
        return response

    async def short(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    service = Service("/long", [web.get("/long", long), web.get("/short", short)])
    await service.start()
    try:
        client = await service.client()
        client.writer.write(get("/long", USUAL).replace(b"GET", b"HEAD"))
        head = (await client._reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 200") and ("Content-Encoding: gzip" in head) == gzip
        assert (await client.ask(get("/short", USUAL)))[::2] == (200, b"ok")
    finally:
        await service.stop()
