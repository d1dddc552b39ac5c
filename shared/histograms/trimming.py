"""The operators `</` and `>/`, which remove the observations of histograms above or below a number.

Only the conformance scripts show their exact effect on count and sum.
"""

from __future__ import annotations

import numpy as np

from shared.histograms.batch import (
    EDGES,
    FLOATS,
    LAYOUTS,
    ROWS,
    Floats,
    HistogramBatch,
    HistogramColumns,
    LayoutColumns,
    read_only,
    sealed,
)
from shared.histograms.readouts import assumed_edges, bucket_mean, share_below, sides
from shared.histograms.schemas import CUSTOM
from shared.kernels import kernel, types

_RESULTS = types.float64[::1]


def trimmed(batch: HistogramBatch, limits: Floats, *, keeps_below: bool) -> HistogramBatch:
    """Each row without the observations above limits[row] (`keeps_below`, the operator `</`), or without those at or
    below it (`>/`).

    A bucket that the limit cuts keeps a share by interpolation; an infinite custom bucket is not divided. A row that
    loses observations gets the count of the remaining ones, and a sum computed from the mean of what remains of each
    bucket; it also loses its NaN observations. Other rows, and those whose limit is NaN, stay unchanged.
    """
    columns = batch.columns
    counts = np.empty(len(columns.counts))
    observations, sums = np.empty(len(batch)), np.empty(len(batch))
    _trim(
        batch.layouts.columns, batch.layouts.edges, columns, read_only(limits, np.float64), keeps_below, counts,
        observations, sums,
    )  # fmt: skip
    return HistogramBatch(
        batch.layouts, sealed(columns._replace(observations=observations, sum=sums, counts=counts))
    )  # fmt: skip


@kernel(types.float64(types.float64, types.float64, types.float64, types.boolean, types.boolean), error_model="numpy")
def _kept_share(limit: float, left: float, right: float, is_linear: bool, keeps_below: bool) -> float:
    if keeps_below:
        return share_below(limit, left, right, is_linear)
    if left == -np.inf and right == np.inf:
        return 1.0 if limit == -np.inf else 0.0
    return 1.0 - share_below(limit, left, right, is_linear)


@kernel(types.float64(types.float64, types.float64, types.boolean, types.boolean), error_model="numpy")
def _kept_mean(left: float, right: float, is_linear: bool, is_custom: bool) -> float:
    """The mean of what is kept of a bucket; the finite end of an infinite custom bucket."""
    if is_custom and (left == -np.inf or right == np.inf):
        return right if left == -np.inf else left
    return bucket_mean(left, right, is_linear)


@kernel(types.void(LAYOUTS, EDGES, ROWS, FLOATS, types.boolean, _RESULTS, _RESULTS, _RESULTS), error_model="numpy")
def _trim(
    layouts: LayoutColumns,
    edges: Floats,
    rows: HistogramColumns,
    limits: Floats,
    keeps_below: bool,
    counts: Floats,
    observations: Floats,
    sums: Floats,
) -> None:
    for row in range(observations.size):
        layout, limit = rows.layout[row], limits[row]
        is_custom, zero = layouts.schema[layout] == CUSTOM, rows.start[row] + layouts.zero_at[layout]
        negative = positive = False
        if not is_custom:
            negative, positive = sides(layouts, rows, row)
        shift = layouts.start[layout] - rows.start[row]
        loses = False
        remaining = total = 0.0
        for i in range(rows.start[row], rows.start[row + 1]):
            count, is_zero = rows.counts[i], not is_custom and i == zero
            counts[i] = count
            if count == 0 or np.isnan(limit):
                continue
            left, right = assumed_edges(
                edges[i + shift, 0], edges[i + shift, 1], is_custom, is_zero, negative, positive
            )
            is_linear = is_custom or is_zero
            share = _kept_share(limit, left, right, is_linear, keeps_below)
            if share < 1.0:
                loses = True
                counts[i] = share * count if share > 0.0 else 0.0
            if share > 0.0:
                if keeps_below:
                    right = min(right, limit)
                else:
                    left = max(left, limit)
                remaining += counts[i]
                total += counts[i] * _kept_mean(left, right, is_linear, is_custom)
        observations[row] = remaining if loses else rows.observations[row]
        sums[row] = total if loses else rows.sum[row]
