"""The conventions that all kernels over windows share, and the instant vector: the newest sample of each window.

Shared shapes: `offsets` int64[n+1] (series i owns samples [offsets[i], offsets[i+1])), `timestamps` int64[m] ascending
within a series, `values` float64[m]; `out` float64[n, steps] and `present` bool[n, steps] are filled completely. The
window of step k has the samples with end - range_ms < t ≤ end, end = first + k * step; step 0 repeats one window. Both
edges only move forward, so the cost of a kernel is samples + steps unless its docstring says otherwise.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/functions/. Every kernel has one type signature and an
integer opcode instead of variants, because the first start has to compile every variant.
"""

from __future__ import annotations

import numpy as np

from shared.kernels import inlined, kernel, types
from shared.promql.model import Bool, Float, Int

INTS = types.Array(types.int64, 1, "C", readonly=True)
FLOATS = types.Array(types.float64, 1, "C", readonly=True)
FLAGS = types.Array(types.boolean, 1, "C", readonly=True)
VALUES_OUT = types.float64[:, ::1]
PRESENT_OUT = types.boolean[:, ::1]
SERIES = (INTS, INTS, FLOATS)
"""The types of `offsets`, `timestamps` and `values`."""
EDGES = (types.int64, types.int64, types.int64)
"""The types of `first`, `step` and `range_ms`."""

EXACT_INTEGER = 2.0**53
"""Sums of integers below this magnitude are exact in any order, and so are the differences of their prefix sums."""


@kernel(types.int64(INTS, types.int64, types.int64, types.int64), error_model="numpy", allocates=False)
def advance(timestamps: Int, at: int, end: int, limit: int) -> int:
    """The first index ≥ `at` whose timestamp is past `limit`."""
    while at < end and timestamps[at] <= limit:
        at += 1
    return at


@kernel(types.int64(INTS), error_model="numpy", allocates=False)
def longest_series(offsets: Int) -> int:
    """The largest number of samples of a series."""
    longest = 0
    for s in range(len(offsets) - 1):
        longest = max(longest, offsets[s + 1] - offsets[s])
    return longest


@kernel(types.boolean(INTS, types.int64), error_model="numpy", allocates=False)
def any_number_is(numbers: Int, wanted: int) -> bool:
    """Whether any of the numbers equals `wanted`."""
    any_equal = 0
    for i in range(len(numbers)):
        any_equal |= numbers[i] == wanted
    return any_equal != 0


@inlined(error_model="numpy")
def same_numbers(numbers: Int, offsets: Int, known_series: int, series: int) -> bool:
    """Whether two series have equal numbers. `known_series` is -1 for none; the other one has at least one number."""
    if known_series < 0:
        return False
    a, b, size = offsets[known_series], offsets[series], offsets[series + 1] - offsets[series]
    if offsets[known_series + 1] - a != size:
        return False
    if numbers[a] != numbers[b] or numbers[a + size - 1] != numbers[b + size - 1]:
        return False
    differs = 0
    left, right = numbers[a : a + size], numbers[b : b + size]
    for i in range(size):
        differs |= left[i] ^ right[i]
    return differs == 0


@kernel(types.void(INTS, INTS, INTS, FLOATS, types.int64, *EDGES, VALUES_OUT, PRESENT_OUT), error_model="numpy")
def last_in_window(
    offsets: Int,
    timestamps: Int,
    bits: Int,
    column: Float,
    stale: int,
    first: int,
    step: int,
    range_ms: int,
    out: Float,
    present: Bool,
) -> None:
    """The newest sample of each window unless it is a staleness marker.

    `bits`: int64[m], the bits of the values; `column`: float64[m], the result for each sample. The windows are
    determined once for consecutive series with the same timestamps.
    """
    places = np.empty(out.shape[1], np.int64)
    known_series = -1
    for s in range(out.shape[0]):
        begin, end = offsets[s], offsets[s + 1]
        if begin == end:
            present[s, :] = False
            continue
        if not same_numbers(timestamps, offsets, known_series, s):
            hi = begin
            for k in range(len(places)):
                t = first + k * step
                hi = advance(timestamps, hi, end, t)
                is_inside = hi > begin and timestamps[hi - 1] > t - range_ms
                places[k] = hi - 1 - begin if is_inside else -1
            known_series = s
        series_column, series_bits = column[begin:end], bits[begin:end]
        for k in range(len(places)):
            is_present = places[k] >= 0 and series_bits[places[k]] != stale
            present[s, k] = is_present
            if is_present:
                out[s, k] = series_column[places[k]]
