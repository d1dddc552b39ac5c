"""Requests of remote read: the series, times and forms that they request.

Protocol: https://prometheus.io/docs/prometheus/latest/querying/remote_read_api/ and the messages in
`proto/remote_read.proto`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from google.protobuf.message import DecodeError

from coordinator.queries.planner import LEAVES_MAX
from proto import remote_read_pb2
from shared.errors import BadData
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.promql import printer
from shared.promql.ast import Matcher, VectorSelector
from shared.wire import Frame

OPERATORS: Final[tuple[Literal["=", "!=", "=~", "!~"], ...]] = ("=", "!=", "=~", "!~")
"""Operators, by their number in a matcher message."""
SERIES_ONLY = "series"
"""The hint of a client that wants only the series, not their samples."""


class ResponseType(IntEnum):
    SAMPLES = 0
    STREAMED_XOR_CHUNKS = 1


_TYPES = {kind.value: kind for kind in ResponseType}


@dataclass(frozen=True, slots=True)
class ReadSelection:
    """One query of a request: all samples with start_ms ≤ t ≤ end_ms of the series that `text` selects, or only the
    labels of these series (`labels_only`)."""

    text: str
    start_ms: int
    end_ms: int
    labels_only: bool


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """`accepted`: the known forms of the response that the client accepts, in its order of preference."""

    selections: tuple[ReadSelection, ...]
    accepted: tuple[ResponseType, ...]


def decode(body: Frame) -> ReadRequest:
    """Decode a request. Raises BadData if it is no request of remote read. Selectors are not checked yet."""
    try:
        message = remote_read_pb2.ReadRequest.FromString(bytes(body))
    except DecodeError as error:
        raise BadData(f"the body is not a prometheus.ReadRequest: {error}") from None
    if len(message.queries) > LEAVES_MAX:
        raise BadData(f"the request has {len(message.queries)} queries; the limit is {LEAVES_MAX}")
    selections = tuple(_selection(number, query) for number, query in enumerate(message.queries))
    return ReadRequest(selections, _accepted(message.accepted_response_types))


def _selection(number: int, query: remote_read_pb2.Query) -> ReadSelection:
    matchers = []
    for matcher in query.matchers:
        if not 0 <= matcher.type < len(OPERATORS):
            raise BadData(f"query {number}: a matcher has the type {matcher.type}; right are 0 to 3: =, !=, =~ and !~")
        matchers.append(Matcher(matcher.name, OPERATORS[matcher.type], matcher.value))
    start_ms, end_ms = _time_range(query)
    if end_ms < start_ms:
        raise BadData(f"query {number} ends at {end_ms} ms; it must not end before it starts, at {start_ms} ms")
    text = printer.to_text(VectorSelector(None, tuple(matchers)))
    return ReadSelection(text, start_ms, end_ms, query.hints.func == SERIES_ONLY)


def _time_range(query: remote_read_pb2.Query) -> tuple[int, int]:
    """(start, end) of the query in ms. The query's own times are those of a whole PromQL query; the hints, if set, say
    which part of them this selector needs."""
    start_ms, end_ms, hints = query.start_timestamp_ms, query.end_timestamp_ms, query.hints
    if hints.end_ms > 0 and start_ms <= hints.end_ms and hints.start_ms <= min(end_ms, hints.end_ms):
        start_ms, end_ms = max(start_ms, hints.start_ms), min(end_ms, hints.end_ms)
    return _within_bounds(start_ms), _within_bounds(end_ms)


def _within_bounds(time_ms: int) -> int:
    return min(max(time_ms, TIME_MS_MIN), TIME_MS_MAX)


def _accepted(types: Sequence[int]) -> tuple[ResponseType, ...]:
    """Raises BadData if none is known. A client that names none gets samples, because it is older than the other
    form."""
    known = tuple(_TYPES[number] for number in dict.fromkeys(types) if number in _TYPES)
    if types and not known:
        raise BadData(
            f"accepted_response_types is {list(types)[:10]}; it must have 0 (SAMPLES) or 1 (STREAMED_XOR_CHUNKS)"
        )
    return known or (ResponseType.SAMPLES,)
