"""How many candidates searches must keep in an index to find what is near, measured on the data itself.

Clustered embeddings need some dozens; data without structure needs a thousand for the same recall, and no fixed number
serves both. Queries are made from stored vectors, each moved in a random direction by its distance to its nearest
neighbour: so they are about as far from what is stored as new vectors of the same kind are.
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
"""For the 10 nearest, where one worker has them all; clustered data would allow a third of it for queries of its own
kind, but queries from between the clusters then find too little."""
NEIGHBOUR_EXPANSION = 64
LADDER = (12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
RECALL = 0.985
"""Above the 0.95 wanted of queries as they come: these begin at a stored vector, and find the rest a little easier."""


def measure(view: TableView, metric: str, share: float) -> Generator[None, None, int]:
    """The least expansion of `LADDER` whose recall is enough, else the last; yields between queries.

    `share` is what part of the collection's shards this worker has: of the 10 nearest so many are expected here.
    """
    k = max(1, math.ceil(K_MEASURED * share))
    queries = _queries(view, metric)
    best = search(view, queries, k, metric, 0, exhaustive=True, mask=None, check=_go_on)
    expected = [set(rows.tolist()) for rows, _ in best.parts()]
    for expansion in (rung for rung in LADDER if rung >= EXPANSION_MIN[metric] * min(1.0, k / K_MEASURED)):
        found = 0
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            some = queries[first : first + QUERIES_AT_ONCE]
            ranking = search(view, some, k, metric, expansion, exhaustive=False, mask=None, check=_go_on)
            parts = zip(ranking.parts(), expected[first : first + QUERIES_AT_ONCE], strict=True)
            found += sum(len(there.intersection(rows.tolist())) for (rows, _), there in parts)
            yield
        if found >= RECALL * sum(map(len, expected)):
            return expansion
    return LADDER[-1]


def _queries(view: TableView, metric: str) -> Floats:
    random = np.random.default_rng(view.indexed)
    living = np.flatnonzero(view.alive[: view.indexed])
    rows = random.choice(living, min(QUERIES, len(living)), replace=False) if len(living) else living
    base = view.vectors[rows].astype(np.float32)
    directions = random.standard_normal(base.shape).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    if not len(rows):
        return base
    # About the nearest will do for a distance, and costs the index little.
    near = search(view, base, 2, metric, NEIGHBOUR_EXPANSION, exhaustive=False, mask=None, check=_go_on)
    for place, (found, _) in enumerate(near.parts()):
        other = next((row for row in found.tolist() if row != rows[place]), int(rows[place]))
        distance = np.linalg.norm(base[place] - view.vectors[other].astype(np.float32))
        base[place] += distance * directions[place]
    return prepared(base, metric)


def _go_on() -> None:
    """Nobody waits for these searches, so nobody gives them up."""
