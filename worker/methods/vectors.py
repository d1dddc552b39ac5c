"""The worker's methods for the vector area."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shared import wire
from shared.errors import TooLarge, Unavailable
from shared.messages.vectors import (
    READ_WHOLE,
    VECTOR_FIELD,
    CollectionBody,
    CollectionsReply,
    Floats,
    IdsBody,
    SearchBody,
    SearchReply,
    StatsReply,
    UpsertBody,
    VectorCountReply,
    floats,
    pack_blobs,
    unpack_blobs,
)
from shared.wire import Frame, Reply, Request
from worker.methods import vector_text
from worker.methods.method import Method, check
from worker.shard import Shard
from worker.vectors.collection import WorkerCollection
from worker.vectors.engine import Engine
from worker.vectors.fields import chosen
from worker.vectors.ranking import Ranking
from worker.vectors.row_filter import Bits
from worker.vectors.search import expansion_of, share_of
from worker.vectors.search import search as nearest
from worker.vectors.selection import Selection
from worker.vectors.similarity import prepared
from worker.vectors.stored_rows import READ_AT_ONCE
from worker.vectors.table import TableView
from worker.vectors.text_search import rank_text

Shards = Mapping[int, Shard]

WRITTEN_AT_ONCE = 10_000
"""Vectors of a shard that are written at once under the collection's lock."""
WRITTEN_BYTES_SEARCHED = 192 << 10
"""Bytes of components that are written at once while the collection is searched: 128 vectors of 384 components, less
than a millisecond in each step."""

NO_HITS = Ranking(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.float32))


def engine_of(shards: Shards) -> Engine:
    """The engine that all shards of a worker share."""
    return next(iter(shards.values())).vectors.engine


def _parts(shards: Shards, request: Request) -> Iterator[tuple[Shard, Sequence[Frame]]]:
    for number, shard in shards.items():
        yield shard, request.parts[number]


def write(shards: Shards, request: Request) -> Reply:
    """Insert or replace vectors; they are on the disk of every shard when this returns."""
    body = wire.unpack(request.body, UpsertBody)
    count = 0
    for shard, frames in _parts(shards, request):
        ids = unpack_blobs(frames[0], frames[1])
        attributes = unpack_blobs(frames[3], frames[4])
        vectors = floats(frames[2], body.collection.dimension)
        collection = shard.vectors.open(body.collection)
        with collection.writing():
            start = 0
            while start < len(ids):
                end = start + _written_at_once(collection)
                collection.upsert(shard.vectors.shard, ids[start:end], vectors[start:end], attributes[start:end])
                start = end
        count += len(ids)
    for shard in shards.values():
        shard.vectors.sync()
    engine_of(shards).wake()
    return Reply(wire.pack(VectorCountReply(count)))


def _written_at_once(collection: WorkerCollection) -> int:
    """How many vectors are written at once under the collection's lock."""
    if not collection.is_searched():
        return WRITTEN_AT_ONCE
    return min(WRITTEN_AT_ONCE, max(1, WRITTEN_BYTES_SEARCHED // (4 * collection.collection.dimension)))


def delete(shards: Shards, request: Request) -> Reply:
    """Delete vectors; the deletion is on the disk of every shard when this returns. The reply counts the ids that
    existed."""
    body = wire.unpack(request.body, IdsBody)
    count = 0
    for shard, frames in _parts(shards, request):
        collection = shard.vectors.find_to_change(body.collection)
        if collection is not None:
            count += collection.delete(shard.vectors.shard, unpack_blobs(frames[0], frames[1]))
    for shard in shards.values():
        shard.vectors.sync()
    return Reply(wire.pack(VectorCountReply(count)))


def drop(shards: Shards, request: Request) -> Reply:
    """Drop a collection, durably on every shard that is not in the reply's `shard_errors`."""
    body = wire.unpack(request.body, CollectionBody)
    failed: dict[int, str] = {}
    for number, shard in shards.items():
        try:
            shard.vectors.drop(body.collection)
        except Unavailable as error:
            failed[number] = str(error)
    return Reply(wire.pack(VectorCountReply(len(shards) - len(failed))), shard_errors=failed)


def collections(shards: Shards, request: Request) -> Reply:
    """The collections in the shards' stores, whether or not the coordinator's catalogue has them."""
    return Reply(wire.pack(CollectionsReply([shard.vectors.collections() for shard in shards.values()])))


def get(shards: Shards, request: Request) -> Reply:
    """Read vectors. Frames: [ids, id lengths, attributes, attribute lengths, vectors] of the ids that exist."""
    body = wire.unpack(request.body, IdsBody)
    ids: list[bytes] = []
    contents: list[tuple[bytes, bytes]] = []
    with_vector = body.fields is None or VECTOR_FIELD in body.fields
    size = 0
    for shard, frames in _parts(shards, request):
        collection = shard.vectors.find(body.collection)
        if collection is None:
            continue
        shard_ids = unpack_blobs(frames[0], frames[1])
        for start in range(0, len(shard_ids), READ_AT_ONCE):
            check(request)
            batch_ids = shard_ids[start : start + READ_AT_ONCE]
            for vector_id, content in zip(batch_ids, collection.contents(shard.vectors.shard, batch_ids), strict=True):
                if content is not None:
                    ids.append(vector_id)
                    contents.append(content)
                    size += len(content[0]) * with_vector + len(content[1])
            if body.bytes_max and size > body.bytes_max:
                raise TooLarge(
                    f"the vectors of the {body.ids_total} ids have more than {body.bytes_max} bytes in one worker; "
                    f"read at most {READ_WHOLE} at once, or leave fields out with includeFields"
                )
    return Reply(wire.pack(VectorCountReply(len(ids))), [*pack_blobs(ids), *content_frames(contents, body.fields)])


def content_frames(contents: Sequence[tuple[bytes, bytes]], fields: tuple[str, ...] | None) -> list[Frame]:
    """[attributes, attribute lengths, vectors] with only the requested fields."""
    with_vector = fields is None or VECTOR_FIELD in fields
    vectors = b"".join([vector for vector, _ in contents]) if with_vector else b""
    attributes = [chosen(packed, fields) for _, packed in contents]
    return [*pack_blobs(attributes), vectors]


def search(shards: Shards, request: Request) -> Reply:
    """The best k vectors of these shards for each query, as described in `SearchReply`."""
    body = wire.unpack(request.body, SearchBody)
    queries = floats(request.frames[0], body.collection.dimension)
    collection = engine_of(shards).find(body.collection.id)
    if collection is None:
        return _empty_reply(len(queries) + (body.text is not None))
    collection.searched_at = time.monotonic()
    view = collection.view()
    reply = SearchReply((), view.size - view.dead)
    if body.filter is not None:
        reply.unknown = tuple(sorted(view.attributes.unknown(body.filter)))
        reply.nearest = view.attributes.nearest(reply.unknown)
    ranking = NO_HITS
    if len(queries):
        bits = None if body.filter is None else view.attributes.bits(body.filter, view.size)
        foreign = collection.foreign(view, shards)
        if foreign is not None:
            bits = Bits.of(foreign if bits is None else foreign & bits.mask(0, view.size))
        share = len(shards) / max(len(shards), body.shards_asked)
        prepared_queries = prepared(queries, body.collection.metric)
        collection.sample.offer(prepared_queries, collection.searched_at)
        ranking = nearest(
            view,
            prepared_queries,
            body.k if body.exact else share_of(body.k, share),
            body.collection.metric,
            body.expansion or expansion_of(collection.curve, body.recall, body.k),
            exhaustive=body.exact,
            bits=bits,
            check=partial(check, request),
        )
    if body.text is None and body.fields == ():
        return _ids_and_scores(view, ranking, reply)
    hits = _Hits(ranking.counts, ranking.near, view.ids.take(ranking.rows), view.shards[ranking.rows].tolist())
    if body.text is not None:
        selection = Selection(collection, shards, body.filter, partial(check, request))
        hits.add(rank_text(selection, body.text, body.k))
        if body.text.statistics is None and body.shards_asked > len(shards):
            assert collection.text is not None
            reply.words = collection.text.statistics(body.text)
    return _hits_reply(collection, body, hits, reply)


def _ids_and_scores(view: TableView, ranking: Ranking, reply: SearchReply) -> Reply:
    """The reply of a search by vectors that returns neither attributes nor vectors."""
    frames = [ranking.counts.tobytes(), ranking.near.tobytes(), *view.ids.pack(ranking.rows), b"", b"", b""]
    return Reply(wire.pack(reply), frames)


@dataclass(slots=True)
class _Hits:
    """The hits of all queries, one query after the other: `counts` int32[q] per query, their similarities or scores
    `near` float32[n], their ids, and the shards of the ids."""

    counts: NDArray[np.int32]
    near: Floats
    ids: list[bytes]
    shards: list[int]

    def add(self, texts: Sequence[tuple[bytes, int, float]]) -> None:
        """Add the hits of one more query: (id, shard, score) of each."""
        self.counts = np.append(self.counts, np.int32(len(texts)))
        self.near = np.append(self.near, np.array([score for _, _, score in texts], dtype=np.float32))
        self.ids += [vector_id for vector_id, _, _ in texts]
        self.shards += [shard for _, shard, _ in texts]


def _hits_reply(collection: WorkerCollection, body: SearchBody, hits: _Hits, reply: SearchReply) -> Reply:
    """The reply with the requested attributes and vectors. Ids that were deleted since the search are left out."""
    counts, near, ids = hits.counts, hits.near, hits.ids
    content_parts: list[Frame] = [b"", b"", b""]
    if body.fields != ():
        contents = collection.contents_of(ids, hits.shards)
        if None in contents:
            is_present = np.array([content is not None for content in contents])
            query_of_hit = np.repeat(np.arange(len(counts)), counts)
            counts = np.bincount(query_of_hit[is_present], minlength=len(counts)).astype(np.int32)
            near = near[is_present]
            ids = [vector_id for vector_id, content in zip(ids, contents, strict=True) if content is not None]
        content_parts = content_frames([content for content in contents if content is not None], body.fields)
    return Reply(wire.pack(reply), [counts.tobytes(), near.tobytes(), *pack_blobs(ids), *content_parts])


def _empty_reply(lists: int) -> Reply:
    """The reply of a worker that has no vector of the collection."""
    return Reply(wire.pack(SearchReply()), [np.zeros(lists, np.int32).tobytes(), b"", b"", b"", b"", b"", b""])


def stats(shards: Shards, request: Request) -> Reply:
    return Reply(wire.pack(StatsReply(engine_of(shards).stats())))


METHODS: dict[str, Method] = {
    **vector_text.METHODS,
    "vector.write": Method(write, "write"),
    "vector.delete": Method(delete, "write"),
    "vector.drop": Method(drop, "write"),
    "vector.collections": Method(collections, "read"),
    "vector.get": Method(get, "read"),
    "vector.search": Method(search, "read"),
    "vector.stats": Method(stats, "read"),
}
