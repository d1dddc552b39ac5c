"""Range vectors: the series of a range selector or of a subquery, with the windows over their samples.

Source: https://prometheus.io/docs/prometheus/latest/querying/basics/#range-vector-selectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shared.errors import NotExecutable
from shared.histograms.references import stacked, used_only
from shared.labels import LabelFrame, in_order
from shared.promql.ast import MatrixSelector, Subquery, VectorSelector
from shared.promql.engine import scan, subquery
from shared.promql.engine.context import EvalContext, resolved
from shared.promql.engine.rows import with_one_name, without_empty
from shared.promql.engine.scan import Windows
from shared.promql.model import STALE_NAN_BITS, Bool, Grid, Matrix, RangeVector, Samples, Value


@dataclass(frozen=True, slots=True)
class RangeSeries:
    """The series of a range vector that are evaluated now. `drop_name`: bool[series]. `reads`: the samples of some
    series at a time, with the rows they belong to; it can be iterated only once. `is_dropped`: bool[series, steps],
    whether a window has a sample whose name is to be dropped; None unless only some samples have such names."""

    labels: LabelFrame
    windows: Windows
    drop_name: Bool
    reads: Iterator[tuple[slice, Samples]]
    is_dropped: Bool | None = None


def of_selector(node: MatrixSelector, grid: Grid, context: EvalContext, *, is_kept: bool = False) -> RangeSeries:
    """The series of a range selector. Samples are read from the source as they are needed, and held until the next are
    read, or permanently if `is_kept`."""
    windows = scan.windows_of(node.vector, resolved(node.range), grid, context)
    selected = scan.scan(node.vector, windows, context)
    no_names_dropped = np.zeros(selected.labels.size, dtype=np.bool_)
    return RangeSeries(selected.labels, windows, no_names_dropped, scan.reads(selected, context, is_kept=is_kept))


def of_subquery(node: Subquery, value: Value, inner: Grid, grid: Grid, context: EvalContext) -> RangeSeries:
    """The series of a subquery whose expression has `value` over the grid `inner`. Its samples have no start
    timestamps. All samples with the same label set are one series, since a window may have samples with and without the
    name.

    Raises NotExecutable if the value is not an instant vector, OverBudget if it has too many samples.
    """
    if not isinstance(value, Matrix):
        raise NotExecutable("subquery is only allowed on instant vector")
    context.hold(int(np.count_nonzero(value.present)))
    windows = subquery.windows_of(node, grid, context)
    is_dropped = None
    if value.drop_name.any() and not value.drop_name.all():
        value = without_empty(value)
        is_dropped = _dropped_windows(value, inner, windows)
        value = with_one_name(value)
    reads = iter([(slice(0, value.labels.size), subquery.ragged(value, inner))])
    return RangeSeries(value.labels, windows, value.drop_name, reads, is_dropped)


def _dropped_windows(value: Matrix, inner: Grid, windows: Windows) -> Bool:
    """`RangeSeries.is_dropped` of the series that `with_one_name` makes of `value`."""
    ids, first = in_order(*value.labels.unique())
    rows, columns = np.nonzero(value.present & value.drop_name[:, np.newaxis])
    dropped = np.zeros((len(first), inner.steps + 1), dtype=np.int32)
    dropped[ids[rows], columns + 1] = 1
    before = np.cumsum(dropped, axis=1, dtype=np.int32)  # the number of such samples before each one
    ends = windows.first + windows.step * np.arange(windows.steps)
    first_in, after = np.searchsorted(inner.times_ms(), (ends - windows.range_ms, ends), side="right")
    return before[:, after] > before[:, first_in]


def first_windows(series: RangeSeries) -> RangeVector:
    """The samples in the first window of each series; series without samples are left out."""
    parts = [_cut(samples, series.windows) for _, samples in series.reads]
    counts = np.concatenate([np.diff(part.offsets) for part in parts] or [np.zeros(0, dtype=np.int64)])
    seen = counts > 0
    offsets = np.concatenate([[0], np.cumsum(counts[seen])]).astype(np.int64)
    times = np.concatenate([part.timestamps_ms for part in parts] or [np.zeros(0, dtype=np.int64)])
    columns, histograms = stacked([(part.values, part.histograms) for part in parts])
    values, histograms = used_only(np.concatenate(columns or [np.zeros(0)]), histograms)
    samples = Samples(offsets, times, values, histograms=histograms)
    return RangeVector(series.labels.take(seen), samples, series.drop_name[seen])


def newest(node: VectorSelector, grid: Grid, context: EvalContext) -> RangeVector:
    """The sample of each series that an instant vector at the grid's first time has, with its own timestamp."""
    windows = scan.windows_of(node, context.lookback_ms, grid, context)
    selected = scan.scan(node, windows, context)
    context.hold(selected.labels.size)
    seen = np.zeros(selected.labels.size, dtype=np.bool_)
    times, parts = [np.zeros(0, dtype=np.int64)], []
    for rows, samples in scan.reads(selected, context, keep_stale=True):
        has_samples = np.diff(samples.offsets) > 0
        last = samples.offsets[1:][has_samples] - 1
        is_fresh = samples.values.view(np.int64)[last] != STALE_NAN_BITS
        seen[rows][np.flatnonzero(has_samples)[is_fresh]] = True
        last = last[is_fresh]
        times.append(samples.timestamps_ms[last])
        parts.append(used_only(samples.values[last], samples.histograms))
    columns, histograms = stacked(parts)
    values = np.concatenate(columns or [np.zeros(0)])
    offsets = np.arange(len(values) + 1, dtype=np.int64)
    newest_samples = Samples(offsets, np.concatenate(times), values, histograms=histograms)
    return RangeVector(selected.labels.take(seen), newest_samples, np.zeros(len(values), dtype=np.bool_))


def _cut(samples: Samples, windows: Windows) -> Samples:
    is_inside = (samples.timestamps_ms > windows.first - windows.range_ms) & (samples.timestamps_ms <= windows.first)
    offsets = np.concatenate([[0], np.cumsum(is_inside)])[samples.offsets]
    return Samples(offsets, samples.timestamps_ms[is_inside], samples.values[is_inside], histograms=samples.histograms)
