"""Compiles the engine's kernels, or loads them from the cache on disk, before the first query needs them."""

from __future__ import annotations

import numpy as np

from shared.kernels import compile_declared
from shared.promql.engine import functions, partial
from shared.promql.engine.kernels.extended import smoothed_at
from shared.promql.engine.kernels.windows import last_in_window
from shared.promql.engine.range_functions import RANGE_FUNCTIONS, Reading
from shared.promql.engine.scan import Windows
from shared.promql.model import STALE_NAN_BITS, Samples


def compile_kernels() -> None:
    """Calls every kernel of the range functions once with one series of one sample, so that each has its one type
    signature, and compiles the declared ones of operators, aggregations and functions."""
    assert functions and partial  # imported for what they declare
    compile_declared()
    times, values = np.zeros(1, dtype=np.int64), np.zeros(1)
    samples = Samples(np.array([0, 1], dtype=np.int64), times, values)
    out, present = np.zeros((1, 1)), np.zeros((1, 1), dtype=np.bool_)
    half = np.full(1, 0.5)
    for before_ms in (0, 1):
        reading = Reading(samples, Windows(0, 1, 1, 1, before_ms), out, present, [half, half], 0, 1, False, 1)
        for function in RANGE_FUNCTIONS.values():
            function(reading)
    edges = (samples.offsets, times)
    last_in_window(*edges, values.view(np.int64), values, STALE_NAN_BITS, 0, 1, 1, out, present)
    smoothed_at(*edges, values, 0, 1, 1, out, present)
