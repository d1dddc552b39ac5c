"""The HTTP protocol of a connection: aiohttp's, with limits on what a client may leave unfinished and with our errors.

A connection reports to `Connections` what it waits for. The response to malformed HTTP has the envelope of the path's
area, and the error is logged in one line. By default, aiohttp responds in plain text and logs the parser's traceback.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from aiohttp import hdrs, http_exceptions, web
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from coordinator.access.gatekeeper import Gatekeeper
from coordinator.headers.cors import Cors
from coordinator.headers.request_ids import id_in
from coordinator.http import kernel_buffers
from coordinator.http.early_refusal import end_of_request, path_of_whole, refusal
from coordinator.http.responses import error_answer
from coordinator.limits.admission import Holder
from coordinator.limits.connections import Connections
from coordinator.limits.pressure import Pressure
from coordinator.limits.waiting_room import WaitingRoom
from shared import errors
from shared.telemetry import event

HEAD_BYTES = 512
"""The number of bytes kept from the beginning of a request, to find its path if the parser refuses it."""
REASON_CHARS_MAX = 200
HEAD_BYTES_MAX = 256 << 10
"""The limit on all lines of a head together; one line may have 64 KiB."""
HEAD_BYTES_FAIR = 8 << 10
"""While all incomplete heads together take too much memory, those above this size are refused."""
PIPELINED_MAX = 2
"""The most complete requests that wait behind the one being served. Reading stops at this number."""
UNSENT_BYTES_PAUSE = 16 << 10
"""A client counts as slow, and nothing more is written to it, if the kernel does not accept more than this."""

_REQUEST_LINE = re.compile(rb"[A-Z]{1,16} +(?:https?://[^/ ]*)?(/[^?# \r\n]*)")


class Connection(RequestHandler):
    """One connection. If the parser refuses a request, its path is taken from the beginning of its data if possible."""

    __slots__ = (
        "_access",
        "_body",
        "_body_bytes",
        "_connections",
        "_cors",
        "_first",
        "_give_up",
        "_is_refused",
        "_latest",
        "_pressure",
        "_requests_answered",
        "_stays_open",
        "_unread",
        "_waiting_room",
        "_wire",
        "head_bytes",
        "holder",
        "path",
    )

    holder: Holder

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._max_msg_queue_size, self._msg_queue_resume_size = PIPELINED_MAX, PIPELINED_MAX - 1
        self._connections = server.registry
        self._pressure = server.pressure
        self._access = server.access
        self._cors = server.cors
        self._give_up: Callable[[], object] | None = None
        """Ends the handshake in progress."""
        self._waiting_room = server.waiting_room
        self._unread = b""
        """The bytes of the request that waits in the waiting room, if any."""
        self._wire: asyncio.Transport | None = None
        """The transport until the connection is lost. aiohttp drops its own reference when it begins to close it."""
        self._body: StreamReader = EMPTY_PAYLOAD
        self._body_bytes = 0
        """The body size of the last request that aiohttp has read; 0 if its head does not have it."""
        self._first = self._latest = b""
        self._requests_answered = 0
        """The number of requests read by aiohttp that are answered. aiohttp is ready for the next request only in a
        later iteration of the event loop, and many clients send it earlier."""
        self._stays_open = True  # whether aiohttp keeps the connection open after its last response
        self._is_refused = False
        self.head_bytes = 0
        self.path = "/"
        """The path of the last request with a complete head."""

    # What a client may leave unfinished

    def accepted(self, address: str, give_up: Callable[[], object]) -> bool:
        """See `coordinator.limits.handshakes.Secured`."""
        self._give_up = give_up
        return self._connections.opened(self, address)

    def gave_up(self) -> None:
        self._give_up = None
        self._connections.lost(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        real = self._wire = cast(asyncio.Transport, transport)
        if not self._may_stay(real):
            real.abort()
            return
        real.set_write_buffer_limits(high=UNSENT_BYTES_PAUSE)
        kernel_buffers.bound(real.get_extra_info("socket"), self._connections.reader_timeout_s)
        super().connection_made(transport)

    def _may_stay(self, transport: asyncio.Transport) -> bool:
        """Whether there is room for the connection, and its client's certificate is accepted."""
        if self._give_up is None:
            peer = transport.get_extra_info("peername")
            return self._connections.opened(self, peer[0] if peer else "")
        self._give_up = None
        tls = self._access.tls
        why = tls.refusal(transport.get_extra_info("peercert")) if tls is not None else ""
        if why:
            event(logging.INFO, "client refused", remote=self.holder.address, why=why)
        return not why and self in self._connections.open

    def connection_lost(self, error: BaseException | None) -> None:
        self._wire = None
        self._waiting_room.leave(self)
        self._connections.admission.over(self.holder)
        self._connections.lost(self)
        super().connection_lost(error)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connections.unread(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connections.taken(self)

    def rested(self) -> None:
        """The request has been answered."""
        if not self._messages:
            self._connections.rested(self)

    def end(self) -> None:
        if self._give_up is not None:
            self._give_up()
        if self._wire is None:
            return
        if self.writing_paused:
            kernel_buffers.drop_unsent(self._wire.get_extra_info("socket"))
        self._wire.abort()

    def unsent_bytes(self) -> int:
        return 0 if self._wire is None else self._wire.get_write_buffer_size()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """aiohttp calls this whenever a body has been read, and would start its parser for nothing although reading was
        not paused."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return  # the following bytes cannot be parsed; the connection ends with the response
        if self._unread:
            data = self._take_back() + data  # pipelined requests are left to aiohttp
        elif (self._pressure.bounds_now() and self._is_kept(data)) or self._is_served_directly(data):
            return
        # The parser drops requests that arrive in one piece with a malformed one, and they would get no response.
        begin = 0
        while end := self._end_of_piece(data, begin):
            self._read(data[begin:end])
            begin = end
            if self._is_refused:
                return
        self._read(data[begin:])

    def _end_of_piece(self, data: bytes, begin: int) -> int:
        """The end of the next piece of data[begin:] if more follows it: the rest of a body, the rest of a head, or a
        whole request. 0 if nothing follows it or its end is unknown."""
        if not self._body.is_eof():
            end = begin + self._body_bytes - self._body.total_bytes
        elif self.head_bytes:
            at = -1 if begin else data.find(b"\r\n\r\n")
            end = 0 if at < 0 else at + 4
        else:
            end = end_of_request(data, begin)
        return end if begin < end < len(data) else 0

    def _read(self, data: bytes) -> None:
        self._latest = data[:HEAD_BYTES]
        if not self._first:
            self._first = self._latest
        requests = self._request_count
        is_body = not self._body.is_eof()
        super().data_received(data)
        if self._request_count != requests:
            self._connections.heard(self)
            self._connections.admission.announce(self.holder, self._latest_path())
            if self._messages:
                self._note_request()
        elif not is_body and data:
            is_within_limit = self._connections.begun(self, len(data))
            if self.head_bytes > HEAD_BYTES_MAX:
                self._refuse(http_exceptions.BadHttpMessage(f"its head is larger than {HEAD_BYTES_MAX} bytes"))
            elif not is_within_limit and self.head_bytes > HEAD_BYTES_FAIR:
                self._refuse(errors.Overloaded("too many heads of requests are not complete; try again later"))

    def _is_served_directly(self, data: bytes) -> bool:
        """Serve the data as a request without aiohttp if possible (coordinator/direct/requests.py). Returns whether it
        is."""
        return False

    # Under pressure

    def _is_kept(self, data: bytes) -> bool:
        """Refuse a request because of overload, or have it wait for its turn. Returns whether either was done. Without
        aiohttp, this costs a tenth, and it is possible if the request arrived in one piece and its connection is
        between requests."""
        if not self.is_between_requests or self.writing_paused or self._wire is None:
            return False
        path = path_of_whole(data)
        if path is None:
            return False
        why = self._pressure.memory_refusal(path)
        if not why and not self._pressure.has_to_wait(path):
            return False
        self._connections.heard(self)
        self._unread, self.path = data, path
        if why:
            self.turn_away(why)
        else:
            self._waiting_room.enter(self, self.holder.client, path)
        return True

    async def _handle_request(self, *arguments: Any) -> tuple[web.StreamResponse, bool]:
        """aiohttp calls this for each request that it has read. It returns when the response has been written."""
        self._stays_open = False
        try:
            response, is_lost = await super()._handle_request(*arguments)
            self._stays_open = bool(response.keep_alive)
            return response, is_lost
        finally:
            self._requests_answered += 1

    @property
    def is_between_requests(self) -> bool:
        """Whether every request that aiohttp has read is answered, and another request may follow."""
        is_over = self._requests_answered == self._request_count and self._body.is_eof()
        return is_over and self._stays_open and not self.head_bytes

    def go_on(self) -> None:
        """Serve the request that has waited: it is its turn."""
        data, self._unread = self._unread, b""
        if not self._is_served_directly(data):
            self._read(data)

    def turn_away(self, why: str) -> None:
        """Refuse the waiting request."""
        data, self._unread = self._unread, b""
        if self._wire is not None:
            header_lines = self._access.header_lines + self._cors.header_lines(data)
            self._wire.write(refusal(self.path, why, id_in(data), header_lines))
        self._connections.rested(self)

    def _take_back(self) -> bytes:
        """Remove the request from the waiting room. Returns its bytes."""
        self._waiting_room.leave(self)
        data, self._unread = self._unread, b""
        return data

    def _note_request(self) -> None:
        message, self._body = self._messages[-1]
        if not isinstance(message, _ErrInfo):
            self._first = b""
            self._body_bytes = 0 if message.chunked else int(message.headers.get(hdrs.CONTENT_LENGTH, 0))
            return
        self._is_refused = True
        if self._current_request is not None and not self._current_request.content.is_eof():
            # The body of the current request can never be complete, so its handler gets the error.
            self._current_request.content.set_exception(web.RequestPayloadError(_reason(cast(Any, message.exc))))

    def _refuse(self, error: Exception) -> None:
        """Respond to a request whose head is refused before it is complete, and close the connection."""
        self._connections.heard(self)
        self._is_refused = True
        self._request_count += 1
        self._messages.append((_ErrInfo(status=400, exc=error, message=str(error)), EMPTY_PAYLOAD))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _latest_path(self) -> str:
        """As `_path`, but cheaper if the parser has found the path."""
        target = getattr(self._messages[-1][0], "path", "") if self._messages else ""
        return target.partition("?")[0] if target.startswith("/") else self._path()

    def _path(self) -> str:
        for data in (self._latest, self._first):
            line = _REQUEST_LINE.match(data)
            if line is not None:
                return line[1].decode("ascii", "replace")
        return self.path

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The response to a request that the parser refused or whose handler failed. The connection is closed after it.

        Raises ConnectionError if part of a response has already been sent.
        """
        if isinstance(exc, http_exceptions.HttpProcessingError):
            path = self._path()
            error: errors.TriptychError = errors.BadData(f"the request is not valid HTTP: {_reason(exc)}")
            event(logging.INFO, "malformed request", remote=request.remote, path=path, why=_reason(exc))
        elif isinstance(exc, ConnectionError):
            raise exc  # the client has disconnected
        elif isinstance(exc, errors.TriptychError):
            path, error = self._path(), exc
        else:
            path = request.path
            error = errors.Internal("an internal error; the coordinator's log has the reason")
            event(logging.ERROR, "request failed", trace=exc is not None, path=path, why=exc or message or status)
        if request.writer.output_size > 0:
            raise ConnectionError("part of an answer has been sent; a second answer would be read as a part of it")
        response = error_answer(path, error)
        response.force_close()
        return response

    @property
    def headers_of_every_answer(self) -> Mapping[str, str]:
        return self._access.headers

    def log_exception(self, *args: Any, **options: Any) -> None:
        if isinstance(options.get("exc_info"), web.RequestPayloadError):
            return  # the rest of a body that was already refused
        event(logging.ERROR, "connection failed", trace=True, why=args[0] if args else "")


def connection_of(request: web.BaseRequest) -> Connection:
    """The connection on which the request arrived."""
    return cast(Connection, request.protocol)


def client_of(request: web.BaseRequest) -> str:
    """The name of the client that sent the request."""
    return connection_of(request).holder.client.name


class Server(web.Server):
    """Creates a `Connection` for each accepted connection. It reports to the registry what it waits for."""

    def __init__(
        self,
        handler: Any,
        registry: Connections,
        pressure: Pressure,
        waiting_room: WaitingRoom,
        access: Gatekeeper,
        cors: Cors,
        connection: Callable[..., Connection] = Connection,
        **options: Any,
    ) -> None:
        super().__init__(handler, **options)
        self._connection = connection
        self.access = access
        self.cors = cors
        self.registry = registry
        self.pressure = pressure
        self.waiting_room = waiting_room

    def __call__(self) -> RequestHandler:
        return self._connection(self, loop=self._loop, **self._kwargs)


def _reason(error: http_exceptions.HttpProcessingError) -> str:
    """The parser's reason as one short line."""
    if isinstance(error, http_exceptions.LineTooLong):
        return (
            f"a line of its head is longer than {error.args[1]} bytes; long queries can be sent as the body of a POST"
        )
    if isinstance(error, http_exceptions.InvalidURLError):
        return "its URL cannot be read"
    lines = [line.strip(" :") for line in error.message.splitlines() if line.strip(" :")]
    text = (lines or [type(error).__name__])[0]
    return text[:REASON_CHARS_MAX].encode(errors="replace").decode()
