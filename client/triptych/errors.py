"""The errors of requests, by the status of the answer. `str(error)` is the server's message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MESSAGE_CHARS_MAX = 2000
"""Characters of an answer that an error shows if it is not in one of the server's envelopes, such as a proxy's page."""


class TriptychError(Exception):
    """Base of all errors of this client. `status`: of the answer; 0 if there was none."""

    status = 0
    retry_after_s: float | None = None
    """The pause that the answer asks for."""


class BadRequest(TriptychError):
    """The request is malformed; the message names what was wrong and what would be right."""


class NotExecutable(BadRequest):
    """A query that parses but cannot be executed."""


class TooLarge(BadRequest):
    """The request is larger than a limit, which the message names."""


class Unauthorized(TriptychError):
    """The request has no credential, or one that is not known."""


class Forbidden(TriptychError):
    """The credential does not allow this; the message names the role that would."""


class NotFound(TriptychError):
    """There is nothing of this name."""


class Conflict(TriptychError):
    """A compare-and-set has found another value, or the slots of a group's member have changed. `generation`: the one
    with which the member continues; None: join again."""

    generation: int | None = None


class ServerError(TriptychError):
    """The server failed."""


class Unavailable(TriptychError):
    """The server or a proxy has no room, or a shard is missing. The same request may succeed later; unless it is
    idempotent, a 503 may leave open whether it was carried out."""


class OutOfTime(Unavailable):
    """The server has given up: the time limit of the request is over, or the query was canceled. The same request would
    end in the same way, unless it completes what an earlier attempt has begun."""


class Throttled(Unavailable):
    """429: too many requests. This one was not carried out."""


class ConnectionFailed(TriptychError):
    """The connection ended before the answer was complete: it is not known whether the request was carried out."""


class NotConnected(ConnectionFailed):
    """No connection could be made: the request was not sent."""


class NotTrusted(NotConnected):
    """The server's certificate is not signed by `ca`, has expired, or belongs to another server. The next attempt would
    find the same certificate."""


class TimedOut(ConnectionFailed):
    """The answer did not come in time: it is not known whether the request was carried out."""


class PartialAnswer(UserWarning):
    """Something is missing from an answer that is otherwise right, such as the data of a shard that is down."""


_BY_STATUS: Mapping[int, type[TriptychError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: NotExecutable,
    429: Throttled,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> TriptychError:
    """The error for an answer with this status. `headers`: with names in lower case."""
    content = _content(body)
    message = content.get("message") or content.get("error") or body[:MESSAGE_CHARS_MAX].decode("utf-8", "replace")
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else BadRequest)
    retry_after_s = _seconds(headers.get("retry-after", ""))
    if status == 503 and content.get("status") == "error" and retry_after_s is None:
        kind = OutOfTime  # the server itself says when to come back, where that helps; a proxy may not
    error = kind(message or f"the answer has the status {status}")
    error.status = status
    error.retry_after_s = retry_after_s
    if isinstance(error, Conflict):
        error.generation = content.get("generation")
    return error


def _content(body: bytes) -> Mapping[str, Any]:
    try:
        content = json.loads(body)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _seconds(text: str) -> float | None:
    """Reads only the form in seconds: a date would need synchronised clocks."""
    return float(text) if text.isascii() and text.isdigit() else None
