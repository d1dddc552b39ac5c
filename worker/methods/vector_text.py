"""The worker's method for highlights of the results of a search by text."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shared import wire
from shared.messages.vectors import HighlightBody, VectorCountReply, pack_blobs, unpack_blobs
from shared.wire import Reply, Request
from worker.methods.method import Method, check
from worker.shard import Shard
from worker.vectors.highlights import Highlighter

ROWS_READ = 16
"""Number of vectors whose attributes are in memory at a time."""


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
            batch_ids = shard_ids[first : first + ROWS_READ]
            for vector_id, content in zip(batch_ids, collection.contents(number, batch_ids), strict=True):
                if content is None:
                    continue
                check(request)
                attributes = msgspec.msgpack.decode(content[1]) if content[1] else {}
                ids.append(vector_id)
                highlights.append(msgspec.json.encode(highlighter.fragments(attributes)))
    return Reply(wire.pack(VectorCountReply(len(ids))), [*pack_blobs(ids), *pack_blobs(highlights)])


METHODS: dict[str, Method] = {
    "vector.highlight": Method(highlight, "read"),
}
