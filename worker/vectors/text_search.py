"""BM25 over the text attributes of a worker's vectors."""

from __future__ import annotations

from collections.abc import Callable

from shared.messages.vector_text import TextQuery
from worker.vectors.attribute_strings import Mask
from worker.vectors.collection import WorkerCollection
from worker.vectors.table import TableView

WIDEN = 4
"""How many times as many vectors the next round fetches if the mask has left too few."""


def rank_text(
    collection: WorkerCollection,
    view: TableView,
    mask: Mask | None,
    query: TextQuery,
    k: int,
    check: Callable[[], None],
) -> list[tuple[bytes, int, float]]:
    """(id, row, score) of the best `k` vectors (in `mask`, bool[view.size], if given), best first, equal scores by
    id. `check` raises to end the search early."""
    assert collection.text is not None
    fetch = k
    while True:
        check()
        hits = collection.text.search(query, fetch)
        rows = collection.rows([vector_id for vector_id, _ in hits])
        allowed_hits = [
            (vector_id, row, score)
            for (vector_id, score), row in zip(hits, rows, strict=True)
            if 0 <= row < view.size and (mask is None or mask[row])
        ]
        if len(allowed_hits) >= k or len(hits) < fetch:
            return sorted(allowed_hits, key=lambda hit: (-hit[2], hit[0]))[:k]
        fetch *= WIDEN
