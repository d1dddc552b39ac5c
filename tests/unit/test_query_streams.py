"""Answers on their way out: short ones whole, long ones piece by piece, at the pace of the client."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterator

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer, make_mocked_request

from coordinator.headers.negotiation import accepts_gzip
from coordinator.http import streaming
from coordinator.http.streaming import PIECE_BYTES, Body, Piece, gathered, respond


async def beside(call: Callable[[], Piece | None]) -> Piece | None:
    return await asyncio.to_thread(call)


def numbered(pieces: int) -> Iterator[bytes]:
    for number in range(pieces):
        yield bytes([number]) * PIECE_BYTES


def fetched(chunks: Callable[[], Iterator[bytes]], *, compress: bool = False) -> tuple[bytes, dict[str, str]]:
    """(body, headers) of the response as a client gets it."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return await respond(request, Body(chunks(), gzip=compress and accepts_gzip(request)), beside)

    async def run() -> tuple[bytes, dict[str, str]]:
        app = web.Application()
        app.router.add_get("/", handler)
        async with (
            TestServer(app) as server,
            ClientSession(auto_decompress=False) as session,
            session.get(server.make_url("/"), headers={"Accept-Encoding": "gzip"}) as response,
        ):
            return await response.read(), dict(response.headers)

    return asyncio.run(run())


def test_a_short_answer_is_sent_whole() -> None:
    body, headers = fetched(lambda: iter([b"[1,", b"2]"]))
    assert body == b"[1,2]"
    assert headers["Content-Length"] == "5" and "Content-Encoding" not in headers
    assert headers["Content-Type"].startswith("application/json") and headers["Vary"] == "Accept-Encoding"


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_a_long_answer_comes_in_pieces_in_order_to_its_end(pieces: int) -> None:
    body, headers = fetched(lambda: numbered(pieces))
    assert body == b"".join(numbered(pieces))
    assert headers["Transfer-Encoding"] == "chunked" and headers["Content-Type"] == "application/json"


def test_a_long_answer_is_compressed_for_who_takes_it() -> None:
    body, headers = fetched(lambda: numbered(3), compress=True)
    assert headers["Content-Encoding"] == "gzip" and len(body) < PIECE_BYTES
    assert gzip.decompress(body) == b"".join(numbered(3))


def test_nothing_more_is_made_for_a_client_that_was_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[str] = []

    class Stuck(web.StreamResponse):
        async def prepare(self, request: object) -> None:  # type: ignore[override]
            pass

        async def write(self, data: object) -> None:
            await asyncio.sleep(10)

    async def never(call: Callable[[], Piece | None]) -> Piece | None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append("the piece after it")
            raise
        return None

    monkeypatch.setattr(streaming.web, "StreamResponse", Stuck)

    async def run() -> None:
        waiting = asyncio.create_task(respond(make_mocked_request("GET", "/"), Body(numbered(2), gzip=False), never))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert cancelled == ["the piece after it"]


@pytest.mark.parametrize(
    ("chunks", "pieces"),
    [
        ([], []),
        ([b""], [b""]),
        ([b"abc"], [b"abc"]),
        ([b"ab", b"c"], [b"abc"]),
        ([b"ab"], [b"ab"]),
        ([b"ab", b"cd", b"ef"], [b"abcd", b"ef"]),
        ([b"a", b"b", b"c", b"d", b"e", b"f"], [b"abc", b"def"]),
        ([b"abcdef", b"g", b"hij"], [b"abcdef", b"ghij"]),
    ],
)
def test_chunks_are_gathered_to_pieces_of_at_least_a_size(chunks: list[bytes], pieces: list[bytes]) -> None:
    assert list(gathered(iter(chunks), 3)) == pieces


def test_a_chunk_that_is_a_piece_is_not_copied() -> None:
    chunk = b"abcd"
    assert next(gathered(iter([chunk]), 4)) is chunk
