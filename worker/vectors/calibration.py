"""Measures the recall of a search of the index for several expansions, on a collection's own data.

Clustered embeddings need an expansion of some dozens. Data without structure needs a thousand for the same recall, so
no fixed number fits both. The queries are real ones where enough are known. Before that, queries are made from stored
vectors: each is moved in a random direction by the distance to its nearest neighbour, so that it is about as far from
the stored vectors as a new vector of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np

from shared.messages.vectors import Floats
from worker.vectors.exact import BLOCK_CELLS_MAX
from worker.vectors.pace import Pace
from worker.vectors.recall_curve import RecallCurve
from worker.vectors.search import K_MEASURED, search
from worker.vectors.similarity import Rows, prepared
from worker.vectors.table import TableView

QUERIES = 128
QUERIES_AT_ONCE, QUERIES_BESIDE_SEARCHES = 4, 1
QUERIES_MIN = 32
"""A measurement uses real queries if at least this many different ones are known; otherwise all of its queries are
made."""
COMPARED_AT_ONCE = 1 << 30
"""Components to multiply with queries between two yields: about a tenth of a second."""
COMPARED_BESIDE_SEARCHES = 16
"""Queries to compare with all rows at once, while there are searches."""
CELLS_BESIDE_SEARCHES = 1
"""Their products with rows between two rests; that is, blocks have the fewest rows that `exact.candidates` compares."""
COMPARED_MAX = 1 << 35
"""Components to multiply with all queries together: some seconds of a core. Huge collections are measured with fewer
queries, but with `QUERIES_MIN` at least."""
EXPANSION_MIN = {"cosine": 48, "l2": 48, "dot": 64}
"""The least expansion for the 10 nearest, if one worker has all shards, while no real queries are known. A third of it
would be enough for queries like the stored clustered data, but queries from between the clusters would then find too
few."""
NEIGHBOUR_EXPANSION = 64
LADDER = (12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
ERRORS = 1.5
"""Standard errors of a measured recall that are subtracted from it: with 128 queries, it may be that much too high."""
LARGEST = float(np.finfo(np.float32).max)
RECALL_ENOUGH = 0.9995
"""The measurement ends with the first expansion that has this recall."""


def measure(
    view: TableView, metric: str, share: float, real_queries: Floats, pace: Pace | None = None
) -> Generator[None, None, RecallCurve]:
    """Returns the recall for the expansions of `LADDER`, up to the first with `RECALL_ENOUGH`; yields between slices.

    `share` is the part of the collection's shards that this worker has: it is expected to have this part of the 10
    nearest. `real_queries` float32[q, dimension] are as `prepared`.
    """
    pace = pace or Pace()
    k = max(1, math.ceil(K_MEASURED * share))
    is_real = len(real_queries) >= QUERIES_MIN
    queries = real_queries if is_real else _queries(view, metric, pace)
    queries = queries[: max(QUERIES_MIN, COMPARED_MAX // max(1, view.size * queries.shape[1]))]
    expected = yield from _nearest(view, metric, queries, k, pace)
    floor = 0.0 if is_real else EXPANSION_MIN[metric] * min(1.0, k / K_MEASURED)
    expansions: list[int] = []
    recalls: list[float] = []
    for expansion in (rung for rung in LADDER if rung >= floor):
        shares: list[float] = []
        for part in pace.slices(len(queries), QUERIES_AT_ONCE, QUERIES_BESIDE_SEARCHES):
            ranking = search(view, queries[part], k, metric, expansion, exhaustive=False, bits=None, check=_go_on)
            parts = zip(ranking.parts(), expected[part], strict=True)
            shares += [_share(rows.tolist(), expected_rows) for (rows, _), expected_rows in parts]
            yield
        error = float(np.std(shares)) / math.sqrt(len(shares)) if shares else 0.0
        expansions.append(expansion)
        recalls.append((float(np.mean(shares)) if shares else 1.0) - ERRORS * error)
        if recalls[-1] >= RECALL_ENOUGH:
            break
    return RecallCurve(tuple(expansions), tuple(recalls), len(queries) if is_real else 0)


def _share(rows: list[int], expected: set[int]) -> float:
    return len(expected.intersection(rows)) / len(expected) if expected else 1.0


def _nearest(
    view: TableView, metric: str, queries: Floats, k: int, pace: Pace
) -> Generator[None, None, list[set[int]]]:
    """Returns the rows that are nearest to each query, by comparing all rows; yields between slices."""
    at_once = COMPARED_AT_ONCE // max(1, view.size * queries.shape[1])
    expected: list[set[int]] = []
    for part in pace.slices(len(queries), at_once, COMPARED_BESIDE_SEARCHES):
        cells_max = pace.size(BLOCK_CELLS_MAX, CELLS_BESIDE_SEARCHES)
        ranking = search(
            view, queries[part], k, metric, 0, exhaustive=True, bits=None, check=pace.rest, cells_max=cells_max
        )
        expected += [set(rows.tolist()) for rows, _ in ranking.parts()]
        yield
    return expected


def _queries(view: TableView, metric: str, pace: Pace) -> Floats:
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
    near: list[Rows] = []
    for part in pace.slices(len(base), QUERIES, QUERIES_BESIDE_SEARCHES):
        found = search(view, base[part], 2, metric, NEIGHBOUR_EXPANSION, exhaustive=False, bits=None, check=_go_on)
        near += [rows for rows, _ in found.parts()]
        pace.rest()
    for place, near_rows in enumerate(near):
        neighbour = next((row for row in near_rows.tolist() if row != rows[place]), int(rows[place]))
        # In double precision, because huge components would overflow in float32: their squares, and the moved ones.
        moved = base[place].astype(np.float64)
        moved += np.linalg.norm(moved - view.vectors[neighbour]) * directions[place]
        base[place] = moved.clip(-LARGEST, LARGEST)
    return prepared(base, metric)


def _go_on() -> None:
    """A `check` that never ends a search: no request waits for these searches."""
