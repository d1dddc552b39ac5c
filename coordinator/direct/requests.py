"""Serves small requests of the most frequent kinds without aiohttp: without a task, and without objects for the
request, its headers and its response.

aiohttp takes more CPU time for a request than an append of one record or a search for one vector needs. A request is
served here if it has a plain head that arrived in one piece, if its body arrived together with the head or a moment
later, if its connection is between requests, and if it needs no credentials. Any other request, and any invalid one, is
left to aiohttp and `coordinator.dispatch` before anything is done. The same rules apply here as there: places in
flight, bytes of bodies, pressure, known hosts, metrics, request ids, the list of running queries, deadlines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from aiohttp import web

from coordinator.context import Context
from coordinator.direct.plain_heads import HEAD_BYTES_MAX, PlainHead, plain_head
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.headers.negotiation import FORM, JSON, PROTOBUF, PROTOBUF_JSON
from coordinator.headers.request_ids import new_id
from coordinator.http.failures import failure, refusal
from coordinator.http.protocol import Connection, Server
from coordinator.http.responses import head_of, in_one_piece, with_head
from coordinator.limits.admission import Holder, may_use_reserve
from coordinator.limits.clients import CURRENT_CLIENT
from coordinator.queries.running import RunningQuery
from shared import tracing
from shared.errors import TriptychError
from shared.telemetry import REQUEST_ID

CLIENT_LEFT = 499
REST_WITHIN_S = 0.05
"""How long to wait for a body after its head, since many clients send them separately. A body that is incomplete after
this time is left to aiohttp, which has limits for slow bodies."""
PIECES_BYTES_MAX = 16 << 20
"""The most bytes of all incomplete requests that wait here for their bodies."""

LABEL_NAMES, _VALUES = "/api/v1/label/", "/values"
"""The beginning of paths that name a label, and the end of the path of its values."""
LABEL_VALUES = f"{LABEL_NAMES}{{name}}{_VALUES}"
"""The only path with a parameter among those served here."""
FORM_BYTES_MAX = 8 << 10

Headers = tuple[tuple[str, str], ...]
BODY_TYPES = frozenset((JSON, PROTOBUF, PROTOBUF_JSON))
JSON_HEADERS: Headers = (("Content-Type", JSON),)


def label_in(path: str) -> str:
    """The label whose values this path lists; "" if it is another path."""
    if not path.startswith(LABEL_NAMES) or not path.endswith(_VALUES):
        return ""
    label = path[len(LABEL_NAMES) : -len(_VALUES)]
    return "" if "/" in label else label


def has_parameters_only(head: PlainHead) -> bool:
    """Whether a request consists of parameters only, in its URL or in a posted form."""
    return head.media_type == FORM if head.method == "POST" else not head.body_bytes


class LeftToAiohttp(Exception):
    """The request turned out to be one for aiohttp, which then handles it from the beginning. The request must not
    change anything."""


class Work(Protocol):
    """The work for one request."""

    @property
    def listed_as(self) -> str:
        """Its kind in the list of running queries; "" if it is not listed."""

    @property
    def summary(self) -> str:
        """Its text in that list."""

    @property
    def more_bytes(self) -> int:
        """Bytes that it takes in addition to its body. They are held, too."""

    @property
    def headers(self) -> Headers:
        """The headers of the response, valid once its body exists."""

    def begin(self, holder: Holder) -> PromptFuture[Any]:
        """Begin the work for the connection of this holder. The future gets the result; canceling it ends the work.
        Raises TriptychError; the future may fail with LeftToAiohttp."""

    def listed(self, running: RunningQuery) -> None:
        """The work has begun, and is in the list of running queries."""

    def body(self, result: Any) -> bytes | None:
        """The body of the response, or None if it has none. `result`: the result of the work. Raises TriptychError,
        LeftToAiohttp."""


class Endpoint(Protocol):
    """A path whose requests may be served here. `path` contains the names of its parameters."""

    path: str
    is_read: bool
    encoding: str
    """The Content-Encoding of its request bodies."""
    body_bytes_max: int

    def takes(self, head: PlainHead) -> bool:
        """Whether a request to this path with this head may be served here."""

    def work(self, head: PlainHead, body: bytes) -> Work | None:
        """The work for a request; None if the request is left to aiohttp, in which case nothing has been done."""


class DirectConnection(Connection):
    """A connection whose small requests bypass aiohttp. Bytes that arrive while such a request is served wait until it
    is answered. Reading is paused meanwhile, so they are at most what the event loop reads at once."""

    __slots__ = ("_answer", "_direct", "_following", "_give_over_timer", "_missing", "_pieces")

    def __init__(self, direct: DirectRequests, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._direct = direct
        self._answer: asyncio.Future[Any] | None = None
        self._following = b""
        """The bytes that have arrived while a request is served."""
        self._pieces: list[bytes] = []
        """The parts of an incomplete request that have arrived. `_missing` bytes are awaited until
        `_give_over_timer`."""
        self._missing = 0
        self._give_over_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self._pieces:
            self._missing -= len(data)
            self._pieces.append(data)
            if self._missing > 0:
                return
            data = self._joined()
        if self._answer is None:
            super().data_received(data)
            return
        self._following += data
        if self._wire is not None:
            self._wire.pause_reading()

    def _is_served_directly(self, data: bytes) -> bool:
        if not self.is_between_requests or self._close or self._force_close or self.writing_paused or self._upgraded:
            return False
        body_at = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX) + 4
        head = plain_head(data[:body_at]) if body_at >= 4 else None
        endpoint = self._direct.admits(head) if head is not None else None
        if head is None or endpoint is None:
            return False
        missing = body_at + head.body_bytes - len(data)
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if missing:
            return missing > 0 and self._awaits(missing, data)
        self._answer = self._direct.begin(self, endpoint, head, data, body_at)
        return self._answer is not None

    def _awaits(self, missing: int, data: bytes) -> bool:
        """Wait for the missing bytes of the request that begins with `data`. Returns False if there is no room for
        it."""
        if not self._direct.has_room(missing + len(data)):
            return False
        self._connections.heard(self)
        self._missing, self._pieces = missing, [data]
        self._direct.pieces_bytes += missing + len(data)
        self._give_over_timer = self._loop.call_later(REST_WITHIN_S, self._give_to_aiohttp)
        return True

    def _joined(self) -> bytes:
        """Stop waiting, and return what has arrived."""
        data, self._pieces = b"".join(self._pieces), []
        self._direct.pieces_bytes -= len(data) + self._missing
        if self._give_over_timer is not None:
            self._give_over_timer.cancel()
            self._give_over_timer = None
        return data

    def _give_to_aiohttp(self) -> None:
        self._read(self._joined())

    @property
    def is_open(self) -> bool:
        """Whether the client is still connected."""
        return self._wire is not None and not self._wire.is_closing()

    def answered(self, text: bytes) -> None:
        """End the request: send `text`, the whole response."""
        self._answer = None
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(text)
            self.rested()

    def left_to_aiohttp(self, data: bytes) -> None:
        """Give the request, whose bytes are `data`, to aiohttp."""
        self._answer = None
        if self._wire is not None and not self._wire.is_closing():
            self._read(data)

    def continue_reading(self) -> None:
        """Continue with the bytes that have arrived meanwhile."""
        data, self._following = self._following, b""
        if data and self._wire is not None and not self._wire.is_closing():
            self._wire.resume_reading()
            self.data_received(data)

    def connection_lost(self, error: BaseException | None) -> None:
        super().connection_lost(error)
        if self._pieces:
            self._joined()
        if self._answer is not None:
            self._answer.cancel()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        if self._answer is not None:
            await asyncio.wait((self._answer,), timeout=timeout)
        # aiohttp waits for the handler for this time, ends the body that it may be reading, and waits once more.
        await super().shutdown(None if timeout is None else timeout / 2)


@dataclass(slots=True, eq=False)
class _Served:
    """A request that is being served. `data`: all its bytes, if it is a read. `is_in`: whether it counts as in flight.
    `running`: its entry in the list of running queries."""

    connection: DirectConnection
    endpoint: Endpoint
    method: str
    work: Work
    data: bytes
    started: float
    is_in: bool = False
    running: RunningQuery | None = None


class DirectRequests:
    """Serves the requests of all connections to these endpoints. For the event loop's thread only."""

    def __init__(self, context: Context, endpoints: Iterable[Endpoint]) -> None:
        self._context = context
        self._endpoints = {endpoint.path: endpoint for endpoint in endpoints}
        self.pieces_bytes = 0
        """The bytes of all incomplete requests, including the bytes that are still missing."""

    def admits(self, head: PlainHead) -> Endpoint | None:
        """The endpoint for a request with this head; None if it may not be served here."""
        context, endpoint = self._context, self._endpoint(head.path)
        is_admitted = (
            endpoint is not None
            and head.encoding == endpoint.encoding
            and endpoint.takes(head)
            and head.body_bytes <= min(endpoint.body_bytes_max, context.settings.body_bytes_max)
            and context.access.is_open
            and not tracing.is_on()
            and context.cross_site.knows(head.host)
            and (head.method == "POST" or not context.cors.is_on)  # caches must see that responses vary by origin
        )
        return endpoint if is_admitted else None

    def _endpoint(self, path: str) -> Endpoint | None:
        return self._endpoints.get(LABEL_VALUES if label_in(path) else path)

    def has_room(self, size: int) -> bool:
        """Whether an incomplete request of `size` bytes may wait here for its missing bytes."""
        return self.pieces_bytes + size <= PIECES_BYTES_MAX

    def begin(
        self, connection: DirectConnection, endpoint: Endpoint, head: PlainHead, data: bytes, body_at: int
    ) -> asyncio.Future[Any] | None:
        """Serve an admitted request, whose body is data[body_at:]. Returns a future that is done when the request is
        over, or None if the request is left to aiohttp, in which case nothing has been done."""
        work = endpoint.work(head, data[body_at:])
        if work is None:
            return None
        context = REQUEST_ID.set(head.request_id or new_id())
        client = CURRENT_CLIENT.set(connection.holder.client.name)
        try:
            own_data = data if endpoint.is_read else b""
            served = _Served(connection, endpoint, head.method, work, own_data, time.perf_counter())
            return self._begin_work(served, head.body_bytes)
        finally:
            CURRENT_CLIENT.reset(client)
            REQUEST_ID.reset(context)

    def _begin_work(self, served: _Served, body_bytes: int) -> PromptFuture[Any]:
        context, connection, endpoint, work = self._context, served.connection, served.endpoint, served.work
        holder, admission = connection.holder, context.admission
        context.connections.heard(connection)
        connection.path = endpoint.path
        admission.take_up(holder, endpoint.path)
        try:
            if context.pressure.is_on:
                context.pressure.require(endpoint.path)
            admission.enter(holder, may_use_reserve=may_use_reserve(endpoint.path))
            served.is_in = True
            admission.hold(holder, body_bytes)
            if work.more_bytes:
                admission.hold(holder, work.more_bytes)
            answer = work.begin(holder)
        except Exception as error:  # `_outcome` distinguishes refusals from defects
            answer = PromptFuture()
            answer.set_exception(error)
        if work.listed_as and served.is_in:
            client = holder.client.name
            served.running = context.running.begin(REQUEST_ID.get(), work.listed_as, work.summary, client, answer)
            work.listed(served.running)
        answer.at_once(partial(self._finish, served))
        return answer

    def _finish(self, served: _Served, answer: asyncio.Future[Any]) -> None:
        """Send the response and count the request, or leave it to aiohttp."""
        context, connection, endpoint = self._context, served.connection, served.endpoint
        try:
            status, text = self._outcome(served, answer)
        except LeftToAiohttp:
            self._end(served)
            connection.left_to_aiohttp(served.data)
        else:
            connection.answered(text)
            if served.is_in:
                context.telemetry.served(served.method, endpoint.path, status, time.perf_counter() - served.started)
            if served.running is not None:
                served.running.status = status
            self._end(served)
        context.waiting_room.admit()
        connection.continue_reading()

    def _end(self, served: _Served) -> None:
        """Release what the request holds."""
        context, holder = self._context, served.connection.holder
        if served.is_in:
            context.admission.leave(holder)
        if served.running is not None:
            context.running.end(served.running)
        context.admission.over(holder)

    def _outcome(self, served: _Served, answer: asyncio.Future[Any]) -> tuple[int, bytes]:
        """(status, whole response). Raises LeftToAiohttp."""
        context, path, running = self._context, served.endpoint.path, served.running
        is_canceled = running is not None and running.is_canceled and served.connection.is_open
        if answer.cancelled() and not is_canceled:
            return CLIENT_LEFT, b""
        try:
            if running is not None and answer.cancelled():
                raise running.canceled()
            body = served.work.body(answer.result())
        except LeftToAiohttp:
            raise
        except TriptychError as error:
            if running is not None:
                running.error = "canceled" if answer.cancelled() else str(error)
            return self._without_aiohttp(refusal(context, path, error))
        except Exception:
            return self._without_aiohttp(failure(served.method, path))
        headers = (*served.work.headers, *context.access.headers.items())
        if body is None:
            return 204, in_one_piece(204, "No Content", headers, b"")
        return 200, with_head(head_of(200, "OK", headers), body)

    def _without_aiohttp(self, response: web.Response) -> tuple[int, bytes]:
        headers = (*response.headers.items(), *self._context.access.headers.items())
        assert isinstance(response.body, bytes)
        return response.status, in_one_piece(response.status, response.reason, headers, response.body)
