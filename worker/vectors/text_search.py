"""BM25 over the text attributes of a worker's vectors."""

from __future__ import annotations

from shared.messages.vector_text import TextQuery
from worker.vectors.selection import Selection

WIDEN = 4
"""How many times as many vectors the next round fetches if the selection has left too few."""
TIES_MAX = 4096
"""If more vectors than this have the same score, chance decides which of them are found: their order by id is known
only after all of them have been fetched, and fetching so many takes some 10 ms."""


def rank_text(selection: Selection, query: TextQuery, k: int) -> list[tuple[bytes, int, float]]:
    """(id, shard, score) of the best `k` selected vectors, best first, equal scores by id.

    The selection is applied to the vectors that the text search has found: rows that were selected before the search
    might be dead by then, or belong to a table that has been rebuilt.
    """
    text = selection.collection.text
    assert text is not None
    fetch = k + 1  # the last one shows whether scores are equal at the edge
    while True:
        selection.check()
        hits = text.search(query, fetch)
        ids, shards = selection.present([vector_id for vector_id, _ in hits])
        scores = dict(hits)
        is_enough = len(ids) >= k
        # Vectors that were not fetched may have the last hit's score, and lower ids.
        are_cut = is_enough and hits[-1][1] == scores[ids[k - 1]] and fetch < TIES_MAX
        if len(hits) < fetch or (is_enough and not are_cut):
            ranked = [
                (vector_id, shard, scores[vector_id]) for vector_id, shard in zip(ids, shards.tolist(), strict=True)
            ]
            return sorted(ranked, key=lambda hit: (-hit[2], hit[0]))[:k]
        fetch = TIES_MAX if are_cut else fetch * WIDEN
