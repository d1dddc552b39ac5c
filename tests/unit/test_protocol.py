"""Which requests of a connection wait for their turn, unread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from coordinator.headers.cors import Cors
from coordinator.http.protocol import Connection, Server
from coordinator.limits.admission import Admission
from coordinator.limits.connections import Connections
from shared.settings import Settings

FIRST, SECOND = (f"GET /{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for name in ("first", "second"))
CONNECTIONS = 10


class Wire(asyncio.Transport):
    """Keeps what is written. `written`: called for each piece."""

    def __init__(self, written: Callable[[], None]) -> None:
        super().__init__()
        self.data = b""
        self._written = written

    def write(self, data: Any) -> None:
        self.data += bytes(data)
        self._written()

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        pass

    close = abort

    @property
    def answers(self) -> int:
        return self.data.count(b"HTTP/1.1 200")


class Rig:
    """One connection in a service in which all but the first request have to wait."""

    def __init__(self, cors_origin: str = "") -> None:
        self.waiting: list[str] = []
        self.go = asyncio.Event()
        self.go.set()
        settings = Settings(cors_origin=cors_origin)
        self.pressure = pressure = SimpleNamespace(
            is_on=True,
            memory_refusal=lambda path: "",
            has_to_wait=lambda path: path != "/first",
            bounds_now=lambda: True,
        )
        room = SimpleNamespace(
            enter=lambda visitor, client, path: self.waiting.append(path),
            leave=lambda visitor: bool(self.waiting and self.waiting.pop()),
        )
        access = SimpleNamespace(tls=None, headers={}, header_lines=b"")
        self.registry = registry = Connections(settings, Admission(settings), CONNECTIONS)
        server = Server(self._answer, registry, pressure, room, access, Cors(settings))  # type: ignore[arg-type]
        self.connection = server()
        assert isinstance(self.connection, Connection)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        await self.go.wait()
        return web.Response(text=request.path)

    def connect(self, written: Callable[[], None]) -> Wire:
        wire = Wire(written)
        self.connection.connection_made(wire)
        return wire


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_true():
            await asyncio.sleep(0.001)


async def test_a_request_that_comes_as_soon_as_the_one_before_it_is_answered_waits_for_its_turn() -> None:
    rig = Rig()
    loop = asyncio.get_running_loop()

    def written() -> None:
        if wire.answers == 1:
            loop.call_soon(rig.connection.data_received, SECOND)  # before aiohttp waits for the next request

    wire = rig.connect(written)
    rig.connection.data_received(FIRST)
    await until(lambda: rig.waiting == ["/second"])
    assert wire.answers == 1
    rig.connection.go_on()
    await until(lambda: wire.answers == 2)
    rig.connection.connection_lost(None)


async def test_the_first_request_of_a_connection_waits_for_its_turn() -> None:
    rig = Rig()
    wire = rig.connect(lambda: None)
    rig.connection.data_received(SECOND)  # before aiohttp has begun with the connection
    assert rig.waiting == ["/second"]
    rig.connection.go_on()
    await until(lambda: wire.answers == 1)
    rig.connection.connection_lost(None)


async def test_a_request_behind_one_that_is_not_answered_does_not_wait_in_the_room() -> None:
    rig = Rig()
    rig.go.clear()
    wire = rig.connect(lambda: None)
    rig.connection.data_received(FIRST)
    rig.connection.data_received(SECOND)
    await asyncio.sleep(0.01)
    rig.connection.data_received(SECOND)
    assert rig.waiting == []
    rig.go.set()
    await until(lambda: wire.answers == 3)
    rig.connection.connection_lost(None)


async def test_a_body_that_is_taken_has_nothing_parsed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    parsed: list[bytes] = []
    receive = Connection.data_received
    monkeypatch.setattr(Connection, "data_received", lambda self, data: (parsed.append(data), receive(self, data)))

    async def read_and_answer(request: web.BaseRequest) -> web.Response:
        assert await request.read() == b"body"
        return web.Response()

    rig.connection._request_handler = read_and_answer
    wire = rig.connect(lambda: None)
    whole = b"POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
    rig.connection.data_received(whole)
    await until(lambda: wire.answers == 1)
    assert parsed == [whole]
    rig.connection.connection_lost(None)


@pytest.mark.parametrize(
    ("target", "reads"),
    [("/api/v1/query?query=up", 1), ("/api/v1/write", 0), ("/api/v1/write?x=1", 0), ("http://a/api/v1/write?x=1", 0)],
)
async def test_what_a_request_is_does_not_depend_on_its_parameters(target: str, reads: int) -> None:
    rig = Rig()
    rig.go.clear()
    rig.pressure.has_to_wait = lambda path: False
    rig.connect(lambda: None)
    rig.connection.data_received(f"POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode())
    assert len(rig.registry.admission.reads) == reads
    rig.connection.connection_lost(None)


@pytest.mark.parametrize(
    ("origin", "is_allowed"), [("https://wiki.example", True), ("https://evil.example", False), ("", False)]
)
async def test_a_page_that_may_read_answers_reads_a_refusal_before_its_request_is_read(
    origin: str, is_allowed: bool
) -> None:
    rig = Rig(cors_origin=r"https://wiki\.example")
    wire = rig.connect(lambda: None)
    origin_line = f"\r\nORIGIN:  {origin} \r\n".encode() if origin else b"\r\n"
    body = b"Origin: https://wiki.example\r\n"
    head = (
        b"POST /second HTTP/1.1\r\nHost: localhost" + origin_line + b"Content-Length: %d\r\n\r\n\r\n" % (len(body) + 2)
    )
    rig.connection.data_received(head + body)
    assert rig.waiting == ["/second"]
    rig.connection.turn_away("too much")
    lines = wire.data.decode().partition("\r\n\r\n")[0].split("\r\n")
    assert lines[0] == "HTTP/1.1 503 Service Unavailable"
    headers = dict(line.split(": ") for line in lines[1:])
    assert headers.get("Access-Control-Allow-Origin") == (origin if is_allowed else None)
    assert ("Retry-After" in headers.get("Access-Control-Expose-Headers", "")) == is_allowed
    assert headers["Vary"] == "Origin"
    rig.connection.connection_lost(None)


async def test_a_refusal_says_nothing_of_origins_where_no_page_may_read_answers() -> None:
    rig = Rig()
    wire = rig.connect(lambda: None)
    rig.connection.data_received(SECOND.replace(b"Host", b"Origin: https://wiki.example\r\nHost"))
    rig.connection.turn_away("too much")
    assert b"503" in wire.data and b"Access-Control" not in wire.data and b"Vary" not in wire.data
    rig.connection.connection_lost(None)
