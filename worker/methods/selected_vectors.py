"""The worker's methods for the vectors that a filter selects."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import msgspec

from shared import wire
from shared.messages.selected_vectors import (
    FacetsBody,
    FacetsReply,
    PageBody,
    PageReply,
    Position,
    SelectedReply,
    SelectionBody,
    SelectionReply,
    UpdateBody,
)
from shared.messages.vectors import Collection, Condition, pack_blobs, unpack_blobs
from shared.wire import Frame, Reply, Request
from worker.methods.method import Method, check
from worker.methods.vectors import Shards, content_frames, engine_of
from worker.vectors import changes, paging
from worker.vectors.facets import count_values
from worker.vectors.part import VectorPart
from worker.vectors.selection import Selection


def selection_of(
    shards: Shards, request: Request, collection: Collection, condition: Condition | None
) -> Selection | None:
    """The vectors that satisfy a filter, or all if `condition` is None. None if no shard has a vector of the
    collection."""
    worker_collection = engine_of(shards).find(collection.id)
    if worker_collection is None:
        return None
    return Selection(worker_collection, shards, condition, partial(check, request))


R = TypeVar("R", bound=SelectionReply)


def with_selection_facts(reply: R, selection: Selection) -> R:
    """The reply, completed: number of vectors, attributes of the filter that are unknown here, and similar names."""
    view = selection.collection.view()
    reply.vectors = view.size - view.dead
    reply.unknown = selection.unknown()
    reply.nearest = view.attributes.nearest(reply.unknown)
    return reply


def page(shards: Shards, request: Request) -> Reply:
    """One page of a scroll, as described in `PageReply`."""
    body = wire.unpack(request.body, PageBody)
    selection = selection_of(shards, request, body.collection, body.filter)
    if selection is None:
        return Reply(wire.pack(PageReply()), [b"", b"", b"", b"", b""])
    # One more than requested tells whether more follow.
    positions = paging.page(selection, body.order_field, body.after, body.limit + 1, descending=body.descending)
    end: Position | None = None
    if len(positions) > body.limit:
        positions = positions[: body.limit]
        end = positions[-1]
    content: list[Frame] = [b"", b"", b""]
    if body.fields != ():
        kept_positions, contents, read_count = paging.contents(selection, positions, body.bytes_max)
        if read_count < len(positions):
            end = positions[read_count - 1]
        positions = kept_positions
        content = content_frames(contents, body.fields)
    values = [position.value for position in positions] if body.order_field else []
    reply = with_selection_facts(PageReply(values=values, end=end), selection)
    return Reply(wire.pack(reply), [*pack_blobs([position.id for position in positions]), *content])


def count(shards: Shards, request: Request) -> Reply:
    """The number of selected vectors."""
    body = wire.unpack(request.body, SelectionBody)
    selection = selection_of(shards, request, body.collection, body.filter)
    if selection is None:
        return Reply(wire.pack(SelectedReply()))
    selected = int(selection.mask(selection.collection.view()).sum())
    return Reply(wire.pack(with_selection_facts(SelectedReply(count=selected), selection)))


def facets(shards: Shards, request: Request) -> Reply:
    """The values of a field, as described in `FacetsReply`."""
    body = wire.unpack(request.body, FacetsBody)
    selection = selection_of(shards, request, body.collection, body.filter)
    if selection is None:
        return Reply(wire.pack(FacetsReply()))
    selection.fields.add(body.field)
    counts = count_values(selection, body.field)
    reply = FacetsReply(values=[value for _, value in counts], counts=list(counts.values()))
    return Reply(wire.pack(with_selection_facts(reply, selection)))


def delete_matching(shards: Shards, request: Request) -> Reply:
    """Delete the selected vectors; the deletion is on the disk of every shard when this returns."""
    body = wire.unpack(request.body, SelectionBody)
    parts = _parts_to_change(shards, body.collection)
    selection = selection_of(shards, request, body.collection, body.filter)
    if selection is None:
        return Reply(wire.pack(SelectedReply()))
    reply = with_selection_facts(SelectedReply(), selection)
    for part in parts.values():
        reply.count += changes.delete(selection, part.shard)
    _sync(shards)
    return Reply(wire.pack(reply))


def update(shards: Shards, request: Request) -> Reply:
    """Change attributes of the selected vectors; the change is on the disk of every shard when this returns."""
    body = wire.unpack(request.body, UpdateBody)
    parts = _parts_to_change(shards, body.collection)
    selection = selection_of(shards, request, body.collection, body.filter)
    if selection is None:
        return Reply(wire.pack(SelectedReply()))
    values = msgspec.msgpack.decode(body.set) if body.set else {}
    reply = with_selection_facts(SelectedReply(), selection)
    for number, part in parts.items():
        id_frames = request.parts.get(number)
        ids = unpack_blobs(id_frames[0], id_frames[1]) if id_frames else changes.selected_ids(selection, part.shard)
        reply.count += changes.update(selection, part.shard, ids, values, body.unset)
    _sync(shards)
    engine_of(shards).wake()
    return Reply(wire.pack(reply))


def _parts_to_change(shards: Shards, collection: Collection) -> dict[int, VectorPart]:
    """The parts of the shards that have the collection, by shard. Raises what `VectorPart.find_to_change` raises."""
    parts = {number: shard.vectors for number, shard in shards.items()}
    return {number: part for number, part in parts.items() if part.find_to_change(collection) is not None}


def _sync(shards: Shards) -> None:
    for shard in shards.values():
        shard.vectors.sync()


METHODS: dict[str, Method] = {
    "vector.page": Method(page, "read"),
    "vector.count": Method(count, "read"),
    "vector.facets": Method(facets, "read"),
    "vector.delete_matching": Method(delete_matching, "write"),
    "vector.update": Method(update, "write"),
}
