"""Listening sockets, which accept only a few connections at a time.

The event loop's own server accepts all waiting connections before it does anything else, so requests would wait for a
burst of a thousand connections. It also closes the listening socket when `accept` fails.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from coordinator.limits.handshakes import Handshakes
from shared.telemetry import event

ACCEPTED_AT_ONCE = 8
"""Other events are handled after this many connections, each of which takes about 0.2 ms."""
PAUSE_S = 0.1
"""How long to pause after an error, for example when no more files can be opened."""


class Listener:
    """Accepts connections and gives each a protocol of `factory`, after a handshake if there are `handshakes`."""

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], handshakes: Handshakes | None = None) -> None:
        self._factory = factory
        self._handshakes = handshakes
        self._sockets: list[socket.socket] = []
        self._opening: set[asyncio.Task[object]] = set()

    async def open(self, host: str, port: int, backlog: int) -> int:
        """Listen on all addresses of the host. Returns the port of the first. Raises OSError."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(addresses):
                listening = socket.create_server(address, family=family, backlog=backlog)
                self._sockets.append(listening)
                listening.setblocking(False)
        except OSError:
            self.close()
            raise
        for listening in self._sockets:
            loop.add_reader(listening, self._accept, listening)
        bound_port: int = self._sockets[0].getsockname()[1]
        return bound_port

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for task in self._opening:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        if self._handshakes is not None:
            await self._handshakes.open(self._factory, accepted)
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._factory, accepted)
        except OSError:
            accepted.close()  # the client has disconnected

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        event(logging.WARNING, "a connection could not be accepted", why=error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(PAUSE_S, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)
