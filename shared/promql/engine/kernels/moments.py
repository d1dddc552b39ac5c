"""Sums, averages and variances of windows.

Shapes as in `windows`. These kernels visit every sample of every window, so they cost samples × overlap. A compensated
(Kahan–Neumaier) sum depends on the order of its terms, so a sliding sum would differ in its last bits. There is one
exception: if a series' values are integers whose magnitudes add up to less than 2^53, every order gives the exact sum,
and differences of prefix sums are used.
"""

from __future__ import annotations

import numpy as np

from shared.kernels import kernel, types
from shared.promql.engine.kernels.windows import (
    EDGES,
    EXACT_INTEGER,
    FLOATS,
    PRESENT_OUT,
    SERIES,
    VALUES_OUT,
    advance,
    longest_series,
)
from shared.promql.model import Bool, Float, Int

SUM, AVG, STDVAR, STDDEV = 0, 1, 2, 3


@kernel(types.UniTuple(types.float64, 2)(types.float64, types.float64, types.float64), error_model="numpy")
def add(term: float, total: float, lost: float) -> tuple[float, float]:
    """One step of a Kahan–Neumaier sum. Returns the new (total, lost)."""
    new = total + term
    if np.isinf(new):
        return new, 0.0
    if abs(total) >= abs(term):
        return new, lost + ((total - new) + term)
    return new, lost + ((term - new) + total)


@kernel(types.float64(FLOATS, types.int64, types.int64), error_model="numpy")
def mean(values: Float, lo: int, hi: int) -> float:
    """The compensated mean, computed incrementally from the point at which the sum would overflow."""
    total = values[lo]
    lost = 0.0
    for i in range(lo + 1, hi):
        count = i - lo + 1.0
        new, new_lost = add(values[i], total, lost)
        if not np.isinf(new):
            total, lost = new, new_lost
            continue
        average = total / (count - 1)
        lost /= count - 1
        for j in range(i, hi):
            count = j - lo + 1.0
            weight = (count - 1) / count
            average, lost = add(values[j] / count, weight * average, weight * lost)
        return average + lost
    return total / (hi - lo) + lost / (hi - lo)


@kernel(types.float64(FLOATS, types.int64, types.int64), error_model="numpy")
def variance(values: Float, lo: int, hi: int) -> float:
    """The population variance by Welford's method, compensated."""
    average = 0.0
    average_lost = 0.0
    squares = 0.0
    squares_lost = 0.0
    for i in range(lo, hi):
        delta = values[i] - (average + average_lost)
        average, average_lost = add(delta / (i - lo + 1), average, average_lost)
        squares, squares_lost = add(delta * (values[i] - (average + average_lost)), squares, squares_lost)
    return (squares + squares_lost) / (hi - lo)


@kernel(types.void(types.int64, *SERIES, *EDGES, VALUES_OUT, PRESENT_OUT), error_model="numpy")
def moments(
    op: int,
    offsets: Int,
    timestamps: Int,
    values: Float,
    first: int,
    step: int,
    range_ms: int,
    out: Float,
    present: Bool,
) -> None:
    """SUM, AVG, STDVAR, STDDEV."""
    longest = longest_series(offsets)
    before = np.zeros(longest + 1, np.float64)
    for s in range(out.shape[0]):
        begin = offsets[s]
        lo = begin
        hi = begin
        end = offsets[s + 1]
        exact = op <= AVG
        magnitude = 0.0
        if exact:
            for i in range(begin, end):
                exact = exact and values[i] == np.floor(values[i])
                magnitude += abs(values[i])
                before[i - begin + 1] = before[i - begin] + values[i]
            exact = exact and magnitude < EXACT_INTEGER
        for k in range(out.shape[1]):
            t = first + k * step
            hi = advance(timestamps, hi, end, t)
            lo = advance(timestamps, lo, hi, t - range_ms)
            present[s, k] = hi > lo
            if hi == lo:
                continue
            if exact:
                value = before[hi - begin] - before[lo - begin]
                out[s, k] = value / (hi - lo) if op == AVG else value
            elif op == SUM:
                total = 0.0
                lost = 0.0
                for i in range(lo, hi):
                    total, lost = add(values[i], total, lost)
                out[s, k] = total + lost
            elif op == AVG:
                out[s, k] = mean(values, lo, hi)
            else:
                value = variance(values, lo, hi)
                out[s, k] = np.sqrt(value) if op == STDDEV else value
