"""Endpoints whose small requests are served without aiohttp, over areas of a test, and clients of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from aiohttp import web

from coordinator.context import CONTEXT, Context
from coordinator.dispatch import Dispatcher
from coordinator.fanout.calls import Waits
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.queries.gate import Gate
from coordinator.watching.telemetry import Telemetry
from shared.settings import Settings

T = TypeVar("T")

PLAIN = ("Host: localhost", "Content-Type: application/json", "Accept: */*", "User-Agent: a client")
USUAL = (*PLAIN, "X-Other: of aiohttp")
WITHIN_S = 5.0


def post(path: str, headers: Iterable[str], body: bytes) -> bytes:
    """A request as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def get(target: str, headers: Iterable[str] = ("Host: localhost", "Accept: */*")) -> bytes:
    """As `post`, of a request without a body."""
    return "\r\n".join([f"GET {target} HTTP/1.1", *headers, "", ""]).encode()


def prompt(work: Coroutine[Any, Any, T]) -> PromptFuture[T]:
    """The result of `work`, which ends when the future is cancelled."""
    result, task = PromptFuture[T](), asyncio.ensure_future(work)

    def over(_: object) -> None:
        if result.done():
            return
        error = task.exception()
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(task.result())

    task.add_done_callback(over)
    result.add_done_callback(lambda _: task.cancel() if result.cancelled() else None)
    return result


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def ask(self, message: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(message)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(WITHIN_S):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines[1:-2])
            status = int(lines[0].split()[1])
            if headers.get("Transfer-Encoding") == "chunked":
                return status, headers, b"".join([chunk async for chunk in self._chunks()])
            return status, headers, await self._reader.readexactly(int(headers.get("Content-Length", "0")))

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()


class Service:
    """The endpoint at `path`, with a log or an area of vectors that the test gives. `direct`: how many requests came
    without aiohttp, as far as the test counts them."""

    direct: int = 0

    def __init__(self, path: str, routes: Iterable[web.RouteDef], log: Any = None, vectors: Any = None) -> None:
        links = SimpleNamespace(states=list, workers=list, waits=Waits(), pause_background=lambda: None, shards=4)
        self.log = log
        self.context = Context(Settings(), links, Telemetry(), log, vectors, None, Gate(1))  # type: ignore[arg-type]
        self.path, self._routes = path, routes
        self.runner: Any = None
        self.clients: list[Client] = []

    async def start(self) -> None:
        app = web.Application()
        app[CONTEXT] = self.context
        app.add_routes(self._routes)
        server = Dispatcher(app).server(access_log=None, handler_cancellation=True)
        self.runner = web.ServerRunner(server, shutdown_timeout=WITHIN_S)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()

    async def stop(self) -> None:
        for client in self.clients:
            client.writer.close()
        await self.runner.cleanup()

    async def client(self) -> Client:
        """A client whose connection aiohttp waits on for the first request."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.runner.addresses[0][1]))
        await self.until(lambda: any(c._waiter for c in self.context.connections.open))  # type: ignore[attr-defined]
        self.clients.append(client)
        await asyncio.sleep(0.01)
        return client

    def count(self, monkeypatch: pytest.MonkeyPatch, work: type) -> None:
        """Count the requests for which work of this class is begun as direct ones."""
        begin = work.begin  # type: ignore[attr-defined]

        def counted(*arguments: Any) -> Any:
            self.direct += 1
            return begin(*arguments)

        monkeypatch.setattr(work, "begin", counted)

    async def both(self, usual: bytes, direct: bytes) -> tuple[int, dict[str, str], bytes]:
        """The answer, which is the same with aiohttp, twice, and without it."""
        client = await self.client()
        answers = []
        for message, is_direct in ((usual, False), (usual, False), (direct, True)):
            before = self.direct
            status, headers, body = await client.ask(message)
            assert self.direct - before == is_direct
            for name in ("Date", "X-Request-Id"):
                headers.pop(name)
            answers.append((status, headers, body))
        assert answers[0] == answers[1] == answers[2]
        assert [list(headers) for _, headers, _ in answers[1:]] == 2 * [list(answers[0][1])]
        return answers[0]

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                await asyncio.sleep(0.001)

    def served(self, status: int, method: str = "POST") -> int:
        return self.context.telemetry._requests.get((method, self.path, status), 0)

    @property
    def is_at_rest(self) -> bool:
        admission = self.context.admission
        at_work = len(admission.reads) + len(admission.writes)
        held = (admission.requests, admission.announced, admission.body_bytes, at_work)
        return held == (0, 0, 0, 0) and not len(self.context.running)
