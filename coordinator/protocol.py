"""Answers malformed HTTP with an error in the envelope of the path's area, and logs it in one line.

By default, aiohttp answers a head or body that its parser refuses in plain text, and logs the parser's traceback. This
module changes nothing else of its protocol.
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
"""Bytes kept of a request's beginning, to find its path when the parser refuses it: our paths are shorter."""
REASON_CHARS_MAX = 200

_REQUEST_LINE = re.compile(rb"[A-Z]{1,16} +(?:https?://[^/ ]*)?(/[^?# \r\n]*)")


class Connection(RequestHandler):
    """One connection. The path of a refused request is read from the beginning of its data if possible."""

    __slots__ = ("_first", "_latest", "path")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._first = self._latest = b""
        self.path = "/"
        """Path of the last request whose head was complete."""

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
                # The body of the request being served can never be complete: its handler gets the error.
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
        """The answer to a request that the parser refused or whose handler failed. The connection is closed after it.

        Raises ConnectionError when part of an answer has been sent already.
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
            raise ConnectionError("part of an answer has been sent; a second answer would be read as a part of it")
        response = error_answer(path, error)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        if isinstance(options.get("exc_info"), web.RequestPayloadError):
            return  # the rest of a body that was refused already
        event(logging.ERROR, "connection failed", trace=True, why=args[0] if args else "")


class Server(web.Server):
    """Creates a `Connection` for each accepted connection."""

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
