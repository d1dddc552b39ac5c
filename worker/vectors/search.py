"""One search over a worker's table: candidates from the index and from exact comparison, then their exact order."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from shared.messages.vectors import Floats
from worker.vectors import exact
from worker.vectors.ranking import Ranking, best
from worker.vectors.recall_curve import RECALL, RecallCurve
from worker.vectors.row_filter import Allowed, Bits
from worker.vectors.similarity import Rows, similarities
from worker.vectors.table import TableView

EXPANSION = 128
"""The expansion until it is measured on the data (`calibration`)."""
K_MEASURED = 10
"""The number of nearest rows for which an expansion is measured."""
DEPTH_POWER = 0.25
"""The expansion grows with this power of `k`: on data without clusters, deeper ranks need a greater one each."""
WIDEN = 4
"""How many times as many candidates the next round fetches if a filter has left too few."""
CODED_QUERIES_MAX = 8
"""For more queries at once, the products of all queries with all pending rows are faster than comparing the rows' codes
for each query: a product of two matrices reads every row once."""
SPREAD = 5.0
"""Standard deviations above the mean for which `share_of` allows."""


def share_of(k: int, share: float) -> int:
    """The largest number of the cluster's `k` best to expect in a worker with this share of the shards.

    Ids are spread over shards by a hash, so the number has a binomial distribution; the result is `SPREAD` standard
    deviations above its mean.
    """
    return min(k, math.ceil(k * share + SPREAD * math.sqrt(k * share * (1 - share)) + 1))


def expansion_of(curve: RecallCurve | None, recall: float, k: int) -> int:
    """How far the index looks in a search for `k` with this recall (0: `RECALL`). `curve` is as
    measured for the `K_MEASURED` nearest, None before the first measurement."""
    measured = EXPANSION if curve is None else curve.expansion(recall or RECALL)
    return math.ceil(measured * max(1.0, k / K_MEASURED) ** DEPTH_POWER)


def search(
    view: TableView,
    queries: Floats,
    k: int,
    metric: str,
    expansion: int,
    *,
    exhaustive: bool,
    bits: Bits | None,
    check: Callable[[], None],
    cells_max: int | None = None,
) -> Ranking:
    """The `k` nearest living rows to each query, equally near ones by id. With `bits`, flags of `view.size` rows at
    least, only rows count whose flag is set.

    `queries` float32[q, dimension] are as `prepared`. A few rows are all compared. Otherwise the index returns so many
    candidates that `k` of them are expected to be allowed, and more in a second round if fewer are. As soon as that
    would cost as much as comparing every allowed row, all allowed rows are compared instead, so a filter never costs
    recall. `check` raises to end the search early, also between the blocks of an exact comparison; `cells_max` is the
    size of these, as in `exact.candidates`.
    """
    check()
    allowed = Allowed(bits, view.alive if view.dead else None)
    rows = None if exhaustive else _from_index(view, queries, k, expansion, allowed)
    first = 0 if rows is None else view.indexed
    candidates = [] if rows is None else [rows]
    coded = view.size if exhaustive or len(queries) > CODED_QUERIES_MAX else max(first, view.codes.first)
    if first < coded:
        is_allowed = allowed.mask(first, coded)
        tail = np.arange(first, coded) if is_allowed is None else first + np.flatnonzero(is_allowed)
        if len(tail):
            candidates.append(exact.candidates(view.vectors, view.norms, tail, queries, k, metric, check, cells_max))
    if coded < view.size:
        check()
        candidates.append(_coded(view, queries, coded, k, metric, allowed))
    rows = np.concatenate(candidates, axis=1) if candidates else np.empty((len(queries), 0), dtype=np.int64)
    return best(similarities(view.vectors, rows, queries, metric), rows, k, view.ids)


def _coded(view: TableView, queries: Floats, first: int, k: int, metric: str, allowed: Allowed) -> Rows:
    """Candidates among the pending rows from `first` on, by their codes: int64[q, c], −1 for none."""
    are_allowed = allowed.mask(first, view.size)
    nearest = [view.codes.nearest(query, first, view.size, k, metric, are_allowed) for query in queries]
    rows = np.full((len(queries), max(map(len, nearest))), -1, dtype=np.int64)
    for query_rows, query_nearest in zip(rows, nearest, strict=True):
        query_rows[: len(query_nearest)] = query_nearest
    return rows


def _from_index(view: TableView, queries: Floats, k: int, expansion: int, allowed: Allowed) -> Rows | None:
    """Allowed rows from the index, int64[q, c], −1 for none; None if comparing every allowed row is cheaper."""
    # Rows from `view.indexed` on are compared in any case, so the index can only save comparing those before.
    indexed = _indexed(view, k, allowed)
    if not indexed:
        return None
    wanted = min(k, indexed)
    fetch = math.ceil(k * view.indexed / indexed) + (k if allowed.bits is not None else 0)
    while view.index.exact_rows(wanted, fetch, expansion) < indexed:
        # Rows that were indexed after the view was taken are left out; the exact comparison covers them.
        rows = view.index.search(queries, wanted, fetch, expansion, view.indexed, allowed)
        is_candidate = rows >= 0
        if is_candidate.all() or (np.count_nonzero(is_candidate, axis=1) >= wanted).all():
            return rows
        fetch *= WIDEN
    return None


def _indexed(view: TableView, k: int, allowed: Allowed) -> int:
    """The number of indexed rows that are allowed. If some rows are dead and `k` are certainly allowed, it is an
    estimate: counting them would take half as long as a search."""
    flagged = view.indexed if allowed.bits is None else allowed.bits.count_of_first(view.indexed)
    if not view.dead:
        return flagged
    if flagged - view.dead >= k:
        return max(k, round(flagged * (1 - view.dead / view.size)))
    mask = allowed.mask(0, view.indexed)
    assert mask is not None
    return int(np.count_nonzero(mask))
