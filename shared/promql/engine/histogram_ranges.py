"""Functions of range vectors over series that have native histograms.

Source: https://prometheus.io/docs/prometheus/latest/querying/functions/ and the specification of native histograms. The
samples of a series are rows of a batch, and neighbouring windows share most of their rows. A rate reads only the first
and last row of a window, and those before resets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.histograms import merging, operators
from shared.histograms.batch import HINT, HINT_GAUGE, IS_FLOAT, HistogramBatch, read_only, sealed
from shared.histograms.frames import with_used_layouts
from shared.histograms.merging import Merged
from shared.histograms.references import is_reference, rows_of
from shared.histograms.schemas import CUSTOM
from shared.promql.engine import histogram_neighbours as neighbours
from shared.promql.engine import readings, scan
from shared.promql.engine.context import EvalContext
from shared.promql.engine.gathering import GatheredHistograms
from shared.promql.engine.histogram_notes import (
    CONFLICTING,
    IGNORED,
    MIXED_SCHEMAS,
    MIXED_TYPES,
    NOT_COUNTER,
    NOT_GAUGE,
    OVERLAPPING,
    RECONCILED,
)
from shared.promql.engine.kernels import histogram_windows as kernels
from shared.promql.engine.readings import Reading
from shared.promql.model import Bool, Float, Int, Samples

CELLS_AT_ONCE = 1 << 18
"""Values of a part, whose windows are determined at once: 16 MB of bounds and flags."""

LAYOUTS_CARRIED = 1 << 10
"""Up to this many layouts, results keep all those of the histograms they come from, whether they use them or not."""

COUNTERS = frozenset({"rate", "increase", "irate"})
DIFFERENCES = COUNTERS | {"delta", "idelta"}
SUMS: dict[str, Callable[[HistogramBatch, Int, Int], Merged]] = {
    "sum_over_time": merging.summed,
    "avg_over_time": operators.averaged,
}
CARRYING = frozenset({"first_over_time", "last_over_time"})
OF_SAMPLES = CARRYING | {
    "absent_over_time", "changes", "count_over_time", "present_over_time", "resets", "ts_of_first_over_time",
    "ts_of_last_over_time",
}  # fmt: skip
"""Functions that treat a histogram like any other sample. The kernels of the others see only the floats."""

Function = Callable[[Reading], None]


def evaluate(
    func: str, function: Function, reading: Reading, gathered: GatheredHistograms, context: EvalContext
) -> None:
    """Evaluate a reading that has histograms. `function` is the one for floats. Fills `reading.notes`."""
    if func in OF_SAMPLES:
        _of_samples(func, function, reading, gathered, context)
        return
    floats = floats_of(reading.samples)
    if len(floats.values):
        readings.run(function, replace(reading, samples=floats), context)
    else:
        reading.present[:] = False
    if func in COUNTERS:
        reading.events = reset_events(reading.samples, context)
    for part in readings.parts(reading, CELLS_AT_ONCE):
        context.check()
        if func in DIFFERENCES:
            _differences(func, part, gathered, context)
        elif func in SUMS:
            _sums(SUMS[func], part, gathered, context)
        else:
            _, is_mixed = kinds(part, *bounds_of(part))
            note(part, is_mixed, IGNORED)
    if func in COUNTERS:
        note_overlaps(func, reading, context)


def note_overlaps(func: str, reading: Reading, context: EvalContext) -> None:
    """Note the series that have a result from samples with overlapping start timestamps. Must be called after the
    results have been computed."""
    if not scan.overlapping_starts(reading.samples).any():
        return
    for part in readings.parts_of_values(reading, CELLS_AT_ONCE):
        context.check()
        overlaps = scan.overlapping_starts(part.samples)
        if not overlaps.any():
            continue
        bounds = _difference_bounds(func, part)[0].chosen(part.present)
        before = sums_before(overlaps)
        is_overlapping = before[bounds.last + 1] > before[bounds.left + 1]
        Cells(part, *np.nonzero(part.present)).note(is_overlapping, OVERLAPPING)


def _of_samples(
    func: str, function: Function, reading: Reading, gathered: GatheredHistograms, context: EvalContext
) -> None:
    samples = reading.samples
    if func == "changes":
        reading.events = neighbours.changes(samples, context)
    elif func == "resets":
        reading.events = reset_events(samples, context) | neighbours.kind_changes(samples)
    readings.run(function, reading, context)
    if func in CARRYING and samples.histograms is not None:
        gathered.adopt(reading.out, reading.present, samples.histograms)


def floats_of(samples: Samples) -> Samples:
    is_float = ~is_reference(samples.values)
    starts = samples.start_timestamps_ms
    return Samples(
        sums_before(is_float)[samples.offsets],
        samples.timestamps_ms[is_float],
        samples.values[is_float],
        None if starts is None else starts[is_float],
    )


def reset_events(samples: Samples, context: EvalContext) -> Bool:
    """bool[m]: whether a counter was reset between the previous sample and this one, according to the histograms or to
    their start timestamps. Meaningless for the first sample of a series."""
    events = neighbours.resets(samples, context)
    began = scan.counter_starts(samples)[1]
    return events | began if began.size else events


def gauges_and_customs(samples: Samples) -> tuple[Bool, Bool]:
    """bool[m] each: whether a sample is a gauge histogram, and whether it has custom buckets."""
    batch = samples.histograms
    assert batch is not None
    is_histogram = is_reference(samples.values)
    rows = np.where(is_histogram, rows_of(samples.values), 0)
    is_custom = (batch.layouts.columns.schema == CUSTOM)[batch.columns.layout[rows]]
    return is_histogram & (batch.columns.flags[rows] & HINT == HINT_GAUGE), is_histogram & is_custom


# Windows


def bounds_of(reading: Reading) -> tuple[Int, Int]:
    """int64[n, steps] each: the window of series s at step k has the samples begins[s, k] ≤ i < ends[s, k]."""
    begins, ends = np.empty(reading.out.shape, np.int64), np.empty(reading.out.shape, np.int64)
    kernels.window_bounds(*reading.series[:2], *reading.edges, begins, ends)
    return begins, ends


def kinds(reading: Reading, begins: Int, ends: Int) -> tuple[Bool, Bool]:
    """(whether the samples begins[s, k] ≤ i < ends[s, k] are all histograms, whether they are of both kinds)."""
    before = sums_before(is_reference(reading.samples.values))
    histograms = before[ends] - before[begins]
    return (histograms > 0) & (histograms == ends - begins), (histograms > 0) & (histograms < ends - begins)


def note(reading: Reading, where: Bool, note: int) -> None:
    """Add `note` to the notes of the series with a window in `where` (bool[n, steps])."""
    reading.notes[where.any(axis=1)] |= note


class Cells(NamedTuple):
    """The values to compute: the series and the step of each. `note` takes a mask of the cells, bool[cells]."""

    reading: Reading
    series: Int
    steps: Int

    def note(self, where: Bool, note: int) -> None:
        self.reading.notes[self.series[where]] |= note

    def fill(self, cells: slice, merged: Merged, is_refused: Bool, gathered: GatheredHistograms) -> None:
        """Write the histograms of some cells (the rows of `merged`), except those that are refused (bool[…])."""
        is_refused = is_refused | (merged.notes & merging.MIXED > 0)
        series, steps = self.series[cells], self.steps[cells]
        self.reading.notes[series[is_refused]] |= MIXED_SCHEMAS
        self.reading.notes[series[~is_refused & (merged.notes & merging.RECONCILED > 0)]] |= RECONCILED
        batch = merged.batch if not is_refused.any() else merged.batch.take(np.flatnonzero(~is_refused))
        if len(batch.layouts) > LAYOUTS_CARRIED:
            batch = with_used_layouts(batch)
        series, steps = series[~is_refused], steps[~is_refused]
        self.reading.out[series, steps] = gathered.add(batch)
        self.reading.present[series, steps] = True


def slices(sizes: Int, batch: HistogramBatch, gathered: GatheredHistograms, context: EvalContext) -> Iterator[slice]:
    """Slices of the windows that add up a bounded number of buckets; `sizes`: int64[windows], how many rows each window
    adds up. Checks the deadline, and that the query may hold the buckets of the results so far."""
    ends = np.cumsum(sizes)
    members = max(1, neighbours.BUCKETS_AT_ONCE // neighbours.widest(batch))
    first = 0
    while first < len(sizes):
        context.check()
        context.require(gathered.buckets)
        done = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + members, side="right")))
        yield slice(first, last)
        first = last


def narrowed(batch: HistogramBatch, members: Int) -> tuple[HistogramBatch, Int]:
    """(a batch that has the rows `members` (int64[…]), their numbers in it). A batch of many layouts is cut down to the
    range of these rows and the layouts that it uses, because a sum visits every layout of its batch."""
    if len(batch.layouts) <= LAYOUTS_CARRIED or not len(members):
        return batch, members
    first = int(members.min())
    return with_used_layouts(batch.rows(first, int(members.max()) + 1)), members - first


def _sums(
    add_up: Callable[[HistogramBatch, Int, Int], Merged],
    reading: Reading,
    gathered: GatheredHistograms,
    context: EvalContext,
) -> None:
    batch = reading.samples.histograms
    assert batch is not None
    begins, ends = bounds_of(reading)
    is_histograms, is_mixed = kinds(reading, begins, ends)
    note(reading, is_mixed, MIXED_TYPES)
    reading.present[is_mixed] = False
    cells = Cells(reading, *np.nonzero(is_histograms))
    rows = rows_of(reading.samples.values)
    begin, end = begins[is_histograms], ends[is_histograms]
    for chunk in slices(end - begin, batch, gathered, context):
        start = sums_before(end[chunk] - begin[chunk])
        members = np.empty(start[-1], np.int64)
        kernels.range_members(begin[chunk], end[chunk], rows, start, members)
        merged = add_up(*narrowed(batch, members), start)
        is_conflicting = merged.notes & merging.CONFLICTING > 0
        reading.notes[cells.series[chunk][is_conflicting]] |= CONFLICTING
        cells.fill(chunk, merged, np.zeros(len(merged.notes), dtype=np.bool_), gathered)


# Rates


class _Differences(NamedTuple):
    """The bounds of windows, as `kernels.difference_members` takes them: arrays [n, steps], or [cells] of chosen
    windows. `zero_ms`: the time at which a counter is known to have been zero, or else the beginning of the window."""

    left: Int
    left_share: Float
    right: Int
    right_share: Float
    zero_ms: Int
    is_from_zero: Bool

    @property
    def last(self) -> Int:
        """The last sample that the window uses."""
        return self.right + (self.right_share > 0)

    def chosen(self, where: Bool | slice) -> _Differences:
        return _Differences(
            self.left[where], self.left_share[where], self.right[where], self.right_share[where], self.zero_ms[where],
            self.is_from_zero[where],
        )  # fmt: skip


def _difference_bounds(func: str, reading: Reading) -> tuple[_Differences, Bool]:
    """(the bounds of all windows, whether each has enough samples for a result)."""
    shape, samples, windows = reading.out.shape, reading.samples, reading.windows
    from_ms = np.broadcast_to(windows.first - windows.range_ms + windows.step * np.arange(shape[1]), shape)
    not_from_zero = np.zeros(shape, dtype=np.bool_)
    if windows.before_ms:
        left, right = np.empty(shape, np.int64), np.empty(shape, np.int64)
        left_share, right_share = np.empty(shape), np.empty(shape)
        kernels.extended_bounds(
            *reading.series[:2], *reading.edges, reading.lookback_ms, reading.smoothed, left, left_share, right,
            right_share,
        )  # fmt: skip
        return _Differences(left, left_share, right, right_share, from_ms, not_from_zero), left >= 0
    begins, ends = bounds_of(reading)
    if func in ("irate", "idelta"):
        bounds = _Differences(ends - 2, np.zeros(shape), ends - 1, np.zeros(shape), from_ms, not_from_zero)
        return bounds, ends - begins >= 2
    starts = scan.counter_starts(samples)[0]
    zero_ms = from_ms
    if func in COUNTERS and starts.size:
        first = np.minimum(begins, len(starts) - 1)
        is_known = (starts[first] != 0) & (starts[first] < samples.timestamps_ms[first])
        zero_ms = np.where(is_known & (starts[first] > from_ms), starts[first], from_ms)
    bounds = _Differences(begins, np.zeros(shape), ends - 1, np.zeros(shape), zero_ms, zero_ms > from_ms)
    return bounds, (ends - begins >= 2) | ((ends - begins == 1) & bounds.is_from_zero)


def _differences(func: str, reading: Reading, gathered: GatheredHistograms, context: EvalContext) -> None:
    samples, batch = reading.samples, reading.samples.histograms
    assert batch is not None
    bounds, is_enough = _difference_bounds(func, reading)
    is_histograms, is_mixed = kinds(reading, np.maximum(bounds.left, 0), np.maximum(bounds.last, 0) + 1)
    reading.present[(is_mixed | is_histograms) & is_enough] = False  # Discards the result of the floats in the window.
    note(reading, is_mixed & is_enough, MIXED_TYPES)
    is_result = is_histograms & is_enough
    cells, bounds = Cells(reading, *np.nonzero(is_result)), bounds.chosen(is_result)
    events = reading.events if func in COUNTERS else np.zeros(len(samples.values), dtype=np.bool_)
    is_refused = _refusals(func, cells, bounds, events)
    after = np.append(np.where(events, np.arange(len(events)), len(events)), len(events))
    resets_of = read_only(events, np.bool_), read_only(np.minimum.accumulate(after[::-1])[::-1], np.int64)
    sizes = np.empty(len(bounds.left), np.int64)
    kernels.count_difference_members(*bounds[:4], bounds.is_from_zero, *resets_of, sizes)
    rows = rows_of(samples.values)
    for chunk in slices(sizes, batch, gathered, context):
        part, start = bounds.chosen(chunk), sums_before(sizes[chunk])
        members, weights = np.empty(start[-1], np.int64), np.empty(start[-1])
        kernels.difference_members(*part[:4], part.is_from_zero, *resets_of, rows, start, members, weights)
        merged = merging.summed(*narrowed(batch, members), start, weights)
        factors = _factors(func, reading, part, cells.steps[chunk], merged.batch, rows)
        cells.fill(chunk, merged._replace(batch=_gauges(merged.batch, factors)), is_refused[chunk], gathered)


def _refusals(func: str, cells: Cells, bounds: _Differences, events: Bool) -> Bool:
    """bool[cells]: the windows whose histograms admit no result. Notes what is wrong with those of the others."""
    is_gauge, is_custom = gauges_and_customs(cells.reading.samples)
    last, customs = bounds.last, sums_before(is_custom)
    is_refused = np.zeros(len(last), dtype=np.bool_)
    for at, share in ((bounds.left, bounds.left_share), (bounds.right, bounds.right_share)):
        between = customs[np.minimum(at + 2, len(customs) - 1)] - customs[at]
        is_refused |= (share > 0) & (between == 1)
    if func not in COUNTERS:
        is_refused |= is_custom[bounds.left] != is_custom[bounds.right]
        cells.note(~is_refused & ~(is_gauge[bounds.left] & is_gauge[bounds.right]), NOT_GAUGE)
        return is_refused
    is_lost = ~bounds.is_from_zero & (bounds.left < last) & events[np.minimum(bounds.left + 1, len(events) - 1)]
    first = bounds.left + is_lost
    of_window = customs[last + 1] - customs[first]
    is_refused |= (of_window > 0) & (of_window <= last - first)
    gauges = sums_before(is_gauge)
    cells.note(~is_refused & (gauges[last + 1] > gauges[bounds.left]), NOT_COUNTER)
    return is_refused


def _factors(
    func: str, reading: Reading, bounds: _Differences, steps: Int, increases: HistogramBatch, rows: Int
) -> Float:
    """float64[cells]: the factors of the differences between the bounds of the windows."""
    batch, times, windows = reading.samples.histograms, reading.samples.timestamps_ms, reading.windows
    assert batch is not None
    factors = np.ones(len(steps))
    if func == "irate":
        return np.asarray(1000.0 / (times[bounds.right] - times[bounds.left]))
    if func != "idelta" and not windows.before_ms:
        to_ms = windows.first + windows.step * steps
        kernels.extrapolations(
            increases.columns.observations, batch.columns.observations[rows[bounds.left]], times[bounds.left],
            times[bounds.right], bounds.right - bounds.left + 1, to_ms - windows.range_ms, to_ms, bounds.zero_ms,
            func in COUNTERS, factors,
        )  # fmt: skip
    return factors / (windows.range_ms / 1000.0) if func == "rate" else factors


def _gauges(batch: HistogramBatch, factors: Float) -> HistogramBatch:
    """The rows times their factors, as gauges."""
    if (factors != 1.0).any():
        batch = operators.scaled_by_rows(batch, factors, 1.0)
    flags = np.full(len(batch), IS_FLOAT | HINT_GAUGE & HINT, np.uint8)
    return HistogramBatch(batch.layouts, sealed(batch.columns._replace(flags=flags)))


def sums_before(sizes: NDArray[np.bool_] | Int) -> Int:
    """int64[n + 1]: the sum of the entries before each one."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
