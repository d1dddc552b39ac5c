"""The sockets that clients connect to, when the process may open no more files."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from coordinator.http import listening
from coordinator.http.listening import PAUSE_S, Listener
from shared.listen_address import host_and_port

GREETING = b"hello"


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(GREETING)
        transport.close()


@contextmanager
def no_more_files() -> Iterator[None]:
    """While the context lasts, this process cannot open a file: every number below the limit is in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def connected_without_a_file(listener: Listener, client: socket.socket) -> AsyncIterator[None]:
    """While the context lasts, the client is connected, and no file is left for its connection."""
    port = await listener.open("127.0.0.1", 0, 16)
    client.setblocking(False)
    with no_more_files():
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        yield


async def test_a_connection_that_no_file_is_left_for_waits_and_is_served_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reasons: list[OSError] = []
    monkeypatch.setattr(listening, "event", lambda *_, why: reasons.append(why))
    listener = Listener(Greeter)
    with socket.socket() as client:
        async with connected_without_a_file(listener, client):
            await asyncio.sleep(3.5 * PAUSE_S)
            with pytest.raises(BlockingIOError):
                client.recv(1)
        assert {error.strerror for error in reasons} == {"Too many open files"}
        assert 2 <= len(reasons) <= 4  # it tries again, after a pause each time
        async with asyncio.timeout(10 * PAUSE_S):
            assert await asyncio.get_running_loop().sock_recv(client, 100) == GREETING
    listener.close()


async def test_a_listener_that_was_closed_in_its_pause_stays_closed() -> None:
    listener = Listener(Greeter)
    with socket.socket() as client:
        async with connected_without_a_file(listener, client):
            await asyncio.sleep(PAUSE_S / 2)
            listener.close()
        await asyncio.sleep(2 * PAUSE_S)
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_an_ipv6_address_is_in_brackets() -> None:
    assert host_and_port("::1", 9090) == "[::1]:9090"
    assert host_and_port("127.0.0.1", 9090) == "127.0.0.1:9090"
