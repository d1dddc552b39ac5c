"""Connections that wait for their client: how long they may wait, and which one is ended when there are too many.

A connection waits for the head of a request, for the next request (it is idle), for the rest of a body, or for its
client to read more of a response. Each kind is kept in the order in which the waits began, so that the longest wait is
found at once. All other connections are being served, and are never ended to make room.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from coordinator.limits.admission import Admission, Holder
from coordinator.limits.clients import Clients, share_name, share_of
from shared.errors import Overloaded
from shared.process import open_files
from shared.settings import Settings
from shared.telemetry import event

SWEEP_S = 1.0
"""How often to look for connections that have waited too long."""
FRESH_S = 1.0
"""A connection that has waited for a shorter time is not ended to make room: its client may be about to continue."""
PROGRESS_BYTES = 256 << 10
"""When a client has sent or read this many bytes of a body or response, its wait starts again: it is not slow."""
HEADS_BYTES_MAX = 64 << 20
"""The most bytes of all incomplete heads together."""
REFUSED_LOG_INTERVAL_S = 10.0
OWN_FILES = 256
"""Files and sockets that the coordinator needs besides its connections."""
BACKLOG_MAX = 1024
"""The most connections that the kernel establishes before they are accepted. All of them may be accepted at once,
before any is ended to make room."""


def backlog() -> int:
    """How many connections may wait to be accepted."""
    return min(BACKLOG_MAX, open_files.limit() // 4)


def connections_max(settings: Settings) -> int:
    """The limit on connections: the setting, or fewer if the limit on open files requires it."""
    return max(1, min(settings.connections_max, open_files.limit() - OWN_FILES - backlog()))


class Waiting(Protocol):
    """The part of a connection's interface that this module uses."""

    holder: Holder
    head_bytes: int

    def end(self) -> None:
        """Close the connection at once. Unsent bytes are dropped."""

    def unsent_bytes(self) -> int:
        """The bytes of its response that the kernel has not accepted yet."""


@dataclass(slots=True)
class _Progress:
    """The progress of a body or response: when its client last moved PROGRESS_BYTES of it, how many bytes there were
    then, and how many there are now."""

    since: float
    bytes: int
    bytes_now: int


class Connections:
    """All connections, within `limit`. For the event loop's thread only."""

    def __init__(self, settings: Settings, admission: Admission, limit: int) -> None:
        self.limit = limit
        self.clients = Clients()
        self.admission = admission
        admission.make_room = self.end_bodies
        self._client_share = settings.client_share
        self._unsent_bytes_max = settings.unsent_bytes_max
        self._head_s = settings.head_timeout_ms / 1000
        self._idle_s = settings.idle_timeout_ms / 1000
        self.reader_timeout_s = settings.slow_reader_timeout_ms / 1000
        self.open: set[Waiting] = set()
        self.heads: dict[Waiting, float] = {}
        self.idle: dict[Waiting, float] = {}
        self.bodies: dict[Waiting, _Progress] = {}
        self.readers: dict[Waiting, _Progress] = {}
        self.head_bytes = 0
        self.unsent_bytes = 0
        self.ended: Counter[str] = Counter()
        """Connections that were ended, by reason."""
        self._timer: asyncio.TimerHandle | None = None
        self._refused_logged_at = -REFUSED_LOG_INTERVAL_S

    def start(self) -> None:
        """Start to look for connections that have waited too long."""
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # Events of connections

    def opened(self, connection: Waiting, address: str) -> bool:
        """A new connection from this address. Sets its holder. Returns False if there is no room for it."""
        holder = connection.holder = Holder(self.clients.joined(address))
        why_full = self._share_full(holder)
        if not why_full and len(self.open) >= self.limit and not self._end_one(None):
            why_full = f"the limit is {self.limit} (TRIPTYCH_CONNECTIONS_MAX)"
        if why_full:
            self.clients.left(holder.client)
            self._refuse(why_full)
            return False
        self.open.add(connection)
        self.heads[connection] = time.monotonic()
        return True

    def _share_full(self, holder: Holder) -> str:
        """Why the holder's client has too many connections; "" if it has not, or if one that waits could be ended to
        make room."""
        client = holder.client
        limit = share_of(self.limit, self._client_share if client.share is None else client.share)
        if client.connections <= limit or self._end_one(holder):
            return ""
        return f"the limit for one client is {limit} ({share_name(client)} of TRIPTYCH_CONNECTIONS_MAX)"

    def identify(self, holder: Holder, name: str, share: int | None) -> None:
        """Assign the connection, which is between requests, to the client with this name, or to the client of its
        address if the name is empty. Raises Overloaded if that client has too many connections."""
        name = name or holder.address
        previous_client = holder.client
        if previous_client.name == name and previous_client.share == share:
            return
        holder.client = self.clients.named(name, share)
        self.clients.left(previous_client)
        why_full = self._share_full(holder)
        if why_full:
            self.clients.left(holder.client)
            holder.client = self.clients.named(holder.address)
            raise Overloaded(f"{name} has too many connections: {why_full}; use fewer, or try again later")

    def _refuse(self, why: str) -> None:
        self.ended["refused"] += 1
        now = time.monotonic()
        if now - self._refused_logged_at >= REFUSED_LOG_INTERVAL_S:
            self._refused_logged_at = now
            event(
                logging.WARNING,
                "connections refused: all others are being served",
                connections=len(self.open),
                why=why,
                refused=self.ended["refused"],
            )

    def lost(self, connection: Waiting) -> None:
        """The connection is gone."""
        if connection not in self.open:
            return
        self.open.remove(connection)
        self.heard(connection)
        self.bodies.pop(connection, None)
        self.taken(connection)
        self.clients.left(connection.holder.client)

    def begun(self, connection: Waiting, more_bytes: int) -> bool:
        """More bytes of an incomplete head have arrived. Returns False if all heads together take too many bytes."""
        if self.idle.pop(connection, None) is not None:
            self.heads[connection] = time.monotonic()
        connection.head_bytes += more_bytes
        self.head_bytes += more_bytes
        return self.head_bytes <= HEADS_BYTES_MAX

    def heard(self, connection: Waiting) -> None:
        """The head of a request is complete, or the connection no longer waits for one."""
        self.heads.pop(connection, None)
        self.idle.pop(connection, None)
        if connection.head_bytes:
            self.head_bytes -= connection.head_bytes
            connection.head_bytes = 0

    def rested(self, connection: Waiting) -> None:
        """The request has been answered, and no other request has arrived."""
        if connection in self.open:
            self.idle[connection] = time.monotonic()

    def arriving(self, connection: Waiting, body_bytes: int) -> None:
        """`body_bytes` of the body have arrived so far, and it is not complete."""
        progress = self.bodies.get(connection)
        if progress is None:
            self.bodies[connection] = _Progress(time.monotonic(), body_bytes, body_bytes)
        elif body_bytes - progress.bytes >= PROGRESS_BYTES:
            del self.bodies[connection]  # to the end of the order
            self.bodies[connection] = _Progress(time.monotonic(), body_bytes, body_bytes)

    def arrived(self, connection: Waiting) -> None:
        self.bodies.pop(connection, None)

    def unread(self, connection: Waiting) -> None:
        """The client reads the response more slowly than it is written. Nothing more is written until `taken`."""
        if connection not in self.open or connection in self.readers:
            return
        unsent = connection.unsent_bytes()
        self.readers[connection] = _Progress(time.monotonic(), unsent, unsent)
        self.unsent_bytes += unsent
        self.admission.park(connection.holder)
        if self.unsent_bytes > self._unsent_bytes_max:
            self._end_readers()

    def taken(self, connection: Waiting) -> None:
        """The client has read what was written, or the connection is gone."""
        progress = self.readers.pop(connection, None)
        if progress is not None:
            self.unsent_bytes -= progress.bytes_now
            self.admission.resume(connection.holder)

    # Room

    def _end_one(self, holder: Holder | None) -> bool:
        """End the connection that has waited longest, of all clients or of the holder's client. Returns False if none
        may be ended."""
        now = time.monotonic()
        for waiting, since_max, reason in (
            (self.heads.items(), now - FRESH_S, "head"),
            (self.idle.items(), now - FRESH_S, "idle"),
            (_since(self.readers), now - FRESH_S, "slow reader"),
            (_since(self.bodies), now - FRESH_S, "slow body"),
            (self.idle.items(), now, "idle"),
            (self.heads.items(), now, "head"),
        ):
            for connection, since in waiting:
                if since > since_max:
                    break
                if holder is None or connection.holder.client is holder.client:
                    self._end(connection, f"room ({reason})")
                    return True
        return False

    def end_bodies(self, bytes_wanted: int) -> None:
        """End the connections with the slowest arriving bodies until this many bytes are released."""
        for connection in _slowest(self.bodies):
            if bytes_wanted <= 0:
                return
            bytes_wanted -= self.admission.release(connection.holder)
            self._end(connection, "room (slow body)")

    def _end_readers(self) -> None:
        """End the slowest readers until the unsent bytes are within their limit."""
        for connection in _slowest(self.readers):
            if self.unsent_bytes <= self._unsent_bytes_max:
                return
            self._end(connection, "room (slow reader)")

    def end_slowest(self, among: Container[Waiting]) -> Waiting | None:
        """End the slowest of these readers. Returns it, or None if there is none."""
        for connection in _slowest(self.readers):
            if connection in among:
                self._end(connection, "room (slow reader)")
                return connection
        return None

    def _end(self, connection: Waiting, reason: str) -> None:
        self.ended[reason] += 1
        self.lost(connection)
        connection.end()

    # Time

    def _sweep(self) -> None:
        try:
            self.end_late()
        finally:
            self.start()

    def end_late(self) -> None:
        """End the connections that have waited too long. Bodies have deadlines of their own
        (coordinator/http/bodies.py)."""
        now = time.monotonic()
        self._end_before(self.heads, now - self._head_s, "head timeout")
        self._end_before(self.idle, now - self._idle_s, "idle timeout")
        for connection, progress in list(self.readers.items()):
            self._note_progress(connection, progress, now)
        for connection, since in list(_since(self.readers)):
            if since > now - self.reader_timeout_s:
                break
            self._end(connection, "slow reader")
        self._end_readers()

    def _end_before(self, waiting: dict[Waiting, float], since_max: float, reason: str) -> None:
        while waiting:
            connection, since = next(iter(waiting.items()))
            if since > since_max:
                return
            self._end(connection, reason)

    def _note_progress(self, connection: Waiting, progress: _Progress, now: float) -> None:
        unsent = connection.unsent_bytes()
        self.unsent_bytes += unsent - progress.bytes_now
        progress.bytes_now = unsent
        if progress.bytes - unsent >= PROGRESS_BYTES:
            del self.readers[connection]  # to the end of the order
            self.readers[connection] = _Progress(now, unsent, unsent)


def _slowest(waiting: dict[Waiting, _Progress]) -> Iterator[Waiting]:
    """Yield those that have waited for at least FRESH_S, the longest wait first. The caller may end each of them."""
    since_max = time.monotonic() - FRESH_S
    for connection, since in list(_since(waiting)):
        if since > since_max:
            return
        yield connection


def _since(waiting: dict[Waiting, _Progress]) -> Iterable[tuple[Waiting, float]]:
    return ((connection, progress.since) for connection, progress in waiting.items())
