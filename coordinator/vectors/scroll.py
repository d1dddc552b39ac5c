"""Scrolls: requests for a page, tokens of pages, and the workers' pages merged into one."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from coordinator.vectors import filters
from coordinator.vectors.decode import decode_json, included
from coordinator.vectors.decode_protobuf import parse_protobuf
from coordinator.vectors.stored import StoredVector, stored_vectors
from coordinator.vectors.values import shown
from proto import vector_pb2
from shared import wire
from shared.errors import BadData
from shared.messages.selected_vectors import KINDS, PAGE_MAX, PageReply, Position, kind_of
from shared.messages.vectors import ID_BYTES_MAX, VECTOR_FIELD, Condition, Value
from shared.wire import Reply

LIMIT_DEFAULT = 10
DIRECTIONS = {"": False, "asc": False, "desc": True}
RAW_FILTER = msgspec.Raw | msgspec.UnsetType


@dataclass(slots=True)
class ScrollRequest:
    """A request for one page. `order_field` is empty in a scroll by id; `after`: the end of the page before."""

    collection: str
    filter: Condition | None
    limit: int = LIMIT_DEFAULT
    order_field: str = ""
    descending: bool = False
    after: Position | None = None
    fields: tuple[str, ...] | None = None

    def summary(self) -> str:
        """The request in one line, without the content of the filter."""
        parts = [f"collection={self.collection or 'default'} limit={self.limit}"]
        if self.order_field:
            parts.append(f"orderBy={self.order_field}")
        if self.filter is not None:
            parts.append("filter")
        return " ".join(parts)


class _OrderBy(msgspec.Struct, forbid_unknown_fields=True):
    field: str
    direction: str = ""


class _Scroll(msgspec.Struct, forbid_unknown_fields=True):
    collection: str = ""
    filter: RAW_FILTER = msgspec.UNSET
    limit: int = LIMIT_DEFAULT
    orderBy: _OrderBy | None = None
    order_by: _OrderBy | None = None
    pageToken: str | None = None
    page_token: str | None = None
    includeFields: list[str] | None = None
    include_fields: list[str] | None = None


def filter_of(raw: msgspec.Raw | msgspec.UnsetType) -> Condition | None:
    """The filter of a request in JSON; None if it has none. Raises BadData."""
    if isinstance(raw, msgspec.UnsetType):
        return None
    content = decode_json(raw, object)
    return None if content is None else filters.from_json(content)


def from_json(body: bytes) -> ScrollRequest:
    """Raises BadData."""
    request = decode_json(body, _Scroll)
    order = request.orderBy or request.order_by
    return _checked(
        ScrollRequest(request.collection, filter_of(request.filter), request.limit),
        None if order is None else (order.field, order.direction),
        request.pageToken or request.page_token or "",
        request.includeFields if request.includeFields is not None else request.include_fields,
    )


def from_protobuf(body: bytes) -> ScrollRequest:
    """Raises BadData."""
    request = parse_protobuf(body, vector_pb2.ScrollRequest())
    condition = filters.from_protobuf_filter(request.filter) if request.HasField("filter") else None
    return _checked(
        ScrollRequest(request.collection, condition, request.limit or LIMIT_DEFAULT),
        (request.order_by.field, request.order_by.direction) if request.HasField("order_by") else None,
        request.page_token,
        request.include_fields or None,
    )


def _checked(
    request: ScrollRequest, order: tuple[str, str] | None, token: str, fields: Sequence[str] | None
) -> ScrollRequest:
    if not 1 <= request.limit <= PAGE_MAX:
        raise BadData(f"limit is {request.limit}; it must be 1 to {PAGE_MAX}")
    if order is not None:
        request.order_field, direction = order
        if request.order_field in ("", VECTOR_FIELD):
            raise BadData(f"orderBy.field is {shown(request.order_field)}; it must be the name of an attribute")
        if direction not in DIRECTIONS:
            raise BadData(f"orderBy.direction is {shown(direction)}; it must be 'asc' or 'desc'")
        request.descending = DIRECTIONS[direction]
    request.fields = included(fields)
    if token:
        request.after = _position(token, request)
    return request


# Tokens


class _Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    order_field: str
    descending: bool
    value: Value | None
    id: bytes


def token_of(request: ScrollRequest, end: Position) -> str:
    """The token of the page after `end`."""
    packed = msgspec.msgpack.encode(_Token(request.order_field, request.descending, end.value, end.id))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def _position(token: str, request: ScrollRequest) -> Position:
    """The position in a token. Raises BadData for a token that is not of a scroll in the order of the request."""
    try:
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        content = msgspec.msgpack.decode(packed, type=_Token)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        content = None
    if content is None or not 1 <= len(content.id) <= ID_BYTES_MAX:
        raise BadData(f"pageToken is {shown(token)}; it must be the nextPageToken of the page before, unchanged")
    if (content.order_field, content.descending) != (request.order_field, request.descending):
        order = f"{content.order_field!r}, {'desc' if content.descending else 'asc'}" if content.order_field else "id"
        raise BadData(f"pageToken is of a scroll in the order of {order}; orderBy must be the same for all its pages")
    if not content.order_field and content.value is not None:
        raise BadData("pageToken has a value, but the scroll is by id")
    return Position(content.value, content.id)


# Merging


@dataclass(slots=True)
class Page:
    """The merged page; `end`: its end, None if it is the last."""

    vectors: list[StoredVector]
    end: Position | None = None


@dataclass(slots=True)
class _Entry:
    """A vector of a worker's page, or (without one) the end of such a page."""

    position: Position
    vector: StoredVector | None


def merge(request: ScrollRequest, replies: Sequence[Reply], dimension: int) -> Page:
    """The first `limit` vectors of all workers. A vector is in the page only if every worker has sent all of its own
    vectors up to it."""
    entries: list[_Entry] = []
    ends: list[_Entry] = []
    page = Page([])
    for reply in replies:
        body = wire.unpack(reply.body, PageReply)
        vectors = stored_vectors(reply.frames, dimension)
        values = body.values if request.order_field else [None] * len(vectors)
        entries += [_Entry(Position(value, v.id), v) for value, v in zip(values, vectors, strict=True)]
        if body.end is not None:
            ends.append(_Entry(body.end, None))
    entries += ends  # the order is stable: a worker's end comes after its last vector, which has the same position
    entries.sort(key=attrgetter("position.id"))
    if request.order_field:
        ranks = {kind: rank for rank, kind in enumerate(KINDS)}
        if request.descending:
            ranks["none"] = -1
        entries.sort(key=lambda entry: _key(entry, ranks), reverse=request.descending)
    last: Position | None = None
    for entry in entries:
        if entry.vector is None:
            page.end = entry.position
            break
        if len(page.vectors) == request.limit:
            page.end = last
            break
        page.vectors.append(entry.vector)
        last = entry.position
    return page


def _key(entry: _Entry, ranks: dict[str, int]) -> tuple[int, Value]:
    value = entry.position.value
    return ranks[kind_of(value)], 0 if value is None else value
