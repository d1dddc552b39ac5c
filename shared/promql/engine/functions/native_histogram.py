"""Numbers read from the native histograms of an instant vector: functions that return nothing for floats, and the
quantiles and fractions that `histogram` adds to those of classic histograms.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_avg.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shared.histograms import readouts
from shared.histograms.batch import Floats, HistogramBatch
from shared.histograms.references import rows_of
from shared.promql.ast import Call
from shared.promql.engine.context import EvalContext
from shared.promql.engine.functions.arguments import Function, vector
from shared.promql.engine.functions.math import mapped
from shared.promql.engine.rows import histograms_only, no_series
from shared.promql.model import Bool, Float, Grid, Int, Matrix, Value

BUCKETS_AT_ONCE = 1 << 20
"""Buckets that are read between two checks of the deadline: about 10 ms."""

Read = Callable[..., Floats]
"""Takes a batch and numbers by row (float64[rows] each), and returns float64[rows]."""


def quantiles(native: Matrix, q: Float, context: EvalContext) -> tuple[Matrix, Bool, Bool]:
    """(the q-quantiles of the histograms, bool[series]: whether NaN observations make some result too high,
    bool[series]: whether they make some result NaN). `q`: float64[steps]."""
    values = _by_value(native, lambda batch, q: readouts.quantiles(batch, q)[0], [q], context)
    is_skewed, has_no_rank = _notes(native, q, context)
    return mapped(native, values), is_skewed, has_no_rank


def fractions(native: Matrix, lower: Float, upper: Float, context: EvalContext) -> tuple[Matrix, Bool]:
    """(the fractions of observations between `lower` and `upper`, float64[steps] each; bool[series]: whether some
    histogram has NaN observations)."""
    values = _by_value(native, readouts.fractions, [lower, upper], context)
    is_skewed, has_no_rank = _notes(native, np.full(native.values.shape[1], 0.5), context)
    return mapped(native, values), is_skewed | has_no_rank


def _notes(native: Matrix, q: Float, context: EvalContext) -> tuple[Bool, Bool]:
    """(the series with a quantile that NaN observations skew, those with a quantile that they make NaN). The sum of
    such a histogram is NaN, so most vectors need no second pass."""
    if native.histograms is None or not np.isnan(native.histograms.columns.sum).any():
        none = np.zeros(native.labels.size, dtype=np.bool_)
        return none, none
    notes = _by_value(native, lambda batch, q: readouts.quantiles(batch, q)[1].astype(np.float64), [q], context)
    is_skewed = (native.present & (notes == readouts.SKEWED)).any(axis=1)
    has_no_rank = (native.present & (notes == readouts.NO_RANK)).any(axis=1)
    return is_skewed, has_no_rank


def _by_value(native: Matrix, read: Read, parameters: list[Float], context: EvalContext) -> Float:
    """float64[series, steps]: the result of `read` for each histogram and the parameters (float64[steps] each) of its
    step. Meaningless where there is no histogram."""
    values = np.zeros(native.values.shape)
    if native.histograms is None or not native.present.any():
        return values
    rows = rows_of(native.values[native.present])
    if all((parameter == parameter[0]).all() or np.isnan(parameter).all() for parameter in parameters):
        first, last = int(rows.min()), int(rows.max()) + 1
        by_row = _by_row(native.histograms.rows(first, last), read, [p[:1] for p in parameters], context)
        values[native.present] = by_row[rows - first]
        return values
    steps = np.nonzero(native.present)[1]
    by_cell = np.empty(len(rows))
    size = _rows_at_once(native.histograms)
    for first in range(0, len(rows), size):
        context.check()
        cells = slice(first, first + size)
        by_cell[cells] = read(native.histograms.take(rows[cells]), *(p[steps[cells]] for p in parameters))
    values[native.present] = by_cell
    return values


def _by_row(batch: HistogramBatch, read: Read, numbers: list[Float], context: EvalContext) -> Floats:
    """float64[rows]: the result of `read` for each row, always with the same numbers (float64[1] each)."""
    result = np.empty(len(batch))
    size = _rows_at_once(batch)
    for first in range(0, len(batch), size):
        context.check()
        part = batch.rows(first, min(first + size, len(batch)))
        result[first : first + size] = read(part, *(np.full(len(part), number[0]) for number in numbers))
    return result


def _rows_at_once(batch: HistogramBatch) -> int:
    widest: Int = np.diff(batch.columns.start)
    return max(1, BUCKETS_AT_ONCE // max(1, int(widest.max(initial=1))))


def _function(read: Read) -> Function:
    def evaluate(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
        matrix = vector(call, args)
        if matrix.histograms is None:
            return no_series(context.symbols, grid.steps)
        native = histograms_only(matrix)
        return mapped(native, _by_value(native, read, [], context))

    return evaluate


FUNCTIONS: dict[str, Function] = {
    "histogram_avg": _function(readouts.averages),
    "histogram_count": _function(lambda batch: batch.columns.observations),
    "histogram_sum": _function(lambda batch: batch.columns.sum),
    "histogram_stddev": _function(readouts.deviations),
    "histogram_stdvar": _function(readouts.variances),
}
