"""Every error that a client can get, each with its HTTP status and its error type in the time-series envelope."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

MESSAGE_CHARS_MAX = 8192
"""Of a message, which may quote what a client has sent: a name may be as long as a body."""


class TriptychError(Exception):
    """Base of all errors that are sent to a client; `str(error)` is the message."""

    status = 500
    error_type = "internal"
    retry_after_s: tuple[int, int] | None = None
    """Within how many seconds, least and most, the same request may succeed; None: nobody knows, or never."""
    reason = "invalid"
    """Why the request was refused or failed, as the metrics count it."""
    headers: Mapping[str, str] = MappingProxyType({})
    """What the head of the answer says beside."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= MESSAGE_CHARS_MAX else f"{text[:MESSAGE_CHARS_MAX]}… (of {len(text)} characters)"

    def because(self, reason: str) -> Self:
        """The error, with a reason that says more than its class does."""
        self.reason = reason
        return self


class BadData(TriptychError):
    """The request is malformed: the message names the field, the value seen and what would be right."""

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
    """The request has no credential, or one that is not known."""

    status = 401
    error_type = "bad_data"
    reason = "unauthorized"


class Forbidden(TriptychError):
    """The client may not do this; the message says what would admit it."""

    status = 403
    error_type = "bad_data"
    reason = "forbidden"


class NotFound(TriptychError):
    """A named thing that does not exist."""

    status = 404
    error_type = "bad_data"
    reason = "not_found"


class UnknownPath(NotFound):
    """A path that no endpoint has: the types of the time-series area are of its endpoints, and this is none of them."""

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
    """A body, or what it decompresses to, is over its limit."""

    status = 413
    error_type = "bad_data"
    reason = "too_large"


class UnsupportedMediaType(TriptychError):
    """A body of a type, or of an encoding, that the path does not take."""

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
    """Somebody has canceled the query while it was served."""

    status = 503
    error_type = "canceled"


class TooHeavy(TriptychError):
    """Work needs more processor time or memory than a light request may have. It is done again as a heavy one; no
    client meets this error."""


class Internal(TriptychError):
    """A defect of the program. The log has the traceback; the client gets one line."""

    reason = "internal"


class ConfigError(Exception):
    """A setting that cannot be used; printed as one line at start, exit code 1."""


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
    """The error that a worker's reply names; an unknown name becomes `Internal`."""
    return _BY_NAME.get(name, Internal)(text)
