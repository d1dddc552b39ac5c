"""The server's end of a connection: what is not HTTP is answered in the envelope of its area, with one line in the log.

aiohttp answers a head or a body that its parser refuses in plain text, and logs the parser's traceback. Nothing else of
its protocol is changed here.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from aiohttp import http_exceptions, web
from aiohttp.web_protocol import RequestHandler

from coordinator.responses import error_answer
from shared import errors
from shared.telemetry import event

HEAD_BYTES = 512
"""Of a request's beginning, kept to tell its path when the parser refuses it: paths of ours are shorter."""
REASON_CHARS_MAX = 200

_REQUEST_LINE = re.compile(rb"[A-Z]{1,16} +(?:https?://[^/ ]*)?(/[^?# \r\n]*)")


class Connection(RequestHandler):
    """One connection. The path of a refused request is the one its data began with, as far as that can be told."""

    __slots__ = ("_first", "_latest", "path")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._first = self._latest = b""
        self.path = "/"
        """Of the last request whose head was whole."""

    def data_received(self, data: bytes) -> None:
        self._latest = data[:HEAD_BYTES]
        if not self._first:
            self._first = self._latest
        requests = self._request_count
        super().data_received(data)
        if self._request_count != requests:
            refused = getattr(self._messages[-1][0], "exc", None) if self._messages else None
            if refused is None:
                self._first = b""
            elif self._current_request is not None and not self._current_request.content.is_eof():
                # The body of the request being served can never be whole: who waits for the rest of it is told.
                self._current_request.content.set_exception(web.RequestPayloadError(_reason(refused)))

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
        """The answer to what the parser refused, or to a request whose handler failed; the connection ends with it.

        Raises ConnectionError when an answer has been begun.
        """
        if isinstance(exc, http_exceptions.HttpProcessingError):
            path = self._path()
            error: errors.TriptychError = errors.BadData(f"the request is not valid HTTP: {_reason(exc)}")
            event(logging.INFO, "malformed request", remote=request.remote, path=path, why=_reason(exc))
        else:
            path = request.path
            error = errors.Internal("an internal error; the coordinator's log has the reason")
            event(logging.ERROR, "request failed", trace=exc is not None, path=path, why=exc or message or status)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has been begun; a second one would be read as a part of it")
        response = error_answer(path, error)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        if isinstance(options.get("exc_info"), web.RequestPayloadError):
            return  # what is left of a body that was refused already
        event(logging.ERROR, "connection failed", trace=True, why=args[0] if args else "")


class Server(web.Server):
    """Makes a `Connection` for each that is accepted."""

    def __call__(self) -> RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)


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
