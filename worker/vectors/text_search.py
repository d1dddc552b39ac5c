"""BM25 over a worker's vectors. Word frequencies are each worker's own, which ids hashed over shards make alike."""

from __future__ import annotations

from worker.vectors.attribute_column import Mask
from worker.vectors.collection import WorkerCollection
from worker.vectors.table import TableView

WIDEN = 4


def rank_text(
    collection: WorkerCollection, view: TableView, mask: Mask | None, field: str, query: str, k: int
) -> list[tuple[bytes, int, float]]:
    """(id, row, score) of the best `k` (in `mask`, bool[view.size], if given), best first, equal scores by id."""
    assert collection.text is not None
    fetch = k
    while True:
        hits = collection.text.search(field, query, fetch)
        rows = collection.rows([vector_id for vector_id, _ in hits])
        kept = [
            (vector_id, row, score)
            for (vector_id, score), row in zip(hits, rows, strict=True)
            if 0 <= row < view.size and (mask is None or mask[row])
        ]
        if len(kept) >= k or len(hits) < fetch:
            return sorted(kept, key=lambda hit: (-hit[2], hit[0]))[:k]
        fetch *= WIDEN
