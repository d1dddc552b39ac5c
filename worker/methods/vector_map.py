"""The worker's methods for the map of a collection, and for the names of its attributes."""

from __future__ import annotations

import time

import numpy as np

from shared import wire
from shared.messages.vector_map import (
    NAMES_MAX,
    AttributesBody,
    AttributesReply,
    CoordinatesBody,
    CoordinatesReply,
    MomentsBody,
    MomentsReply,
    SampleBody,
    SampleReply,
    SpreadBody,
)
from shared.messages.vectors import Collection, Floats, Value, floats, pack_blobs, unpack_blobs
from shared.wire import Reply, Request
from worker.methods.method import Method
from worker.methods.selected_vectors import selection_of, with_selection_facts
from worker.methods.vectors import Shards
from worker.vectors import projection
from worker.vectors.selection import Selection
from worker.vectors.similarity import Rows
from worker.vectors.table import TableView

VALUE_CHARS_MAX = 200
"""Longest text on a map, where it labels a colour in the legend; texts of 1 MiB for 5,000 vectors would take 5 GB."""


def sample(shards: Shards, request: Request) -> Reply:
    """The vectors of a map, as described in `SampleBody`."""
    body = wire.unpack(request.body, SampleBody)
    selection = selection_of(shards, request, body.collection, body.filter)
    if selection is None:
        return Reply(wire.pack(SampleReply()), [b"", b"", b""])
    if body.attribute:
        selection.fields.add(body.attribute)
    view, rows, draws, count = projection.drawn(selection, body.limit)
    reply = with_selection_facts(SampleReply(count=count), selection)
    return Reply(wire.pack(reply), [draws.tobytes(), *pack_blobs(view.ids.take(rows))])


def _sampled(
    shards: Shards, request: Request, collection: Collection
) -> tuple[Selection, TableView, list[bytes], Rows] | None:
    """(selection, view, the requested ids that exist in the view, their rows). None if no shard has a vector of the
    collection. As in a search, nothing waits for a writer or for the index, whose background work pauses meanwhile."""
    selection = selection_of(shards, request, collection, None)
    if selection is None:
        return None
    ids: list[bytes] = []
    for number in shards:
        part = request.parts.get(number)
        ids += unpack_blobs(part[0], part[1]) if part else []
    selection.collection.searched_at = time.monotonic()
    view = selection.collection.view()
    rows = view.ids.latest(ids)
    rows[rows >= view.size] = -1  # replaced after the view was taken
    positions = np.flatnonzero((rows >= 0) & view.alive[rows])
    return selection, view, [ids[position] for position in positions.tolist()], rows[positions]


def moments(shards: Shards, request: Request) -> Reply:
    """The sum of the sample's vectors, as described in `MomentsBody`."""
    body = wire.unpack(request.body, MomentsBody)
    sampled = _sampled(shards, request, body.collection)
    if sampled is None:
        return Reply(wire.pack(MomentsReply(0, 0.0)), [np.zeros(body.collection.dimension).tobytes()])
    selection, view, _, rows = sampled
    total, largest = projection.moments(view, rows, selection.check)
    return Reply(wire.pack(MomentsReply(len(rows), largest)), [total.tobytes()])


def spread(shards: Shards, request: Request) -> Reply:
    """One step towards the axes, as described in `SpreadBody`."""
    body = wire.unpack(request.body, SpreadBody)
    mean, axes = _axes(request, body.collection.dimension)
    sampled = _sampled(shards, request, body.collection)
    if sampled is None:
        return Reply(b"", [np.zeros_like(axes).tobytes()])
    selection, view, _, rows = sampled
    products = projection.spread(view, rows, body.scale, mean, axes, selection.check)
    return Reply(b"", [products.astype(np.float32).tobytes()])


def coordinates(shards: Shards, request: Request) -> Reply:
    """The positions on the map, as described in `CoordinatesReply`."""
    body = wire.unpack(request.body, CoordinatesBody)
    mean, axes = _axes(request, body.collection.dimension)
    sampled = _sampled(shards, request, body.collection)
    if sampled is None:
        return Reply(wire.pack(CoordinatesReply([], 0.0)), [b"", b"", b""])
    selection, view, ids, rows = sampled
    positions, squares = projection.coordinates(view, rows, body.scale, mean, axes, selection.check)
    column = view.attributes.column(body.attribute) if body.attribute else None
    values: list[Value | None] = [None] * len(rows) if column is None else column.first_values(rows, VALUE_CHARS_MAX)
    return Reply(wire.pack(CoordinatesReply(values, squares)), [*pack_blobs(ids), positions.tobytes()])


def _axes(request: Request, dimension: int) -> tuple[Floats, Floats]:
    """(the mean, the axes) of a request."""
    return floats(request.frames[0], dimension)[0], floats(request.frames[1], dimension)


def attributes(shards: Shards, request: Request) -> Reply:
    """The names and types of attributes, as described in `AttributesReply`."""
    body = wire.unpack(request.body, AttributesBody)
    selection = selection_of(shards, request, body.collection, None)
    if selection is None:
        return Reply(wire.pack(AttributesReply({}, 0)))
    view = selection.collection.view()
    rows = np.flatnonzero(selection.mask(view))
    names = sorted(view.attributes.names())
    type_counts: dict[str, dict[str, int]] = {}
    for name in names[:NAMES_MAX]:
        selection.check()
        column = view.attributes.column(name)
        assert column is not None
        type_counts[name] = column.type_counts(rows)
    return Reply(wire.pack(AttributesReply(type_counts, len(names))))


METHODS: dict[str, Method] = {
    "vector.sample": Method(sample, "read"),
    "vector.moments": Method(moments, "read"),
    "vector.spread": Method(spread, "read"),
    "vector.coordinates": Method(coordinates, "read"),
    "vector.attributes": Method(attributes, "read"),
}
