"""BM25 over the text attributes of a worker's vectors."""

from __future__ import annotations

from shared.messages.vector_text import TextQuery
from worker.vectors.selection import Selection

WIDEN = 4
"""How many times as many vectors the next round fetches if the selection has left too few."""


def rank_text(selection: Selection, query: TextQuery, k: int) -> list[tuple[bytes, int, float]]:
    """(id, shard, score) of the best `k` selected vectors, best first, equal scores by id.

    Whether a vector is selected is looked at when its text has been found: rows of an earlier view may be dead by then,
    or of a table that has been rebuilt.
    """
    text = selection.collection.text
    assert text is not None
    fetch = k
    while True:
        selection.check()
        hits = text.search(query, fetch)
        ids, shards = selection.present([vector_id for vector_id, _ in hits])
        if len(ids) >= k or len(hits) < fetch:
            scores = dict(hits)
            ranked = [
                (vector_id, shard, scores[vector_id]) for vector_id, shard in zip(ids, shards.tolist(), strict=True)
            ]
            return sorted(ranked, key=lambda hit: (-hit[2], hit[0]))[:k]
        fetch *= WIDEN
