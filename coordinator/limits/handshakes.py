"""TLS handshakes of accepted connections: counted, limited in time, and started a few at a time.

A connection counts from the moment it is accepted. Its handshake is treated like the wait for an unfinished head. Until
the client has sent something, a connection takes a socket and a small protocol object; the TLS buffers are allocated
with its first byte. A handshake occupies the event loop for up to 1 ms. After a burst of connections, handshakes are
therefore spread out, so that other work can run in between.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from coordinator.access.tls import Tls
from coordinator.limits.clients import client_name
from shared.telemetry import event

TURN_S = 0.002
"""The interval between the starts of two handshakes."""
SHUTDOWN_S = 2.0
"""A client that does not respond to the end of a TLS session is disconnected after this time."""
FAILED_LOG_INTERVAL_S = 10.0
_HANDSHAKE_RECORD = 0x16
"""The first byte of every TLS connection."""
_PLAIN_ANSWER = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"Client sent an HTTP request to an HTTPS server.\n"
)
_PLAIN_BYTES = 64 << 10
_ESTABLISHED = 1
"""TCP_ESTABLISHED, the first byte of `struct tcp_info`."""


class Secured(Protocol):
    """A protocol that counts as a connection before its handshake is done."""

    def accepted(self, address: str, give_up: Callable[[], object]) -> bool:
        """Count the connection. `give_up` ends its handshake. Returns False if there is no room."""

    def gave_up(self) -> None:
        """The handshake has failed or was ended."""


class Turns:
    """Grants a turn every TURN_S. Addresses take turns in rotation, so that an address with a thousand connections does
    not keep others waiting. The queue is limited by the number of connections and by the timeout for heads."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], socket.socket]]] = {}
        self._is_running = False

    async def wait(self, address: str, accepted: socket.socket) -> None:
        """Return when it is this connection's turn. Raises ConnectionResetError if its client has disconnected by then;
        that does not use up a turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append((turn, accepted))
        if not self._is_running:
            self._is_running = True
            self._give()
        await turn

    def _give(self) -> None:
        """Grant the next turn to the first connection of the first address that is still waiting."""
        while self._waiting:
            address, connections = next(iter(self._waiting.items()))
            turn, accepted = connections.popleft()
            if not connections:
                del self._waiting[address]
            if turn.done():
                continue
            if _is_gone(accepted):
                turn.set_exception(ConnectionResetError("the client has gone"))
                continue
            if connections:
                self._waiting[address] = self._waiting.pop(address)  # to the end
            turn.set_result(None)
            asyncio.get_running_loop().call_later(TURN_S, self._give)
            return
        self._is_running = False


class Handshakes:
    """For the event loop's thread only."""

    def __init__(self, tls: Tls, timeout_s: float) -> None:
        self._tls = tls
        self._timeout_s = timeout_s
        self._turns = Turns()
        self._failed = 0
        self._logged_at = -FAILED_LOG_INTERVAL_S

    async def open(self, factory: Callable[[], asyncio.BaseProtocol], accepted: socket.socket) -> None:
        """Do the handshake, and then serve the connection. Returns without serving it if that fails or takes too
        long."""
        protocol = factory()
        connection = cast(Secured, protocol)
        task = asyncio.current_task()
        assert task is not None
        is_open = False
        try:
            address = _address(accepted)
            if not connection.accepted(address, task.cancel):
                return
            if not await _begins_with_handshake(accepted):
                _answer_plainly(accepted)
                return
            await self._turns.wait(client_name(address), accepted)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
            is_open = True
        except ConnectionError:
            pass  # the client has disconnected, as the probes of load balancers do
        except (OSError, ssl.SSLError, TimeoutError) as error:
            self._log(error)
        finally:
            if not is_open:
                connection.gave_up()
                accepted.close()

    def _log(self, error: Exception) -> None:
        self._failed += 1
        now = time.monotonic()
        if now - self._logged_at >= FAILED_LOG_INTERVAL_S:
            self._logged_at = now
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            event(logging.INFO, "a TLS handshake failed", why=reason, failed=self._failed)


def _address(accepted: socket.socket) -> str:
    try:
        return str(accepted.getpeername()[0])
    except OSError:
        return ""  # the client has gone


def _is_gone(accepted: socket.socket) -> bool:
    """Whether the client has closed the connection. Bytes that it sent before may still be unread."""
    if accepted.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    state: int = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != _ESTABLISHED


async def _begins_with_handshake(accepted: socket.socket) -> bool:
    """Wait for the first byte, and return whether it begins a handshake. Raises OSError if the client has
    disconnected."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    accepted.setblocking(False)
    loop.add_reader(accepted, _tell, readable)
    try:
        await readable
    finally:
        loop.remove_reader(accepted)
    first = accepted.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionResetError("the client has gone")
    return first[0] == _HANDSHAKE_RECORD


def _tell(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def _answer_plainly(accepted: socket.socket) -> None:
    """Tell a client that does not use TLS what is wrong, as Go's server does."""
    with suppress(OSError):
        accepted.recv(_PLAIN_BYTES)
        accepted.send(_PLAIN_ANSWER)
        accepted.shutdown(socket.SHUT_WR)
