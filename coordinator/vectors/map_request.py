"""Parses requests for the map of a collection, in JSON or protobuf."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from coordinator.vectors import filters
from coordinator.vectors.decode import decode_json
from coordinator.vectors.decode_protobuf import parse_protobuf
from coordinator.vectors.scroll import RAW_FILTER, filter_of
from proto import vector_pb2
from shared.errors import BadData
from shared.messages.vector_map import SAMPLE_MAX
from shared.messages.vectors import VECTOR_FIELD, Condition

LIMIT_DEFAULT = 1000
COMPONENTS_MAX = 8 << 20
"""The components of all vectors on a map together: each is multiplied some ten times."""


def points_max(dimension: int) -> int:
    """The limit on vectors with so many components on one map."""
    return min(SAMPLE_MAX, COMPONENTS_MAX // dimension)


@dataclass(slots=True)
class MapRequest:
    """`limit`: vectors on the map; `attribute`: the one whose values are returned, empty for none."""

    collection: str
    filter: Condition | None = None
    limit: int = LIMIT_DEFAULT
    attribute: str = ""

    def summary(self) -> str:
        """The request in one line, without the content of the filter."""
        attribute = f" attribute={self.attribute}" if self.attribute else ""
        filtered = "" if self.filter is None else " filter"
        return f"collection={self.collection or 'default'} limit={self.limit}{attribute}{filtered}"


class _Map(msgspec.Struct, forbid_unknown_fields=True):
    collection: str = ""
    filter: RAW_FILTER = msgspec.UNSET
    limit: int = LIMIT_DEFAULT
    attribute: str = ""


def from_json(body: bytes) -> MapRequest:
    """Raises BadData."""
    request = decode_json(body, _Map)
    return _checked(MapRequest(request.collection, filter_of(request.filter), request.limit, request.attribute))


def from_protobuf(body: bytes) -> MapRequest:
    """Raises BadData."""
    request = parse_protobuf(body, vector_pb2.MapRequest())
    condition = filters.from_protobuf_filter(request.filter) if request.HasField("filter") else None
    return _checked(MapRequest(request.collection, condition, request.limit or LIMIT_DEFAULT, request.attribute))


def _checked(request: MapRequest) -> MapRequest:
    if not 1 <= request.limit <= SAMPLE_MAX:
        raise BadData(f"limit is {request.limit}; it must be 1 to {SAMPLE_MAX}")
    if request.attribute == VECTOR_FIELD:
        raise BadData(f"attribute is {VECTOR_FIELD!r}; it must be the name of another attribute")
    return request
