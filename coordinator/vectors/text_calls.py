"""Requests to the workers that may follow a search by text: the search once more with the statistics of all workers,
and highlights of its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from coordinator.fanout.links import Links
from shared import wire
from shared.messages.vector_text import Highlighting, TextQuery, WordStatistics, idf
from shared.messages.vectors import Collection, HighlightBody, unpack_blobs
from shared.wire import Frame

TOLERANCE = 0.05
"""Scores of workers may differ by this share because of their word frequencies. It is a share of the weight of the
query's rarest word, or of 1 if that is less: words that nearly every vector has hardly add to any score."""


def informed(text: TextQuery, counted: Sequence[WordStatistics]) -> TextQuery | None:
    """The query with the word statistics of all workers, if scores by the workers' own statistics (`counted`) cannot be
    compared; else None."""
    with_documents = [one for one in counted if one.documents]
    if len(with_documents) < 2:
        return None
    everywhere = WordStatistics(
        sum(one.documents for one in with_documents),
        tuple(map(sum, zip(*[one.frequencies for one in with_documents], strict=True))),
    )
    weights = [idf(everywhere.documents, frequency) for frequency in everywhere.frequencies]
    tolerated = TOLERANCE * max(1.0, max(weights, default=0.0))
    for one in with_documents:
        for weight, frequency in zip(weights, one.frequencies, strict=True):
            if frequency and abs(idf(one.documents, frequency) - weight) > tolerated:
                return msgspec.structs.replace(text, statistics=everywhere)
    return None


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
