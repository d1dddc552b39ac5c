"""Partial aggregations: the contribution of one batch of series or of one shard, and how contributions are merged into
the result.

A partial has the groups' label sets and planes of float64[groups, steps]. Where a group has no sample, the planes have
neutral elements, which change nothing when merged. For operators that need values instead of a reduction (quantile,
topk, …), a partial has series instead of groups, and one plane `value`. An aggregation that is evaluated in one place
is the merge of one partial.

The name of a group is to be dropped at the steps at which the name of any of its series is. A group that has both such
steps and others becomes two groups with the same label set, present at different steps.

Merging: compensated sums by Neumaier's addition, moments by Chan, Golub and LeVeque's formula (1979). Sums of
histograms are planes that refer to a batch (`histogram_sums`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shared.histograms.batch import HistogramBatch
from shared.histograms.references import is_reference
from shared.labels import LabelFrame, Rows, concat, in_order, row_ids
from shared.promql.ast import Aggregate
from shared.promql.engine import aggregation_parameters, histogram_sums, selection
from shared.promql.engine.context import EvalContext
from shared.promql.engine.kernels import aggregation
from shared.promql.engine.rows import by_name, stack, united, without_empty
from shared.promql.functions import ORDERING_AGGREGATORS
from shared.promql.model import METADATA_LABELS, Bool, Float, Grid, Matrix, Value

Planes = dict[str, Float]


@dataclass(slots=True)
class Partial:
    """`groups`: label sets; `planes`: name → float64[groups, steps]; `present`: bool[groups, steps];
    `drop_name`: bool[groups], groups whose metric name is to be dropped at the end; `histograms`: those that the planes
    refer to."""

    groups: LabelFrame
    planes: Planes
    present: Bool
    drop_name: Bool
    histograms: HistogramBatch | None = None

    @property
    def cells(self) -> int:
        """The number of values in all planes, plus the number of the histograms' buckets."""
        return self.present.size * len(self.planes) + (0 if self.histograms is None else self.histograms.buckets)


@dataclass(frozen=True, slots=True)
class _Reduction:
    """`neutral`: the planes and their neutral elements. `reduce`: reduces series into planes and returns counts or
    presence, [groups, steps]. `merge`: merges two sets of planes. `finish`: computes the aggregation's values."""

    neutral: dict[str, float]
    reduce: Callable[[Float, Bool, Rows, Planes], np.ndarray]
    merge: Callable[[Planes, Planes], Planes]
    finish: Callable[[Planes], Float]


SERIES_OPERATORS = frozenset({"topk", "bottomk", "limitk", "limit_ratio", "quantile"})
"""Operators whose partial has series instead of groups (`groups` are the label sets of series)."""

_SUMS = frozenset({"sum", "avg"})
_TAKING_ANY = frozenset({"count", "group", "limitk", "limit_ratio", "count_values"})
"""Operators that treat histograms as values like floats. All others except sums ignore histograms."""


def partial(node: Aggregate, value: Matrix, param: Value | None, grid: Grid, context: EvalContext) -> Partial:
    """The contribution of the series `value`. Raises NotExecutable for an invalid parameter."""
    if node.op in SERIES_OPERATORS:
        return _series_partial(_candidates(node, value, param, context))
    value = without_empty(value)
    if node.op == "count_values":
        groups, counts, is_dropped = selection.value_counts(
            node, value, aggregation_parameters.label_name(param), context
        )
        return _named(groups, {"count": counts}, counts > 0, is_dropped, _COUNT)
    reduction = _REDUCTIONS[node.op]
    ids, groups = selection.grouped(value.labels, node)
    shape = (groups.size, value.present.shape[1])
    planes = {name: np.full(shape, neutral) for name, neutral in reduction.neutral.items()}
    floats = _without_histograms(node, value, context)
    counted = value if node.op in _SUMS else floats  # histograms that the operator ignores do not affect the name
    is_dropped = _is_dropped(value.drop_name, [counted.present], ids, groups.size)
    values, present = np.ascontiguousarray(floats.values), np.ascontiguousarray(floats.present)
    seen = reduction.reduce(values, present, ids, planes) > 0
    histograms = None
    if floats is not value and node.op in _SUMS:
        assert value.histograms is not None
        members = histogram_sums.of_series(value.values, value.present & ~present, ids, value.histograms)
        seen, histograms = _add_histograms(planes, seen, members)
    return _named(groups, planes, seen, is_dropped, reduction.neutral, histograms)


def combine(node: Aggregate, partials: Sequence[Partial], param: Value | None, context: EvalContext) -> Partial:
    """Combine several partials, over one grid and with one symbol table, into one. They are not changed."""
    assert partials
    if len(partials) == 1:
        return partials[0]
    if node.op in SERIES_OPERATORS:
        series = united(stack([_series_of(part) for part in partials]))
        return _series_partial(_candidates(node, series, param, context))
    partials = [uniform for part in partials for uniform in _split_by_name(part)]
    frame = concat([part.groups for part in partials])
    ids, first = in_order(*row_ids(list(frame.columns.values()), frame.size))
    reduction = _REDUCTIONS["count" if node.op == "count_values" else node.op]
    shape = (len(first), partials[0].present.shape[1])
    planes = {name: np.full(shape, neutral) for name, neutral in reduction.neutral.items()}
    present = np.zeros(shape, dtype=np.bool_)
    group_ids = np.split(ids, np.cumsum([part.groups.size for part in partials])[:-1])
    with np.errstate(all="ignore"):
        for part, rows in zip(partials, group_ids, strict=True):
            merged = reduction.merge({name: plane[rows] for name, plane in planes.items()}, part.planes)
            for name, plane in merged.items():
                planes[name][rows] = plane
            present[rows] |= part.present
    histograms = None
    if any("kinds" in part.planes for part in partials):
        parts = [
            histogram_sums.Contribution(part.planes, part.present, part.histograms, rows)
            for part, rows in zip(partials, group_ids, strict=True)
        ]
        histograms = histogram_sums.merge_planes(parts, planes)
    drop_name = np.concatenate([part.drop_name for part in partials])
    is_dropped = _is_dropped(drop_name, [part.present for part in partials], ids, len(first))
    return _named(frame.take(first), planes, present, is_dropped, reduction.neutral, histograms)


def merge(
    node: Aggregate, partials: Sequence[Partial], param: Value | None, grid: Grid, context: EvalContext
) -> Matrix:
    """The value of the aggregation, from the contributions of batches and shards, which share one symbol table."""
    combined = combine(node, partials, param, context)
    if node.op in ORDERING_AGGREGATORS:
        chosen = without_empty(_series_of(combined))
        return selection.by_value(node, chosen) if grid.steps == 1 else chosen
    if node.op == "quantile":
        q = aggregation_parameters.scalar_of(param)
        series = without_empty(_series_of(combined))
        groups, ids, values, present = selection.quantiles(node, series, q, context)
        is_dropped = _is_dropped(series.drop_name, [series.present], ids, groups.size)
        return without_empty(_series_of(_named(groups, {"value": values}, present, is_dropped, {})))
    if node.op in SERIES_OPERATORS:
        return without_empty(_series_of(combined))
    with np.errstate(all="ignore"):
        values = _REDUCTIONS["count" if node.op == "count_values" else node.op].finish(combined.planes)
    present, histograms = combined.present, None
    if "kinds" in combined.planes:
        values, present, histograms = histogram_sums.final_values(
            node, combined.planes, present, values, combined.histograms, context
        )
    return without_empty(Matrix(combined.groups, values, present, combined.drop_name, histograms))


def _series_of(part: Partial) -> Matrix:
    return Matrix(part.groups, part.planes["value"], part.present, part.drop_name, part.histograms)


def _series_partial(matrix: Matrix) -> Partial:
    return Partial(matrix.labels, {"value": matrix.values}, matrix.present, matrix.drop_name, matrix.histograms)


def _without_histograms(node: Aggregate, value: Matrix, context: EvalContext) -> Matrix:
    """The values that the operator computes with as floats. Adds a remark if it ignores histograms."""
    if value.histograms is None or node.op in _TAKING_ANY:
        return value
    is_histogram = value.present & is_reference(value.values)
    if not is_histogram.any():
        return value
    if node.op not in _SUMS:
        offset = node.span[0] if node.op in ORDERING_AGGREGATORS else node.expr.span[0]
        context.annotations.info(f"ignored histogram in {node.op} aggregation", offset)
    return replace(
        value,
        values=np.where(is_histogram, np.nan, value.values),
        present=value.present & ~is_histogram,
        histograms=None,
    )


def _add_histograms(planes: Planes, seen: Bool, members: histogram_sums.Members) -> tuple[Bool, HistogramBatch]:
    """Add the sums of histograms to the planes of floats, which are present where `seen`. Returns (presence of either,
    histograms)."""
    if "count" in planes:
        planes["count"] += np.bincount(members.cells, minlength=seen.size).reshape(seen.shape)
    histograms = histogram_sums.add_up(members, planes)
    planes["kinds"] += np.where(seen, float(histogram_sums.FLOATS), 0.0)
    return seen | (planes["kinds"] > 0), histograms


def _candidates(node: Aggregate, value: Matrix, param: Value | None, context: EvalContext) -> Matrix:
    """The series that may be in the result after a merge with the series of other partials."""
    value = _without_histograms(node, value, context)
    if node.op == "quantile":
        aggregation_parameters.warn_of_quantiles(
            aggregation_parameters.scalar_of(param), _parameter_offset(node), context
        )
        return value
    if node.op == "limit_ratio":
        ratios = aggregation_parameters.ratios(param, _parameter_offset(node), context)
        return selection.sampled_by_hash(value, ratios, context)
    k = aggregation_parameters.limits(param)
    if node.op == "limitk":
        return selection.first_by_hash(node, value, k, context)
    return selection.extremes(node, value, k, context)


def _parameter_offset(node: Aggregate) -> int | None:
    return node.param.span[0] if node.param is not None else None


def _is_dropped(drop_name: Bool, presences: Sequence[Bool], ids: Rows, groups: int) -> Bool:
    """bool[groups, steps], or bool[groups, 1] for all steps: where a present series of the group has a name that is to
    be dropped. `presences`: the presence of the series of `drop_name` and `ids`, in consecutive parts."""
    if drop_name.all() or not drop_name.any():
        return np.full((groups, 1), bool(drop_name.any()))
    present = np.concatenate(presences) & drop_name[:, np.newaxis]
    counts = np.zeros((groups, present.shape[1]), dtype=np.int64)
    aggregation.count_groups(present, ids, counts)
    return counts > 0


def _named(
    groups: LabelFrame,
    planes: Planes,
    present: Bool,
    is_dropped: Bool,
    neutral: Mapping[str, float],
    histograms: HistogramBatch | None = None,
) -> Partial:
    """The partial of these groups, whose names are to be dropped where `is_dropped` (as `_is_dropped` returns it).
    `neutral`: the neutral elements of the planes; the default is 0."""
    if is_dropped.shape[1] == 1:
        return Partial(groups, planes, present, is_dropped[:, 0], histograms)
    if groups.columns.keys().isdisjoint(METADATA_LABELS):
        return Partial(groups, planes, present, np.asarray((present & is_dropped).any(axis=1)), histograms)
    rows, present, drop_name = by_name(present, is_dropped)
    planes = {name: np.where(present, plane[rows], neutral.get(name, 0.0)) for name, plane in planes.items()}
    return Partial(groups.take(rows), planes, present, drop_name, histograms)


def _split_by_name(part: Partial) -> list[Partial]:
    """Splits off the groups whose names are to be dropped, so that a label set occurs only once in each part."""
    if part.drop_name.all() or not part.drop_name.any():
        return [part]
    return [
        replace(
            part,
            groups=part.groups.take(rows),
            planes={name: plane[rows] for name, plane in part.planes.items()},
            present=part.present[rows],
            drop_name=part.drop_name[rows],
        )
        for rows in (np.flatnonzero(~part.drop_name), np.flatnonzero(part.drop_name))
    ]


def _added(a: Float, b: Float, compensation: Float) -> tuple[Float, Float]:
    """Neumaier's addition of planes: (a + b, `compensation` plus what rounding lost)."""
    total = a + b
    lost = np.where(np.abs(a) >= np.abs(b), (a - total) + b, (b - total) + a)
    return total, np.where(np.isinf(total), 0.0, compensation + lost)


def _reduce_sum(values: Float, present: Bool, ids: Rows, planes: Planes) -> np.ndarray:
    counts = np.zeros(planes["sum"].shape, dtype=np.int64)
    aggregation.sum_groups(values, present, ids, planes["sum"], planes["compensation"], counts)
    return counts


def _merge_sum(a: Planes, b: Planes) -> Planes:
    total, compensation = _added(a["sum"], b["sum"], a["compensation"] + b["compensation"])
    return {"sum": total, "compensation": compensation}


def _reduce_average(values: Float, present: Bool, ids: Rows, planes: Planes) -> np.ndarray:
    aggregation.average_groups(
        values, present, ids, planes["sum"], planes["compensation"], planes["count"], planes["scaled"]
    )
    return planes["count"]


def _merge_average(a: Planes, b: Planes) -> Planes:
    """Add the sums, at the smaller scale if one of them already has it or if the total would overflow."""
    scaled = (a["scaled"] > 0) | (b["scaled"] > 0) | np.isinf(a["sum"] + b["sum"])
    sums, compensations = (
        [side[name] * np.where(scaled & (side["scaled"] == 0), aggregation.SCALE, 1.0) for side in (a, b)]
        for name in ("sum", "compensation")
    )
    total, compensation = _added(sums[0], sums[1], compensations[0] + compensations[1])
    count = a["count"] + b["count"]
    return {"sum": total, "compensation": compensation, "count": count, "scaled": scaled.astype(np.float64)}


def _average(planes: Planes) -> Float:
    mean = planes["sum"] / planes["count"] + planes["compensation"] / planes["count"]
    return mean * np.where(planes["scaled"] > 0, 1.0 / aggregation.SCALE, 1.0)


def _reduce_moments(values: Float, present: Bool, ids: Rows, planes: Planes) -> np.ndarray:
    aggregation.moment_groups(values, present, ids, planes["count"], planes["mean"], planes["squares"])
    return planes["count"]


def _merge_moments(a: Planes, b: Planes) -> Planes:
    n = a["count"] + b["count"]
    delta = b["mean"] - a["mean"]
    mean = a["mean"] + delta * (b["count"] / n)
    squares = a["squares"] + b["squares"] + delta * delta * (a["count"] * (b["count"] / n))
    alone_a, alone_b = b["count"] == 0, a["count"] == 0
    return {
        "count": n,
        "mean": np.where(alone_a, a["mean"], np.where(alone_b, b["mean"], mean)),
        "squares": np.where(alone_a, a["squares"], np.where(alone_b, b["squares"], squares)),
    }


def _reduce_extremes(greatest: bool) -> Callable[[Float, Bool, Rows, Planes], np.ndarray]:
    def reduce(values: Float, present: Bool, ids: Rows, planes: Planes) -> np.ndarray:
        counts = np.zeros(planes["extreme"].shape, dtype=np.int64)
        aggregation.extreme_groups(values, present, ids, greatest, planes["extreme"], counts)
        return counts

    return reduce


def _reduce_count(values: Float, present: Bool, ids: Rows, planes: Planes) -> np.ndarray:
    counts = np.zeros(planes["count"].shape, dtype=np.int64)
    aggregation.count_groups(present, ids, counts)
    planes["count"][:] = counts
    return counts


_MOMENTS = {"count": 0.0, "mean": 0.0, "squares": 0.0}
_COUNT = {"count": 0.0}


def _merge_count(a: Planes, b: Planes) -> Planes:
    return {"count": a["count"] + b["count"]}


_REDUCTIONS: dict[str, _Reduction] = {
    "sum": _Reduction(
        {"sum": 0.0, "compensation": 0.0}, _reduce_sum, _merge_sum, lambda p: p["sum"] + p["compensation"]
    ),
    "avg": _Reduction(
        {"sum": 0.0, "compensation": 0.0, "count": 0.0, "scaled": 0.0}, _reduce_average, _merge_average, _average
    ),
    "stdvar": _Reduction(_MOMENTS, _reduce_moments, _merge_moments, lambda p: p["squares"] / p["count"]),
    "stddev": _Reduction(_MOMENTS, _reduce_moments, _merge_moments, lambda p: np.sqrt(p["squares"] / p["count"])),
    "max": _Reduction(
        {"extreme": np.nan},
        _reduce_extremes(True),
        lambda a, b: {"extreme": np.fmax(a["extreme"], b["extreme"])},
        lambda p: p["extreme"],
    ),
    "min": _Reduction(
        {"extreme": np.nan},
        _reduce_extremes(False),
        lambda a, b: {"extreme": np.fmin(a["extreme"], b["extreme"])},
        lambda p: p["extreme"],
    ),
    "count": _Reduction(_COUNT, _reduce_count, _merge_count, lambda p: p["count"]),
    "group": _Reduction(_COUNT, _reduce_count, _merge_count, lambda p: np.ones_like(p["count"])),
}
