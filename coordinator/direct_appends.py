"""Small appends to the log, served without aiohttp: no task, no object for the request, its headers and its answer.

aiohttp takes more processor time for a request than an append of one record needs. A request is served here if it has
come in one piece, with a plain head, on a connection that is in no other request, and without credentials. Everything
else, and whatever is wrong with a request, is left to aiohttp and to `coordinator.dispatch`, before anything is done.
What counts for a request there counts here as well: places in flight, bytes of bodies, pressure, known hosts, metrics,
the request's id, the deadline.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import lru_cache, partial
from typing import Any, NamedTuple

import orjson
from aiohttp import web

from coordinator.api.log.append import INLINE_BYTES_MAX
from coordinator.context import Context
from coordinator.failures import failure, refusal
from coordinator.log import records
from coordinator.log.record_forms import hints
from coordinator.log.records import Append
from coordinator.negotiation import JSON, PROTOBUF, PROTOBUF_JSON
from coordinator.protocol import Connection, Server
from coordinator.request_ids import id_in
from coordinator.responses import in_one_piece
from shared import tracing
from shared.errors import TriptychError
from shared.telemetry import REQUEST_ID

METHOD, PATH = "POST", "/api/v1/log/append"
HEAD_BYTES_MAX = 1024
HEADS_CACHED = 256
"""Clients send the same head again and again; one that is not cached is read in some microseconds."""
CLIENT_LEFT = 499

_REQUEST_LINE = f"{METHOD} {PATH} HTTP/1.1\r\n".encode()
_PLAIN_HEADERS = frozenset(
    (
        b"host",
        b"content-type",
        b"content-length",
        b"accept",
        b"accept-encoding",
        b"connection",
        b"user-agent",
        b"x-request-id",
    )
)
"""A head with any other header is left to aiohttp."""
_TEXT = re.compile(rb"[\x20-\x7e]*")
_LENGTH = re.compile(rb"\d{1,9}")


class PlainHead(NamedTuple):
    """What a head says of its request. `media_type`: of the body; the answer is JSON."""

    host: str
    media_type: str
    body_bytes: int


@lru_cache(HEADS_CACHED)
def plain_head(head: bytes) -> PlainHead | None:
    """The head of an append, which ends with an empty line; None if it is left to aiohttp."""
    if not head.startswith(_REQUEST_LINE):
        return None
    fields: dict[bytes, bytes] = {}
    for line in head[len(_REQUEST_LINE) : -4].split(b"\r\n"):
        name, _, text = line.partition(b":")
        name = name.lower()
        if name not in _PLAIN_HEADERS or name in fields or _TEXT.fullmatch(text.strip(b"\t")) is None:
            return None
        fields[name] = text.strip(b" \t")
    host, length = fields.get(b"host"), fields.get(b"content-length", b"")
    media_type = fields.get(b"content-type", b"").partition(b";")[0].strip().lower().decode()
    is_plain = (
        host
        and _LENGTH.fullmatch(length)
        and media_type in (JSON, PROTOBUF, PROTOBUF_JSON)
        and PROTOBUF.encode() not in fields.get(b"accept", b"").lower()
        and fields.get(b"connection", b"keep-alive").lower() == b"keep-alive"
    )
    return PlainHead(host.decode(), media_type, int(length)) if host and is_plain else None


class DirectConnection(Connection):
    """A connection whose small appends do not go through aiohttp. What arrives while one is served waits for its
    answer; reading pauses, so that is what the loop has read at once."""

    __slots__ = ("_answer", "_behind", "_direct")

    def __init__(self, direct: DirectAppends, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._direct = direct
        self._answer: asyncio.Future[int] | None = None
        self._behind = b""

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            super().data_received(data)
            return
        self._behind += data
        if self._wire is not None:
            self._wire.pause_reading()

    def _is_served_directly(self, data: bytes) -> bool:
        waiter = self._waiter
        if waiter is None or waiter.done() or self._close or self._force_close:
            return False  # aiohttp serves a request, or the connection ends
        if self.head_bytes or self.writing_paused or self._upgraded or not self._body.is_eof():
            return False
        self._answer = self._direct.begin(self, data)
        if self._answer is None:
            return False
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        return True

    def answered(self, text: bytes) -> None:
        """The request is over; `text` is the whole answer."""
        self._answer = None
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(text)
            self.rested()

    def go_on_behind(self) -> None:
        """Take up what has arrived meanwhile."""
        data, self._behind = self._behind, b""
        if data and self._wire is not None and not self._wire.is_closing():
            self._wire.resume_reading()
            self.data_received(data)

    def connection_lost(self, error: BaseException | None) -> None:
        super().connection_lost(error)
        if self._answer is not None:
            self._answer.cancel()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        if self._answer is not None:
            await asyncio.wait((self._answer,), timeout=timeout)
        await super().shutdown(timeout)


class DirectAppends:
    """Serves the appends of all connections. For the event loop's thread only."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def begin(self, connection: DirectConnection, data: bytes) -> asyncio.Future[int] | None:
        """Serve the request that `data` is. Returns the future that has the answer soon, or None if nothing was done
        because the request is one for aiohttp."""
        body_at = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX) + 4
        head = plain_head(data[:body_at]) if body_at >= 4 else None
        if head is None or len(data) - body_at != head.body_bytes or not self._admits(head):
            return None
        body = data[body_at:]
        batch = self._plain_batch(head, body)
        if batch is None:
            return None
        context = REQUEST_ID.set(id_in(data[:body_at]))
        try:
            return self._begun(connection, batch, len(body))
        finally:
            REQUEST_ID.reset(context)

    def _admits(self, head: PlainHead) -> bool:
        context = self._context
        return (
            head.body_bytes <= min(INLINE_BYTES_MAX, context.settings.body_bytes_max)
            and context.access.is_open
            and not tracing.is_on()
            and context.log.knows_state
            and context.cross_site.knows(head.host)
        )

    def _plain_batch(self, head: PlainHead, body: bytes) -> Append | None:
        """The batch; None for one that is wrong, has a producer, or is to be answered with a hint."""
        if b"producer" in body:
            return None  # the producer's batches wait for each other
        try:
            batch = records.parse(head.media_type, body, self._context.settings)
        except TriptychError:
            return None
        has_hints = head.media_type != PROTOBUF and hints(batch.records)
        return None if batch.producer or has_hints else batch

    def _begun(self, connection: DirectConnection, batch: Append, body_bytes: int) -> asyncio.Future[int]:
        context, holder, started = self._context, connection.holder, time.perf_counter()
        context.connections.heard(connection)
        connection.path = PATH
        entered = False
        try:
            if context.pressure.is_on:
                context.pressure.require(PATH)
            context.admission.enter(holder, may_use_reserve=True)
            entered = True
            context.admission.hold(holder, body_bytes)
            answer = context.log.begin(batch)
        except Exception as error:  # `_outcome` tells a refusal from a defect
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(error)
        answer.add_done_callback(partial(self._finish, connection, batch.count, started if entered else None))
        return answer

    def _finish(
        self, connection: DirectConnection, count: int, started: float | None, answer: asyncio.Future[int]
    ) -> None:
        """Answer and count the request. `started`: None for one that was not let in."""
        context, holder = self._context, connection.holder
        status, text = self._outcome(count, answer)
        connection.answered(text)
        if started is not None:
            context.admission.leave(holder)
            context.telemetry.served(METHOD, PATH, status, time.perf_counter() - started)
        context.waiting_room.admit()
        connection.go_on_behind()

    def _outcome(self, count: int, answer: asyncio.Future[int]) -> tuple[int, bytes]:
        """(status, the whole answer)."""
        context = self._context
        if answer.cancelled():
            return CLIENT_LEFT, b""
        try:
            start = answer.result()
        except TriptychError as error:
            return self._without_aiohttp(refusal(context, PATH, error))
        except Exception:
            return self._without_aiohttp(failure(METHOD, PATH))
        context.telemetry.records_in += count
        body = orjson.dumps({"status": "success", "recordsAppended": count, "startSequence": start})
        headers = (("Content-Type", JSON), *context.access.headers.items())
        return 200, in_one_piece(200, "OK", headers, body)

    def _without_aiohttp(self, response: web.Response) -> tuple[int, bytes]:
        headers = (*response.headers.items(), *self._context.access.headers.items())
        assert isinstance(response.body, bytes)
        return response.status, in_one_piece(response.status, response.reason, headers, response.body)
