"""Messages about the vectors that a filter selects: pages of them, their number, the values of a field, and changes."""

from __future__ import annotations

import msgspec

from shared.messages.vectors import Collection, Condition, Value

PAGE_MAX = 10_000
"""The most vectors in one page of a scroll."""

KINDS = ("bool", "number", "string", "none")
"""Kinds of values in the order of a scroll by a field. Vectors without an orderable value come last, even in a
descending scroll."""


def kind_of(value: Value | None) -> str:
    """Which of KINDS a value is."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return "string"
    return "bool" if isinstance(value, bool) else "number"


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A vector's place in the order of a scroll: by the field's value (None: it has none, or the scroll is by id), then
    by the id's bytes."""

    value: Value | None
    id: bytes


class SelectionBody(msgspec.Struct):
    """The vectors of a collection that satisfy a filter, or all. Methods vector.count and vector.delete_matching."""

    collection: Collection
    filter: Condition | None = None


class PageBody(msgspec.Struct):
    """Method vector.page: the first `limit` selected vectors after the position `after`, in the order of their ids if
    `order_field` is empty. A worker ends its page early at `bytes_max` of content. `fields`: see SearchBody."""

    collection: Collection
    filter: Condition | None
    order_field: str
    descending: bool
    after: Position | None
    limit: int
    bytes_max: int
    fields: tuple[str, ...] | None = None


class SelectionReply(msgspec.Struct):
    """`unknown`: the filter's fields that no vector of this worker has; `vectors`: how many vectors it has. `nearest`:
    for some of the unknown fields, a field with a similar name."""

    unknown: tuple[str, ...] = ()
    vectors: int = 0
    nearest: dict[str, str] = {}


class PageReply(SelectionReply):
    """Frames: [ids, id lengths, attributes, attribute lengths, vectors float32[n, dimension] or empty], in order; the
    last three are empty if no field is requested. `values`: of the field that orders the scroll; empty if it is by id.

    `end`: the position up to which the worker's vectors are in the page; None: there are no more.
    """

    values: list[Value | None] = []
    end: Position | None = None


class FacetsBody(msgspec.Struct):
    """Method vector.facets: how many of the selected vectors have each value of `field`."""

    collection: Collection
    filter: Condition | None
    field: str


class FacetsReply(SelectionReply):
    """`counts[i]` selected vectors have `values[i]`. The values are distinct, in no particular order."""

    values: list[Value] = []
    counts: list[int] = []


class UpdateBody(msgspec.Struct):
    """Method vector.update: set and remove attributes of the selected vectors; if a shard has a part [ids, id lengths],
    only of those among them. `set`: a msgpack map, or no bytes."""

    collection: Collection
    filter: Condition | None
    set: bytes
    unset: tuple[str, ...]


class SelectedReply(SelectionReply):
    """How many vectors were selected; in methods that change them, how many were deleted or updated."""

    count: int = 0
