"""BM25 over the text attributes of a worker's vectors."""

from __future__ import annotations

from shared.messages.vector_text import TextQuery
from worker.vectors.selection import Selection

WIDEN = 4
"""How many times as many vectors the next round fetches if the selection has left too few."""
TIES_MAX = 4096
"""Where more vectors have one score, chance decides which of them are found: which come first is not known without all
of them, and to fetch so many takes some 10 ms."""


def rank_text(selection: Selection, query: TextQuery, k: int) -> list[tuple[bytes, int, float]]:
    """(id, shard, score) of the best `k` selected vectors, best first, equal scores by id.

    Whether a vector is selected is looked at when its text has been found: rows of an earlier view may be dead by then,
    or of a table that has been rebuilt.
    """
    text = selection.collection.text
    assert text is not None
    fetch = k + 1  # the last of them tells whether scores are equal at the edge
    while True:
        selection.check()
        hits = text.search(query, fetch)
        ids, shards = selection.present([vector_id for vector_id, _ in hits])
        scores = dict(hits)
        is_enough = len(ids) >= k
        # The last hit's score may be that of others that were not fetched, and whose ids come before.
        are_cut = is_enough and hits[-1][1] == scores[ids[k - 1]] and fetch < TIES_MAX
        if len(hits) < fetch or (is_enough and not are_cut):
            ranked = [
                (vector_id, shard, scores[vector_id]) for vector_id, shard in zip(ids, shards.tolist(), strict=True)
            ]
            return sorted(ranked, key=lambda hit: (-hit[2], hit[0]))[:k]
        fetch = TIES_MAX if are_cut else fetch * WIDEN
