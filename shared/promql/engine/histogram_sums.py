"""`sum` and `avg` of histograms, in the partial form of `partial.py`: planes of float64[groups, steps] that refer to
histograms.

If any group has a histogram at any step, there are further planes beside those for floats:

- `kinds`: a set of the bits below
- `histogram`: a reference to the sum of the group's histograms, or 0
- `lost`: a reference to what rounding lost of that sum, or 0 if it lost nothing. With it, the sums of shards add up as
  exactly as one sum over all series.

A group that has both floats and histograms at a step, or histograms with exponential and with custom buckets, has no
result there. Remarks on this are made once all contributions have been merged, as are the other remarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shared.histograms import merging, operators
from shared.histograms.batch import HINT_NOT_RESET, HINT_RESET, HistogramBatch, concatenated
from shared.histograms.references import is_reference, references, rows_of, stacked
from shared.promql import types
from shared.promql.ast import Aggregate, Binary, Expr, Matching, ValueType, VectorSelector, children
from shared.promql.engine.context import EvalContext
from shared.promql.engine.kernels.aggregation import SCALE, place_in_order
from shared.promql.model import Bool, Float, Int

Planes = dict[str, Float]

FLOATS, HISTOGRAMS, INCOMPATIBLE, RECONCILED, RESET, NOT_RESET = (1 << bit for bit in range(6))
"""The bits of `kinds`: the group has floats; it has histograms; some have exponential and others custom buckets; custom
boundaries differ; some histogram says that the counter was reset; some histogram says that it was not."""

_KIND_OF_HINT = np.zeros(4, dtype=np.uint8)
_KIND_OF_HINT[HINT_RESET], _KIND_OF_HINT[HINT_NOT_RESET] = RESET, NOT_RESET


class Members(NamedTuple):
    """Histograms to add up. `cells`: int64[n], group × steps + step of each; `values`: float64[n], references to
    `histograms`; `is_scaled`: bool[n], those that are multiplied by SCALE."""

    cells: Int
    values: Float
    is_scaled: Bool
    histograms: HistogramBatch


def of_series(values: Float, is_histogram: Bool, ids: Int, histograms: HistogramBatch) -> Members:
    """The histograms among values (float64[series, steps]). `ids`: int64[series], the group of each series."""
    rows, steps = np.nonzero(is_histogram)
    return Members(
        ids[rows] * values.shape[1] + steps, values[rows, steps], np.zeros(len(rows), dtype=np.bool_), histograms
    )


class Contribution(NamedTuple):
    """The planes and presence of a partial, and the histograms that they refer to. `group_ids`: int64[groups], the
    numbers of its groups in the result."""

    planes: Planes
    present: Bool
    histograms: HistogramBatch | None
    group_ids: Int


def merge_planes(parts: Sequence[Contribution], planes: Planes) -> HistogramBatch | None:
    """Add the planes of this module to the merged planes of floats. Returns the histograms that they refer to."""
    members = _of_parts(parts)
    if members is None:
        planes |= {name: np.zeros_like(next(iter(planes.values()))) for name in ("kinds", "histogram", "lost")}
    histograms = None if members is None else add_up(members, planes)
    kinds = planes["kinds"].astype(np.int64)
    for part in parts:
        part_kinds = part.planes["kinds"] if "kinds" in part.planes else np.where(part.present, float(FLOATS), 0.0)
        kinds[part.group_ids] |= part_kinds.astype(np.int64)
    planes["kinds"] = kinds.astype(np.float64)
    return histograms


def _of_parts(parts: Sequence[Contribution]) -> Members | None:
    """The sums of the parts and what rounding lost of them; None if there are no sums."""
    cells, are_scaled, columns = [], [], []
    for planes, _, histograms, group_ids in parts:
        for name in ("histogram", "lost") if histograms is not None else ():
            rows, steps = np.nonzero(is_reference(planes[name]))
            cells.append(group_ids[rows] * planes[name].shape[1] + steps)
            are_scaled.append(
                planes["scaled"][rows, steps] > 0 if "scaled" in planes else np.zeros(len(rows), np.bool_)
            )
            columns.append((planes[name][rows, steps], histograms))
    values, histograms = stacked(columns)
    if histograms is None:
        return None
    return Members(np.concatenate(cells), np.concatenate(values), np.concatenate(are_scaled), histograms)


def add_up(members: Members, planes: Planes) -> HistogramBatch:
    """Add the planes of this module to those of floats, for the sums of `members` by cell. Returns the histograms that
    they refer to. If there is a plane `scaled`, it becomes 1 where a sum would overflow, and that sum is multiplied by
    SCALE."""
    shape = next(iter(planes.values())).shape
    counts = np.bincount(members.cells, minlength=shape[0] * shape[1])
    occupied = np.flatnonzero(counts)
    order = np.empty(len(members.cells), dtype=np.int64)
    place_in_order(np.ascontiguousarray(members.cells), np.cumsum(counts) - counts, order)
    start = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts[occupied])))
    rows = rows_of(members.values[order])
    sums, lost, notes = _sums(members, order, rows, start, occupied, planes.get("scaled"))

    has_sum = notes & merging.MIXED == 0
    has_loss = has_sum & ~operators.zero_rows(lost)
    kinds, histogram, losses = (np.zeros(shape[0] * shape[1]) for _ in range(3))
    hints = np.bitwise_or.reduceat(_KIND_OF_HINT[members.histograms.hints[rows]], start[:-1]) if len(rows) else notes
    kinds[occupied] = (
        HISTOGRAMS | np.where(has_sum, 0, INCOMPATIBLE) | np.where(notes & merging.RECONCILED, RECONCILED, 0) | hints
    )
    histogram[occupied[has_sum]] = references(np.flatnonzero(has_sum))
    losses[occupied[has_loss]] = references(len(sums) + np.arange(np.count_nonzero(has_loss)))
    for name, plane in (("kinds", kinds), ("histogram", histogram), ("lost", losses)):
        planes[name] = plane.reshape(shape)
    return concatenated([sums, lost.take(np.flatnonzero(has_loss))]) if has_loss.any() else sums


def _sums(
    members: Members, order: Int, rows: Int, start: Int, occupied: Int, scaled: Float | None
) -> tuple[HistogramBatch, HistogramBatch, np.ndarray]:
    """(sums, losses, notes) of the occupied cells, whose members are order[start[i]:start[i + 1]]."""
    if scaled is None:
        return merging.summed_in_parts(members.histograms, rows, start)
    is_scaled, sizes = scaled.reshape(-1), np.diff(start)
    while True:
        needs_scale = np.repeat(is_scaled[occupied] > 0, sizes)
        weights = np.where(needs_scale & ~members.is_scaled[order], SCALE, 1.0)
        sums, lost, notes = merging.summed_in_parts(members.histograms, rows, start, weights)
        overflows = operators.infinite_rows(sums) & (is_scaled[occupied] == 0)
        if not overflows.any():
            return sums, lost, notes
        is_scaled[occupied[overflows]] = 1.0


def final_values(
    node: Aggregate,
    planes: Planes,
    present: Bool,
    numbers: Float,
    histograms: HistogramBatch | None,
    context: EvalContext,
) -> tuple[Float, Bool, HistogramBatch | None]:
    """(values, presence, histograms) of the aggregation. `numbers`: the values of groups of floats. Groups that have no
    result are left out, with a remark."""
    kinds = np.where(present, planes["kinds"], 0.0).astype(np.int64)
    _remark(node, kinds, context)
    is_float, is_histogram = kinds == FLOATS, kinds & (FLOATS | HISTOGRAMS | INCOMPATIBLE) == HISTOGRAMS
    values = np.where(is_float, numbers, np.nan)
    if histograms is None or not is_histogram.any():
        return values, is_float, None
    sums, lost = planes["histogram"][is_histogram], planes["lost"][is_histogram]
    is_member = np.stack((np.ones_like(sums, dtype=np.bool_), is_reference(lost)), axis=1)
    rows = rows_of(np.stack((sums, lost), axis=1)[is_member])
    start = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(is_member.sum(axis=1))))
    if len(rows) > len(sums):
        results = merging.summed(histograms, rows, start).batch
    else:
        is_whole_batch = len(rows) == len(histograms) and bool((np.diff(rows) == 1).all())
        results = histograms if is_whole_batch else histograms.take(rows)
    if node.op == "avg":
        results = operators.scaled_by_rows(results, 1.0, planes["count"][is_histogram])
        is_scaled = planes["scaled"][is_histogram] > 0
        if is_scaled.any():
            results = operators.scaled_by_rows(results, np.where(is_scaled, 1.0 / SCALE, 1.0), 1.0)
    values[is_histogram] = references(np.arange(len(results)))
    return values, is_float | is_histogram, results


def _remark(node: Aggregate, kinds: Int, context: EvalContext) -> None:
    """Add the annotations. A group without a result gets only the reason: any other remark on it would depend on the
    shards that its series are on."""
    annotations, offset = context.annotations, node.expr.span[0]
    is_mixed = kinds & (FLOATS | HISTOGRAMS) == FLOATS | HISTOGRAMS
    is_incompatible = ~is_mixed & (kinds & INCOMPATIBLE > 0)
    kinds = np.where(is_mixed | is_incompatible, 0, kinds)
    if is_mixed.any():
        annotations.warn("encountered a mix of histograms and floats for aggregation", offset)
    if is_incompatible.any():
        text = "vector contains a mix of histograms with exponential and custom buckets schemas"
        name = metric_name(node.expr)
        annotations.warn(f'{text} for metric name "{name}"' if name else text, offset)
    if (kinds & (RESET | NOT_RESET) == RESET | NOT_RESET).any():
        annotations.warn("conflicting counter resets during histogram aggregation", offset)
    if (kinds & RECONCILED > 0).any():
        annotations.info("mismatched custom buckets were reconciled during aggregation", offset)


def metric_name(expr: Expr) -> str:
    """The metric name of an expression's series according to the query, for remarks: that of the selector they come
    from; empty if they come from no selector, from two, or from an aggregation. The names of the series themselves are
    no longer known when groups are merged."""
    match expr:
        case VectorSelector():
            return expr.name or ""
        case Aggregate() | Binary(matching=Matching()):
            return ""
    vectors = (child for child in children(expr) if types.type_of(child) in (ValueType.VECTOR, ValueType.MATRIX))
    return next(map(metric_name, vectors), "")
