"""BM25 over the text attributes of a worker's vectors."""

from __future__ import annotations

from shared.messages.vector_text import TextQuery
from worker.vectors.selection import Selection

WIDEN = 4
"""How many times as many vectors the next round fetches if the selection has left too few, or cuts equal scores."""
TIES_MAX = 20_000
"""Of more vectors with one score, chance decides which are found: it is not known which come first without all."""


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
        scores = dict(hits)
        # The last hit's score may be that of others that were not fetched, and whose ids come before.
        are_cut = len(ids) >= k and hits[-1][1] == scores[ids[k - 1]] and fetch < TIES_MAX
        if len(hits) < fetch or (len(ids) >= k and not are_cut):
            ranked = [
                (vector_id, shard, scores[vector_id]) for vector_id, shard in zip(ids, shards.tolist(), strict=True)
            ]
            return sorted(ranked, key=lambda hit: (-hit[2], hit[0]))[:k]
        fetch *= WIDEN
