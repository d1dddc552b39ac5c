"""`smoothed` instant selectors: the value at each time, interpolated between the samples before and after it.

Source: https://prometheus.io/docs/prometheus/latest/feature_flags/ (extended range selectors).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shared.histograms import merging
from shared.histograms.references import is_reference, rows_of
from shared.promql.ast import VectorSelector
from shared.promql.engine import histogram_notes, readings, scan
from shared.promql.engine import histogram_ranges as ranges
from shared.promql.engine.context import EvalContext
from shared.promql.engine.gathering import GatheredHistograms
from shared.promql.engine.kernels import histogram_windows as kernels
from shared.promql.engine.kernels.extended import smoothed_at
from shared.promql.engine.readings import Reading
from shared.promql.model import Bool, Grid, Matrix, Samples


def instant_vector(node: VectorSelector, grid: Grid, context: EvalContext) -> Matrix:
    """The value of every series at each time, on the line between the neighbouring samples within the lookback.

    Without a later sample, the earlier one is the value. Without an earlier one, there is no value.
    """
    windows = scan.windows_of(node, context.lookback_ms, grid, context)
    selected = scan.scan(node, windows, context)
    labels = selected.labels
    values, present = scan.empty(labels.size, grid.steps, context)
    gathered, notes = GatheredHistograms(), np.zeros(labels.size, dtype=np.uint8)
    for rows, samples in scan.reads(selected, context):
        floats = samples if samples.histograms is None else ranges.floats_of(samples)
        smoothed_at(
            floats.offsets, floats.timestamps_ms, floats.values, windows.first, windows.step, context.lookback_ms,
            values[rows], present[rows],
        )  # fmt: skip
        if samples.histograms is not None:
            reading = Reading(
                samples, windows, values[rows], present[rows], [], windows.first, windows.step, True,
                context.lookback_ms, notes[rows], _counter_resets(samples, context),
            )  # fmt: skip
            for part in readings.parts(reading, ranges.CELLS_AT_ONCE):
                _interpolate(part, gathered, context)
    histogram_notes.remark(notes, labels, "addition", node.span[0], context.annotations)
    return scan.seen_only(labels, values, present, np.zeros(labels.size, dtype=np.bool_), gathered.batch())


def sample_times(func: str, node: VectorSelector, grid: Grid, context: EvalContext) -> Matrix:
    """`timestamp` and `start_timestamp` of a smoothed selector: the time of the value, in seconds, and 0."""
    matrix = instant_vector(node, grid, context)
    windows = scan.windows_of(node, context.lookback_ms, grid, context)
    times = (windows.first + windows.step * np.arange(grid.steps)) / 1000.0
    values = np.broadcast_to(times if func == "timestamp" else 0.0, matrix.values.shape).copy()
    return Matrix(matrix.labels, values, matrix.present, np.ones_like(matrix.drop_name))


def _counter_resets(samples: Samples, context: EvalContext) -> Bool:
    """bool[m]: whether this sample is a histogram after a counter reset; gauges have no resets. Start timestamps are
    ignored here, as they are for floats."""
    is_gauge, _ = ranges.gauges_and_customs(samples)
    events = ranges.reset_events(replace(samples, start_timestamps_ms=None), context) & ~is_gauge
    events[1:] &= ~is_gauge[:-1]
    return events


def _interpolate(reading: Reading, gathered: GatheredHistograms, context: EvalContext) -> None:
    """Fill in the values that are histograms. If both floats and histograms are within the lookback, there is no
    value."""
    samples, windows, batch = reading.samples, reading.windows, reading.samples.histograms
    assert batch is not None
    lookback_ms, times = reading.lookback_ms, samples.timestamps_ms
    begins, ends = ranges.bounds_of(reading)
    around = replace(windows, first=windows.first + lookback_ms, range_ms=2 * lookback_ms)
    _, is_mixed = ranges.kinds(reading, *ranges.bounds_of(replace(reading, windows=around)))
    ranges.note(reading, is_mixed, histogram_notes.MIXED_TYPES)
    reading.present[is_mixed] = False
    now = np.broadcast_to(windows.first + windows.step * np.arange(reading.out.shape[1]), reading.out.shape)
    is_histogram = is_reference(samples.values)
    is_value = (ends > begins) & ~is_mixed & is_histogram[ends - 1]
    series, steps = np.nonzero(is_value)
    cells = ranges.Cells(reading, series, steps)
    at, t = ends[is_value] - 1, now[is_value]
    following = np.minimum(at + 1, len(times) - 1)
    is_between = (at + 1 < samples.offsets[series + 1]) & (times[following] <= t + lookback_ms) & (times[at] < t)
    share = np.where(is_between, (t - times[at]) / np.maximum(times[following] - times[at], 1), 0.0)
    _, is_custom = ranges.gauges_and_customs(samples)
    is_refused = is_between & (is_custom[at] != is_custom[following])
    no_share, from_zero = np.zeros(len(at)), np.ones(len(at), dtype=np.bool_)
    no_resets = np.full(len(times) + 1, len(times) + 1, np.int64)
    sums = (at + 1, no_share, at, share, from_zero, reading.events, no_resets)
    sizes = np.empty(len(at), np.int64)
    kernels.count_difference_members(*sums, sizes)
    for chunk in ranges.slices(sizes, batch, gathered, context):
        start = ranges.sums_before(sizes[chunk])
        members, weights = np.empty(start[-1], np.int64), np.empty(start[-1])
        kernels.difference_members(
            at[chunk] + 1, no_share[chunk], at[chunk], share[chunk], from_zero[chunk], reading.events, no_resets,
            rows_of(samples.values), start, members, weights,
        )  # fmt: skip
        cells.fill(chunk, merging.summed(*ranges.narrowed(batch, members), start, weights), is_refused[chunk], gathered)
