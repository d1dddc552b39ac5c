"""Every error that a client can get, each with its HTTP status and its error type in the time-series envelope."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

MESSAGE_CHARS_MAX = 8192
"""The longest message. A message may quote what a client sent, and a name may be as long as a body."""


class TriptychError(Exception):
    """Base of all errors that are sent to a client; `str(error)` is the message."""

    status = 500
    error_type = "internal"
    retry_after_s: tuple[int, int] | None = None
    """The least and greatest number of seconds after which to retry the request; None: unknown or never."""
    reason = "invalid"
    """Why the request was refused or failed, as the metrics count it."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Additional headers of the response."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= MESSAGE_CHARS_MAX else f"{text[:MESSAGE_CHARS_MAX]}… (of {len(text)} characters)"

    def because(self, reason: str) -> Self:
        """Set a more specific reason than the class has. Returns the error."""
        self.reason = reason
        return self


class BadData(TriptychError):
    """The request is malformed; the message names the field, the value and what would be right."""

    status = 400
    error_type = "bad_data"


class ParseError(BadData):
    """A query that is not PromQL; the message begins with `line:column: parse error:`."""


class NotExecutable(TriptychError):
    """A query that parses but cannot be executed (type error, unknown function, limits of a query)."""

    status = 422
    error_type = "bad_data"
    reason = "not_executable"


class OverBudget(NotExecutable):
    """A query that needs more samples or memory than one query may have."""

    reason = "query_budget"


class Unauthorized(TriptychError):
    """The request has no credentials, or unknown ones."""

    status = 401
    error_type = "bad_data"
    reason = "unauthorized"


class Forbidden(TriptychError):
    """The client may not do this; the message says what would allow it."""

    status = 403
    error_type = "bad_data"
    reason = "forbidden"


class NotFound(TriptychError):
    """A named thing that does not exist."""

    status = 404
    error_type = "bad_data"
    reason = "not_found"


class UnknownPath(NotFound):
    """No endpoint has this path. The error type differs, because `bad_data` belongs to the endpoints of the time
    series."""

    error_type = "not_found"


class Conflict(TriptychError):
    """A compare-and-set found a value other than the expected one; the message names both."""

    status = 409
    error_type = "bad_data"
    reason = "conflict"


class MethodNotAllowed(TriptychError):
    """The path does not support the request's HTTP method."""

    status = 405
    error_type = "bad_data"


class TooLarge(TriptychError):
    """A body exceeds its limit, as sent or after decompression."""

    status = 413
    error_type = "bad_data"
    reason = "too_large"


class UnsupportedMediaType(TriptychError):
    """The path does not accept a body of this type or encoding."""

    status = 415
    error_type = "bad_data"


class Overloaded(TriptychError):
    """A queue or in-flight limit is reached: back off and send the request again."""

    status = 503
    error_type = "unavailable"
    retry_after_s = (1, 3)
    reason = "overload"


class Unavailable(TriptychError):
    """A shard is missing, the store refuses writes, or a deadline has passed: back off and send the request again."""

    status = 503
    error_type = "unavailable"
    retry_after_s: tuple[int, int] | None = (2, 5)
    reason = "unavailable"


class DeadlineExceeded(Unavailable):
    """The request's timeout has passed, and work on it has been cancelled."""

    retry_after_s = None
    reason = "deadline"


class Canceled(TriptychError):
    """The query was canceled while it ran."""

    status = 503
    error_type = "canceled"


class TooHeavy(TriptychError):
    """The work needs more CPU time or memory than a light request may use. It is repeated as a heavy request; clients
    never get this error."""


class Internal(TriptychError):
    """A defect of the program. The log has the traceback; the client gets one line."""

    reason = "internal"


class ConfigError(Exception):
    """A setting that cannot be used. It is printed as one line at the start; the exit code is 1."""


_BY_NAME: dict[str, type[TriptychError]] = {
    cls.__name__: cls
    for cls in (
        BadData,
        ParseError,
        NotExecutable,
        OverBudget,
        Forbidden,
        NotFound,
        Conflict,
        MethodNotAllowed,
        TooLarge,
        Overloaded,
        Unavailable,
        DeadlineExceeded,
        TooHeavy,
        Internal,
    )
}


def from_wire(name: str, text: str) -> TriptychError:
    """The error named in a worker's reply; `Internal` for an unknown name."""
    return _BY_NAME.get(name, Internal)(text)
