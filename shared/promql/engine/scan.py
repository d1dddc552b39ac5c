"""Selectors: reading samples in batches of series, and the instant vector over a grid of times.

Source: https://prometheus.io/docs/prometheus/latest/querying/basics/ (instant vector selectors, staleness, `@`,
`offset`). Both the lookback and range windows are left-open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shared.errors import Internal
from shared.histograms.batch import HistogramBatch
from shared.histograms.references import is_reference
from shared.labels import LabelFrame
from shared.promql.ast import VectorSelector
from shared.promql.engine.context import EvalContext, resolved
from shared.promql.engine.gathering import GatheredHistograms
from shared.promql.engine.histogram_neighbours import with_hints
from shared.promql.engine.kernels.windows import any_number_is, last_in_window
from shared.promql.model import STALE_NAN_BITS, Bool, Float, Grid, Int, Matrix, Samples, SeriesSelection

READ_SERIES, LIGHT_READ_SERIES = 256, 32
"""The most series in a selector's first read, when the number of samples per series is not yet known. A light query
reads less at a time, since it is to stop soon after it has used up its CPU time."""

READ_SAMPLES, LIGHT_READ_SAMPLES = 1 << 17, 1 << 16
"""The number of samples that a read aims at: 2 MB of timestamps and values stay close to the CPU, and the fixed cost of
a read hardly matters. Reads of twice the size take as long in total, and leave 8 MB more in each worker's heap after a
query of many series."""

ASSUMED_INTERVAL_MS = 1000
"""The assumed interval between the samples of a series before any have been read."""

FEWER_SERIES = 4
"""A read that turns out to be too large is discarded, and repeated with 1/FEWER_SERIES of its series."""

INFO_TIMES = "times of info samples"

NO_STARTS = np.zeros(0, dtype=np.int64)
NO_FLAGS = np.zeros(0, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows (end - range_ms, end] of a grid's steps, end = first + k * step; step 0 repeats one window.

    `before_ms` and `after_ms`: how far beyond a window samples are used as well (anchored and smoothed selectors). All
    windows together use the samples with read_start_ms ≤ t ≤ read_end_ms.
    """

    first: int
    step: int
    steps: int
    range_ms: int
    before_ms: int = 0
    after_ms: int = 0

    @property
    def last(self) -> int:
        return self.first + self.step * max(self.steps - 1, 0)

    @property
    def read_start_ms(self) -> int:
        return self.first - self.range_ms - self.before_ms + 1

    @property
    def read_end_ms(self) -> int:
        return self.last + self.after_ms


@dataclass(frozen=True, slots=True)
class Scan:
    """The series of a selector that are evaluated now: [first, first + labels.size) of its selection, whose samples
    span `range_ms`."""

    labels: LabelFrame
    selection: SeriesSelection
    first: int
    range_ms: int


def windows_of(node: VectorSelector, range_ms: int, grid: Grid, context: EvalContext) -> Windows:
    """A selector's windows of `range_ms` on `grid`."""
    first, step = context.time_shift(resolved(node.offset), node.at, grid)
    extended = context.lookback_ms if node.anchored or node.smoothed else 0
    return Windows(first, step, grid.steps, range_ms, extended, extended if node.smoothed else 0)


def scan(node: VectorSelector, windows: Windows, context: EvalContext) -> Scan:
    """Select the series of `node`: all, or those of the batch being evaluated."""
    if context.source is None:
        raise Internal("a selector reached an evaluation that has no source of samples")
    batch = context.batch if context.batch is not None and context.batch.selector is node else None
    selection = batch.selection if batch is not None else None
    if selection is None:
        selection = context.source.select(node.matchers, windows.read_start_ms, windows.read_end_ms, context.symbols)
    range_ms = windows.read_end_ms - windows.read_start_ms + 1
    if batch is None:
        return Scan(selection.labels, selection, 0, range_ms)
    batch.selection = selection
    last = min(batch.first + batch.size, selection.labels.size)
    return Scan(selection.labels.take(slice(batch.first, last)), selection, batch.first, range_ms)


def reads(
    selected: Scan, context: EvalContext, *, keep_stale: bool = False, is_kept: bool = False
) -> Iterator[tuple[slice, Samples]]:
    """The samples of a scan, some series at a time, with the rows they belong to.

    Samples are held until the next are read, or permanently if `is_kept`. As many series are read at a time as the
    query may hold, but at least one. Staleness markers are left out unless `keep_stale`. Checks the deadline before
    every read. Raises BatchTooLarge, and OverBudget if one series is more than the query may hold.
    """
    batch = context.batch if context.batch is not None and context.batch.selection is selected.selection else None
    samples_aim = LIGHT_READ_SAMPLES if context.is_light else READ_SAMPLES
    row, size = 0, batch.read_size if batch is not None and batch.read_size else _first_size(selected, context)
    while row < selected.labels.size:
        context.check()
        last = min(row + size, selected.labels.size)
        samples = _read(selected, row, last, context)
        if samples is None:
            size = max(1, (last - row) // FEWER_SERIES)
            continue
        if batch is not None and samples.histograms is not None:
            batch.fit(samples.histograms)
        samples_read = len(samples.values) + samples.buckets
        context.count(last - row, len(samples.values), samples.buckets)
        context.hold(samples_read)
        if context.finds_resets:
            samples = with_hints(samples, context)
        yield slice(row, last), samples if keep_stale else without_stale(samples)
        if not is_kept:
            context.release(samples_read)
        size = max(1, min(samples_aim, context.samples_left) * (last - row) // max(samples_read, 1))
        if batch is not None:
            batch.read_size = size
        row = last


def _first_size(selected: Scan, context: EvalContext) -> int:
    """The number of series in the first read, when it is not yet known how many samples they have."""
    series, samples_aim = (LIGHT_READ_SERIES, LIGHT_READ_SAMPLES) if context.is_light else (READ_SERIES, READ_SAMPLES)
    assumed = max(1, selected.range_ms // ASSUMED_INTERVAL_MS)
    return max(1, min(series, min(samples_aim, context.samples_left) // assumed))


def _read(selected: Scan, row: int, last: int, context: EvalContext) -> Samples | None:
    """The samples of these rows; None if there are several rows, which have more samples than may be held."""
    try:
        samples = selected.selection.read(selected.first + row, selected.first + last)
    except MemoryError:
        if last - row > 1:
            return None
        raise
    is_too_much = len(samples.values) + samples.buckets > context.samples_left
    return None if is_too_much and last - row > 1 else samples


def without_stale(samples: Samples) -> Samples:
    """The samples without staleness markers."""
    bits = samples.values.view(np.int64)
    if not any_number_is(bits, STALE_NAN_BITS):
        return samples
    is_kept = bits != STALE_NAN_BITS
    starts = samples.start_timestamps_ms
    return Samples(
        np.concatenate([[0], np.cumsum(is_kept)])[samples.offsets],
        samples.timestamps_ms[is_kept],
        samples.values[is_kept],
        None if starts is None else starts[is_kept],
        samples.histograms,
    )


def instant_vector(node: VectorSelector, grid: Grid, context: EvalContext) -> Matrix:
    """The newest sample of every series at each time, unless it is beyond the lookback or a staleness marker."""
    return _instant(node, grid, context, None)


def sample_times(func: str, node: VectorSelector, grid: Grid, context: EvalContext) -> Matrix:
    """`timestamp(selector)` and `start_timestamp(selector)`: the time, in seconds, of the sample that the selector
    chooses.

    The start timestamp of a sample that has none is 0. `INFO_TIMES`: as `timestamp`, but NaN for histograms.
    """
    matrix = _instant(node, grid, context, func)
    return Matrix(matrix.labels, matrix.values, matrix.present, np.ones_like(matrix.drop_name))


def _instant(node: VectorSelector, grid: Grid, context: EvalContext, func: str | None) -> Matrix:
    lookback_ms = context.lookback_ms
    windows = windows_of(node, lookback_ms, grid, context)
    selected = scan(node, windows, context)
    values, present = empty(selected.labels.size, grid.steps, context)
    gathered = GatheredHistograms()
    for rows, samples in reads(selected, context, keep_stale=True):
        s = samples
        last_in_window(
            s.offsets, s.timestamps_ms, s.values.view(np.int64), _column(func, s), STALE_NAN_BITS, windows.first,
            windows.step, lookback_ms, values[rows], present[rows],
        )  # fmt: skip
        if func is None and samples.histograms is not None:
            gathered.adopt(values[rows], present[rows], samples.histograms)
    no_names_dropped = np.zeros(selected.labels.size, dtype=np.bool_)
    return seen_only(selected.labels, values, present, no_names_dropped, gathered.batch())


def _column(func: str | None, samples: Samples) -> Float:
    if func is None:
        return samples.values
    if func == "timestamp":
        return samples.timestamps_ms / 1000.0
    if func == INFO_TIMES:
        return np.where(is_reference(samples.values), np.nan, samples.timestamps_ms / 1000.0)
    starts = samples.start_timestamps_ms
    return np.zeros(len(samples.values)) if starts is None else starts / 1000.0


def empty(series: int, steps: int, context: EvalContext) -> tuple[Float, Bool]:
    """Uninitialised (values: float64[series, steps], presence: bool[series, steps]) of a matrix. Raises OverBudget if
    the query may not hold that many."""
    context.hold(series * steps)
    return np.empty((series, steps)), np.empty((series, steps), dtype=np.bool_)


def seen_only(
    labels: LabelFrame, values: Float, present: Bool, drop_name: Bool, histograms: HistogramBatch | None = None
) -> Matrix:
    """The matrix of the series that have a sample at some step. If there are histograms, absent values become NaN, so
    that no value that was never written looks like a reference to one."""
    if histograms is not None:
        values[~present] = np.nan
    if present.shape[1] and present.all():
        return Matrix(labels, values, present, drop_name, histograms)
    seen: Bool = np.asarray(present.any(axis=1))
    if seen.all():
        return Matrix(labels, values, present, drop_name, histograms)
    return Matrix(labels.take(seen), values[seen], present[seen], drop_name[seen], histograms)


def counter_starts(samples: Samples) -> tuple[Int, Bool]:
    """What start timestamps say about counters: (`starts` int64[m], `began` bool[m]), both empty if there are none.

    `began`: the counter was reset between the previous sample and this one. Its start is later than the previous
    sample, or at the same time if the previous sample has a start of its own (delta temporality; a previous sample
    without a start is the first one of a counter whose start is unknown). A start that is not before its own sample is
    ignored.
    """
    starts = samples.start_timestamps_ms
    if starts is None or not starts.any():
        return NO_STARTS, NO_FLAGS
    times = samples.timestamps_ms
    valid = (starts != 0) & (starts < times)
    began = np.zeros(len(starts), dtype=np.bool_)
    began[1:] = valid[1:] & ((starts[1:] > times[:-1]) | ((starts[1:] == times[:-1]) & valid[:-1]))
    began[_first_samples(samples)] = False
    return starts, began


def overlapping_starts(samples: Samples) -> Bool:
    """bool[m]: whether a sample's start is before the previous sample, and is not also that sample's start. Empty if no
    sample has a start."""
    starts = samples.start_timestamps_ms
    if starts is None or not starts.any():
        return NO_FLAGS
    overlaps = np.zeros(len(starts), dtype=np.bool_)
    overlaps[1:] = (starts[1:] != 0) & (starts[1:] < samples.timestamps_ms[:-1]) & (starts[1:] != starts[:-1])
    overlaps[_first_samples(samples)] = False
    return overlaps


def _first_samples(samples: Samples) -> Int:
    """The first sample of each series, which has no predecessor."""
    return samples.offsets[:-1][np.diff(samples.offsets) > 0]
