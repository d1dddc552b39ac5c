"""Resets and changes between neighbouring samples that are histograms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shared.histograms import operators
from shared.histograms import resets as histogram_resets
from shared.histograms.batch import HINT, HINT_NOT_RESET, HINT_RESET, HINT_UNKNOWN, HistogramBatch, sealed
from shared.histograms.references import is_reference, rows_of
from shared.promql.engine.context import EvalContext
from shared.promql.model import Bool, Int, Samples

BUCKETS_AT_ONCE = 1 << 20
"""Buckets that are added up or compared between two checks of the deadline: about 20 ms, and 16 MB of results."""


def resets(samples: Samples, context: EvalContext) -> Bool:
    """bool[m]: whether this sample and the previous one are histograms between which the counter was reset. Meaningless
    for the first sample of a series."""
    events = np.zeros(len(samples.values), dtype=np.bool_)
    for batch, at, previous, current in _pairs(samples, context):
        events[at] = histogram_resets.resets(batch, previous, current)
    return events


def changes(samples: Samples, context: EvalContext) -> Bool:
    """bool[m]: whether this sample and the previous one are different histograms, or a histogram and a float.
    Meaningless for the first sample of a series."""
    events = kind_changes(samples)
    for batch, at, previous, current in _pairs(samples, context):
        events[at] = ~operators.equal(batch.take(previous), batch.take(current))
    return events


def kind_changes(samples: Samples) -> Bool:
    """bool[m]: whether this sample is a histogram and the previous one is a float, or the other way round."""
    return np.diff(is_reference(samples.values), prepend=False)


def with_hints(samples: Samples, context: EvalContext) -> Samples:
    """The samples with each unknown reset hint replaced by what the preceding sample shows. The first histogram of a
    series and those after floats stay unchanged."""
    batch = samples.histograms
    if batch is None or not (batch.hints == HINT_UNKNOWN).any():
        return samples
    is_reset = resets(samples, context)
    follows = is_reference(samples.values)
    follows[1:] &= follows[:-1]
    follows[samples.offsets[:-1][np.diff(samples.offsets) > 0]] = False
    flags = batch.columns.flags.copy()
    rows = rows_of(samples.values[follows])
    hints = np.where(is_reset[follows], np.uint8(HINT_RESET), np.uint8(HINT_NOT_RESET))
    flags[rows] = np.where(flags[rows] & HINT == HINT_UNKNOWN, flags[rows] | hints, flags[rows])
    return replace(samples, histograms=HistogramBatch(batch.layouts, sealed(batch.columns._replace(flags=flags))))


def _pairs(samples: Samples, context: EvalContext) -> Iterator[tuple[HistogramBatch, Int, Int, Int]]:
    """(the batch, samples that are histograms after a histogram, the rows of their predecessors, their own rows), some
    at a time."""
    if samples.histograms is None:
        return
    is_histogram, rows = is_reference(samples.values), rows_of(samples.values)
    after_histogram = np.flatnonzero(is_histogram[1:] & is_histogram[:-1]) + 1
    size = max(1, BUCKETS_AT_ONCE // widest(samples.histograms))
    for first in range(0, len(after_histogram), size):
        context.check()
        at = after_histogram[first : first + size]
        yield samples.histograms, at, rows[at - 1], rows[at]


def widest(batch: HistogramBatch) -> int:
    """The largest number of buckets that a row may have, at least 1."""
    return max(1, int(np.diff(batch.layouts.columns.start).max(initial=0)))
