"""What goes over the connection: the same bytes as aiohttp's, whichever way they are written; and who is called."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http import SERVER_SOFTWARE
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from coordinator.api import openapi, page
from coordinator.context import CONTEXT, Context
from coordinator.dispatch import Dispatcher
from coordinator.fanout.calls import Waits
from coordinator.http import responses
from coordinator.limits.clients import CURRENT_CLIENT
from coordinator.limits.pressure import CROWD
from coordinator.queries.gate import Gate
from coordinator.ui import files
from coordinator.watching.telemetry import Telemetry
from shared import errors
from shared.settings import Settings

Ask = Callable[[str], Awaitable[bytes]]


async def text(request: web.Request) -> web.Response:
    return web.Response(text="Grüße\n")


async def nothing(request: web.Request) -> web.Response:
    return web.Response(status=204)


async def empty(request: web.Request) -> web.Response:
    return web.Response()


async def headed(request: web.Request) -> web.Response:
    headers = CIMultiDict([("Vary", "Accept-Encoding"), ("X-Two", "a"), ("X-Two", "b")])
    return web.Response(body=b"{}", content_type="application/json", headers=headers, status=503)


async def long(request: web.Request) -> web.Response:
    return web.Response(body=bytes(responses.BODY_BYTES_MAX + 1))


async def split(request: web.Request) -> web.Response:
    return web.Response(body=b"x", headers={"X-Split": "a\r\nX-Injected: b"})


async def named(request: web.Request) -> web.Response:
    return web.Response(text=request.match_info["name"])


async def body(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


async def whose(request: web.Request) -> web.Response:
    return web.Response(text=CURRENT_CLIENT.get())


HANDLERS = {"/text": text, "/nothing": nothing, "/empty": empty, "/headed": headed, "/long": long, "/split": split}


def context() -> Any:
    links = SimpleNamespace(states=list, workers=list, waits=Waits(), pause_background=lambda: None)
    return Context(Settings(), links, Telemetry(), *[None] * 3, Gate(1))  # type: ignore[arg-type]


@pytest.fixture
async def served() -> AsyncIterator[SimpleNamespace]:
    """`ask`: the bytes that come back for a message; `plain`: aiohttp's own for it, without anything of ours."""
    app, plain = web.Application(), web.Application()
    app[CONTEXT] = context()
    for routes in (app, plain):
        routes.add_routes([web.get(path, handler) for path, handler in HANDLERS.items()])
        routes.add_routes([web.get("/named/{name}", named), web.post("/body", body), web.get("/whose", whose)])
    runners: list[Any] = [web.ServerRunner(Dispatcher(app).server(access_log=None)), web.AppRunner(plain)]
    asks = []
    for runner in runners:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        asks.append(_asking(runner.addresses[0][1]))
    port = runners[0].addresses[0][1]
    yield SimpleNamespace(ask=asks[0], plain=asks[1], context=app[CONTEXT], port=port)
    for runner in runners:
        await runner.cleanup()


def _asking(port: int) -> Ask:
    async def ask(message: str) -> bytes:
        """All that comes until the server has been silent for a moment, or closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(message.encode())
        heard = b""
        try:
            async with asyncio.timeout(5):
                heard = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(0.1):
                while piece := await reader.read(1 << 20):
                    heard += piece
        except (TimeoutError, asyncio.IncompleteReadError):
            pass
        writer.close()
        return heard

    return ask


def parts(answer: bytes) -> tuple[bytes, list[bytes], bytes]:
    """(status line, sorted headers without the time, body)."""
    head, _, content = answer.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    assert sum(header.startswith(b"Date: ") for header in headers) == 1
    return status, sorted(header for header in headers if not header.startswith(b"Date: ")), content


@pytest.mark.parametrize("path", ["/text", "/nothing", "/empty", "/headed", "/long", "/named/one"])
@pytest.mark.parametrize(
    ("method", "version", "more"),
    [("GET", "1.1", ""), ("HEAD", "1.1", ""), ("GET", "1.0", ""), ("GET", "1.1", "Connection: close\r\n")],
)
async def test_a_response_is_the_one_aiohttp_would_have_written(
    served: SimpleNamespace, path: str, method: str, version: str, more: str
) -> None:
    message = f"{method} {path} HTTP/{version}\r\nHost: localhost\r\n{more}\r\n"
    plain = (await served.plain(message)).replace(SERVER_SOFTWARE.encode(), b"Triptych")
    own = await served.ask(message)
    id_line = re.compile(rb"\r\nX-Request-Id: [^\r]+(?=\r\n)")
    assert len(id_line.findall(own.partition(b"\r\n\r\n")[0] + b"\r\n")) == 1
    assert parts(id_line.sub(b"", own, count=1)) == parts(plain)


async def test_requests_one_behind_the_other_are_answered_in_their_order(served: SimpleNamespace) -> None:
    message = "".join(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n" for path in ("/text", "/nothing", "/named/b", "/text")
    )
    answer = await served.ask(message)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"204", b"200", b"200"]
    assert answer.endswith("Grüße\n".encode())


async def test_a_header_cannot_be_split_into_two(served: SimpleNamespace) -> None:
    answer = await served.ask("GET /split HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"X-Injected" not in answer.split(b"\r\n\r\n")[0].replace(b"X-Split", b"")


async def test_who_waits_to_send_a_body_is_told_to_go_on(served: SimpleNamespace) -> None:
    head = "POST /body HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert (await served.ask(head)).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert (await served.ask(head + "ab")).endswith(b"\r\n\r\nab")


async def test_requests_are_counted_by_route_with_their_times(served: SimpleNamespace) -> None:
    for path in ("/text", "/text", "/named/one", "/missing"):
        await served.ask(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await served.ask("GET /text HTTP/1.1\r\nHost: another.example\r\n\r\n")
    lines = served.context.telemetry.text().decode().splitlines()
    assert 'triptych_http_requests_total{method="GET",path="/text",status="200"} 2.0' in lines
    assert 'triptych_http_requests_total{method="GET",path="/text",status="403"} 1.0' in lines
    assert 'triptych_http_requests_total{method="GET",path="/named/{name}",status="200"} 1.0' in lines
    assert 'triptych_http_requests_total{method="GET",path="other",status="404"} 1.0' in lines
    assert 'triptych_http_request_duration_seconds_bucket{le="0.001",path="/text"}' in "\n".join(lines)
    assert 'triptych_http_request_duration_seconds_bucket{le="+Inf",path="/text"} 3.0' in lines
    assert 'triptych_http_request_duration_seconds_count{path="/text"} 3.0' in lines


def test_a_time_on_a_bound_is_within_it() -> None:
    telemetry = context().telemetry
    for seconds in (0.001, 0.0011, 1000.0):
        telemetry.served("GET", "/", 200, seconds)
    name = "triptych_http_request_duration_seconds"
    buckets = {
        line.split('le="')[1].split('"')[0]: float(line.split()[-1])
        for line in telemetry.text().decode().splitlines()
        if line.startswith(name + "_bucket")
    }
    assert (buckets["0.001"], buckets["0.0025"], buckets["120.0"], buckets["+Inf"]) == (1, 2, 2, 3)
    assert f'{name}_sum{{path="/"}} {0.001 + 0.0011 + 1000.0}' in telemetry.text().decode()


@pytest.mark.parametrize("path", ["/api/v1/query", "/api/v1/log/append"])
def test_what_may_succeed_later_says_when(path: str) -> None:
    for error, times in [(errors.Overloaded("full"), {"1", "2", "3"}), (errors.Unavailable("gone"), set("2345"))]:
        answers = [responses.error_answer(path, error) for _ in range(200)]
        assert {answer.status for answer in answers} == {503}
        assert {answer.headers["Retry-After"] for answer in answers} == times
    for error in (errors.DeadlineExceeded("late"), errors.BadData("wrong"), errors.NotExecutable("never")):
        assert "Retry-After" not in responses.error_answer(path, error).headers


async def test_a_request_that_is_turned_away_under_overload_holds_no_place(
    served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays open, and others would wait for the place until it is closed."""
    turns = []
    monkeypatch.setattr(served.context.pressure, "is_on", True)
    monkeypatch.setattr(served.context.waiting_room, "admit", lambda: turns.append(served.context.admission.announced))
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET /text HTTP/1.1\r\nHost: another.example\r\n\r\n")
    assert b" 403 " in await reader.readuntil(b"\r\n")
    assert served.context.admission.announced == 0
    assert turns == [0]
    writer.close()


async def test_a_request_waits_in_the_room_when_a_crowd_waits_for_each_other(served: SimpleNamespace) -> None:
    """Before the next look at the state, ten times a second: a crowd is bounded by the request that joins it."""
    context = served.context
    context.links.waits.add(1000)
    answer = asyncio.create_task(served.ask("GET /text HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    context.admission.requests = CROWD
    async with asyncio.timeout(5):
        while not len(context.waiting_room):
            await asyncio.sleep(0.001)
    assert context.pressure.is_on
    assert not answer.done()
    context.admission.requests = 0
    context.waiting_room.admit()
    assert (await answer).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("requests", "wait_ms"), [(CROWD - 1, 1000), (CROWD, 1)])
async def test_a_request_does_not_wait_without_a_crowd_or_where_a_crowd_is_served_in_time(
    served: SimpleNamespace, requests: int, wait_ms: float
) -> None:
    served.context.links.waits.add(wait_ms)
    served.context.admission.requests = requests
    assert (await served.ask("GET /text HTTP/1.1\r\nHost: localhost\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert not served.context.pressure.is_on


async def test_a_request_is_announced_once_however_many_pieces_it_comes_in(
    served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission, announced = served.context.admission, []
    announce = admission.announce

    def note(holder: Any, path: str) -> None:
        announce(holder, path)
        announced.append(admission.announced)

    monkeypatch.setattr(admission, "announce", note)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    for piece in ("POST /body HTTP/1.1\r\nHost: local", "host\r\nContent-Length: 4\r\n\r\n", "ab", "cd"):
        writer.write(piece.encode())
        await asyncio.sleep(0.02)
    assert (await reader.readuntil(b"abcd")).startswith(b"HTTP/1.1 200 ")
    assert (announced, admission.announced) == ([1], 0)
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
    for _ in range(2):
        assert b" 204 " in await reader.readuntil(b"\r\n\r\n")
    assert (announced, admission.announced) == ([1, 1, 1], 0)
    writer.close()


async def test_a_page_cannot_be_framed_and_runs_only_the_servers_own_scripts() -> None:
    answer = await page.index(make_mocked_request("GET", "/"))
    assert answer.content_type == "text/html"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


async def test_the_description_of_the_endpoints_lets_no_other_site_in_either() -> None:
    for handler, path in ((openapi.docs, "/docs"), (openapi.described, "/api/v1/openapi.yaml")):
        answer = await handler(make_mocked_request("GET", path))
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_html_is_answered_in_two_places() -> None:
    sources = {path for path in Path(responses.__file__).parents[1].rglob("*.py") if "text/html" in path.read_text()}
    assert sources == {Path(files.__file__), Path(openapi.__file__)}


async def test_a_handler_knows_whose_request_it_serves(served: SimpleNamespace) -> None:
    assert (await served.ask("GET /whose HTTP/1.1\r\nHost: localhost\r\n\r\n")).endswith(b"\r\n\r\n127.0.0.1")
