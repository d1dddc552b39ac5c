"""Requests to targets: what slow, huge, endless, redirecting and lying ones do to a scrape."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme

from coordinator import outgoing
from coordinator.prometheus_config.http_client import HttpClientConfig
from coordinator.scraping import fetching
from coordinator.scraping.discovery import Url
from coordinator.scraping.fetching import Client, Fetches, FetchFailed, ScrapeResponse, inflated
from coordinator.scraping.jobs import HttpDiscovery

LIMIT = 10_000
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
Serve = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that answers each request with `serve(head, writer)`; yields its URL."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await serve(head, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def saying(answer: bytes) -> Serve:
    async def serve(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    return serve


async def get(
    serve: Serve, http: HttpClientConfig | None = None, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None
) -> ScrapeResponse:
    fetches, client = Fetches(), Client(http or HttpClientConfig(), 10)
    try:
        async with serving(serve, tls) as url:
            answer = await fetches.get(client, f"{url}/metrics", {"Accept": "a/b"}, timeout_s, LIMIT, keeps=True)
            fetches.release(answer.held)
            return answer
    finally:
        await client.close()
        assert fetches._held == 0


async def test_a_body_comes_as_it_was_sent_with_its_type() -> None:
    heads: list[bytes] = []

    async def serve(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(OK + b"Content-Length: 4\r\n\r\na 1\n")

    credential = HttpClientConfig(scheme="Bearer", secret="s")
    answer = await get(serve, credential)
    assert (answer.body, answer.content_type, answer.encoding) == (b"a 1\n", "text/plain", "")
    assert b"Authorization: Bearer s\r\n" in heads[0] and b"Accept: a/b\r\n" in heads[0]
    assert b"User-Agent: Triptych/" in heads[0]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "HTTP status 500 Internal Server Error"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP status 204"),
        (OK + b"Content-Length: 10001\r\n\r\n", "has 10001 bytes; the limit is 10000"),
        (OK + b"\r\n" + b"a" * (LIMIT + 1), "more than the limit"),
        (OK + b"Content-Length: 100\r\n\r\na 1\n", ""),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nffffff\r\na", ""),
        (b"nonsense\r\n\r\n", ""),
        (b"", "disconnected"),
    ],
)
async def test_an_answer_that_is_not_what_it_should_be_fails(answer: bytes, why: str) -> None:
    with pytest.raises(FetchFailed) as failed:
        await get(saying(answer))
    assert why in str(failed.value) and str(failed.value)


async def test_a_target_that_does_not_answer_is_given_up() -> None:
    async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(10)

    with pytest.raises(FetchFailed, match=r"not answered within 0\.2 s"):
        await get(silent, timeout_s=0.2)


async def test_an_endless_body_ends_with_the_time_or_the_limit() -> None:
    async def endless(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"\r\n")
        while True:
            writer.write(b"a 1\n" * 10)
            await writer.drain()
            await asyncio.sleep(0.001)

    with pytest.raises(FetchFailed, match=r"limit of 10000|within 0\.3 s"):
        await get(endless, timeout_s=0.3)


async def test_redirects_are_followed_within_bounds_or_not_at_all() -> None:
    async def serve(head: bytes, writer: asyncio.StreamWriter) -> None:
        if b"GET /there" in head:
            writer.write(OK + b"Content-Length: 4\r\n\r\nb 2\n")
        else:
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n")

    assert (await get(serve)).body == b"b 2\n"
    with pytest.raises(FetchFailed, match="HTTP status 302"):
        await get(serve, HttpClientConfig(follow_redirects=False))

    async def circling(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: /metrics\r\nContent-Length: 0\r\n\r\n")

    with pytest.raises(FetchFailed, match="redirected more than 10 times"):
        await get(circling)


async def test_nobody_who_listens_is_a_failure_with_the_reason() -> None:
    fetches, client = Fetches(), Client(HttpClientConfig(), 10)
    try:
        with pytest.raises(FetchFailed, match="Cannot connect"):
            await fetches.get(client, "http://127.0.0.1:1/", {}, 1.0, LIMIT, keeps=False)
    finally:
        await client.close()


async def test_certificates_are_verified_by_the_authority_and_the_name_of_the_job() -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("target.example").configure_cert(tls)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    serve = saying(OK + b"Content-Length: 4\r\n\r\na 1\n")
    known = HttpClientConfig(tls=trusting, server_name="target.example")
    assert (await get(serve, known, tls=tls)).body == b"a 1\n"
    for http in (HttpClientConfig(tls=trusting), HttpClientConfig()):
        with pytest.raises(FetchFailed, match="certificate verify failed"):
            await get(serve, http, tls=tls)


async def test_a_name_of_a_host_is_looked_up_in_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    real = socket.getaddrinfo

    def find(host: str, *rest: Any) -> Any:
        if host != "target.example":
            return real(host, *rest)
        threads.append(threading.current_thread().name)
        return real("127.0.0.1", *rest)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    fetches, client = Fetches(), Client(HttpClientConfig(), 10)
    async with serving(saying(OK + b"Content-Length: 4\r\n\r\na 1\n")) as url:
        port = url.rpartition(":")[2]
        threads.clear()
        answer = await fetches.get(client, f"http://target.example:{port}/", {}, 2.0, LIMIT, keeps=False)
    await client.close()
    assert answer.body == b"a 1\n" and threads and all(name.startswith("outgoing") for name in threads)


async def test_what_hangs_is_given_up_and_keeps_no_process_from_ending() -> None:
    release = threading.Event()

    def hang() -> None:
        assert threading.current_thread().daemon
        release.wait(10)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(outgoing.blocking(hang), 0.05)
    with pytest.raises(ValueError, match="a failure"):
        await outgoing.blocking(lambda: int("a failure"))
    release.set()


async def test_answers_of_all_targets_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BODIES_BYTES_MAX", 100)
    with pytest.raises(FetchFailed, match="no room for 200 more within 100"):
        await get(saying(OK + b"Content-Length: 200\r\n\r\n" + b"a" * 200))


async def test_a_url_tells_targets_and_a_wrong_answer_changes_nothing() -> None:
    answers = [(b"text/html", b"[]"), (b"application/json", b"{}"), (b"application/json", b'[{"targets": ["a:1"]}]')]

    async def serve(head: bytes, writer: asyncio.StreamWriter) -> None:
        assert b"X-Prometheus-Refresh-Interval-Seconds: 0.02\r\n" in head
        kind, body = answers.pop() if answers else (b"text/html", b"")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)) + body)

    changed = asyncio.Event()
    async with serving(serve) as url:
        source = Url(HttpDiscovery(url, 20, HttpClientConfig()), "j", changed.set, Fetches())
        task = asyncio.create_task(source.run())
        await asyncio.wait_for(changed.wait(), 5)
        while source.failures < 2:
            await asyncio.sleep(0.01)
        task.cancel()
    (group,) = source.groups
    assert group.addresses == ("a:1",) and group.labels == {"__meta_url": url}


def test_gzip_is_inflated_member_by_member() -> None:
    body = gzip.compress(b"a 1\n", mtime=0) + gzip.compress(b"b 2\n" * 1000)
    assert inflated(ScrapeResponse(body, "gzip", "", 0), LIMIT) == b"a 1\n" + b"b 2\n" * 1000
    assert inflated(ScrapeResponse(b"c 3\n", "identity", "", 0), LIMIT) == b"c 3\n"


@pytest.mark.parametrize(
    ("body", "encoding", "why"),
    [
        (gzip.compress(bytes(100 << 20), mtime=0), "gzip", "more than the limit of 10000 bytes once"),
        (gzip.compress(b"a" * 100, mtime=0)[:-12], "gzip", "ends within its gzip data"),
        (b"a 1\n", "gzip", "not gzip"),
        (gzip.compress(b"a", mtime=0) + b"b", "gzip", "gzip"),
        (b"a 1\n", "br", "must be gzip"),
    ],
)
def test_what_cannot_be_inflated_is_refused(body: bytes, encoding: str, why: str) -> None:
    with pytest.raises(FetchFailed, match=why):
        inflated(ScrapeResponse(body, encoding, "", 0), LIMIT)
