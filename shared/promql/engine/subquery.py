"""Subqueries: an expression that is evaluated on a grid of its own, and whose values are then read as a range vector.

Source: https://prometheus.io/docs/prometheus/latest/querying/basics/#subquery.
"""

from __future__ import annotations

import numpy as np

from shared.histograms.batch import HINT, HINT_GAUGE, HistogramBatch, sealed
from shared.promql.ast import Subquery
from shared.promql.engine.context import EvalContext, resolved
from shared.promql.engine.scan import Windows
from shared.promql.model import Grid, Matrix, Samples

DEFAULT_STEP_MS = 60_000
"""The resolution of a subquery that gives none: Prometheus's default evaluation interval."""


def windows_of(node: Subquery, grid: Grid, context: EvalContext) -> Windows:
    """The windows of a subquery on `grid`."""
    first, step = context.time_shift(resolved(node.offset), node.at, grid)
    return Windows(first, step, grid.steps, resolved(node.range))


def inner_grid(node: Subquery, grid: Grid, context: EvalContext) -> Grid:
    """The times at which `node`'s expression is evaluated for `grid`: the multiples of the step from the start of the
    first window (exclusive) to the end of the last."""
    windows = windows_of(node, grid, context)
    step = DEFAULT_STEP_MS if node.step is None else resolved(node.step)
    before = windows.first - windows.range_ms
    return Grid((before // step + 1) * step, windows.last, step)


def ragged(matrix: Matrix, grid: Grid) -> Samples:
    """The present values of a matrix over `grid` as samples."""
    counts = np.count_nonzero(matrix.present, axis=1)
    times = np.broadcast_to(grid.times_ms(), matrix.present.shape)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Samples(
        offsets, times[matrix.present], matrix.values[matrix.present], histograms=_without_resets(matrix.histograms)
    )


def _without_resets(histograms: HistogramBatch | None) -> HistogramBatch | None:
    """The histograms without their reset hints, which refer to the preceding samples in storage. Gauges stay gauges."""
    if histograms is None:
        return None
    columns = histograms.columns
    flags = np.where(histograms.hints == HINT_GAUGE, columns.flags, columns.flags & ~np.uint8(HINT))
    return HistogramBatch(histograms.layouts, sealed(columns._replace(flags=flags)))
