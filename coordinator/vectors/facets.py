"""Counts and facets: requests, and the workers' counts of values merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

import msgspec

from coordinator.vectors import filters
from coordinator.vectors.decode import decode_json
from coordinator.vectors.decode_protobuf import parse_protobuf
from coordinator.vectors.scroll import RAW_FILTER, filter_of
from coordinator.vectors.values import shown
from proto import vector_pb2
from shared.errors import BadData
from shared.messages.selected_vectors import KINDS, FacetsReply, kind_of
from shared.messages.vectors import VECTOR_FIELD, Condition, Value

LIMIT_DEFAULT = 10
LIMIT_MAX = 10_000


@dataclass(slots=True)
class CountRequest:
    """A request; only facets have `field` and `limit`."""

    collection: str
    filter: Condition | None
    field: str = ""
    limit: int = LIMIT_DEFAULT

    def summary(self) -> str:
        """The request in one line, without the content of the filter."""
        facets = f" field={self.field} limit={self.limit}" if self.field else ""
        return f"collection={self.collection or 'default'}{facets}{'' if self.filter is None else ' filter'}"


class _Count(msgspec.Struct, forbid_unknown_fields=True):
    collection: str = ""
    filter: RAW_FILTER = msgspec.UNSET


class _Facets(msgspec.Struct, forbid_unknown_fields=True):
    field: str
    collection: str = ""
    filter: RAW_FILTER = msgspec.UNSET
    limit: int = LIMIT_DEFAULT


def count_from_json(body: bytes) -> CountRequest:
    """Raises BadData."""
    request = decode_json(body, _Count)
    return CountRequest(request.collection, filter_of(request.filter))


def count_from_protobuf(body: bytes) -> CountRequest:
    """Raises BadData."""
    request = parse_protobuf(body, vector_pb2.CountRequest())
    return CountRequest(request.collection, _filter(request))


def facets_from_json(body: bytes) -> CountRequest:
    """Raises BadData."""
    request = decode_json(body, _Facets)
    return _checked(CountRequest(request.collection, filter_of(request.filter), request.field, request.limit))


def facets_from_protobuf(body: bytes) -> CountRequest:
    """Raises BadData."""
    request = parse_protobuf(body, vector_pb2.FacetsRequest())
    limit = request.limit or LIMIT_DEFAULT
    return _checked(CountRequest(request.collection, _filter(request), request.field, limit))


def _filter(request: vector_pb2.CountRequest | vector_pb2.FacetsRequest) -> Condition | None:
    return filters.from_protobuf_filter(request.filter) if request.HasField("filter") else None


def _checked(request: CountRequest) -> CountRequest:
    if request.field in ("", VECTOR_FIELD):
        raise BadData(f"field is {shown(request.field)}; it must be the name of an attribute")
    if not 1 <= request.limit <= LIMIT_MAX:
        raise BadData(f"limit is {request.limit}; it must be 1 to {LIMIT_MAX}")
    return request


def most_frequent(replies: Sequence[FacetsReply], limit: int) -> list[tuple[Value, int]]:
    """(value, how many vectors have it) of the `limit` most frequent values, equally frequent ones in the order of
    KINDS and of the values."""
    counts: dict[tuple[bool, Value], int] = {}  # True is equal to 1, but not the same value
    for reply in replies:
        for value, count in zip(reply.values, reply.counts, strict=True):
            key = (isinstance(value, bool), value)
            counts[key] = counts.get(key, 0) + count
    if len(counts) > limit:
        # Of values that are less frequent than the least in the answer, the order need not be known.
        least = sorted(counts.values(), reverse=True)[limit - 1]
        counts = {key: count for key, count in counts.items() if count >= least}
    ranks = {kind: rank for rank, kind in enumerate(KINDS)}
    best = nsmallest(limit, counts.items(), key=lambda item: (-item[1], ranks[kind_of(item[0][1])], item[0][1]))
    return [(value, count) for (_, value), count in best]
