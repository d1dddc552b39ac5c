"""Functions of both kinds of histograms. Classic ones are series of cumulative buckets that differ in the label `le`.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile. `native_histogram` has
the functions that return nothing for floats, and what this module needs for native histograms.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np

from shared.errors import NotExecutable
from shared.labels import METRIC_NAME, LabelFrame, Rows, concat, in_order
from shared.promql.ast import Call
from shared.promql.engine.aggregation_parameters import REMARKS_MAX, is_label_name, warn_of_quantiles
from shared.promql.engine.context import EvalContext
from shared.promql.engine.functions import native_histogram
from shared.promql.engine.functions.arguments import Function, offset, scalar, text, vector
from shared.promql.engine.kernels.histogram import bucket_fractions, bucket_quantiles
from shared.promql.engine.numbers import general
from shared.promql.engine.rows import (
    floats_only,
    histograms_only,
    no_series,
    stack,
    united,
    with_one_name,
    without_empty,
)
from shared.promql.model import Bool, Float, Grid, Matrix, Value

BUCKET_LABEL = "le"
MONOTONICITY = (
    "input to histogram_quantile needed to be fixed for monotonicity "
    "(see https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile)"
)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Bucket series, grouped into histograms: histogram g, with labels `histograms[g]`, has the rows
    order[offsets[g]:offsets[g + 1]], ascending by `bounds` (float64, one for each entry of `order`)."""

    values: Float
    present: Bool
    histograms: LabelFrame
    order: Rows
    offsets: Rows
    bounds: Float

    def zeroed_result(self) -> tuple[Float, Bool]:
        """Zeroed (values, presence) of one series for each histogram."""
        shape = (self.histograms.size, self.values.shape[1])
        return np.zeros(shape), np.zeros(shape, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Histograms:
    """The histograms of a vector, by kind. `native` is None if there are none."""

    classic: Buckets
    native: Matrix | None

    @property
    def size(self) -> int:
        return self.classic.histograms.size + (0 if self.native is None else self.native.labels.size)


def bound_of(le: str) -> float | None:
    """The number in a bucket label, or None if Go's `strconv.ParseFloat` refuses it: a hexadecimal number must have an
    exponent, and no number may be beyond the largest float64."""
    if not le or le != le.strip() or "_" in le or not le.isascii():
        return None
    try:
        bound = float.fromhex(le) if "x" in le.lower() else float(le)
    except (ValueError, OverflowError):
        return None
    lacks_exponent = "x" in le.lower() and "p" not in le.lower()
    is_too_large = math.isinf(bound) and "inf" not in le.lower()
    return None if math.isnan(bound) or lacks_exponent or is_too_large else bound


def _of_metric(name: str) -> str:
    return f" for metric name {json.dumps(name, ensure_ascii=False)}" if name else ""


def _buckets(matrix: Matrix, position: int | None, context: EvalContext) -> Buckets:
    """Group series into histograms: series that have all labels but `le` in common are the buckets of one histogram.
    Warns of series without a bound."""
    matrix = without_empty(matrix)
    codes, inverse = np.unique(matrix.labels.column(BUCKET_LABEL), return_inverse=True)
    parsed = [bound_of(le) for le in matrix.labels.symbols.texts(codes)]
    has_bound = np.array([bound is not None for bound in parsed], dtype=np.bool_)[inverse]
    _warn_of_bounds(matrix.labels, np.flatnonzero(~has_bound), position, context)
    bounds = np.array([math.nan if bound is None else bound for bound in parsed])[inverse]
    rows = np.flatnonzero(has_bound)
    histogram_labels = matrix.labels.take(rows).without((BUCKET_LABEL,))
    ids, first = in_order(*histogram_labels.unique())
    by_bound = np.lexsort((bounds[rows], ids))
    offsets = np.searchsorted(ids[by_bound], np.arange(len(first) + 1))
    order = rows[by_bound]
    return Buckets(
        np.ascontiguousarray(matrix.values),
        np.ascontiguousarray(matrix.present),
        histogram_labels.take(first),
        order,
        offsets,
        bounds[order],
    )


def _histograms(matrix: Matrix, position: int | None, context: EvalContext) -> Histograms:
    """The histograms of both kinds. If a classic and a native one have the same labels at a step, neither counts there,
    with a warning."""
    if matrix.histograms is None:
        return Histograms(_buckets(matrix, position, context), None)
    # Histograms that differ only in whether the name is dropped are one: quantiles and fractions have no name.
    native, classic = with_one_name(histograms_only(matrix)), _buckets(floats_only(matrix), position, context)
    ids, _ = concat([classic.histograms, native.labels]).unique()
    _, groups, rows = np.intersect1d(
        ids[: classic.histograms.size], ids[classic.histograms.size :], return_indices=True
    )  # fmt: skip
    for group, row in zip(groups.tolist(), rows.tolist(), strict=True):
        context.check()
        buckets = classic.order[classic.offsets[group] : classic.offsets[group + 1]]
        is_mixed = classic.present[buckets].any(axis=0) & native.present[row]
        if is_mixed.any():
            classic.present[buckets] &= ~is_mixed
            native.present[row] &= ~is_mixed
            name = _of_metric(dict(native.labels.labels(row)).get(METRIC_NAME, ""))
            context.annotations.warn(f"vector contains a mix of classic and native histograms{name}", position)
    return Histograms(classic, without_empty(native))


def _warn_of_bounds(labels: LabelFrame, rows: Rows, position: int | None, context: EvalContext) -> None:
    bad = labels.take(rows).only((METRIC_NAME, BUCKET_LABEL))
    _, first = bad.unique()
    for row in np.sort(first)[:REMARKS_MAX]:
        bad_labels = dict(bad.labels(int(row)))
        le = json.dumps(bad_labels.get(BUCKET_LABEL, ""), ensure_ascii=False)
        metric = _of_metric(bad_labels.get(METRIC_NAME, ""))
        context.annotations.warn(f'bucket label "le" is missing or has a malformed value of {le}{metric}', position)


def _quantiles(vectors: Histograms, q: Float, position: int | None, context: EvalContext) -> Matrix:
    classic = _classic_quantiles(vectors.classic, q, position, context)
    if vectors.native is None:
        return classic
    native, has_nan, has_no_rank = native_histogram.quantiles(vectors.native, q, context)
    _inform(vectors.native.labels, has_nan, "histogram_quantile", "result is skewed higher", position, context)
    _inform(vectors.native.labels, has_no_rank, "histogram_quantile", "result is NaN", position, context)
    return united(stack([classic, native]))


def _inform(
    labels: LabelFrame, rows: Bool, function: str, consequence: str, position: int | None, context: EvalContext
) -> None:
    """Add an annotation for each metric name of the series `rows` (bool[series]), whose histograms have NaN
    observations."""
    for name in labels.symbols.texts(np.unique(labels.column(METRIC_NAME)[rows])):
        text = f"input to {function} has NaN observations, {consequence}{_of_metric(name)}"
        context.annotations.info(text, position)


def _classic_quantiles(buckets: Buckets, q: Float, position: int | None, context: EvalContext) -> Matrix:
    values, present = buckets.zeroed_result()
    forced = np.zeros(buckets.histograms.size, dtype=np.bool_)
    bucket_quantiles(
        buckets.values, buckets.present, buckets.order, buckets.offsets, buckets.bounds, np.ascontiguousarray(q),
        values, present, forced,
    )  # fmt: skip
    names = np.unique(buckets.histograms.column(METRIC_NAME)[forced])
    for name in buckets.histograms.symbols.texts(names):
        context.annotations.info(MONOTONICITY + _of_metric(name), position)
    return Matrix(buckets.histograms, values, present, np.ones(buckets.histograms.size, dtype=np.bool_))


def _histogram_quantile(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    q, matrix = scalar(call, args, 0), vector(call, args, 1)
    warn_of_quantiles(q, offset(call, 0), context)
    return _quantiles(_histograms(matrix, offset(call, 1), context), q, offset(call, 1), context)


def _histogram_quantiles(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    """Several quantiles at once, distinguished by a label whose value is the quantile.

    Raises NotExecutable if that label makes different series equal.
    """
    matrix, label = vector(call, args), text(call, args, 1)
    if not is_label_name(label):
        raise NotExecutable(f"invalid label name {label!r} in histogram_quantiles()")
    vectors = _histograms(matrix, offset(call, 0), context)
    parts = []
    for index in range(2, len(args)):
        q = scalar(call, args, index)
        warn_of_quantiles(q, offset(call, index), context)
        # A quantile that varies over time has one label value, and so one part, for each of its values.
        distinct = np.unique(q)
        context.require(len(distinct) * vectors.size * grid.steps)
        for value in distinct.tolist():
            context.check()
            part = _quantiles(vectors, np.full(grid.steps, value), offset(call, 0), context)
            part.present &= np.isnan(q) if math.isnan(value) else q == value
            code = np.int32(part.labels.symbols.code(quantile_text(value)))
            part.labels = part.labels.with_column(label, np.full(part.labels.size, code, dtype=np.int32))
            parts.append(without_empty(part))
    return united(stack(parts)) if parts else no_series(context.symbols, grid.steps)


def quantile_text(value: float) -> str:
    """A number as a label value in the notation of OpenMetrics: always with a fraction or an exponent."""
    number_text = general(value)
    return number_text if not number_text.lstrip("-").isdigit() else f"{number_text}.0"


def _histogram_fraction(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    lower, upper, matrix = scalar(call, args, 0), scalar(call, args, 1), vector(call, args, 2)
    vectors = _histograms(matrix, offset(call, 2), context)
    classic = _classic_fractions(vectors.classic, lower, upper)
    if vectors.native is None:
        return classic
    native, has_nan = native_histogram.fractions(vectors.native, lower, upper, context)
    _inform(
        vectors.native.labels, has_nan, "histogram_fraction", "which are excluded from all fractions", offset(call, 2),
        context,
    )  # fmt: skip
    return united(stack([classic, native]))


def _classic_fractions(buckets: Buckets, lower: Float, upper: Float) -> Matrix:
    values, present = buckets.zeroed_result()
    bucket_fractions(
        buckets.values, buckets.present, buckets.order, buckets.offsets, buckets.bounds, np.ascontiguousarray(lower),
        np.ascontiguousarray(upper), values, present,
    )  # fmt: skip
    return Matrix(buckets.histograms, values, present, np.ones(buckets.histograms.size, dtype=np.bool_))


FUNCTIONS: dict[str, Function] = {
    "histogram_quantile": _histogram_quantile,
    "histogram_quantiles": _histogram_quantiles,
    "histogram_fraction": _histogram_fraction,
}
