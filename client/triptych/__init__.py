"""The Python client of Triptych: metrics, the log and vectors. See `Client`, and `AsyncClient` for asyncio."""

from __future__ import annotations

from triptych.async_client import AsyncClient
from triptych.client import Client
from triptych.errors import (
    BadRequest,
    Conflict,
    ConnectionFailed,
    Forbidden,
    NotConnected,
    NotExecutable,
    NotFound,
    NotTrusted,
    OutOfTime,
    PartialAnswer,
    ServerError,
    Throttled,
    TimedOut,
    TooLarge,
    TriptychError,
    Unauthorized,
    Unavailable,
)
from triptych.records import NewRecord, Record
from triptych.series import QueryResult, Series

__all__ = [
    "AsyncClient",
    "BadRequest",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Forbidden",
    "NewRecord",
    "NotConnected",
    "NotExecutable",
    "NotFound",
    "NotTrusted",
    "OutOfTime",
    "PartialAnswer",
    "QueryResult",
    "Record",
    "Series",
    "ServerError",
    "Throttled",
    "TimedOut",
    "TooLarge",
    "TriptychError",
    "Unauthorized",
    "Unavailable",
]
