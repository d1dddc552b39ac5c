"""One search over a worker's table: candidates from the index and from comparison, then exact order."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from shared.messages.vectors import Floats
from worker.vectors import exact
from worker.vectors.attribute_column import Mask
from worker.vectors.ranking import Ranking, best
from worker.vectors.similarity import Rows, similarities
from worker.vectors.table import TableView

ROWS_PER_CANDIDATE = 10
"""One more candidate kept by the index costs about twenty distances at random places in memory, which take as long as
ten rows compared side by side do together with what is done for each afterwards."""
EXPANSION = 128
"""Until it is measured on the data (`calibration`)."""
EXPANSION_SHARE = 1.5
SURPLUS = 1.2
"""A search keeps so many times what it is asked for at least: the last of what a graph's walk keeps is found least
surely, and the graph's own order of it is of rounded components."""
K_MEASURED = 10
DEPTH_POWER = 0.25
"""Deeper ranks need more candidates for each: on unclustered data about the fourth root of how much deeper."""
WIDEN = 4
SPREAD = 5.0


def share_of(k: int, share: float) -> int:
    """How many of the `k` best of the whole cluster to expect here at most, having this share of its shards.

    Ids are spread over shards by a hash, so the number is binomial; this is five standard deviations above its mean.
    """
    return min(k, math.ceil(k * share + SPREAD * math.sqrt(k * share * (1 - share)) + 1))


def expansion_of(measured: int, k: int) -> int:
    """Candidates the index keeps where the caller does not say; `measured` for the 10 nearest, 0 if it has not been."""
    return math.ceil((measured or EXPANSION) * max(1.0, k / K_MEASURED) ** DEPTH_POWER)


def search(
    view: TableView,
    queries: Floats,
    k: int,
    metric: str,
    expansion: int,
    *,
    exhaustive: bool,
    mask: Mask | None,
    check: Callable[[], None],
) -> Ranking:
    """The `k` nearest living rows (of those in `mask`, bool[view.size], if given) to each query, equal ones by id.

    `queries` float32[q, dimension] as `prepared`. With few rows to choose from they are all compared. Otherwise the
    index is asked for so many that k of them should be allowed, for more if they are not, and once that would cost as
    much as comparing every allowed row, that is done instead: so a filter never costs recall. `check` raises when the
    search is to be given up.
    """
    check()
    allowed: Mask | None = mask & view.allowed() if mask is not None else view.allowed() if view.dead else None
    rows = None if exhaustive else _from_index(view, queries, k, expansion, allowed, filtered=mask is not None)
    first = 0 if rows is None else view.indexed
    if first < view.size:
        tail = np.arange(first, view.size) if allowed is None else first + np.flatnonzero(allowed[first:])
        if len(tail):
            rest = exact.candidates(view.vectors, view.norms, tail, queries, k, metric, check)
            rows = rest if rows is None else np.concatenate([rows, rest], axis=1)
    if rows is None:
        rows = np.empty((len(queries), 0), dtype=np.int64)
    return best(similarities(view.vectors, rows, queries, metric), rows, k, view.ids)


def _from_index(
    view: TableView, queries: Floats, k: int, expansion: int, allowed: Mask | None, *, filtered: bool
) -> Rows | None:
    """Allowed rows from the index, int64[q, c], or None if it is cheaper to compare every allowed row."""
    # Rows after `indexed` are compared anyway, so only those before it are saved.
    indexed = view.indexed if allowed is None else int(np.count_nonzero(allowed[: view.indexed]))
    if not indexed:
        return None
    wanted = min(k, indexed)
    fetch = math.ceil(k * view.indexed / indexed) + (k if filtered else 0)
    while True:
        deeper = max(1.0, fetch / k) ** DEPTH_POWER
        width = max(math.ceil(expansion * deeper), math.ceil(fetch * (EXPANSION_SHARE if fetch > k else SURPLUS)))
        if width * ROWS_PER_CANDIDATE >= indexed:
            return None
        # What was indexed since the view was taken is compared with the rest.
        rows = view.index.search(queries, width, view.indexed)
        if allowed is None:
            return rows
        rows[~allowed[rows]] = -1
        if (np.count_nonzero(rows >= 0, axis=1) >= wanted).all():
            return rows
        fetch *= WIDEN
