"""Structured logs: one line per event, with `key=value` pairs after the message."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from typing import Any

logger = logging.getLogger("triptych")

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the HTTP request that the current task or thread serves; empty if there is none."""


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        pairs = "".join(f" {key}={_quote(value)}" for key, value in fields.items())
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}"
        trace = ""
        if record.exc_info:
            trace = " trace=" + _quote(self.formatException(record.exc_info))
        return f"{stamp} {record.levelname.lower()} {record.getMessage()}{pairs}{trace}"


def _quote(value: Any) -> str:
    text = str(value)
    plain = text and all(c.isprintable() and c not in ' "=' for c in text)
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def configure(level: str) -> None:
    """Log events of this level and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def event(level: int, message: str, *, trace: Any = False, **fields: Any) -> None:
    """Log one event: `event(logging.INFO, "shard loaded", shard=3, ms=12)`.

    If `trace` is true, the line has the traceback of the exception being handled. A line that is written for an HTTP
    request has its id as the last field.
    """
    request_id = REQUEST_ID.get()
    if request_id:
        fields["request"] = request_id
    logger.log(level, message, extra={"fields": fields}, exc_info=bool(trace))
