"""Functions that need only a window's first and last samples and a count between them.

Shapes as in `windows`.
"""

from __future__ import annotations

import numpy as np

from shared.kernels import inlined, kernel, types
from shared.promql.engine.kernels.counters import is_reset
from shared.promql.engine.kernels.windows import EDGES, FLAGS, PRESENT_OUT, SERIES, VALUES_OUT, advance, longest_series
from shared.promql.model import Bool, Float, Int

COUNT, PRESENT, FIRST, LAST, FIRST_TIME, LAST_TIME, CHANGES, RESETS = 0, 1, 2, 3, 4, 5, 6, 7


@inlined(error_model="numpy")
def _count_events(op: int, values: Float, events: Bool, begin: int, end: int, counts: Int) -> None:
    """counts[i - begin]: the number of CHANGES or RESETS of a series from sample `begin` to sample i < end."""
    for i in range(begin + 1, end):
        if op == RESETS:
            is_event = is_reset(values, events, i)
        else:
            a, b = values[i - 1], values[i]
            is_event = (a != b and not (np.isnan(a) and np.isnan(b))) or (events.size > 0 and events[i])
        counts[i - begin] = counts[i - begin - 1] + is_event


@kernel(types.void(types.int64, *SERIES, FLAGS, *EDGES, types.int64, VALUES_OUT, PRESENT_OUT), error_model="numpy")
def tallies(
    op: int,
    offsets: Int,
    timestamps: Int,
    values: Float,
    events: Bool,
    first: int,
    step: int,
    range_ms: int,
    anchor_ms: int,
    out: Float,
    present: Bool,
) -> None:
    """COUNT, PRESENT, FIRST, LAST, FIRST_TIME, LAST_TIME, CHANGES, RESETS.

    `events`: bool[m] or empty: changes or resets before a sample that the values do not show. If `anchor_ms` > 0, a
    window that has a sample also includes the last sample at or before its start, unless that is `anchor_ms` older or
    more.
    """
    longest = longest_series(offsets)
    counts = np.zeros(longest + 1, np.int64)
    for s in range(out.shape[0]):
        begin = offsets[s]
        lo = begin
        hi = begin
        end = offsets[s + 1]
        if op >= CHANGES:
            _count_events(op, values, events, begin, end, counts)
        for k in range(out.shape[1]):
            t = first + k * step
            hi = advance(timestamps, hi, end, t)
            lo = advance(timestamps, lo, hi, t - range_ms)
            present[s, k] = hi > lo
            if hi == lo:
                continue
            left = lo
            if anchor_ms > 0 and lo > begin and timestamps[lo - 1] > t - range_ms - anchor_ms:
                left = lo - 1
            if op == COUNT:
                out[s, k] = hi - left
            elif op == PRESENT:
                out[s, k] = 1.0
            elif op == FIRST:
                out[s, k] = values[left]
            elif op == LAST:
                out[s, k] = values[hi - 1]
            elif op == FIRST_TIME:
                out[s, k] = timestamps[left] / 1000.0
            elif op == LAST_TIME:
                out[s, k] = timestamps[hi - 1] / 1000.0
            else:
                out[s, k] = counts[hi - 1 - begin] - counts[left - begin]
