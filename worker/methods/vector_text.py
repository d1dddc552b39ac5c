"""The worker's methods of searches by text: word statistics, and highlights of results."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shared import wire
from shared.errors import DeadlineExceeded
from shared.messages.vector_text import WordStatistics
from shared.messages.vectors import HighlightBody, VectorCountReply, WordsBody, pack_blobs, unpack_blobs
from shared.wire import Reply, Request
from worker.methods.method import Method
from worker.shard import Shard
from worker.vectors.highlights import Highlighter

ROWS_READ = 16
"""Vectors whose attributes are in memory at a time."""


def words(shards: Mapping[int, Shard], request: Request) -> Reply:
    """How many vectors with texts this worker has, and how many of them have each word of the query."""
    body = wire.unpack(request.body, WordsBody)
    collection = next(iter(shards.values())).vectors.engine.find(body.collection.id)
    if collection is None or collection.text is None:
        return Reply(wire.pack(WordStatistics(0, ())))
    return Reply(wire.pack(collection.text.statistics(body.text)))


def highlight(shards: Mapping[int, Shard], request: Request) -> Reply:
    """The highlights of vectors, as described in `HighlightBody`. Raises DeadlineExceeded."""
    body = wire.unpack(request.body, HighlightBody)
    highlighter = Highlighter(body.collection.text_fields(), body.text, body.highlighting)
    ids: list[bytes] = []
    highlights: list[bytes] = []
    for number, shard in shards.items():
        collection = shard.vectors.find(body.collection)
        if collection is None:
            continue
        shard_ids = unpack_blobs(*request.parts[number])
        for first in range(0, len(shard_ids), ROWS_READ):
            some_ids = shard_ids[first : first + ROWS_READ]
            for vector_id, content in zip(some_ids, collection.contents(number, some_ids), strict=True):
                if content is None:
                    continue
                if request.time_left == 0:
                    raise DeadlineExceeded(f"{request.method} was not done by its deadline")
                attributes = msgspec.msgpack.decode(content[1]) if content[1] else {}
                ids.append(vector_id)
                highlights.append(msgspec.json.encode(highlighter.fragments(attributes)))
    return Reply(wire.pack(VectorCountReply(len(ids))), [*pack_blobs(ids), *pack_blobs(highlights)])


METHODS: dict[str, Method] = {
    "vector.words": Method(words, "read"),
    "vector.highlight": Method(highlight, "read"),
}
