"""Measures on a collection's own data how many candidates a search of the index must keep for enough recall.

Clustered embeddings need some dozens of candidates. Data without structure needs a thousand for the same recall, so no
fixed number fits both. The queries are stored vectors, each moved in a random direction by the distance to its nearest
neighbour: they are then about as far from the stored vectors as new vectors of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np

from shared.messages.vectors import Floats
from worker.vectors.search import K_MEASURED, search
from worker.vectors.similarity import prepared
from worker.vectors.table import TableView

QUERIES = 128
QUERIES_AT_ONCE = 4
EXPANSION_MIN = {"cosine": 48, "l2": 48, "dot": 64}
"""Least expansion for the 10 nearest, if one worker has all shards. A third of it would do for queries like the stored
clustered data, but queries from between the clusters would then find too little."""
NEIGHBOUR_EXPANSION = 64
LADDER = (12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
RECALL = 0.985
"""Above the 0.95 that real queries must reach, because queries near a stored vector find their neighbours slightly more
easily."""


def measure(view: TableView, metric: str, share: float) -> Generator[None, None, int]:
    """Returns the least expansion of `LADDER` with enough recall, else the last one; yields between queries.

    `share` is the part of the collection's shards that this worker has: it is expected to have this part of the 10
    nearest.
    """
    k = max(1, math.ceil(K_MEASURED * share))
    queries = _queries(view, metric)
    nearest = search(view, queries, k, metric, 0, exhaustive=True, mask=None, check=_go_on)
    expected = [set(rows.tolist()) for rows, _ in nearest.parts()]
    for expansion in (rung for rung in LADDER if rung >= EXPANSION_MIN[metric] * min(1.0, k / K_MEASURED)):
        hits = 0
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            slice_queries = queries[first : first + QUERIES_AT_ONCE]
            ranking = search(view, slice_queries, k, metric, expansion, exhaustive=False, mask=None, check=_go_on)
            parts = zip(ranking.parts(), expected[first : first + QUERIES_AT_ONCE], strict=True)
            hits += sum(len(expected_rows.intersection(rows.tolist())) for (rows, _), expected_rows in parts)
            yield
        if hits >= RECALL * sum(map(len, expected)):
            return expansion
    return LADDER[-1]


def _queries(view: TableView, metric: str) -> Floats:
    """Up to `QUERIES` queries near random living rows of the index, float32[q, dimension], as `prepared`."""
    random = np.random.default_rng(view.indexed)
    living = np.flatnonzero(view.alive[: view.indexed])
    rows = random.choice(living, min(QUERIES, len(living)), replace=False) if len(living) else living
    base = view.vectors[rows].astype(np.float32)
    directions = random.standard_normal(base.shape).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    if not len(rows):
        return base
    # An approximate neighbour is good enough for a distance, and cheap to find.
    near = search(view, base, 2, metric, NEIGHBOUR_EXPANSION, exhaustive=False, mask=None, check=_go_on)
    for place, (near_rows, _) in enumerate(near.parts()):
        neighbour = next((row for row in near_rows.tolist() if row != rows[place]), int(rows[place]))
        distance = np.linalg.norm(base[place] - view.vectors[neighbour].astype(np.float32))
        base[place] += distance * directions[place]
    return prepared(base, metric)


def _go_on() -> None:
    """A `check` that never ends a search: no request waits for these searches."""
