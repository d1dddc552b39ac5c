"""What a search by text asks of the workers beside the search itself: statistics of words before it, and highlights of
its results after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.links import Links
from shared import wire
from shared.messages.vector_text import Highlighting, TextQuery, WordStatistics
from shared.messages.vectors import Collection, HighlightBody, WordsBody, unpack_blobs
from shared.wire import Frame


async def with_statistics(links: Links, collection: Collection, text: TextQuery, timeout_s: float) -> TextQuery:
    """The query with the word statistics of all workers, so that their scores can be compared. A single worker needs
    none but its own. Raises as `Links.fan_out` does."""
    if links.worker_count() < 2:
        return text
    outcome = await links.fan_out("vector.words", body=wire.pack(WordsBody(collection, text)), timeout_s=timeout_s)
    replies = [wire.unpack(reply.message.body, WordStatistics) for reply in outcome.replies]
    counted = [reply.frequencies for reply in replies if reply.documents]
    frequencies = tuple(map(sum, zip(*counted, strict=True)))
    return TextQuery(text.fields, text.clauses, WordStatistics(sum(reply.documents for reply in replies), frequencies))


async def highlights(
    links: Links,
    collection: Collection,
    text: TextQuery,
    highlighting: Highlighting,
    ids: Sequence[bytes],
    parts: Mapping[int, Sequence[Frame]],
    timeout_s: float,
) -> tuple[list[bytes], list[str]]:
    """(the highlights of each of `ids`, a JSON object; warnings). `parts`: shard → its ids, as in `HighlightBody`.
    Raises as `Links.fan_out` does."""
    if not ids:
        return [], []
    body = wire.pack(HighlightBody(collection, text, highlighting))
    outcome = await links.fan_out("vector.highlight", body=body, parts=parts, timeout_s=timeout_s)
    by_id: dict[bytes, bytes] = {}
    for reply in outcome.replies:
        names, lengths, fragments, fragment_lengths = reply.message.frames
        by_id.update(zip(unpack_blobs(names, lengths), unpack_blobs(fragments, fragment_lengths), strict=True))
    return [by_id.get(name, b"{}") for name in ids], outcome.warnings()
