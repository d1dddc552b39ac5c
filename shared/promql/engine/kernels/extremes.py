"""The least and the greatest value of a window, and when it was sampled.

Shapes as in `windows`.
"""

from __future__ import annotations

import numpy as np

from shared.kernels import kernel, types
from shared.promql.engine.kernels.windows import EDGES, PRESENT_OUT, SERIES, VALUES_OUT, advance, longest_series
from shared.promql.model import Bool, Float, Int

MIN, MAX, MIN_TIME, MAX_TIME = 0, 1, 2, 3


@kernel(types.void(types.int64, *SERIES, *EDGES, VALUES_OUT, PRESENT_OUT), error_model="numpy")
def extremes(
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
    """MIN and MAX, and the times in seconds of the last samples with these values (MIN_TIME, MAX_TIME). A queue holds
    the samples that are better than all samples after them.

    NaN is worse than every other value. A window that has only NaN gives NaN, and the time of its last sample.
    """
    longest = longest_series(offsets)
    queue = np.empty(longest + 1, np.int64)
    sign = 1.0 if op % 2 == MAX else -1.0
    for s in range(out.shape[0]):
        lo = offsets[s]
        hi = lo
        end = offsets[s + 1]
        head = 0
        tail = 0
        for k in range(out.shape[1]):
            t = first + k * step
            entered = hi
            hi = advance(timestamps, hi, end, t)
            for i in range(entered, hi):
                if np.isnan(values[i]):
                    continue
                while tail > head and sign * values[queue[tail - 1]] <= sign * values[i]:
                    tail -= 1
                queue[tail] = i
                tail += 1
            lo = advance(timestamps, lo, hi, t - range_ms)
            while head < tail and queue[head] < lo:
                head += 1
            present[s, k] = hi > lo
            if hi == lo:
                continue
            best = queue[head] if head < tail else hi - 1
            out[s, k] = values[best] if op <= MAX else timestamps[best] / 1000.0
